"""Who may use what over A2A: tokens, and the tasks, contexts and push addresses of each principal."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from a2a.client import Client, ClientConfig, create_client
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import A2AError, InvalidParamsError, TaskNotFoundError

from agent_env.context import CallContext, Link, Principal, Route, Run, encode_run, inject
from agent_env.net import Limits, Tokens
from agent_env.serving.environment import AgentEnvironment
from agent_env.serving.server import Server
from agent_env_cards import EXTENSION_URI

pytestmark = pytest.mark.anyio

TOKENS = Tokens(
    {
        "alice-token": Principal("alice", frozenset({"chat"})),
        "bob-token": Principal("bob", frozenset({"chat"})),
        "boss-token": Principal("boss", frozenset({"chat", "orchestrate"})),
    }
)


class Agent:
    def __init__(self) -> None:
        self.go_on = anyio.Event()
        self.contexts: list[dict[str, Any]] = []

    async def __call__(self, message: str, history: list[dict[str, str]], context: dict[str, Any]) -> str:
        self.contexts.append(context)
        if message == "wait":
            await self.go_on.wait()
        return f"{len(history) // 2 + 1}: {message}"


@asynccontextmanager
async def serving(agent: object, **options: Any) -> AsyncGenerator[Server]:
    options = {"name": "echo", "version": "1.0.0", "hub": False, "auth": TOKENS, **options}
    async with AgentEnvironment(agent, **options).serving() as server:
        yield server


@asynccontextmanager
async def stock(server: Server, who: str, *, streaming: bool = False) -> AsyncGenerator[Client]:
    headers = {"Authorization": f"Bearer {who}-token"} if who else {}
    async with httpx.AsyncClient(timeout=20, headers=headers) as http:
        yield await create_client(server.url, ClientConfig(streaming=streaming, httpx_client=http))


def message(text: str, *, context: str = "", task: str = "") -> SendMessageRequest:
    said = Message(
        message_id=secrets.token_hex(8),
        role=Role.ROLE_USER,
        parts=[Part(text=text)],
        context_id=context,
        task_id=task,
    )
    return SendMessageRequest(message=said)


async def ask(client: Client, request: SendMessageRequest) -> StreamResponse:
    with anyio.fail_after(20):
        return [answer async for answer in client.send_message(request)][-1]


def code(error: A2AError) -> str:
    assert error.data is not None
    return error.data[EXTENSION_URI]["code"]


@pytest.mark.clause("EC-75")
async def test_without_a_valid_token_every_route_but_the_cards_answers_401() -> None:
    async with serving(Agent()) as server, httpx.AsyncClient(base_url=server.url) as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eA=="}):
            for method, path in (
                ("POST", "/a2a"),
                ("POST", "/a2a/rest/message:send"),
                ("POST", "/a2a/rest/message:stream"),
                ("GET", "/a2a/rest/tasks"),
                ("GET", "/a2a/rest/tasks/x"),
                ("POST", "/a2a/rest/tasks/x:cancel"),
                ("POST", "/a2a/rest/v1/message:send"),
                ("GET", "/a2a/rest/v1/tasks/x"),
            ):
                answer = await http.request(method, path, headers=headers)
                assert answer.status_code == 401, path
                assert answer.headers["www-authenticate"] == "Bearer"
                error = answer.json()["error"]
                details = error.get("data") or error["details"]
                assert details[0]["metadata"][EXTENSION_URI]["code"] == "unauthenticated"
        for path in ("/.well-known/agent-card.json", "/.well-known/agent.json"):
            assert (await http.get(path)).status_code == 200


async def test_pages_of_other_origins_are_turned_away() -> None:
    async with serving(Agent(), auth=None) as server, httpx.AsyncClient(base_url=server.url) as http:
        answer = await http.post("/a2a", json={}, headers={"Origin": "https://evil.example"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, -32600)


async def test_tasks_of_another_principal_do_not_exist() -> None:
    agent = Agent()
    async with serving(agent) as server, stock(server, "alice") as alice, stock(server, "bob") as bob:
        request = message("wait")
        request.configuration.return_immediately = True
        task = (await ask(alice, request)).task
        for attempt in (
            bob.get_task(GetTaskRequest(id=task.id)),
            bob.cancel_task(CancelTaskRequest(id=task.id)),
            bob.create_task_push_notification_config(
                TaskPushNotificationConfig(task_id=task.id, url="http://127.0.0.1:9/")
            ),
            bob.list_task_push_notification_configs(ListTaskPushNotificationConfigsRequest(task_id=task.id)),
            ask(bob, message("x", task=task.id)),
        ):
            with pytest.raises(TaskNotFoundError):
                await attempt
        async with stock(server, "bob", streaming=True) as streaming:
            with pytest.raises(TaskNotFoundError):
                await anext(aiter(streaming.subscribe(SubscribeToTaskRequest(id=task.id))))
        assert not (await bob.list_tasks(ListTasksRequest())).tasks
        assert [entry.id for entry in (await alice.list_tasks(ListTasksRequest())).tasks] == [task.id]
        await alice.cancel_task(CancelTaskRequest(id=task.id))


@pytest.mark.clause("EC-57")
@pytest.mark.parametrize("context", ["", "chosen-by-alice"])
async def test_a_context_of_another_principal_is_unknown_and_opens_nothing(context: str) -> None:
    async with serving(Agent()) as server, stock(server, "alice") as alice, stock(server, "bob") as bob:
        mine = (await ask(alice, message("a", context=context))).message.context_id
        with pytest.raises(InvalidParamsError) as caught:
            await ask(bob, message("b", context=mine))
        assert code(caught.value) == "unknown_session"
        assert [session.principal for session in server.runtime.sessions] == ["alice"]
        assert (await ask(alice, message("c", context=mine))).message.parts[0].text == "2: c"


@pytest.mark.clause("EC-57")
async def test_a_context_that_is_gone_is_never_a_fresh_conversation() -> None:
    async with serving(Agent()) as server, stock(server, "alice") as alice:
        minted = (await ask(alice, message("a"))).message.context_id
        chosen = (await ask(alice, message("a", context="chosen"))).message.context_id
        for session in list(server.runtime.sessions):
            await server.runtime.sessions.remove(session)
        for context in (minted, chosen, "s-" + "x" * 22):
            with pytest.raises(InvalidParamsError, match="leave the id out to open a new one") as caught:
                await ask(alice, message("b", context=context))
            assert code(caught.value) == "unknown_session"


async def test_a_first_message_that_fails_does_not_use_up_its_context() -> None:
    async def picky(message: str) -> str:
        if message == "fail":
            raise ValueError
        return message

    async with serving(picky) as server, stock(server, "alice") as alice:
        with pytest.raises(A2AError):
            await ask(alice, message("fail", context="chosen"))
        assert (await ask(alice, message("a", context="chosen"))).message.parts[0].text == "a"


@pytest.mark.clause("EC-75")
async def test_a_token_without_a_scope_is_told_which_one_it_lacks() -> None:
    tokens = Tokens({"alice-token": Principal("alice", frozenset({"orchestrate"}))})
    async with serving(Agent(), auth=tokens) as server, stock(server, "alice") as alice:
        with pytest.raises(A2AError, match="scope 'chat'") as caught:
            await ask(alice, message("a"))
        assert code(caught.value) == "forbidden"
    async with serving(Agent(), auth=tokens) as server, httpx.AsyncClient() as http:
        answer = await http.post(
            f"{server.url}/a2a/rest/message:send",
            json={"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "a"}]}},
            headers={"Authorization": "Bearer alice-token", "A2A-Version": "1.0"},
        )
        assert (answer.status_code, answer.json()["error"]["status"]) == (403, "PERMISSION_DENIED")


@pytest.mark.clause("EC-71")
async def test_when_all_places_are_taken_the_caller_is_told_when_to_come_back() -> None:
    limits = Limits(max_sessions=1, queue_seconds=0.05)
    async with serving(Agent(), limits=limits) as server, stock(server, "alice") as alice:
        await ask(alice, message("a"))
        async with httpx.AsyncClient() as http:
            answer = await http.post(
                f"{server.url}/a2a/rest/message:send",
                json={"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "a"}]}},
                headers={"Authorization": "Bearer bob-token", "A2A-Version": "1.0"},
            )
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert answer.json()["error"]["status"] == "RESOURCE_EXHAUSTED"


async def test_the_call_context_is_read_from_metadata_and_else_from_headers() -> None:
    agent = Agent()
    told = CallContext(call_id="00f067aa0ba902b7", episode="ep-1", chain=(Link("a@1.0.0", "h1"),))
    async with serving(agent) as server:
        request = message("a")
        request.metadata.update(inject(told))
        async with stock(server, "alice") as alice:
            await ask(alice, request)
        request = message("b")
        request.message.metadata.update(inject(told))
        async with stock(server, "alice") as alice:
            await ask(alice, request)
        headers = {"Authorization": "Bearer alice-token", **inject(told)}
        async with httpx.AsyncClient(headers=headers) as http:
            alice = await create_client(server.url, ClientConfig(streaming=False, httpx_client=http))
            await ask(alice, message("c"))
    assert len(agent.contexts) == 3
    for seen in agent.contexts:
        assert (seen["episode"], seen["trace_id"], seen["depth"]) == ("ep-1", told.trace_id, 1)


@pytest.mark.clause("EC-73")
async def test_a_chain_that_is_too_deep_is_refused_before_any_work() -> None:
    deep = CallContext(chain=tuple(Link(f"a{number}@1.0.0", "h") for number in range(8)))
    agent = Agent()
    async with serving(agent) as server, stock(server, "alice") as alice:
        request = message("a")
        request.metadata.update(inject(deep))
        with pytest.raises(A2AError, match="deep") as caught:
            await ask(alice, request)
        assert code(caught.value) == "too_deep"
        assert not agent.contexts


async def test_a_run_is_taken_only_from_those_who_orchestrate() -> None:
    run = encode_run(Run("http://127.0.0.1:9", "r", "e", "solver", {"other": Route("t", "m")}))
    agent = Agent()
    async with serving(agent) as server:
        for who, allowed in (("alice", False), ("boss", True)):
            headers = {"Authorization": f"Bearer {who}-token", "Agent-Env-Run": run}
            async with httpx.AsyncClient(headers=headers) as http:
                client = await create_client(server.url, ClientConfig(streaming=False, httpx_client=http))
                if allowed:
                    await ask(client, message("a"))
                else:
                    with pytest.raises(A2AError, match="scope 'orchestrate'") as caught:
                        await ask(client, message("a"))
                    assert code(caught.value) == "forbidden"
    assert [seen["seat"] for seen in agent.contexts] == ["solver"]
