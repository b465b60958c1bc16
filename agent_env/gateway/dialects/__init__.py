"""The dialects in which a model is asked: a file each, and translations to the one that every server speaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent_env.gateway.dialects.chat import Chat
from agent_env.gateway.dialects.completions import Completions
from agent_env.gateway.dialects.contract import Dialect
from agent_env.gateway.dialects.messages import Messages
from agent_env.gateway.dialects.messages_reply import MessagesAsChat
from agent_env.gateway.dialects.responses import Responses
from agent_env.gateway.dialects.responses_reply import ResponsesAsChat
from agent_env.gateway.dialects.translation import Translation

__all__ = ["BY_PATH", "CHAT", "DIALECTS", "TRANSLATED", "Dialect", "Translation"]

CHAT = Chat()

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (CHAT, Completions(), Responses(), Messages())}
"""All dialects by name."""

BY_PATH: Mapping[tuple[str, ...], Dialect] = {tuple(dialect.path.split("/")): dialect for dialect in DIALECTS.values()}
"""All dialects by the parts of their path below `…/v1/`."""

TRANSLATED: Mapping[str, Callable[[Mapping[str, Any]], Translation]] = {
    "responses": ResponsesAsChat,
    "messages": MessagesAsChat,
}
"""What can be asked as a chat completion as well. Completions cannot: their prompt is no chat."""
