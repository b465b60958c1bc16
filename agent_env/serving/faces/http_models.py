"""The bodies of the HTTP face as models: what its OpenAPI document says.

Requests are checked by the runtime, as on every other face, and not a second time by these.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

SESSION = "The conversation that the call belongs to, as an earlier answer gave it; without it a new one is opened."
OPEN_SESSION = "The conversation, as an earlier answer gave it."


class Body(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="forbid")


class ListToolsRequest(Body):
    """No arguments."""


class CallToolRequest(Body):
    """Calls a tool that the environment offers to agents; `chat` is always one."""

    name: str = Field(description="The tool.", examples=["chat"])
    arguments: dict[str, Any] = Field(
        default={}, description="The tool's arguments, by its input schema.", examples=[{"message": "Hello!"}]
    )
    session_id: str | None = Field(default=None, description=SESSION)


class ResetRequest(Body):
    """Starts an episode in a session, or in a new one."""

    session_id: str | None = Field(default=None, description=SESSION)
    seed: int | None = Field(default=None, description="Makes the episode repeatable where the environment can.")
    options: Any = Field(default=None, description="What the environment's owner lets a caller choose.")


class StepRequest(Body):
    """Takes one step of an episode."""

    session_id: str | None = Field(default=None, description=SESSION)
    action: str | dict[str, Any] = Field(
        description="A message, chat's arguments, or `{tool, arguments}` to call a tool.", examples=["Hello!"]
    )


class SessionRequest(Body):
    """Names an open session."""

    session_id: str = Field(description=OPEN_SESSION)


class CallFunctionRequest(Body):
    """Calls a function that the environment offers to orchestrators."""

    name: str = Field(description="The function.")
    arguments: dict[str, Any] = Field(default={}, description="Its arguments, by its schema on the card.")
    session_id: str | None = Field(default=None, description=SESSION)


class CallRewardRequest(Body):
    """Scores a session as it stands."""

    name: str = Field(description="The reward.")
    arguments: dict[str, Any] | None = Field(default=None, description="Its arguments.")
    session_id: str = Field(description=OPEN_SESSION)


class Tool(BaseModel):
    """A tool as agents see it."""

    name: str
    description: str
    inputSchema: dict[str, Any] = Field(description="JSON Schema of the arguments.")
    outputSchema: dict[str, Any] = Field(default={}, description="JSON Schema of `data` in the answer.")


class ListToolsAnswer(BaseModel):
    """The tools that agents may call."""

    tools: list[Tool]


class Usage(BaseModel):
    """Tokens and model requests of one turn."""

    input_tokens: int
    output_tokens: int
    requests: int


class Interrupt(BaseModel):
    """A question of the agent; the next chat of the session answers it."""

    id: str
    kind: str = Field(description='"approval", "question" or "auth".')
    prompt: str
    schema_: dict[str, Any] | None = Field(alias="schema", description="JSON Schema of the answer; null is free text.")


class CallToolAnswer(BaseModel):
    """What a tool answers."""

    content: list[dict[str, Any]] = Field(description='Parts: `{"type": "text", "text"}`, `{"type": "data", "data"}`.')
    text: str = Field(description="The answer's text, empty if it has none.")
    data: Any = Field(description="The answer's JSON value, null if it has none.")
    is_error: bool = Field(description="The tool reports a failure in its answer; refusals and crashes are errors.")
    session_id: str = Field(description="Send it with the next call to go on; empty for a tool without sessions.")
    usage: Usage | None = Field(description="Null where the agent does not tell.")
    reward: float | None = Field(description="What the turn earned; null where nothing was given.")
    stop: str = Field(description='"end_turn", "input_required", "max_tokens", "max_steps" or "refusal".')
    interrupt: Interrupt | None
    call_id: str = Field(description="Names this call in logs and episodes.")
    calls_left: int | None = Field(description="Calls that go back to the caller's budget; null without one.")


class ResetAnswer(BaseModel):
    """The start of an episode."""

    session_id: str
    observation: Any = Field(description="What there is to see at the start, null for an agent that waits to be told.")
    info: dict[str, Any]


class StepAnswer(BaseModel):
    """What a step led to, as in Gymnasium."""

    observation: Any
    reward: float | None = Field(description="Null where nothing was given, never 0 in its place.")
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    session_id: str


class StateAnswer(BaseModel):
    """Where a session stands."""

    session_id: str
    turns: int
    messages: list[dict[str, str]]
    terminated: bool
    truncated: bool
    interrupt: Interrupt | None
    busy: bool = Field(description="A turn is running.")
    seed: int | None


class CallFunctionAnswer(BaseModel):
    """What a function returned."""

    result: Any
    session_id: str


class CallRewardAnswer(BaseModel):
    """What a reward says about a session."""

    name: str
    value: float | None = Field(description="Null where the reward gives none.")
    done: bool = Field(description="The reward ends the episode.")


class ForkAnswer(BaseModel):
    """The copy of a session; `afresh` has the seats whose peers could not copy what they remember, each with why."""

    session_id: str
    afresh: dict[str, str] = {}


class ReleaseAnswer(BaseModel):
    """A session that is gone."""

    released: bool
    session_id: str


class Error(BaseModel):
    """Why a request failed."""

    code: str = Field(description="Stable; programs decide by it.", examples=["unknown_session"])
    message: str = Field(description="What happened and what to do next, for people.")
    retryable: bool = Field(description="The same request may succeed later.")
    data: dict[str, Any]


class ErrorAnswer(BaseModel):
    """An error, in the one form that every endpoint has."""

    error: Error


class HealthData(BaseModel):
    """The state of the server."""

    status: str


class HealthAnswer(BaseModel):
    """The server is up."""

    status: str = Field(examples=["healthy"])
    success: bool
    data: HealthData


class RpcRequest(BaseModel):
    """A JSON-RPC 2.0 request."""

    jsonrpc: str = Field(examples=["2.0"])
    id: str | int | None = None
    method: str = Field(examples=["data/reset"])
    params: dict[str, Any] = {}


class RpcAnswer(BaseModel):
    """A JSON-RPC 2.0 response, with `result` or `error`."""

    jsonrpc: str
    id: str | int | None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
