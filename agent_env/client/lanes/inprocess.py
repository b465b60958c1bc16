"""The in-process lane: a plain coroutine call, with JSON in and JSON out as on every other lane."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from agent_env.client.lanes.contract import OnEvent, Outgoing
from agent_env.context import Principal
from agent_env.errors import DeadlineExceeded
from agent_env.runtime.caller import Caller
from agent_env.runtime.environment import Runtime
from agent_env.runtime.verbs import perform


class InProcessLane:
    """Calls a runtime that lives in this process and event loop."""

    name: ClassVar[str] = "inprocess"

    def __init__(self, runtime: Runtime, principal: Principal | None = None) -> None:
        self._runtime = runtime
        self._principal = principal or Principal()

    async def perform(
        self, verb: str, arguments: Mapping[str, Any], outgoing: Outgoing, on_event: OnEvent | None = None
    ) -> Mapping[str, Any]:
        """Performs a verb; see `Lane.perform`."""
        caller = Caller(self._principal, outgoing.context, outgoing.run, outgoing.recorder)
        left = outgoing.context.seconds_left()
        if left is None or verb in ("call_tool", "step"):
            # The runtime itself bounds these by the context's deadline.
            return await perform(self._runtime, verb, arguments, caller, on_event)
        try:
            async with asyncio.timeout(left):
                return await perform(self._runtime, verb, arguments, caller, on_event)
        except TimeoutError:
            raise DeadlineExceeded(f"{verb} did not end before the deadline; allow more time") from None

    async def aclose(self) -> None:
        """Does nothing: the runtime belongs to whoever made it."""
