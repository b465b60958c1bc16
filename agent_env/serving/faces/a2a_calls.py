"""From an A2A message to a call of a verb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from a2a.types import Message, SendMessageRequest

from agent_env.context import CONTEXT_KEYS, RUN_HEADER
from agent_env.errors import AgentEnvError, InvalidArguments, UnsupportedContent
from agent_env.net.a2a_wire import carrier, decode_part, decode_value
from agent_env.runtime.caller import Caller
from agent_env.runtime.chat import NAME as CHAT
from agent_env.serving.access import Access
from agent_env.serving.faces.a2a_gate import Exchange
from agent_env_wrappers.contract import Caps, Interrupt


@dataclass(slots=True)
class Call:
    """One call, and how it is answered.

    | field | meaning |
    |---|---|
    | `plain` | a message to the agent, answered in A2A's own words; else a verb, answered by its result |
    | `exact` | a verb that came as JSON text, and is answered so |
    | `open_as` | the session to open if it does not exist |
    | `as_task` | answered by a task from the start: it is streamed, polled, or pushed |
    | `attached` | it ends with its connection, even as a task |
    | `error` | what came of it in place of an answer |
    """

    verb: str
    arguments: Mapping[str, Any]
    caller: Caller
    exchange: Exchange
    context_id: str
    plain: bool
    exact: bool = False
    open_as: str | None = None
    as_task: bool = False
    attached: bool = False
    error: AgentEnvError | None = None


def read_caller(params: SendMessageRequest, exchange: Exchange, access: Access) -> Caller:
    """Who makes the call: the context is in the metadata of the request or of its message, else in the headers.

    Raises `InvalidArguments` or `Forbidden`.
    """
    said = carrier(params.metadata, params.message.metadata)
    headers = {key: exchange.headers[key] for key in CONTEXT_KEYS if key in exchange.headers}
    # One source for both: a tracer's `traceparent` header must not be joined to another call's baggage.
    context = said if any(key in said for key in CONTEXT_KEYS) else headers
    return access.caller(exchange.principal, context, exchange.headers.get(RUN_HEADER), exchange.client_host)


@dataclass(frozen=True, slots=True)
class VerbCall:
    """The value of our extension in a request."""

    verb: str
    arguments: Mapping[str, Any]
    exact: bool
    attached: bool

    @property
    def opens(self) -> bool:
        """Whether it opens a session where none is named."""
        talks = self.verb == "call_tool" and self.arguments.get("name") == CHAT
        return (talks or self.verb == "reset") and not self.arguments.get("session_id")


def read_verb(message: Message) -> VerbCall | None:
    """Reads the verb of a message under our extension; None for a message to the agent.

    Raises `InvalidArguments` for a verb that is malformed.
    """
    if len(message.parts) != 1:
        return None
    value, exact = decode_value(message.parts[0])
    if not isinstance(value, Mapping) or "verb" not in value:
        return None
    fields = cast("Mapping[str, Any]", value)
    verb, arguments, attached = fields["verb"], fields.get("arguments"), fields.get("attached", False)
    if not isinstance(verb, str):
        raise InvalidArguments(f"'verb' must be a string, not {verb!r:.100}")
    if arguments is not None and not isinstance(arguments, Mapping):
        raise InvalidArguments(f"'arguments' must be an object, not {arguments!r:.100}")
    if not isinstance(attached, bool):
        raise InvalidArguments(f"'attached' must be true or false, not {attached!r:.100}")
    return VerbCall(verb, cast("Mapping[str, Any]", arguments or {}), exact, attached)


def read_chat(message: Message, caps: Caps, question: Interrupt | None) -> dict[str, Any]:
    """Makes chat's arguments of a plain message; a lone value answers a pending question as it is.

    Raises `UnsupportedContent` for parts that the agent cannot read.
    """
    parts = [decode_part(part) for part in message.parts]
    if question is not None and len(parts) == 1 and parts[0]["type"] == "data":
        return {"answer": parts[0]["data"]}
    for part in parts:
        if part["type"] not in caps.parts:
            readable = ", ".join(sorted(caps.parts))
            raise UnsupportedContent(f"this agent reads {readable}, not {part['type']} parts")
    if all(part["type"] == "text" for part in parts):
        return {"message": "\n".join(part["text"] for part in parts)}
    return {"parts": parts}
