"""Views keep the contracts of PettingZoo and Gymnasium, by these projects' own tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.utils import parallel_to_aec, wrappers
from plays import ALL, nested, turns
from stages import staged

from agent_env.training import Backstage, Scenario, Seat, to_gymnasium, to_pettingzoo
from agent_env.training.views import RuleOptions

FORMS: list[RuleOptions] = [
    {"max_action": 40},
    {"encoding": "bytes", "max_text": 300, "max_action": 20},
    {"actions": ["1", "2", "three"]},
]

pytestmark = [
    pytest.mark.long,
    # What they say of every space but a Box, and of every observation but an array.
    pytest.mark.filterwarnings("ignore:(Observation|Action) space for each agent probably should be:UserWarning"),
    pytest.mark.filterwarnings("ignore:Observation is not a NumPy array:UserWarning"),
    # Bytes are no motors.
    pytest.mark.filterwarnings("ignore:.*For Box action spaces, we recommend:UserWarning"),
]

scenarios = pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
forms = pytest.mark.parametrize("form", FORMS, ids=["text", "bytes", "choices"])


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    views: list[Any] = []

    def opening(view: Any) -> Any:
        views.append(view)
        return view

    yield opening
    for view in views:
        view.close()


@scenarios
@forms
def test_agents_one_at_a_time_pass_the_api_test(
    make: Callable[[], Scenario], form: RuleOptions, opened: Callable[..., Any]
) -> None:
    api_test(opened(to_pettingzoo(make(), **form)), num_cycles=40)
    api_test(opened(to_pettingzoo(make(), max_turns=1, **form)), num_cycles=10)


@scenarios
@forms
def test_agents_at_once_pass_the_parallel_api_test(
    make: Callable[[], Scenario], form: RuleOptions, opened: Callable[..., Any]
) -> None:
    parallel_api_test(opened(to_pettingzoo(make(), parallel=True, **form)), num_cycles=40)
    # What that test does not look at is looked at where agents act one at a time.
    api_test(parallel_to_aec(opened(to_pettingzoo(make(), parallel=True, **form))), num_cycles=20)


@scenarios
@forms
def test_equal_seeds_and_actions_give_equal_episodes(make: Callable[[], Scenario], form: RuleOptions) -> None:
    seed_test(lambda: to_pettingzoo(make(), **form), num_cycles=30)
    parallel_seed_test(lambda: to_pettingzoo(make(), parallel=True, **form), num_cycles=30)


@scenarios
@forms
def test_one_seat_against_frozen_others_passes_check_env(
    make: Callable[[], Scenario], form: RuleOptions, opened: Callable[..., Any]
) -> None:
    for number, seat in enumerate(make().seats):
        if number and form is not FORMS[0]:
            continue  # the form is the same for all seats
        name = f"agent-env/{make.__name__.replace('_', '-')}-{form.get('encoding', len(form))}-{number}-v0"

        def entry(render_mode: str | None = None, seat: str = seat) -> Any:
            return opened(to_gymnasium(make(), seat, render_mode=render_mode, **form))

        gymnasium.register(name, entry_point=entry)
        try:
            check_env(gymnasium.make(name).unwrapped)
            check_env(gymnasium.make(name, render_mode="ansi").unwrapped)
        finally:
            gymnasium.registry.pop(name)


def test_the_wrappers_of_pettingzoo_are_content(opened: Callable[..., Any]) -> None:
    for make in ALL:
        env = wrappers.OrderEnforcingWrapper(opened(to_pettingzoo(make())))
        env.reset(seed=3)
        for agent in env.agent_iter():
            _, _, terminated, truncated, _ = env.last()
            env.step(None if terminated or truncated else env.action_space(agent).sample())
        assert not env.agents


def test_views_that_share_agents_share_a_stage() -> None:
    shared = nested()
    with Backstage() as stage:
        seed_test(lambda: to_pettingzoo(shared, ["worker"], stage=stage), num_cycles=20)
        vector = gymnasium.vector.SyncVectorEnv(
            [lambda: to_gymnasium(shared, "worker", actions=["1", "2"], stage=stage)] * 3
        )
        seen, _ = vector.reset(seed=1)
        assert len(set(seen["text"])) == 3  # each has a task of its own
        rewards: Any = 0
        for _ in range(2):
            _, rewards, ended, _, _ = vector.step([0, 1, 0])
        assert list(rewards) == [-2.0] * 3 and all(ended)
        vector.close()


@pytest.mark.anyio
async def test_a_served_agent_that_is_frozen_passes_them_all(tmp_path: Path) -> None:
    def echo(message: str, history: list[Any]) -> str:
        return f"{len(history)} {message}"

    def check(url: object) -> None:
        scenario = Scenario(turns().play, turns().score, {**turns().seats, "second": Seat(url)}, tasks=["a", "b"])
        seats = ["first", "judge"]
        for parallel in (False, True):
            env: Any = to_pettingzoo(scenario, seats, parallel=True) if parallel else to_pettingzoo(scenario, seats)
            (parallel_api_test if parallel else api_test)(env, num_cycles=10)
            env.close()
        seed_test(lambda: to_pettingzoo(scenario, seats), num_cycles=10)
        parallel_seed_test(lambda: to_pettingzoo(scenario, seats, parallel=True), num_cycles=10)
        alone = to_gymnasium(scenario, "first")
        alone.spec = gymnasium.envs.registration.EnvSpec(
            "first-v0", entry_point=lambda: to_gymnasium(scenario, "first")
        )
        check_env(alone, skip_render_check=True)
        alone.close()

    with anyio.fail_after(60):
        async with staged(tmp_path, "websocket", {"echo": echo}) as stage:
            await anyio.to_thread.run_sync(check, stage.seat("echo").env)


def playthrough(env: Any, say: Callable[[str], Any], form: RuleOptions) -> list[Any]:
    """Plays one episode one agent at a time, checks each step, and returns all that was seen."""
    env.reset(seed=5)
    earned = dict.fromkeys(env.possible_agents, 0.0)
    seen: list[Any] = []
    for agent in env.agent_iter(500):
        observation, reward, terminated, truncated, info = env.last()
        assert env.observation_space(agent).contains(observation), observation
        assert set(env.agents) == set(env.rewards) == set(env.terminations) == set(env.truncations) == set(env.infos)
        seen.append((agent, observation, reward, terminated, truncated, info))
        earned[agent] += reward
        env.step(None if terminated or truncated else say(agent))
    assert not env.agents  # it has ended, and well within its bound
    return seen


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.text(max_size=40) | st.text(st.characters(codec=None), max_size=5), min_size=1, max_size=12),
    picks=st.sampled_from(ALL),
    bytewise=st.booleans(),
)
def test_no_words_whatever_break_the_contract(words: list[str], picks: Callable[[], Scenario], bytewise: bool) -> None:
    form: RuleOptions = {"encoding": "bytes", "max_text": 64} if bytewise else {"max_text": 64}
    outcomes = []
    for _ in range(2):
        env = to_pettingzoo(picks(), max_turns=9, **form)
        turn = itertools.cycle(words)
        outcomes.append(playthrough(env, lambda agent, turn=turn: next(turn), form))
        env.close()
    assert data_equivalence(outcomes[0], outcomes[1])


@settings(max_examples=12)
@given(data=st.data(), make=st.sampled_from(ALL))
def test_whoever_acts_or_not_at_once_the_contract_holds(data: st.DataObject, make: Callable[[], Scenario]) -> None:
    env = to_pettingzoo(make(), parallel=True, max_turns=8)
    try:
        observations, infos = env.reset(seed=7)
        for turn in itertools.count(1):
            agents = list(env.agents)
            assert set(observations) == set(infos) == set(agents)
            for agent, seen in observations.items():
                assert env.observation_space(agent).contains(seen) and seen["asked"] == infos[agent]["asked"]
            acting = data.draw(st.lists(st.sampled_from(agents), unique=True))
            actions = {agent: data.draw(st.text(max_size=10)) for agent in acting}
            observations, rewards, terminations, truncations, infos = env.step(actions)
            assert set(rewards) == set(terminations) == set(truncations) == set(agents)
            assert turn <= 8 and (not env.agents) == any([*terminations.values(), *truncations.values()])
            if not env.agents:
                assert all(terminations.values()) != all(truncations.values())
                break
    finally:
        env.close()
