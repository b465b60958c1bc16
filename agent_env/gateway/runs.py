"""A run as the gateway sees it: whose tokens it accepts, and which policy plays which seat."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from agent_env.errors import AgentEnvError, InvalidArguments, RunClosed, Stopping, UnknownTool
from agent_env.gateway.dialects import DIALECTS
from agent_env.gateway.journal import Journal
from agent_env.gateway.policies import Admission, OpenPolicy, Policies, Served
from agent_env.gateway.retries import RecentCalls
from agent_env.gateway.tokens import checked_name, opens

log = logging.getLogger("agent_env.gateway")

ENDING_SECONDS = 15.0
"""How long calls that are told to end may take for it: their prompt's tokens may have to be asked for."""

DEFAULT_DIALECTS = ("chat", "completions")
"""What servers of open models speak, with their tokens."""


@dataclass(frozen=True, slots=True)
class SeatPolicy:
    """The policy that plays a seat: its model's name and the endpoints (`…/v1`) that serve it.

    `api_key` goes to these endpoints alone. `settings` go into every request in place of the agent's own, such as
    `{"temperature": 0}`. `tokens=False` asks for no token ids and logprobs, and for the usage of a stream only where
    the agent does, for servers that refuse fields they do not know. `dialects` are those that the endpoints are asked
    in: `chat`, `completions`, `responses`, `messages`. An agent that speaks responses or messages to a policy without
    them is answered through chat completions, which is also the one in which servers tell tokens best.

    `policy` is the name by which the policy is paused and published (`PolicyHandle`), and which records tell. Runs that
    give the same name share the policy, as it is by then; without a name it is the run's own, named after its model.
    `version` is told in records where the endpoints tell none.
    """

    model: str
    endpoints: tuple[str, ...]
    api_key: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tokens: bool = True
    dialects: tuple[str, ...] = DEFAULT_DIALECTS
    policy: str | None = None
    version: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.endpoints, str):
            raise InvalidArguments(
                f"the endpoints of a policy are several, not {self.endpoints!r}; write ({self.endpoints!r},)"
            )

    def to_json(self) -> dict[str, Any]:
        """The policy as `POST /runs` takes it."""
        return {
            "model": self.model,
            "endpoints": list(self.endpoints),
            "api_key": self.api_key,
            "settings": dict(self.settings),
            "tokens": self.tokens,
            "dialects": list(self.dialects),
            "policy": self.policy,
            "version": self.version,
        }

    @classmethod
    def from_json(cls, seat: str, value: Any) -> SeatPolicy:
        """Reads what `to_json` wrote; raises `InvalidArguments`."""
        if not isinstance(value, Mapping):
            raise InvalidArguments(f'the seat {seat!r} must be {{"model": …, "endpoints": [url, …]}}, not {value!r}')
        model = checked_model(f"the seat {seat!r}", value.get("model"))
        endpoints = checked_endpoints(f"the seat {seat!r}", value.get("endpoints"))
        api_key, policy = checked_key(f"the seat {seat!r}", value.get("api_key")), value.get("policy")
        settings = value.get("settings") or {}
        if not isinstance(settings, Mapping):
            raise InvalidArguments(f"the settings of the seat {seat!r} must be an object, not {settings!r}")
        dialects = value.get("dialects", list(DEFAULT_DIALECTS))
        if not isinstance(dialects, list) or not dialects or not all(name in tuple(DIALECTS) for name in dialects):
            known = ", ".join(DIALECTS)
            raise InvalidArguments(
                f"the dialects of the seat {seat!r} must be a list of some of {known}, not {dialects!r}"
            )
        if policy is not None and (not isinstance(policy, str) or not policy):
            raise InvalidArguments(f"the policy of the seat {seat!r} must be a name, not {policy!r}")
        tokens = value.get("tokens") is not False
        return cls(model, endpoints, api_key, dict(settings), tokens, tuple(dialects), policy, value.get("version"))


def checked_model(who: str, model: Any) -> str:
    """The name of a model; raises `InvalidArguments`."""
    if not isinstance(model, str) or not model:
        raise InvalidArguments(f"{who} needs the name of a model, not {model!r}")
    return model


def checked_endpoints(who: str, endpoints: Any) -> tuple[str, ...]:
    """The endpoints of a policy; raises `InvalidArguments`."""
    if not isinstance(endpoints, list) or not endpoints or not all(map(_is_url, endpoints)):
        raise InvalidArguments(f"{who} needs a list of http URLs as endpoints, not {endpoints!r}")
    return tuple(dict.fromkeys(endpoints))


