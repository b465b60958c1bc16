"""The formats that `agent-env episodes export --to` writes.

A trainer's format is one line in `FORMATS`: what it is, and where its writer is, which is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

if TYPE_CHECKING:
    from agent_env.episodes import Episode

Writer: TypeAlias = "Callable[[Iterable[Episode], Path], int]"
"""Writes episodes to a path, lazily, and says how many it wrote; raises an `AgentEnvError` for one that has no place in
the format."""


class Format(NamedTuple):
    """A format: what it holds, and its writer as `module:function`."""

    what: str
    writer: str


FORMATS: Mapping[str, Format] = {
    "jsonl": Format("one episode a line", "agent_env.episodes.copies:write_lines"),
    "db": Format("a database; what it has already stays", "agent_env.episodes.copies:write_database"),
    "verifiers": Format("records of verifiers v1", "agent_env.training.exports.verifiers:write"),
    "verl": Format("rows as AgentLoopOutputs", "agent_env.training.exports.verl:write"),
    "trl-async": Format("rows as TRL RolloutSamples", "agent_env.training.exports.trl_async:write"),
    "prime-rl": Format("rows as TrainingSamples", "agent_env.training.exports.prime_rl:write"),
    "areal": Format("rows as trajectories", "agent_env.training.exports.areal:write"),
    "agent-lightning": Format("rows as rollouts and events", "agent_env.training.exports.agent_lightning:write"),
}


def format_of(name: str | None, path: Path) -> str:
    """The format that is asked for, or else that of the file's name; raises `InvalidArguments` for an unknown one."""
    from agent_env.errors import InvalidArguments

    if name is None:
        return "db" if path.suffix in {".db", ".sqlite", ".sqlite3"} else "jsonl"
    if name not in FORMATS:
        raise InvalidArguments(f"there is no format {name!r}; --to takes {', '.join(FORMATS)}")
    return name


def writer_of(name: str) -> Writer:
    """Loads the writer of a format."""
    module, _, function = FORMATS[name].writer.partition(":")
    return cast(Writer, getattr(import_module(module), function))


def listed() -> str:
    """The formats, for a help text."""
    return "; ".join(f"{name}: {format.what}" for name, format in FORMATS.items())
