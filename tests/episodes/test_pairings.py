"""How peers were chosen is stored once a file, and every episode tells it in full."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.episodes import EdgeRecord, Episode, EpisodeReader, EpisodeStore, TurnRecord, open_episodes
from agent_env.episodes.pairings import joined, parted
from agent_env.errors import ProtocolError

LONG = {"seat": "solver", "peer": "solver@1.0.0", "rules": {f"rule-{number}": "yes § \ud800" for number in range(30)}}
SHORT = {"seat": "solver", "named": True}

words = st.text('abc"\\§{}:,0\n', max_size=8)
pairings = st.dictionaries(words, words | st.lists(words, max_size=30) | st.just("long " * 40), max_size=3)


def played(name: str, *pairings: Any, told: Any = None) -> Episode:
    episode = Episode(name, task=told)
    episode.add([TurnRecord("t", "a@1.0.0", "s", pairings={str(place): one for place, one in enumerate(pairings)})])
    episode.add([EdgeRecord(f"x{place}", "b@1.0.0", pairing=one) for place, one in enumerate(pairings)])
    return episode


def text(episode: Episode) -> str:
    return json.dumps(episode.to_json(), separators=(",", ":"))


@given(st.lists(pairings, max_size=4), st.data())
def test_an_episode_that_is_parted_and_joined_is_the_same_byte_for_byte(given_pairings: list[Any], data: Any) -> None:
    told = data.draw(
        st.sampled_from([*given_pairings, *(json.dumps(one, separators=(",", ":")) for one in given_pairings), None])
    )
    whole = text(played("e", *given_pairings, told=told))
    body, parts = parted(played("e", *given_pairings, told=told), whole)
    assert joined(body, parts.get) == whole
    assert len(body) <= len(whole)


def test_a_pairing_is_in_the_file_once_and_in_each_episode_that_is_read(tmp_path: Path) -> None:
    path, lines = tmp_path / "episodes.db", tmp_path / "out.jsonl"
    episodes = [played(f"e{number}", LONG, SHORT) for number in range(100)]
    with EpisodeStore(path) as store:
        for episode in episodes:
            store.append([episode])
        assert list(store.find()) == episodes and store.get("e7") == episodes[7]
        assert list(store.lines()) == list(map(text, episodes))
        assert [summary.id for summary in store.summaries()] == [episode.id for episode in episodes]
        store.export_lines(lines)
    assert list(EpisodeReader(lines)) == episodes
    with open_episodes(path) as again:
        assert list(again.find(newest_first=True)) == episodes[::-1]
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT text FROM pairings").fetchall() == [(json.dumps(LONG, separators=(",", ":")),)]
        (stored,) = raw.execute("SELECT sum(length(body)) FROM episodes").fetchone()
    assert stored < sum(map(len, map(text, episodes))) / 3


def as_release_1(path: Path, episodes: list[Episode]) -> None:
    """Makes a file as the release before wrote it, each episode with its own pairings."""
    EpisodeStore(path).close()
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("DROP TABLE pairings")
        raw.execute("PRAGMA user_version = 1")
        raw.executemany(
            "INSERT INTO episodes (id, ok, seats, summary, body) VALUES (?, 1, ',', '{}', ?)",
            [(episode.id, text(episode)) for episode in episodes],
        )


def test_a_file_of_the_release_before_is_read_as_it_is_and_written_on(tmp_path: Path) -> None:
    path, old, new = tmp_path / "episodes.db", [played("e1", LONG), played("e2", LONG)], played("e3", LONG)
    as_release_1(path, old)
    with open_episodes(path) as reading:
        assert list(reading.find()) == old and reading.get("e2") == old[1]
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (1,)  # who reads changes nothing
    with EpisodeStore(path) as store:
        store.append([new])
        assert list(store.find()) == [*old, new]
    with EpisodeStore(path, readonly=True) as again:
        assert list(again.find()) == [*old, new]


def test_a_pairing_that_a_file_has_lost_is_told(tmp_path: Path) -> None:
    path = tmp_path / "episodes.db"
    with EpisodeStore(path) as store:
        store.append([played("e", LONG)])
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute("DELETE FROM pairings")
        with pytest.raises(ProtocolError, match=r"tells of the pairing [0-9a-f]{32}, which its file has lost"):
            store.get("e")
