"""What would end a program, raised in an agent or in its owner's tools: a failure as any other, over all five lanes."""

from __future__ import annotations

import sys
from typing import get_args

import anyio
import pytest
from lane_places import served

from agent_env import recording
from agent_env.client.resolution import LaneName
from agent_env.errors import AgentFailed

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("lane", get_args(LaneName))]


class Panic(BaseException):
    """As the panics of native extensions are: no `Exception`."""


def leave() -> str:
    """Leaves, as command line parsers do."""
    sys.exit(3)


async def leave_later() -> str:
    """Leaves, in the loop of the server."""
    sys.exit(3)


async def interrupt() -> str:
    """Stops as Ctrl-C would."""
    raise KeyboardInterrupt


async def panic() -> str:
    """Panics."""
    raise Panic("secret internals")


async def test_a_tool_that_would_end_the_program_fails_alone(lane: LaneName) -> None:
    async with served(lane, tools=[leave, leave_later, interrupt, panic]) as place, place.environment() as env:
        await env.chat("a")
        for tool in (leave, leave_later, interrupt, panic):
            with anyio.fail_after(5), pytest.raises(AgentFailed) as caught:
                await env.call_tool(tool.__name__)
            assert "secret" not in str(caught.value.to_wire())
        assert (await env.chat("b")).text == "2: b"


async def test_an_agent_that_panics_fails_its_episode_too(lane: LaneName) -> None:
    def worth() -> float:
        raise Panic

    async with served(lane, rewards=[worth]) as place:
        with anyio.fail_after(5), pytest.raises(AgentFailed):
            async with recording() as episode, place.environment() as env:
                await env.chat("a")
    (edge,) = episode.edges
    assert edge.status == "agent_failed"
    assert not episode.ok
