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

from agent_env.client.lanes import a2a_foreign, sdk_http
from agent_env.client.lanes.a2a import A2aLane
from agent_env.client.lanes.contract import Outgoing
from agent_env.context import CallContext
from agent_env.errors import (
    AgentEnvError,
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
from agent_env_cards import EXTENSION_URI
from agent_env_wrappers.contract import Event

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
        self.headers: list[dict[str, str]] = []
        self.extensions: list[dict[str, Any]] = []
        self.card = card
        self.streaming = streaming
        self.binding = binding

    async def rpc(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body["method"])
        self.headers.append(dict(request.headers))
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
            "capabilities": {"streaming": self.streaming, "extensions": self.extensions},
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
    monkeypatch.setattr(sdk_http, "MAX_REPLY_BYTES", 1000)
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


# ── an environment that does not keep to its own protocol ──────────────────────────────────────────────────────────


def native(*answers: Any) -> Scripted:
    """A server whose card says that it is an environment."""
    server = Scripted(*answers)
    server.extensions = [{"uri": EXTENSION_URI}]
    return server


def reply(value: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"data": value}]}}


async def listen_in(event: Event) -> None:
    pass


async def test_an_environments_answer_must_be_the_result_of_a_verb() -> None:
    for answer in (reply({"text": "hi"}), reply({"result": 5}), reply([1]), {"task": task("COMPLETED")}):
        async with native(answer).serving() as url:
            with pytest.raises(ProtocolError, match="no result of one"):
                await A2aLane(url).perform("list_tools", {}, outgoing())
    async with native(stream()).serving() as url:
        with pytest.raises(ProtocolError, match="without a message or a task"):
            await A2aLane(url).perform("list_tools", {}, outgoing(), listen_in)


async def test_a_stream_may_answer_by_a_message() -> None:
    async with native(stream(reply({"result": {"tools": []}}))).serving() as url:
        assert await A2aLane(url).perform("list_tools", {}, outgoing(), listen_in) == {"tools": []}


async def test_a_call_whose_task_was_cancelled_by_others_says_so() -> None:
    for answer in ({"task": task("CANCELED")}, {"task": task("REJECTED")}):
        async with native(answer).serving() as url:
            with pytest.raises(AgentEnvError, match=r"was cancelled|does not say why"):
                await A2aLane(url).perform("list_tools", {}, outgoing())


async def test_a_session_id_goes_to_routers_only_where_a_header_can_hold_it() -> None:
    server = native(reply({"result": {}}), reply({"result": {}}))
    async with server.serving() as url:
        lane = A2aLane(url)
        await lane.perform("state", {"session_id": "s-1"}, outgoing())
        await lane.perform("state", {"session_id": "s-ü"}, outgoing())
    assert [headers.get("session-id") for headers in server.headers] == ["s-1", None]
    assert {headers["a2a-extensions"] for headers in server.headers} == {EXTENSION_URI}
