"""Programs that serve agents: started when they say so, and ended with the block, however they take it."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from agent_env.errors import LaunchFailed
from agent_env.launch import agents_served, programs

pytestmark = pytest.mark.anyio

PROGRAM = """
import os, signal, sys, time
name = sys.argv[1]
if name == "broken":
    raise SystemExit(3)
if name == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(name, "w") as file:
    file.write(f"{os.getpid()} {os.getpgid(0)} {os.environ['AGENT_ENV_UNTIL_STDIN_ENDS']}")
print("it is an environment now", flush=True)
time.sleep(60)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "agents.py"
    file.write_text(PROGRAM)
    return file


def told(name: str) -> list[str]:
    return Path(name).read_text().split()


def runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


async def test_each_program_runs_in_a_process_and_a_session_of_its_own_until_the_block_ends(program: Path) -> None:
    with anyio.fail_after(30):
        async with agents_served(program, ["a"], ["b"]):
            found = [told(name) for name in "ab"]
            processes = [int(process) for process, _, _ in found]
            assert all(map(runs, processes)) and len(set(processes)) == 2
            assert all(process == group and watched == "1" for process, group, watched in found)
        assert not any(map(runs, processes))


async def test_one_that_does_not_start_is_named_and_the_others_end(program: Path) -> None:
    with anyio.fail_after(30):
        with pytest.raises(LaunchFailed, match=r"agents\.py broken did not start; its error is above"):
            async with agents_served(program, ["a"], ["broken"]):
                raise AssertionError("the block was entered")
        assert not runs(int(told("a")[0]))


async def test_one_that_does_not_want_to_end_is_killed(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_STOP_SECONDS", 0.2)
    with anyio.fail_after(30):
        async with agents_served(program, ["deaf"]):
            process = int(told("deaf")[0])
        assert not runs(process)
