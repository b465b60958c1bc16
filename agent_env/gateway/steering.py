"""Steering a policy: what is asked of it over HTTP, checked and done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_env.errors import InvalidArguments, Refusal, UnknownTool
from agent_env.gateway.policies import OpenPolicy, Served
from agent_env.gateway.runs import checked_endpoints, checked_key, checked_model

RETRY_SECONDS = 1.0
"""When a refused call is told to come back, if nothing else is said."""

PAUSE_SECONDS = 600.0
"""How long a pause lasts at most, if nothing else is said: whoever paused may have died."""

DRAIN_SECONDS = 60.0
"""How long calls that are under way are waited for, if nothing else is said."""

_MOST_SECONDS = 24 * 3600.0

VERBS = ("pause", "drain", "resume")

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "pause": ("retry_after", "seconds", "hold", "pause"),
    "drain": ("seconds",),
    "resume": ("pause",),
    "change": ("model", "endpoints", "api_key", "version", "replaces"),
}
"""What may be given to each; a name that was misspelt must not be taken for one that was left out."""


def asked_of(method: str, path: Sequence[str]) -> tuple[str, str]:
    """The name of a policy, which may have slashes as names of models do, and what is asked of it: a verb, "state" or
    "change". Raises `UnknownTool`."""
    match method, path:
        case "GET", [_, *_]:
            return "/".join(path), "state"
        case "PUT", [_, *_]:
            return "/".join(path), "change"
        case "POST", [_, *_, verb] if verb in VERBS:
            return "/".join(path[:-1]), verb
        case _:
            raise UnknownTool(
                f"a policy has no {method} {'/'.join(path)!r}; it has GET and PUT of its name, and POST of "
                f"{', '.join(VERBS)} below it"
            )


async def steer(policy: OpenPolicy, verb: str, wanted: Any) -> dict[str, Any]:
    """Does what is asked, and answers with the state of the policy then.

    | asked | with |
    |---|---|
    | `pause` | `{retry_after?, seconds?, hold?, pause?}`; the answer has `pause`, its name |
    | `drain` | `{seconds?}` |
    | `resume` | `{pause?}`; without it all pauses end |
    | `change` | `{model?, endpoints?, api_key?, version?, replaces?}`; what is left out stays |

    A key goes to no server that it was not given for: endpoints at another one than before are refused unless `api_key`
    comes with them, null for none. Raises `InvalidArguments`, `DeadlineExceeded` for a drain that takes longer, and `Refusal` for a change that would
    mix two versions, or of another version than `replaces`.
    """
    if wanted is None:
        wanted = {}
    if not isinstance(wanted, Mapping):
        raise InvalidArguments(f"what a policy is asked must be a JSON object, not {wanted!r:.100}")
    fields = _FIELDS.get(verb, ())
    if unknown := sorted(wanted.keys() - {*fields}):
        raise InvalidArguments(
            f"the policy {policy.name!r} has no {unknown[0]!r:.100} to {verb}; it has {', '.join(fields) or 'nothing'}"
        )
    answer: dict[str, Any] = {}
    match verb:
        case "pause":
            retry_after = _seconds(wanted, "retry_after", RETRY_SECONDS)
            seconds = _seconds(wanted, "seconds", PAUSE_SECONDS)
            hold = _seconds(wanted, "hold", 0.0, least=0.0)
            answer["pause"] = policy.pause(retry_after=retry_after, seconds=seconds, hold=hold, pause=_pause(wanted))
        case "drain":
            await policy.drain(_seconds(wanted, "seconds", DRAIN_SECONDS))
        case "resume":
            policy.resume(_pause(wanted))
        case "change":
            policy.change(_changed(policy, wanted))
        case _:
            pass
    return policy.state() | answer


def _changed(policy: OpenPolicy, wanted: Mapping[str, Any]) -> Served:
    now = policy.served
    who = f"the policy {policy.name!r}"
    if "replaces" in wanted and wanted["replaces"] != now.version:
        raise Refusal(
            f"{who} is at version {now.version!r} and not at {wanted['replaces']!r}: somebody else published",
            version=now.version,
        )
    model = checked_model(who, wanted["model"]) if "model" in wanted else now.model
    endpoints = checked_endpoints(who, wanted["endpoints"]) if "endpoints" in wanted else now.endpoints
    api_key = checked_key(who, wanted["api_key"]) if "api_key" in wanted else now.api_key
    try:
        served = Served(model, endpoints, api_key, wanted.get("version", now.version))
    except ValueError as error:
        raise InvalidArguments(f"{who} needs a list of http URLs as endpoints, not {endpoints!r}: {error}") from None
    if now.api_key is not None and "api_key" not in wanted:
        _check_origins(who, served, [one for one in (now, policy.declared) if one.api_key == now.api_key])
    return served


def _check_origins(who: str, served: Served, given: Sequence[Served]) -> None:
    """Raises `InvalidArguments` when a key that was given for the servers of `given` would go to another one."""
    known = {place.origin for one in given for place in one.places["chat"]}
    for place in served.places["chat"]:
        if place.origin not in known:
            host, port, secure = place.origin
            raise InvalidArguments(
                f"the api_key of {who} was not given for {'https' if secure else 'http'}://{host}:{port}; give `api_key` "
                "with the endpoints, null if they take none"
            )


def _pause(wanted: Mapping[str, Any]) -> str | None:
    pause = wanted.get("pause")
    if pause is not None and (not isinstance(pause, str) or not 0 < len(pause) <= 128):
        raise InvalidArguments(f"a pause has a name of up to 128 characters, not {pause!r:.200}")
    return pause


def _seconds(wanted: Mapping[str, Any], name: str, default: float, *, least: float = 0.001) -> float:
    value = wanted.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= _MOST_SECONDS:
        raise InvalidArguments(
            f"{name} must be a number of seconds, from {least:g} to {_MOST_SECONDS:g}, not {value!r}"
        )
    return float(value)
