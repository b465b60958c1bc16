"""A manager that may ask one of three specialists, and the specialists, who know their facts.

`python agents.py manager`, `python agents.py ann` and so on each serve one of them. The manager is the one whose model
is trained; which specialist knows what, nobody tells it.
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
UNKNOWN = "unknown"  # what a specialist says of what is not its field

TASK = (
    "You are given one word and find the word that belongs to it. Ann, bob and eve know different fields. First say "
    "only '@name word', with whom you ask and what about; when you have read the reply, say only the answer."
)

# The tiny model of this example knows its words and nothing else; one that reads English gets the task as well.
explain = "--explain" in sys.argv


async def manager(message: str, peers: Mapping[str, Callable[[str], Awaitable[str]]], model: ModelRoute) -> str:
    """Says `@<specialist> <word>`, reads what that specialist replies, and answers."""
    chat = [{"role": "user", "content": f"{TASK}\n\n{message}" if explain else message}]
    said = await ask(model, chat)
    name, _, word = said.strip().partition(" ")
    peer = peers.get(name.removeprefix("@"))
    reply = await peer(word) if peer and word else UNKNOWN
    chat += [{"role": "assistant", "content": said}, {"role": "user", "content": reply}]
    return await ask(model, chat)


async def ask(model: ModelRoute, messages: list[dict[str, str]]) -> str:
    """Asks the model of this turn."""
    answer = await post_json(
        f"{model.base_url}/chat/completions",
        {"model": model.model, "messages": messages, "max_tokens": 64 if explain else 4},
        headers={"Authorization": f"Bearer {model.api_key}"},
    )
    return answer["choices"][0]["message"]["content"] or ""


def specialist(name: str) -> Callable[[str], Awaitable[str]]:
    """An agent that knows the facts of one field."""

    async def answer(message: str) -> str:
        """Says what belongs to a word of its field, and `unknown` of any other."""
        return FACTS[name].get(message.strip().lower(), UNKNOWN)

    return answer


if __name__ == "__main__":
    if sys.argv[1] == "manager":
        needs = [Need(name, name=f"trl-{name}") for name in FACTS]
        serve_agent_as_env(manager, name="trl-manager", version="1.0.0", needs=needs)
    else:
        serve_agent_as_env(specialist(sys.argv[1]), name=f"trl-{sys.argv[1]}", version="1.0.0")
