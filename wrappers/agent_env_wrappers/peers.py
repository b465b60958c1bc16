"""How a wrapper calls a peer for a model that asked for it as a tool."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple

from agent_env_wrappers.contract import Json, PeerTool, WrapError


class PeerReply(NamedTuple):
    """What a peer said, or why it could not; the model reads either."""

    text: str
    is_error: bool = False


async def ask(tool: PeerTool, arguments: str | dict[str, Json] | None) -> PeerReply:
    """Calls a peer with a model's arguments: JSON text or an object.

    A peer's failure does not end the turn: the model is told and may do without. Neither do arguments that are no
    JSON object, which models do write.
    """
    try:
        given = json.loads(arguments or "{}") if not isinstance(arguments, dict) else arguments
    except ValueError:
        given = None
    if not isinstance(given, dict):
        return PeerReply(f"the arguments of {tool.name} must be a JSON object", is_error=True)
    unknown = [name for name in given if name not in tool.parameters.get("properties", given)]
    missing = [name for name in tool.parameters.get("required", ()) if name not in given]
    if unknown or missing:
        wrong = [f"{name!r} is missing" for name in missing] + [f"{name!r} is unknown" for name in unknown]
        return PeerReply(f"the arguments of {tool.name} do not fit: {', '.join(wrong)}", is_error=True)
    try:
        return PeerReply(await tool.acall(**given))
    except Exception as error:  # noqa: BLE001 - whatever a peer raises, the model hears that it failed
        return PeerReply(f"{tool.seat} failed: {error}", is_error=True)


def arguments_of(written: str | Json) -> Json:
    """A model's tool arguments as JSON, or as the text that it wrote where that is none."""
    if not isinstance(written, str):
        return written or {}
    try:
        return json.loads(written or "{}")
    except ValueError:
        return written


def refuse_clash(tools: Sequence[PeerTool], taken: Collection[str], agent: str | None) -> None:
    """Raises `WrapError` when a peer's tool has the name of one of the agent's own."""
    for tool in tools:
        if tool.name in taken:
            raise WrapError(f"the agent {agent!r} has a tool {tool.name!r} already; give the peer another seat")
