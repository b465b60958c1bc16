"""The calls of an episode that are under way: which wait for somebody outside, and which run by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agent_env.client.environment import Environment
from agent_env.client.lanes.contract import OnEvent
from agent_env_wrappers.contract import AgentError


@dataclass(eq=False, slots=True)
class Flight:
    """A call of a seat that has no answer yet, and the call in whose course it was made."""

    seat: str
    above: Flight | None
    taken: bool = False


@dataclass(eq=False, slots=True)
class Asked:
    """A message that waits for the action of a seat: who sent it (None: the program), and the seats whose calls led
    here, outermost first."""

    seat: str
    text: str
    sender: str | None
    callers: tuple[str, ...]
    reply: asyncio.Future[str]


@dataclass(eq=False, slots=True)
class Calls:
    """The calls of one episode; those to the seats `outside` are answered by nobody in it."""

    outside: frozenset[str]
    flights: set[Flight] = field(default_factory=set[Flight])
    waiting: list[Asked] = field(default_factory=list[Asked])
    over: bool = False

    @property
    def settled(self) -> bool:
        """Whether somebody outside is waited for, and nothing else is: every call leads to such a wait.

        Further calls of a seat that such a wait holds up may be queued behind it, so they are not waited for.
        """
        held: set[str] = set(self.outside)
        for asked in self.waiting:
            held.update(asked.callers)
        return bool(self.waiting) and all(flight.seat in held for flight in self.flights)

    async def ask(self, seat: str, text: str, sender: str | None, flight: Flight | None) -> str:
        """Waits for what the seat does; raises `AgentError` after the end of the episode."""
        if self.over:
            raise AgentError(f"nobody plays the seat {seat!r} any more: the episode has ended")
        callers: list[str] = []
        above = flight.above if flight is not None and flight.seat == seat else flight
        while above is not None:
            callers.append(above.seat)
            above = above.above
        asked = Asked(seat, text, sender, tuple(reversed(callers)), asyncio.get_running_loop().create_future())
        self.waiting.append(asked)
        try:
            return await asked.reply
        finally:
            if asked in self.waiting:
                self.waiting.remove(asked)

    def answer(self, asked: Asked, action: str) -> None:
        """Gives what waits its reply."""
        self.waiting.remove(asked)
        if not asked.reply.done():
            asked.reply.set_result(action)


_calls: ContextVar[Calls | None] = ContextVar("agent_env_view_calls", default=None)
_flight: ContextVar[Flight | None] = ContextVar("agent_env_view_flight", default=None)


def current_calls() -> Calls:
    """The calls of the episode that the running code plays in; raises `AgentError` outside of one."""
    calls = _calls.get()
    if calls is None:
        raise AgentError("a seat that is played from outside can be called only in the episode of its view")
    return calls


def enter(calls: Calls) -> None:
    """Makes these the calls of the running task, and of all that it starts."""
    _calls.set(calls)
    _flight.set(None)


def take_flight(seat: str) -> tuple[Flight | None, str | None]:
    """The call that brought the running turn of a seat, and the seat that made it (None: the program)."""
    flight = _flight.get()
    if flight is None:
        return None, None
    if flight.seat == seat and not flight.taken:
        flight.taken = True
        return flight, None if flight.above is None else flight.above.seat
    # A call that did not go through the team, such as that of a peer.
    own = Flight(seat, flight)
    _flight.set(own)
    return own, flight.seat


class WatchedEnvironment(Environment):
    """An `Environment` whose calls are known while they are under way."""

    @classmethod
    def around(cls, given: object) -> WatchedEnvironment:
        """The same environment, watched."""
        if isinstance(given, Environment):
            return cls(given._ref, lane=given._lane_name, auth=given._auth, timeout=given._timeout, hub=given._hub)
        return cls(given)

    @staticmethod
    def reached_by(environment: Environment) -> object:
        """What an environment reaches."""
        return environment._ref

    async def _call(
        self,
        verb: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        on_event: OnEvent | None = None,
    ) -> Mapping[str, Any]:
        calls = _calls.get()
        if calls is None or self._seat is None:
            return await super()._call(verb, arguments, timeout=timeout, on_event=on_event)
        flight = Flight(self._seat, _flight.get())
        token = _flight.set(flight)
        calls.flights.add(flight)
        try:
            return await super()._call(verb, arguments, timeout=timeout, on_event=on_event)
        finally:
            calls.flights.discard(flight)
            _flight.reset(token)

    def _like(self, ref: object, seat: str | None) -> Environment:
        return WatchedEnvironment(
            ref, lane=self._lane_name, auth=self._auth, timeout=self._timeout, hub=self._hub, seat=seat
        )


def reference(env: object) -> object:
    """What the environment of a seat reaches."""
    return WatchedEnvironment.reached_by(env) if isinstance(env, Environment) else env
