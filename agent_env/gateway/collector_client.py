"""Posting records to the collector of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import aiohttp

from agent_env.context import Record, Run
from agent_env.errors import AgentEnvError, ConfigurationError, ProtocolError, from_wire
from agent_env.gateway.http import dump, parse
from agent_env.net import OutwardGuard, PerLoop, error_of, shared_http, transport_errors

_SECONDS = 30.0
_MOST_BYTES = 1024 * 1024
"""What goes in one request, unless a single turn has more to tell."""
MOST_POSTED = 4096
"""How many items the gateway takes in one request: it says of each what became of it."""


class RunRecorder:
    """The `Recorder` of a turn that is played for a run: it posts to the run's collector.

    Turns that end at about the same time share a request. `guard` decides whether the gateway's address, which the
    caller chose, may be called. Raises `TransportError` or the gateway's own refusal when the records were not kept.
    """

    def __init__(self, run: Run, *, guard: OutwardGuard | None = None, timeout: float = _SECONDS) -> None:
        route = run.routes.get(run.seat) or next(iter(run.routes.values()), None)
        if route is None:
            raise ConfigurationError(f"the run {run.run!r} gives no token, so its collector takes nothing from here")
        self._address = _Address(f"{run.gateway}/runs/{run.run}/records", guard, timeout)
        self._key = {"episode": run.episode, "token": route.token}

    async def record(self, records: Sequence[Record]) -> None:
        """Posts the records; when it returns, they are on the gateway's disk."""
        if records:
            await _outboxes.get(self._address).post(dump({**self._key, "records": list(records)}))


class _Address(NamedTuple):
    url: str
    guard: OutwardGuard | None
    timeout: float


_Posted: TypeAlias = tuple[bytes, asyncio.Future[None]]


class _Outbox:
    """The way to one collector: one request at a time, and what comes meanwhile goes with the next."""

    def __init__(self, address: _Address) -> None:
        self._address = address
        self._waiting: list[_Posted] = []
        self._delivery: asyncio.Task[None] | None = None

    def post(self, item: bytes) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((item, done))
        if self._delivery is None:
            self._delivery = loop.create_task(self._deliver())
        return done

    async def aclose(self) -> None:
        """Waits until everything is delivered, or given up."""
        if self._delivery is not None:
            await asyncio.wait({self._delivery})

    async def _deliver(self) -> None:
        try:
            while self._waiting:
                batch = self._next()
                try:
                    answers = await self._outcomes(batch)
                    for (_, done), answer in zip(batch, answers, strict=True):
                        if done.done():
                            continue
                        if answer is None:
                            done.set_result(None)
                        else:
                            done.set_exception(from_wire(answer))
                finally:
                    # Whatever ended the delivery, nobody waits for it for ever.
                    for _, done in batch:
                        done.cancel()
        finally:
            self._delivery = None
            for _, done in self._waiting:
                done.cancel()

    async def _outcomes(self, batch: Sequence[_Posted]) -> list[dict[str, Any] | None]:
        """Sends items and tells of each that it was kept, by None, or the error that it was not."""
        try:
            answers = await self._send(b"[" + b",".join(item for item, _ in batch) + b"]")
            if len(answers) != len(batch):
                raise ProtocolError(f"{self._address.url} did not answer as a collector does")
        except AgentEnvError as error:
            return [error.to_wire()] * len(batch)
        return answers

    def _next(self) -> list[_Posted]:
        """Takes out what goes in the next request."""
        size, count = 0, 0
        for item, _ in self._waiting:
            size += len(item)
            if count == MOST_POSTED or (count and size > _MOST_BYTES):
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _send(self, body: bytes) -> list[Any]:
        url, guard, timeout = self._address
        if guard is not None:
            await guard.check(url)
        with transport_errors(url):
            async with shared_http(guard).post(
                url,
                data=body,
                headers={"Content-Type": "application/json"},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout),
            ) as response:
                if response.status != 200:
                    raise await error_of(response)
                answer = parse(await response.read())
        return answer["results"] if isinstance(answer, dict) and isinstance(answer.get("results"), list) else []


_outboxes: PerLoop[_Address, _Outbox] = PerLoop(_Outbox, _Outbox.aclose)
