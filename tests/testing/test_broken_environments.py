"""Environments that break one clause each: the check names that clause."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from agent_env import AgentEnvironment, Limits, SessionView
from agent_env.errors import InvalidArguments, UnknownSession, UnknownTool
from agent_env.net.listening import bound_url, listen
from agent_env.net.serving import served
from agent_env.runtime.declared import declare
from agent_env.runtime.definition import Definition
from agent_env.runtime.environment import Runtime
from agent_env.testing import ContractBroken, Report, check_environment
from agent_env_wrappers.callable import CallableWrapper
from agent_env_wrappers.contract import Done, Interrupt

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


async def counting(message: str, history: list[dict[str, str]]) -> str:
    return f"{len(history) // 2 + 1}: {message}"


def score(session: SessionView) -> float:
    """Scores."""
    return 1.0


class NoTool(Runtime):
    """Lists less than its card."""

    def list_tools(self) -> list[dict[str, Any]]:
        self.asked = getattr(self, "asked", 0) + 1
        tools = super().list_tools()
        return tools if self.asked == 1 else [tool | {"name": "talk"} for tool in tools]


class OtherSchema(Runtime):
    """Lists another schema than its card."""

    def list_tools(self) -> list[dict[str, Any]]:
        self.asked = getattr(self, "asked", 0) + 1
        tools = super().list_tools()
        return tools if self.asked == 1 else [tool | {"inputSchema": {"type": "object"}} for tool in tools]


class ShortIds(Runtime):
    """Session ids that can be guessed."""

    async def call_tool(self, name: str, arguments: Any, **more: Any) -> Any:
        if more.get("session_id") is None:
            self.count = getattr(self, "count", 0) + 1
            more["open_as"] = f"session-{self.count}"
        return await super().call_tool(name, arguments, **more)


class OneForAll(Runtime):
    """Everybody has the same conversation."""

    async def call_tool(self, name: str, arguments: Any, **more: Any) -> Any:
        if more.get("session_id") is None:
            more["open_as"] = "one-session-that-all-callers-share"
        return await super().call_tool(name, arguments, **more)


class Shuffled(Runtime):
    """Keeps the messages of a session in another order."""

    async def state(self, **more: Any) -> Any:
        state = await super().state(**more)
        return state | {"messages": state["messages"][::-1]}


class Leaking(Runtime):
    """Shows what was said to others."""

    async def state(self, **more: Any) -> Any:
        state = await super().state(**more)
        return state | {"messages": [message for session in self.sessions for message in session.messages]}


class Obliging(Runtime):
    """A fresh conversation in place of one that is not there."""

    async def call_tool(self, name: str, arguments: Any, **more: Any) -> Any:
        try:
            return await super().call_tool(name, arguments, **more)
        except UnknownSession:
            return await super().call_tool(name, arguments, **(more | {"session_id": None}))


class Curt(Runtime):
    """Does not say which tools there are."""

    async def call_tool(self, name: str, arguments: Any, **more: Any) -> Any:
        try:
            return await super().call_tool(name, arguments, **more)
        except UnknownTool:
            raise UnknownTool("no") from None


class Vague(Runtime):
    """Another code than the protocol's."""

    async def call_tool(self, name: str, arguments: Any, **more: Any) -> Any:
        try:
            return await super().call_tool(name, arguments, **more)
        except UnknownTool:
            raise InvalidArguments("no tool chat or so") from None


class Lax(Runtime):
    """Takes whatever it is given."""

    async def call_tool(self, name: str, arguments: Any, **more: Any) -> Any:
        if name == "chat":
            arguments = {"message": str(arguments.get("message", ""))}
        return await super().call_tool(name, arguments, **more)


class Careless(Runtime):
    """A refused call leaves a mark."""

    async def call_tool(self, name: str, arguments: Any, **more: Any) -> Any:
        try:
            return await super().call_tool(name, arguments, **more)
        except InvalidArguments:
            for session in self.sessions:
                session.turns += 1
            raise


class Generous(Runtime):
    """A reward that nobody gave."""

    async def call_tool(self, name: str, arguments: Any, **more: Any) -> Any:
        return replace(await super().call_tool(name, arguments, **more), reward=0.0)


class Talkative(Runtime):
    """Tells its insides."""

    async def call_function(self, name: str, arguments: Any, **more: Any) -> Any:
        try:
            return await super().call_function(name, arguments, **more)
        except UnknownTool as error:
            raise UnknownTool(f'Traceback (most recent call last):\n  File "x.py"\n{error}') from None


class Silent(Runtime):
    """Says nothing of what went wrong."""

    async def state(self, *, session_id: str, **more: Any) -> Any:
        try:
            return await super().state(session_id=session_id, **more)
        except UnknownSession:
            raise UnknownSession(" ") from None


