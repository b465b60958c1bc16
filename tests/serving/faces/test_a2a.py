"""The A2A face, spoken to by the stock client of A2A 1.0: messages, tasks, streams, cards, errors."""

from __future__ import annotations

import json
import logging
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, create_client
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import A2AError, ContentTypeNotSupportedError, InternalError, InvalidParamsError
from google.protobuf.json_format import MessageToDict, ParseDict
from starlette.applications import Starlette
from starlette.routing import Mount

from agent_env.net import Limits, bound_url, listen
from agent_env.net.serving import served
from agent_env.serving.access import Access
from agent_env.serving.address import PublicAddress
from agent_env.serving.environment import AgentEnvironment
from agent_env.serving.faces import a2a_gate
from agent_env.serving.faces.a2a import A2aFace
from agent_env.serving.faces.a2a_tasks import BoundedTaskStore
from agent_env.serving.faces.contract import Site
from agent_env.serving.server import Server
from agent_env_cards import EXTENSION_URI

pytestmark = pytest.mark.anyio

BINDINGS = ("JSONRPC", "HTTP+JSON")


class Agent:
    """Remembers what it was told, waits until it is let go, or fails."""

    def __init__(self) -> None:
        self.go_on = anyio.Event()

    async def __call__(self, message: str, history: list[dict[str, str]]) -> AsyncIterator[str]:
        if message == "wait":
            await self.go_on.wait()
        if message == "fail":
            raise ValueError("the password is hunter2")
        for word in f"{len(history) // 2 + 1}: {message}".split(" "):
            yield word + " "


@asynccontextmanager
async def serving(agent: object, **options: Any) -> AsyncGenerator[Server]:
    async with AgentEnvironment(agent, name="echo", version="1.0.0", hub=False, **options).serving() as server:
        yield server


@asynccontextmanager
async def stock(server: Server, binding: str = "JSONRPC", *, streaming: bool = False) -> AsyncGenerator[Client]:
    async with httpx.AsyncClient(timeout=20) as http:
        config = ClientConfig(streaming=streaming, httpx_client=http, supported_protocol_bindings=[binding])
        yield await create_client(server.url, config)


def message(*texts: str, context: str = "", task: str = "", parts: Sequence[Part] = ()) -> SendMessageRequest:
    content = [*(Part(text=text) for text in texts), *parts]
    said = Message(
        message_id=secrets.token_hex(8), role=Role.ROLE_USER, parts=content, context_id=context, task_id=task
    )
    return SendMessageRequest(message=said)


async def ask(client: Client, request: SendMessageRequest) -> list[StreamResponse]:
    with anyio.fail_after(20):
        return [answer async for answer in client.send_message(request)]


def text_of(answer: StreamResponse) -> str:
    return answer.message.parts[0].text.strip()


def wire(error: A2AError) -> dict[str, Any]:
    assert error.data is not None
    return error.data[EXTENSION_URI]


@pytest.mark.clause("EC-54", "EC-55")
@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_conversation_of_three_turns_stays_in_its_context(binding: str) -> None:
    async with serving(Agent()) as server, stock(server, binding) as client:
        (first,) = await ask(client, message("a"))
        context = first.message.context_id
        (second,) = await ask(client, message("b", context=context))
        (third,) = await ask(client, message("c", context=context))
        (other,) = await ask(client, message("d"))
        assert [text_of(answer) for answer in (first, second, third, other)] == ["1: a", "2: b", "3: c", "1: d"]
        assert other.message.context_id != context
        assert first.message.role == Role.ROLE_AGENT
        assert len(server.runtime.sessions) == 2


