"""Tasks of the A2A face: cancelled, polled, asked for input, left by their callers and listened to again."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import httpx
import pytest
from a2a.client import Client, ClientConfig, create_client
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
    TaskState,
)
from a2a.utils.errors import A2AError, TaskNotCancelableError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict

from agent_env.net import Limits
from agent_env.serving.environment import AgentEnvironment
from agent_env.serving.faces import a2a, a2a_handler
from agent_env.serving.server import Server
from agent_env_cards import EXTENSION_URI
from agent_env_wrappers.contract import (
    AgentInfo,
    Caps,
    Done,
    Event,
    Interrupt,
    Status,
    TextDelta,
    Turn,
)

pytestmark = pytest.mark.anyio


class Agent:
    """Remembers what it was told; "wait" blocks until it is let go or cancelled."""

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.go_on = anyio.Event()
        self.cancelled = anyio.Event()

    async def __call__(self, message: str, history: list[dict[str, str]]) -> AsyncIterator[str]:
        yield f"{len(history) // 2 + 1}: "
        if message == "wait":
            self.started.set()
            try:
                await self.go_on.wait()
            except BaseException:
                self.cancelled.set()
                raise
        yield message


class Asker:
    """Asks whom it should greet, as a wrapper of its own: `kind` and `schema` are its question's."""

    framework: ClassVar[str] = "asker"

    def __init__(self, kind: Any = "question", schema: dict[str, Any] | None = None) -> None:
        self.kind = kind
        self.schema = schema

    @classmethod
    def match(cls, agent: object) -> int:
        return 0

    async def describe(self) -> AgentInfo:
        return AgentInfo("asker", Caps(streaming=True, interrupts=True, state="value"), name="asker")

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        if turn.answers:
            yield Status("greeting")
            yield TextDelta("hello ")
            yield TextDelta(str(turn.answers[0].value))
            yield Done(f"hello {turn.answers[0].value}", state=None)
        else:
            yield TextDelta("hm", channel="thought")
            yield Interrupt("q1", self.kind, "whom?", self.schema, state="asked")

    async def aclose(self) -> None:
        pass


@asynccontextmanager
async def serving(agent: object, **options: Any) -> AsyncGenerator[Server]:
    options = {"name": "echo", "version": "1.0.0", "hub": False, **options}
    async with AgentEnvironment(agent, **options).serving() as server:
        yield server


@asynccontextmanager
async def stock(server: Server, *, streaming: bool = False) -> AsyncGenerator[Client]:
    async with httpx.AsyncClient(timeout=20) as http:
        yield await create_client(server.url, ClientConfig(streaming=streaming, httpx_client=http))


