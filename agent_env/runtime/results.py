"""What the verbs answer, with their JSON forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_env.runtime.parts import decode_usage, encode_usage
from agent_env_wrappers.contract import Usage


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answers.

    | field | meaning |
    |---|---|
    | `content` | the parts of the answer, as JSON |
    | `text`, `data` | the answer's text (empty if none) and its JSON value (None if none) |
    | `is_error` | the tool reports a failure in its answer; refusals and crashes raise instead |
    | `session_id` | pass it with the next call to go on in the same conversation |
    | `usage` | tokens of this turn, None where the agent does not tell |
    | `reward` | what this turn earned, None where nothing was given (never 0.0 in its place) |
    | `stop` | "end_turn", "input_required", "max_tokens", "max_steps", "refusal" |
    | `interrupt` | with "input_required": `{id, kind, prompt, schema}`; the session's next chat answers it |
    | `call_id` | names this call in logs and episodes |
    """

    content: Sequence[Mapping[str, Any]]
    text: str = ""
    data: Any = None
    is_error: bool = False
    session_id: str = ""
    usage: Usage | None = None
    reward: float | None = None
    stop: str = "end_turn"
    interrupt: Mapping[str, Any] | None = None
    call_id: str = ""
    calls_left: int | None = None
    """Calls that the callee gives back to its caller's budget."""

    def to_json(self) -> dict[str, Any]:
        """The result as every face sends it."""
        return {
            "content": list(self.content),
            "text": self.text,
            "data": self.data,
            "is_error": self.is_error,
            "session_id": self.session_id,
            "usage": encode_usage(self.usage),
            "reward": self.reward,
            "stop": self.stop,
            "interrupt": self.interrupt,
            "call_id": self.call_id,
            "calls_left": self.calls_left,
        }

    @classmethod
    def from_json(cls, wire: Mapping[str, Any]) -> ToolResult:
        """Reads what `to_json` wrote; keys that a newer release added are ignored."""
        return cls(
            content=wire["content"],
            text=wire.get("text", ""),
            data=wire.get("data"),
            is_error=bool(wire.get("is_error", False)),
            session_id=wire.get("session_id", ""),
            usage=decode_usage(wire.get("usage")),
            reward=wire.get("reward"),
            stop=wire.get("stop", "end_turn"),
            interrupt=wire.get("interrupt"),
            call_id=wire.get("call_id", ""),
            calls_left=wire.get("calls_left"),
        )


@dataclass(frozen=True, slots=True)
class ResetResult:
    """What `reset` answers: the session, and what is there to see at the start of the episode."""

    session_id: str
    observation: Any = None
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        """The result as every face sends it."""
        return {"session_id": self.session_id, "observation": self.observation, "info": dict(self.info)}

    @classmethod
    def from_json(cls, wire: Mapping[str, Any]) -> ResetResult:
        """Reads what `to_json` wrote."""
        return cls(wire["session_id"], wire.get("observation"), wire.get("info") or {})


@dataclass(frozen=True, slots=True)
class StepResult:
    """What `step` answers, as in Gymnasium; a reward that was not given is None, never 0.0."""

    observation: Any
    reward: float | None
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]
    session_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """The result as every face sends it."""
        return {
            "observation": self.observation,
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "info": dict(self.info),
            "session_id": self.session_id,
        }

    @classmethod
    def from_json(cls, wire: Mapping[str, Any]) -> StepResult:
        """Reads what `to_json` wrote."""
        return cls(
            wire["observation"],
            wire["reward"],
            wire["terminated"],
            wire["truncated"],
            wire.get("info") or {},
            wire.get("session_id", ""),
        )
