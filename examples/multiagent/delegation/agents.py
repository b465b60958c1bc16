"""A manager that may ask one of three specialists, and the specialists: `python agents.py manager`, `… ann`, and so on.

What they say is up to their models. This code carries out what the manager's model says, whom to ask and what, and
shows it the reply; it tells no model who knows what. With `--informed` a specialist has no model and knows all facts of
its topic; with `--explain` a manager's model, which then reads English, is told what to do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from agent_env import Need, serve_agent_as_env
from agent_env.net import post_json
from agent_env_wrappers.contract import ModelRoute

FACTS: dict[str, dict[str, str]] = json.loads((Path(__file__).parents[1] / "facts.json").read_text("utf-8"))
SPECIALISTS = tuple(FACTS)
NOBODY = "unknown"  # what a manager reads that asked nobody whom there is, and what a specialist says of other topics

TASK = (
    "You are given one word and find the word that belongs to it. Ann, bob and eve know different topics. First say "
    "only '@name word', with whom you ask and what about; when you have read the reply, say only the answer."
)

explain = "--explain" in sys.argv


async def manager(message: str, peers: Mapping[str, Callable[[str], Awaitable[str]]], model: ModelRoute) -> str:
    """Says `@<specialist> <word>`, reads what that specialist replies, and answers."""
    chat = [{"role": "user", "content": f"{TASK}\n\n{message}" if explain else message}]
    said = await ask(model, chat, words=2)
    name, _, word = said.strip().partition(" ")
    peer = peers.get(name.removeprefix("@"))
    reply = await peer(word) if peer and word else NOBODY
    chat += [{"role": "assistant", "content": said}, {"role": "user", "content": reply}]
    return await ask(model, chat)


async def specialist(message: str, model: ModelRoute) -> str:
    """Says what it takes for the answer."""
    return await ask(model, [{"role": "user", "content": message}])


def informed(name: str) -> Callable[[str], Awaitable[str]]:
    """A specialist that needs no model."""

    async def answer(message: str) -> str:
        """Says what belongs to a word of its topic, and `unknown` of any other."""
        return FACTS[name].get(message.strip().lower(), NOBODY)

    return answer


async def ask(model: ModelRoute, messages: list[dict[str, str]], *, words: int = 1) -> str:
    """Asks the model of this turn for so many words, which take a token each, and one for the end."""
    answer = await post_json(
        f"{model.base_url}/chat/completions",
        {"model": model.model, "messages": messages, "max_tokens": 64 if explain else words + 1},
        headers={"Authorization": f"Bearer {model.api_key}"},
    )
    return answer["choices"][0]["message"]["content"] or ""


if __name__ == "__main__":
    name = sys.argv[1]
    if name == "manager":
        needs = [Need(name, name=f"specialist-{name}") for name in SPECIALISTS]
        serve_agent_as_env(manager, name="delegation-manager", version="1.0.0", needs=needs)
    else:
        agent = informed(name) if "--informed" in sys.argv else specialist
        serve_agent_as_env(agent, name=f"specialist-{name}", version="1.0.0")
