"""The WebSocket protocol: many calls over one socket, several messages in one frame.

A frame is a JSON array of messages. A message is an object; `id` numbers the client's calls.

| from | message | meaning |
|---|---|---|
| server | `{"hello": {connection, resume_seconds, window, max_frame, digest}}` | the first message on a new connection |
| client | `{"id", "verb", "arguments", "context"?, "run"?, "stream"?}` | call a verb |
| client | `{"cancel": id}` | stop the call; it answers with an error |
| client | `{"taken": n, "of": id}` | n events of the call were taken in since its start |
| server | `{"id", "event", "seq"}` | an event of a streamed call |
| server | `{"id", "result", "seq"}`, `{"id", "error", "seq"}` | the answer |
| client | `{"ack": seq}` | everything up to `seq` was received |
| client | `{"resume": connection, "seen": seq}` | first message on a new socket: go on where the old one broke |
| server | `{"resumed": true}` or `{"resumed": false}` | it goes on, with what was not seen sent again; or it is gone |

The server sends at most `window` events of a call ahead of what the client has taken in. A socket that breaks leaves its calls
running for `resume_seconds`; a client that resumes sends its unanswered calls, its cancels and what it has taken in
again, and calls that the server has are not started twice. A frame of the client has at most `max_frame` characters; a
longer one closes the socket, and with it the calls of others, so a client waits for the hello. The server holds what is
not acknowledged: new calls wait while that is much, and a client that acknowledges nothing, or goes on sending what are
no messages of this protocol, has its socket closed (1008). `context` has the keys of W3C Trace Context and Baggage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from agent_env.errors import ProtocolError

RESUME_SECONDS: Final = 10.0
WINDOW: Final = 64
ACK_EVERY: Final = 32
"""How many messages a client takes in before it acknowledges them."""
ACK_LENGTH: Final = 1024 * 1024
"""How many characters a client takes in before it acknowledges them, however few the messages are."""

SUBPROTOCOL: Final = "agent-env.v1"


def encode_message(message: Any) -> str:
    """Makes the text of one message; what UTF-8 cannot hold (a lone surrogate) is escaped.

    Raises `TypeError`, `ValueError` or `RecursionError` for what is no JSON, as NaN is none.
    """
    text = json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return json.dumps(message, separators=(",", ":"))
    return text


def encode_frame(messages: Iterable[Any]) -> str:
    """Makes one frame of several messages."""
    return encode_message(list(messages))


def pack(texts: Iterable[str], most: int) -> Iterator[str]:
    """Makes frames of messages that are encoded already: as few as hold them with at most `most` characters each.

    A message that is longer has a frame of its own, which is then too long.
    """
    frame: list[str] = []
    length = 0
    for text in texts:
        if frame and length + len(text) + 2 > most:
            yield f"[{','.join(frame)}]"
            frame, length = [], 0
        frame.append(text)
        length += len(text) + 1
    if frame:
        yield f"[{','.join(frame)}]"


def decode_frame(frame: str | bytes) -> list[dict[str, Any]]:
    """Reads a frame; a single message need not be in an array. Raises `ProtocolError` for anything else."""
    try:
        value = json.loads(frame, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ProtocolError(f"the frame {frame!r:.100} is not JSON, or is nested too deeply") from None
    messages = value if isinstance(value, list) else [value]
    if not all(isinstance(message, dict) for message in messages):
        raise ProtocolError(f"the frame {frame!r:.100} is not an array of objects")
    return messages


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")
