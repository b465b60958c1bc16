"""Every verb over A2A: one data part under our extension, from the stock client."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from a2a.client import Client, ClientConfig, create_client
from a2a.client.client import ClientCallContext
from a2a.client.service_parameters import ServiceParametersFactory, with_a2a_extensions
from a2a.types import Message, Part, Role, SendMessageRequest, StreamResponse, TaskState
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict, ParseDict

from agent_env.serving.environment import AgentEnvironment
from agent_env.serving.server import Server
from agent_env_cards import EXTENSION_URI

pytestmark = pytest.mark.anyio

ACTIVE = ClientCallContext(service_parameters=ServiceParametersFactory.create([with_a2a_extensions([EXTENSION_URI])]))


async def agent(message: str, history: list[dict[str, str]]) -> AsyncIterator[str]:
    if message == "fail":
        raise ValueError("hunter2")
    yield f"{len(history) // 2 + 1}: "
    yield message


@asynccontextmanager
async def serving() -> AsyncGenerator[Server]:
    env = AgentEnvironment(agent, name="echo", version="1.0.0", hub=False)

    @env.tool
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @env.function
    def setup(level: int) -> dict[str, int]:
        """Sets the level."""
        return {"level": level}

    @env.reward
    def good(session: Any) -> float:
        return 0.5

    async with env.serving() as server:
        yield server


@asynccontextmanager
async def stock(server: Server, binding: str = "JSONRPC", *, streaming: bool = False) -> AsyncGenerator[Client]:
    async with httpx.AsyncClient(timeout=20) as http:
        config = ClientConfig(streaming=streaming, httpx_client=http, supported_protocol_bindings=[binding])
        yield await create_client(server.url, config)


def request(value: Any, *, context: str = "", extensions: tuple[str, ...] = ()) -> SendMessageRequest:
    said = Message(
        message_id=secrets.token_hex(8),
        role=Role.ROLE_USER,
        parts=[ParseDict({"data": value}, Part())],
        context_id=context,
        extensions=extensions,
    )
    return SendMessageRequest(message=said)


async def ask(client: Client, value: Any, **fields: Any) -> list[StreamResponse]:
    with anyio.fail_after(20):
        return [answer async for answer in client.send_message(request(value, **fields), context=ACTIVE)]


async def result(client: Client, verb: str, **arguments: Any) -> Mapping[str, Any]:
    (answer,) = await ask(client, {"verb": verb, "arguments": arguments})
    assert list(answer.message.extensions) == [EXTENSION_URI]
    (part,) = answer.message.parts
    return MessageToDict(part.data)["result"]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_all_verbs_are_there(binding: str) -> None:
    async with serving() as server, stock(server, binding) as client:
        assert [tool["name"] for tool in (await result(client, "list_tools"))["tools"]] == ["chat", "add"]
        session = (await result(client, "reset", seed=7))["session_id"]
        chat = await result(client, "call_tool", name="chat", arguments={"message": "hi"}, session_id=session)
        assert (chat["text"], chat["reward"], chat["session_id"]) == ("1: hi", 0.5, session)
        added = await result(client, "call_tool", name="add", arguments={"a": 1, "b": 2})
        assert (added["data"], added["session_id"]) == (3, "")
        step = await result(client, "step", action="on", session_id=session)
        assert (step["observation"], step["reward"], step["terminated"]) == ("2: on", 0.5, False)
        state = await result(client, "state", session_id=session)
        assert (state["turns"], state["seed"]) == (2, 7)
        assert (await result(client, "call_function", name="setup", arguments={"level": 3}))["result"] == {"level": 3}
        scored = await result(client, "call_reward", name="good", session_id=session)
        assert scored["value"] == 0.5
        copy = (await result(client, "fork", session_id=session))["session_id"]
        assert copy != session
        for name in (session, copy):
            assert (await result(client, "release", session_id=name))["released"]
        assert len(server.runtime.sessions) == 0


async def test_a_conversation_goes_on_by_session_id_or_by_context() -> None:
    chat = {"verb": "call_tool", "arguments": {"name": "chat", "arguments": {"message": "a"}}}
    async with serving() as server, stock(server) as client:
        (first,) = await ask(client, chat)
        context = first.message.context_id
        assert MessageToDict(first.message.parts[0].data)["result"]["session_id"] == context
        (second,) = await ask(client, chat, context=context)
        assert MessageToDict(second.message.parts[0].data)["result"]["text"] == "2: a"
        assert len(server.runtime.sessions) == 1


async def test_a_stream_tells_the_events_and_then_the_result() -> None:
    chat = {"verb": "call_tool", "arguments": {"name": "chat", "arguments": {"message": "a b"}}}
    async with serving() as server, stock(server, streaming=True) as client:
        answers = await ask(client, chat)
        updates = [answer.status_update for answer in answers if answer.HasField("status_update")]
        told = [MessageToDict(update.metadata)[EXTENSION_URI]["events"] for update in updates if update.metadata.fields]
        deltas = [event for events in told for event in events]
        assert [event["type"] for event in deltas] == ["text_delta", "text_delta"]
        assert "".join(event["text"] for event in deltas) == "1: a b"
        assert updates[-1].status.state == TaskState.TASK_STATE_COMPLETED
        (artifact,) = [answer.artifact_update.artifact for answer in answers if answer.HasField("artifact_update")]
        assert MessageToDict(artifact.parts[0].data)["result"]["text"] == "1: a b"
        assert list(artifact.extensions) == [EXTENSION_URI]


async def test_errors_are_the_same_as_on_other_faces() -> None:
    calls = [
        ({"verb": "nope"}, "unknown_tool"),
        ({"verb": "call_tool", "arguments": {"name": "nope"}}, "unknown_tool"),
        ({"verb": "call_tool", "arguments": {"name": "add", "arguments": {"a": "x"}}}, "invalid_arguments"),
        ({"verb": "state", "arguments": {"session_id": "nope"}}, "unknown_session"),
        ({"verb": "state", "arguments": {"more": 1}}, "invalid_arguments"),
        ({"verb": "step", "arguments": {}}, "invalid_arguments"),
        ({"verb": 1}, "invalid_arguments"),
        ({"verb": "state", "arguments": []}, "invalid_arguments"),
        ({"verb": "state", "attached": "yes"}, "invalid_arguments"),
        ({"verb": "call_tool", "arguments": {"name": "chat", "arguments": {"message": "fail"}}}, "agent_failed"),
    ]
    async with serving() as server, stock(server) as client:
        for value, code in calls:
            with pytest.raises(A2AError) as caught:
                await ask(client, value)
            assert caught.value.data is not None
            assert caught.value.data[EXTENSION_URI]["code"] == code, value
        assert len(server.runtime.sessions) == 0


async def test_a_failure_in_a_stream_is_in_the_task_that_failed() -> None:
    chat = {"verb": "call_tool", "arguments": {"name": "chat", "arguments": {"message": "fail"}}}
    async with serving() as server, stock(server, streaming=True) as client:
        status = (await ask(client, chat))[-1].status_update.status
        assert status.state == TaskState.TASK_STATE_FAILED
        error = MessageToDict(status.message.metadata)[EXTENSION_URI]["error"]
        assert (error["code"], error["data"]["agent"]) == ("agent_failed", "echo@1.0.0")


@pytest.mark.parametrize("activated_in", ["header", "message", "old header"])
async def test_the_response_says_that_the_extension_is_in_use(activated_in: str) -> None:
    headers = {"A2A-Version": "1.0"}
    said: dict[str, Any] = {"messageId": "1", "role": "ROLE_USER", "parts": [{"data": {"verb": "list_tools"}}]}
    if activated_in == "message":
        said["extensions"] = [EXTENSION_URI]
    else:
        headers["A2A-Extensions" if activated_in == "header" else "X-A2A-Extensions"] = f"urn:x, {EXTENSION_URI}"
    async with serving() as server, httpx.AsyncClient() as http:
        answer = await http.post(f"{server.url}/a2a/rest/message:send", json={"message": said}, headers=headers)
        reply = answer.json()["message"]
        assert reply["parts"][0]["data"]["result"]["tools"][0]["name"] == "chat"
        assert reply["extensions"] == [EXTENSION_URI]
        named = {"header": "a2a-extensions", "old header": "x-a2a-extensions"}.get(activated_in)
        assert named is None or answer.headers[named] == EXTENSION_URI


async def test_without_the_extension_a_verb_is_a_message_to_the_agent() -> None:
    async with serving() as server, stock(server) as client:
        answers = [answer async for answer in client.send_message(request({"verb": "list_tools"}))]
        assert answers[0].message.parts[0].text == '1: {"verb": "list_tools"}'
        assert not answers[0].message.extensions


async def test_a_plain_message_under_the_extension_tells_what_the_turn_was_worth() -> None:
    said = Message(message_id="1", role=Role.ROLE_USER, parts=[Part(text="hi"), Part(text="there")])
    async with serving() as server, stock(server) as client, stock(server, streaming=True) as streaming:
        answers = [a async for a in client.send_message(SendMessageRequest(message=said), context=ACTIVE)]
        facts = MessageToDict(answers[0].message.metadata)[EXTENSION_URI]
        assert (facts["reward"], facts["stop"], facts["session_id"]) == (0.5, "end_turn", answers[0].message.context_id)
        assert answers[0].message.parts[0].text == "1: hi\nthere"
        answers = [a async for a in streaming.send_message(SendMessageRequest(message=said), context=ACTIVE)]
        assert MessageToDict(answers[-1].status_update.metadata)[EXTENSION_URI]["reward"] == 0.5


async def test_numbers_survive_in_json_text() -> None:
    """Protobuf makes every number a double (A2A 1.0 §5.5 takes ProtoJSON); text of application/json does not."""
    big = 2**60 + 1
    call = {"verb": "call_tool", "arguments": {"name": "add", "arguments": {"a": big, "b": 1}}}
    async with serving() as server, stock(server) as client:
        exact = request({})
        exact.message.parts[0].CopyFrom(Part(text=json.dumps(call), media_type="application/json"))
        answers = [answer async for answer in client.send_message(exact, context=ACTIVE)]
        (part,) = answers[0].message.parts
        assert part.media_type == "application/json"
        assert json.loads(part.text)["result"]["data"] == big + 1
        exact = request({})
        exact.message.parts[0].CopyFrom(Part(text="{", media_type="application/json"))
        with pytest.raises(A2AError, match="is not JSON"):
            await anext(aiter(client.send_message(exact, context=ACTIVE)))
        (rounded,) = await ask(
            client, {"verb": "call_tool", "arguments": {"name": "add", "arguments": {"a": 2, "b": 3}}}
        )
        assert MessageToDict(rounded.message.parts[0].data)["result"]["data"] == 5
