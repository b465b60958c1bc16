"""`agent-env match`."""

from __future__ import annotations

def match() -> None:
    """Ranks who meets a need."""
