"""Runs every block of a Markdown page, as a reader would, in an empty folder and with a hub of its own.

| block | what happens |
|---|---|
| ```python | runs in the page's one namespace, after the blocks before it; `await` is allowed |
| ```python title="agents.py" | is written to that file, for the blocks after it |
| ```console | each line after `$ ` is run; `&` at its end leaves it running until the page ends |
| any other, or after `<!-- not run: why -->` | is not run |

What a console block prints after a command must be in the command's output, line by line; `…` stands for anything.
A background command counts as started when it has printed something.

    python scripts/run_page.py README.md
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, Queue
from typing import Any, NamedTuple

COMMAND_SECONDS = 120
START_SECONDS = 60

FENCE = re.compile(r"^```(?P<kind>\w+)?(?P<info>[^\n]*)\n(?P<body>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
SKIP = re.compile(r"<!--\s*not run:.*?-->\s*\Z", re.DOTALL)


class Block(NamedTuple):
    """One fenced block of a page, and the line where it starts."""

    kind: str
    title: str | None
    body: str
    line: int


def blocks(text: str) -> list[Block]:
    """The blocks of a page that are run, in order."""
    found: list[Block] = []
    for match in FENCE.finditer(text):
        if SKIP.search(text[: match.start()]):
            continue
        title = re.search(r'title="([^"]+)"', match["info"])
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(match["kind"] or "", title[1] if title else None, match["body"], line))
    return found


class Page:
    """A page that is being run."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.environment = os.environ | {
            "AGENT_ENV_HUB": str(self.folder / "hub.db"),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "120",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self._stack = stack
        self._namespace: dict[str, Any] = {"__name__": "__page__"}

    async def run(self) -> int:
        """Runs all blocks; returns how many there were."""
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.path.insert(0, str(self.folder))
        ran = 0
        for block in blocks(self.path.read_text("utf-8")):
            if block.kind == "python" and block.title is not None:
                (self.folder / block.title).write_text(block.body, "utf-8")
            elif block.kind == "python":
                await self._python(block)
            elif block.kind == "console":
                await asyncio.to_thread(self._console, block)
            else:
                continue
            ran += 1
        return ran

    async def _python(self, block: Block) -> None:
        # Line numbers of the page, so that a traceback points at the right place.
        source = "\n" * block.line + block.body
        code = compile(source, str(self.path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            await eval(code, self._namespace)
        else:
            exec(code, self._namespace)  # noqa: S102 - running the page is the purpose

    def _console(self, block: Block) -> None:
        commands = re.split(r"^\$ ", block.body, flags=re.MULTILINE)[1:]
        if not commands:
            raise SystemExit(f"{self.path}:{block.line}: a console block has no line that starts with '$ '")
        for command in commands:
            line, _, expected = command.partition("\n")
            if line.rstrip().endswith("&"):
                output = self._start(line.rstrip().removesuffix("&"))
            else:
                done = subprocess.run(
                    line,
                    shell=True,
                    check=False,
                    env=self.environment,
                    capture_output=True,
                    text=True,
                    timeout=COMMAND_SECONDS,
                )
                output = done.stdout + done.stderr
                if done.returncode:
                    raise SystemExit(f"{self.path}:{block.line}: `{line}` ended with {done.returncode}:\n{output}")
            self._compare(block, line, expected, output)

    def _start(self, command: str) -> str:
        process = subprocess.Popen(
            f"exec {command}",
            shell=True,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._stack.callback(self._stop, process)
        lines: Queue[str] = Queue()
        threading.Thread(target=lambda: [lines.put(line) for line in process.stdout or ()], daemon=True).start()
        try:
            printed = [lines.get(timeout=START_SECONDS)]
            while True:
                printed.append(lines.get(timeout=0.5))
        except Empty:
            if not printed or process.poll() is not None:
                raise SystemExit(f"{self.path}: `{command}` did not start:\n{''.join(printed)}") from None
        return "".join(printed)

    @staticmethod
    def _stop(process: subprocess.Popen[str]) -> None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        if process.stdout is not None:
            process.stdout.close()

    def _compare(self, block: Block, command: str, expected: str, output: str) -> None:
        for line in filter(None, map(str.strip, expected.splitlines())):
            pattern = ".*".join(re.escape(" ".join(part.split())) for part in line.split("…"))
            if not any(re.search(pattern, " ".join(printed.split())) for printed in output.splitlines()):
                raise SystemExit(f"{self.path}:{block.line}: `{command}` did not print\n  {line}\nbut\n{output}")


def main() -> None:
    """Runs the page that the command line names."""
    path = Path(sys.argv[1]).resolve()
    with ExitStack() as stack:
        page = Page(path, stack)
        ran = asyncio.run(page.run())
        os.chdir(path.parent)
    print(f"{path.name}: {ran} blocks ran")


if __name__ == "__main__":
    main()
