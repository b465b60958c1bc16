"""Episodes in a database: durable, found, replaced, shared by threads and processes."""

from __future__ import annotations

import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent_env.episodes import (
    CallRecord,
    EdgeRecord,
    Episode,
    EpisodeStore,
    EpisodeWriter,
    TurnRecord,
    find_episode,
    open_episodes,
)
from agent_env.errors import ConfigurationError, ProtocolError, TransportError


def make(name: str, *, run: str | None = None, group: str | None = None, seat: str | None = None) -> Episode:
    episode = Episode(name, "Größe 🚀 \ud800 \n", group, run)
    episode.add([TurnRecord("c1", "a@1.0.0", "s", name, seat=seat, reply="ja")])
    return episode


def ids(found: object) -> list[str]:
    return [episode.id for episode in found]  # type: ignore[attr-defined]


def test_episodes_come_back_as_they_were_appended(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "episodes.db"
    with EpisodeStore(path) as store:
        store.append([make("one"), make("two")])
        store.append([])
        store.append(iter([make("three")]))
        assert (len(store), ids(store)) == (3, ["one", "two", "three"])
    with EpisodeStore(path, fsync=True) as again:
        assert list(again.find()) == [make("one"), make("two"), make("three")]
        assert again.get("two") == make("two") and again.get("four") is None


def test_an_episode_with_the_id_of_an_earlier_one_takes_its_place_as_the_newest(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path / "episodes.db") as store:
        store.append([make("one"), make("two")])
        store.append([make("one", run="again")])
        assert ids(store) == ["two", "one"]
        assert store.get("one") == make("one", run="again")


def test_episodes_are_found_by_run_group_outcome_and_seat(tmp_path: Path) -> None:
    failed = make("d", run="r2", group="g1", seat="ann")
    failed.fail(TransportError("gone"))
    silent = make("e")
    silent.add([EdgeRecord("e1", "far@1.0.0", callee_seat="far")])
    given = [make("a", run="r1", group="g1", seat="ann"), make("b", run="r1", group="g2"), make("c"), failed, silent]
    with EpisodeStore(tmp_path / "episodes.db") as store, EpisodeWriter(tmp_path / "episodes.jsonl") as lines:
        store.append(given)
        lines.append(given)
        for source in (store, open_episodes(tmp_path / "episodes.jsonl")):
            assert ids(source.find(run="r1")) == ["a", "b"]
            assert ids(source.find(run="r1", group="g1")) == ["a"]
            assert ids(source.find(ok=False)) == ["d"]
            assert ids(source.find(ok=True, limit=2)) == ["a", "b"]
            assert ids(source.find(newest_first=True, limit=2)) == ["e", "d"]
            assert ids(source.find(newest_first=True)) == ["e", "d", "c", "b", "a"]
            assert ids(source.find(seat="ann")) == ["a", "d"]
            assert ids(source.summaries(seat="far")) == ["e"]
            assert ids(source.find(run=None, ok=None, seat=None)) == ["a", "b", "c", "d", "e"]
            assert (source.count(), source.count(run="r1", limit=1), source.count(seat="nobody")) == (5, 1, 0)
            assert list(source.find(limit=0)) == []
            assert source.get("d") == failed and source.get("x") is None
            assert len(source) == 5 and ids(iter(source)) == ["a", "b", "c", "d", "e"]
        assert (store.finished("r1"), store.finished("r2"), store.finished("r3")) == ({"a", "b"}, {"d"}, set())


def test_a_seat_of_any_name_is_found_and_no_other(tmp_path: Path) -> None:
    names = ["a", "b", "a\0b", "x\ud800", 'q"a', 'x,"a",', "\\", '"', ",", ""]
    with EpisodeStore(tmp_path / "episodes.db") as store:
        store.append(make(str(number), seat=name) for number, name in enumerate(names))
        both = make("both", seat="a")
        both.add([TurnRecord("c2", "b@1.0.0", "t", seat="b")])
        store.append([both])
        for number, name in enumerate(names):
            assert ids(store.find(seat=name)) == [str(number), *(["both"] if name in "ab" and name else [])]


def test_an_id_that_is_no_unicode_is_kept_as_any_other(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path / "episodes.db") as store:
        store.append([make("x\ud800", run="r\ud800"), make("x\\ud800", run="r")])
        assert store.finished("r\ud800") == {"x\ud800"} and store.finished("r") == {"x\\ud800"}
        assert store.get("x\ud800") == make("x\ud800", run="r\ud800")
        assert ids(store.find(run="r\ud800")) == ["x\ud800"]


def test_a_summary_tells_how_an_episode_ended_without_its_conversations(tmp_path: Path) -> None:
    episode = make("one", run="r", seat="ann")
    episode.env, episode.seed, episode.seconds = "signals", 7, 1.5
    episode.add([CallRecord("k1", "c1", "ann", "M", token_ids=[1, 2], prompt_token_ids=[3])])
    episode.add([CallRecord("k2", "c1", "ann", "M")])
    episode.score("solved", 1.0)
    episode.fail(TransportError("gone"))
    with EpisodeStore(tmp_path / "episodes.db") as store:
        store.append([episode, make("two")])
        full, plain = store.summaries()
        with sqlite3.connect(tmp_path / "episodes.db") as raw:
            raw.execute("UPDATE episodes SET body = 'nonsense'")
        raw.close()
        assert [full, plain] == list(store.summaries())
        with pytest.raises(ProtocolError, match="no JSON"):
            list(store.find())
    assert (full.env, full.seed, full.seconds, full.ok, full.run) == ("signals", 7, 1.5, False, "r")
    assert (full.traces, full.edges, full.calls, full.seats) == (1, 0, 2, ["ann"])
    assert (full.prompt_tokens, full.sampled_tokens) == (1, 2)
    assert (full.rewards, full.failures) == (episode.rewards, episode.failures)
    # Nobody recorded tokens here: that is not zero of them.
    assert (plain.prompt_tokens, plain.sampled_tokens, plain.seconds) == (None, None, None)


def test_an_episode_that_cannot_be_written_keeps_out_all_that_came_with_it(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path / "episodes.db") as store:
        store.append([make("one")])
        with pytest.raises(TypeError):
            store.append([make("two"), Episode("three", task=object())])
        assert ids(store) == ["one"]


def test_a_full_disk_refuses_the_whole_append_and_the_store_goes_on(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path / "episodes.db") as store:
        store.append([make("one")])
        store._connection.execute("PRAGMA max_page_count = 20")  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(ConfigurationError, match="cannot be used: database or disk is full"):
            store.append([make("two"), Episode("three", task="x" * 10**6)])
        store.append([make("four")])
        assert ids(store) == ["one", "four"]


def test_what_is_being_read_does_not_change_under_the_reader(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path / "episodes.db") as store:
        store.append(make(str(number)) for number in range(10))
        reading = store.find()
        first = next(reading)
        store.append([make("0", run="again"), make("new")])
        assert [first.id, *ids(reading)] == [str(number) for number in range(10)]
        assert ids(store)[-2:] == ["0", "new"]


def test_the_file_is_for_its_user_alone(tmp_path: Path) -> None:
    EpisodeStore(tmp_path / "episodes.db").close()
    assert stat.S_IMODE((tmp_path / "episodes.db").stat().st_mode) == 0o600


def test_threads_share_a_store(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path / "episodes.db") as store:

        def work(name: str) -> None:
            for number in range(25):
                store.append([make(f"{name}{number}", run=name)])
                assert store.get(f"{name}{number}") is not None

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(store) == 100
        assert all(store.count(run=name) == 25 for name in "abcd")


WRITER = """
import sys
from agent_env.episodes import Episode, EpisodeStore
path, name, batch, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with EpisodeStore(path) as store:
    for number in range(0, count, batch):
        store.append(Episode(f"{name}{n}", task="x" * 20_000, run=name) for n in range(number, number + batch))
        print(number + batch, flush=True)
"""


def writer(path: Path, name: str, batch: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(batch), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("batch", "after"), [(1, 1), (1, 100), (1, 200), (20, 20), (20, 200)])
def test_a_killed_writer_loses_no_episode_that_it_acknowledged(tmp_path: Path, batch: int, after: int) -> None:
    path = tmp_path / "episodes.db"
    process = writer(path, "e", batch, 100_000)
    assert process.stdout is not None
    acknowledged = 0
    for line in process.stdout:
        acknowledged = int(line)
        if acknowledged == after:
            process.send_signal(signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL
    process.stdout.close()
    assert acknowledged >= after
    with open_episodes(path) as found:
        # One append more may be in, as a whole: it was killed between writing it and saying so.
        assert found.count() in (acknowledged, acknowledged + batch)
        assert ids(found.find()) == [f"e{number}" for number in range(found.count())]
    with EpisodeStore(path) as store:
        store.append([make("after")])
        assert ids(store)[-1] == "after"
        assert store.get(f"e{after - 1}") == Episode(f"e{after - 1}", task="x" * 20_000, run="e")


def test_processes_write_to_one_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "episodes.db"
    processes = [writer(path, name, 5, 200) for name in ("left", "right")]
    for process in processes:
        process.communicate(timeout=30)
        assert process.returncode == 0
    with EpisodeStore(path) as store:
        assert (store.count(run="left"), store.count(run="right")) == (200, 200)


def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path) -> None:
    lines = tmp_path / "episodes.jsonl"
    lines.write_text('{"kind":"episode","id":"e"}\n' * 100, "utf-8")
    before = lines.read_bytes()
    with pytest.raises(ConfigurationError, match="not a database"):
        EpisodeStore(lines)
    assert lines.read_bytes() == before
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as raw:
        raw.execute("CREATE TABLE mine (x)")
    raw.close()
    with pytest.raises(ConfigurationError, match="none of episodes; name another file"):
        EpisodeStore(other)
    with pytest.raises(ConfigurationError, match="none of episodes"):
        open_episodes(other)


def test_a_database_of_a_later_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "episodes.db"
    EpisodeStore(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute("PRAGMA user_version = 9")
    raw.close()
    with pytest.raises(ConfigurationError, match=r"version 9, this one reads 2\); upgrade"):
        EpisodeStore(path)


def test_a_place_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        EpisodeStore(tmp_path / "file" / "episodes.db")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        open_episodes(tmp_path / "missing.db")
    with pytest.raises(ConfigurationError, match="unable to open"):
        EpisodeStore(tmp_path / "missing.db", readonly=True)
    assert not (tmp_path / "missing.db").exists()


def test_a_store_that_is_opened_for_reading_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "odd # name? .db"
    with EpisodeStore(path) as store:
        store.append([make("one")])
    with open_episodes(path) as found:
        assert ids(found.find()) == ["one"] and found.torn == 0
        assert isinstance(found, EpisodeStore)
        with pytest.raises(ConfigurationError, match="readonly"):
            found.append([make("two")])
    with pytest.raises(ConfigurationError, match="closed"):
        found.get("one")


def test_the_folder_of_a_run_is_opened_by_the_file_that_it_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has neither episodes\.db nor episodes\.jsonl"):
        open_episodes(tmp_path)
    with EpisodeWriter(tmp_path / "episodes.jsonl") as lines:
        lines.append([make("line")])
    with open_episodes(tmp_path) as found:
        assert ids(found.find()) == ["line"]
    with EpisodeStore(tmp_path / "episodes.db") as store:
        store.append([make("row")])
    with pytest.raises(ConfigurationError, match=r"has both episodes\.db and episodes\.jsonl"):
        open_episodes(tmp_path)
    (tmp_path / "episodes.jsonl").unlink()
    with open_episodes(tmp_path) as found:
        assert ids(found.find()) == ["row"]


def test_lines_go_in_and_out(tmp_path: Path) -> None:
    lines, out = tmp_path / "in.jsonl", tmp_path / "new" / "out.jsonl"
    given = [make(str(number), run="odd" if number % 2 else "even") for number in range(300)]
    with EpisodeWriter(lines) as writer:
        writer.append(given)
    with EpisodeStore(tmp_path / "episodes.db") as store:
        assert (store.import_lines(lines), store.import_lines(lines), len(store)) == (300, 300, 300)
        assert store.export_lines(out) == 300
        assert out.read_bytes() == lines.read_bytes()
        assert store.export_lines(out, run="odd") == 150
    with open_episodes(out) as found:
        assert list(found.find()) == given[1::2]
        assert found.get("299") == given[-1]


def test_an_import_stops_at_the_line_that_is_no_episode_and_says_which(tmp_path: Path) -> None:
    lines = tmp_path / "in.jsonl"
    with EpisodeWriter(lines) as writer:
        writer.append([make("one")])
    with lines.open("ab") as file:
        file.write(b'{"kind":"turn"}\n')
    with (
        EpisodeStore(tmp_path / "episodes.db") as store,
        pytest.raises(ProtocolError, match=r"line 2 of .*in\.jsonl' is no episode"),
    ):
        store.import_lines(lines)


def test_an_export_that_breaks_off_leaves_what_was_there(tmp_path: Path) -> None:
    import resource

    out = tmp_path / "out.jsonl"
    out.write_text("before")
    with EpisodeStore(tmp_path / "episodes.db") as store:
        store.append([make("one")])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            with pytest.raises(ConfigurationError, match="cannot be written: File too large"):
                store.export_lines(out)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
        with pytest.raises(ConfigurationError, match="cannot be written"):
            store.export_lines(out / "below")
    assert out.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["episodes.db", "out.jsonl"]


def test_of_a_file_of_lines_the_newest_of_an_id_is_got(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path / "e.jsonl") as lines:
        lines.append([make("one"), make("two"), make("one", run="again")])
    with open_episodes(tmp_path / "e.jsonl") as found:
        assert found.get("one") == make("one", run="again")
    assert find_episode(tmp_path / "e.jsonl", "one") == make("one", run="again")


def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def work(name: str) -> None:
        together.wait(20)
        with EpisodeStore(tmp_path / "episodes.db") as store:
            store.append([make(name)])

    threads = [threading.Thread(target=work, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    with open_episodes(tmp_path) as found:
        assert sorted(ids(found.find())) == [str(number) for number in range(8)]
