"""The A2A lane and its peers' failings: cards that cannot be used, answers that are none, and tasks that take long."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent_env.client.lanes import a2a_foreign, a2a_transport
from agent_env.client.lanes.a2a import A2aLane
from agent_env.client.lanes.contract import Outgoing
from agent_env.context import CallContext
from agent_env.errors import (
    AgentFailed,
    AtCapacity,
    Forbidden,
    InvalidArguments,
    InvalidCard,
    MessageTooLarge,
    NotSupported,
    ProtocolError,
    TransportError,
    Unauthenticated,
)
from agent_env.net import bound_url, listen
from agent_env.net.serving import served

pytestmark = pytest.mark.anyio


def outgoing() -> Outgoing:
    return Outgoing(CallContext().within(20))


def chat(message: str) -> dict[str, Any]:
    return {"name": "chat", "arguments": {"message": message}}


def interface(url: str, binding: str = "JSONRPC") -> dict[str, Any]:
    return {"url": url, "protocolBinding": binding, "protocolVersion": "1.0"}


class Scripted:
    """A server with a card, whose endpoint gives what it was made with, one answer after the other."""

    def __init__(self, *answers: Any, card: Any = None, streaming: bool = True, binding: str = "JSONRPC") -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.card = card
        self.streaming = streaming
        self.binding = binding

    async def rpc(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body["method"])
        answer = self.answers.pop(0)
        if isinstance(answer, Response):
            return answer
        return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "result": answer})

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[str]:
        listener = listen()
        url = bound_url(listener)
        made = {
            "name": "scripted",
            "description": "x",
            "version": "1",
            "supportedInterfaces": [interface(f"{url}/rpc", self.binding)],
            "capabilities": {"streaming": self.streaming},
        }
        shown = made if self.card is None else self.card
        routes = [
            Route("/.well-known/agent-card.json", lambda _: JSONResponse(shown)),
            Route("/rpc", self.rpc, methods=["POST"]),
        ]
        async with served(Starlette(routes=routes), listener, lifespan=False, stop_seconds=1):
            yield url


def task(state: str, **fields: Any) -> dict[str, Any]:
    return {"id": "t1", "contextId": "c1", "status": {"state": f"TASK_STATE_{state}"}, **fields}


def artifact(name: str, text: str) -> dict[str, Any]:
    return {"artifactId": name, "parts": [{"text": text}]}


async def test_a_task_that_is_still_at_work_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may answer a blocking send before its task has ended (A2A 1.0 §3.1.1)."""
    monkeypatch.setattr(a2a_foreign, "POLL_SECONDS", (0.01, 0.05))
    ended = task("COMPLETED")
    ended["status"]["message"] = {"messageId": "m", "parts": [{"text": "at last"}]}
    server = Scripted({"task": task("WORKING")}, task("WORKING"), ended, streaming=False)
    async with server.serving() as url:
        answer = await A2aLane(url).perform("call_tool", chat("x"), outgoing())
    assert (answer["text"], answer["session_id"]) == ("at last", "c1")
    assert server.asked == ["SendMessage", "GetTask", "GetTask"]


async def test_artifacts_from_before_a_question_are_no_part_of_the_answer_after_it() -> None:
    before, after = artifact("a", "draft"), artifact("b", "final")
    server = Scripted(
        {"task": task("INPUT_REQUIRED", artifacts=[before])},
        {"task": task("COMPLETED", artifacts=[before, after])},
        streaming=False,
    )
    async with server.serving() as url:
        lane = A2aLane(url)
        assert (await lane.perform("call_tool", chat("x"), outgoing()))["stop"] == "input_required"
        answer = await lane.perform("call_tool", {**chat("y"), "session_id": "c1"}, outgoing())
    assert answer["text"] == "final"


async def test_a_task_that_is_shown_first_as_it_was_still_goes_on() -> None:
    lines = [
        {"task": task("INPUT_REQUIRED")},
        {"artifactUpdate": {"taskId": "t1", "contextId": "c1", "artifact": artifact("a", "first")}},
        {"artifactUpdate": {"taskId": "t1", "contextId": "c1", "artifact": artifact("a", "instead")}},
        {"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}}},
    ]
    async with Scripted(stream(*lines)).serving() as url:
        answer = await A2aLane(url).perform("call_tool", chat("x"), outgoing())
    assert (answer["text"], answer["stop"]) == ("instead", "end_turn")


def stream(*results: dict[str, Any]) -> Response:
    events = [json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}) for result in results]
    return Response("".join(f"data: {event}\n\n" for event in events), media_type="text/event-stream")


async def test_an_answer_without_bounds_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_transport, "MAX_REPLY_BYTES", 1000)
    for answer in (JSONResponse("x" * 2000), Response("data: " + "x" * 2000, media_type="text/event-stream")):
        async with Scripted(answer).serving() as url:
            with pytest.raises(MessageTooLarge):
                await A2aLane(url).perform("call_tool", chat("x"), outgoing())


async def test_an_agent_over_grpc_alone_is_told_apart() -> None:
    async with Scripted(binding="GRPC").serving() as url:
        with pytest.raises(NotSupported, match="speaks A2A over GRPC"):
            await A2aLane(url).perform("list_tools", {}, outgoing())


@pytest.mark.parametrize("card", [[], {"skills": 7}, {"supportedInterfaces": [{"url": 1}]}])
async def test_a_card_that_cannot_be_read_is_an_invalid_card(card: Any) -> None:
    async with Scripted(card=card).serving() as url:
        with pytest.raises(InvalidCard, match="cannot be read"):
            await A2aLane(url).perform("list_tools", {}, outgoing())


def rpc_error(code: int) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no"}})


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Response(status_code=401), Unauthenticated),
        (Response(status_code=403), Forbidden),
        (Response(status_code=429, headers={"Retry-After": "7"}), AtCapacity),
        (Response(status_code=503), AtCapacity),
        (Response(status_code=502), TransportError),
        (Response(status_code=500), ProtocolError),
        (Response(status_code=307, headers={"Location": "http://127.0.0.1:9/"}), ProtocolError),
        (Response("not json"), ProtocolError),
        (JSONResponse([]), ProtocolError),
        (JSONResponse({"jsonrpc": "2.0", "id": 1, "result": {}}), ProtocolError),
        (JSONResponse({"jsonrpc": "2.0", "id": 1, "result": {"task": 5}}), ProtocolError),
        (Response("data: {}\n\n", media_type="text/event-stream"), ProtocolError),
        (Response("", media_type="text/event-stream"), ProtocolError),
        (rpc_error(-32602), InvalidArguments),
        (rpc_error(-32603), AgentFailed),
        (rpc_error(-32004), NotSupported),
        (rpc_error(-32099), ProtocolError),
    ],
)
async def test_what_is_no_answer_is_a_typed_error(answer: Response, error: type[Exception]) -> None:
    async with Scripted(answer).serving() as url:
        with pytest.raises(error) as caught:
            await A2aLane(url).perform("call_tool", chat("x"), outgoing())
    if error is AtCapacity and answer.status_code == 429:
        assert caught.value.retry_after == 7  # type: ignore[attr-defined]


async def test_nobody_there_is_a_transport_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(TransportError):
        await A2aLane(f"http://127.0.0.1:{port}").perform("list_tools", {}, outgoing())
