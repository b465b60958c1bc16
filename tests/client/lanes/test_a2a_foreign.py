"""The A2A lane with agents that know nothing of environments: stock servers of the A2A SDK on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import ContentTypeNotSupportedError
from google.protobuf.json_format import ParseDict
from starlette.applications import Starlette

from agent_env.client.environment import Environment
from agent_env.client.lanes.a2a import A2aLane
from agent_env.client.lanes.contract import Outgoing
from agent_env.context import CallContext
from agent_env.errors import (
    AgentFailed,
    DeadlineExceeded,
    Forbidden,
    InvalidArguments,
    NotSupported,
    ProtocolError,
    UnknownTool,
    UnsupportedContent,
)
from agent_env.net import bound_url, listen, post_json
from agent_env.net.serving import served
from agent_env_wrappers.contract import Event, Status, TextDelta

pytestmark = pytest.mark.anyio


class Foreign(AgentExecutor):
    """An agent with A2A's own manners; what it is told decides how it answers."""

    def __init__(self) -> None:
        self.turns: dict[str, int] = {}
        self.seen: list[Message] = []
        self.metadata: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.started = anyio.Event()
        self.go_on = anyio.Event()
        self.cancelled = anyio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        self.seen.append(context.message)
        self.metadata.append(context.metadata)
        self.headers.append(context.call_context.state["headers"])
        said = context.get_user_input()
        context_id = context.context_id or ""
        turn = self.turns[context_id] = self.turns.get(context_id, 0) + 1
        if said == "hello":
            reply = Message(message_id="m", role=Role.ROLE_AGENT, context_id=context_id)
            reply.parts.extend([Part(text=f"{turn}: hello"), ParseDict({"data": {"n": 1}}, Part())])
            await event_queue.enqueue_event(reply)
            return
        if said == "refuse":
            raise ContentTypeNotSupportedError("no such thing")
        updates = TaskUpdater(event_queue, context.task_id or "", context_id)
        if context.current_task is None:
            status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            await event_queue.enqueue_event(Task(id=context.task_id or "", context_id=context_id, status=status))
        elif said == "Ada":
            await updates.complete(updates.new_agent_message([Part(text="hello Ada")]))
            return
        await updates.start_work(updates.new_agent_message([Part(text="thinking")]))
        match said:
            case "ask":
                await updates.requires_input(updates.new_agent_message([Part(text="whom?")]))
            case "log in":
                await updates.requires_auth(updates.new_agent_message([Part(text="who are you?")]))
            case "fail":
                await updates.failed(updates.new_agent_message([Part(text="out of tokens")]))
            case "fail silently":
                await updates.failed()
            case "reject":
                await updates.reject(updates.new_agent_message([Part(text="not my job")]))
            case "wait":
                self.started.set()
                await self.go_on.wait()
                await updates.add_artifact([Part(text="waited")])
                await updates.complete()
            case _:
                for number, word in enumerate(said.split()):
                    await updates.add_artifact([Part(text=word + " ")], artifact_id="a", append=number > 0)
                await updates.add_artifact(
                    [Part(raw=b"png", media_type="image/png", filename="a.png")], artifact_id="b"
                )
                await updates.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.cancelled.set()
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


def card_of(url: str, **fields: Any) -> AgentCard:
    return AgentCard(
        **{
            "name": "foreign",
            "description": "An agent of somebody else.",
            "version": "3",
            "supported_interfaces": [
                AgentInterface(url=f"{url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")
            ],
            "capabilities": AgentCapabilities(streaming=True),
            "default_input_modes": ["text/plain"],
            "default_output_modes": ["text/plain"],
            "skills": [AgentSkill(id="x", name="x", description="x", tags=["x"])],
            **fields,
        }
    )


@asynccontextmanager
async def foreign(agent: AgentExecutor, **fields: Any) -> AsyncGenerator[str]:
    """A stock server around the agent; `fields` are of its card, a callable one of them takes the server's URL."""
    listener = listen()
    url = bound_url(listener)
    card = card_of(url, **{name: value(url) if callable(value) else value for name, value in fields.items()})
    handler = DefaultRequestHandler(agent, InMemoryTaskStore(), card)
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=True),
        *create_rest_routes(handler, path_prefix="/rest"),
    ]
    async with served(Starlette(routes=routes), listener, lifespan=False, stop_seconds=1):
        try:
            yield url
        finally:
            await handler.aclose()


def outgoing(seconds: float | None = 20, **fields: Any) -> Outgoing:
    return Outgoing(CallContext(**fields).within(seconds))


def chat(message: str, **fields: Any) -> dict[str, Any]:
    return {"name": "chat", "arguments": {"message": message}, **fields}


