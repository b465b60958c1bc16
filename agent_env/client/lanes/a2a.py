"""The A2A lane: an environment, or any agent that speaks A2A, over the A2A SDK's client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from agent_env.client.lanes.contract import OnEvent, Outgoing
from agent_env.client.lanes.deadline import in_time
from agent_env.errors import TransportError
from agent_env.net.wire_logs import keep_from_logs

if TYPE_CHECKING:
    from agent_env.client.lanes.a2a_foreign import Asked
    from agent_env.client.lanes.a2a_peer import Pool


class A2aLane:
    """Calls an A2A agent; `url` is where its Agent Card is served, or one of the endpoints that the card lists.

    One that serves environments has every verb. Any other has `chat`, in A2A's own messages: its session is the A2A
    context, and a task that asks for input is an interrupt that the next message answers.
    """

    name: ClassVar[str] = "a2a"

    def __init__(self, url: str, token: str | None = None) -> None:
        keep_from_logs("a2a")
        self._url = url
        self._token = token
        self._asked: dict[str, Asked] = {}

    async def perform(
        self, verb: str, arguments: Mapping[str, Any], outgoing: Outgoing, on_event: OnEvent | None = None
    ) -> Mapping[str, Any]:
        """Performs a verb; see `Lane.perform`."""
        return await in_time(self._perform(verb, arguments, outgoing, on_event), outgoing, verb, self._url)

    async def aclose(self) -> None:
        """Forgets the questions that wait; the connections belong to the process."""
        self._asked.clear()

    async def _perform(
        self, verb: str, arguments: Mapping[str, Any], outgoing: Outgoing, on_event: OnEvent | None
    ) -> Mapping[str, Any]:
        # The SDK takes a second to import, and most programs never speak A2A.
        os.environ.setdefault("OTEL_INSTRUMENTATION_A2A_SDK_ENABLED", "false")
        from agent_env.client.lanes import a2a_foreign, a2a_native

        pool = self._pool()
        peer = await pool.peer()
        try:
            if peer.native:
                return await a2a_native.perform(peer, verb, arguments, outgoing, on_event)
            return await a2a_foreign.perform(peer, verb, arguments, outgoing, on_event, self._asked)
        except TransportError:
            # What answers there next may be another server, with another card.
            pool.forget(peer)
            raise

    def _pool(self) -> Pool:
        from agent_env.client.lanes.a2a_peer import pools

        return pools.get((self._url, self._token))
