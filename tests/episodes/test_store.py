"""Episodes on disk: appended, read, and what a killed writer leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent_env.episodes import (
    CallRecord,
    Episode,
    EpisodeReader,
    EpisodeStore,
    EpisodeWriter,
    TurnRecord,
    find_episode,
)
from agent_env.episodes.copies import write_lines
from agent_env.episodes.lines import LineFile, LineReader
from agent_env.errors import ConfigurationError, ProtocolError


def make(name: str) -> Episode:
    episode = Episode(name, task="Größe 🚀 \ud800 \n")
    episode.add([TurnRecord("c1", "a@1.0.0", "s", name, reply="ja")])
    return episode


@pytest.mark.parametrize("fsync", [False, True])
def test_episodes_come_back_as_they_were_appended(tmp_path: Path, fsync: bool) -> None:
    path = tmp_path / "runs" / "episodes.jsonl"
    with EpisodeWriter(path, fsync=fsync) as store:
        store.append([make("one"), make("two")])
        store.append([])
        store.append([make("three")])
    reader = EpisodeReader(path)
    assert list(reader) == [make("one"), make("two"), make("three")]
    assert reader.torn == 0
    assert find_episode(path, "two") == make("two")
    assert find_episode(path, "four") is None


def test_an_unfinished_last_line_is_passed_over_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    with EpisodeWriter(path) as store:
        store.append([make("one")])
    with path.open("ab") as file:
        file.write(b'{"kind":"epis')
    reader = EpisodeReader(path)
    assert list(reader) == [make("one")]
    assert reader.torn == 13


def test_the_next_writer_cuts_an_unfinished_line_off(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(b'{"a":1}\n' + b"x" * 200_000)
    with EpisodeWriter(path) as store:
        assert store.torn == 200_000
        store.append([make("one")])
    assert [value for _, value in LineReader(path)] == [{"a": 1}, make("one").to_json()]


def test_a_file_of_one_unfinished_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"half a line")
    file = LineFile(path)
    assert (file.size, file.torn) == (0, 11)
    file.close()
    file.close()
    assert path.read_bytes() == b""


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a":1}\nnonsense\n{"a":2}\n')
    with pytest.raises(ProtocolError, match=r"line 2 of .*lines\.jsonl' is not JSON"):
        list(LineReader(path))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"[1]", "is not a JSON object"),
        (b"3", "is not a JSON object"),
        (b'{"kind":"episode","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "is nested too deeply to be read"),
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"kind":"turn"}', "is no episode: an episode has the kind"),
        (b'{"kind":"episode"}', "is no episode: a 'episode' record lacks id"),
        (b'{"kind":"episode","id":"e","traces":[3]}', "is no episode: a trace is a JSON object"),
    ],
)
def test_a_line_that_is_no_episode_is_told_with_its_number(tmp_path: Path, line: bytes, why: str) -> None:
    path = tmp_path / "episodes.jsonl"
    with EpisodeWriter(path) as store:
        store.append([make("one"), make("two")])
    with path.open("ab") as file:
        file.write(line + b"\n")
    episodes = iter(EpisodeReader(path))
    assert [next(episodes).id, next(episodes).id] == ["one", "two"]
    with pytest.raises(ProtocolError, match=rf"line 3 of .*episodes\.jsonl' {why}"):
        next(episodes)


def test_lines_are_read_where_they_were_written(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "lines.jsonl")
    first, second = file.append(b"one\n"), file.append(b"three\n")
    assert (file.read_at(first, 4), file.read_at(second, 6)) == (b"one\n", b"three\n")
    os.truncate(file.path, 4)
    with pytest.raises(ProtocolError, match="cut by somebody else"):
        file.read_at(second, 6)
    file.close()


def test_a_write_that_the_disk_refuses_leaves_no_part_of_itself(tmp_path: Path) -> None:
    import resource

    file = LineFile(tmp_path / "lines.jsonl")
    file.append(b"one\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.append(b"x" * 200 + b"\n")
        file.append(b"two\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert file.path.read_bytes() == b"one\ntwo\n"
    file.close()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        EpisodeWriter(tmp_path / "file" / "episodes.jsonl")


WRITER = """
import sys
from agent_env.episodes import Episode, EpisodeWriter
store = EpisodeWriter(sys.argv[1])
for number in range(100_000):
    store.append([Episode(str(number), task="x" * 1000)])
    print(number, flush=True)
"""


def test_a_killed_writer_loses_no_episode_that_it_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) >= 200:
            writer.send_signal(signal.SIGKILL)
            break
    rest = writer.stdout.read().splitlines()
    writer.wait(10)
    writer.stdout.close()
    acknowledged = [int(line) for line in rest if line.isdecimal()]
    last = max([200, *acknowledged])
    found = [int(episode.id) for episode in EpisodeReader(path)]
    assert found[: last + 1] == list(range(last + 1))


def test_a_logprob_that_nobody_could_read_is_not_written(tmp_path: Path) -> None:
    episode = Episode("e")
    episode.add([CallRecord("c", "t", "a", "m", "e", token_ids=[1], logprobs=[10**400])])
    with EpisodeStore(tmp_path / "episodes.db") as store:
        with pytest.raises(ProtocolError, match="the call 'c' cannot be written: the field 'logprobs'"):
            store.append([episode])
        with pytest.raises(ProtocolError, match="the call 'c' cannot be written: the field 'logprobs'"):
            write_lines([episode], tmp_path / "episodes.jsonl")
        episode.traces[0].calls[0].logprobs = [float("-inf")]
        store.append([episode])
        (again,) = store.find()
    assert again.traces[0].calls[0].logprobs == [float("-inf")]
