"""Publishing while served agents play: their code knows nothing of it, and every row knows its version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from stages import staged

from agent_env.training import InMemory, Policy, PolicyServer, PublishedPolicy, Team, cut_rows
from agent_env.training.staleness import staleness
from agent_env.training.tiny import WordTokenizer, make_model

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

CALLS = 3


async def speak(message: str, model: Any) -> str:
    """An agent with a stock client, as its user wrote it."""
    from openai import AsyncOpenAI

    said = ""
    async with AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, timeout=30) as client:
        for _ in range(CALLS):
            answer = await client.chat.completions.create(
                model=model.model, messages=[{"role": "user", "content": message}], max_tokens=2
            )
            said = answer.choices[0].message.content or ""
    return said


@pytest.mark.parametrize("hold", [0.0, 20.0])
async def test_agents_play_on_while_weights_are_published(
    tmp_path: Path, tokenizer: WordTokenizer, hold: float
) -> None:
    served = Policy("p", make_model(tokenizer, seed=1), tokenizer, trainable=False)
    learner = Policy("p", make_model(tokenizer, seed=2), tokenizer)

    async def play(team: Team, task: str) -> str:
        return (await team["speaker"].chat(task)).text

    def score(_: Any) -> dict[str, dict[str, float]]:
        return {"speaker": {"spoke": 1.0}}

    models = PolicyServer([served])
    async with staged(tmp_path, "websocket", {"speaker": speak}, models=models, policies={"speaker": "p"}) as stage:
        assert stage.run is not None
        policy = PublishedPolicy(stage.run.policy("p"), InMemory(served), hold=hold)
        ended = 0
        news = anyio.Event()

        def count(_: Any) -> None:
            nonlocal ended, news
            ended += 1
            news.set()
            news = anyio.Event()

        async def publish() -> None:
            for wanted in (4, 10, 16):
                while ended < wanted:
                    await news.wait()
                learner.version += 1
                await policy.publish(learner.model.state_dict(), version=learner.version)

        async with anyio.create_task_group() as group:
            group.start_soon(publish)
            episodes = await stage.play(play, ["boat"] * 24, score=score, concurrency=4, on_episode=count)
        assert [episode.ok for episode in episodes] == [True] * 24
    calls = [call for episode in episodes for trace in episode.traces for call in trace.calls]
    assert len(calls) == 24 * CALLS and {call.policy_version for call in calls} == {0, 1, 2, 3}
    assert {call.status for call in calls} == {"ok"}
    # Within a conversation versions only go up, and its age is that of its oldest call.
    for episode in episodes:
        versions = [call.policy_version for trace in episode.traces for call in trace.calls]
        assert versions == sorted(versions)
        assert staleness(episode, {"speaker": 3}) == 3 - versions[0]
    rows, report = cut_rows(episodes)
    assert report.calls == 24 * CALLS and not report.dropped
    assert {span.version for row in rows for span in row.spans} == {0, 1, 2, 3}
