"""openai clients for routes; all those of one event loop share one pool of connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent_env_wrappers.contract import ModelRoute

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class OpenAIClients:
    """Makes clients for routes; making one from scratch costs tens of milliseconds, a copy nearly nothing."""

    def __init__(self) -> None:
        self._base: AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def client(self, route: ModelRoute) -> AsyncOpenAI:
        """The client whose requests go to `route`, with its key and headers."""
        loop = asyncio.get_running_loop()
        if self._base is None or self._loop is not loop:
            from openai import AsyncOpenAI

            # Connections belong to a loop: those of an earlier one cannot be used here, nor closed.
            self._base, self._loop = AsyncOpenAI(api_key="none", base_url=route.base_url), loop
        return self._base.with_options(
            base_url=route.base_url, api_key=route.api_key or "none", default_headers=dict(route.headers)
        )

    async def aclose(self) -> None:
        """Closes the connections, if they are this loop's."""
        if self._base is not None and self._loop is asyncio.get_running_loop():
            await self._base.close()
        self._base = None