def checked_key(who: str, api_key: Any) -> str | None:
    """The key of a policy's endpoints, None for none; raises `InvalidArguments`, which does not tell it."""
    if api_key is None:
        return None
    if not _is_header(api_key):
        raise InvalidArguments(f"the api_key of {who} must be a string that a header can hold")
    return str(api_key)


def _is_url(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value)
        # The port is read out, and found too great, only when it is asked for.
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _is_header(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isprintable()


def _served(seat: str, policy: SeatPolicy) -> Served:
    try:
        return Served(policy.model, policy.endpoints, policy.api_key, policy.version)
    except ValueError as error:
        raise InvalidArguments(
            f"the seat {seat!r} needs a list of http URLs as endpoints, not {policy.endpoints!r}: {error}"
        ) from None


class Seating:
    """Who plays which seat, ready to be called; a seat without a policy only tells what it did.

    Policies of `before`, the run's seating until now, go on as they are, with their pauses and the calls under way; one
    that the run means something else by is changed when the seating is taken into use. Raises `InvalidArguments` for a
    seat that cannot be; nothing is changed until then.
    """

    def __init__(
        self, run: str, seats: Mapping[str, SeatPolicy | None], shared: Policies, before: Seating | None = None
    ) -> None:
        self.names = frozenset(checked_name("seat", seat) for seat in seats)
        self.policies = {seat: policy for seat, policy in seats.items() if policy is not None}
        self.played: dict[str, OpenPolicy] = {}
        self._changed: dict[OpenPolicy, Served] = {}
        self._shared = shared
        wanted = {seat: _served(seat, policy) for seat, policy in self.policies.items()}
        for seat, policy in self.policies.items():
            if policy.policy is not None:
                self.played[seat] = self._named_by_runs(run, seat, policy.policy, wanted[seat])
        earlier = {} if before is None else dict.fromkeys(before.own())
        mine = {seat: wanted[seat] for seat, policy in self.policies.items() if policy.policy is None}
        # First those that are meant as they are: what is left of a name is what was changed.
        for seat, served in mine.items():
            if known := next((own for own in earlier if own.means(served)), None):
                self.played[seat] = known
        for known in self.played.values():
            earlier.pop(known, None)
        for seat, served in mine.items():
            if seat not in self.played:
                self.played[seat] = self._own_anew(earlier, served)

    def take(self) -> None:
        """Takes the seating into use."""
        for policy, served in self._changed.items():
            policy.declare(served)
        self._changed.clear()

    def stir(self) -> None:
        """Has the calls that are held look whether they still have to be."""
        for policy in self.played.values():
            policy.stir()

    def _named_by_runs(self, run: str, seat: str, name: str, served: Served) -> OpenPolicy:
        twice = next((open_ for open_ in self.played.values() if open_.name == name), None)
        if twice is None:
            twice = self._shared.find(name, served, run) or OpenPolicy(name, served, self._shared.rest_seconds)
            if not twice.means(served):
                self._changed[twice] = served
        elif not self._means(twice, served):
            raise InvalidArguments(
                f"the seat {seat!r} means another model or other endpoints by the policy {name!r} than a seat before "
                "it; give it another name"
            )
        return twice

    def _own_anew(self, earlier: dict[OpenPolicy, None], served: Served) -> OpenPolicy:
        """The run's own policy of a declaration that none before had: of its name, if there is one, and changed."""
        known = next((own for own in self.own() if self._means(own, served)), None)
        if known is not None:
            return known
        known = next((own for own in earlier if own.name == served.model), None)
        if known is None:
            return OpenPolicy(served.model, served, self._shared.rest_seconds)
        del earlier[known]
        self._changed[known] = served
        return known

    def _means(self, policy: OpenPolicy, served: Served) -> bool:
        changed = self._changed.get(policy)
        return policy.means(served) if changed is None else changed.same(served)

    def own(self) -> list[OpenPolicy]:
        """The policies that are this run's alone."""
        return [open_ for seat, open_ in self.played.items() if self.policies[seat].policy is None]

    def shared(self) -> list[OpenPolicy]:
        """The policies that other runs may play with too."""
        return [open_ for seat, open_ in self.played.items() if self.policies[seat].policy is not None]

    def named(self, name: str) -> OpenPolicy:
        """The policy of a name; raises `UnknownTool`, or `InvalidArguments` when several have the name."""
        found = {id(policy): policy for policy in self.played.values() if policy.name == name}
        if not found:
            known = ", ".join(sorted({repr(policy.name) for policy in self.played.values()})) or "none"
            raise UnknownTool(f"no seat of the run is played by the policy {name!r}; the policies are {known}")
        if len(found) > 1:
            raise InvalidArguments(
                f"{len(found)} policies of the run are named {name!r}; name them apart by SeatPolicy(policy=…)"
            )
        return next(iter(found.values()))


class UnderWay(Protocol):
    """A call that a run has to end before it is closed."""

    def end(self, error: AgentEnvError) -> None:
        """Has the call end with this error, unless its answer is whole already."""
        ...


class OpenRun:
    """One run: its secret, its journal, its calls under way, and its seating, which is replaced as a whole or not at
    all."""

    def __init__(self, name: str, secret: str, seating: Seating, journal: Journal) -> None:
        self.name = name
        self.secret = secret
        self.seating = seating
        self.journal = journal
        self.recent = RecentCalls()
        self.closed = self.dropped = self.stopped = False
        self.closing: asyncio.Future[None] | None = None
        self.gone = asyncio.Event()
        self._until = math.inf
        self._patience: asyncio.Timeout | None = None
        self._calls: set[UnderWay] = set()
        self._idle = asyncio.Event()
        log.info("the run %r is open; seats: %d", name, len(seating.names))

    @property
    def seats(self) -> Mapping[str, SeatPolicy]:
        """The policies by seat."""
        return self.seating.policies

    def reseat(self, seating: Seating) -> None:
        """Goes by another seating from now on; calls that are held for a policy that left their seat are woken."""
        before, self.seating = self.seating, seating
        seating.take()
        before.stir()

    def holds(self, seat: str) -> bool:
        """Whether a call of the seat would have to wait for its policy."""
        policy = self.seating.played.get(seat)
        return not self.closed and policy is not None and policy.paused

    async def hold(self, seat: str) -> None:
        """Waits while the seat's policy is paused, the run is open and the policy plays the seat; raises what
        `OpenPolicy.hold` raises."""
        if (policy := self.seating.played.get(seat)) is not None:
            await policy.hold(lambda: not self.closed and self.seating.played.get(seat) is policy)

    def enter(self, seat: str) -> Admission:
        """Lets a call of a seat in; enter what it returns at once. Raises `RunClosed` or `Stopping`, and `UnknownTool`
        where the seat has gone."""
        if self.stopped:
            raise stopping()
        if self.closed:
            raise RunClosed(f"the run {self.name!r} was closed, so it takes no call; open it again for more")
        policy = self.seating.played.get(seat)
        if policy is None:
            raise UnknownTool(f"the seat {seat!r} has left the run {self.name!r}; open the run again with it")
        return Admission(policy)

    @contextmanager
    def under_way(self, call: UnderWay) -> Generator[None]:
        """While the block runs the run is not closed, unless `end` does not end the call."""
        self._calls.add(call)
        try:
            yield
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()

    async def close(self, seconds: float) -> None:
        """Takes no call any more, and closes the journal when none is under way; removes it where the run is dropped.

        Calls that are held are refused. Those that are under way have `seconds` to end; then each is ended, with its
        record, and its caller told `RunClosed`, or `Stopping` where it is the gateway that closes.
        """
        self.closed = True
        self.seating.stir()
        self.hasten(seconds)
        self._patience = asyncio.timeout_at(self._until)
        try:
            if not await self._ended_within(self._patience):
                for call in tuple(self._calls):
                    closed = RunClosed(f"the run {self.name!r} was closed before this call had its answer")
                    call.end(stopping() if self.stopped else closed)
                if not await self._ended_within(asyncio.timeout(ENDING_SECONDS)):
                    # Of a caller that does not read, the answer is on its way, and its record on disk.
                    log.warning(
                        "%d calls of the run %r have not ended %g s after they were told to; it is closed all the same",
                        *(len(self._calls), self.name, ENDING_SECONDS),
                    )
        finally:
            self.journal.close(remove=self.dropped)
            log.info("the run %r is closed; its journal %s", self.name, "was dropped" if self.dropped else "stays")

    def hasten(self, seconds: float) -> None:
        """Has calls under way no more than so many seconds from now to end, once the run is being closed."""
        self._until = min(self._until, asyncio.get_running_loop().time() + seconds)
        if self._patience is not None:
            with suppress(RuntimeError):  # they have been told to end already
                self._patience.reschedule(self._until)

    async def _ended_within(self, patience: asyncio.Timeout) -> bool:
        with suppress(TimeoutError):
            async with patience:
                while self._calls:
                    self._idle.clear()
                    await self._idle.wait()
        return not self._calls

    def admits(self, episode: str, seat: str | None, token: str) -> bool:
        """Tells whether the token opens this seat in this episode; without a seat, whether it opens any."""
        if seat is not None:
            return seat in self.seats and opens(self.secret, episode, seat, token)
        return any(opens(self.secret, episode, name, token) for name in self.seating.names)


def stopping() -> Stopping:
    """What is told by a gateway that is being stopped."""
    return Stopping("the gateway is closing; ask again, and one that comes after it may answer")
