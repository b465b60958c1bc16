"""What agents see, do and earn when a scenario is played from outside."""

from __future__ import annotations

import asyncio
import gc
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pytest
from plays import at_once, nested, self_play, shout, turns

from agent_env import AgentEnvironment, Environment
from agent_env.episodes import Episode
from agent_env.errors import ConfigurationError, InvalidArguments
from agent_env.training import Backstage, Scenario, Seat, Team, to_gymnasium, to_pettingzoo
from agent_env.training.views.game import agent_names


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    views: list[Any] = []

    def opening(view: Any) -> Any:
        views.append(view)
        return view

    yield opening
    for view in views:
        view.close()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "agent-env-view"]


def played(env: Any, say: Callable[[str, str], str], seed: int = 1) -> list[tuple[str, str, str]]:
    """Plays an episode, and returns who was asked what and said what."""
    said = []
    env.reset(seed=seed)
    for agent in env.agent_iter(100):
        observation, _, terminated, truncated, _ = env.last()
        if terminated or truncated:
            env.step(None)
        else:
            words = say(agent, observation["text"])
            said.append((agent, observation["text"], words))
            env.step(words)
    return said


def test_whoever_is_asked_is_selected_and_what_they_say_is_their_reply(opened: Callable[..., Any]) -> None:
    env = opened(to_pettingzoo(turns(), ["first", "second"], render_mode="ansi"))
    said = played(env, lambda agent, text: text + agent[0])
    order = [agent for agent, _, _ in said]
    assert order[:2] == order[2:] and set(order) == {"first_0", "second_0"}
    for (_, _, before), (_, heard, _) in itertools.pairwise(said):
        assert heard == before
    # The judge is itself; and each agent earns what the score gives its seat and the team.
    assert env.episode.info["result"] == said[-1][2].upper()
    assert env.episode.ok and [edge.callee_seat for edge in env.episode.edges][-1] == "judge"
    assert env.render().splitlines()[:2] == [
        f"program to {order[0][:-2]}: {said[0][1]}",
        f"{order[0][:-2]}: {said[0][2]}",
    ]
    assert opened(to_pettingzoo(turns())).render() is None


def test_rewards_come_at_the_end_and_none_is_told_from_zero(opened: Callable[..., Any]) -> None:
    async def play(team: Team, task: Any) -> Any:
        await asyncio.gather(*(team[seat].chat("go") for seat in "abc"))

    def score(episode: Episode) -> Any:
        return {"a": {"x": 2.0, "y": (0.5, 2.0)}, "b": {"x": 0.0}, "c": {"x": None}}

    env = opened(to_pettingzoo(Scenario(play, score, {seat: Seat() for seat in "abc"}), parallel=True))
    env.reset(seed=1)
    _, rewards, terminations, truncations, infos = env.step(dict.fromkeys(env.agents, "x"))
    assert rewards == {"a_0": 3.0, "b_0": 0.0, "c_0": 0.0}
    assert {agent: info["scored"] for agent, info in infos.items()} == {"a_0": True, "b_0": True, "c_0": False}
    assert all(terminations.values()) and not any(truncations.values()) and env.agents == []
    assert env.step({}) == ({}, {}, {}, {}, {})


def test_an_agent_that_another_calls_is_asked_in_the_course_of_its_turn(opened: Callable[..., Any]) -> None:
    env = opened(to_gymnasium(nested(), "worker"))
    observation, info = env.reset(options={"task": "the story"})
    assert (observation["text"], observation["from"], info["callers"]) == (
        "the first half of the story",
        env.game.coder.seats.index("manager") + 1,
        ["manager"],
    )
    observation, reward, terminated, truncated, _ = env.step("Once")
    assert (observation["text"], reward, terminated, truncated) == ("what follows Once", 0.0, False, False)
    observation, reward, terminated, truncated, info = env.step(" upon")
    assert (reward, terminated, truncated, observation["asked"]) == (-len("Once upon"), True, False, 0)
    assert env.episode.info["result"] == "Once upon"
    (root,) = env.episode.tree().children
    assert (root.edge.callee_seat, [node.edge.callee_seat for node in root.children]) == ("manager", ["worker"] * 2)


def test_agents_in_threads_call_those_outside_as_well(opened: Callable[..., Any]) -> None:
    def manager(message: str, peers: Any) -> str:
        return str(peers["worker"](message) + peers["helper"](message))

    def slow(message: str) -> str:
        time.sleep(0.05)  # a frozen agent that takes its time, and that those outside must not overtake
        return "slow"

    scenario = Scenario(
        nested().play,
        None,
        {
            "manager": Seat(AgentEnvironment(manager, name="m", peers={"worker": shout, "helper": slow})),
            "worker": Seat(shout),
        },
    )
    env = opened(to_gymnasium(scenario, "worker"))
    assert env.reset(options={"task": "t"})[0]["text"] == "t"
    assert env.step("w")[2] and env.episode.info["result"] == "wslow"