@pytest.fixture
def tasks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers by a task what takes longer than 50 ms."""
    monkeypatch.setattr(a2a.A2aFace.__init__, "__kwdefaults__", {"message_seconds": 0.05})


def message(text: str, *, context: str = "", task: str = "") -> SendMessageRequest:
    said = Message(
        message_id=secrets.token_hex(8),
        role=Role.ROLE_USER,
        parts=[Part(text=text)],
        context_id=context,
        task_id=task,
    )
    return SendMessageRequest(message=said)


def at_once(text: str, **ids: str) -> SendMessageRequest:
    request = message(text, **ids)
    request.configuration.return_immediately = True
    return request


async def ask(client: Client, request: SendMessageRequest) -> list[StreamResponse]:
    with anyio.fail_after(20):
        return [answer async for answer in client.send_message(request)]


async def until(client: Client, task_id: str, *states: TaskState) -> Any:
    with anyio.fail_after(20):
        while True:
            task = await client.get_task(GetTaskRequest(id=task_id))
            if task.status.state in states:
                return task
            await anyio.sleep(0.02)


async def working(client: Client) -> Any:
    """The one task that works, as soon as there is one."""
    while True:
        found = (await client.list_tasks(ListTasksRequest(status=TaskState.TASK_STATE_WORKING))).tasks
        if found:
            return found[0]


async def settled(server: Server) -> None:
    """Returns when no session is left."""
    with anyio.fail_after(10):
        async with httpx.AsyncClient() as http:
            while len(server.runtime.sessions):
                await http.get(f"{server.url}/health")


def artifact_text(task: Any) -> str:
    return "".join(part.text for part in task.artifacts[0].parts)


# ── polling, cancelling ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_task_that_is_asked_for_at_once_is_polled_until_it_ends() -> None:
    agent = Agent()
    async with serving(agent) as server, stock(server) as client:
        (answer,) = await ask(client, at_once("wait"))
        assert answer.task.status.state in (TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)
        agent.go_on.set()
        task = await until(client, answer.task.id, TaskState.TASK_STATE_COMPLETED)
        assert artifact_text(task) == "1: wait"
        listed = await client.list_tasks(ListTasksRequest(context_id=answer.task.context_id))
        assert [entry.id for entry in listed.tasks] == [task.id]


@pytest.mark.clause("EC-60")
async def test_cancelling_a_task_cancels_the_turn_and_leaves_its_session_as_it_was() -> None:
    agent = Agent()
    async with (
        serving(agent) as server,
        stock(server) as client,
        stock(server, streaming=True) as streaming,
        anyio.create_task_group() as tasks,
    ):
        context = (await ask(client, message("a")))[0].message.context_id
        seen: list[StreamResponse] = []

        async def listen() -> None:
            seen.extend(await ask(streaming, message("wait", context=context)))

        tasks.start_soon(listen)
        with anyio.fail_after(20):
            await agent.started.wait()
            running = await working(client)
            cancelled = await client.cancel_task(CancelTaskRequest(id=running.id))
            await agent.cancelled.wait()
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id=running.id))
        (answer,) = await ask(client, message("b", context=context))
        assert answer.message.parts[0].text == "2: b"
    assert seen[-1].status_update.status.state == TaskState.TASK_STATE_CANCELED


async def test_a_task_that_has_ended_takes_no_more_messages() -> None:
    async with serving(Agent()) as server, stock(server) as client:
        (answer,) = await ask(client, at_once("a"))
        await until(client, answer.task.id, TaskState.TASK_STATE_COMPLETED)
        with pytest.raises(UnsupportedOperationError, match="terminal state"):
            await ask(client, message("b", task=answer.task.id))
        (more,) = await ask(client, message("b", context=answer.task.context_id))
        assert more.message.parts[0].text == "2: b"


async def test_a_task_that_works_takes_no_message_but_its_context_queues_one() -> None:
    agent = Agent()
    async with serving(agent) as server, stock(server) as client:
        (answer,) = await ask(client, at_once("wait"))
        await agent.started.wait()
        with pytest.raises(UnsupportedOperationError, match="without a task id to queue it"):
            await ask(client, message("b", task=answer.task.id))
        (queued,) = await ask(client, at_once("b", context=answer.task.context_id))
        agent.go_on.set()
        assert artifact_text(await until(client, queued.task.id, TaskState.TASK_STATE_COMPLETED)) == "2: b"


async def test_a_running_task_can_be_listened_to_again() -> None:
    agent = Agent()
    async with serving(agent) as server, stock(server) as client, stock(server, streaming=True) as streaming:
        (answer,) = await ask(client, at_once("wait"))
        heard = []
        with anyio.fail_after(20):
            async for update in streaming.subscribe(SubscribeToTaskRequest(id=answer.task.id)):
                heard.append(update)
                agent.go_on.set()
        assert heard[0].task.id == answer.task.id
        assert heard[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


@pytest.mark.usefixtures("tasks_at_once")
async def test_a_blocking_send_that_became_a_task_can_be_cancelled_by_another_client() -> None:
    agent = Agent()
    async with (
        serving(agent) as server,
        stock(server) as client,
        stock(server) as other,
        anyio.create_task_group() as tasks,
    ):
        seen: list[StreamResponse] = []

        async def listen() -> None:
            seen.extend(await ask(client, message("wait")))

        tasks.start_soon(listen)
        with anyio.fail_after(20):
            running = await working(other)
            await other.cancel_task(CancelTaskRequest(id=running.id))
            await agent.cancelled.wait()
    assert seen[0].task.status.state == TaskState.TASK_STATE_CANCELED


async def test_a_task_past_its_deadline_fails() -> None:
    agent = Agent()
    async with serving(agent, limits=Limits(turn_seconds=0.2)) as server, stock(server) as client:
        (answer,) = await ask(client, at_once("wait"))
        task = await until(client, answer.task.id, TaskState.TASK_STATE_FAILED)
        error = MessageToDict(task.status.message.metadata)[EXTENSION_URI]["error"]
        assert error["code"] == "deadline_exceeded"
        assert "deadline" in task.status.message.parts[0].text


# ── callers who leave ──────────────────────────────────────────────────────────────────────────────────────────────


async def leave(server: Server, path: str, body: dict[str, Any], left: anyio.Event) -> None:
    """Sends a request and closes the connection when `left` is set."""
    port = int(server.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nA2A-Version: 1.0\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await writer.drain()
    await left.wait()
    writer.close()
    await writer.wait_closed()


def call(method: str, text: str, **fields: Any) -> dict[str, Any]:
    said = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": text}], **fields}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": said}}


async def test_a_caller_who_leaves_before_the_answer_is_a_task_cancels_the_turn_at_once() -> None:
    agent = Agent()
    async with serving(agent) as server, stock(server) as client:
        with anyio.fail_after(1.9):
            await leave(server, "/a2a", call("SendMessage", "wait"), agent.started)
            await agent.cancelled.wait()
        await settled(server)
        assert not (await client.list_tasks(ListTasksRequest())).tasks


@pytest.mark.usefixtures("tasks_at_once")
@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_a_task_runs_on_when_its_caller_leaves(method: str) -> None:
    agent = Agent()
    async with serving(agent) as server, stock(server) as client, anyio.create_task_group() as tasks:
        left = anyio.Event()
        tasks.start_soon(leave, server, "/a2a", call(method, "wait"), left)
        with anyio.fail_after(20):
            running = await working(client)
            left.set()
            # The server has seen the connection close when it has answered another request after it.
            await client.get_task(GetTaskRequest(id=running.id))
        assert not agent.cancelled.is_set()
        agent.go_on.set()
        assert artifact_text(await until(client, running.id, TaskState.TASK_STATE_COMPLETED)) == "1: wait"


async def test_a_body_that_never_ends_leaves_nothing_behind() -> None:
    async with serving(Agent()) as server, stock(server) as client:
        port = int(server.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /a2a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await ask(client, message("a")))[0].message.parts[0].text == "1: a"


async def test_a_server_that_stops_cancels_the_tasks_that_run() -> None:
    agent = Agent()
    async with serving(agent) as server, stock(server) as client:
        await ask(client, at_once("wait"))
        await agent.started.wait()
    assert agent.cancelled.is_set()


# ── questions ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("EC-70")
async def test_a_question_parks_the_task_and_the_next_message_of_the_task_answers_it() -> None:
    async with serving(Asker()) as server, stock(server) as client, stock(server, streaming=True) as streaming:
        (asked,) = await ask(client, message("greet"))
        assert asked.task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        assert asked.task.status.message.parts[0].text == "whom?"
        answers = await ask(streaming, message("Ada", task=asked.task.id))
        updates = [answer.status_update.status for answer in answers if answer.HasField("status_update")]
        assert updates[-1].state == TaskState.TASK_STATE_COMPLETED
        assert "greeting" in [update.message.parts[0].text for update in updates if update.HasField("message")]
        task = await client.get_task(GetTaskRequest(id=asked.task.id))
        assert artifact_text(task) == "hello Ada"
        assert task.context_id == asked.task.context_id
        assert [entry.parts[0].text for entry in task.history if entry.role == Role.ROLE_USER] == ["greet", "Ada"]


@pytest.mark.clause("EC-70")
async def test_the_next_message_of_the_context_answers_as_well() -> None:
    async with serving(Asker()) as server, stock(server) as client:
        (asked,) = await ask(client, message("greet"))
        (answer,) = await ask(client, message("Ada", context=asked.task.context_id))
        assert answer.task.id == asked.task.id
        assert artifact_text(answer.task) == "hello Ada"
        (again,) = await ask(client, message("greet", context=asked.task.context_id))
        assert again.task.id != asked.task.id


@pytest.mark.clause("EC-70")
async def test_a_lone_value_answers_a_question_as_it_is() -> None:
    async with serving(Asker(schema={"type": "object"})) as server, stock(server) as client:
        (asked,) = await ask(client, message("greet"))
        request = message("", context=asked.task.context_id)
        del request.message.parts[:]
        part = request.message.parts.add()
        part.data.struct_value.update({"name": "Ada", "age": 36})
        (answer,) = await ask(client, request)
        assert artifact_text(answer.task) == "hello {'age': 36, 'name': 'Ada'}"


async def test_a_question_of_authority_is_told_as_one() -> None:
    async with serving(Asker(kind="auth")) as server, stock(server) as client:
        (asked,) = await ask(client, message("greet"))
        assert asked.task.status.state == TaskState.TASK_STATE_AUTH_REQUIRED


async def test_a_task_that_waits_can_be_cancelled_and_its_context_goes_on() -> None:
    async with serving(Asker()) as server, stock(server) as client:
        (asked,) = await ask(client, message("greet"))
        task = await client.cancel_task(CancelTaskRequest(id=asked.task.id))
        assert task.status.state == TaskState.TASK_STATE_CANCELED
        (answer,) = await ask(client, message("Ada", context=asked.task.context_id))
        assert answer.message.parts[0].text == "hello Ada"


async def test_a_task_that_waits_for_long_is_taken_up_again_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_handler, "PARKED_SECONDS", 0.05)
    async with serving(Asker()) as server, stock(server) as client:
        before = len(asyncio.all_tasks())
        (first,) = await ask(client, message("greet"))
        (second,) = await ask(client, message("greet"))
        with anyio.fail_after(10):
            # The SDK keeps some tasks of the event loop for each task that waits, until it lets go of it.
            while len(asyncio.all_tasks()) > before:
                await client.get_task(GetTaskRequest(id=first.task.id))
        (answer,) = await ask(client, message("Ada", context=first.task.context_id))
        assert (answer.task.id, artifact_text(answer.task)) == (first.task.id, "hello Ada")
        cancelled = await client.cancel_task(CancelTaskRequest(id=second.task.id))
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
        (after,) = await ask(client, message("Bob", context=second.task.context_id))
        assert after.message.parts[0].text == "hello Bob"


async def test_calls_leave_nothing_behind() -> None:
    async def failing(message: str) -> str:
        if message == "fail":
            raise ValueError
        return message

    async with serving(failing) as server, stock(server) as client, stock(server, streaming=True) as streaming:
        await ask(client, message("a"))
        await ask(streaming, message("a"))
        before = len(asyncio.all_tasks())
        for _ in range(10):
            await ask(client, message("a"))
            await ask(streaming, message("a"))
            await ask(streaming, message("fail"))
            with pytest.raises(A2AError):
                await ask(client, message("fail"))
        with anyio.fail_after(10):
            while len(asyncio.all_tasks()) > before:
                await client.list_tasks(ListTasksRequest())
