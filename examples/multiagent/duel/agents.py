"""A player of a game that it knows nothing of: `python agents.py` serves it.

It hands the position that it is told to its model, and says what the model says. Which games there are, whose turn it
is, what a legal move is and who wins is known to whoever plays with it.
"""

from __future__ import annotations

from agent_env import serve_agent_as_env
from agent_env.net import post_json
from agent_env_wrappers.contract import ModelRoute


async def player(message: str, model: ModelRoute) -> str:
    """Makes a move."""
    answer = await post_json(
        f"{model.base_url}/chat/completions",
        {"model": model.model, "messages": [{"role": "user", "content": message}], "max_tokens": 4},
        headers={"Authorization": f"Bearer {model.api_key}"},
    )
    return answer["choices"][0]["message"]["content"] or ""


if __name__ == "__main__":
    serve_agent_as_env(player, name="duel-player", version="1.0.0")
