"""A small game to train on: one agent, one word a task, and rows as its episodes give them."""

from __future__ import annotations

import random
from typing import Any

from agent_env.episodes import Episode
from agent_env.net import post_json
from agent_env.training import Policy, Row, Scenario, Seat, Team
from agent_env.training.sampling import Prompt

ANSWERS = {"day": "sun", "night": "moon"}
WORDS = [*ANSWERS, *ANSWERS.values()]


async def guesser(message: str, model: Any) -> str:
    """Answers what its model answers."""
    body = {"messages": [{"role": "user", "content": message}], "max_tokens": 1}
    answer = await post_json(
        f"{model.base_url}/chat/completions", body, headers={"Authorization": f"Bearer {model.api_key}"}
    )
    return answer["choices"][0]["message"]["content"].strip()


async def play(team: Team, task: str) -> str:
    return (await team["guesser"].chat(task)).text


def score(episode: Episode) -> dict[str, dict[str, float]]:
    return {"guesser": {"right": float(episode.info["result"] == ANSWERS[episode.task])}}


def game(**fields: Any) -> Scenario:
    return Scenario(play, score, {"guesser": Seat(guesser, policy="p")}, "game", list(ANSWERS), WORDS, **fields)


def rows_of(policy: Policy, seed: int, count: int = 64) -> tuple[list[Row], float]:
    """Plays the game without agents: the rows with their advantages, and the mean reward."""
    chance = random.Random(seed)
    asked = [chance.choice(list(ANSWERS)) for _ in range(count)]
    prompts = [Prompt(policy.tokenizer.render([{"role": "user", "content": word}]), 1.0, 1) for word in asked]
    said = policy.sample(prompts)
    rewards = [
        float(policy.tokenizer.decode(one.token_ids).strip() == ANSWERS[word])
        for word, one in zip(asked, said, strict=True)
    ]
    mean = sum(rewards) / count
    rows = [
        Row(
            *("e", "guesser", None, policy.name),
            prompt.token_ids + one.token_ids,
            [0] * len(prompt.token_ids) + [1] * len(one.token_ids),
            [0.0] * len(prompt.token_ids) + one.logprobs,
            len(prompt.token_ids),
            advantage=reward - mean,
        )
        for prompt, one, reward in zip(prompts, said, rewards, strict=True)
    ]
    return rows, mean