@pytest.mark.parametrize("known", ["worker@1.0.0", "http://127.0.0.1:9/worker"])
def test_a_reference_to_a_seat_that_is_outside_leads_there_and_not_to_the_hub(
    known: str, tmp_path: Any, opened: Callable[..., Any]
) -> None:
    async def manager(message: str, peers: Any) -> str:
        return str(await peers["worker"](message) + await peers["again"](message))

    peers = {"worker": known, "again": Environment(known, lane="websocket")}
    seats = {
        "manager": Seat(Environment(AgentEnvironment(manager, name="m", peers=peers, hub=tmp_path / "hub.db"))),
        "worker": Seat(Environment(known, hub=tmp_path / "hub.db")),
    }
    env = opened(to_gymnasium(Scenario(nested().play, None, seats), "worker"))
    env.reset(options={"task": "t"})
    assert not env.step("a")[2] and env.step("b")[2]
    assert env.episode.info["result"] == "ab"
    env.close()
    # Both have the reference, and one of them alone is played from outside: it is not known which is meant.
    seats["other"] = Seat(known)
    env = opened(to_gymnasium(Scenario(nested().play, None, seats), "worker"))
    env.reset(options={"task": "t"})
    assert env.step("a")[4]["error"] == "refused: need_unmet"


def test_an_agent_calls_others_by_what_it_does_and_their_replies_come_back_to_it(opened: Callable[..., Any]) -> None:
    async def play(team: Team, task: Any) -> Any:
        return (await team["boss"].chat(task)).text

    def broken(message: str) -> str:
        raise ValueError(message)

    seats = {"boss": Seat(), "worker": Seat(), "loud": Seat(shout), "broken": Seat(broken)}
    may_call = {"boss": ["worker", "loud", "broken"], "worker": ["boss"]}
    env = opened(to_pettingzoo(Scenario(play, None, seats, tasks=["go"]), ["boss", "worker"], may_call=may_call))
    answers = iter(["@worker How?", "@boss Why?", "@worker Because", "so", "no reason", "like this"])
    then = iter(["@loud hey", "@broken x", "@nobody y"])

    def say(agent: str, text: str) -> str:
        return next(answers, "") or next(then)

    said = played(env, say)
    assert [(agent, text) for agent, text, _ in said] == [
        ("boss_0", "go"),
        ("worker_0", "How?"),
        ("boss_0", "Why?"),  # its second turn, within the worker's, within its first
        ("worker_0", "Because"),
        ("boss_0", "so"),
        ("worker_0", "no reason"),
        ("boss_0", "like this"),
        ("boss_0", "HEY"),
        ("boss_0", "broken failed: agent_failed"),
    ]
    assert env.episode.info["result"] == "@nobody y"  # which it may not call, so that is what it says


def test_those_who_are_asked_at_once_act_at_once(opened: Callable[..., Any]) -> None:
    env = opened(to_pettingzoo(at_once(), ["left", "right"], parallel=True))
    observations, _ = env.reset(seed=1)
    for told in ("begin", "2 against 1", "2 against 1"):
        assert [observations[agent]["text"] for agent in env.agents] == [told, told]
        observations, rewards, *_ = env.step({"left_0": "2", "right_0": "1"})
    assert rewards == {"left_0": 1.0, "right_0": 0.0}
    # One at a time they do not hear each other either.
    one = opened(to_pettingzoo(at_once(), ["left", "right"]))
    said = played(one, lambda agent, text: {"left_0": "2", "right_0": "1"}[agent])
    assert [text for _, text, _ in said] == ["begin"] * 2 + ["2 against 1"] * 4
    # And who says nothing stays asked.
    env.reset(seed=1)
    observations, *_ = env.step({"left_0": "2"})
    assert (observations["left_0"]["asked"], observations["right_0"]["asked"]) == (0, 1)
    observations, *_ = env.step({"left_0": "ignored"})
    observations, *_ = env.step({"left_0": "ignored", "right_0": "1"})
    assert observations["left_0"]["text"] == "2 against 1" and observations["left_0"]["turn"] == 3


