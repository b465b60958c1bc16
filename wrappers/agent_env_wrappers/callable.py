"""Any callable as an agent: a function, method, partial, lambda or object with `__call__`; sync, async or generator.

Parameters are filled by name:

| name | what it gets |
|---|---|
| `message`, `prompt`, `text`, `input` or `query` | the caller's message as a `str`; the whole one if annotated `Message` |
| `history` | the earlier messages, `[{"role": "user" or "assistant", "content": str}, ...]`, without the current one |
| `peers` | `{seat: ask}`; `ask(message)` returns the reply: awaitable for async agents, blocking for sync ones |
| `context` | a `dict` about the call (episode, depth, caller) |
| `model` | the `ModelRoute` of this turn, or None; without it, openai and anthropic clients are sent there |
| `answers` | `{interrupt id: value}`, the caller's answers to an `Interrupt` of the last turn |
| `state` | what the agent's last `Done` or `Interrupt` carried in `state`, None at first |

A callable with one single parameter may name it as it likes. The reply is a `str`; a JSON value, dataclass or pydantic
model (it becomes `Done.data`, and its JSON text `Done.text`); a `Message`; a `Done`; or an `Interrupt`. A generator
yields pieces of text and events, and ends with the text of all pieces unless it yields or returns one of the above.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any, ClassVar

from agent_env_wrappers.answers import answer_of, refuse_answers
from agent_env_wrappers.contract import (
    AgentError,
    AgentInfo,
    Caps,
    Done,
    Event,
    FilePart,
    Interrupt,
    ModelCall,
    PeerTool,
    Status,
    TextDelta,
    ToolCall,
    ToolReturn,
    Turn,
    Usage,
    WrapError,
)
from agent_env_wrappers.kinds import roots
from agent_env_wrappers.model_clients import shows_client
from agent_env_wrappers.openai_client_hook import Routed, can_repoint, hold, install_hooks, routed
from agent_env_wrappers.parameters import Parameters
from agent_env_wrappers.replies import ending
from agent_env_wrappers.threads import Returned, Threads, anywhere

REMEMBERING = frozenset({"history", "state", "answers"})
EVENTS = (TextDelta, ToolCall, ToolReturn, ModelCall, Status, Interrupt, Done)

STATEFUL = {
    "autogen_agentchat": "an autogen agent",
    "crewai": "a crewai object",
    "dspy": "a dspy module",
    "smolagents": "a smolagents agent",
    "strands": "a strands agent",
}
"""Frameworks whose objects can be called, or nearly so, and hold one history for everybody who calls them."""


class CallableWrapper:
    """Drives a callable; the conversation is its transcript, passed in as `history`.

    A sync callable runs in a thread of its own each turn, so it may block and call blocking peers at any depth.
    """

    framework: ClassVar[str] = "callable"

    def __init__(self, agent: Callable[..., Any]) -> None:
        self._agent = agent
        self._plan = Parameters.of(agent)
        self._repointed = False
        self.threads = Threads(name=self._plan.name or "agent")

    @classmethod
    def match(cls, agent: object) -> int:
        """1 for what can be called, 0 for classes and for objects that would mix conversations; never imports."""
        if isinstance(agent, type) or not callable(agent):
            return 0
        return int(not any(root in STATEFUL for root in roots(agent)))

    async def describe(self) -> AgentInfo:
        """Describes the callable by its name, docstring and parameters."""
        plan = self._plan
        remembers = bool(plan.takes & REMEMBERING)
        caps = Caps(
            streaming=plan.generator,
            tool_events=plan.generator,
            interrupts="answers" in plan.takes,
            state="value" if remembers else "none",
            fork=remembers,
            tools="turn" if "peers" in plan.takes else "none",
            model="turn" if "model" in plan.takes or can_repoint() else "none",
            parts=frozenset({"text", "data", "file"} if plan.whole else {"text", "data"}),
        )
        return AgentInfo(framework=self.framework, caps=caps, name=plan.name, description=plan.description)

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        """Calls the agent once.

        Where it has no parameter for the turn's model, its openai and anthropic clients are re-pointed for the turn.
        It may reply without asking a model, if it is seen to have such a client: one that took a route before, or that
        its code shows. Otherwise raises `WrapError`, as a model that it asks in another way would pass by the route;
        `Done(usage=Usage())` says that none was asked. Raises it also where the turn has what else the callable has no
        parameter for.
        """
        arguments = self._arguments(turn)
        pieces: list[str] = []
        end: Any = None
        model = None if "model" in self._plan.takes else turn.model
        if model is not None:
            await self.threads.run(install_hooks)  # the first time it imports, which takes seconds
        with routed(model) as route:
            async with aclosing(self._play(arguments)) as items:
                try:
                    async for item in items:
                        if isinstance(item, Returned):
                            end = item.value
                        elif isinstance(item, Done | Interrupt):
                            end = item
                            break
                        elif isinstance(item, str):
                            pieces.append(item)
                            yield TextDelta(item)
                            hold(route)
                        elif isinstance(item, EVENTS):
                            if isinstance(item, TextDelta) and item.channel == "answer":
                                pieces.append(item.text)
                            yield item
                            hold(route)
                        else:
                            raise AgentError(f"the agent yielded {type(item).__name__}; yield str or an Event")
                except (AgentError, WrapError):
                    raise
                except (Exception, SystemExit) as error:
                    raise AgentError(f"the agent raised {type(error).__name__}") from error
        if end is None and (self._plan.generator or pieces):
            end = "".join(pieces)
        reply = ending(end)
        if route is not None and isinstance(reply, Done):
            self._check(route, reply)
        yield self._remember(turn, reply)

    async def aclose(self) -> None:
        """Frees nothing: threads end by themselves."""

    # ── in ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _arguments(self, turn: Turn) -> tuple[tuple[Any, ...], dict[str, Any]]:
        plan = self._plan
        if not plan.whole and any(isinstance(part, FilePart) for part in turn.message.parts):
            raise WrapError(f"{plan.called} reads text and data; annotate its message as `Message` to read files")
        if turn.tools and "peers" not in plan.takes:
            raise WrapError(f"{plan.called} cannot be given peers; add a parameter `peers` to it")
        memory = turn.state or {}
        offered: dict[str, Any] = {
            "history": [dict(entry) for entry in memory.get("history", ())],
            "peers": self._peers(turn),
            "context": dict(turn.context),
            "model": turn.model,
            "answers": _answers(turn, memory.get("asked")),
            "state": copy.deepcopy(memory.get("own")),
        }
        message = turn.message if plan.whole else _said(turn, offered["answers"])
        named = {name: offered[name] for name in plan.takes}
        return ((message,), named) if plan.positional else ((), {plan.message: message, **named})

    def _peers(self, turn: Turn) -> _Peers:
        loop = asyncio.get_running_loop()
        peers = _Peers()
        for tool in turn.tools:
            if tool.seat in peers:
                raise WrapError(f"two peers have the seat {tool.seat!r}; give each need a seat of its own")
            ask = tool.acall if self._plan.is_async else anywhere(loop, tool.acall, tool.call)
            peers[tool.seat] = _by_message(tool, ask)
        return peers

    # ── the call ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _play(self, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> AsyncGenerator[Any]:
        """Yields what the agent yields, and what it returns as one `Returned`."""
        positional, named = arguments
        if self._plan.is_async:
            result = self._agent(*positional, **named)
        else:

            def work(emit: Callable[[Any], None]) -> Any:
                made = self._agent(*positional, **named)
                return _exhaust(made, emit) if isinstance(made, Iterator) else made

            result = None
            async with aclosing(self.threads.play(work)) as items:
                async for item in items:
                    if isinstance(item, Returned):
                        result = item.value
                    else:
                        yield item
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, AsyncIterator):
            async with AsyncExitStack() as stack:
                if inspect.isasyncgen(result):
                    stack.push_async_callback(result.aclose)
                async for item in result:
                    yield item
        else:
            yield Returned(result)

    def _check(self, route: Routed, reply: Done) -> None:
        """Raises `WrapError` for a reply that a model may have made which was asked past the route."""
        if route.requests:
            self._repointed = True
        elif route.strayed and reply.usage != Usage():
            raise WrapError(
                f"the model of {self._plan.called} was set, and a model was asked meanwhile from a thread or task that "
                "belongs to no turn, past it; ask in the turn, or in threads that get its context (asyncio.to_thread)"
            )
        elif not (self._repointed or reply.usage == Usage() or shows_client(self._agent)):
            raise WrapError(
                f"the model of {self._plan.called} was set, and it replied without asking one through the openai or "
                "the anthropic client, which alone can be re-pointed; ask through one of them, or add a parameter "
                "`model` to it and use that; return Done(text, usage=Usage()) if it needs no model"
            )

    # ── out ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _remember(self, turn: Turn, end: Done | Interrupt) -> Done | Interrupt:
        """Puts the conversation's next state into the last event; an agent that takes none of it keeps none."""
        memory = turn.state or {}
        said, replied = (
            _said(turn, _answers(turn, memory.get("asked"))),
            end.prompt if isinstance(end, Interrupt) else end.text,
        )
        history = [
            *memory.get("history", ()),
            {"role": "user", "content": said},
            {"role": "assistant", "content": replied},
        ]
        state = {"history": history, "own": end.state, "asked": end.id if isinstance(end, Interrupt) else None}
        kept = isinstance(end, Interrupt) or self._plan.takes & REMEMBERING
        return dataclasses.replace(end, state=state if kept else None)


