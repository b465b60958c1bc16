"""Peers of the A2A lane: an agent's card, read once, and the SDK's clients for it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.client import ClientCallContext
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    Task,
)

from agent_env.client.lanes.a2a_cards import find_card
from agent_env.client.lanes.a2a_failures import our_errors
from agent_env.client.lanes.a2a_transport import SharedTransport
from agent_env.client.lanes.contract import Outgoing
from agent_env.context import RUN_HEADER, encode_run, inject
from agent_env.errors import AgentEnvError, NotSupported
from agent_env.net import PerLoop, bearer_headers, shown
from agent_env.net.a2a_wire import EXTENSION

log = logging.getLogger("agent_env.client")

CARD_SECONDS: Final = 60.0
"""How long a card is believed before it is read again."""

BINDINGS: Final[tuple[str, ...]] = ("JSONRPC", "HTTP+JSON")
AFTERWARDS_SECONDS: Final = 5.0
"""How long a call that was given up goes on cancelling its task."""


class Peer:
    """One A2A agent. `native` tells that it serves an environment, so that every verb is to be had."""

    def __init__(self, where: str, token: str | None, card: AgentCard, afterwards: set[asyncio.Task[None]]) -> None:
        self.where = where
        self.card = card
        self.native = _is_native(card)
        self.read_at = time.monotonic()
        self._headers = bearer_headers(token)
        self._afterwards = afterwards
        self._streaming = _client(card, streaming=True, where=where)
        self._blocking = _client(card, streaming=False, where=where)

    def call_context(self, outgoing: Outgoing, more: Mapping[str, str] | None = None) -> ClientCallContext:
        """The headers of one call."""
        headers = {**self._headers, **(more or {})}
        if outgoing.run is not None:
            headers[RUN_HEADER] = encode_run(outgoing.run)
        return ClientCallContext(service_parameters=headers)

    def request(
        self, parts: list[Part], outgoing: Outgoing, *, context_id: str, task_id: str = ""
    ) -> SendMessageRequest:
        """A message to the agent, with the call context in its metadata."""
        message = Message(
            message_id=secrets.token_hex(16),
            role=Role.ROLE_USER,
            parts=parts,
            context_id=context_id,
            task_id=task_id,
            extensions=[EXTENSION] if self.native else [],
        )
        return SendMessageRequest(message=message, metadata=inject(outgoing.context))

    async def send(
        self, request: SendMessageRequest, context: ClientCallContext, *, streaming: bool
    ) -> AsyncGenerator[StreamResponse]:
        """Sends a message and yields what comes back; an agent that does not stream answers once."""
        client = self._streaming if streaming else self._blocking
        async with aclosing(cast(Any, client.send_message(request, context=context))) as answers:
            while True:
                # What the caller does with an answer is not the SDK's failure.
                with our_errors(self.where):
                    answer: StreamResponse | None = await anext(answers, None)
                if answer is None:
                    return
                yield answer

    async def task(self, task_id: str, context: ClientCallContext) -> Task:
        """A task as it stands."""
        with our_errors(self.where):
            return await self._blocking.get_task(GetTaskRequest(id=task_id), context=context)

    async def cancel(self, task_id: str, context: ClientCallContext) -> None:
        """Cancels a task, if it still can be."""
        try:
            with our_errors(self.where):
                async with asyncio.timeout(AFTERWARDS_SECONDS):
                    await self._blocking.cancel_task(CancelTaskRequest(id=task_id), context=context)
        except (AgentEnvError, TimeoutError) as error:
            # It has ended meanwhile, or the agent cannot cancel; nobody waits for it either way.
            log.debug("the task %s of %s was not cancelled: %s", task_id, self.where, error)

    def afterwards(self, work: Coroutine[Any, Any, None]) -> None:
        """Goes on with what a call that is being cancelled cannot wait for."""
        task = asyncio.get_running_loop().create_task(work)
        self._afterwards.add(task)
        task.add_done_callback(self._afterwards.discard)


def _open_http(_: None) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=SharedTransport(), timeout=None, trust_env=False, headers={"A2A-Version": "1.0"})


_http: PerLoop[None, httpx.AsyncClient] = PerLoop(_open_http, httpx.AsyncClient.aclose)


def _client(card: AgentCard, *, streaming: bool, where: str) -> Client:
    bindings = [*BINDINGS]
    config = ClientConfig(streaming=streaming, httpx_client=_http.get(None), supported_protocol_bindings=bindings)
    try:
        return ClientFactory(config).create(card)
    except ValueError:
        spoken = sorted({interface.protocol_binding for interface in card.supported_interfaces})
        raise NotSupported(
            f"{where} speaks A2A over {', '.join(spoken) or 'nothing'}; this client speaks {', '.join(bindings)}"
        ) from None


def _is_native(card: AgentCard) -> bool:
    declared = any(extension.uri == EXTENSION for extension in card.capabilities.extensions)
    modern = any(interface.protocol_version.startswith("1.") for interface in card.supported_interfaces)
    return declared and modern


class Pool:
    """The agent at one URL, as one token sees it, in one event loop."""

    def __init__(self, key: tuple[str, str | None]) -> None:
        self._url, self._token = key
        self._peer: Peer | None = None
        self._reading = asyncio.Lock()
        self._afterwards: set[asyncio.Task[None]] = set()

    async def peer(self) -> Peer:
        """The agent, its card read if need be."""
        async with self._reading:
            if self._peer is None or time.monotonic() - self._peer.read_at > CARD_SECONDS:
                card = await find_card(self._url, self._token)
                self._peer = Peer(shown(self._url), self._token, card, self._afterwards)
            return self._peer

    def forget(self, peer: Peer) -> None:
        """Reads the card again at the next call."""
        if self._peer is peer:
            self._peer = None

    async def aclose(self) -> None:
        """Waits for what still goes on, which is bounded."""
        if self._afterwards:
            await asyncio.wait(self._afterwards)


pools: PerLoop[tuple[str, str | None], Pool] = PerLoop(Pool, Pool.aclose)
# A cache, not a registry: what is in it can be dropped at any time and is made again when needed.
