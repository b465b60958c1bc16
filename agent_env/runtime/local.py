"""The environments of this process: those that are served here, and agents that are wrapped on the spot."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from agent_env.errors import ConfigurationError
from agent_env.runtime.definition import Definition
from agent_env.runtime.environment import Runtime
from agent_env_cards import DRAFT_VERSION, slug
from agent_env_wrappers.contract import AgentInfo, WrapError, Wrapper
from agent_env_wrappers.registry import wrap

# A cache of what is reachable without a socket; it keeps nothing alive, and a runtime leaves it when it stops.
_served: WeakValueDictionary[tuple[str, int], Runtime] = WeakValueDictionary()


def announce(url: str, runtime: Runtime) -> None:
    """Says that a runtime is served at `url` from the running event loop."""
    _served[url, id(asyncio.get_running_loop())] = runtime


def withdraw(url: str) -> None:
    """Takes `announce` back."""
    _served.pop((url, id(asyncio.get_running_loop())), None)


def served_here(url: str) -> Runtime | None:
    """The runtime that this process serves at `url` from the running event loop, if there is one."""
    runtime = _served.get((url.rstrip("/"), id(asyncio.get_running_loop())))
    return None if runtime is None or runtime.closing else runtime


def wrapped(agent: object, wrapper: str | type[object] | None = None) -> Wrapper:
    """Wraps an agent; raises `ConfigurationError` with the remedy when nothing fits."""
    try:
        return wrap(agent, wrapper=wrapper)
    except WrapError as error:
        raise ConfigurationError(str(error)) from error


def name_of(agent: object, info: AgentInfo) -> str:
    """The environment's name from the agent's own, as a slug; raises `ConfigurationError` where it has none."""
    name = slug(info.name or "") if not (info.name or "").startswith("<") else None
    if not name:
        raise ConfigurationError(
            f"{agent!r:.100} has no name that could name an environment; give one: name='my-agent', as in "
            "AgentEnvironment(agent, name='my-agent')"
        )
    return name


async def wrap_here(agent: object) -> Runtime:
    """Makes a runtime of an agent in this process, as a draft under its own name."""
    wrapper = wrapped(agent)
    info = await wrapper.describe()
    definition = Definition(name_of(agent, info), DRAFT_VERSION, wrapper, description=info.description)
    return Runtime(definition, info)
