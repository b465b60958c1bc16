"""Programs of the user's own that serve agents, for as long as they are wanted."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agent_env.errors import LaunchFailed
from agent_env.net.processes import ended
from agent_env.net.serving import STDIN_VARIABLE

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0


@asynccontextmanager
async def agents_served(program: str | Path, *arguments: Sequence[str]) -> AsyncGenerator[None]:
    """Runs a Python program that serves an agent, in a process of its own for each of `arguments`, while the block runs.

    A process counts as started when it says where it is. It ends with this program, however that ends, and is none of
    its terminal: Ctrl-C stops this program alone, which then stops it, when nobody calls it any more. Raises
    `LaunchFailed` for one that ends or says nothing for a minute; its reason is on the standard error of this program.

        async with agents_served("agents.py", ["manager"], ["worker"]):
            ...
    """
    processes: list[asyncio.subprocess.Process] = []
    try:
        for own in arguments:
            processes.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, str(program), *own),
                    env={**os.environ, STDIN_VARIABLE: "1"},
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    start_new_session=True,
                )
            )
        for process, own in zip(processes, arguments, strict=True):
            assert process.stdout is not None
            try:
                said = await asyncio.wait_for(process.stdout.readline(), _START_SECONDS)
            except TimeoutError:
                said = b""
            if not said:
                raise LaunchFailed(f"{' '.join([str(program), *own])} did not start; its error is above")
        yield
    finally:
        # One after the other, in their order: who comes first calls the others, and lets its sessions with them go.
        for process in processes:
            if process.returncode is None:
                process.terminate()
            await ended(process, _STOP_SECONDS)
