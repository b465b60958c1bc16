"""Views of scenarios that fail, hang, or are never heard of: every episode ends, and the next one can begin."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from plays import nested, shout, turns

from agent_env import AgentEnvironment
from agent_env.errors import ConfigurationError
from agent_env.training import Backstage, Scenario, Seat, Team, to_gymnasium, to_pettingzoo
from agent_env.training.views import driver

Ended = tuple[float, bool, bool, str, str]


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    views: list[Any] = []

    def opening(view: Any) -> Any:
        views.append(view)
        return view

    yield opening
    for view in views:
        view.close()


def outcome(stepped: Any) -> Ended:
    _, reward, terminated, truncated, info = stepped
    return reward, terminated, truncated, info["ended"], info["error"]


async def failing_at_once(team: Team, task: Any) -> None:
    raise ValueError(task)


async def failing_later(team: Team, task: Any) -> None:
    raise ValueError((await team["a"].chat("go")).text)


async def exiting(team: Team, task: Any) -> None:
    await team["a"].chat("go")
    sys.exit(3)


async def cancelling_itself(team: Team, task: Any) -> None:
    await team["a"].chat("go")
    raise asyncio.CancelledError


async def asking_a_broken_one(team: Team, task: Any) -> None:
    await team["a"].chat("go")
    await team["b"].chat("go")


async def asking_nobody(team: Team, task: Any) -> str:
    return "done"


async def no_json(team: Team, task: Any) -> object:
    await team["a"].chat("go")
    return object()


def not_async(team: Team, task: Any) -> None: ...


def broken(message: str) -> str:
    raise RuntimeError(message)


@pytest.mark.parametrize(
    "play, ended, error",
    [
        (failing_at_once, "failed", "program: ValueError"),
        (failing_later, "failed", "program: ValueError"),
        (exiting, "failed", "program: SystemExit"),
        (cancelling_itself, "failed", "program: CancelledError"),
        (asking_a_broken_one, "failed", "agent: agent_failed"),
        (no_json, "failed", "program: configuration"),
        (not_async, "failed", "program: configuration"),
        (asking_nobody, "played", ""),
    ],
)
def test_a_program_that_fails_ends_the_episode_at_the_next_step(
    play: Any, ended: str, error: str, opened: Callable[..., Any]
) -> None:
    scenario = Scenario(play, lambda episode: {"team": {"x": 1.0}}, {"a": Seat(), "b": Seat(broken)})
    asked = play not in (failing_at_once, asking_nobody, not_async)
    reward = float(ended == "played")
    alone = opened(to_gymnasium(scenario, "a"))
    for _ in range(2):
        observation, info = alone.reset(seed=1)
        assert (observation["asked"], info["asked"]) == (asked, asked)
        assert outcome(alone.step("x")) == (reward, ended == "played", ended == "failed", ended, error)
        with pytest.raises(ConfigurationError, match="the episode has ended; reset it"):
            alone.step("x")
    team = opened(to_pettingzoo(scenario, ["a"]))
    team.reset(seed=1)
    assert not any(team.terminations.values()) and not any(team.truncations.values())
    team.step("x")
    assert team.last()[1:4] == (reward, ended == "played", ended == "failed")
    team.step(None)
    assert team.agents == []
    with pytest.raises(ConfigurationError, match="call reset first"):
        team.step(None)
    at_once = opened(to_pettingzoo(scenario, ["a"], parallel=True))
    at_once.reset(seed=1)
    told = at_once.step({"a_0": "x"})
    assert outcome([part["a_0"] for part in told]) == (reward, ended == "played", ended == "failed", ended, error)


def test_a_score_that_fails_is_no_reward_of_zero(opened: Callable[..., Any]) -> None:
    env = opened(to_gymnasium(Scenario(turns().play, lambda episode: {"nobody": {}}, turns().seats), "judge"))
    env.reset(seed=1)
    stepped = env.step("x")
    assert outcome(stepped) == (0.0, False, True, "failed", "reward: invalid_arguments")
    assert not stepped[4]["scored"] and "which nobody had" in env.episode.failures[0].message


def test_the_limit_of_turns_cuts_an_episode_off(opened: Callable[..., Any]) -> None:
    cut = threading.Event()

    async def endless(team: Team, task: Any) -> None:
        try:
            while True:
                await team["a"].chat("again")
        finally:
            cut.set()

    scenario = Scenario(endless, lambda episode: {"team": {"x": 1.0}}, {"a": Seat()})
    env = opened(to_gymnasium(scenario, "a", max_turns=3))
    for _ in range(2):
        env.reset(seed=1)
        cut.clear()
        assert [env.step("x")[2:4] for _ in range(2)] == [(False, False)] * 2
        assert outcome(env.step("x")) == (0.0, False, True, "turn limit", "")
        assert cut.is_set() and env.episode is None
    # It may end at its limit too, and is whole.
    whole = opened(to_gymnasium(nested(), "worker", max_turns=2))
    whole.reset(seed=1)
    whole.step("x")
    assert whole.step("y")[1:4] == (-2.0, True, False)


def test_a_program_that_catches_everything_cannot_keep_the_view(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver, "GRACE", 0.3)
    leave = threading.Event()
    heard: list[str] = []

    async def stubborn(team: Team, task: Any) -> None:
        while not leave.is_set():
            try:
                heard.append((await team["a"].chat(f"{task}")).text)
            except BaseException as error:  # noqa: BLE001 - which is the point
                heard.append(type(error).__name__)
                await asyncio.sleep(0.01)

    env = opened(to_gymnasium(Scenario(stubborn, None, {"a": Seat()}), "a", max_turns=2))
    try:
        env.reset(seed=1, options={"task": "one"})
        env.step("x")
        assert outcome(env.step("y")) == (0.0, False, True, "turn limit", "")
        assert "goes on after it was cancelled" in caplog.text
        # What it asks now reaches nobody, and the next episode is not disturbed.
        assert env.reset(seed=1, options={"task": "two"})[0]["text"] == "two"
        assert env.step("z")[0]["text"] == "two"
        assert heard[:2] == ["x", "y"] and "AgentFailed" in heard
    finally:
        leave.set()


def test_a_program_that_waits_for_nothing_is_cut_off_in_time(opened: Callable[..., Any]) -> None:
    async def waiting(team: Team, task: Any) -> None:
        if await team["a"].chat("go"):
            await asyncio.Event().wait()

    env = opened(to_gymnasium(Scenario(waiting, None, {"a": Seat()}), "a", seconds=0.2))
    for _ in range(2):
        env.reset(seed=1)
        began = time.monotonic()
        assert outcome(env.step("x")) == (0.0, False, True, "failed", "deadline: deadline_exceeded")
        assert time.monotonic() - began < 5

    async def at_the_start(team: Team, task: Any) -> None:
        await asyncio.Event().wait()

    env = opened(to_gymnasium(Scenario(at_the_start, None, {"a": Seat()}), "a", seconds=0.2))
    assert env.reset(seed=1)[0]["asked"] == 0
    assert outcome(env.step("x"))[3:] == ("failed", "deadline: deadline_exceeded")


def test_a_program_that_blocks_its_thread_is_left_behind(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver, "GRACE", 0.2)
    leave = threading.Event()

    async def blocking(team: Team, task: Any) -> None:
        await team["a"].chat("go")
        leave.wait(60)

    env = opened(to_gymnasium(Scenario(blocking, None, {"a": Seat()}), "a", seconds=0.2))
    try:
        for _ in range(2):
            env.reset(seed=1)
            assert outcome(env.step("x")) == (0.0, False, True, "failed", "program: deadline_exceeded")
        assert "blocks its event loop" in caplog.text and "its thread is left behind" in caplog.text
        env.reset(seed=1)
        monkeypatch.setattr(driver, "GRACE", 0.1)
        env.close()
    finally:
        leave.set()


def test_a_frozen_agent_that_hangs_is_cut_off_in_time(opened: Callable[..., Any]) -> None:
    leave = threading.Event()

    def hanging(message: str) -> str:
        leave.wait(60)
        return message

    seats = {**turns().seats, "judge": Seat(hanging)}
    env = opened(to_pettingzoo(Scenario(turns().play, None, seats), ["first", "second"], seconds=0.3))
    try:
        env.reset(seed=1)
        for _ in range(4):
            assert not any(env.truncations.values())
            env.step("x")
        assert env.truncations == {"first_0": True, "second_0": True}
        assert {info["error"] for info in env.infos.values()} == {"deadline: deadline_exceeded"}
    finally:
        leave.set()


def test_a_reset_in_the_middle_ends_the_episode_before(opened: Callable[..., Any]) -> None:
    ended: list[str] = []

    async def play(team: Team, task: Any) -> None:
        try:
            for _ in range(3):
                await team["a"].chat(task)
        finally:
            ended.append(task)

    env = opened(to_pettingzoo(Scenario(play, None, {"a": Seat()})))
    for task in ("one", "two", "three"):
        env.reset(options={"task": task})
        assert env.last()[0] == {"asked": 1, "from": 0, "text": task, "turn": 0}
        env.step("x")
        assert env.last()[0]["turn"] == 1
    assert ended == ["one", "two"]
    env.close()
    assert ended == ["one", "two", "three"]


@pytest.mark.parametrize(
    "seats, rules, fault",
    [
        (["judge", "boss"], {}, "there is no seat 'boss' to play from outside; the seats: 'first', 'second', 'judge'"),
        ([], {}, "needs a seat that is played from outside"),
        (None, {"max_turns": 0}, "max_turns=0 must be at least 1"),
        (None, {"max_text": 0}, "max_text=0 must be at least 1"),
        (None, {"max_action": -1}, "max_action=-1 must be at least 1"),
        (None, {"seconds": 0.0}, "seconds=0.0 must be above 0"),
        (None, {"encoding": "utf-8"}, "encoding='utf-8' must be 'text' or 'bytes'"),
        (None, {"characters": ""}, "leaves nothing that could be said"),
        (None, {"actions": []}, "the seat 'first' has no action to choose from"),
        (None, {"may_call": {"first": ["x"]}}, "there is no seat 'x'"),
        (["first"], {"may_call": {"second": ["first"]}}, "and 'second' is not"),
        (None, {"render_mode": "human"}, "render_mode='human' must be 'ansi' or None"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_view_is_made(seats: Any, rules: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        to_pettingzoo(turns(), seats, **rules)
    if seats is None:
        with pytest.raises(ConfigurationError, match=fault):
            to_gymnasium(turns(), "first", **rules)


async def judged(team: Team, task: Any) -> str:
    return (await team["judge"].chat((await team["a"].chat(task)).text)).text


def test_a_seat_that_could_not_be_played_is_refused_when_the_view_is_made(opened: Callable[..., Any]) -> None:
    seats = {"a": Seat(policy="p"), "tool": Seat(), "judge": Seat(shout, trainable=False)}
    scenario = Scenario(judged, None, seats)
    with pytest.raises(ConfigurationError, match=r"'a' may call 'tool', which has no environment; act for 'tool' too"):
        to_pettingzoo(scenario, ["a"], may_call={"a": ["judge", "tool"]})
    env = opened(to_pettingzoo(scenario, ["a", "tool"], may_call={"a": ["tool", "judge"]}))
    env.reset(seed=1, options={"task": "t"})
    for agent, action in (("a_0", "@tool x"), ("tool_0", "y"), ("a_0", "@judge z"), ("a_0", "w")):
        assert env.agent_selection == agent
        env.step(action)
    assert env.episode.info["result"] == "W"


def test_a_policy_plays_no_seat_of_a_view_for_there_is_no_run(opened: Callable[..., Any]) -> None:
    asked: list[object] = []

    async def judge(message: str, model: Any) -> str:
        asked.append(model)
        return message

    scenario = Scenario(judged, None, {"a": Seat(policy="p"), "judge": Seat(judge, "q", trainable=False)})
    with pytest.raises(ConfigurationError, match="'judge' is played by the policy 'q', but a view has no run; act for"):
        to_gymnasium(scenario, "a")
    # Whoever might call `b` by itself is acted for.
    seats = {"a": Seat(), "judge": Seat(judge), "b": Seat(policy="q")}
    for env in (to_pettingzoo(scenario), to_gymnasium(replace(scenario, seats=seats), "a")):
        opened(env).reset(options={"task": "t"})
        env.step("x")
    assert env.episode.ok and asked == [None]


def test_an_agent_without_a_name_says_how_to_give_it_one(opened: Callable[..., Any]) -> None:
    scenario = Scenario(judged, None, {"a": Seat(), "judge": Seat(lambda message: "fine")})
    env = opened(to_gymnasium(scenario, "a"))
    with pytest.raises(ConfigurationError, match=r"as in AgentEnvironment\(agent, name='my-agent'\)"):
        env.reset()
    named = AgentEnvironment(lambda message: "fine", name="judge")
    env = opened(to_gymnasium(replace(scenario, seats={"a": Seat(), "judge": Seat(named)}), "a"))
    env.reset(options={"task": "t"})
    assert env.step("x")[2]


def test_agents_that_cannot_be_wrapped_and_loops_that_are_not_shared_are_refused(opened: Callable[..., Any]) -> None:
    seats = {"a": Seat(), "b": Seat(object())}
    env = opened(to_gymnasium(Scenario(failing_later, None, seats), "a"))
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            env.reset()
    shared = Scenario(asking_a_broken_one, None, {"a": Seat(), "b": Seat(AgentEnvironment(shout, name="b"))})
    first, second = (opened(to_gymnasium(shared, "a")) for _ in range(2))
    first.reset()
    assert first.step("x")[2]
    second.reset()
    assert outcome(second.step("x"))[3:] == ("failed", "program: configuration")
    assert "runs in another event loop" in second.episode.failures[0].message
    first.close()
    second.reset()
    assert second.step("x")[2]


def test_a_stage_that_is_closed_starts_no_more() -> None:
    with Backstage() as stage:
        env = to_gymnasium(turns(), "first", stage=stage)
        env.reset(seed=1)
    stage.close()
    with pytest.raises(ConfigurationError, match="this stage is closed"):
        env.reset(seed=1)
    env.close()


def test_a_scenario_cannot_step_the_view_that_plays_it(opened: Callable[..., Any]) -> None:
    async def play(team: Team, task: Any) -> None:
        await team["a"].chat("go")
        env.step("x")

    env = opened(to_gymnasium(Scenario(play, None, {"a": Seat()}), "a"))
    env.reset(seed=1)
    assert outcome(env.step("x"))[3:] == ("failed", "program: configuration")
    assert "would wait for itself" in env.episode.failures[0].message


@pytest.mark.parametrize("name", ["pettingzoo", "gymnasium", "numpy"])
def test_without_the_packages_the_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [module for module in sys.modules if module.startswith("agent_env.training.views.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=rf"need {name}, .*pip install 'agent-env\[pettingzoo\]'"):
        to_pettingzoo(turns())
