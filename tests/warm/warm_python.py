"""Python processes that start warm: each is forked from one that has imported what the commands import.

An interpreter that imports an SDK or two takes a second to start, and a fork a hundredth of one. The process is one of
its own in all else: arguments, environment, folder, streams, signals and status. What looks at the environment as it is
imported sees that of the process that forks: `COLUMNS` is for all the same.

    python warm_python.py SOCKET     forks a process for each request, until its standard input ends
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

PRELOADED = (
    "a2a.server",
    "a2a.types",
    "agent_env.cli.application",
    "agent_env.client.environment",
    "agent_env.client.lanes.websocket",
    "agent_env.hub.app",
    "agent_env.hub.local",
    "agent_env.launch",
    "agent_env.matchmaking",
    "agent_env.serving.app",
    "agent_env.serving.run",
    "agent_env.serving.server",
    "agent_env_cards",
    "mcp.server",
    "rich.json",
    "rich.tree",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)
REQUEST_BYTES = 1 << 20
START_SECONDS = 60.0


class WarmProcess:
    """A process that was forked; a part of what `subprocess.Popen` is."""

    def __init__(self, connection: socket.socket, stdout: IO[str]) -> None:
        self._connection = connection
        self.stdout = stdout
        self.returncode: int | None = None
        connection.settimeout(START_SECONDS)
        self.pid = self._number()

    def wait(self, timeout: float) -> int:
        """The status, as `subprocess` gives it; raises `TimeoutError` where it has none in time."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            self.returncode = os.waitstatus_to_exitcode(self._number())
            self._connection.close()
        return self.returncode

    def send_signal(self, kind: signal.Signals) -> None:
        """Sends a signal, unless the process is known to have ended."""
        if self.returncode is None:
            os.kill(self.pid, kind)

    def _number(self) -> int:
        told = self._connection.recv(8, socket.MSG_WAITALL)
        assert len(told) == 8, "the process that forks has ended"
        return int.from_bytes(told, "big")


class WarmPython:
    """Starts modules as `python -m` does; `close` ends the process that forks, and none that it has forked."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._path = str(folder / "warm.sock")
        self._forking = subprocess.Popen(
            [sys.executable, __file__, self._path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**env, "PYTHONUNBUFFERED": "1"},
        )
        assert self._forking.stdout is not None
        assert self._forking.stdout.readline() == b"ready\n"

    def start(self, module: str, *arguments: str, cwd: Path, env: Mapping[str, str]) -> WarmProcess:
        """Starts `python -m module …` with its standard output to be read."""
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb") as out, Path(os.devnull).open("rb") as nothing, os.fdopen(os.dup(2)) as errors:
            connection = self._ask(module, arguments, cwd, env, nothing, out, errors)
        return WarmProcess(connection, os.fdopen(reading, encoding="utf-8"))

    def run(
        self, module: str, *arguments: str, cwd: Path, env: Mapping[str, str], stdin: str, timeout: float
    ) -> tuple[int, str, str]:
        """Runs `python -m module …` to its end; returns its status and what it printed on both streams."""
        with ExitStack() as stack:
            asked, out, errors = (stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(3))
            asked.write(stdin)
            asked.seek(0)
            process = WarmProcess(self._ask(module, arguments, cwd, env, asked, out, errors), out)
            try:
                status = process.wait(timeout)
            except TimeoutError:
                process.send_signal(signal.SIGKILL)
                raise
            out.seek(0)
            errors.seek(0)
            return status, out.read(), errors.read()

    def close(self) -> None:
        """Ends the process that forks."""
        assert self._forking.stdin is not None and self._forking.stdout is not None
        self._forking.stdin.close()
        assert self._forking.wait(START_SECONDS) == 0
        self._forking.stdout.close()

    def _ask(
        self, module: str, arguments: tuple[str, ...], cwd: Path, env: Mapping[str, str], *streams: IO[Any]
    ) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(START_SECONDS)
        connection.connect(self._path)
        request = {"module": module, "arguments": arguments, "cwd": str(cwd), "env": dict(env)}
        body = json.dumps(request).encode()
        # The streams go with the length: a message with streams must not be cut.
        socket.send_fds(connection, [len(body).to_bytes(8, "big")], [stream.fileno() for stream in streams])
        connection.sendall(body)
        return connection


def fork_until_told(path: str) -> str:
    """Forks a process for each request; returns, in such a process, the name of the module that it is to run."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(16)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how those that wait for the forked ones end
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return ""
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return _forked(connection)
            connection.close()


def _forked(connection: socket.socket) -> str:
    """Forks once more; the parent tells the process id and, in the end, the status."""
    length, streams, _, _ = socket.recv_fds(connection, 8, 3)
    body = b""
    while len(body) < int.from_bytes(length, "big"):
        body += connection.recv(REQUEST_BYTES)
    process = os.fork()
    if process != 0:
        for stream in (*streams, 0, 1, 2):
            os.close(stream)
        connection.sendall(process.to_bytes(8, "big"))
        _, status = os.waitpid(process, 0)
        connection.sendall(status.to_bytes(8, "big"))
        os._exit(0)
    connection.close()
    request = json.loads(body)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.argv = [request["module"], *request["arguments"]]
    sys.path[0] = request["cwd"]
    return str(request["module"])


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that no collection in a forked process copies the pages of what was imported
    if asked := fork_until_told(sys.argv[1]):
        # Python's own way to the end, as after `python -m`: status, traceback, threads, what is to be done at exit.
        runpy.run_module(asked, run_name="__main__", alter_sys=True)
