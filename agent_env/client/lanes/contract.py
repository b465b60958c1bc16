"""The contract of a lane: one method that performs a verb on the other side."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

from agent_env.context import CallContext, Recorder, Run
from agent_env_wrappers.contract import Event

OnEvent: TypeAlias = Callable[[Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What a call says about where it comes from; `recorder` reaches only an environment in the same process."""

    context: CallContext
    run: Run | None = None
    recorder: Recorder | None = None


class Lane(Protocol):
    """One way to an environment."""

    name: ClassVar[str]

    async def perform(
        self, verb: str, arguments: Mapping[str, Any], outgoing: Outgoing, on_event: OnEvent | None = None
    ) -> Mapping[str, Any]:
        """Performs a verb (`agent_env.runtime.verbs`) on the other side and returns its answer as JSON.

        Raises the error that the other side raised, as the same class; `TransportError` when it cannot be reached or
        the connection breaks; `DeadlineExceeded` when `outgoing.context` has no time left. Cancelling it cancels the
        call on the other side.
        """
        ...

    async def aclose(self) -> None:
        """Lets go of the connection; a pooled one stays open for others."""
        ...
