"""Policies as the gateway serves them: on which endpoints, in which version, paused or not, with how many calls."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

from agent_env.errors import AtCapacity, DeadlineExceeded, InvalidArguments, Refusal, UnknownTool
from agent_env.gateway.dialects import DIALECTS
from agent_env.gateway.upstream import Endpoint
from agent_env.net.http import shown

Json: TypeAlias = Any

REST_SECONDS = 5.0
"""How long an endpoint that refuses connections is not asked."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a policy is at one moment: the model's name at its endpoints (`…/v1`), their key, and the version.

    A call goes by the one that it began with to its end. `version` is told in records where the endpoints tell none.
    Raises `ValueError` for an endpoint that is no URL.
    """

    model: str
    endpoints: tuple[str, ...]
    api_key: str | None = None
    version: Json = None
    places: Mapping[str, tuple[Endpoint, ...]] = field(init=False, repr=False, compare=False)
    """By dialect, in the order of `endpoints`."""

    def __post_init__(self) -> None:
        places = {
            dialect.name: tuple(
                Endpoint.of(f"{endpoint.rstrip('/')}/{dialect.path}", dialect.key_headers(self.api_key))
                for endpoint in self.endpoints
            )
            for dialect in DIALECTS.values()
        }
        object.__setattr__(self, "places", places)

    def same(self, other: Served) -> bool:
        """Tells whether both are the same model at the same endpoints, in whatever version."""
        mine, theirs = ((one.model, one.endpoints, one.api_key) for one in (self, other))
        return mine == theirs


class _Pause(NamedTuple):
    until: float
    retry_after: float
    hold: float


class OpenPolicy:
    """A policy that seats are played by.

    While it is paused it takes no call. What its calls go by (`served`) is replaced as a whole, and only when no call
    is under way that another version would answer, so no call mixes two.
    """

    def __init__(self, name: str, declared: Served, rest_seconds: float = REST_SECONDS) -> None:
        self.name = name
        self.declared = declared
        self.served = declared
        self.in_flight = 0
        self.held = 0
        self._pauses: dict[str, _Pause] = {}
        self._idle = asyncio.Event()
        self._stirred = asyncio.Event()
        self._rest_seconds = rest_seconds
        self._resting: dict[tuple[str, int, bool], float] = {}

    @property
    def paused(self) -> bool:
        """Whether it takes no call now."""
        return bool(self._pauses) and bool(self._paused())

    async def hold(self, wanted: Callable[[], bool]) -> None:
        """Waits until it takes calls, or the call that waits is not `wanted` any more.

        A call is held as long as the pauses hold calls; then it is refused: `AtCapacity`.
        """
        self.held += 1
        try:
            await self._hold(wanted)
        finally:
            self.held -= 1

    async def _hold(self, wanted: Callable[[], bool]) -> None:
        came = time.monotonic()
        while self._pauses and wanted() and (pauses := self._paused()):
            now = time.monotonic()
            left = came + max(pause.hold for pause in pauses) - now
            if left <= 0:
                wait = max(pause.retry_after for pause in pauses)
                raise AtCapacity(
                    f"the policy {self.name!r} is paused, as it is when new weights are put in place; ask again in "
                    f"{wait:g} s",
                    retry_after=wait,
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, max(pause.until for pause in pauses) - now)):
                    await self._stirred.wait()

    def stir(self) -> None:
        """Has the calls that are held look whether they still have to be, and are still wanted."""
        # Whoever waits is woken by the first; whoever comes later waits for the next time.
        self._stirred.set()
        self._stirred.clear()

    def pause(self, *, retry_after: float, seconds: float, hold: float = 0.0, pause: str | None = None) -> str:
        """Takes no call until `resume` gets what this returns, and no longer than `seconds`.

        Calls that come wait for `hold` seconds; then they are refused and told to come back after `retry_after`
        seconds. Pauses of other names are not affected.
        """
        pause = pause or secrets.token_hex(8)
        self._pauses[pause] = _Pause(time.monotonic() + seconds, retry_after, hold)
        return pause

    def resume(self, pause: str | None = None) -> None:
        """Ends one pause, or all; one that has ended by itself is none any more."""
        if pause is None:
            self._pauses.clear()
        else:
            self._pauses.pop(pause, None)
        self.stir()

    async def drain(self, seconds: float) -> None:
        """Waits until no call is under way; raises `DeadlineExceeded` when some still are after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while self.in_flight:
                    await self._idle.wait()
        except TimeoutError:
            raise DeadlineExceeded(
                f"{self.in_flight} calls of the policy {self.name!r} are still under way after {seconds:g} s; pause it "
                "first, or allow more time",
                in_flight=self.in_flight,
            ) from None

    def change(self, served: Served) -> None:
        """Goes by `served` from now on; raises `Refusal` for another model or version while calls are under way."""
        replaces = (served.model, served.version) != (self.served.model, self.served.version)
        if replaces and self.in_flight:
            raise Refusal(
                f"{self.in_flight} calls of the policy {self.name!r} are under way, which would mix two versions; "
                "pause and drain it first",
                in_flight=self.in_flight,
            )
        self.served = served

    def declare(self, served: Served) -> None:
        """Is what its run means by the name from now on. Its pauses stay, and calls under way go on as they began."""
        self.declared = self.served = served

    def means(self, served: Served) -> bool:
        """Tells whether a run that declares this means the policy as it was declared before, or as it is now."""
        return served.same(self.declared) or served.same(self.served)

    def state(self) -> dict[str, Any]:
        """What it is now, in JSON form."""
        pauses = self._paused()
        now = time.monotonic()
        resting = [
            endpoint
            for endpoint, place in zip(self.served.endpoints, self.served.places["chat"], strict=True)
            if self._resting.get(place.origin, now) > now
        ]
        return {
            "policy": self.name,
            "model": self.served.model,
            "endpoints": list(self.served.endpoints),
            "version": self.served.version,
            "paused": bool(pauses),
            "retry_after": max((pause.retry_after for pause in pauses), default=None),
            "in_flight": self.in_flight,
            "held": self.held,
            "resting": resting,
        }

    def route(self, served: Served, dialect: str, conversation: str) -> list[Endpoint]:
        """Where a call of a conversation goes, the best place first.

        All calls of a conversation go to one endpoint, so that it finds their common beginning in its cache. One that
        refused a connection comes last while it rests; after that a single call tries it again, and the others follow
        when it was reached.
        """
        places = served.places[dialect]
        if len(places) == 1:
            return [*places]
        ranked = [places[index] for index in ranked_for(conversation, served.endpoints)]
        if not self._resting:
            return ranked
        now = time.monotonic()
        awake = [place for place in ranked if self._resting.get(place.origin, 0.0) <= now]
        if not awake:
            return ranked
        if awake[0].origin in self._resting:
            self._resting[awake[0].origin] = now + self._rest_seconds
        return awake + [place for place in ranked if place not in awake]

    def rest(self, endpoint: Endpoint) -> None:
        """Notes that an endpoint takes no connections."""
        self._resting[endpoint.origin] = time.monotonic() + self._rest_seconds

    def wake(self, endpoint: Endpoint) -> None:
        """Notes that an endpoint takes connections."""
        if self._resting:
            self._resting.pop(endpoint.origin, None)

    def enter(self) -> None:
        """Counts a call that begins."""
        self.in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """Counts a call that has ended."""
        self.in_flight -= 1
        if not self.in_flight:
            self._idle.set()

    def _paused(self) -> list[_Pause]:
        now = time.monotonic()
        self._pauses = {name: pause for name, pause in self._pauses.items() if pause.until > now}
        return list(self._pauses.values())


