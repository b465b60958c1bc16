"""The hub: releases (a card and how to launch it) and instances (where one is running, by lease)."""

from agent_env.hub.heartbeat import Heartbeat
from agent_env.hub.hub import Hub, shared_hub
from agent_env.hub.location import HUB_VARIABLE, LAUNCH_VARIABLE, TOKEN_VARIABLE, Location, locate
from agent_env.hub.records import (
    Changes,
    Entry,
    Instance,
    LaunchClaim,
    Lease,
    Pruned,
    Release,
    Resolution,
)

__all__ = [
    "HUB_VARIABLE",
    "LAUNCH_VARIABLE",
    "TOKEN_VARIABLE",
    "Changes",
    "Entry",
    "Heartbeat",
    "Hub",
    "Instance",
    "LaunchClaim",
    "Lease",
    "Location",
    "Pruned",
    "Release",
    "Resolution",
    "locate",
    "shared_hub",
]