async def test_a_client_may_choose_the_id_of_its_context() -> None:
    async with serving(Agent()) as server, stock(server) as client:
        (first,) = await ask(client, message("a", context="my-own"))
        (second,) = await ask(client, message("b", context="my-own"))
        assert [text_of(first), text_of(second)] == ["1: a", "2: b"]
        assert second.message.context_id == "my-own"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_is_a_task_that_works_tells_its_reply_in_pieces_and_completes(binding: str) -> None:
    async with serving(Agent()) as server, stock(server, binding, streaming=True) as client:
        answers = await ask(client, message("one two"))
        kinds = [answer.WhichOneof("payload") for answer in answers]
        assert kinds[0] == "task"
        assert kinds[1] == "status_update"
        assert kinds[-1] == "status_update"
        assert answers[0].task.status.state == TaskState.TASK_STATE_SUBMITTED
        assert answers[1].status_update.status.state == TaskState.TASK_STATE_WORKING
        assert answers[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
        pieces = [answer.artifact_update for answer in answers if answer.HasField("artifact_update")]
        assert "".join(piece.artifact.parts[0].text for piece in pieces) == "1: one two "
        assert [piece.append for piece in pieces] == [False] + [True] * (len(pieces) - 1)
        assert len({piece.artifact.artifact_id for piece in pieces}) == 1
        assert {update.status_update.task_id for update in answers[1:2]} == {answers[0].task.id}


async def test_a_reply_reaches_the_stream_while_the_agent_still_speaks() -> None:
    go_on = anyio.Event()

    async def slow(message: str) -> AsyncIterator[str]:
        yield "first "
        await go_on.wait()
        yield "second"

    async with serving(slow) as server, stock(server, streaming=True) as client:
        heard = ""
        with anyio.fail_after(20):
            async for answer in client.send_message(message("x")):
                if answer.HasField("artifact_update"):
                    heard += answer.artifact_update.artifact.parts[0].text
                    go_on.set()
        assert heard == "first second"


async def test_what_takes_longer_than_two_seconds_is_a_task() -> None:
    agent = Agent()
    async with serving(agent) as server, stock(server) as client, anyio.create_task_group() as tasks:
        started = anyio.current_time()

        async def let_go() -> None:
            await anyio.sleep(2.3)
            agent.go_on.set()

        tasks.start_soon(let_go)
        (answer,) = await ask(client, message("wait"))
        assert anyio.current_time() - started >= 2
        task = answer.task
        assert task.status.state == TaskState.TASK_STATE_COMPLETED
        assert "".join(part.text for part in task.artifacts[0].parts).strip() == "1: wait"
        assert task.history[0].parts[0].text == "wait"


async def test_a_value_comes_back_as_a_value() -> None:
    async def structured(message: str) -> dict[str, Any]:
        return {"count": 3, "share": 0.5, "none": None}

    async with serving(structured) as server, stock(server) as client:
        (answer,) = await ask(client, message("x"))
        values = [MessageToDict(part.data) for part in answer.message.parts if part.HasField("data")]
        assert values == [{"count": 3, "share": 0.5, "none": None}]
    async with serving(structured) as server, stock(server, streaming=True) as client:
        artifacts = [
            a.artifact_update.artifact for a in await ask(client, message("x")) if a.HasField("artifact_update")
        ]
        assert [MessageToDict(part.data) for part in artifacts[-1].parts if part.HasField("data")] == values


async def test_text_that_is_not_unicode_is_sent_without_breaking_the_answer() -> None:
    async def odd(message: str) -> str:
        return "a\ud800b"

    async with serving(odd) as server, stock(server) as client, stock(server, streaming=True) as streaming:
        assert text_of((await ask(client, message("x")))[0]) == "a\ufffdb"
        answers = await ask(streaming, message("x"))
        assert [a.artifact_update.artifact.parts[0].text for a in answers if a.HasField("artifact_update")] == [
            "a\ufffdb"
        ]


# ── cards ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_card_names_the_addresses_that_this_client_sees() -> None:
    async with serving(Agent()) as server, httpx.AsyncClient() as http:
        card = await A2ACardResolver(http, server.url).get_agent_card()
        assert (card.name, card.version) == ("echo", "1.0.0")
        assert card.capabilities.streaming
        assert card.capabilities.push_notifications
        assert [extension.uri for extension in card.capabilities.extensions] == [EXTENSION_URI]
        assert {(i.protocol_binding, i.protocol_version, i.url) for i in card.supported_interfaces} == {
            ("JSONRPC", version, f"{server.url}/a2a") for version in ("1.0", "0.3")
        } | {("HTTP+JSON", version, f"{server.url}/a2a/rest") for version in ("1.0", "0.3")}
        forwarded = {"x-forwarded-host": "agents.example", "x-forwarded-proto": "https", "x-forwarded-prefix": "/b"}
        answer = await http.get(f"{server.url}/.well-known/agent-card.json", headers=forwarded)
        assert answer.json()["supportedInterfaces"][0]["url"] == "https://agents.example/b/a2a"
        assert "Host" in answer.headers["vary"]
        for headers in ({"host": "0.0.0.0:1"}, {"x-forwarded-host": "no address"}):
            spoofed = await http.get(f"{server.url}/.well-known/agent-card.json", headers=headers)
            assert spoofed.json()["url"] == f"{server.url}/a2a"


@pytest.mark.clause("EC-51")
async def test_one_card_serves_both_generations_and_the_old_path_has_the_old_form() -> None:
    async with serving(Agent()) as server, httpx.AsyncClient() as http:
        both = (await http.get(f"{server.url}/.well-known/agent-card.json")).json()
        old = (await http.get(f"{server.url}/.well-known/agent.json")).json()
        assert old["protocolVersion"] == "0.3.0"
        assert old["url"] == f"{server.url}/a2a"
        assert "supportedInterfaces" not in old
        assert old.items() <= both.items() or {**both, **old, "capabilities": None} == {**both, "capabilities": None}
        assert both["supportedInterfaces"]


async def test_under_a_path_prefix_the_card_names_it_and_everything_works() -> None:
    env = AgentEnvironment(Agent(), name="echo", version="1.0.0", hub=False)
    listener = listen()
    url = f"{bound_url(listener)}/agents/echo"
    face = A2aFace(Site(await env.runtime(), await env.card(), Access(), PublicAddress(url)))
    app = Starlette(routes=[Mount("/agents/echo", routes=face.routes())])
    async with face.running(), served(app, listener, lifespan=False), httpx.AsyncClient(timeout=20) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        assert card.supported_interfaces[0].url == f"{url}/a2a"
        for binding in BINDINGS:
            config = ClientConfig(streaming=False, httpx_client=http, supported_protocol_bindings=[binding])
            assert text_of((await ask(await create_client(url, config), message("a")))[0]) == "1: a"
    await env.aclose()


async def test_a_card_that_did_not_change_is_not_sent_again() -> None:
    async with serving(Agent()) as server, httpx.AsyncClient() as http:
        url = f"{server.url}/.well-known/agent-card.json"
        first = await http.get(url)
        again = await http.get(url, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


# ── errors ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("EC-62")
@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_agent_that_raises_is_an_error_that_tells_no_internals(
    binding: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Agent()) as server, stock(server, binding) as client:
        with pytest.raises(InternalError) as caught:
            await ask(client, message("fail"))
        assert wire(caught.value)["code"] == "agent_failed"
        assert "hunter2" not in json.dumps([str(caught.value), wire(caught.value)])
        assert len(server.runtime.sessions) == 0
    # The SDK's own report of a failed executor would be a second traceback for one failure.
    assert not [record for record in caplog.records if record.name.startswith("a2a") and record.exc_info]


async def test_an_agent_that_raises_in_a_stream_fails_its_task_and_keeps_its_session() -> None:
    async with serving(Agent()) as server, stock(server, streaming=True) as client, stock(server) as plain:
        context = (await ask(plain, message("a")))[0].message.context_id
        last = (await ask(client, message("fail", context=context)))[-1].status_update.status
        assert last.state == TaskState.TASK_STATE_FAILED
        assert "raised ValueError" in last.message.parts[0].text
        assert MessageToDict(last.message.metadata)[EXTENSION_URI]["error"]["code"] == "agent_failed"
        assert "hunter2" not in str(last)
        assert text_of((await ask(plain, message("b", context=context)))[0]) == "2: b"


@pytest.mark.clause("EC-74")
async def test_parts_that_the_agent_cannot_read_are_refused() -> None:
    picture = Part(raw=b"\x89PNG", media_type="image/png", filename="a.png")
    async with serving(Agent()) as server, stock(server) as client:
        with pytest.raises(ContentTypeNotSupportedError, match="not file parts") as caught:
            await ask(client, message("look", parts=[picture]))
        assert wire(caught.value)["code"] == "unsupported_content"
        assert len(server.runtime.sessions) == 0


@pytest.mark.clause("EC-74")
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ("x" * 5000, 413, "message_too_large"),
        ("x" * 2500, 413, "message_too_large"),
    ],
)
async def test_a_message_that_is_too_large_is_refused(body: str, status: int, code: str) -> None:
    said = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": body}]}
    headers = {"A2A-Version": "1.0"}
    async with serving(Agent(), limits=Limits(max_message_bytes=2000)) as server, httpx.AsyncClient() as http:
        rest = await http.post(f"{server.url}/a2a/rest/message:send", json={"message": said}, headers=headers)
        assert rest.status_code == status
        assert rest.json()["error"]["code"] == status
        assert rest.json()["error"]["details"][0]["metadata"][EXTENSION_URI]["code"] == code

        async def in_pieces() -> AsyncIterator[bytes]:
            yield json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": said}}).encode()

        rpc = await http.post(f"{server.url}/a2a", content=in_pieces(), headers=headers)
        assert rpc.json()["error"]["data"][0]["metadata"][EXTENSION_URI]["code"] == code


