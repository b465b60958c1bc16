"""Episodes wherever they are kept: a database, a file of lines, or the folder of a run."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, Unpack

from agent_env.episodes.choice import Choice, chosen_by
from agent_env.episodes.database import EpisodeStore
from agent_env.episodes.episode import Episode
from agent_env.episodes.store import EpisodeReader, newest_of
from agent_env.episodes.summary import EpisodeSummary
from agent_env.errors import ConfigurationError

NAMES = ("episodes.db", "episodes.jsonl")
"""The files of episodes that the folder of a run may have."""

_SQLITE = b"SQLite format 3\x00"


class EpisodeSource(Protocol):
    """What episodes can be read from, whatever keeps them."""

    @property
    def torn(self) -> int:
        """Bytes of an unfinished end that a killed writer left, known once everything was read."""
        ...

    def get(self, episode: str, /) -> Episode | None:
        """The episode with this id, None if there is none."""
        ...

    def find(self, **choice: Unpack[Choice]) -> Iterator[Episode]:
        """The episodes that are chosen, in the order of their arrival."""
        ...

    def summaries(self, **choice: Unpack[Choice]) -> Iterator[EpisodeSummary]:
        """The outlines of the episodes that are chosen, in the order of their arrival."""
        ...

    def lines(self, **choice: Unpack[Choice]) -> Iterator[str]:
        """The episodes that are chosen, each as one line of JSON without its end."""
        ...

    def count(self, **choice: Unpack[Choice]) -> int:
        """How many episodes are chosen."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


class EpisodeFile:
    """Reads a JSONL file of episodes as a database is read; each question reads the file once."""

    def __init__(self, path: str | Path) -> None:
        self._reader = EpisodeReader(path)
        self.path = Path(path)

    @property
    def torn(self) -> int:
        """Bytes of a last line without an end, known once everything was read."""
        return self._reader.torn

    def get(self, episode: str) -> Episode | None:
        """The newest episode with this id, None if there is none."""
        return newest_of(self._reader, episode)

    def find(self, **choice: Unpack[Choice]) -> Iterator[Episode]:
        """The episodes that are chosen, in the order of their arrival."""
        chosen = filter(chosen_by(choice), self._reader)
        limit = choice.get("limit")
        if not choice.get("newest_first"):
            return islice(chosen, limit)
        return iter(reversed(deque(chosen, maxlen=limit)))

    def summaries(self, **choice: Unpack[Choice]) -> Iterator[EpisodeSummary]:
        """The outlines of the episodes that are chosen, in the order of their arrival."""
        return map(EpisodeSummary.of, self.find(**choice))

    def lines(self, **choice: Unpack[Choice]) -> Iterator[str]:
        """The episodes that are chosen, each as one line of JSON without its end."""
        return (json.dumps(episode.to_json(), separators=(",", ":")) for episode in self.find(**choice))

    def count(self, **choice: Unpack[Choice]) -> int:
        """How many episodes are chosen."""
        return sum(1 for _ in self.find(**choice))

    def __len__(self) -> int:
        return self.count()

    def __iter__(self) -> Iterator[Episode]:
        return self.find()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


def open_episodes(path: str | Path) -> EpisodeStore | EpisodeFile:
    """Opens episodes for reading: a database or a file of JSON lines, told apart by content, or a run's folder.

    Raises `ConfigurationError` where there are none, and for a folder with both kinds.
    """
    path = _file(Path(path))
    return EpisodeStore(path, readonly=True) if is_database(path) else EpisodeFile(path)


def is_database(path: Path) -> bool:
    """Tells by its beginning whether a file is a database; raises `ConfigurationError` for one that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = [path / name for name in NAMES if (path / name).exists()]
    if len(found) == 1:
        return found[0]
    names = " and ".join(NAMES)
    if found:
        raise ConfigurationError(f"{str(path)!r} has both {names}; name the one that you mean")
    raise ConfigurationError(f"{str(path)!r} has neither {names.replace(' and ', ' nor ')}; name a file of episodes")
