"""Runtimes of plain agents, closed when their test ends."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from agent_env.context import PeerSource
from agent_env.runtime.declared import declare
from agent_env.runtime.definition import Definition
from agent_env.runtime.environment import Runtime
from agent_env_wrappers.callable import CallableWrapper

# Tests are no packages; this is how they find the agents that they share.
sys.path.insert(0, str(Path(__file__).parent))


class MakeRuntime(Protocol):
    """Makes a runtime of a callable or of a wrapper."""

    def __call__(self, agent: Any, *, peers: PeerSource | None = None, **definition: Any) -> Awaitable[Runtime]: ...


@pytest.fixture
async def runtime_of() -> AsyncIterator[MakeRuntime]:
    """`await runtime_of(agent, limits=…, tools=[…], rewards=[…], functions=[…], on_reset=…)`."""
    made: list[Runtime] = []

    async def make(agent: Any, *, peers: PeerSource | None = None, **given: Any) -> Runtime:
        wrapper = agent if hasattr(agent, "describe") else CallableWrapper(agent)
        for kind in ("tools", "functions", "rewards"):
            given[kind] = _declared(given.get(kind, ()))
        if "on_reset" in given:
            given["on_reset"] = declare(given["on_reset"], name="on_reset")
        definition = Definition(given.pop("name", "agent"), given.pop("version", "1.0.0"), wrapper, **given)
        runtime = Runtime(definition, await wrapper.describe(), peers=peers)
        made.append(runtime)
        return runtime

    yield make
    for runtime in made:
        await runtime.aclose()


def _declared(functions: Any) -> dict[str, Any]:
    if isinstance(functions, dict):
        return {name: declare(function, name=name) for name, function in functions.items()}
    return {function.__name__: declare(function) for function in functions}


@pytest.fixture
def say() -> Callable[..., Awaitable[Any]]:
    """`await say(runtime, "Hello", session_id, caller=…)`: one chat turn."""
    from agent_env.runtime.caller import Caller

    async def talk(runtime: Runtime, message: str, session_id: str | None = None, **more: Any) -> Any:
        caller = more.pop("caller", None) or Caller()
        return await runtime.call_tool("chat", {"message": message}, session_id=session_id, caller=caller, **more)

    return talk
