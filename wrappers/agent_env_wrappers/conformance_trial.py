"""What conformance checks are played with: the subject, its agent, and the turns that were played."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agent_env_wrappers.contract import (
    Caps,
    Done,
    Event,
    Interrupt,
    Json,
    Message,
    ModelRoute,
    PeerTool,
    Turn,
    Wrapper,
)
from agent_env_wrappers.threads import blocking

T = TypeVar("T")


def seen_in(reply: str) -> int:
    """Reads `seen=<n>` from a reply: how many messages of the caller the agent has seen."""
    found = re.search(r"seen=(\d+)", reply)
    if found is None:
        raise ConformanceError(f"the reply {reply!r} does not tell how many messages the agent has seen")
    return int(found[1])


class ConformanceError(AssertionError):
    """A wrapper does not do what it claims, or not as the contract says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An agent to check, and what to say to it so that it shows what it can.

    | field | the agent, told this, ... |
    |---|---|
    | `hello` | answers; `seen(reply)` tells how many messages of the caller it has seen in this conversation |
    | `use_tool` | calls a tool of its own and answers |
    | `ask_peer` | calls the tool `ask_solver` (seat "solver") and repeats its reply |
    | `ask_caller` | interrupts; given `answer`, it goes on and answers |
    | `hang` | does not answer within the test; `hanging()` returns once it is at it |
    | `fail` | fails |

    `make()` gives a new agent or wrapper. `route(word)` gives a route to another model, whose replies hold the word. A
    cancelled turn has `patience` seconds to end.
    """

    make: Callable[[], object]
    hello: str = "hello"
    seen: Callable[[str], int] = seen_in
    use_tool: str | None = None
    ask_peer: str | None = None
    ask_caller: str | None = None
    answer: Json = True
    hang: str | None = None
    hanging: Callable[[], Awaitable[Any]] | None = None
    fail: str | None = None
    route: Callable[[str], ModelRoute] | None = None
    patience: float = 5.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One check's agent, and how it is talked to."""

    subject: Subject
    wrapper: Wrapper
    caps: Caps

    async def play(self, said: str, state: Any = None, **more: Any) -> Played:
        """Plays a turn to its end; raises `ConformanceError` when it does not end with exactly one end."""
        events: list[Event] = []
        turn: Any = self.wrapper.run(Turn(Message.of(said), state=state, **more))
        async with aclosing(turn) as stream:
            async for event in stream:
                events.append(event)
        ends = [event for event in events if isinstance(event, Done | Interrupt)]
        require(len(ends) == 1 and events[-1] is ends[0], f"the turn has {len(ends)} ends in {events!r}")
        return Played(events, ends[0])

    async def together(self, turns: Sequence[Coroutine[Any, Any, Played]]) -> list[Played]:
        """Plays turns at the same time, or one after the other where the caps want that."""
        if self.caps.concurrency == "lock":
            return [await turn for turn in turns]
        tasks = [asyncio.ensure_future(turn) for turn in turns]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def fork(self, state: Any) -> Any:
        """Copies a conversation as whoever drives the wrapper does."""
        fork = getattr(self.wrapper, "fork", None)
        return copy.deepcopy(state) if fork is None else await fork(state)

    def words(self, name: str) -> str:
        """The subject's words that provoke a capability that the caps claim."""
        words: str | None = getattr(self.subject, name)
        require(words is not None, f"the caps claim what `{name}` would provoke, and the subject has no such words")
        return str(words)

    @property
    def remembers(self) -> bool:
        return self.caps.state != "none"


@dataclass(frozen=True, slots=True)
class Played:
    """A turn that has been played."""

    events: Sequence[Event]
    end: Done | Interrupt

    @property
    def done(self) -> Done:
        """The reply; raises `ConformanceError` when the turn ended with a question."""
        if isinstance(self.end, Interrupt):
            raise ConformanceError(f"the turn ended with a question: {self.end.prompt!r}")
        return self.end

    def of(self, kind: type[T]) -> list[T]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


def require(condition: bool, otherwise: str) -> None:
    """Raises `ConformanceError`; unlike `assert` it is there under `python -O`."""
    if not condition:
        raise ConformanceError(otherwise)


async def refuses(awaitable: Awaitable[Any], kind: type[Exception], *words: str) -> str:
    """Awaits a refusal of one kind whose message has one of the words; returns the message."""
    try:
        await awaitable
    except kind as error:
        message = str(error)
        require(not words or any(word in message for word in words), f"{message!r} names no remedy of {words}")
        return message
    raise ConformanceError(f"it was not refused with {kind.__name__}")


@dataclass(slots=True)
class Solver:
    """A peer that gives one reply, or raises it, and keeps what it heard."""

    reply: str | Exception
    heard: list[str] = field(default_factory=list[str])

    def tool(self) -> PeerTool:
        async def acall(message: str) -> str:
            self.heard.append(message)
            if isinstance(self.reply, Exception):
                raise self.reply
            return self.reply

        return PeerTool(
            name="ask_solver",
            description="Asks the solver, who answers any question.",
            parameters={"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
            acall=acall,
            call=blocking(asyncio.get_running_loop(), acall),
            seat="solver",
        )
