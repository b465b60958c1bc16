"""Episodes: reset, step, and what a turn was worth."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from scripted_agents import ANYBODY, Handles, add, counting, remember

from agent_env.errors import (
    AgentFailed,
    DeadlineExceeded,
    InvalidArguments,
    PeerFailed,
    TransportError,
    UnknownTool,
)
from agent_env.net.limits import Limits
from agent_env.runtime.declared import Reward
from agent_env.runtime.definition import SessionView

pytestmark = pytest.mark.anyio

Say = Callable[..., Awaitable[Any]]


async def test_reset_opens_a_session_whose_first_observation_is_the_owners(runtime_of: Any, say: Say) -> None:
    def start(session: SessionView) -> dict[str, Any]:
        session.memory["seed"] = session.seed
        return {"task": f"guess {session.seed}", "options": session.options}

    def seed(session: SessionView) -> int | None:
        return session.memory.get("seed")

    runtime = await runtime_of(counting, on_reset=start, functions=[seed])
    reset = await runtime.reset(seed=7, options={"hard": True}, caller=ANYBODY)
    assert reset.observation == {"task": "guess 7", "options": {"hard": True}}
    assert reset.info == {"environment": "agent@1.0.0"}
    await say(runtime, "a", reset.session_id)
    assert (await runtime.state(session_id=reset.session_id, caller=ANYBODY))["seed"] == 7
    asked = await runtime.call_function("seed", {}, session_id=reset.session_id, caller=ANYBODY)
    assert asked == {"result": 7, "session_id": reset.session_id}
    again = await runtime.reset(session_id=reset.session_id, seed=7, options={"hard": True}, caller=ANYBODY)
    assert again == reset
    assert (await say(runtime, "b", reset.session_id)).text == "1: b"


async def test_reset_without_a_hook_observes_nothing(runtime_of: Any) -> None:
    runtime = await runtime_of(counting)
    reset = await runtime.reset(caller=ANYBODY)
    assert reset.observation is None
    assert len(runtime.sessions) == 1


async def test_a_reset_that_fails_leaves_the_session_as_it_was(runtime_of: Any, say: Say) -> None:
    async def start(session: SessionView) -> str:
        if session.options == "hang":
            await asyncio.Event().wait()
        if session.options == "fail":
            raise RuntimeError("secret")
        return "ready"

    runtime = await runtime_of(counting, on_reset=start, limits=Limits(turn_seconds=0.1))
    session_id = (await say(runtime, "a")).session_id
    with pytest.raises(AgentFailed, match=r"'on_reset' of agent@1\.0\.0 raised RuntimeError"):
        await runtime.reset(session_id=session_id, options="fail", caller=ANYBODY)
    with anyio.fail_after(5), pytest.raises(DeadlineExceeded, match=r"'reset' of agent@1\.0\.0"):
        await runtime.reset(session_id=session_id, options="hang", caller=ANYBODY)
    with pytest.raises(AgentFailed):
        await runtime.reset(options="fail", caller=ANYBODY)
    assert (await say(runtime, "b", session_id)).text == "2: b"
    assert len(runtime.sessions) == 1


@pytest.mark.parametrize("seed", ["1", 1.5, True, [1]])
async def test_a_seed_is_a_whole_number(runtime_of: Any, seed: Any) -> None:
    runtime = await runtime_of(counting)
    with pytest.raises(InvalidArguments, match="'seed' must be a whole number"):
        await runtime.reset(seed=seed, caller=ANYBODY)


async def test_reset_frees_what_the_old_conversation_held(runtime_of: Any, say: Say) -> None:
    wrapper = Handles()
    runtime = await runtime_of(wrapper)
    session_id = (await say(runtime, "a")).session_id
    assert wrapper.kept == {"h0": ["a"]}
    await runtime.reset(session_id=session_id, caller=ANYBODY)
    assert wrapper.kept == {}
    assert (await say(runtime, "b", session_id)).text == "b"


async def test_a_step_is_one_turn_and_truncates_at_the_turn_limit(runtime_of: Any) -> None:
    runtime = await runtime_of(counting, limits=Limits(turn_limit=2))
    first = await runtime.step("a", caller=ANYBODY)
    assert (first.observation, first.reward, first.terminated, first.truncated) == ("1: a", None, False, False)
    assert first.info["turn"] == 1
    second = await runtime.step({"message": "b"}, session_id=first.session_id, caller=ANYBODY)
    assert (second.observation, second.truncated) == ("2: b", True)
    with pytest.raises(InvalidArguments, match="has had its 2 turns"):
        await runtime.step("c", session_id=first.session_id, caller=ANYBODY)
    assert (await runtime.state(session_id=first.session_id, caller=ANYBODY))["truncated"]
    await runtime.reset(session_id=first.session_id, caller=ANYBODY)
    assert (await runtime.step("c", session_id=first.session_id, caller=ANYBODY)).observation == "1: c"


async def test_a_step_may_call_a_tool_with_or_without_a_session(runtime_of: Any) -> None:
    runtime = await runtime_of(counting, tools=[add, remember])
    step = await runtime.step({"tool": "add", "arguments": {"a": 1}}, caller=ANYBODY)
    assert (step.observation, step.session_id, step.info["turn"], step.terminated) == (2, "", 0, False)
    step = await runtime.step({"tool": "remember", "arguments": {"word": "a"}}, caller=ANYBODY)
    assert step.observation == "a"
    assert step.session_id


@pytest.mark.parametrize("action", [3, None, ["a"], {"tool": "add"}, {"tool": 3, "arguments": {}}])
async def test_an_action_that_is_none_is_refused(runtime_of: Any, action: Any) -> None:
    runtime = await runtime_of(counting)
    with pytest.raises(InvalidArguments, match="'action' must be"):
        await runtime.step(action, caller=ANYBODY)


async def test_no_reward_is_none_and_a_reward_of_nothing_is_zero(runtime_of: Any, say: Say) -> None:
    def right(session: SessionView) -> float | None:
        return {"1: yes": 1.0, "2: no": 0.0}.get(session.reply)

    runtime = await runtime_of(counting, rewards=[right])
    first = await say(runtime, "yes")
    second = await say(runtime, "no", first.session_id)
    third = await say(runtime, "maybe", first.session_id)
    assert (first.reward, second.reward, third.reward) == (1.0, 0.0, None)


async def test_rewards_add_up_by_weight_and_one_may_end_the_episode(runtime_of: Any, say: Say) -> None:
    def length(session: SessionView) -> int:
        return len(session.message)

    async def finish(session: SessionView) -> Reward:
        return Reward(0.5 if session.turns == 2 else None, done=session.turns == 2)

    runtime = await runtime_of(counting, rewards=[length, finish])
    runtime.definition.rewards["length"] = _weighted(runtime.definition.rewards["length"], 0.1)
    first = await runtime.step("abc", caller=ANYBODY)
    assert (first.reward, first.terminated) == (pytest.approx(0.3), False)
    second = await runtime.step("ab", session_id=first.session_id, caller=ANYBODY)
    assert (second.reward, second.terminated) == (pytest.approx(0.7), True)
    with pytest.raises(InvalidArguments, match="has ended"):
        await say(runtime, "c", first.session_id)
    assert (await runtime.state(session_id=first.session_id, caller=ANYBODY))["terminated"]


def _weighted(declared: Any, weight: float) -> Any:
    from dataclasses import replace

    return replace(declared, weight=weight)


async def test_a_reward_sees_the_turn_that_ended_and_keeps_its_memory(runtime_of: Any, say: Say) -> None:
    seen: list[SessionView] = []

    def watch(session: SessionView) -> None:
        session.memory["n"] = session.memory.get("n", 0) + 1
        seen.append(session)

    runtime = await runtime_of(counting, rewards=[watch])
    session_id = (await say(runtime, "a")).session_id
    await say(runtime, "b", session_id)
    last = seen[-1]
    assert (last.message, last.reply, last.turns, last.memory) == ("b", "2: b", 2, {"n": 2})
    assert [message["content"] for message in last.messages] == ["a", "1: a", "b", "2: b"]
    assert session_id not in last.id  # session ids are secrets


@pytest.mark.parametrize("value", ["1", float("nan"), float("inf"), 10**400, [1.0], Reward("x")])  # type: ignore[arg-type]
async def test_a_reward_that_is_no_number_fails_the_turn(runtime_of: Any, say: Say, value: Any) -> None:
    async def odd(session: SessionView) -> Any:
        return value if session.message == "odd" else 1

    runtime = await runtime_of(counting, rewards=[odd])
    session_id = (await say(runtime, "a")).session_id
    with pytest.raises(AgentFailed, match="the reward 'odd' returned"):
        await say(runtime, "odd", session_id)
    assert (await say(runtime, "b", session_id)).text == "2: b"


async def test_rewards_that_add_up_to_more_than_a_number_holds_fail_the_turn(runtime_of: Any, say: Say) -> None:
    def much(session: SessionView) -> float:
        return 1.7e308

    def more(session: SessionView) -> float:
        return 1.7e308

    runtime = await runtime_of(counting, rewards=[much, more])
    with pytest.raises(AgentFailed, match=r"the rewards of a turn add up to inf with 1\.0 times 1\.7e\+308"):
        await say(runtime, "a")


async def test_a_reward_that_raises_or_hangs_fails_the_turn(runtime_of: Any, say: Say) -> None:
    async def judge(session: SessionView) -> float:
        if session.message == "hang":
            await asyncio.Event().wait()
        if session.message == "peer":
            raise TransportError("the judge is gone")
        raise ValueError("secret")

    runtime = await runtime_of(counting, rewards=[judge], limits=Limits(turn_seconds=0.1))
    with pytest.raises(AgentFailed, match=r"the reward 'judge' of agent@1\.0\.0 raised ValueError"):
        await say(runtime, "a")
    with pytest.raises(PeerFailed):
        await say(runtime, "peer")
    with anyio.fail_after(5), pytest.raises(DeadlineExceeded):
        await say(runtime, "hang")
    assert len(runtime.sessions) == 0


async def test_call_reward_scores_a_session_as_it_stands_and_changes_nothing(runtime_of: Any, say: Say) -> None:
    def score(session: SessionView, times: int = 1) -> Reward:
        session.memory["scored"] = True
        return Reward(len(session.reply) * times, done=bool(session.memory.get("again")))

    runtime = await runtime_of(counting, rewards=[score])
    session_id = (await say(runtime, "abc")).session_id
    scored = await runtime.call_reward("score", {"times": 2}, session_id=session_id, caller=ANYBODY)
    assert scored == {"name": "score", "value": 12.0, "done": False}
    fresh = await runtime.reset(caller=ANYBODY)
    assert (await runtime.call_reward("score", session_id=fresh.session_id, caller=ANYBODY))["value"] == 0.0
    with pytest.raises(InvalidArguments, match="/times"):
        await runtime.call_reward("score", {"times": "x"}, session_id=session_id, caller=ANYBODY)
    with pytest.raises(UnknownTool, match="no reward 'other' here; it has score"):
        await runtime.call_reward("other", session_id=session_id, caller=ANYBODY)
