"""A process of our own that outlives us: started apart, watched, and ended as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio

from agent_env.errors import LaunchFailed

_TAIL_LINES = 20
_TAIL_BYTES = 4096
_TERMINATE_SECONDS = 3.0
_KEEP_LOGS_SECONDS = 7 * 24 * 3600.0


class Detached:
    """A process in a session of its own, whose output goes to a log file.

    It does not end with us. While we live, it is waited for in a thread, so that it never stays as a zombie.
    """

    def __init__(self, argv: Sequence[str], *, directory: str, env: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.log = log
        try:
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    list(argv),
                    cwd=directory,
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchFailed(
                f"{argv[0]!r} cannot be started in {directory!r}: {error.strerror or error}; push the release again "
                f"from where it can"
            ) from error
        threading.Thread(target=self._process.wait, name=f"wait for {self._process.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    def tail(self) -> str:
        """The last lines of the log."""
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _TAIL_BYTES))
            text = log.read().decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    async def kill(self) -> None:
        """Ends the process and all that it started in its group: asks first, then does not ask."""
        for sign, seconds in ((signal.SIGTERM, _TERMINATE_SECONDS), (signal.SIGKILL, _TERMINATE_SECONDS)):
            # The group may have members when its leader has ended; it is gone when there is nobody to signal.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, sign)
            with anyio.move_on_after(seconds, shield=True):
                while self._group_lives():  # noqa: ASYNC110 - nothing tells when a group is empty
                    await anyio.sleep(0.02)
            if not self._group_lives():
                return

    def _group_lives(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def forget_old_logs(directory: Path) -> None:
    """Deletes the logs of launches that are more than a week old."""
    oldest = time.time() - _KEEP_LOGS_SECONDS
    for log in directory.glob("*.log"):
        with suppress(FileNotFoundError):
            if log.stat().st_mtime < oldest:
                log.unlink()
