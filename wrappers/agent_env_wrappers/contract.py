"""The wrapper contract: what it takes to drive one kind of agent.

A wrapper is four members, `match`, `describe`, `run` and `aclose`, and two optional ones, `fork` and `release`.
It receives a `Turn` and yields `Event`s; the last one is exactly one `Done` or `Interrupt`, or it raises
`AgentError`. Conversation state is a value: it comes in `Turn.state` and goes out in `Done.state`, and whoever
drives the wrapper commits it only on success. So a reset is `None`, and rolling back a cancelled turn is free.

    Turn ──► run(turn) ──► Event, Event, … ──► Done | Interrupt
     ▲                                          │
     └────────────── state ─────────────────────┘

This module imports the standard library alone, so that it and one wrapper file run inside any interpreter.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

Json: TypeAlias = Any
"""A value that `json.dumps` accepts."""

# ── what an agent is told ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text in a message."""

    text: str


@dataclass(frozen=True, slots=True)
class DataPart:
    """A JSON value in a message."""

    data: Json


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file in a message, by content or by address; `data` is raw bytes, `uri` an address, one of them is set."""

    media_type: str
    data: bytes | None = None
    uri: str | None = None
    name: str | None = None


Part: TypeAlias = TextPart | DataPart | FilePart


@dataclass(frozen=True, slots=True)
class Message:
    """What one side says in one turn: one or more parts."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, text: str) -> Message:
        """Makes a message of one text part."""
        return cls((TextPart(text),))

    @property
    def text(self) -> str:
        """The text parts, joined by newlines; empty if there are none."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def data(self) -> Json:
        """The first data part's value, or None."""
        return next((part.data for part in self.parts if isinstance(part, DataPart)), None)

    @property
    def prompt(self) -> str:
        """The message for an agent that reads text alone: text parts as they are, data parts as JSON, on lines."""
        lines = [
            part.text if isinstance(part, TextPart) else json.dumps(part.data, ensure_ascii=False)
            for part in self.parts
            if not isinstance(part, FilePart)
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PeerTool:
    """Another agent, handed to this one as a tool.

    `acall(**arguments)` is for async agents, `call(**arguments)` blocks and is for agents that run in a thread of
    their own; both take the arguments of `parameters` (a JSON Schema object) and return the reply's text, or raise
    the peer's failure. `seat` is the name of the need that the peer fills.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]
    acall: Callable[..., Awaitable[str]]
    call: Callable[..., str]
    seat: str


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """Where the model calls of one turn must go, in place of the agent's own model.

    `base_url` ends where the dialect's own paths begin (`…/v1` for "openai"); `api_key` is sent as the bearer token.
    """

    base_url: str
    model: str
    api_key: str = ""
    dialect: Literal["openai"] = "openai"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one turn: `seconds` left and the number of model or loop `steps`; None means no bound."""

    seconds: float | None = None
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The caller's reply to an earlier `Interrupt`, by its id."""

    interrupt_id: str
    value: Json


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one conversation: everything that a wrapper may use, and nothing else.

    `state` is what the conversation's last `Done` or `Interrupt` carried, None for a fresh conversation. `answers`
    is not empty only when the last event was an `Interrupt`. `context` is an opaque mapping about the call (episode,
    depth, caller) that agents may read.
    """

    message: Message
    state: Any = None
    answers: Sequence[Answer] = ()
    tools: Sequence[PeerTool] = ()
    model: ModelRoute | None = None
    limits: Limits = Limits()
    conversation_id: str = ""
    turn_id: str = ""
    context: Mapping[str, Json] = field(default_factory=dict[str, Json])


# ── what an agent does ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and model requests of one turn (not of the agent's life)."""

    input_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.requests + other.requests,
        )


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the reply, or of the agent's thinking, as it is made."""

    text: str
    channel: Literal["answer", "thought"] = "answer"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The agent calls a tool."""

    id: str
    name: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class ToolReturn:
    """A tool answers the call with the same id."""

    id: str
    output: Json
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request to a model has ended."""

    model: str
    usage: Usage = Usage()
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A line about progress, for people."""

    text: str


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ends a turn with a question to the caller; the next turn of the conversation answers it.

    `schema` is the JSON Schema of the answer (None: free text). `state` is committed as a `Done`'s is.
    """

    id: str
    kind: Literal["approval", "question", "auth"]
    prompt: str
    schema: Mapping[str, Json] | None = None
    state: Any = None
    usage: Usage | None = None