class _Peers(dict[str, Callable[..., Any]]):
    """Peers by seat; a seat without one is an `AgentError` that says so, not a `KeyError`."""

    def __missing__(self, seat: str) -> Callable[..., Any]:
        filled = ", ".join(map(repr, self)) or "none"
        raise AgentError(f"the agent asks the seat {seat!r}, which no peer fills in this turn (filled: {filled})")


def _answers(turn: Turn, asked: str | None) -> dict[str, Any]:
    if asked is None:
        refuse_answers(turn)
        return {}
    return {asked: answer_of(turn, asked)}


def _said(turn: Turn, answers: Mapping[str, Any]) -> str:
    """The caller's words: the message, or where it is empty the answer."""
    if turn.message.prompt or not answers:
        return turn.message.prompt
    return "\n".join(value if isinstance(value, str) else json.dumps(value) for value in answers.values())


def _by_message(tool: PeerTool, ask: Callable[..., Any]) -> Callable[..., Any]:
    """The peer as a function of one message; further arguments of its tool go by name."""
    names = list(tool.parameters.get("properties", {}))
    name = names[0] if len(names) == 1 else "message"

    def peer(message: str, /, **arguments: Any) -> Any:
        return ask(**{name: message, **arguments})

    return peer


def _exhaust(pieces: Iterator[Any], emit: Callable[[Any], None]) -> Any:
    """Emits what a sync generator yields, and returns what it returns; it is closed when the turn is abandoned."""
    try:
        while True:
            emit(next(pieces))
    except StopIteration as stop:
        return stop.value
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