async def test_malformed_requests_get_errors_of_their_binding() -> None:
    headers = {"A2A-Version": "1.0"}
    async with serving(Agent()) as server, httpx.AsyncClient(headers=headers) as http:
        rpc, rest = f"{server.url}/a2a", f"{server.url}/a2a/rest"
        call = {"jsonrpc": "2.0", "id": 7}
        assert (await http.post(rpc, content=b"{")).json()["error"]["code"] == -32700
        assert (await http.post(rpc, json={**call, "method": "Nope"})).json()["error"]["code"] == -32601
        empty = {**call, "method": "SendMessage", "params": {}}
        assert (await http.post(rpc, json=empty)).json()["error"]["code"] == -32602
        assert (await http.post(f"{rest}/message:send", content=b"{")).status_code == 400
        assert (await http.get(f"{rest}/tasks/nope")).json()["error"]["status"] == "NOT_FOUND"
        assert (await http.get(f"{rest}/nothing/here")).status_code == 404
        said = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "x"}]}
        unversioned = httpx.Headers({"A2A-Version": ""})
        answer = await http.post(
            rpc, json={**call, "method": "SendMessage", "params": {"message": said}}, headers=unversioned
        )
        assert answer.json()["error"]["code"] == -32009


@pytest.mark.parametrize("depth", [150, 5000, 100_000])
async def test_a_body_that_is_nested_too_deep_is_refused(depth: int) -> None:
    said = '{"messageId":"1","role":"ROLE_USER","parts":[{"data":' + "[" * depth + "]" * depth + "}]}"
    headers = {"A2A-Version": "1.0"}
    async with serving(Agent()) as server, httpx.AsyncClient(headers=headers) as http:
        rest = await http.post(f"{server.url}/a2a/rest/message:send", content=f'{{"message":{said}}}')
        assert (rest.status_code, rest.json()["error"]["status"]) == (422, "INVALID_ARGUMENT")
        for method in ("SendMessage", "message/send"):
            call = f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"message":{said}}}}}'
            rpc = (await http.post(f"{server.url}/a2a", content=call)).json()["error"]
            assert (rpc["code"], "recursion" in rpc["message"]) == (-32602, False)
        flat = {"messageId": "1", "role": "ROLE_USER", "parts": [{"data": [[]] * 200}]}
        answer = await http.post(f"{server.url}/a2a/rest/message:send", json={"message": flat})
        assert answer.status_code == 200


