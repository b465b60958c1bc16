"""The training loop: what it learns, records and keeps, and that an update is whole or never was."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from games import ANSWERS, WORDS, game

from agent_env.episodes import Episode, open_episodes
from agent_env.errors import AgentFailed, ConfigurationError
from agent_env.training import (
    Policy,
    RoleBaseline,
    Run,
    Seat,
    WordTokenizer,
    evaluate,
    make_model,
    mean_rewards,
    policies_served,
    training_loop,
)
from agent_env.training.loop import Update, _Draw
from agent_env.training.place import Place
from agent_env.training.study import mean_score

pytestmark = pytest.mark.anyio


def fresh(name: str = "p", *, seed: int = 0, trainable: bool = True) -> Policy:
    tokenizer = WordTokenizer(WORDS)
    return Policy(name, make_model(tokenizer, seed=seed), tokenizer, trainable=trainable, seed=seed)


def weights(policy: Policy) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in policy.model.parameters()]


def same(left: Policy, right: Policy) -> bool:
    return all(torch.equal(one, other) for one, other in zip(weights(left), weights(right), strict=True))


@pytest.fixture
async def place() -> AsyncGenerator[Place]:
    async with policies_served(pause=0.002) as served:
        yield served


async def train(place: Place | None, policies: dict[str, Policy], **options: Any) -> list[Update]:
    options = {"updates": 3, "group_size": 4, "tasks_per_update": 4} | options
    with anyio.fail_after(100):
        loop = training_loop(
            options.pop("scenario", game()), options.pop("tasks", list(ANSWERS)), policies, **options, place=place
        )
        return [update async for update in loop]


async def test_a_policy_learns_and_every_update_is_on_the_curve(tmp_path: Path) -> None:
    policies = {"p": fresh()}
    with Run.create(tmp_path, name="a") as run:
        updates = await train(None, policies, updates=16, group_size=8, tasks_per_update=8, run=run, checkpoint_every=6)
        run.finish()
    rewards = [update.reward["guesser"] for update in updates]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.25
    assert policies["p"].version == 16
    curve = run.curve()
    assert [line["update"] for line in curve] == list(range(1, 17))
    for line, update in zip(curve, updates, strict=True):
        assert line["reward"] == update.reward and line["episodes"] == 64 and line["failed"] == 0
        assert line["staleness"] == {"oldest": 0, "stale": 0, "unlabelled": 0}
        assert line["episodes_per_second"] == pytest.approx(64 / line["seconds"], rel=0.05)
        told = line["policies"]["p"]
        assert told["rows"] == told["tokens"] == 64 and 0 < told["entropy"] < 3 and 0 <= told["clipped"] <= 1
    latest = run.latest()
    assert latest is not None and latest.update == 16 and same(latest.load("p"), policies["p"])
    with open_episodes(run.folder) as kept:
        assert {episode.info["update"] for episode in kept.find()} == set(range(1, 17))
        assert len(kept) == 16 * 64


async def test_a_loop_that_is_gone_on_with_numbers_draws_and_learns_from_where_it_was(
    place: Place, tmp_path: Path
) -> None:
    drawn: list[Sequence[Any]] = []

    def tasks(chance: random.Random, count: int) -> Sequence[Any]:
        drawn.append([chance.choice(list(ANSWERS)) for _ in range(count)])
        return drawn[-1]

    with Run.create(tmp_path, name="a") as run:
        await train(place, {"p": fresh()}, run=run, updates=3, tasks=tasks)
    with Run.open(tmp_path / "a") as run:
        policies: dict[str, Policy] = {}
        updates = await train(place, policies, run=run, updates=5, tasks=tasks)
        assert [update.number for update in updates] == [4, 5]
        assert policies["p"].version == 5
        assert [line["update"] for line in run.curve()] == [1, 2, 3, 4, 5]
    begun = list(drawn)
    drawn.clear()
    await train(place, {"p": fresh()}, updates=5, tasks=tasks)
    assert drawn == begun  # the tasks of an update depend on its number alone


async def test_listed_tasks_are_gone_through_in_shuffled_rounds(place: Place) -> None:
    played: list[list[str]] = []
    tasks = [{"id": str(number)} for number in range(6)]

    async def play(team: Any, task: Any) -> str:
        return (await team["guesser"].chat("day")).text

    scenario = replace(game(), play=play, score=lambda episode: {"team": {"one": 1.0}})
    for update in await train(place, {"p": fresh()}, scenario=scenario, tasks=tasks, group_size=1, updates=3):
        played.append([episode.task["id"] for episode in update.episodes])
        assert update.reward == {"team": 1.0}
    flat = [task for update in played for task in update]
    assert [len(update) for update in played] == [4, 4, 4]
    assert sorted(flat[:6]) == sorted(flat[6:]) == sorted(task["id"] for task in tasks)
    assert flat[:6] != flat[6:] or flat[:6] != sorted(flat[:6])


def test_a_round_of_tasks_is_shuffled_once_however_many_of_them_an_update_plays(
    instructions: Callable[[Callable[[], object]], int],
) -> None:
    tasks = [str(number) for number in range(2000)]
    drawn = {count: _Draw(tasks, 7, count) for count in (1, 100)}
    assert instructions(lambda: drawn[100](1)) < 2 * instructions(lambda: drawn[1](1))
    assert [task for update in range(1, 101) for task in drawn[1](update)] == list(drawn[100](1))
    some = [task for update in range(1, 41) for task in drawn[100](update)]
    assert sorted(some[:2000]) == sorted(some[2000:]) == sorted(tasks) and some[:2000] != some[2000:]
    assert sorted(_Draw(tasks[:3], 7, 9)(1)) == sorted(tasks[:3] * 3)  # an update of several rounds


async def test_a_loop_that_is_stopped_inside_an_update_ends_it_and_keeps_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = fresh()
    begun, go_on = asyncio.Event(), threading.Event()
    loop, update = asyncio.get_running_loop(), policy.update

    def slowly(rows: Any) -> Any:
        if policy.version == 1:
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(20)
        return update(rows)

    monkeypatch.setattr(policy, "update", slowly)
    with Run.create(tmp_path, name="a") as run:
        training = asyncio.ensure_future(train(place, {"p": policy}, updates=9, run=run, checkpoint_every=50))
        with anyio.fail_after(60):
            await begun.wait()
            training.cancel()
            await asyncio.wait({training}, timeout=0.05)
            assert not training.done()  # the weights are being changed
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await training
        assert [line["update"] for line in run.curve()] == [1, 2]
        latest = run.latest()
        assert latest is not None and latest.update == 2
        assert latest.load("p").version == 2 and same(latest.load("p"), policy)


async def test_a_loop_that_is_left_keeps_what_it_has_done(place: Place, tmp_path: Path) -> None:
    with Run.create(tmp_path, name="a") as run:
        loop = training_loop(
            *(game(), list(ANSWERS), {"p": fresh()}),
            updates=9,
            run=run,
            place=place,
            group_size=2,
            tasks_per_update=2,
        )
        with anyio.fail_after(60):
            async with aclosing(loop):
                async for update in loop:
                    if update.number == 2:
                        break
        latest = run.latest()
        assert latest is not None and latest.update == 2


async def test_an_update_that_fails_leaves_no_half_of_it(place: Place, tmp_path: Path) -> None:
    policy = fresh()
    update = policy.update

    def broken(rows: Any) -> Any:
        stats = update(rows)
        if policy.version == 2:
            raise RuntimeError("a bad moment")
        return stats

    policy.update = broken  # type: ignore[method-assign]
    with Run.create(tmp_path, name="a") as run:
        with pytest.raises(RuntimeError, match="a bad moment"):
            await train(place, {"p": policy}, run=run, checkpoint_every=1)
        latest = run.latest()
        assert latest is not None and latest.update == 1 and [line["update"] for line in run.curve()] == [1]
        assert latest.load("p").version == 1


async def test_other_seats_and_policies_can_play_each_update(place: Place) -> None:
    """A pool of past selves: who sits in a seat is decided before every update."""

    async def play(team: Any, task: str) -> str:
        answers = await asyncio.gather(team["guesser"].chat(task), team["past"].chat(task))
        return answers[0].text

    ours = game().seats["guesser"]
    scenario = replace(game(), play=play, seats={"guesser": ours, "past": replace(ours, policy="p@0", trainable=False)})
    policies = {"p": fresh(), "p@0": fresh("p@0", trainable=False)}
    asked: list[int] = []

    async def before(number: int) -> dict[str, Seat] | None:
        asked.append(number)
        if number < 3:
            return None
        policies["p@2"] = fresh("p@2", seed=7, trainable=False)
        return {"past": replace(ours, policy="p@2", trainable=False)}

    updates = await train(place, policies, scenario=scenario, before=before, updates=3)
    assert asked == [1, 2, 3]
    for update in updates:
        (past,) = {
            call.model for e in update.episodes for trace in e.traces for call in trace.calls if call.seat == "past"
        }
        assert past == ("p@2" if update.number == 3 else "p@0")
        assert set(update.lessons.policies) == {"p"}


async def test_a_role_baseline_comes_back_with_its_run(place: Place, tmp_path: Path) -> None:
    baseline = RoleBaseline(decay=0.5)
    with Run.create(tmp_path, name="a") as run:
        await train(place, {"p": fresh()}, run=run, credit=baseline, updates=2)
    again = RoleBaseline(decay=0.5)
    assert baseline.values and again.values == {}
    with Run.open(tmp_path / "a") as run:
        await train(place, {"p": fresh()}, run=run, credit=again, updates=2)
    assert again.values == baseline.values


async def test_what_agents_ask_for_gives_way_to_what_the_loop_samples_with(place: Place) -> None:
    (update,) = await train(place, {"p": fresh()}, updates=1, sampling={"temperature": 0})
    texts = {(episode.task, episode.info["result"]) for episode in update.episodes}
    assert len(texts) == len({task for task, _ in texts})  # greedy: one answer a task


async def test_policies_are_looked_at_sampled_and_greedy_without_learning(place: Place) -> None:
    policies = {"p": fresh()}
    tasks = list(ANSWERS) * 8
    sampled = await evaluate(game(), tasks, policies, place=place)
    greedy = await evaluate(game(), tasks, policies, place=place, temperature=0.0, info={"when": "before"})
    assert policies["p"].version == 0 and len(sampled) == 16
    assert mean_rewards(greedy)["guesser"] in (0.0, 0.5, 1.0)
    assert greedy[0].info | {"index": 0, "sample": 0, "result": ""} == {
        "when": "before",
        "temperature": 0.0,
        "index": 0,
        "sample": 0,
        "result": "",
    }


def test_a_mean_reward_counts_only_what_was_scored() -> None:
    episodes = [Episode(str(number)) for number in range(3)]
    episodes[0].score("right", 1.0, seat="a")
    episodes[1].score("right", 0.0, seat="a")
    episodes[1].score("fast", 3.0, seat="b")
    assert mean_rewards(episodes) == {"a": 0.5, "b": 3.0}


def test_mean_rewards_are_numbers_that_a_curve_can_hold_however_large_the_rewards_are(tmp_path: Path) -> None:
    episodes = [Episode(str(number)) for number in range(3)]
    for episode in episodes:
        episode.score("right", 1.5e308, seat="a")
    episodes[0].score("too much", 1.5e308, seat="a")
    episodes[1].score("team", -1.0)
    rewards = mean_rewards(episodes)
    assert rewards == {"a": 1.5e308}
    with Run.create(tmp_path, name="a") as run:
        run.record({"update": 1, "reward": rewards})
        assert run.curve()[0]["reward"] == rewards
    assert mean_score(episodes, "right") == 1.5e308


async def test_where_nothing_can_be_played_the_first_reason_is_told(place: Place, tmp_path: Path) -> None:
    async def play(team: Any, task: str) -> str:
        raise ValueError("the board is missing")

    with Run.create(tmp_path, name="a") as run:
        with pytest.raises(
            AgentFailed,
            match=r"update 1 could be played. The first one failed because the scenario itself raised .boundary 'program'",
        ):
            await train(place, {"p": fresh()}, scenario=replace(game(), play=play), run=run)
        assert run.curve() == [] and run.latest() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": []}, "there are no tasks to play"),
        ({"tasks": iter(ANSWERS)}, "there are no tasks to play in <dict_keyiterator"),
        ({"tasks": lambda random, count: []}, r"tasks\(random, 4\) made no task for update 1"),
        ({"tasks_per_update": 0}, "at least one task, not 0"),
        ({"scenario": replace(game(), seats={"guesser": Seat(lambda message: "sun")})}, "no seat of 'game' learns"),
        ({"credit": "luck"}, "no credit 'luck'"),
    ],
)
async def test_what_cannot_be_trained_is_refused(place: Place, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await train(place, {"p": fresh()}, **options)


async def test_a_policy_under_another_name_is_refused(place: Place) -> None:
    with pytest.raises(ConfigurationError, match="the policy 'p' calls itself 'q'"):
        await train(place, {"p": fresh("q")})


PROGRAM = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from games import ANSWERS, WORDS, game
from agent_env.training import Policy, Run, WordTokenizer, make_model, training_loop
async def main():
    tokenizer = WordTokenizer(WORDS)
    policies = {"p": Policy("p", make_model(tokenizer, seed=0), tokenizer)}
    with Run.create(sys.argv[1], name="a") as run:
        loop = training_loop(game(), list(ANSWERS), policies, updates=1000, run=run, group_size=4, tasks_per_update=4,
                             checkpoint_every=3)
        async for update in loop:
            print(update.number, flush=True)
asyncio.run(main())
"""


@pytest.mark.timeout(120)
async def test_a_loop_whose_process_is_killed_goes_on_from_its_newest_checkpoint(place: Place, tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, tmp_path, here), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    with anyio.fail_after(60):
        for number in range(1, 6):
            assert await process.stdout.readline() == b"%d\n" % number
        process.send_signal(signal.SIGKILL)
        await process.communicate()
    with Run.open(tmp_path / "a") as run:
        reached = len(run.curve())
        checkpoint = run.latest()
        assert checkpoint is not None and reached >= 5
        assert checkpoint.update == reached - reached % 3 or checkpoint.update == reached - reached % 3 - 3
        policies: dict[str, Policy] = {}
        updates = await train(place, policies, run=run, updates=checkpoint.update + 2)
        assert [update.number for update in updates] == [checkpoint.update + 1, checkpoint.update + 2]
        assert [line["update"] for line in run.curve()] == list(range(1, checkpoint.update + 3))
        assert policies["p"].version == checkpoint.update + 2
        # Nothing that the lost updates sampled is learned from: their weights are gone.
        assert all(line["staleness"]["oldest"] == 0 for line in run.curve())
