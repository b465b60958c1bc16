"""A policy at a gateway, from the side of whoever publishes its weights: paused, drained, changed."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import anyio

from agent_env.errors import ProtocolError
from agent_env.gateway.steering import DRAIN_SECONDS, PAUSE_SECONDS, RETRY_SECONDS
from agent_env.net import bearer_headers, request_json

Json: TypeAlias = Any

_SECONDS = 30.0
UNCHANGED: Final[Any] = object()
"""Says of a value, as a default, that it stays what it is."""


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What a policy is at one moment.

    `in_flight` counts the calls under way, `held` those that wait for the policy to go on. `retry_after` is what refused calls are told while it is `paused`, in
    seconds. `resting` are endpoints that refused a connection and are not asked for now.
    """

    policy: str
    model: str
    endpoints: tuple[str, ...]
    version: Json = None
    paused: bool = False
    retry_after: float | None = None
    in_flight: int = 0
    resting: tuple[str, ...] = ()
    held: int = 0

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PolicyState:
        """Reads what the gateway answers; raises `KeyError` or `TypeError`."""
        return cls(
            value["policy"],
            value["model"],
            tuple(value["endpoints"]),
            value["version"],
            value["paused"],
            value["retry_after"],
            value["in_flight"],
            tuple(value["resting"]),
            value["held"],
        )


class PolicyHandle:
    """A policy that seats are played by at a gateway.

        async with RunHandle.open(…) as run:
            solver = run.policy("solver")
            async with solver.quiet():                    # calls are refused with Retry-After, and none is under way
                ...                                       # put new weights in place
                await solver.change(version=3)

    `RunHandle.policy` gives one for a policy of a run. Made by hand, it is for a policy that runs share by its name
    (`SeatPolicy(policy=…)`). Methods raise `UnknownTool` for a policy that no open run plays with, and what a gateway
    that cannot be reached raises.
    """

    def __init__(self, gateway: str, admin_token: str, policy: str, *, run: str | None = None) -> None:
        self.policy = policy
        place = "policies" if run is None else f"runs/{run}/policies"
        self._url = f"{gateway.rstrip('/')}/{place}/{quote(policy)}"
        self._headers = bearer_headers(admin_token)

    async def state(self) -> PolicyState:
        """What it is now."""
        return await self._ask("GET", "")

    async def pause(
        self,
        *,
        retry_after: float = RETRY_SECONDS,
        hold: float = 0.0,
        seconds: float = PAUSE_SECONDS,
        pause: str | None = None,
    ) -> str:
        """Stops it taking calls, until `resume` gets what this returns and no longer than `seconds`.

        Calls are answered 429 with `Retry-After`, which SDKs obey as often as their `max_retries` allow (openai's and
        anthropic's: twice). With `hold` they wait at the gateway for so many seconds first, and go on with the policy.
        `pause` names the pause; one of the same name is replaced.
        """
        pause = pause or secrets.token_hex(8)
        wanted = {"retry_after": retry_after, "hold": hold, "seconds": seconds, "pause": pause}
        await self._ask("POST", "/pause", wanted)
        return pause

    async def drain(self, seconds: float = DRAIN_SECONDS) -> PolicyState:
        """Waits until no call is under way; raises `DeadlineExceeded` after `seconds`."""
        return await self._ask("POST", "/drain", {"seconds": seconds}, seconds)

    async def resume(self, pause: str | None = None) -> PolicyState:
        """Ends a pause, or all of them; one that is over is none any more."""
        return await self._ask("POST", "/resume", {} if pause is None else {"pause": pause})

    async def change(
        self,
        *,
        model: str | None = None,
        endpoints: Sequence[str] | None = None,
        api_key: str | None = UNCHANGED,
        version: Json = UNCHANGED,
        replaces: Json = UNCHANGED,
    ) -> PolicyState:
        """Changes what calls go by from now on; what is left out stays.

        Endpoints at a server that the policy's key was not given for need `api_key` with them, None for none: else
        `InvalidArguments`. Raises `Refusal` for another model or version while calls are under way, and where the version is not the one
        that `replaces` says.
        """
        wanted: dict[str, Any] = {"api_key": api_key, "version": version, "replaces": replaces}
        wanted = {name: value for name, value in wanted.items() if value is not UNCHANGED}
        if model is not None:
            wanted["model"] = model
        if endpoints is not None:
            wanted["endpoints"] = list(endpoints)
        return await self._ask("PUT", "", wanted)

    @asynccontextmanager
    async def quiet(
        self,
        *,
        retry_after: float = RETRY_SECONDS,
        hold: float = 0.0,
        drain_seconds: float = DRAIN_SECONDS,
        seconds: float = PAUSE_SECONDS,
    ) -> AsyncGenerator[PolicyState, None]:
        """While the block runs no call is under way; gives the state then.

        It goes on when the block ends, however it ends, and after `seconds` even if this program died. Raises
        `DeadlineExceeded` when the calls under way do not end within `drain_seconds`.
        """
        pause = secrets.token_hex(8)
        try:
            await self.pause(retry_after=retry_after, hold=hold, seconds=seconds, pause=pause)
            yield await self.drain(drain_seconds)
        finally:
            # Named here, so that it ends even where the answer to `pause` never came.
            with anyio.CancelScope(shield=True):
                await self.resume(pause)

    async def _ask(self, method: str, verb: str, body: Any = None, seconds: float = 0.0) -> PolicyState:
        url = self._url + verb
        answer = await request_json(method, url, body, headers=self._headers, timeout=_SECONDS + seconds)
        try:
            return PolicyState.from_json(answer)
        except (KeyError, TypeError):
            raise ProtocolError(f"{url} did not answer as a gateway does") from None
