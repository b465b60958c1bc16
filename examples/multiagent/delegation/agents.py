"""A manager that may ask one of three specialists, and the specialists: `python agents.py manager`, `… ann`, and so on.

What they say is up to their models. This code carries out what the manager's model says, whom to ask and what, and
shows it the reply; nothing here knows who knows what.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping

from agent_env import Need, serve_agent_as_env
from agent_env.net import post_json
from agent_env_wrappers.contract import ModelRoute

SPECIALISTS = ("ann", "bob", "eve")
NOBODY = "unknown"  # what a manager reads that asked nobody whom there is


async def manager(message: str, peers: Mapping[str, Callable[[str], Awaitable[str]]], model: ModelRoute) -> str:
    """Says `@<specialist> <word>`, reads what that specialist replies, and answers."""
    chat = [{"role": "user", "content": message}]
    said = await ask(model, chat, words=2)
    name, _, word = said.partition(" ")
    peer = peers.get(name.removeprefix("@"))
    reply = await peer(word) if peer and word else NOBODY
    chat += [{"role": "assistant", "content": said}, {"role": "user", "content": reply}]
    return await ask(model, chat)


async def specialist(message: str, model: ModelRoute) -> str:
    """Says what it takes for the answer."""
    return await ask(model, [{"role": "user", "content": message}])


async def ask(model: ModelRoute, messages: list[dict[str, str]], *, words: int = 1) -> str:
    """Asks the model of this turn for so many words, which take a token each, and one for the end."""
    answer = await post_json(
        f"{model.base_url}/chat/completions",
        {"model": model.model, "messages": messages, "max_tokens": words + 1},
        headers={"Authorization": f"Bearer {model.api_key}"},
    )
    return answer["choices"][0]["message"]["content"] or ""


if __name__ == "__main__":
    if sys.argv[1] == "manager":
        needs = [Need(name, name=f"specialist-{name}") for name in SPECIALISTS]
        serve_agent_as_env(manager, name="delegation-manager", version="1.0.0", needs=needs)
    else:
        serve_agent_as_env(specialist, name=f"specialist-{sys.argv[1]}", version="1.0.0")
