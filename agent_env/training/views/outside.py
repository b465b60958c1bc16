"""The agents that stand in for seats which are played from outside."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from agent_env.errors import AgentEnvError
from agent_env.net import Limits
from agent_env.runtime.environment import Runtime
from agent_env.serving.environment import AgentEnvironment
from agent_env.training.scenario import Seat
from agent_env.training.views.calls import WatchedEnvironment, current_calls, reference, take_flight
from agent_env_cards import slug
from agent_env_wrappers.contract import AgentError

Peers: TypeAlias = Mapping[str, Callable[[str], Awaitable[str]]]

MARK = "@"
"""What an action begins with that calls another seat: "@worker What is 2 + 3?"."""

_PATIENCE = 30 * 24 * 3600.0
"""Seconds that a turn and a session wait for whoever acts: training may go on for hours between two actions."""

_PATIENT = Limits(turn_seconds=_PATIENCE, idle_seconds=_PATIENCE)


@dataclass(frozen=True, slots=True)
class _StandIn:
    """Reaches the agent of a seat when it is called; by then there is one, whatever calls what in a circle."""

    made: Mapping[str, AgentEnvironment]
    seat: str

    async def runtime(self) -> Runtime:
        return await self.made[self.seat].runtime()


@dataclass(frozen=True, slots=True)
class Cast:
    """The seats as a view plays them, and who stands in for whom when agents call each other by themselves."""

    seats: Mapping[str, Seat]
    standing: Sequence[tuple[object, object]]


@asynccontextmanager
async def played_from_outside(
    given: Mapping[str, Seat],
    frozen: Mapping[str, Seat],
    outside: Collection[str],
    may_call: Mapping[str, Sequence[str]],
) -> AsyncGenerator[Cast, None]:
    """Puts agents in the seats `outside` that hand over what they are told and wait for the action, and watches the
    calls of all.

    `given` are the scenario's seats, `frozen` those of them that play as they are, with agents that are wrapped;
    `may_call` names the seats that another one may call in the course of its own turn.
    """
    made: dict[str, AgentEnvironment] = {}
    refs = {name: reference(seat.env) for name, seat in given.items() if seat.env is not None}
    # Whoever acts may take hours, so nothing that waits for them has a bound of its own.
    reached = {name: WatchedEnvironment(_StandIn(made, name), timeout=None) for name in outside}
    for name, seat in frozen.items():
        if seat.env is not None:
            reached[name] = WatchedEnvironment.around(seat.env)
    for name in outside:
        made[name] = AgentEnvironment(
            _waiting(name),
            name=slug(f"seat-{name}") or "seat",
            limits=_PATIENT,
            hub=False,
            peers={called: reached[called] for called in may_call.get(name, ())},
        )
    # An environment in several seats says by itself nothing of the seat that is meant.
    standing = [
        (ref, _StandIn(made, name))
        for name, ref in refs.items()
        if name in outside and [_same(ref, other) for other in refs.values()].count(True) == 1
    ]
    try:
        yield Cast({name: replace(seat, env=reached.get(name)) for name, seat in given.items()}, standing)
    finally:
        for agent in made.values():
            await agent.aclose()


def _same(ref: object, other: object) -> bool:
    return ref is other or (isinstance(ref, str) and ref == other)


def _waiting(seat: str) -> Callable[..., Awaitable[str]]:
    async def outside(message: str, peers: Peers) -> str:
        calls = current_calls()
        flight, sender = take_flight(seat)
        while True:
            action = await calls.ask(seat, message, sender, flight)
            called, words = _called(action, peers)
            if called is None:
                return action
            try:
                message = await peers[called](words)
            except (AgentError, AgentEnvError) as error:
                # It is for whoever acts to make something of it, as it is for an agent that calls another.
                message = f"{called} failed: {getattr(error, 'code', 'agent_failed')}"
            sender = called

    return outside


def _called(action: str, peers: Peers) -> tuple[str | None, str]:
    """The seat that an action calls, None for one that is a reply, and what it says to it."""
    if action.startswith(MARK):
        name, _, words = action.removeprefix(MARK).partition(" ")
        if name in peers:
            return name, words.strip()
    return None, action
