"""From a reference to a lane: finds where an environment is, reads its card, and picks the way there."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self, TypeAlias, get_args, runtime_checkable
from urllib.parse import urlsplit

import anyio

from agent_env.client.card_cache import ReadCard, forget_card, read_card
from agent_env.client.lanes.contract import Lane
from agent_env.client.lanes.inprocess import InProcessLane
from agent_env.client.standins import stand_in
from agent_env.errors import (
    AgentEnvError,
    ConfigurationError,
    Forbidden,
    InvalidArguments,
    InvalidCard,
    NotSupported,
    ProtocolError,
    TransportError,
    UnknownTool,
)
from agent_env.hub import Hub, Instance, shared_hub
from agent_env.hub.snapshot import snapshot
from agent_env.net.http import shown
from agent_env.net.keyring import Keyring
from agent_env.net.origins import same_origin
from agent_env.runtime.card import own_card
from agent_env.runtime.environment import Runtime
from agent_env.runtime.local import served_here, wrap_here
from agent_env_cards import CARD_PATH, CardError, EnvironmentCard, parse_ref
from agent_env_cards.interfaces import base_url, resolve_url

log = logging.getLogger("agent_env.client")

LaneName: TypeAlias = Literal["inprocess", "websocket", "mcp", "a2a", "http"]

Auth: TypeAlias = str | Keyring | None
"""What a caller can present: a token for whoever is found, or one for each of several."""

LANES: tuple[LaneName, ...] = get_args(LaneName)

FASTEST_FIRST: tuple[LaneName, ...] = ("websocket", "http", "mcp", "a2a")
"""Lanes over a network, by the CPU that a call costs."""

_DOUBT_SECONDS = 2.0
"""How long telling a hub of a lost instance may take: whoever lost it wants to know."""


@runtime_checkable
class Served(Protocol):
    """Something in this process that can run as an environment, such as an `AgentEnvironment`."""

    async def runtime(self) -> Runtime:
        """Its runtime, started if need be."""
        ...


@dataclass(frozen=True, slots=True)
class Seated:
    """What the owner of an environment seated as its peer: its address is the owner's word, not a caller's."""

    ref: object


class Shared:
    """Ends something when the last of those who use it lets go."""

    def __init__(self, end: Callable[[], Awaitable[None]]) -> None:
        self._end = end
        self._users = 1

    def joined(self) -> Self:
        """The same for one more user."""
        self._users += 1
        return self

    async def __call__(self) -> None:
        self._users -= 1
        if not self._users:
            await self._end()


@dataclass(frozen=True, slots=True)
class Reached:
    """An environment that was found: its card, the lane to it, and how to open the same lane again.

    `trusted` tells that the address came from the hub, from an owner, or from this process; `lost` tells whoever gave
    the address that what was there is not there any more.
    """

    card: EnvironmentCard
    lane: Lane
    trusted: bool
    open: Callable[[], Lane]
    close: Shared | None = None
    lost: Callable[[], Awaitable[None]] | None = None

    @property
    def identity(self) -> str:
        """`name@version` of the environment."""
        return self.card.ref

    async def again(self) -> Reached:
        """Another lane to the same instance."""
        return dataclasses.replace(self, lane=self.open(), close=None if self.close is None else self.close.joined())

    async def aclose(self) -> None:
        """Lets go of the lane, and ends what was started for it and for those that were opened again."""
        await self.lane.aclose()
        if self.close is not None:
            await self.close()


async def reach(
    ref: object, *, lane: LaneName | None, token: Auth, hub: str | Path | None, seconds: float | None
) -> Reached:
    """Finds an environment; see `Environment` for what `ref` may be, which may be `Seated` too.

    Raises `NameNotFound`, `VersionNotFound`, `LaunchFailed`, `InvalidCard`, `TransportError`, or `NotSupported` for a
    lane that the environment does not have.
    """
    if lane is not None and lane not in LANES:
        raise ConfigurationError(f"there is no lane {lane!r}; the lanes are {', '.join(LANES)}")
    if isinstance(ref, Seated):
        found = await reach(ref.ref, lane=lane, token=token, hub=hub, seconds=seconds)
        return dataclasses.replace(found, trusted=True)
    instead = stand_in(ref)
    if instead is not ref:
        ref, lane = instead, None
    if isinstance(ref, str):
        if ref.startswith(("http://", "https://")):
            return await _by_url(ref, lane, token, seconds)
        return await _by_reference(ref, lane, token, shared_hub(hub), seconds)
    if isinstance(ref, Instance):
        return await _by_instance(ref, lane, token, seconds, shared_hub(hub))
    if isinstance(ref, Runtime):
        return _in_process(ref, lane)
    if isinstance(ref, EnvironmentCard):
        return _by_card(ReadCard(ref, ref.digest()), None, lane, token, trusted=False)
    if isinstance(ref, Served):
        return _in_process(await ref.runtime(), lane)
    runtime = await wrap_here(ref)
    return dataclasses.replace(_in_process(runtime, lane), close=Shared(runtime.aclose))


def _token(auth: Auth, url: str, name: str | None = None) -> str | None:
    return auth.token(url, name) if isinstance(auth, Keyring) else auth


def _in_process(runtime: Runtime, lane: LaneName | None) -> Reached:
    if lane not in (None, "inprocess"):
        raise NotSupported(f"an environment in this process has no {lane!r} lane; serve it and pass its URL")
    return Reached(own_card(runtime), InProcessLane(runtime), True, lambda: InProcessLane(runtime))


async def _by_reference(text: str, lane: LaneName | None, auth: Auth, hub: Hub, seconds: float | None) -> Reached:
    try:
        reference = parse_ref(text)
    except CardError as error:
        raise InvalidArguments(error.message, problems=[problem.to_dict() for problem in error.problems]) from None
    known = snapshot(hub)
    failed: set[str] = set()
    while True:
        resolution = await known.resolve(reference)
        instance = hub.choose([one for one in resolution.instances if one.id not in failed], text)
        if instance is None:
            from agent_env.launch import LAUNCH_SECONDS, find_or_launch  # few clients ever start a process

            known.forget()
            instance = await find_or_launch(resolution, hub, seconds=min(LAUNCH_SECONDS, seconds or LAUNCH_SECONDS))
        try:
            return await _by_instance(instance, lane, auth, seconds, hub)
        except TransportError:
            # Its process may have died within its lease: go on to the next one.
            if instance.id in failed:
                raise
            failed.add(instance.id)


async def _by_instance(
    instance: Instance, lane: LaneName | None, auth: Auth, seconds: float | None, hub: Hub
) -> Reached:
    here = served_here(instance.url)
    if here is not None and lane in (None, "inprocess"):
        return _in_process(here, lane)
    address = instance.url + CARD_PATH
    token = _token(auth, instance.url, instance.name)

    async def lost() -> None:
        forget_card(address, token)
        snapshot(hub).forget()
        try:
            with anyio.move_on_after(_DOUBT_SECONDS):
                await hub.doubt(instance)
        except AgentEnvError as error:
            # A hub may listen to those alone who have a token; the lease will tell the others soon enough.
            log.info("%s was lost, and the hub %s was not told: %s", instance.url, hub.location, error)

    try:
        read = await read_card(address, token, seconds, digest=instance.digest)
        if read.digest != instance.digest:
            raise TransportError(
                f"{shown(instance.url)} serves {read.card.ref} ({read.digest}), but the hub has {instance.name}@"
                f"{instance.version} ({instance.digest}) there; its lease is stale"
            )
    except TransportError:
        await lost()
        raise
    return dataclasses.replace(_by_card(read, instance.url, lane, token, trusted=True), lost=lost)


async def _by_url(url: str, lane: LaneName | None, auth: Auth, seconds: float | None) -> Reached:
    address = url if urlsplit(url).path.endswith(".json") else url.rstrip("/") + CARD_PATH
    base = base_url(address)
    here = served_here(base)
    if here is not None and lane in (None, "inprocess"):
        return _in_process(here, lane)
    token = _token(auth, url)
    try:
        read = await read_card(address, token, seconds)
    except (ProtocolError, UnknownTool, InvalidCard) as missing:
        foreign = await _foreign(url, lane, token)
        if foreign is None:
            raise ProtocolError(
                f"{shown(url)} serves no Environment Card at {CARD_PATH} ({missing.message}); for a foreign MCP or A2A "
                "server name the lane: Environment(url, lane='mcp'), or --lane mcp"
            ) from missing
        return foreign

    async def lost() -> None:
        forget_card(address, token)

    return dataclasses.replace(_by_card(read, base, lane, token, trusted=False), lost=lost)


async def _foreign(url: str, lane: LaneName | None, token: str | None) -> Reached | None:
    """A server that knows no Environment Cards, on a lane that was named."""
    if lane not in ("mcp", "a2a"):
        return None
    name = (urlsplit(url).hostname or "server").replace(".", "-")
    card = EnvironmentCard(name=f"foreign-{name}", description=f"A {lane.upper()} server at {shown(url)}.")

    def open_lane() -> Lane:
        return _open(lane, url, token, None)

    return Reached(card, open_lane(), False, open_lane)


def _by_card(read: ReadCard, base: str | None, lane: LaneName | None, auth: Auth, *, trusted: bool) -> Reached:
    """Picks the lane; without a base, where the card was fetched, only its absolute addresses lead anywhere.

    A token goes to the origin where the card was fetched, and to no other that the card names.
    """
    card = read.card
    # Of several ways of one kind the first counts.
    offered = {face.transport: face.url for face in reversed(card.interfaces) if base is not None or "://" in face.url}
    if not offered and card.interfaces:
        raise ConfigurationError(
            f"the card of {card.ref} has only relative addresses; pass the URL where it was fetched, or its reference"
        )
    wanted = FASTEST_FIRST if lane is None else (lane,)
    elsewhere: str | None = None
    for name in wanted:
        path = offered.get(name)
        if path is not None:
            address = resolve_url((base or "") + CARD_PATH, path, transport=name)
            token = _token(auth, address)
            if token is not None and base is not None and not same_origin(address, base):
                elsewhere = shown(address)
                continue

            def open_lane(name: LaneName = name, address: str = address, token: str | None = token) -> Lane:
                return _open(name, address, token, read.digest)

            return Reached(card, open_lane(), trusted, open_lane)
    if elsewhere is not None:
        raise Forbidden(
            f"the card of {card.ref} names ways at another origin ({elsewhere}); your token is not sent there. If that "
            "is where it belongs, give that URL"
        )
    if lane == "inprocess":
        raise NotSupported(
            f"{card.ref} is not in this process; pass the AgentEnvironment itself, or leave out the lane"
        )
    raise NotSupported(f"{card.ref} offers {sorted(offered) or 'no interface'}, and none of {', '.join(wanted)}")


def _open(name: LaneName, address: str, token: str | None, digest: str | None) -> Lane:
    # Each lane brings its own SDK; none is imported before it is used.
    match name:
        case "websocket":
            from agent_env.client.lanes.websocket import WebSocketLane

            return WebSocketLane(address, token, digest)
        case "http":
            from agent_env.client.lanes.http import HttpLane

            return HttpLane(address, token)
        case "mcp":
            from agent_env.client.lanes.mcp import McpLane

            return McpLane(address, token)
        case "a2a":
            from agent_env.client.lanes.a2a import A2aLane

            return A2aLane(address, token)
        case "inprocess":
            raise ConfigurationError("the in-process lane has no address")
