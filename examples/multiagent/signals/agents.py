"""Two agents that must find a common language: one sees an object, the other must name it.

`python agents.py sender` and `python agents.py receiver` each serve one of them. Neither names the other: the sender
asks for somebody with the skill "naming", and the hub's cards decide who that is.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping

from agent_env import Need, Skill, serve_agent_as_env
from agent_env.net import post_json
from agent_env_wrappers.contract import ModelRoute

OBJECTS = ["apple", "boat", "car", "drum", "eagle", "fish", "goat", "hat"]
CODES = ["zip", "zap", "zop", "bim", "bam", "bom", "dak", "dek", "dok", "lum", "lam", "lom"]

SENDER_TASK = (
    f"You see one of: {', '.join(OBJECTS)}. Tell your partner which with one of: {', '.join(CODES)}. One word."
)
RECEIVER_TASK = f"Your partner saw one of: {', '.join(OBJECTS)} and said one of: {', '.join(CODES)}. Name it. One word."

# The tiny models of this example know these words and nothing else; a model that reads English gets the task as well.
explain = "--explain" in sys.argv


async def sender(message: str, peers: Mapping[str, Callable[[str], Awaitable[str]]], model: ModelRoute) -> str:
    """Sees an object, says one code word to a partner, and answers what the partner makes of it."""
    word = await ask(model, SENDER_TASK, message)
    return await peers["receiver"](word)


async def receiver(message: str, model: ModelRoute) -> str:
    """Hears a code word and names the object that it stands for."""
    return await ask(model, RECEIVER_TASK, message)


async def ask(model: ModelRoute, task: str, text: str) -> str:
    """Asks the model of this turn for one word."""
    messages = [{"role": "user", "content": text}]
    if explain:
        messages.insert(0, {"role": "system", "content": task})
    answer = await post_json(
        f"{model.base_url}/chat/completions",
        {"model": model.model, "messages": messages, "max_tokens": 8},
        headers={"Authorization": f"Bearer {model.api_key}"},
    )
    words = (answer["choices"][0]["message"]["content"] or "").lower().split()
    return words[0].strip(".,!") if words else ""


if __name__ == "__main__":
    if sys.argv[1] == "sender":
        need = Need("receiver", skills=["naming"])
        serve_agent_as_env(sender, name="signal-sender", version="1.0.0", needs=[need])
    else:
        naming = Skill(id="naming", description="Names the object that a code word stands for.")
        serve_agent_as_env(receiver, name="signal-receiver", version="1.0.0", skills=[naming])
