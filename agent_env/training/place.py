"""Where policies are served and a gateway records what they are asked."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agent_env.errors import ConfigurationError, TransportError
from agent_env.gateway import GatewayProcess, RunHandle, SeatPolicy, launched, running
from agent_env.training.policy import Policy
from agent_env.training.policy_server import PolicyServer

log = logging.getLogger("agent_env.training")


@dataclass(frozen=True, slots=True)
class Place:
    """Where policies are served and a gateway records their calls."""

    server: PolicyServer
    endpoint: str
    gateway: GatewayProcess

    def serve(self, policies: Mapping[str, Policy], sampling: Mapping[str, Any] | None = None) -> dict[str, SeatPolicy]:
        """Serves policies, and gives what a gateway is to know of each; `sampling` goes into every request, in place of
        what agents ask for."""
        for name, policy in policies.items():
            if policy.name != name:
                raise ConfigurationError(f"the policy {name!r} calls itself {policy.name!r}; give it one name")
            if not self.server.serves(policy):
                self.server.serve(policy)
        return {name: SeatPolicy(name, (self.endpoint,), settings=sampling or {}) for name in policies}

    async def open(self, seats: Mapping[str, SeatPolicy]) -> RunHandle:
        """Opens a run of the gateway; what is played is collected and kept elsewhere, so the gateway keeps nothing."""
        return await RunHandle.open(self.gateway.url, self.gateway.admin_token, seats, keep_journal=False)


@asynccontextmanager
async def policies_served(
    directory: str | Path | None = None, *, pause: float = 0.005, wait: float = 0.04
) -> AsyncGenerator[Place]:
    """A policy server in this process and a gateway in one of its own, while the block runs.

    The gateway writes into `directory`, or into one that is removed at the end. `pause` and `wait` are how long a
    request may wait for others to be sampled with.
    """
    async with AsyncExitStack() as stack:
        folder = directory if directory is not None else stack.enter_context(TemporaryDirectory())
        gateway = await stack.enter_async_context(launched(folder))
        server = PolicyServer(pause=pause, wait=wait)
        endpoint = await stack.enter_async_context(running(server))
        # Whoever is still sampled for at the end has been given up on, and a large model would keep the server.
        stack.callback(server.close)
        yield Place(server, f"{endpoint}/v1", gateway)


class OpenRun:
    """The gateway's run, opened anew when other policies are to play."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._run: RunHandle | None = None

    async def run(self, seats: Mapping[str, SeatPolicy]) -> RunHandle | None:
        """The run in which these policies play; None when the agents have models of their own."""
        if self._run is not None and self._run.seats != seats:
            await self.aclose()
        if self._run is None and seats:
            self._run = await self._place.open(seats)
        return self._run

    async def aclose(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            try:
                await run.aclose()
            except TransportError as error:
                # A gateway that was stopped, such as by the same Ctrl-C, has no runs left to close.
                log.warning("the run %r could not be closed: %s", run.run, error)
