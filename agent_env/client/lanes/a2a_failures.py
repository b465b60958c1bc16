"""What the A2A SDK's client raises, as our errors."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from a2a.client.errors import A2AClientError
from a2a.types import Message
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from agent_env.errors import (
    AgentEnvError,
    AgentFailed,
    InvalidArguments,
    NotSupported,
    ProtocolError,
    UnknownSession,
    UnsupportedContent,
    from_wire,
)
from agent_env.net.a2a_wire import EXTENSION, ParseError, as_object, text_of, unpack

_KINDS: Final[tuple[tuple[type[A2AError], type[AgentEnvError]], ...]] = (
    (InvalidParamsError, InvalidArguments),
    (InvalidRequestError, InvalidArguments),
    (TaskNotFoundError, UnknownSession),
    (ContentTypeNotSupportedError, UnsupportedContent),
    (UnsupportedOperationError, NotSupported),
    (InternalError, AgentFailed),
    (A2AClientError, ProtocolError),
)


@contextmanager
def our_errors(where: str) -> Generator[None]:
    """Raises the error that the other side meant in place of what the SDK raises."""
    try:
        yield
    except A2AError as error:
        raise failure(error, where) from error
    except (ParseError, ValueError, LookupError, TypeError, AttributeError, NotImplementedError) as error:
        # The SDK meets these in answers that A2A does not allow.
        raise ProtocolError(f"{where} answered what A2A does not allow ({type(error).__name__})") from error


def failure(error: A2AError, where: str) -> AgentEnvError:
    """The error that an A2A error stands for: the one of ours that it carries, else the nearest."""
    data = cast("Mapping[str, Any]", error.data or {})
    wire = as_object(data.get(EXTENSION))
    if wire:
        return from_wire(wire)
    kind = next((ours for a2a, ours in _KINDS if isinstance(error, a2a)), ProtocolError)
    return kind(f"{where} answered with {type(error).__name__}: {error.message}")


def failed_task(message: Message, where: str, what: str) -> AgentEnvError:
    """The error of a task that did not succeed; `what` says what became of it."""
    wire = unpack(message.metadata).get("error")
    if isinstance(wire, Mapping):
        return from_wire(cast("Mapping[str, Any]", wire))
    said = text_of(message)
    return AgentFailed(f"{where} {what}{': ' + said if said else ', and does not say why'}")