class Forgetless(Runtime):
    """Resets nothing."""

    async def reset(self, **more: Any) -> Any:
        kept = next((s for s in self.sessions if s.id == more.get("session_id")), None)
        before = (kept.messages, kept.turns) if kept else None
        answer = await super().reset(**more)
        if kept and before:
            kept.messages, kept.turns = before
        return answer


class Restless(Runtime):
    """The same seed starts another episode."""

    number = itertools.count()

    async def reset(self, **more: Any) -> Any:
        return replace(await super().reset(**more), observation=next(self.number))


class Endless(Runtime):
    """Never says that an episode is over."""

    async def step(self, action: Any, **more: Any) -> Any:
        return replace(await super().step(action, **more), truncated=False)


class Watched(Runtime):
    """Looking at it changes it."""

    async def state(self, **more: Any) -> Any:
        state = await super().state(**more)
        for session in self.sessions:
            session.turns += 1
        return state


class NoCopy(Runtime):
    """Hands out the session itself for its copy."""

    async def fork(self, *, session_id: str, caller: Any) -> Any:
        return {"session_id": session_id}


class EmptyCopy(Runtime):
    """A copy without the past."""

    async def fork(self, *, session_id: str, caller: Any) -> Any:
        return {"session_id": (await self.reset(caller=caller)).session_id}


class Clinging(Runtime):
    """Releases nothing."""

    async def release(self, *, session_id: str, caller: Any) -> Any:
        return {"released": True, "session_id": session_id}


class Inventive(Runtime):
    """Scores what nobody declared."""

    async def call_reward(self, name: str, arguments: Any = None, **more: Any) -> Any:
        return {"name": name, "value": 0.0, "done": False}


class Deep(Runtime):
    """Takes calls from any depth."""

    def _check(self, caller: Any, session: str) -> None:
        pass


class Forgetful(Runtime):
    """Answers without what the protocol wants."""

    async def state(self, **more: Any) -> Any:
        state = await super().state(**more)
        del state["turns"]
        return state


BROKEN: list[tuple[str, type[Runtime]]] = [
    ("EC-53", NoTool),
    ("EC-53", OtherSchema),
    ("EC-54", ShortIds),
    ("EC-54", OneForAll),
    ("EC-55", Shuffled),
    ("EC-56", Leaking),
    ("EC-56", OneForAll),
    ("EC-57", Obliging),
    ("EC-57", Clinging),
    ("EC-58", Curt),
    ("EC-58", Vague),
    ("EC-59", Lax),
    ("EC-60", Careless),
    ("EC-61", Generous),
    ("EC-62", Talkative),
    ("EC-62", Silent),
    ("EC-63", Forgetless),
    ("EC-63", Restless),
    ("EC-64", Endless),
    ("EC-65", Watched),
    ("EC-65", Forgetful),
    ("EC-66", NoCopy),
    ("EC-66", EmptyCopy),
    ("EC-67", Clinging),
    ("EC-68", Inventive),
    ("EC-73", Deep),
]


async def check(kind: type[Runtime], agent: Any = counting, **definition: Any) -> Report:
    wrapper = CallableWrapper(agent)
    runtime = kind(Definition("agent", "1.0.0", wrapper, **definition), await wrapper.describe())
    try:
        return await check_environment(runtime, timeout=5)
    finally:
        await runtime.aclose()


@pytest.mark.parametrize(("clause", "kind"), BROKEN, ids=lambda value: getattr(value, "__name__", str(value)))
async def test_a_broken_environment_fails_at_the_clause_that_it_breaks(clause: str, kind: type[Runtime]) -> None:
    definition: dict[str, Any] = {"limits": Limits(turn_limit=5)}
    if kind is Restless:
        definition["on_reset"] = declare(lambda: None, name="on_reset")
    report = await check(kind, **definition)
    assert clause in {one.clause for one in report.failed}, report.summary()
    assert all(one.why for one in report.failed)


async def test_the_unbroken_one_fails_nowhere() -> None:
    report = await check(Runtime, limits=Limits(turn_limit=5), rewards={"score": declare(score)})
    assert report.failed == []


async def test_what_a_reward_may_not_be_is_told() -> None:
    class Odd(Runtime):
        async def call_reward(self, name: str, arguments: Any = None, **more: Any) -> Any:
            return await super().call_reward(name, arguments, **more) | {"value": "much"}

    report = await check(Odd, rewards={"score": declare(score)})
    assert [one.clause for one in report.failed] == ["EC-68"]


async def test_a_question_without_a_way_to_answer_it_fails() -> None:
    async def asking(message: str, answers: dict[str, Any]) -> AsyncIterator[Any]:
        yield Done("x") if answers else Interrupt("q", "question", "Which one?")

    class Mute(Runtime):
        async def call_tool(self, name: str, arguments: Any, **more: Any) -> Any:
            return replace(await super().call_tool(name, arguments, **more), interrupt=None)

    report = await check(Mute, asking)
    assert "EC-70" in {one.clause for one in report.failed}


