"""The environment that is being checked, and the ways to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from agent_env.client.environment import Environment
from agent_env.client.lanes.contract import Lane, Outgoing
from agent_env.client.resolution import LaneName, reach
from agent_env.context import CallContext
from agent_env.errors import AgentEnvError, Forbidden, UnknownSession
from agent_env.hub import shared_hub
from agent_env.launch import find_or_launch
from agent_env.net.credentials import bearer_headers
from agent_env.net.http import get_json
from agent_env.net.keyring import Keyring
from agent_env.runtime.environment import Runtime
from agent_env.serving.environment import AgentEnvironment
from agent_env_cards import CARD_PATH, EnvironmentCard, base_url


class Skip(Exception):
    """Nothing can be said here; the message says why."""


class Broken(Exception):
    """The clause does not hold; the message says what was seen."""


def expect(holds: object, seen: str) -> None:
    """Raises `Broken` with what was seen, unless the condition holds."""
    if not holds:
        raise Broken(seen)


@dataclass(frozen=True, slots=True)
class Subject:
    """An environment as it is found: its card as it was served, and where it is.

    `base` is None where there is no address, as for an environment in this process alone. `message` is what is said
    to the agent, `seconds` the time that one call may take.
    """

    ref: object
    card: EnvironmentCard
    served_card: Mapping[str, Any]
    base: str | None
    token: str | None
    message: str
    seconds: float

    @property
    def lanes(self) -> list[LaneName]:
        """The lanes that the environment offers, and those to this process."""
        offered = {interface.transport for interface in [*self.card.interfaces, *self.card.additional_interfaces]}
        here = [] if isinstance(self.ref, str | EnvironmentCard) else ["inprocess"]
        named = [*here, *(name for name in get_args(LaneName) if name in offered)]
        return cast("list[LaneName]", named)

    @asynccontextmanager
    async def way(self, lane: LaneName) -> AsyncGenerator[Way]:
        """Opens a lane; the sessions that were opened on it are released at the end."""
        ref = self.ref if lane == "inprocess" or self.base is None else self.base
        reached = await reach(ref, lane=lane, token=self.token, hub=None, seconds=self.seconds)
        way = Way(self, reached.lane)
        try:
            yield way
        finally:
            await way.release_all()
            await reached.aclose()


@dataclass(slots=True)
class Way:
    """One lane to the subject, on which verbs are called as they are, with nothing added or taken away."""

    subject: Subject
    lane: Lane
    opened: set[str] = field(default_factory=set[str])

    @property
    def name(self) -> str:
        """The name of the lane."""
        return self.lane.name

    async def call(self, verb: str, *, context: CallContext | None = None, **arguments: Any) -> Mapping[str, Any]:
        """Calls a verb and returns its answer as JSON."""
        outgoing = Outgoing((context or CallContext()).within(self.subject.seconds))
        try:
            answer = await self.lane.perform(verb, arguments, outgoing)
        except Forbidden as error:
            if "scope" in error.data:
                raise Skip(f"the token has no scope {error.data['scope']!r}") from error
            raise
        session_id = answer.get("session_id")
        if session_id and verb != "release":
            self.opened.add(session_id)
        return answer

    async def say(self, session_id: str | None = None, message: str | None = None) -> Mapping[str, Any]:
        """Says something to the agent."""
        arguments = {"message": self.subject.message if message is None else message}
        more: dict[str, Any] = {} if session_id is None else {"session_id": session_id}
        return await self.call("call_tool", name="chat", arguments=arguments, **more)

    async def state(self, session_id: str) -> Mapping[str, Any]:
        """Where a session stands."""
        return await self.call("state", session_id=session_id)

    async def refused(
        self, *codes: str, verb: str, context: CallContext | None = None, **arguments: Any
    ) -> AgentEnvError:
        """Calls a verb that must be refused with one of the codes, and returns the error."""
        try:
            answer = await self.call(verb, context=context, **arguments)
        except AgentEnvError as error:
            expect(error.code in codes, f"{verb} was refused with {error.code!r}, not {codes[0]!r}: {error.message}")
            return error
        raise Broken(f"{verb} was not refused with {codes[0]!r}; it answered {dict(answer)!r:.200}")

    def turns(self, number: int) -> None:
        """Raises `Skip` where a session may not have so many turns."""
        limit = self.subject.card.episode.turn_limit
        if limit is not None and limit < number:
            raise Skip(f"its sessions end after {limit} turns")

    async def release_all(self) -> None:
        """Releases the sessions that were opened on this way; one that is gone already is as well."""
        for session_id in self.opened:
            try:
                await self.call("release", session_id=session_id)
            except UnknownSession:
                pass
            except (AgentEnvError, Skip):
                break  # whoever does not release is told so by the check of EC-67
        self.opened.clear()


@asynccontextmanager
async def found(
    env: object, *, auth: str | None, hub: str | Path | None, message: str | None, seconds: float
) -> AsyncGenerator[Subject]:
    """Finds what is to be checked; an agent or `AgentEnvironment` is served on loopback meanwhile."""
    held: str | Keyring | None = auth
    if isinstance(env, Environment):
        # What it was made with; its own conversation is left alone.
        ref, held, home = env._ref, env._auth, env._hub  # pyright: ignore[reportPrivateUsage]
        env, hub = ref, hub or home
        auth = auth or (held if isinstance(held, str) else None)
    name: str | None = None
    if isinstance(env, str) and not env.startswith(("http://", "https://")):
        instance = await find_or_launch(env, shared_hub(hub))
        env, name = instance.url, instance.name
    if isinstance(env, str):
        base = base_url(env) if env.endswith(".json") else env.rstrip("/")
        auth = auth or (held.token(base, name) if isinstance(held, Keyring) else None)
        served = await get_json(base + CARD_PATH, headers=bearer_headers(auth), timeout=seconds)
        yield _subject(base, EnvironmentCard.parse(served), served, base, auth, message, seconds)
    elif isinstance(env, EnvironmentCard):
        yield _subject(env, env, env.to_dict(), None, auth, message, seconds)
    elif isinstance(env, Runtime):
        reached = await reach(env, lane="inprocess", token=auth, hub=None, seconds=seconds)
        yield _subject(env, reached.card, reached.card.to_dict(), None, auth, message, seconds)
    else:
        own = env if isinstance(env, AgentEnvironment) else AgentEnvironment(env, hub=False)
        async with own.serving(register=False) as server:
            headers = bearer_headers(auth)
            served = await get_json(server.url + CARD_PATH, headers=headers, timeout=seconds)
            yield _subject(own, EnvironmentCard.parse(served), served, server.url, auth, message, seconds)


def _subject(
    ref: object,
    card: EnvironmentCard,
    served: Mapping[str, Any],
    base: str | None,
    token: str | None,
    message: str | None,
    seconds: float,
) -> Subject:
    examples = [example.request for example in card.offers.examples]
    return Subject(ref, card, served, base, token, message or (examples or ["Hello!"])[0], seconds)
