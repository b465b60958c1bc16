"""What one WebSocket connection has yet to send, and what it may have to send again, within bounds."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from agent_env.net.frames import encode_message

LEAST_BYTES = 16 * 1024 * 1024
"""What a connection may always hold before its calls wait."""

HARD = 4
"""How many times that may be held when calls that run already answer; beyond it the connection is closed."""


class _Numbered(NamedTuple):
    seq: int
    answers: int | None
    text: str


class Outbox:
    """Keeps messages encoded, so that each is encoded once and its size is known.

    Numbered messages are held until the client acknowledges them, others until the socket takes them.
    """

    def __init__(self, most: int) -> None:
        self._most = max(most, LEAST_BYTES)
        self._pending: list[str] = []
        self._passing = 0
        self._sent: deque[_Numbered] = deque()
        self._unacknowledged = 0
        self._seq = 0
        self._room = asyncio.Event()
        self.wake = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether new calls wait: more is held than a client leaves unacknowledged that takes in its answers."""
        return self._passing + self._unacknowledged > self._most

    @property
    def overflown(self) -> bool:
        """Whether nothing more may be held; one message alone is never too much."""
        return self._passing + self._unacknowledged > HARD * self._most

    @property
    def unacknowledged(self) -> bool:
        """Whether the client may ask for something again."""
        return bool(self._sent)

    async def room(self) -> None:
        """Returns when the outbox is not full."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    def put(self, message: dict[str, Any]) -> None:
        """Takes a message that is sent once."""
        text = encode_message(message)
        self._passing += sys.getsizeof(text)
        self._pending.append(text)
        self.wake.set()

    def number(self, message: dict[str, Any], *, answers: int | None, now: bool) -> None:
        """Takes a message that is sent until it is acknowledged; `answers` is the call that it ends.

        Without `now` it waits for the next socket. Raises what `encode_message` raises.
        """
        text = encode_message({**message, "seq": self._seq + 1})
        self._seq += 1
        self._unacknowledged += sys.getsizeof(text)
        self._sent.append(_Numbered(self._seq, answers, text))
        if now:
            self._pending.append(text)
            self.wake.set()

    def acknowledge(self, seq: int) -> Iterator[int]:
        """Forgets what the client has; yields the calls whose answers it has."""
        while self._sent and self._sent[0].seq <= seq:
            message = self._sent.popleft()
            self._unacknowledged -= sys.getsizeof(message.text)
            if message.answers is not None:
                yield message.answers
        self._room.set()

    def begin(self, message: dict[str, Any], *, again: bool) -> None:
        """Starts on a new socket with this message, and `again` with all that is not acknowledged."""
        self._pending, self._passing = [], 0
        self.put(message)
        if again:
            self._pending += [message.text for message in self._sent]

    def take(self) -> str | None:
        """Makes one frame of what is to be sent now, if there is anything."""
        if not self._pending:
            return None
        texts, self._pending, self._passing = self._pending, [], 0
        self._room.set()
        return f"[{','.join(texts)}]"

    def clear(self) -> None:
        """Forgets everything."""
        self._pending, self._passing = [], 0
        self._sent.clear()
        self._unacknowledged = 0
        self._room.set()
