"""Whom a failure belongs to.

| boundary | what failed |
|---|---|
| `request` | what was asked: it could not be done as it was |
| `refused` | nothing yet: it was refused before any work was done |
| `agent` | the agent's own code |
| `peer` | an agent that the agent called, for a reason that is none of the others' |
| `model` | a model that was asked in the turn, or in that of an agent which it called |
| `deadline` | nothing but the time that was allowed |
| `transport` | the way to the agent that the program called |
| `protocol` | the form of what that agent answered |
| `reward` | the scoring |
| `program` | the code that plays the episode |

A model failed where the error tells the call that failed at the gateway, `data["model_call"]`, or where the agent's
framework says so, `data["kind"]`. Both are what the agent told, and an agent can tell anything: a call is believed only
where it is one of the episode's that failed, if those are known, as they are to a rollout with a gateway; what a
framework says, nobody can look up. A plain function that lets its client's exception go is an agent that raised: whether
it failed for the model's failure or in handling it, nobody can know.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Literal, TypeAlias, cast

from agent_env.errors import (
    AgentEnvError,
    AgentFailed,
    DeadlineExceeded,
    PeerFailed,
    ProtocolError,
    Refusal,
    RequestError,
    TransportError,
)

Boundary: TypeAlias = Literal[
    "request", "refused", "agent", "peer", "model", "deadline", "transport", "protocol", "reward", "program"
]
"""Whom a failure belongs to; the module's table says when it is which."""

_BOUNDARIES: tuple[tuple[type[AgentEnvError], Boundary], ...] = (
    (RequestError, "request"),
    (Refusal, "refused"),
    (DeadlineExceeded, "deadline"),
    (AgentFailed, "agent"),
    (PeerFailed, "peer"),
    (TransportError, "transport"),
    (ProtocolError, "protocol"),
)


_DEEPEST = 100
"""How many agents, each called by the one before, an error is followed through."""


def boundary_of(error: BaseException, *, failed_calls: AbstractSet[str] | None = None) -> Boundary:
    """The boundary of an error; one that is none of agent-env's own belongs to the program.

    `failed_calls` are the ids of the model calls that failed in the episode, None where they are not known. An error
    that tells of another one is not believed.
    """
    if isinstance(error, AgentEnvError) and _is_models(error.code, error.data, failed_calls):
        return "model"
    for kind, boundary in _BOUNDARIES:
        if isinstance(error, kind):
            return boundary
    return "program"


def _is_models(code: object, data: object, failed_calls: AbstractSet[str] | None) -> bool:
    """Whether what failed first, below all agents that failed for it, is a model."""
    for _ in range(_DEEPEST):  # the data of an error may have itself in it
        if not isinstance(data, Mapping):
            return False
        told = cast(Mapping[str, Any], data)
        call = told.get("model_call")
        if isinstance(call, str) and (failed_calls is None or call in failed_calls):
            return True
        if code != PeerFailed.code:
            return code == AgentFailed.code and told.get("kind") == "model"
        below = told.get("error")
        if not isinstance(below, Mapping):
            return False
        wire = cast(Mapping[str, Any], below)
        code, data = wire.get("code"), wire.get("data")
    return False
