"""What an environment says, in MCP's words: parts as content blocks, events as progress messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import mcp_types as types

from agent_env.runtime.parts import encode_event
from agent_env_wrappers.contract import Event, TextDelta


def message(event: Event, *, everything: bool) -> str | None:
    """An event as the message of a progress notification; None for one that is not told.

    Any client reads the reply's text as it is made; one that asked for `everything` gets each event as JSON.
    """
    if everything:
        wire = encode_event(event)
        return None if wire is None else as_json(wire)
    return event.text if isinstance(event, TextDelta) and event.channel == "answer" else None


def as_json(value: Any) -> str:
    """A value as JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def blocks(parts: Sequence[Mapping[str, Any]]) -> list[types.ContentBlock]:
    """Parts of an answer as MCP content; a data part is its JSON, as text."""
    return [_block(part) for part in parts]


def written(answer: Mapping[str, Any]) -> list[types.ContentBlock]:
    """An answer without parts as MCP content: its JSON, as text."""
    return [types.TextContent(text=as_json(answer))]


def _block(part: Mapping[str, Any]) -> types.ContentBlock:
    match part:
        case {"type": "text", "text": text}:
            return types.TextContent(text=text)
        case {"type": "file", "mediaType": media_type, "uri": uri}:
            return types.ResourceLink(uri=uri, name=part.get("name") or uri, mime_type=media_type)
        case {"type": "file", "mediaType": media_type, "data": data}:
            if media_type.startswith("image/"):
                return types.ImageContent(data=data, mime_type=media_type)
            if media_type.startswith("audio/"):
                return types.AudioContent(data=data, mime_type=media_type)
            uri = f"attachment:{part.get('name') or 'file'}"
            return types.EmbeddedResource(resource=types.BlobResourceContents(uri=uri, blob=data, mime_type=media_type))
        case _:
            return types.TextContent(text=as_json(part.get("data")))
