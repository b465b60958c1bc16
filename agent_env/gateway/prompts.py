"""The tokens of a prompt from a server that does not tell them with its answers, as llama.cpp's does not.

Such a server tells them when it is asked by itself: `/apply-template` gives the text that its template makes of the
messages, `/tokenize` the tokens of that text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from agent_env.episodes import CallRecord
from agent_env.episodes.tokens import are_token_ids
from agent_env.errors import AgentEnvError
from agent_env.gateway.capture import Missing
from agent_env.gateway.dialects import CHAT
from agent_env.gateway.http import dump, parse_object
from agent_env.gateway.upstream import Endpoint, NotConnected, post

_SECONDS = 10.0
_MAX_REPLY = 32 * 1024 * 1024


async def add_prompt(record: CallRecord, endpoint: Endpoint, request: bytes) -> None:
    """Adds the prompt's tokens to a record that has the sampled ones alone, and says in `missing` where they are from.

    `request` is the body that was answered at `endpoint`. A server that cannot be asked so, or whose count of the
    prompt (`usage.prompt_tokens`) is another, leaves the record as it is.
    """
    count = (record.usage or {}).get("prompt_tokens")
    if record.token_ids is None or record.prompt_token_ids is not None or count is None:
        return
    try:
        async with asyncio.timeout(_SECONDS):
            prompt = (await _ask(endpoint, "/apply-template", request)).get("prompt")
            if prompt is None:
                return
            # As the server does with a chat: with what begins a text, and marks of the template as marks.
            wanted = {"content": prompt, "add_special": True, "parse_special": True}
            tokens = (await _ask(endpoint, "/tokenize", dump(wanted))).get("tokens")
    except (AgentEnvError, NotConnected, TimeoutError):
        return
    if are_token_ids(tokens) and len(tokens) == count:
        record.prompt_token_ids = tokens
        apart: Missing = "asked_apart"
        record.missing = {**(record.missing or {}), "prompt_token_ids": apart}


async def _ask(endpoint: Endpoint, path: str, body: bytes) -> Mapping[str, Any]:
    """What the server says at a path beside `/v1`; nothing where it has no such path."""
    reply = await post(endpoint.beside(f"/v1/{CHAT.path}", path), body)
    try:
        answer = await reply.read(_MAX_REPLY)
    finally:
        reply.close()
    return parse_object(answer, f"{endpoint.url} answered with what is no object") if reply.status == 200 else {}
