"""Failures that users of other trainers report, played here from the agents' calls to the rows and their credit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env import AgentEnvironment
from agent_env.episodes import CallRecord, Episode, TurnRecord
from agent_env.gateway import Gateway, RunHandle, SeatPolicy, running
from agent_env.net import post_json
from agent_env.training import (
    Policy,
    PolicyServer,
    Scenario,
    Seat,
    Team,
    WordTokenizer,
    collect,
    credit_rows,
    learn,
    make_model,
    rollout,
    warm_start,
)
from agent_env.training.exports.trl import to_trl
from agent_env.training.rows import Row
from agent_env.training.sampling import Prompt
from agent_env_wrappers.contract import ModelRoute

WORDS = ["boat", "car", "drum", "hat", "kite", "zip"]
ROUNDS = 3


@cache
def speaking() -> Policy:
    """A policy that answers any chat with one word."""
    tokenizer, rng = WordTokenizer(WORDS), random.Random(0)
    model = make_model(tokenizer, seed=1)

    def example() -> tuple[list[dict[str, str]], str]:
        roles = ["system", "user", *["assistant", "user"] * rng.randrange(ROUNDS)]
        return [{"role": role, "content": rng.choice(WORDS)} for role in roles], rng.choice(WORDS)

    warm_start(model, tokenizer, example, steps=60, batch=24)
    return Policy("tiny", model, tokenizer, seed=1)


async def lead(message: str, model: ModelRoute) -> str:
    """Has helpers of its own in its one turn: three conversations, told apart by their system prompts alone, that go on
    at once and end each round together."""
    chats = [[{"role": "system", "content": mark}] for mark in ("boat", "car", "drum")]

    async def say(chat: list[dict[str, str]]) -> None:
        chat.append({"role": "user", "content": message})
        headers = {"Authorization": f"Bearer {model.api_key}"}
        body = {"model": "any", "messages": chat, "max_tokens": 2, "temperature": 0}
        answer = await post_json(f"{model.base_url}/chat/completions", body, headers=headers, timeout=20)
        chat.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""})

    for _ in range(ROUNDS):
        await asyncio.gather(*(say(chat) for chat in chats))
    return message


async def play(team: Team, task: str) -> str:
    return (await team["lead"].chat(task)).text


def score(episode: Episode) -> dict[str, dict[str, float]]:
    return {"team": {"right": float(episode.info["sample"] % 2)}}


@pytest.mark.anyio
async def test_helpers_that_share_their_leads_session_keep_their_conversations_at_the_gateway(tmp_path: Path) -> None:
    """Sub-agents in one session mixed their histories (verl pull request 6299 and issue 5790), and where they took turns
    nothing merged any more (rllm pull requests 772 to 775)."""
    agent = AgentEnvironment(lead, name="lead", hub=False)
    scenario = Scenario(play, score, {"lead": Seat(agent, policy="lead")}, "helpers")
    gateway = Gateway(tmp_path, admin_token="admin")
    async with running(PolicyServer([speaking()])) as served, running(gateway) as url:
        seats = {"lead": SeatPolicy("tiny", (f"{served}/v1",))}
        async with await RunHandle.open(url, "admin", seats) as run:
            with anyio.fail_after(60):
                episodes = await collect(rollout(scenario, ["hat"], group_size=4, run=run))
    gateway.close()
    await agent.aclose()
    rows, credited, report = credit_rows(episodes)
    assert report.calls == 4 * 3 * ROUNDS and report.rows == 4 * 3 and not report.quarantined and not report.dropped
    assert report.merge_ratio == (ROUNDS - 1) / ROUNDS
    words = WordTokenizer(WORDS)
    system, user = (words.render([{"role": role, "content": ""}])[0] for role in ("system", "user"))
    asked = [user, *words.encode("hat")]
    for episode in episodes:
        own = [row for row in rows if row.episode == episode.id]
        assert {tuple(row.token_ids[:2]) for row in own} == {
            (system, *words.encode(mark)) for mark in ("boat", "car", "drum")
        }
        calls = {call.call_id: call for trace in episode.traces for call in trace.calls}
        for row in own:
            # One system prompt and one question a round: nobody else's are in it, and all that was said is its own.
            assert row.token_ids.count(system) == 1 and row.token_ids.count(user) == ROUNDS
            assert row.token_ids[2:4] == asked and len(row.calls) == ROUNDS
            said = [token for call in row.calls for token in calls[call].token_ids or ()]
            assert [token for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask] == said
        assert sum(row.weight for row in own) == pytest.approx(1.0)
    # Four attempts were compared, whatever they were cut into.
    assert credited.report().groups == 1
    assert [row.advantage > 0 for row in rows] == [row.reward == 1.0 for row in rows]
    assert sum(row.advantage for row in rows) == pytest.approx(0.0)


def attempt(name: str, right: float, turns: Sequence[tuple[list[int], list[int], list[float]]]) -> Episode:
    """An attempt at the one problem: what each turn's prompt was, what was said, and its logprobs."""
    made = Episode(name, group="problem")
    made.add([TurnRecord("t", "solver@1.0.0", "s", seat="solver")])
    for number, (prompt, said, logprobs) in enumerate(turns):
        given: dict[str, Any] = {"prompt_token_ids": prompt, "token_ids": said, "logprobs": logprobs}
        made.add([CallRecord(f"k{number}", "t", "solver", "p", started=float(number), **given)])
    made.score("right", right)
    return made