def test_agents_that_are_slow_change_neither_who_is_asked_nor_in_which_order(opened: Callable[..., Any]) -> None:
    def slow(message: str) -> str:
        time.sleep(0.2)
        return message

    def quick(message: str) -> str:
        time.sleep(0.02)
        return message

    async def play(team: Team, task: Any) -> None:
        async def ask(seat: str, through: str | None) -> None:
            for _ in range(2):
                if through is not None:
                    await team.another(through).chat("wait")
                await team[seat].chat("go")

        await asyncio.gather(ask("third", None), ask("second", "quick"), ask("first", "slow"))

    seats = {seat: Seat() for seat in ("first", "second", "third")} | {"slow": Seat(slow), "quick": Seat(quick)}
    env = opened(to_pettingzoo(Scenario(play, None, seats), ["first", "second", "third"], parallel=True))
    env.reset(seed=1)
    assert env.game.waiting == ("first", "second", "third")
    env.step({"third_0": "x", "second_0": "x"})
    assert env.game.waiting == ("first", "second", "third")  # the first one has waited longest
    env.step({"first_0": "x", "third_0": "x"})
    assert env.game.waiting == ("second", "first")
    env.step({"first_0": "x", "second_0": "x"})
    assert env.agents == [] and env.episode.ok


def test_a_seat_that_is_asked_several_times_at_once_answers_one_after_another(opened: Callable[..., Any]) -> None:
    async def play(team: Team, task: Any) -> Any:
        apart = [team.another("worker").chat(f"apart {number}") for number in range(3)]
        together = [team["worker"].chat(f"together {number}") for number in range(2)]
        return [result.text for result in await asyncio.gather(*apart, *together)]

    env = opened(to_gymnasium(Scenario(play, None, {"worker": Seat()}), "worker"))
    observation, _ = env.reset(seed=1)
    heard = []
    ended = False
    while not ended:
        heard.append(observation["text"])
        observation, _, ended, *_ = env.step(observation["text"][::-1])
    assert heard == ["apart 0", "apart 1", "apart 2", "together 0", "together 1"]
    assert env.episode.info["result"] == [text[::-1] for text in heard]


def test_in_self_play_only_the_seat_that_is_outside_is_played_from_there(opened: Callable[..., Any]) -> None:
    env = opened(to_gymnasium(self_play(), "white", actions=["1", "2", "x"]))
    assert env.reset(options={"task": 4})[0]["text"] == "4 sticks"
    assert env.step(1)[0]["text"] == "1 sticks"  # black takes one, as it always does
    assert env.step(0)[1:4] == (1.0, True, False)
    env.reset(options={"task": 4})
    assert env.step(2)[1:4] == (-1.0, True, False)


def test_seeds_pick_tasks_and_options_name_them(opened: Callable[..., Any]) -> None:
    env = opened(to_gymnasium(turns(), "judge"))
    seen = {env.reset(seed=seed)[0]["text"] for seed in range(12)}
    assert seen == {"ONE", "TWO", "THREE"}
    assert env.reset(seed=3)[0]["text"] == env.reset(seed=3)[0]["text"]
    assert env.reset(options={"task": "mine"})[0]["text"] == "MINE"
    others = opened(to_gymnasium(turns(), "judge", tasks=["else"]))
    assert others.reset()[0]["text"] == "ELSE"
    assert opened(to_gymnasium(at_once(), "left")).reset()[1]["message"] == "begin"


def test_texts_fit_their_space_and_the_whole_message_is_beside_them(opened: Callable[..., Any]) -> None:
    async def play(team: Team, task: Any) -> Any:
        return (await team["a"].chat(task)).text

    scenario = Scenario(play, None, {"a": Seat()})
    env = opened(to_gymnasium(scenario, "a", max_text=9))
    observation, info = env.reset(options={"task": "é → Ünïcode \x00 and more"})
    assert (observation["text"], info["message"]) == ("e ? Unico", "é → Ünïcode \x00 and more")
    assert env.step(np.str_("naïve \ud800"))[2] and env.episode.info["result"] == "naïve ?"
    as_bytes = opened(to_gymnasium(scenario, "a", encoding="bytes", max_text=6))
    observation, _ = as_bytes.reset(options={"task": "a → b"})
    assert bytes(observation["text"]) == "a → ".encode()
    cut, _ = as_bytes.reset(options={"task": "abcd→"})
    assert bytes(cut["text"]) == b"abcd\0\0"  # no half of a character
    assert as_bytes.step(np.frombuffer("né\0\0".encode(), np.uint8))[2]
    assert as_bytes.episode.info["result"] == "né"
    plain = opened(to_gymnasium(scenario, "a", characters="abc"))
    assert plain.reset(options={"task": "xaybz?"})[0]["text"] == "ab"


def test_an_action_that_is_none_changes_nothing(opened: Callable[..., Any]) -> None:
    env = opened(to_pettingzoo(turns(), actions={"first": ["x"]}))
    env.reset(seed=1)
    while env.agent_selection != "first_0":
        env.step("hm")
    for odd in (1, -1, "x", 0.0, None):
        with pytest.raises(InvalidArguments, match="chooses one of 0 to 0, not"):
            env.step(odd)
    turn = env.game.turn
    env.step(0)
    assert env.game.turn == turn + 1 and env.agent_selection != "first_0"
    for odd in (1, b"x", None, ["x"]):
        with pytest.raises(InvalidArguments, match="acts by a text"):
            env.step(odd)
    dull = opened(to_gymnasium(turns(), "first", encoding="bytes"))
    dull.reset(seed=1)
    with pytest.raises(InvalidArguments, match="acts by a text, or by an element of its space"):
        dull.step(np.zeros((2, 2), np.uint8))


