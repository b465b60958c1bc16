"""The ways in that every served environment has."""

from __future__ import annotations

from agent_env_cards import Interface


def interfaces() -> list[Interface]:
    """The ways in that every served environment has, as its card lists them."""
    return [
        Interface(transport="websocket", url="/v1/ws", protocol_versions=["1"]),
        Interface(transport="http", url="/v1", protocol_versions=["1"]),
        Interface(transport="mcp", url="/mcp", protocol_versions=["2025-11-25", "2026-07-28"]),
        Interface(transport="a2a", url="/a2a", protocol_versions=["0.3", "1.0"]),
    ]
