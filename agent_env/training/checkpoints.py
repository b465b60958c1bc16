"""Runs on disk: the curve of a training, and checkpoints that a stop at any moment leaves whole."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

from agent_env.episodes.lines import LineFile, LineReader, replacing
from agent_env.errors import ConfigurationError

if TYPE_CHECKING:
    from agent_env.training.policy import Policy

State: TypeAlias = Literal["running", "stopped", "finished"]

RUNS = "runs"
"""The folder of runs, where none is named."""

_ABOUT = "run.json"
_CURVE = "curve.jsonl"
_LOCK = "run.lock"
_CHECKPOINTS = "checkpoints"
_CHECKPOINT = "checkpoint.json"


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

        Raises `ConfigurationError` when there is one of that name.
        """
        begun = time.strftime("%Y-%m-%d_%H-%M-%S")
        for number in range(1, 1000):
            folder = Path(runs) / (name or (begun if number == 1 else f"{begun}_{number}"))
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                if name is not None:
                    raise ConfigurationError(
                        f"there is a run {str(folder)!r} already; resume it, or name another"
                    ) from None
            else:
                break
        else:  # pragma: no cover - a thousand runs in one second
            raise ConfigurationError(f"there is no free name for a run in {str(runs)!r}")
        lock = _locked(folder)
        run = cls(folder, {"created": time.time(), "finished": False, **(about or {})}, lock)
        run._write_about()
        return run

    @classmethod
    def read(cls, folder: str | Path) -> Run:
        """Reads a run without opening it; raises `ConfigurationError` for a folder that is none."""
        place = Path(folder)
        try:
            about = json.loads((place / _ABOUT).read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigurationError(
                f"{str(place)!r} is no run; `agent-env runs list` shows what there is in {RUNS!r}, or in --runs DIR"
            ) from None
        return cls(place, about)

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """Opens a run to go on with it; raises `ConfigurationError` while another process has it open."""
        run = cls.read(folder)
        run._lock = _locked(run.folder)
        return run

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
        if self._lock is not None or _is_locked(self.folder):
            return "running"
        return "finished" if self.about.get("finished") else "stopped"

    def curve(self) -> list[dict[str, Any]]:
        """The lines of the curve, one an update; a line that was being written when its writer died is none."""
        path = self.folder / _CURVE
        return [line for _, line in LineReader(path)] if path.exists() else []

    def record(self, line: Mapping[str, Any]) -> None:
        """Adds a line to the curve; it is on disk when this returns."""
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
        aside = checkpoints / f".{update:06d}.partial"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        folders: dict[str, str] = {}
        for place, (name, policy) in enumerate(policies.items()):
            folders[name] = f"{place}-{re.sub(r'[^A-Za-z0-9_-]', '-', name)[:60]}"
            known, version, written = self._written.get(name, (None, -1, Path()))
            if known is policy and version == policy.version and not policy.trainable and written.exists():
                shutil.copytree(written, aside / folders[name], copy_function=_link)
            else:
                (aside / folders[name]).mkdir()
                policy.save(aside / folders[name])
        kept = dict(state or {})
        about = {"update": update, "saved": time.time(), "policies": folders, "state": kept}
        (aside / _CHECKPOINT).write_text(json.dumps(about, allow_nan=False), "utf-8")
        _sync(aside)
        whole = checkpoints / f"{update:06d}"
        if whole.exists():
            _remove(whole)
        aside.rename(whole)
        _sync_folder(checkpoints)
        # Those that learn are written each time; to hold on to them would keep what nobody plays with any more.
        self._written = {
            name: (policy, policy.version, whole / folders[name])
            for name, policy in policies.items()
            if not policy.trainable
        }
        for older in sorted(_whole(checkpoints), reverse=True)[keep:]:
            _remove(older)
        return Checkpoint(whole, update, kept, folders)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint; None before the first one."""
        found = max(_whole(self.folder / _CHECKPOINTS), default=None)
        if found is None:
            return None
        about = json.loads((found / _CHECKPOINT).read_text("utf-8"))
        return Checkpoint(found, about["update"], about["state"], about["policies"])

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

    def _write_about(self) -> None:
        with replacing(self.folder / _ABOUT) as file:
            file.write(json.dumps(self.about, ensure_ascii=False, indent=2).encode())


def list_runs(runs: str | Path = RUNS) -> list[Run]:
    """The runs in a folder, the newest last."""
    found = [Run.read(about.parent) for about in Path(runs).glob(f"*/{_ABOUT}")]
    return sorted(found, key=lambda run: (run.about["created"], run.id))


def find_run(runs: str | Path = RUNS, name: str | None = None) -> Run:
    """The run of a name, or at a path, or else the newest; raises `ConfigurationError` when there is none."""
    if name is not None:
        return Run.read(Path(runs) / name if (Path(runs) / name / _ABOUT).exists() else name)
    found = list_runs(runs)
    if not found:
        raise ConfigurationError(f"there are no runs in {str(runs)!r}; `agent-env train` makes one")
    return found[-1]


def _locked(folder: Path) -> int:
    """Locks a run for the life of this process, however that ends."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(20):
        # Whoever looks whether it is locked has it for a moment.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        time.sleep(0.02)
    os.close(lock)
    raise ConfigurationError(f"another process has the run {folder.name!r} open; stop it first, or begin another run")


def _is_locked(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _whole(checkpoints: Path) -> Iterator[Path]:
    """The complete checkpoints of a folder: others have names that begin with a dot."""
    return (found for found in checkpoints.glob("[0-9]*") if found.name.isdigit())


def _remove(checkpoint: Path) -> None:
    aside = checkpoint.with_name(f".{checkpoint.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    checkpoint.rename(aside)
    shutil.rmtree(aside)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


def _sync(folder: Path) -> None:
    """Brings a tree to the disk, files before the folders that name them."""
    for place, _, files in os.walk(folder, topdown=False):
        for name in files:
            file = os.open(Path(place) / name, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)
        _sync_folder(Path(place))


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
