"""What a command shows of the log."""

from __future__ import annotations

import logging
import os
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