StopReason: TypeAlias = Literal["end_turn", "input_required", "max_tokens", "max_steps", "refusal"]


@dataclass(frozen=True, slots=True)
class Done:
    """Ends a turn with the agent's reply; `usage` is None where the framework does not tell."""

    text: str
    data: Json = None
    state: Any = None
    usage: Usage | None = None
    stop: StopReason = "end_turn"


Event: TypeAlias = TextDelta | ToolCall | ToolReturn | ModelCall | Status | Interrupt | Done


Blame: TypeAlias = Literal["model", "tool", "limit", "refused", "framework", "agent"]


class AgentError(Exception):
    """The agent, its model or its tool failed; the turn changes nothing.

    `kind` says who failed, `retryable` whether the same turn may succeed later. The message is for people and may
    cross the wire: it names what happened, never internals. The cause is in `__cause__`.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: Blame = "agent",
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind: Blame = kind
        self.retryable = retryable


class WrapError(TypeError):
    """An object cannot be wrapped as it is, or is asked for what it cannot do; the message names the remedy."""


# ── what an agent says of itself ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Caps:
    """What this kind of agent can do through its wrapper; the card shows it and callers rely on it.

    | field | values |
    |---|---|
    | `state` | "value" (copyable), "handle" (names something the framework keeps), "none" (no conversation) |
    | `tools` | "turn" (peers may be handed over in a turn), "factory" (only through a factory), "none" |
    | `model` | "turn" (re-pointed per turn), "factory", "none" (the agent never asks a model through us) |
    | `concurrency` | "reentrant" (turns of several conversations at once) or "lock" (one turn at a time) |
    """

    streaming: bool = False
    tool_events: bool = False
    usage: bool = False
    interrupts: bool = False
    state: Literal["value", "handle", "none"] = "none"
    fork: bool = False
    tools: Literal["turn", "factory", "none"] = "none"
    model: Literal["turn", "factory", "none"] = "none"
    concurrency: Literal["reentrant", "lock"] = "reentrant"
    parts: frozenset[Literal["text", "data", "file"]] = frozenset({"text"})


@dataclass(frozen=True, slots=True)
class ToolInfo:
    """A tool that the agent has of its own."""

    name: str
    description: str = ""
    parameters: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """What a wrapper found out about its agent without running it.

    `name` is the agent's own name as it is (not a slug), None when it has none.
    """

    framework: str
    caps: Caps
    name: str | None = None
    description: str = ""
    instructions: str | None = None
    tools: Sequence[ToolInfo] = ()
    output_schema: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What a factory gets to build an agent for one conversation turn: peers as tools and the model's route."""

    tools: Sequence[PeerTool] = ()
    model: ModelRoute | None = None
    conversation_id: str = ""


@runtime_checkable
class Wrapper(Protocol):
    """Drives one agent.

    A wrapper's class is made with the agent alone: `SomeWrapper(agent)`; it raises `WrapError` where that agent cannot
    be driven. One task drives a turn from the first `__anext__` to `aclose()`; cancelling a turn means cancelling that
    task. A wrapper may also have `async fork(state) -> state` (where a state is a handle; a value is deep-copied) and
    `async release(state) -> None` (a handle that nobody will use again).
    """

    framework: ClassVar[str]

    @classmethod
    def match(cls, agent: object) -> int:
        """Tells how well this wrapper fits the object: 0 not at all, higher is more specific. Imports nothing."""
        ...

    async def describe(self) -> AgentInfo:
        """Describes the agent; calls no model."""
        ...

    def run(self, turn: Turn) -> AsyncIterator[Event]:
        """Plays one turn."""
        ...

    async def aclose(self) -> None:
        """Frees what the wrapper holds; the agent itself is the user's and stays as it is."""
        ...
