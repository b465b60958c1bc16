"""The worker that feeds TRL: it plays in a thread of its own, waits for room, and says what ended it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from queue import Empty
from typing import Any

import anyio
import pytest

from agent_env.episodes import Episode
from agent_env.errors import AgentFailed, ConfigurationError, DeadlineExceeded
from agent_env.training.exports.trl_async import to_trl_async
from agent_env.training.exports.trl_worker import RolloutWorker
from agent_env.training.rows import Row

pytestmark = pytest.mark.timeout(60)

SECONDS = 20.0


def plain(rows: Sequence[Row], version: int) -> list[dict[str, Any]]:
    return to_trl_async(rows, version=version)


class Player:
    """Plays the golden tree again and again, and remembers which versions it was told."""

    def __init__(self, episodes: list[Episode]) -> None:
        self.episodes = episodes
        self.versions: list[int] = []
        self.ended = threading.Event()

    async def __call__(self, version: int) -> AsyncIterator[Episode]:
        self.versions.append(version)
        try:
            for episode in self.episodes:
                yield episode
        finally:
            self.ended.set()


def take(worker: RolloutWorker, count: int) -> list[dict[str, Any]]:
    return [worker.rollout_buffer.get(timeout=SECONDS) for _ in range(count)]


def test_credited_rows_come_out_group_by_group_and_play_goes_on(golden: list[Episode], golden_rows: list[Row]) -> None:
    player = Player(golden)
    worker = RolloutWorker(player, group_size=2, form=plain, capacity=10)
    worker.start()
    try:
        first = take(worker, 10)
        assert [one["input_ids"] for one in first] == [row.token_ids for row in golden_rows]
        assert [one["advantage"] for one in first] == [row.advantage for row in golden_rows]
        assert [one["advantage"] for one in take(worker, 10)] == [row.advantage for row in golden_rows]
        worker.check_health(SECONDS)
        assert worker.metrics_queue.get(timeout=SECONDS) == {
            "episodes/played_total": 2.0,
            "episodes/failed_frac": (0.0, 2.0),
            "rows/dropped_calls_total": 2.0,
            "rows/without_advantage_frac": (0.0, 6.0),
        }
    finally:
        worker.stop()
    assert len(player.versions) >= 2


def test_without_a_group_size_rows_are_credited_when_a_play_has_ended(golden: list[Episode]) -> None:
    worker = RolloutWorker(Player(golden), seats=["manager"], form=plain)
    worker.start()
    try:
        assert [round(one["advantage"], 3) for one in take(worker, 3)] == [1.0, 1.0, -1.0]
        assert worker.metrics_queue.get(timeout=SECONDS)["episodes/failed_frac"] == (1.0, 5.0)
    finally:
        worker.stop()


def test_a_play_is_told_the_version_that_is_served_and_its_rows_count_as_that_where_none_is_known(
    golden: list[Episode],
) -> None:
    for trace in golden[3].traces:
        for call in trace.calls:
            call.policy_version = call.policy_version_end = None
    player = Player(golden[3:4])
    worker = RolloutWorker(player, form=plain)
    worker.update_model_version(7)
    worker.start()
    try:
        assert {one["model_version"] for one in take(worker, 2)} == {7}
        assert player.versions[0] == 7
    finally:
        worker.stop()


def test_when_the_trainer_has_no_room_play_waits_and_is_healthy(golden: list[Episode]) -> None:
    player = Player(golden)
    worker = RolloutWorker(player, form=plain, capacity=1)
    worker.start()
    try:
        assert player.ended.wait(SECONDS)
        take(worker, 1)
        worker.check_health(SECONDS)
        assert len(player.versions) == 1
    finally:
        worker.stop()
    with pytest.raises(Empty):
        # Nothing is added once it was stopped.
        while True:
            worker.rollout_buffer.get(timeout=0.3)


def test_stopping_ends_what_is_being_played(golden: list[Episode]) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def play(version: int) -> AsyncIterator[Episode]:
        try:
            begun.set()
            await anyio.sleep_forever()
            yield golden[0]
        finally:
            ended.set()

    worker = RolloutWorker(play, form=plain)
    worker.stop()  # harmless before it began
    worker = RolloutWorker(play, form=plain)
    worker.start()
    assert begun.wait(SECONDS)
    worker.stop()
    assert ended.is_set()
    worker.check_health(SECONDS)
    worker.stop()


def test_the_trainer_is_told_what_ended_the_play(golden: list[Episode]) -> None:
    async def play(version: int) -> AsyncIterator[Episode]:
        yield golden[0]
        raise AgentFailed("the gateway is gone")

    worker = RolloutWorker(play, group_size=1, form=plain)
    worker.start()
    try:
        assert len(take(worker, 4)) == 4
        worker._thread.join(SECONDS)  # type: ignore[union-attr]
        with pytest.raises(AgentFailed, match="the gateway is gone"):
            worker.check_health(SECONDS)
    finally:
        worker.stop()


def test_a_play_without_episodes_is_an_error_and_not_an_endless_loop() -> None:
    worker = RolloutWorker(Player([]), form=plain)
    worker.start()
    worker._thread.join(SECONDS)  # type: ignore[union-attr]
    with pytest.raises(ConfigurationError, match=r"play\(0\) gave 0 episodes that make no row"):
        worker.check_health(SECONDS)


def test_a_play_that_never_gives_an_episode_is_told_of(golden: list[Episode]) -> None:
    async def play(version: int) -> AsyncIterator[Episode]:
        await anyio.sleep_forever()
        yield golden[0]

    worker = RolloutWorker(play, form=plain)
    worker.start()
    try:
        with pytest.raises(DeadlineExceeded, match="no episode has been played to its end for"):
            worker.check_health(-1.0)
    finally:
        worker.stop()


def test_a_worker_is_started_once_and_has_room_for_something(golden: list[Episode]) -> None:
    worker = RolloutWorker(Player(golden), form=plain)
    worker.start()
    try:
        with pytest.raises(ConfigurationError, match="started once"):
            worker.start()
    finally:
        worker.stop()
    with pytest.raises(ConfigurationError, match="room for at least one sample, not 0"):
        RolloutWorker(Player(golden), capacity=0)


def test_episodes_that_nobody_scored_are_an_error_with_reasons_in_the_log(
    golden: list[Episode], caplog: pytest.LogCaptureFixture
) -> None:
    golden[3].rewards.clear()
    worker = RolloutWorker(Player(golden[3:4]), form=plain)
    worker.start()
    worker._thread.join(SECONDS)  # type: ignore[union-attr]
    with pytest.raises(ConfigurationError, match="gave 1 episodes that make no row to train on"):
        worker.check_health(SECONDS)
    assert "1 episodes make no row to train on: not scored (4 calls)" in caplog.text


def test_episodes_that_all_fail_are_played_again_until_the_trainer_has_waited_long_enough(
    golden: list[Episode],
) -> None:
    player = Player(golden[2:3])
    worker = RolloutWorker(player, form=plain)
    worker.start()
    try:
        while len(player.versions) < 3:
            worker.metrics_queue.get(timeout=SECONDS)
        with pytest.raises(DeadlineExceeded):
            worker.check_health(0.0)
    finally:
        worker.stop()
    assert worker.rollout_buffer.empty()
