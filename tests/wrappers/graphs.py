"""Small graphs, and what they share."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph


@tool
def clock(place: str) -> str:
    """Tells the time."""
    return f"noon in {place}"


def graph(node: Any, state: Any = MessagesState, **more: Any) -> Any:
    """A graph of one node."""
    return StateGraph(state).add_node("node", node).add_edge(START, "node").compile(**more)


async def solve(message: str) -> str:
    """What a peer replies."""
    return f"solved {message}"