async def test_a_conversation_with_a_foreign_agent_is_its_context() -> None:
    async with foreign(Foreign()) as url:
        lane = A2aLane(url)
        first = await lane.perform("call_tool", chat("hello"), outgoing(calls=5))
        again = await lane.perform("call_tool", chat("hello", session_id=first["session_id"]), outgoing())
        other = await lane.perform("call_tool", chat("hello"), outgoing())
        assert [answer["text"] for answer in (first, again, other)] == ["1: hello", "2: hello", "1: hello"]
        assert first["content"] == [{"type": "text", "text": "1: hello"}, {"type": "data", "data": {"n": 1}}]
        assert (first["data"], first["reward"], first["stop"]) == ({"n": 1}, None, "end_turn")
        # It spends nothing of a budget that it knows nothing of.
        assert first["calls_left"] == 5
        assert other["session_id"] != first["session_id"]


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_task_is_awaited_and_its_artifacts_are_the_answer(streaming: bool) -> None:
    events: list[Event] = []

    async def on_event(event: Event) -> None:
        events.append(event)

    async with foreign(Foreign(), capabilities=AgentCapabilities(streaming=streaming)) as url:
        answer = await A2aLane(url).perform("call_tool", chat("one two"), outgoing(), on_event)
    assert answer["text"] == "one two "
    assert answer["content"] == [
        {"type": "text", "text": "one two "},
        {"type": "file", "mediaType": "image/png", "name": "a.png", "data": "cG5n"},
    ]
    assert events == ([Status("thinking"), TextDelta("one "), TextDelta("two ")] if streaming else [])


@pytest.mark.parametrize("kind", [("ask", "question", "whom?"), ("log in", "auth", "who are you?")])
async def test_a_task_that_asks_is_an_interrupt_and_the_next_message_answers_it(kind: tuple[str, str, str]) -> None:
    said, asked, prompt = kind
    agent = Foreign()
    async with foreign(agent) as url, Environment(url, lane="a2a") as env:
        question = await env.chat(said)
        assert question.stop == "input_required"
        assert question.interrupt is not None
        assert (question.interrupt["kind"], question.interrupt["prompt"]) == (asked, prompt)
        assert question.text == prompt
        answer = await env.chat("Ada")
        assert (answer.text, answer.stop) == ("hello Ada", "end_turn")
        assert answer.session_id == question.session_id
        assert agent.seen[1].task_id == question.interrupt["id"]
        # The task has ended, so the next message is not about it.
        assert (await env.chat("hello")).text.endswith("hello")


async def test_releasing_a_session_cancels_the_question_that_nobody_will_answer() -> None:
    agent = Foreign()
    async with foreign(agent) as url:
        lane = A2aLane(url)
        session = (await lane.perform("call_tool", chat("ask"), outgoing()))["session_id"]
        assert (await lane.perform("release", {"session_id": session}, outgoing()))["released"]
        assert agent.cancelled.is_set()
        assert (await lane.perform("release", {"session_id": session}, outgoing()))["released"]
        await lane.aclose()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("fail", "failed: out of tokens"),
        ("fail silently", "does not say why"),
        ("reject", "rejected the task: not my job"),
    ],
)
async def test_a_task_that_does_not_succeed_is_the_agents_failure(said: str, told: str) -> None:
    async with foreign(Foreign()) as url:
        with pytest.raises(AgentFailed, match=told):
            await A2aLane(url).perform("call_tool", chat(said), outgoing())


async def test_a_task_that_somebody_cancelled_is_the_agents_failure() -> None:
    agent = Foreign()
    async with foreign(agent) as url:
        lane = A2aLane(url)
        call = asyncio.create_task(lane.perform("call_tool", chat("wait"), outgoing()))
        with anyio.fail_after(10):
            await agent.started.wait()
            await cancel_over_rpc(url, agent.seen[0].task_id)
            with pytest.raises(AgentFailed, match="cancelled the task"):
                await call


async def cancel_over_rpc(url: str, task_id: str) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "CancelTask", "params": {"id": task_id}}
    await post_json(f"{url}/rpc", body, headers={"A2A-Version": "1.0"})


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_giving_up_cancels_the_task_on_the_other_side(how: str) -> None:
    agent = Foreign()
    async with foreign(agent) as url:
        lane = A2aLane(url)
        with anyio.fail_after(10):
            if how == "deadline":
                with pytest.raises(DeadlineExceeded):
                    await lane.perform("call_tool", chat("wait"), outgoing(0.5))
            else:
                call = asyncio.create_task(lane.perform("call_tool", chat("wait"), outgoing()))
                await agent.started.wait()
                call.cancel()
                await asyncio.wait({call})
                assert call.cancelled()
            await agent.cancelled.wait()