QUESTION, TOOL, GUESS, RESULT, ANSWER = 6, 7, 8, 9, 10


def test_calling_a_tool_makes_two_turns_and_no_second_vote() -> None:
    """Where each turn was a sample of the group, the attempts with a tool moved its mean, and agents stopped calling
    tools (agent-lightning issue 489). The second turn of a tool call is a prompt of its own here, as where the context
    is written anew."""
    with_tool = [([QUESTION], [TOOL], [-0.7]), ([QUESTION, RESULT], [ANSWER], [-0.7])]
    without = [([QUESTION], [GUESS], [-0.7])]
    reported = [attempt("e1", 1.0, with_tool), attempt("e2", 0.0, without), attempt("e3", 1.0, with_tool)]
    rows, _, _ = credit_rows([*reported, attempt("e4", 0.0, without)])
    assert {row.episode: row.advantage for row in rows} == pytest.approx(
        {"e1": 1.0, "e2": -1.0, "e3": 1.0, "e4": -1.0}, rel=1e-3
    )
    assert [len([row for row in rows if row.episode == name]) for name in ("e1", "e2")] == [2, 1]
    # A tool that helps as often as it does not is neither called more nor less for it.
    even = [attempt("e1", 1.0, with_tool), attempt("e2", 0.0, with_tool), attempt("e3", 1.0, without)]
    rows, _, report = credit_rows([*even, attempt("e4", 0.0, without)])

    def push(word: int) -> float:
        return sum(row.weight * row.advantage for row in rows if word in row.token_ids[row.prompt_len :])

    assert push(TOOL) == pytest.approx(0.0) and push(GUESS) == pytest.approx(0.0)
    # Who has stopped saying anything shows in the tokens of its seat.
    assert report.seats == {"solver": 6}


def test_a_tool_that_pays_is_called_more_and_more_though_it_costs_a_turn() -> None:
    tokenizer = WordTokenizer(WORDS)
    policy = Policy("solver", make_model(tokenizer, seed=1), tokenizer, seed=1)
    (tool, result), question = tokenizer.encode("zip car"), tokenizer.render([{"role": "user", "content": "hat"}])
    rng, share = random.Random(0), list[float]()
    for update in range(20):
        batch: list[Episode] = []
        first = policy.sample([Prompt(question, 1.0, 1)] * 32)
        second = policy.sample([Prompt([*question, result], 1.0, 1)] * 32)
        for number, (said, answered) in enumerate(zip(first, second, strict=True)):
            called = said.token_ids[:1] == [tool]
            right = float(rng.random() < (0.9 if called else 0.4))
            turns = [(question, said.token_ids, said.logprobs)]
            if called:
                turns.append(([*question, result], answered.token_ids, answered.logprobs))
            batch.append(attempt(f"{update}/{number}", right, turns))
        share.append(sum(len(made.traces[0].calls) == 2 for made in batch) / len(batch))
        learn({"solver": policy}, batch)
    assert sum(share[-4:]) / 4 > sum(share[:4]) / 4 + 0.3, share


def test_an_episode_of_several_steps_is_one_completion_for_trl_and_its_reward_counts_once() -> None:
    """Steps of an episode went to the trainer as one completion without a mask, or as samples of their own
    (TRL issue 4543)."""
    steps = [
        ([6, 7], [20], [-0.1]),
        ([6, 7, 20, 8], [21, 22], [-0.2, -0.3]),
        ([6, 7, 20, 8, 21, 22, 9, 9], [23], [-0.4]),
    ]
    short = [([6, 7], [24], [-0.5])]
    rows: list[Row] = credit_rows([attempt("e1", 1.0, steps), attempt("e2", 0.0, short)])[0]
    batch = to_trl(rows)
    assert batch["prompt_ids"] == [[6, 7], [6, 7]]
    assert batch["completion_ids"] == [[20, 8, 21, 22, 9, 9, 23], [24]]
    assert batch["env_mask"] == [[1, 0, 1, 1, 0, 0, 1], [1]]
    assert batch["logprobs"] == [[-0.1, 0.0, -0.2, -0.3, 0.0, 0.0, -0.4], [-0.5]]
    assert batch["reward"] == [1.0, 0.0]
    assert [row.advantage for row in rows] == pytest.approx([1.0, -1.0], rel=1e-3)
