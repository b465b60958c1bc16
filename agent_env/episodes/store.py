"""Episodes on disk: JSON lines, one episode each."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from agent_env.episodes.episode import Episode
from agent_env.episodes.lines import LineFile, LineReader
from agent_env.errors import ProtocolError


class EpisodeWriter:
    """Appends episodes to a file.

        with EpisodeWriter("runs/today/episodes.jsonl") as store:
            store.append([episode])

    When `append` returns, the episodes survive the death of the process.
    """

    def __init__(self, path: str | Path, *, fsync: bool = False) -> None:
        self._file = LineFile(path, fsync=fsync)

    @property
    def torn(self) -> int:
        """Bytes of an unfinished line that an earlier writer left and that were cut off."""
        return self._file.torn

    def append(self, episodes: Iterable[Episode]) -> None:
        """Writes episodes, all in one piece."""
        self._file.append(b"".join(map(line_of, episodes)))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class EpisodeReader:
    """Reads the episodes of a file, oldest first; `torn` says how many bytes of an unfinished last line there are.

    Raises `ProtocolError`, with the number of the line, for one that is no episode.
    """

    def __init__(self, path: str | Path) -> None:
        self._lines = LineReader(path)

    @property
    def torn(self) -> int:
        """Bytes of a last line without an end, known once everything was read."""
        return self._lines.torn

    def __iter__(self) -> Iterator[Episode]:
        for _, value in self._lines:
            try:
                episode = Episode.from_json(value)
            except ProtocolError as error:
                raise self._lines.refusal(f"is no episode: {error.message}") from None
            yield episode


def find_episode(path: str | Path, episode: str) -> Episode | None:
    """The newest episode with this id, None if the file has none."""
    return newest_of(EpisodeReader(path), episode)


def newest_of(episodes: Iterable[Episode], episode: str) -> Episode | None:
    """The last episode with this id: one that was played again was appended again. None if there is none."""
    last = deque((found for found in episodes if found.id == episode), maxlen=1)
    return last[0] if last else None


def line_of(episode: Episode) -> bytes:
    """The episode as a line of JSON, with its end."""
    return json.dumps(episode.to_json(), separators=(",", ":")).encode() + b"\n"
