"""The usage of a streamed answer, which servers tell only those who ask for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from agent_env.errors import InvalidArguments
from agent_env.gateway.http import parse

_USAGE = re.compile(rb'"usage"\s*:\s*\{')


def ask_for_usage(body: dict[str, Any]) -> bool:
    """Makes a streamed request ask for its usage where it does not; tells whether it was made to.

    A request for the usage in every chunk (`continuous_usage_stats` of vLLM and SGLang) stays as it is: with the wish
    for the whole, its chunks might be others.
    """
    options: Any = body.get("stream_options")
    given: Any = {} if options is None else options
    if body.get("stream") is not True or not isinstance(given, dict):
        return False
    asked = cast("dict[str, Any]", given)
    wish = asked.get("include_usage")
    if not (wish is None or wish is False) or asked.get("continuous_usage_stats"):
        return False
    body["stream_options"] = {**asked, "include_usage": True}
    return True


def wants_usage(request: Mapping[str, Any]) -> bool:
    """Whether a streamed request asks for its usage itself."""
    options = request.get("stream_options")
    return isinstance(options, Mapping) and bool(cast("Mapping[str, Any]", options).get("include_usage"))


class WithoutUsage:
    """A `text/event-stream` as one has it who did not ask for the usage: without the event of no choice that tells it.

    All else goes on byte for byte (WHATWG HTML §9.2), line by line: nothing waits but a line that is not whole yet, and
    the fields of an event that stand before its data.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._before: list[bytes] = []
        self._open = False
        """Whether lines of the event that comes have gone on."""
        self._taken = False
        """Whether it was the usage that its data told."""

    def pass_on(self, piece: bytes) -> bytes:
        """What goes on now that the next bytes came, which may be nothing."""
        begun = self._line or self._before or self._taken
        if not begun and piece.endswith((b"\n\n", b"\r\n\r\n")) and _USAGE.search(piece) is None:
            self._open = False
            return piece  # whole events, as servers write them
        self._line += piece
        if b"\n" not in piece:
            return b""
        *lines, rest = bytes(self._line).split(b"\n")
        self._line = bytearray(rest)
        return b"".join(told for line in lines for told in self._told(line + b"\n"))

    def rest(self) -> bytes:
        """What still waits, of a stream that has ended."""
        rest = b"".join(self._before) + self._line
        self._before, self._line = [], bytearray()
        return rest

    def _told(self, line: bytes) -> list[bytes]:
        if line in (b"\n", b"\r\n"):
            told, self._before = self._before, []
            if self._open or not self._taken:
                told.append(line)
            self._open = self._taken = False
            return told
        if line.startswith(b"data:"):
            # A line of data is an event of its own, as `StreamCapture` has it, whether or not a blank line ends it.
            told, self._before = self._before, []
            self._taken = _tells_usage(line)
            if self._taken:
                return [one for one in told if one.startswith(b":")]
            self._open = True
            return [*told, line]
        if self._open or (line.startswith(b":") and not self._before):
            return [line]
        if not self._taken:
            self._before.append(line)
        return []


def _tells_usage(line: bytes) -> bool:
    if _USAGE.search(line) is None:
        return False
    try:
        told: Any = parse(line[5:].strip())
    except InvalidArguments:
        return False
    if not isinstance(told, dict):
        return False
    event = cast("dict[str, Any]", told)
    return isinstance(event.get("usage"), dict) and not event.get("choices") and not event.get("error")
