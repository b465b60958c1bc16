"""Finds the wrapper that fits an agent.

Wrappers are entry points of the group `agent_env_wrappers`; ours are found in the same way as everybody's:

    [project.entry-points.agent_env_wrappers]
    my-framework = "my_package.wrapper:MyWrapper"
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from agent_env_wrappers.callable import STATEFUL
from agent_env_wrappers.contract import WrapError, Wrapper
from agent_env_wrappers.kinds import roots

GROUP = "agent_env_wrappers"
HOME = "agent-env"


class Availability(NamedTuple):
    """One wrapper of this interpreter: its name, who brought it, whether it works, and what is there or is wrong."""

    name: str
    distribution: str
    ok: bool
    note: str


def wrap(agent: object, *, wrapper: str | type[Any] | None = None) -> Wrapper:
    """Makes the wrapper that fits an agent best.

    `wrapper` names one by its entry point or is its class, and skips the choice. A wrapper object is returned as it
    is. Of equal scores a third party's wins over ours. Raises `WrapError`: nothing fits, two fit equally, the agent
    cannot be driven as it is, or a plug-in is broken; the message has the remedy.

        wrapper = wrap(my_agent)
        async for event in wrapper.run(Turn(Message.of("Hello!"))):
            ...
    """
    if wrapper is not None:
        return _made(_named(wrapper), agent)
    if isinstance(agent, Wrapper) and not isinstance(agent, type):
        return agent
    candidates = [(_match(found, agent), found) for found in _installed()]
    fitting = [pair for pair in candidates if pair[0] > 0]
    if not fitting:
        raise WrapError(_no_match(agent, [found.name for _, found in candidates]))
    best = max((score, not found.ours) for score, found in fitting)
    winners = [found for score, found in fitting if (score, not found.ours) == best]
    if len(winners) > 1:
        names = " and ".join(f"{found.name!r} (of {found.distribution})" for found in winners)
        raise WrapError(f"{_name_of(agent)} fits {names} equally well; choose one with wrapper={winners[0].name!r}")
    return _made(winners[0].load(), agent)


def available() -> list[Availability]:
    """Lists the wrappers of this interpreter and whether each works, in the order of their names."""
    report: list[Availability] = []
    for found in _installed():
        try:
            probe: Callable[[], str] | None = getattr(found.load(), "probe", None)
            report.append(Availability(found.name, found.distribution, True, probe() if probe else "loaded"))
        except WrapError as error:
            report.append(Availability(found.name, found.distribution, False, str(error)))
    return report


@dataclass(frozen=True, slots=True)
class _Found:
    """An entry point and the distribution that brought it."""

    name: str
    distribution: str
    point: EntryPoint

    @property
    def ours(self) -> bool:
        return self.distribution == HOME

    def load(self) -> type[Any]:
        """Imports the wrapper's class; raises `WrapError` that names the distribution when that fails."""
        try:
            loaded = self.point.load()
        except Exception as error:
            raise WrapError(
                f"the wrapper {self.name!r} of the distribution {self.distribution!r} does not load: "
                f"{type(error).__name__}: {error}; repair or uninstall {self.distribution!r}"
            ) from error
        if not isinstance(loaded, type) or not callable(getattr(loaded, "match", None)):
            raise WrapError(
                f"the entry point {self.name!r} of the distribution {self.distribution!r} is {self.point.value!r}, "
                "which is no wrapper class; it needs match, describe, run and aclose"
            )
        return loaded


def _installed() -> list[_Found]:
    points = entry_points(group=GROUP)
    found = {(point.name, point.value): _Found(point.name, _distribution(point), point) for point in points}
    return [found[key] for key in sorted(found)]


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "(unknown)"


def _match(found: _Found, agent: object) -> int:
    loaded = found.load()
    try:
        return int(loaded.match(agent))
    except Exception as error:
        raise WrapError(
            f"the wrapper {found.name!r} of the distribution {found.distribution!r} fails to match "
            f"{_name_of(agent)}: {type(error).__name__}: {error}"
        ) from error


def _made(kind: type[Any], agent: object) -> Wrapper:
    wrapper: Wrapper = kind(agent)
    return wrapper


def _named(wrapper: str | type[Any]) -> type[Any]:
    if isinstance(wrapper, type):
        return wrapper
    installed = _installed()
    named = [found for found in installed if found.name == wrapper]
    if not named:
        raise WrapError(f"there is no wrapper {wrapper!r}; installed are {', '.join(f.name for f in installed)}")
    return min(named, key=lambda found: found.ours).load()


def _no_match(agent: object, tried: list[str]) -> str:
    message = f"no wrapper fits {_name_of(agent)} (tried: {', '.join(tried) or 'none is installed'}); "
    kept = next((STATEFUL[root] for root in roots(agent) if root in STATEFUL), None)
    if kept:
        return message + (
            f"{kept} keeps its history in the object, so its conversations would mix: hand over a function "
            "`def agent(message, history)` that makes a fresh one and passes the history on"
        )
    if isinstance(agent, type):
        return message + f"it is a class: hand over an object, such as {agent.__name__}(...)"
    if isinstance(agent, str):
        return message + "of texts only 'openai:http://host:port/v1#model' names an agent"
    verb = next((name for name in ("ainvoke", "arun", "invoke", "run", "chat") if hasattr(agent, name)), None)
    if verb:
        return message + f"hand over a function around it, such as `lambda message: agent.{verb}(message)`"
    return message + "hand over a function `def agent(message) -> str`, or install a wrapper for its framework"


def _name_of(agent: object) -> str:
    if isinstance(agent, str):
        return f"the text {agent!r}"
    if isinstance(agent, type):
        return f"the class {agent.__module__}.{agent.__qualname__}"
    return f"an object of {type(agent).__module__}.{type(agent).__qualname__}"
