"""Whether something answers at a URL."""

from __future__ import annotations

from agent_env.errors import AgentEnvError, DeadlineExceeded, TransportError
from agent_env.net import get_json

PROBE_SECONDS = 2.0
"""How long something may take to answer before it counts as not there."""


async def answers(url: str, seconds: float = PROBE_SECONDS) -> bool:
    """Tells whether something serves at a base URL; one that asks for a token does."""
    try:
        await get_json(f"{url}/health", timeout=seconds)
    except (TransportError, DeadlineExceeded):
        return False
    except AgentEnvError:
        return True
    return True