def test_agents_have_names_that_pettingzoo_likes() -> None:
    assert agent_names(["manager", "worker1", "worker-2", "worker_02", "7", "Top-Level", "toplevel"]) == {
        "manager": "manager_0",
        "worker1": "worker_1",
        "worker-2": "worker_2",
        "worker_02": "worker_3",
        "7": "seat_7",
        "Top-Level": "toplevel_0",
        "toplevel": "toplevel_1",
    }
    env = to_pettingzoo(nested())
    assert env.seats == {"manager_0": "manager", "worker_0": "worker"} and env.possible_agents == list(env.seats)
    assert (str(env), env.num_agents) == ("nested", 0)


@pytest.mark.anyio
async def test_a_view_works_inside_a_running_event_loop_and_in_other_threads() -> None:
    env = to_gymnasium(nested(), "worker")
    with anyio.fail_after(30):
        env.reset(seed=1)
        env.step("from the loop's own thread")
        assert (await anyio.to_thread.run_sync(env.step, "from another"))[2]
    env.close()


@pytest.mark.anyio
async def test_an_episode_is_no_part_of_the_turn_in_which_it_is_played() -> None:
    env = to_gymnasium(nested(), "worker")

    async def agent(message: str) -> str:
        env.reset(seed=1)
        env.step("a")
        return str(env.step("b")[2])

    async with Environment(agent) as learner:
        assert (await learner.chat("play")).text == "True"
    assert env.episode is not None and {trace.seat for trace in env.episode.traces} == {"manager", "worker"}
    env.close()


def test_closing_ends_the_thread_and_a_later_reset_begins_anew() -> None:
    before = len(threads())
    env = to_pettingzoo(turns())
    env.close()  # there is nothing to close yet
    for _ in range(2):
        env.reset(seed=1)
        env.step("x")
        assert len(threads()) == before + 1
        env.close()
        env.close()
        assert len(threads()) == before and env.agents == []
    with pytest.raises(ConfigurationError, match="call reset first"):
        env.step("x")


def test_a_view_that_nobody_has_any_more_is_closed() -> None:
    before = len(threads())
    for make in (lambda: to_gymnasium(turns(), "first"), lambda: to_pettingzoo(turns(), parallel=True)):
        env: Any = make()
        env.reset(seed=1)
        assert len(threads()) == before + 1
        del env
        gc.collect()
        assert len(threads()) == before


def test_a_view_may_be_forgotten_in_the_thread_that_plays_it() -> None:
    before = len(threads())
    ended = threading.Event()

    async def forgotten(team: Team, task: Any) -> None:
        try:
            await team["a"].chat("hello")
        finally:
            ended.set()

    async def forgetting(team: Team, task: Any) -> None:
        kept.clear()
        gc.collect()
        await team["a"].chat("hello")

    with Backstage() as stage:
        kept = [to_gymnasium(Scenario(forgotten, None, {"a": Seat()}), "a", stage=stage)]
        kept[0].reset()
        other = to_gymnasium(Scenario(forgetting, None, {"a": Seat()}), "a", stage=stage)
        other.reset()
        assert not kept and ended.wait(10) and other.step("x")[2]
        other.close()

    # Its own thread ends as well.
    async def of_itself(team: Team, task: Any) -> None:
        kept.clear()
        gc.collect()
        await team["a"].chat("hello")

    kept = [to_gymnasium(Scenario(of_itself, None, {"a": Seat()}), "a")]
    begin = kept[0].game.begin  # keeps the game alive, and not the view
    begin(1)
    gone = time.monotonic() + 10
    while len(threads()) > before and time.monotonic() < gone:
        time.sleep(0.01)
    assert len(threads()) == before


def test_a_program_that_closes_nothing_ends_all_the_same() -> None:
    program = """
import asyncio
from agent_env.training import Scenario, Seat, to_pettingzoo

async def play(team, task):
    await team["a"].chat("hello")

env = to_pettingzoo(Scenario(play, seats={"a": Seat()}))
env.reset()
print(env.last()[0]["text"])
"""
    command = [sys.executable, "-W", "error", "-c", program]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "hello\n", "")


def test_importing_training_imports_no_spaces() -> None:
    program = (
        "import sys, agent_env.training, agent_env.training.views; print({'gymnasium', 'numpy'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "set()\n"
