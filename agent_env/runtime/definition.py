"""What an environment is made of, before it runs: the agent's wrapper and what its owner added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_env.net.limits import Limits
from agent_env.runtime.abandoned import Abandoned
from agent_env.runtime.declared import Declared
from agent_env.runtime.sessions import Session
from agent_env_cards import Need, Offer
from agent_env_wrappers.contract import Wrapper


@dataclass(slots=True)
class Definition:
    """Everything that one environment is.

    `tools` are for calling agents, `functions` and `rewards` for whoever orchestrates; `on_reset` makes the first
    observation from a `SessionView`.
    """

    name: str
    version: str
    wrapper: Wrapper
    description: str = ""
    limits: Limits = field(default_factory=Limits)
    tools: dict[str, Declared] = field(default_factory=dict[str, Declared])
    functions: dict[str, Declared] = field(default_factory=dict[str, Declared])
    rewards: dict[str, Declared] = field(default_factory=dict[str, Declared])
    on_reset: Declared | None = None
    needs: Sequence[Need] = ()
    offers: Offer | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    abandoned: Abandoned = field(init=False)

    def __post_init__(self) -> None:
        # It outlives the runtimes that are made of this one after the other, as what it counts does.
        self.abandoned = Abandoned(min(self.limits.max_abandoned, self.limits.max_sessions))

    @property
    def identity(self) -> str:
        """The environment as chains, records and messages name it: `name@version`."""
        return f"{self.name}@{self.version}"


@dataclass(slots=True)
class SessionView:
    """A session as the owner's own functions see it.

    `memory` is theirs: a dictionary that lives as long as the conversation and is rolled back with a failed call.
    `message`, `reply` and `data` belong to the turn that just ended.
    """

    id: str
    messages: Sequence[Mapping[str, str]]
    turns: int
    memory: dict[str, Any]
    seed: int | None = None
    options: Any = None
    message: str = ""
    reply: str = ""
    data: Any = None

    @classmethod
    def of(cls, session: Session, *, memory: dict[str, Any], **turn: Any) -> SessionView:
        """Makes the view of a session, on a copy of its memory."""
        return cls(session.hash, session.messages, session.turns, memory, session.seed, session.options, **turn)
