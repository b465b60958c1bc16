"""Runs on disk: the curve of a training, and checkpoints that a stop at any moment leaves whole."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

from agent_env.episodes.lines import LineFile, replacing
from agent_env.errors import ConfigurationError
from agent_env.training.curves import read_curve
from agent_env.training.folders import (
    is_locked,
    link,
    locked,
    order,
    put_in_place,
    read_object,
    remove,
    sync,
    sync_folder,
    whole_checkpoints,
)

if TYPE_CHECKING:
    from agent_env.training.policy import Policy

log = logging.getLogger("agent_env.training")

State: TypeAlias = Literal["running", "stopped", "finished"]

RUNS = "runs"
"""The folder of runs, where none is named."""

_ABOUT = "run.json"
_CURVE = "curve.jsonl"
_CHECKPOINTS = "checkpoints"
_CHECKPOINT = "checkpoint.json"
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})
"""What a folder cannot be renamed to: a folder with something in it, or a file."""
_END_OF_TIME = 253402214400
"""The last second, of 1970, that `time` can tell the date of everywhere: the last day of the year 9999."""


class Savable(Protocol):
    """What a checkpoint keeps: a `Policy`, or whatever else writes itself into a folder."""

    @property
    def trainable(self) -> bool: ...
    @property
    def version(self) -> int: ...
    def save(self, directory: Path) -> None: ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What training goes on from: the policies after an update, and whatever `state` was kept with them."""

    folder: Path
    update: int
    state: Mapping[str, Any]
    folders: Mapping[str, str]

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of the policies in it."""
        return tuple(self.folders)

    def path(self, policy: str) -> Path:
        """The folder of one policy, which is also one of a model; raises `ConfigurationError` for one it has not."""
        if policy not in self.folders:
            raise ConfigurationError(
                f"the checkpoint {str(self.folder)!r} has no policy {policy!r}; it has {', '.join(self.folders)}"
            )
        return self.folder / self.folders[policy]

    def load(self, policy: str, *, device: str | None = None) -> Policy:
        """Reads one policy, to go on exactly where it was."""
        from agent_env.training.policy import Policy

        return Policy.load(self.path(policy), device=device)


class Run:
    """The folder of one training: `run.json` says what it is, `curve.jsonl` has a line an update, `episodes.db` what
    was played, `checkpoints/` the policies.

        with Run.create("runs", {"scenario": "duel"}) as run:
            for update in range(100):
                …
                run.record({"update": update, "reward": {"player": 0.4}})
                run.save(update, {"player": policy}, state={"pool": [3, 7]})
            run.finish()

        with Run.open("runs/2026-01-31_09-30-00") as run:
            checkpoint = run.resume()                    # the newest that is whole; the curve is cut to it
            policy = checkpoint.load("player")

    A checkpoint is written aside and then renamed, so whoever is killed leaves the one before. One process at a time
    has a run open; `Run.read` looks at one that may be running.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], lock: int | None = None) -> None:
        self.folder = folder
        self.about = dict(about)
        self._lock = lock
        self._lines: LineFile | None = None
        self._written: dict[str, tuple[object, int, Path]] = {}

    @classmethod
    def create(cls, runs: str | Path = RUNS, about: Mapping[str, Any] | None = None, *, name: str | None = None) -> Run:
        """Begins a run in a folder of its own, named by the time; `about` is JSON for people and for `--resume`.

        The folder is made aside and then renamed, so whoever is killed leaves no name taken. Raises
        `ConfigurationError` when there is one of that name, or where none can be made.
        """
        if name is not None:
            _check_name(name)
        begun = time.strftime("%Y-%m-%d_%H-%M-%S")
        try:
            Path(runs).mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(prefix=".begun-", dir=runs))
            aside.chmod(0o755)
        except OSError as error:
            raise ConfigurationError(f"no run can be made in {str(runs)!r}: {error.strerror}") from error
        run = cls(aside, {"created": time.time(), "finished": False, **(about or {})}, locked(aside))
        try:
            run._write_about()
            sync(aside)
            for number in range(1, 1000):
                folder = Path(runs) / (name or (begun if number == 1 else f"{begun}_{number}"))
                try:
                    # Takes the place of nothing but an empty folder.
                    aside.rename(folder)
                except OSError as error:
                    if name is None and error.errno in _TAKEN:
                        continue
                    raise _not_made(folder, error) from None
                run.folder = folder
                sync_folder(Path(runs))
                return run
            raise ConfigurationError(f"there is no free name for a run in {str(runs)!r}")  # pragma: no cover
        except BaseException:
            run.close()
            shutil.rmtree(aside, ignore_errors=True)
            raise

    @classmethod
    def read(cls, folder: str | Path) -> Run:
        """Reads a run without opening it; raises `ConfigurationError` for a folder that is none, or a damaged one."""
        place = Path(folder)
        try:
            about = read_object(place / _ABOUT)
        except OSError:
            raise ConfigurationError(
                f"{str(place)!r} is no run; `agent-env runs list` shows what there is in {RUNS!r}, or in --runs DIR"
            ) from None
        except ValueError as error:
            raise ConfigurationError(
                f"{str(place / _ABOUT)!r} {error}; put it right, or move the folder {str(place)!r} away"
            ) from None
        created = about.setdefault("created", 0.0)
        if isinstance(created, bool) or not isinstance(created, int | float) or not 0 <= created < _END_OF_TIME:
            raise ConfigurationError(f"{str(place / _ABOUT)!r} has a `created` of {created!r:.100}, which is no time")
        return cls(place, about)

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """Opens a run to go on with it; raises `ConfigurationError` while another process has it open."""
        run = cls.read(folder)
        run._lock = locked(run.folder)
        return run

    @classmethod
    def open_unmade(cls, runs: str | Path, name: str) -> Run | None:
        """Opens the run of a name to begin it anew, if it has made no update and no checkpoint; else gives None.

        Raises `ConfigurationError` for what can be no name, and while another process has the run open.
        """
        _check_name(name)
        folder = Path(runs) / name
        try:
            cls.read(folder)
        except ConfigurationError:
            return None  # there is none, or none that can be gone on with
        with contextlib.ExitStack() as stack:
            run = stack.enter_context(cls.open(folder))
            if not (run.about.get("finished") or run.curve() or any(whole_checkpoints(folder / _CHECKPOINTS))):
                stack.pop_all()
                return run
        return None

    @property
    def id(self) -> str:
        """The name of the folder."""
        return self.folder.name

    @property
    def episodes(self) -> Path:
        """Where the episodes of the run belong."""
        return self.folder / "episodes.db"

    @property
    def state(self) -> State:
        """Whether some process has it open, it came to its end, or neither."""
        if self._lock is not None or is_locked(self.folder):
            return "running"
        return "finished" if self.about.get("finished") else "stopped"

    def curve(self) -> list[dict[str, Any]]:
        """The lines of the curve, one an update: its number `update`, and `reward`, the mean by seat, or of the "team".

        A line that was being written when its writer died is none. Raises `ConfigurationError` for a damaged one.
        """
        path = self.folder / _CURVE
        return read_curve(path) if path.exists() else []

    def record(self, line: Mapping[str, Any]) -> None:
        """Adds a line to the curve, with an `update` and a `reward`; it is on disk when this returns."""
        self._opened()
        if self._lines is None:
            self._lines = LineFile(self.folder / _CURVE, fsync=True)
        self._lines.append(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    def save(
        self,
        update: int,
        policies: Mapping[str, Savable],
        *,
        state: Mapping[str, Any] | None = None,
        keep: int = 2,
    ) -> Checkpoint:
        """Writes a checkpoint, whole or not at all, and removes all but the newest `keep`.

        A frozen policy that was written before is linked, not written again.
        """
        self._opened()
        checkpoints = self.folder / _CHECKPOINTS
        if update < 0:
            raise ConfigurationError(f"updates are numbered from 0, so none is {update}")
        aside = checkpoints / f".{update:06d}.partial"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        folders = {name: f"{place}-{re.sub(r'[^A-Za-z0-9_-]', '-', name)[:60]}" for place, name in enumerate(policies)}
        for name, policy in policies.items():
            self._write_policy(name, policy, aside / folders[name])
        kept = dict(state or {})
        about = {"update": update, "saved": time.time(), "policies": folders, "state": kept}
        (aside / _CHECKPOINT).write_text(json.dumps(about, allow_nan=False), "utf-8")
        sync(aside)
        whole = put_in_place(aside, update)
        # Those that learn are written each time; to hold on to them would keep what nobody plays with any more.
        self._written = {
            name: (policy, policy.version, whole / folders[name])
            for name, policy in policies.items()
            if not policy.trainable
        }
        for older in sorted(whole_checkpoints(checkpoints), key=order, reverse=True)[max(keep, 1) :]:
            remove(older)
        return Checkpoint(whole, update, kept, folders)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint; None before the first one."""
        found = max(whole_checkpoints(self.folder / _CHECKPOINTS), key=order, default=None)
        if found is None:
            return None
        try:
            about = read_object(found / _CHECKPOINT)
            return Checkpoint(found, int(about["update"]), dict(about["state"]), dict(about["policies"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            said = f"{type(error).__name__}: {error}"
            raise ConfigurationError(
                f"the checkpoint {str(found)!r} is damaged ({said}); move it away to go on from the one before"
            ) from None

    def resume(self) -> Checkpoint | None:
        """The newest checkpoint, with the curve cut to its update, so that a lost update is on it once; None where
        there is none, and then the curve is empty."""
        self._opened()
        checkpoint = self.latest()
        reached = 0 if checkpoint is None else checkpoint.update
        kept = [line for line in self.curve() if line["update"] <= reached]
        self._close_curve()
        with replacing(self.folder / _CURVE) as file:
            file.writelines(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in kept)
        for partial in (self.folder / _CHECKPOINTS).glob(".*"):
            shutil.rmtree(partial, ignore_errors=True)
        if self.about.get("finished"):
            self.tell(finished=False)
        return checkpoint

    def tell(self, **about: Any) -> None:
        """Changes what the run says about itself."""
        self._opened()
        self.about |= about
        self._write_about()

    def finish(self) -> None:
        """Says that the run came to its end."""
        self.tell(finished=True)

    def close(self) -> None:
        """Lets others open the run; harmless when it is closed."""
        self._close_curve()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _opened(self) -> None:
        if self._lock is None:
            raise ConfigurationError(f"the run {self.id!r} is not open; Run.open({str(self.folder)!r}) opens it")

    def _close_curve(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _write_policy(self, name: str, policy: Savable, folder: Path) -> None:
        """Writes a policy; one that is frozen and was written before is linked."""
        known, version, written = self._written.get(name, (None, -1, Path()))
        if known is policy and version == policy.version and not policy.trainable and written.exists():
            shutil.copytree(written, folder, copy_function=link)
        else:
            folder.mkdir()
            policy.save(folder)

    def _write_about(self) -> None:
        with replacing(self.folder / _ABOUT) as file:
            file.write(json.dumps(self.about, ensure_ascii=False, indent=2).encode())


def list_runs(runs: str | Path = RUNS) -> list[Run]:
    """The runs in a folder, the newest last; a damaged one is passed over with a warning."""
    found, damaged = read_runs(runs)
    for error in damaged:
        log.warning("%s", error.message)
    return found


def read_runs(runs: str | Path = RUNS) -> tuple[list[Run], list[ConfigurationError]]:
    """The runs in a folder, the newest last, and what is wrong with those that cannot be read."""
    found: list[Run] = []
    damaged: list[ConfigurationError] = []
    for about in sorted(Path(runs).glob(f"*/{_ABOUT}")):
        if about.parent.name.startswith("."):
            continue  # one that is being made
        try:
            found.append(Run.read(about.parent))
        except ConfigurationError as error:
            damaged.append(error)
    return sorted(found, key=lambda run: (run.about["created"], run.id)), damaged


def find_run(runs: str | Path = RUNS, name: str | None = None) -> Run:
    """The run of a name, or at a path, or else the newest; raises `ConfigurationError` when there is none."""
    if name is not None:
        inside = Path(runs) / name
        return Run.read(inside if _is_name(name) and (inside / _ABOUT).exists() else name)
    found = list_runs(runs)
    if not found:
        raise ConfigurationError(f"there are no runs in {str(runs)!r}; `agent-env train` makes one")
    return found[-1]


def _is_name(name: str) -> bool:
    return name not in {"", ".", ".."} and not set(name) & {"/", os.sep, "\0"}


def _check_name(name: str) -> None:
    if not _is_name(name) or name.startswith(".") or name != name.strip():
        raise ConfigurationError(
            f"a run cannot have the name {name!r:.200}: it is that of a folder, without slashes, spaces around it or a "
            "dot before it"
        )


def _not_made(folder: Path, error: OSError) -> ConfigurationError:
    if error.errno in _TAKEN:
        return ConfigurationError(f"there is a run {str(folder)!r} already; resume it, or name another")
    return ConfigurationError(f"the run {str(folder)!r:.300} cannot be made: {error.strerror}")
