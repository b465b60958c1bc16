"""A file of lines that one writer has alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_env.episodes.lines import LineFile
from agent_env.errors import ConfigurationError


def test_a_file_that_one_has_alone_is_opened_by_nobody_else_until_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines.jsonl"
    first = LineFile(path, alone=True)
    with pytest.raises(BlockingIOError):
        LineFile(path, alone=True)
    first.append(b"1\n")
    first.close()
    second = LineFile(path, alone=True)
    assert second.size == 2
    second.close()
    with monkeypatch.context() as racing:
        racing.setattr("fcntl.flock", lambda *_: path.unlink())  # by whoever had it until now
        with pytest.raises(BlockingIOError, match="removed"):
            LineFile(path, alone=True)

    def refuse(*_: Any) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(ConfigurationError, match="cannot be locked: No locks available"):
        LineFile(path, alone=True)
