"""A writer and an editor: one writes a sentence about a thing, the other makes it shorter.

`python agents.py writer` and `python agents.py editor` each serve one of them. The writer asks for somebody with the
skill "editing", and the hub's cards decide who that is.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping

from agent_env import Need, Skill, serve_agent_as_env
from agent_env.net import post_json
from agent_env_wrappers.contract import ModelRoute

LONGEST = 24
"""How many tokens a sentence may have."""


async def writer(message: str, peers: Mapping[str, Callable[[str], Awaitable[str]]], model: ModelRoute) -> str:
    """Writes a sentence about a thing, has it edited, and answers with what came back."""
    sentence = await ask(model, f"Write one short sentence about {message}.")
    return await peers["editor"](sentence)


async def editor(message: str, model: ModelRoute) -> str:
    """Makes a sentence shorter."""
    return await ask(model, f"Shorten this sentence to at most five words: {message}")


async def ask(model: ModelRoute, text: str) -> str:
    """Asks the model of this turn."""
    answer = await post_json(
        f"{model.base_url}/chat/completions",
        {"model": model.model, "messages": [{"role": "user", "content": text}], "max_tokens": LONGEST},
        headers={"Authorization": f"Bearer {model.api_key}"},
    )
    return (answer["choices"][0]["message"]["content"] or "").strip()


if __name__ == "__main__":
    if sys.argv[1] == "writer":
        need = Need("editor", skills=["editing"])
        serve_agent_as_env(writer, name="smollm-writer", version="1.0.0", needs=[need])
    else:
        editing = Skill(id="editing", description="Makes a sentence shorter and keeps what it is about.")
        serve_agent_as_env(editor, name="smollm-editor", version="1.0.0", skills=[editing])