async def test_verbs_that_a2a_does_not_have_say_what_to_do_instead() -> None:
    async with foreign(Foreign()) as url:
        lane = A2aLane(url)
        (tool,) = (await lane.perform("list_tools", {}, outgoing()))["tools"]
        assert (tool["name"], tool["description"]) == ("chat", "An agent of somebody else.")
        for verb in ("reset", "step", "state", "call_function", "call_reward", "fork"):
            with pytest.raises(NotSupported, match="serve the agent behind it with agent_env"):
                await lane.perform(verb, {}, outgoing())
        with pytest.raises(UnknownTool, match="it has 'chat'"):
            await lane.perform("call_tool", {"name": "add", "arguments": {}}, outgoing())


async def test_arguments_of_chat_become_parts() -> None:
    agent = Foreign()
    async with foreign(agent) as url:
        lane = A2aLane(url)
        file = {"type": "file", "mediaType": "image/png", "uri": "https://x/a.png", "name": "a"}
        for arguments in (
            {"parts": [{"type": "text", "text": "hello"}, file]},
            {"answer": "hello"},
            {"answer": {"yes": True}},
        ):
            await lane.perform("call_tool", {"name": "chat", "arguments": arguments}, outgoing())
        kinds = [[part.WhichOneof("content") for part in message.parts] for message in agent.seen]
        assert kinds == [["text", "url"], ["text"], ["data"]]
        for wrong in ({}, {"message": 1}, {"message": "a", "more": 1}, {"parts": []}):
            with pytest.raises(InvalidArguments):
                await lane.perform("call_tool", {"name": "chat", "arguments": wrong}, outgoing())


async def test_the_call_context_travels_in_metadata() -> None:
    agent = Foreign()
    async with foreign(agent) as url:
        context = CallContext(call_id="00f067aa0ba902b7", episode="ep-1")
        await A2aLane(url).perform("call_tool", chat("hello"), Outgoing(context))
    assert context.trace_id in agent.metadata[0]["traceparent"]
    assert "agent-env.episode=ep-1" in agent.metadata[0]["baggage"]


async def test_errors_of_a2a_become_the_nearest_of_ours() -> None:
    async with foreign(Foreign()) as url:
        with pytest.raises(UnsupportedContent, match="no such thing"):
            await A2aLane(url).perform("call_tool", chat("refuse"), outgoing())


# ── cards and addresses ────────────────────────────────────────────────────────────────────────────────────────────


def at(*addresses: tuple[str, str, str]) -> Callable[[str], list[AgentInterface]]:
    """Interfaces (address, binding, version); {url} and {port} are the server's."""

    def made(url: str) -> list[AgentInterface]:
        port = url.rpartition(":")[2]
        return [
            AgentInterface(url=address.format(url=url, port=port), protocol_binding=binding, protocol_version=version)
            for address, binding, version in addresses
        ]

    return made


@pytest.mark.parametrize(
    "interfaces",
    [
        at(("http://0.0.0.0:{port}/rpc", "JSONRPC", "1.0")),
        at(("http://localhost:{port}/rpc", "JSONRPC", "1.0")),
        at(("{url}/rest", "HTTP+JSON", "1.0")),
        at(("{url}/rpc", "JSONRPC", "0.3")),
        at(("{url}/grpc", "GRPC", "1.0"), ("{url}/rpc", "JSONRPC", "1.0")),
    ],
)
async def test_agents_are_reached_however_their_card_says_it(interfaces: Any) -> None:
    async with foreign(Foreign(), supported_interfaces=interfaces) as url:
        answer = await A2aLane(url, "t").perform("call_tool", chat("hello"), outgoing())
        assert answer["text"] == "1: hello"


@pytest.mark.parametrize("path", ["", "/", "/rpc", "/.well-known/agent-card.json"])
async def test_the_address_may_be_the_servers_the_cards_or_an_endpoint(path: str) -> None:
    async with foreign(Foreign()) as url:
        assert (await A2aLane(url + path).perform("call_tool", chat("hello"), outgoing()))["text"] == "1: hello"


async def test_an_endpoint_that_is_not_on_the_card_above_it_is_another_agent() -> None:
    async with foreign(Foreign()) as url:
        with pytest.raises(ProtocolError, match="no A2A Agent Card"):
            await A2aLane(f"{url}/agents/b").perform("list_tools", {}, outgoing())


async def test_a_token_is_not_sent_to_an_origin_that_only_the_card_names() -> None:
    agent = Foreign()
    async with foreign(agent) as elsewhere:
        interfaces = [AgentInterface(url=f"{elsewhere}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")]
        async with foreign(Foreign(), supported_interfaces=interfaces) as url:
            with pytest.raises(Forbidden, match="not sent there"):
                await A2aLane(url, "s3cret").perform("call_tool", chat("hello"), outgoing())
            assert (await A2aLane(url).perform("call_tool", chat("hello"), outgoing()))["text"] == "1: hello"
    assert not any("authorization" in headers for headers in agent.headers)
