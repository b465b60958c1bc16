"""The bounds within which an environment serves, in one value."""

from __future__ import annotations

from dataclasses import dataclass

from agent_env.errors import ConfigurationError
from agent_env.net.uploads import BODY_SECONDS

_POSITIVE = (
    "max_message_bytes",
    "body_seconds",
    "max_sessions",
    "turn_seconds",
    "idle_seconds",
    "max_abandoned",
    "max_depth",
    "max_visits",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one served environment takes on before it says no.

    | field | bound | error beyond it |
    |---|---|---|
    | `max_message_bytes` | one message, on any face | `MessageTooLarge` |
    | `body_seconds` | how far a request's body may be behind 1 KiB a second | `RequestTimeout` |
    | `max_sessions` | sessions held at once | `AtCapacity` |
    | `queue_seconds` | how long a new session waits for a place | `AtCapacity`, with `retry_after` |
    | `max_queued_turns` | turns that wait for one session's lock | `AtCapacity` |
    | `idle_seconds` | how long a session without a turn is kept | `UnknownSession` at its next turn |
    | `turn_seconds` | one turn, when the caller sets no deadline | `DeadlineExceeded` |
    | `turn_limit` | turns of one session; None is no bound | the step is `truncated` |
    | `max_abandoned` | cancelled calls that run on all the same; at most `max_sessions` | `AtCapacity` |
    | `max_depth` | environments in one chain of calls | `TooDeep` |
    | `max_visits` | how often this environment may be in one chain | `CallCycle` |

    Raises `ConfigurationError` for a bound that nothing could stay within.
    """

    max_message_bytes: int = 4 * 1024 * 1024
    body_seconds: float = BODY_SECONDS
    max_sessions: int = 10_000
    queue_seconds: float = 10.0
    max_queued_turns: int = 64
    idle_seconds: float = 1800.0
    turn_seconds: float = 600.0
    turn_limit: int | None = None
    max_abandoned: int = 256
    max_depth: int = 8
    max_visits: int = 2

    @property
    def max_request_bytes(self) -> int:
        """The longest request that a face reads.

        JSON may make a message three times as long (two bytes become six in `\\u00e9`), and a request has more in it
        than its message.
        """
        return 3 * self.max_message_bytes + 64 * 1024

    def __post_init__(self) -> None:
        for field in _POSITIVE:
            if not getattr(self, field) > 0:
                raise ConfigurationError(f"Limits({field}={getattr(self, field)!r}) must be above 0")
        for field in ("queue_seconds", "max_queued_turns"):
            if not getattr(self, field) >= 0:
                raise ConfigurationError(f"Limits({field}={getattr(self, field)!r}) must not be negative")
        if self.turn_limit is not None and self.turn_limit < 1:
            raise ConfigurationError(f"Limits(turn_limit={self.turn_limit!r}) must be at least 1, or None for no bound")
