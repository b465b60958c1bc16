"""The hub: releases (a card and how to launch it) and instances (where one is running, by lease)."""

from agent_env.hub.heartbeat import Heartbeat, heartbeat
from agent_env.hub.hub import Hub, shared_hub
from agent_env.hub.location import HUB_VARIABLE, TOKEN_VARIABLE, Location, locate
from agent_env.hub.records import (
    DRAFT_VERSION,
    Changes,
    Entry,
    Instance,
    LaunchClaim,
    Lease,
    Release,
    Resolution,
)

__all__ = [
    "DRAFT_VERSION",
    "HUB_VARIABLE",
    "TOKEN_VARIABLE",
    "Changes",
    "Entry",
    "Heartbeat",
    "Hub",
    "Instance",
    "LaunchClaim",
    "Lease",
    "Location",
    "Release",
    "Resolution",
    "heartbeat",
    "locate",
    "shared_hub",
]
