"""How peers were chosen, kept once a database: what many episodes tell in the same words is stored by its content."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from hashlib import blake2b

from agent_env.episodes.episode import Episode
from agent_env.errors import ProtocolError

_LEAST = 100
"""Characters from which on a pairing is shorter by its name."""

_MARK = "§"
# The text of an episode is ASCII, so that nothing in it can be taken for a name.
_NAME = re.compile(f"{_MARK}([0-9a-f]{{32}}){_MARK}")


def parted(episode: Episode, body: str) -> tuple[str, dict[str, str]]:
    """The JSON text of an episode with its pairings named, and the text of each by its name."""
    parts: dict[str, str] = {}
    for text in sorted(set(_pairings(episode)), key=lambda text: (-len(text), text)):
        if len(text) >= _LEAST and text in body:
            name = blake2b(text.encode(), digest_size=16).hexdigest()
            body = body.replace(text, f"{_MARK}{name}{_MARK}")
            parts[name] = text
    return body, parts


def joined(body: str, find: Callable[[str], str | None]) -> str:
    """The text of an episode as it was before it was parted; `find` gives the text of a name.

    Raises `ProtocolError` for a name that nothing is known of.
    """

    def text(found: re.Match[str]) -> str:
        part = find(found[1])
        if part is None:
            raise ProtocolError(f"a stored episode tells of the pairing {found[1]}, which its file has lost")
        return part

    return _NAME.sub(text, body) if _MARK in body else body


def _pairings(episode: Episode) -> Iterator[str]:
    for edge in episode.edges:
        if edge.pairing:
            yield _text(edge.pairing)
    for trace in episode.traces:
        for turn in trace.turns:
            for pairing in (turn.pairings or {}).values():
                if pairing:
                    yield _text(pairing)


def _text(pairing: object) -> str:
    return json.dumps(pairing, separators=(",", ":"))
