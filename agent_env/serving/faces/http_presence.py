"""Presence: a request's work is cancelled when its client goes away."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Receive


class ClientGone(Exception):
    """The client closed the connection before it was answered; nobody is left to tell."""


class Presence:
    """Cancels the block when the client of an HTTP request goes away, and raises `ClientGone` in its place.

    The request's body must have been read: what else `receive` gives is that the client has left.
    """

    __slots__ = ("_cancelling", "_gone", "_receive", "_task", "_watcher")

    _task: asyncio.Task[object]
    _watcher: asyncio.Task[None]

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        if not self._gone:
            return
        # Somebody else may have cancelled the task too, and then it must end.
        if self._task.uncancel() <= self._cancelling and (kind is None or issubclass(kind, asyncio.CancelledError)):
            raise ClientGone from None
