"""Every way in which agent-env says no.

    AgentEnvError                 code                  what to do
    ├── RequestError                                    the request is at fault: change it
    │   ├── InvalidArguments      invalid_arguments       send what the schema in the message asks for
    │   ├── UnknownTool           unknown_tool            call one of the tools that the message lists
    │   ├── UnknownSession        unknown_session         open a new session; this one is gone or never yours
    │   ├── RunClosed             run_closed              nothing more is taken for this run; its owner may open it again
    │   ├── MessageTooLarge       message_too_large       send less
    │   ├── RequestTimeout        request_timeout         send the request faster, or in one go
    │   ├── UnsupportedContent    unsupported_content     send parts that the card's modes list
    │   ├── NotSupported          not_supported           the agent cannot do this; its card says what it can
    │   ├── Unauthenticated       unauthenticated         send a valid bearer token
    │   └── Forbidden             forbidden               use a token with the scope that the message names
    ├── Refusal                                         refused before any work was done
    │   ├── TooDeep               too_deep                the chain of calls is at its bound
    │   ├── CallCycle             call_cycle              an environment is in the chain more often than its owner allows
    │   ├── ReentrantCall         reentrant_call          the chain already holds this session; open another
    │   ├── BudgetExhausted       budget_exhausted        the episode's calls are used up
    │   ├── AtCapacity            at_capacity             try again after `retry_after` seconds
    │   └── NeedUnmet             need_unmet              serve an agent that meets the need, or name one in `peers`
    ├── DeadlineExceeded          deadline_exceeded     ask for less, or allow more time
    ├── AgentFailed               agent_failed          the agent, its model or its tool raised
    ├── PeerFailed                peer_failed           an agent that this one called failed; `data` has its error
    ├── TransportError            transport_error       the other side could not be reached, or the connection broke
    │   └── Stopping              stopping                try again: what comes after the other side may answer
    ├── ProtocolError             protocol_error        the other side answered what its protocol does not allow
    ├── PublishFailed             publish_failed        the version before is served; `data` has who said what
    ├── InvalidCard               invalid_card          the card has the problems that `data["problems"]` lists
    ├── HubError                                        the hub cannot do what was asked
    │   ├── NameNotFound          name_not_found          the message has the closest names
    │   ├── VersionNotFound       version_not_found       the message has the versions that exist
    │   ├── ReleaseConflict       release_conflict        bump the version; `data["diff"]` has what differs
    │   ├── LeaseLost             lease_lost              register again
    │   └── LaunchFailed          launch_failed           the message ends with the last lines of the process's log
    ├── MatchError                no_match              nobody meets the need; the message counts who fell where
    └── ConfigurationError        configuration         the program is set up wrongly; the message has the fix

Each error has a stable `code`, crosses every protocol by `to_wire`, and is raised again as the same class by
`from_wire`. A message says what happened, with the value, and what to do next; it never holds internals of the agent.

Adding one: subclass the right branch, give it a `code` of its own, an `http_status`, and a line above.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class AgentEnvError(Exception):
    """The root of all errors of this package.

    `data` holds JSON facts for programs; `retryable` tells whether the same request may succeed later.
    """

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data: dict[str, Any] = {key: value for key, value in data.items() if value is not None}

    def __reduce__(self) -> tuple[Any, ...]:
        return from_wire, (self.to_wire(),)

    @property
    def retry_after(self) -> float | None:
        """Seconds after which a retry makes sense, when the refusing side knows."""
        value = self.data.get("retry_after")
        return float(value) if value is not None else None

    def to_wire(self) -> dict[str, Any]:
        """The error as every face sends it: `{code, message, retryable, data}`."""
        return {"code": self.code, "message": self.message, "retryable": self.retryable, "data": self.data}


class RequestError(AgentEnvError):
    """The request is at fault."""

    code = "bad_request"
    http_status = 400


class InvalidArguments(RequestError):
    """The arguments do not fit the schema."""

    code = "invalid_arguments"
    http_status = 422


class UnknownTool(RequestError):
    """No tool, function, reward or verb has this name."""

    code = "unknown_tool"
    http_status = 404


class UnknownSession(RequestError):
    """The session does not exist, has ended, or belongs to somebody else; which of these is not told."""

    code = "unknown_session"
    http_status = 404


class RunClosed(RequestError):
    """The run was closed by its owner, perhaps while the call was under way."""

    code = "run_closed"
    http_status = 410


class MessageTooLarge(RequestError):
    """The message is larger than the environment takes."""

    code = "message_too_large"
    http_status = 413


class RequestTimeout(RequestError):
    """The request did not arrive in time; nothing was done."""

    code = "request_timeout"
    http_status = 408
    retryable = True


class UnsupportedContent(RequestError):
    """The message has a part of a kind that this agent cannot read."""

    code = "unsupported_content"
    http_status = 415


class NotSupported(RequestError):
    """The agent, the wrapper or the protocol cannot do this."""

    code = "not_supported"
    http_status = 501


class Unauthenticated(RequestError):
    """The request has no valid token."""

    code = "unauthenticated"
    http_status = 401


class Forbidden(RequestError):
    """The token lacks a scope."""

    code = "forbidden"
    http_status = 403


class Refusal(AgentEnvError):
    """Refused before any work was done."""

    code = "refused"
    http_status = 409


class TooDeep(Refusal):
    """The chain of calls is longer than the environment allows."""

    code = "too_deep"


class CallCycle(Refusal):
    """The environment is in the chain of calls more often than its owner allows."""

    code = "call_cycle"


class ReentrantCall(Refusal):
    """The chain of calls already holds this session, so waiting for it would never end."""

    code = "reentrant_call"


class BudgetExhausted(Refusal):
    """The calls that were granted to this chain are used up."""

    code = "budget_exhausted"


class AtCapacity(Refusal):
    """All places are taken; `retry_after` seconds is when to try again."""

    code = "at_capacity"
    http_status = 429
    retryable = True


class NeedUnmet(Refusal):
    """The agent needs a peer that nobody offers."""

    code = "need_unmet"
    http_status = 424


class DeadlineExceeded(AgentEnvError):
    """The time that the caller allowed is over."""

    code = "deadline_exceeded"
    http_status = 504


class AgentFailed(AgentEnvError):
    """The agent raised, or broke the wrapper contract; its session is as before the call."""

    code = "agent_failed"
    http_status = 500


class PeerFailed(AgentEnvError):
    """An agent that was called by the served one failed, and the served one did not handle it."""

    code = "peer_failed"
    http_status = 502


class TransportError(AgentEnvError):
    """The other side could not be reached, or the connection broke."""

    code = "transport_error"
    http_status = 502
    retryable = True


class Stopping(TransportError):
    """The other side is being stopped, perhaps while the call was under way."""

    code = "stopping"
    http_status = 503


class ProtocolError(AgentEnvError):
    """The other side answered something that its protocol does not allow."""

    code = "protocol_error"
    http_status = 502


class PublishFailed(AgentEnvError):
    """New weights could not be put in place everywhere, so the version before is served everywhere.

    `data["failures"]` has the `endpoint`, the `status` (None if it did not answer) and what it `said`, for each.
    """

    code = "publish_failed"
    http_status = 502


class InvalidCard(AgentEnvError):
    """A card breaks the Environment Card protocol."""

    code = "invalid_card"
    http_status = 422


class HubError(AgentEnvError):
    """The hub cannot do what was asked."""

    code = "hub_error"
    http_status = 400


class NameNotFound(HubError):
    """The hub has no release, draft or instance of this name."""

    code = "name_not_found"
    http_status = 404


class VersionNotFound(HubError):
    """The hub has the name, but no version that fits."""

    code = "version_not_found"
    http_status = 404


class ReleaseConflict(HubError):
    """The version is published already, with other contents."""

    code = "release_conflict"
    http_status = 409


class LeaseLost(HubError):
    """The lease has ended or was taken over; its holder registers again."""

    code = "lease_lost"
    http_status = 410


class LaunchFailed(HubError):
    """An instance was launched and did not become healthy."""

    code = "launch_failed"
    http_status = 502


class MatchError(AgentEnvError):
    """No offer meets the need, or a team cannot be seated."""

    code = "no_match"
    http_status = 404


class ConfigurationError(AgentEnvError):
    """The program is set up wrongly."""

    code = "configuration"


def _classes(root: type[AgentEnvError]) -> dict[str, type[AgentEnvError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _classes(child)
    return found


def from_wire(wire: Mapping[str, Any]) -> AgentEnvError:
    """Makes the error again that `to_wire` described; a code of a newer release becomes an `AgentEnvError`."""
    kind = _classes(AgentEnvError).get(str(wire.get("code")), AgentEnvError)
    data = wire.get("data")
    error = kind(str(wire.get("message", "the other side gave no message")))
    error.data = dict(data) if isinstance(data, Mapping) else {}
    return error
