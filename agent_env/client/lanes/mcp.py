"""The MCP lane: an environment, or any server with tools, over the MCP SDK's client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from agent_env.client.lanes.contract import OnEvent, Outgoing
from agent_env.client.lanes.deadline import in_time
from agent_env.errors import TransportError
from agent_env.net.wire_logs import keep_from_logs

if TYPE_CHECKING:
    from agent_env.client.lanes.mcp_connection import Connection, Pool


class McpLane:
    """Calls an MCP server.

    One that serves environments has every verb. Any other has `list_tools` and `call_tool`; `chat` is its own tool of
    that name, or the one tool that takes a message (see `agent_env.client.lanes.mcp_foreign`).
    """

    name: ClassVar[str] = "mcp"

    def __init__(self, url: str, token: str | None = None) -> None:
        keep_from_logs("mcp")
        self._url = url
        self._token = token
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def perform(
        self, verb: str, arguments: Mapping[str, Any], outgoing: Outgoing, on_event: OnEvent | None = None
    ) -> Mapping[str, Any]:
        """Performs a verb; see `Lane.perform`."""
        return await in_time(self._perform(verb, arguments, outgoing, on_event), outgoing, verb, self._url)

    async def aclose(self) -> None:
        """Gives the connection back; a shared one closes when nobody has used it for a while."""
        if self._connection is not None:
            self._pool().give_back(self._connection)
            self._connection = None

    async def _perform(
        self, verb: str, arguments: Mapping[str, Any], outgoing: Outgoing, on_event: OnEvent | None
    ) -> Mapping[str, Any]:
        # The SDK takes a second to import, and most programs never speak MCP.
        from agent_env.client.lanes import mcp_foreign, mcp_native

        connection = await self._connect()
        connection.users += 1
        try:
            if connection.native:
                return await mcp_native.perform(connection, verb, arguments, outgoing, on_event)
            return await mcp_foreign.perform(connection, verb, arguments, outgoing, on_event)
        except TransportError:
            # What answers there next may be another server; calls that still wait have the connection until they end.
            self._pool().forget(connection)
            if self._connection is connection:
                await self.aclose()
            raise
        finally:
            self._pool().give_back(connection)

    async def _connect(self) -> Connection:
        async with self._connecting:
            if self._connection is None or self._connection.lost:
                await self.aclose()
                self._connection = await self._pool().borrow()
            return self._connection

    def _pool(self) -> Pool:
        from agent_env.client.lanes.mcp_connection import pools

        return pools.get((self._url, self._token))
