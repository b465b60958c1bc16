"""The formats that `agent-env episodes export --to` writes.

A trainer's format is one line in `FORMATS`: what it is, and where its writer is, which is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, Unpack, cast

if TYPE_CHECKING:
    from agent_env.episodes import Episode
    from agent_env.training.exports.files import Chosen, Written

Writer: TypeAlias = "Callable[[Iterable[Episode], Path], int]"
"""Writes episodes to a path, lazily, and says how many it wrote; raises an `AgentEnvError` for one that has no place in
the format."""


class RowWriter(Protocol):
    """Writes the rows of episodes to a path, of the policies and the seat that are chosen, and says what it wrote."""

    def __call__(self, episodes: Iterable[Episode], path: Path, /, **chosen: Unpack[Chosen]) -> Written: ...


class Format(NamedTuple):
    """A format: what it holds, its writer as `module:function`, and whether that is a writer of rows."""

    what: str
    writer: str
    rows: bool = False


FORMATS: Mapping[str, Format] = {
    "jsonl": Format("one episode a line", "agent_env.episodes.copies:write_lines"),
    "db": Format("a database; what it has already stays", "agent_env.episodes.copies:write_database"),
    "verifiers": Format("records of verifiers v1", "agent_env.training.exports.verifiers:write"),
    "verl": Format("rows as AgentLoopOutputs", "agent_env.training.exports.verl:write", rows=True),
    "trl-async": Format("rows as TRL RolloutSamples", "agent_env.training.exports.trl_async:write", rows=True),
    "prime-rl": Format("rows as TrainingSamples", "agent_env.training.exports.prime_rl:write", rows=True),
    "areal": Format("rows as trajectories", "agent_env.training.exports.areal:write", rows=True),
    "agent-lightning": Format(
        "rows as rollouts and events", "agent_env.training.exports.agent_lightning:write", rows=True
    ),
}


def format_of(name: str | None, path: Path | None) -> str:
    """The format that is asked for, or else that of the file's name, lines where there is no file; raises
    `InvalidArguments` for an unknown one."""
    from agent_env.errors import InvalidArguments

    if name is None:
        return "db" if path is not None and path.suffix in {".db", ".sqlite", ".sqlite3"} else "jsonl"
    if name not in FORMATS:
        raise InvalidArguments(f"there is no format {name!r}; --to takes {', '.join(FORMATS)}")
    return name


def writer_of(name: str) -> Writer:
    """Loads the writer of a format of episodes."""
    return cast(Writer, _load(FORMATS[name].writer))


def row_writer_of(name: str) -> RowWriter:
    """Loads the writer of a format of rows."""
    return cast(RowWriter, _load(FORMATS[name].writer))


def listed() -> str:
    """The formats, for a help text."""
    return "; ".join(f"{name}: {format.what}" for name, format in FORMATS.items())


def _load(writer: str) -> object:
    module, _, function = writer.partition(":")
    return getattr(import_module(module), function)
