"""What a command shows of the log."""

from __future__ import annotations

import logging
import os
import pty
import re
import subprocess
import sys

import pytest

from agent_env.cli.logs import told_briefly
from agent_env.errors import AgentFailed

log = logging.getLogger("agent_env.runtime")


def fail() -> None:
    try:
        raise KeyError("the price")
    except KeyError as error:
        raise AgentFailed("broken failed: the agent raised KeyError") from error


@pytest.mark.parametrize("tracebacks", [False, True])
def test_what_an_agent_raised_is_told_with_its_own_words_and_once(
    tracebacks: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with told_briefly(tracebacks=tracebacks):
        for _ in range(3):
            try:
                fail()
            except AgentFailed as error:
                log.warning("%s", error, exc_info=True)
    told = capsys.readouterr().err
    if tracebacks:
        assert told.count("Traceback") == 2 and "KeyError: 'the price'" in told
    else:
        line = fail.__code__.co_firstlineno + 2
        said = f"broken failed: the agent raised KeyError: 'the price' (.*test_logs.py:{line}, in fail); --debug shows the traceback"
        assert re.fullmatch(re.escape(said).replace(r"\.\*", ".*"), " ".join(told.split()))


def test_a_sentence_that_has_ended_is_followed_by_what_the_failure_came_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def raised(cause: Exception) -> RuntimeError:
        try:
            try:
                raise cause
            except Exception as first:
                raise RuntimeError("no move left") from first
        except RuntimeError as error:
            return error

    with told_briefly():
        for cause in (KeyError("a"), StopIteration()):
            log.warning("it failed: no move left; it teaches nothing", exc_info=raised(cause))
        log.warning("no answer: no move left", exc_info=RuntimeError("no move left"))
    place = rf"\(\S*test_logs\.py:{raised.__code__.co_firstlineno + 3}, in raised\)"
    end = r"; --debug shows the traceback"
    first, second, third = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        rf"it failed: no move left; it teaches nothing; it came of KeyError: 'a' {place}{end}", first
    ), first
    assert re.fullmatch(
        rf"it failed: no move left; it teaches nothing; it came of StopIteration {place}{end}", second
    ), second
    assert third == "no answer: no move left; --debug shows the traceback"


BAR = """
import logging, os
from agent_env.cli.logs import told_briefly
from agent_env.training.progress import rollout_progress
with told_briefly(), rollout_progress(4) as bar:
    bar.describe("update 1/1")
    os.read(0, 1)  # by then the bar is drawn
    logging.getLogger("agent_env.training").warning("policy %r learns [bold]nothing[/bold]", "c")
"""


@pytest.mark.parametrize("errors", ["terminal", "file"])
def test_a_warning_stands_above_the_bar_of_its_terminal_and_in_the_file_of_its_errors(errors: str) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        run = subprocess.Popen(
            [sys.executable, "-c", BAR],
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=theirs if errors == "terminal" else subprocess.PIPE,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(theirs)
        drawn = terminal.read(65536)
        while b"update 1/1" not in drawn:
            drawn += terminal.read(65536)
        _, said = run.communicate(b"x", timeout=60)
        try:
            while chunk := terminal.read(65536):
                drawn += chunk
        except OSError:
            pass  # how a terminal says that nobody writes to it any more
    warning, shown = "policy 'c' learns [bold]nothing[/bold]", drawn.decode()
    assert run.returncode == 0 and "update 1/1" in shown
    if errors == "terminal":
        # What the line stood in is taken away first, and the bar is drawn again below it.
        assert re.search(rf"\r\x1b\[2K{re.escape(warning)}\r\n[^\n]*update 1/1", shown), shown
    else:
        assert said.decode() == f"{warning}\n" and "learns" not in shown


UNREAD = """
import logging
from agent_env.cli.logs import told_briefly
from agent_env.cli.output import say
with told_briefly():
    for number in range(3):
        logging.getLogger("agent_env.runtime").warning("the episode %d failed", number)
say("done")
"""


def test_warnings_that_nobody_reads_end_no_command_and_take_nothing_from_what_it_prints() -> None:
    read, write = os.pipe()
    os.close(read)
    run = subprocess.run(
        [sys.executable, "-c", UNREAD], check=False, stdout=subprocess.PIPE, stderr=write, text=True, timeout=60
    )
    assert (run.returncode, run.stdout) == (0, "done\n")