async def test_parts_that_are_not_read_must_be_refused() -> None:
    class Swallowing(Runtime):
        async def call_tool(self, name: str, arguments: Any, **more: Any) -> Any:
            arguments = {key: value for key, value in arguments.items() if key != "parts"}
            return await super().call_tool(name, arguments, **more)

    assert "EC-74" in {one.clause for one in (await check(Swallowing)).failed}


async def test_an_agent_that_fails_is_told_as_such() -> None:
    async def broken(message: str) -> str:
        raise ValueError("secret")

    report = await check(Runtime, broken)
    failed = next(one for one in report.failed if one.clause == "EC-54")
    assert failed.why.startswith("agent_failed: ")


async def test_an_environment_that_hangs_ends_the_check() -> None:
    class Hanging(Runtime):
        async def state(self, **more: Any) -> Any:
            await asyncio.Event().wait()

    wrapper = CallableWrapper(counting)
    runtime = Hanging(Definition("agent", "1.0.0", wrapper), await wrapper.describe())
    report = await check_environment(runtime, timeout=0.05)
    assert "EC-65" in {one.clause for one in report.failed}
    assert any("deadline_exceeded" in one.why for one in report.failed)
    await runtime.aclose()


# ── what is served ─────────────────────────────────────────────────────────────────────────────────────────────

Change = Callable[[str, int, Any], tuple[int, Any]]


@asynccontextmanager
async def altered(change: Change, **options: Any) -> AsyncGenerator[str]:
    """An environment whose JSON answers are changed on their way: `change(path, status, body)`."""
    env = AgentEnvironment(counting, version="1.0.0", **options)
    inner = env.app(local=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await inner(scope, receive, send)
            return
        start: dict[str, Any] = {}
        body = bytearray()

        async def gather(message: Any) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            status, content = start["status"], bytes(body)
            headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
            if any(value.startswith(b"application/json") for name, value in headers if name == b"content-type"):
                status, changed = change(scope["path"], status, json.loads(content))
                content = json.dumps(changed).encode()
            headers.append((b"content-length", str(len(content)).encode()))
            await send(start | {"status": status, "headers": headers})
            await send({"type": "http.response.body", "body": content})

        await inner(scope, receive, gather)

    listener = listen()
    async with served(app, listener, max_frame_bytes=1_000_000):
        yield bound_url(listener)


def at(path: str, **members: Any) -> Change:
    """Changes members of what is served at a path; None takes one away."""

    def change(asked: str, status: int, body: Any) -> tuple[int, Any]:
        if asked == path:
            return status, {key: value for key, value in {**body, **members}.items() if value is not None}
        return status, body

    return change


def gone(path: str) -> Change:
    def change(asked: str, status: int, body: Any) -> tuple[int, Any]:
        return (404, {}) if asked == path else (status, body)

    return change


def other_message(path: str, status: int, body: Any) -> tuple[int, Any]:
    if path == "/v1/call_tool" and "error" in body:
        body["error"]["message"] = "something else"
    return status, body


CARD, AGENT_CARD = "/.well-known/agent-env.json", "/.well-known/agent-card.json"


@pytest.mark.parametrize(
    ("clause", "change"),
    [
        ("EC-38", at(CARD, digest="sha256:" + "0" * 64)),
        ("EC-50", at(CARD, digest="sha256:" + "0" * 64)),
        ("EC-50", at(CARD, digest=None)),
        ("EC-13", at(CARD, description="")),
        ("EC-51", gone(AGENT_CARD)),
        ("EC-51", gone("/.well-known/agent.json")),
        ("EC-51", at(AGENT_CARD, capabilities={})),
        ("EC-51", at(CARD, agentCard=None)),
        ("EC-51", at(CARD, agentCard="/health")),
        ("EC-52", gone("/v1/list_tools")),
        ("EC-52", at("/agentenv", error={"code": -1, "message": "no"})),
        ("EC-69", other_message),
        ("EC-77", at("/health", status="sick")),
    ],
)
async def test_what_is_served_wrongly_fails_at_its_clause(clause: str, change: Change) -> None:
    async with altered(change) as url:
        report = await check_environment(url, lanes=[])
    assert clause in {one.clause for one in report.failed}, [str(one) for one in report.checks]


async def test_credentials_that_are_promised_must_be_asked_for() -> None:
    promise = {"schemes": {"bearer": {"type": "http", "scheme": "bearer"}}, "security": [{"bearer": ["chat"]}]}
    async with altered(at(CARD, auth=promise)) as url:
        report = await check_environment(url, lanes=[])
        assert "EC-75" in {one.clause for one in report.failed}
        with pytest.raises(ContractBroken, match="EC-75"):
            await check_environment(url, lanes=[], raise_on_failure=True)


async def test_an_unaltered_one_fails_nowhere() -> None:
    async with altered(lambda path, status, body: (status, body)) as url:
        report = await check_environment(url, lanes=["http"])
    assert report.failed == []
