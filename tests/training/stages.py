"""Teams of served agents for the tests: every agent is served, and reached in this process or over a socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_env import AgentEnvironment, Environment
from agent_env.client.resolution import LaneName
from agent_env.episodes import Episode
from agent_env.gateway import Gateway, RunHandle, SeatPolicy, running
from agent_env.training import PolicyServer, Scenario, Seat, collect, rollout

ADMIN = "admin"
LANES: tuple[LaneName, ...] = ("inprocess", "websocket")


@dataclass
class Stage:
    """Served agents, each a seat under its own name, and the run that their records go to."""

    environments: dict[str, AgentEnvironment]
    run: RunHandle | None
    lane: LaneName
    hub: Path

    def seat(self, name: str, **fields: Any) -> Seat:
        return Seat(reached(name, self.lane, self.hub), **fields)

    async def play(
        self, play: Callable[..., Any], tasks: Sequence[Any] = ("go",), *, score: Any = None, **options: Any
    ) -> list[Episode]:
        """Plays with every agent in a seat of its own name."""
        seats = options.pop("seats", None) or {name: self.seat(name) for name in self.environments}
        stream = rollout(Scenario(play, score, seats), tasks, run=self.run, seconds=20, **options)
        return await collect(stream)

    async def sessions(self) -> dict[str, int]:
        """How many conversations are open with each agent."""
        return {name: len((await one.runtime()).sessions) for name, one in self.environments.items()}


def reached(name: str, lane: LaneName, hub: Path) -> Environment:
    return Environment(f"{name}@1.0.0", lane=lane, hub=hub)


@asynccontextmanager
async def staged(
    directory: Path,
    lane: LaneName,
    agents: Mapping[str, Callable[..., Any]],
    peers: Mapping[str, Sequence[str]] | None = None,
    *,
    models: PolicyServer | None = None,
    policies: Mapping[str, str] | None = None,
) -> AsyncGenerator[Stage, None]:
    """Serves the agents; `peers` says who may call whom, `policies` which policy plays which seat.

    Over a socket agents tell a gateway what they did; in this process they tell the episode itself, and a gateway is
    there only for model calls.
    """
    hub = directory / "hub.db"
    async with AsyncExitStack() as stack:
        endpoint = "" if models is None else await stack.enter_async_context(running(models))
        run: RunHandle | None = None
        if lane != "inprocess" or policies:
            gateway = Gateway(directory / "gateway", admin_token=ADMIN)
            stack.callback(gateway.close)
            url = await stack.enter_async_context(running(gateway))
            seats: dict[str, SeatPolicy | None] = dict.fromkeys(agents)
            seats |= {seat: SeatPolicy(policy, (f"{endpoint}/v1",)) for seat, policy in (policies or {}).items()}
            run = await stack.enter_async_context(await RunHandle.open(url, ADMIN, seats))
        environments: dict[str, AgentEnvironment] = {}
        for name, agent in agents.items():
            known = {peer: reached(peer, lane, hub) for peer in (peers or {}).get(name, ())}
            environments[name] = AgentEnvironment(agent, name=name, version="1.0.0", peers=known, hub=hub)
            await stack.enter_async_context(environments[name].serving())
        yield Stage(environments, run, lane, hub)
