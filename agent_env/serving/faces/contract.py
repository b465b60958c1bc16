"""The contract of a face: one protocol of the server, as routes of one app."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from starlette.routing import BaseRoute

from agent_env.runtime.environment import Runtime
from agent_env.serving.access import Access
from agent_env.serving.address import PublicAddress
from agent_env_cards import EnvironmentCard


@dataclass(frozen=True, slots=True)
class Site:
    """What every face is built from.

    `address` tells the base URL that a request's client sees (no slash at its end); `guard_loopback` is whether the
    server listens on loopback alone.
    """

    runtime: Runtime
    card: EnvironmentCard
    access: Access
    address: PublicAddress


class Face(Protocol):
    """One protocol on the server side: a thin adapter over `agent_env.runtime.verbs.perform`."""

    def routes(self) -> Sequence[BaseRoute]:
        """The routes of the face; their paths hold under any path prefix."""
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Entered while the app serves; leaving it ends what still runs."""
        ...