class Admission:
    """A call's way through its policy: what it goes by, while its block runs."""

    __slots__ = ("policy", "served")

    def __init__(self, policy: OpenPolicy) -> None:
        self.policy = policy
        self.served = policy.served

    def __enter__(self) -> Self:
        self.policy.enter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.policy.leave()

    def route(self, dialect: str, conversation: str) -> list[Endpoint]:
        """Where the call goes in a dialect, the best place first."""
        return self.policy.route(self.served, dialect, conversation)


class Policies:
    """The policies that runs share by name; each is there as long as a run that holds it."""

    def __init__(self, rest_seconds: float = REST_SECONDS) -> None:
        self.rest_seconds = rest_seconds
        self._shared: dict[str, OpenPolicy] = {}
        self._holders: dict[str, set[str]] = {}

    def named(self, name: str) -> OpenPolicy:
        """The policy of a name; raises `UnknownTool`."""
        policy = self._shared.get(name)
        if policy is None:
            raise UnknownTool(
                f"no open run names the policy {name!r}; those that runs name are "
                f"{', '.join(map(repr, self._shared)) or 'none'}"
            )
        return policy

    def find(self, name: str, declared: Served, run: str) -> OpenPolicy | None:
        """The policy that runs have by this name; raises `InvalidArguments` when others than `run` mean something else
        by it."""
        known = self._shared.get(name)
        if known is not None and not known.means(declared) and (others := sorted(self._holders[name] - {run})):
            raise InvalidArguments(
                f"the policy {name!r} is {known.served.model!r} at {[*map(shown, known.served.endpoints)]} for the run "
                f"{others[0]!r}; give this one another name, or change it with PUT /policies/{name}"
            )
        return known

    def hold(self, run: str, policies: Iterable[OpenPolicy]) -> None:
        """Notes which of the shared policies a run plays with from now on; what no run plays with is dropped."""
        for holders in self._holders.values():
            holders.discard(run)
        for policy in policies:
            self._shared[policy.name] = policy
            self._holders.setdefault(policy.name, set()).add(run)
        for name in [name for name, holders in self._holders.items() if not holders]:
            del self._shared[name], self._holders[name]


def ranked_for(conversation: str, endpoints: Sequence[str]) -> list[int]:
    """The endpoints, by their index, in the order in which a conversation prefers them.

    It is that of a hash of both names (rendezvous hashing: Thaler and Ravishankar 1998), so an endpoint that is added
    takes its share of the conversations and moves no other.
    """
    key = blake2b(conversation.encode()).digest()
    hashes = [blake2b(endpoint.encode(), key=key, digest_size=8).digest() for endpoint in endpoints]
    return sorted(range(len(endpoints)), key=hashes.__getitem__)