async def test_a_context_id_has_bounds() -> None:
    async with serving(Agent()) as server, stock(server) as client:
        for context in ("x" * 300, "a\nb"):
            with pytest.raises(InvalidParamsError, match="at most 256 printable"):
                await ask(client, message("a", context=context))


@pytest.mark.clause("EC-62")
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_failure_of_the_server_itself_is_told_without_its_text(
    streaming: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Agent()) as server, stock(server, streaming=streaming) as client:

        def broken(*_: object, **__: object) -> None:
            raise RuntimeError("the password is hunter2")

        monkeypatch.setattr(server.runtime, "call_tool", broken)
        caplog.set_level(logging.CRITICAL, "agent_env.serving")
        if streaming:
            said = str((await ask(client, message("x")))[-1].status_update.status)
        else:
            with pytest.raises(InternalError) as caught:
                await ask(client, message("x"))
            said = str(caught.value)
        assert "its log has the details" in said
        assert "hunter2" not in said


def test_the_sdk_does_not_trace_unless_the_user_asks_for_it() -> None:
    check = "import agent_env.serving.faces.a2a; from a2a.utils import telemetry; print(telemetry.otel_enabled, end='')"
    variable = "OTEL_INSTRUMENTATION_A2A_SDK_ENABLED"
    clean = {key: value for key, value in os.environ.items() if key != variable}
    for environment, expected in ((clean, "False"), ({**clean, variable: "true"}, "True")):
        done = subprocess.run(
            [sys.executable, "-c", check], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout == expected


async def test_a_task_in_json_is_what_the_specification_calls_it() -> None:
    """The HTTP+JSON binding answers ProtoJSON that parses as the message it is (A2A 1.0 §11)."""
    said = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    async with serving(Agent()) as server, httpx.AsyncClient(headers={"A2A-Version": "1.0"}) as http:
        body = {"message": said, "configuration": {"returnImmediately": True}}
        answer = await http.post(f"{server.url}/a2a/rest/message:send", json=body)
        task = ParseDict(answer.json()["task"], Task())
        assert task.context_id.startswith("s-")
        assert task.id.startswith("t-")


async def test_a_stream_of_0_3_that_is_refused_has_the_status_of_its_error() -> None:
    """The SDK answers 200 and breaks the stream; A2A 0.3 §3.2.3 wants the error as an HTTP status."""
    said = {"messageId": "1", "role": "ROLE_USER", "contextId": "s-" + "x" * 22, "content": [{"text": "x"}]}
    async with serving(Agent()) as server, httpx.AsyncClient() as http:
        answer = await http.post(f"{server.url}/a2a/rest/v1/message:stream", json={"message": said})
        assert answer.status_code == 404
        assert answer.json()["error"]["details"][0]["metadata"][EXTENSION_URI]["code"] == "unknown_session"


@pytest.mark.clause("EC-62")
@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_store_that_breaks_is_told_without_its_text(
    binding: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def broken(*_: object) -> None:
        raise RuntimeError("the password is hunter2")

    async with serving(Agent()) as server, stock(server, binding) as client, stock(server, streaming=True) as other:
        for name in ("get", "list"):
            monkeypatch.setattr(BoundedTaskStore, name, broken)
        for attempt in (
            client.get_task(GetTaskRequest(id="t")),
            client.list_tasks(ListTasksRequest()),
            client.cancel_task(CancelTaskRequest(id="t")),
            ask(client, message("a", task="t")),
            anext(aiter(other.subscribe(SubscribeToTaskRequest(id="t")))),
        ):
            with pytest.raises(InternalError, match="its log has the details"):
                await attempt


async def test_a_gate_that_breaks_answers_all_the_same(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    caplog.set_level(logging.CRITICAL)

    def broken(*_: object) -> None:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(a2a_gate, "_replay", broken)
    async with serving(Agent()) as server, httpx.AsyncClient() as http:
        for path, code in (("/a2a", -32603), ("/a2a/rest/message:send", 500)):
            answer = await http.post(server.url + path, json={})
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == code
            assert "hunter2" not in answer.text
