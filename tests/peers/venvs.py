"""Virtual environments for other projects' packages: `python tests/peers/venvs.py NAME` makes one and prints its Python.

`venvs.toml` pins what each has. An environment is kept in `.venvs/` until its pins change.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINS = Path(__file__).with_name("venvs.toml")
MINUTES_TO_INSTALL = 10
GIGABYTES_WITH_TORCH, GIGABYTES_WITHOUT = 2.5, 0.5


def python_of(name: str) -> Path:
    """The Python of an environment, which uv makes at its first use.

    The file names every package, and these are installed and no others: trainers drag stacks for GPUs behind them that
    nobody uses here. Only torch comes with what it needs, which is little for its CPU build. pip installs them, since
    it is told where such a build lies. Raises `RuntimeError` with what the command said that failed, or where the disk
    is too full to begin.
    """
    pins = packages(name)
    wanted = hashlib.sha256("\n".join([*pins, sys.version]).encode()).hexdigest()
    home = ROOT / ".venvs" / name
    python, made = home / "bin" / "python", home / "made-from"
    home.parent.mkdir(exist_ok=True)
    # Processes that run side by side make it once.
    with (home.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.read_text("utf-8") != wanted:
            shutil.rmtree(home, ignore_errors=True)
            torch = [pin for pin in pins if pin.startswith("torch==")]
            _refuse_a_full_disk(home, GIGABYTES_WITH_TORCH if torch else GIGABYTES_WITHOUT)
            _run(sys.executable, "-m", "uv", "venv", "--quiet", "--seed", "--python", sys.executable, str(home))
            install = (str(python), "-m", "pip", "install", "--quiet")
            if torch:
                _run(*install, *torch)
            _run(*install, "--no-deps", *pins)
            made.write_text(wanted, "utf-8")
    return python


def packages(name: str) -> list[str]:
    """What an environment has, as pip is asked for it; raises `KeyError` for a name that there is not."""
    found: list[str] = tomllib.loads(PINS.read_text("utf-8"))[name]
    return found


def _refuse_a_full_disk(home: Path, gigabytes: float) -> None:
    """A full disk is said before the work: later it shows as whatever happens to be written then."""
    free = shutil.disk_usage(home.parent).free / 1e9
    if free < gigabytes:
        raise RuntimeError(
            f"{home} may take {gigabytes} GB, and its disk has {free:.1f} GB free: make room and run again"
        )


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * MINUTES_TO_INSTALL, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")


if __name__ == "__main__":
    print(python_of(sys.argv[1]))
