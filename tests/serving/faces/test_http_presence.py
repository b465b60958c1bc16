"""Presence: the block of a client that leaves is cancelled, and nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import anyio
import pytest

from agent_env.serving.faces.http_presence import ClientGone, Presence

pytestmark = pytest.mark.anyio


class Client:
    """What a server's `receive` tells about a client."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __call__(self) -> dict[str, Any]:
        return await self.messages.get()

    def leave(self) -> None:
        self.messages.put_nowait({"type": "http.disconnect"})


async def test_a_client_that_stays_changes_nothing() -> None:
    client = Client()
    client.messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    async with Presence(client):
        for _ in range(3):
            await asyncio.sleep(0)
    with pytest.raises(LookupError):
        async with Presence(client):
            raise LookupError


async def test_a_client_that_leaves_cancels_the_block() -> None:
    client = Client()
    with anyio.fail_after(5), pytest.raises(ClientGone):
        async with Presence(client):
            client.leave()
            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0  # the task itself goes on
    await asyncio.sleep(0)


async def test_a_client_that_leaves_as_the_block_ends_is_noticed_and_leaves_no_cancellation_behind() -> None:
    client = Client()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def main() -> str:
        with pytest.raises(ClientGone):
            async with Presence(client):
                await done
        await asyncio.sleep(0)
        return "went on"

    task = asyncio.create_task(main())
    for _ in range(3):
        await asyncio.sleep(0)
    # The watcher gets the news and the block its result in one step of the loop.
    client.leave()
    done.set_result(None)
    with anyio.fail_after(5):
        assert await task == "went on"


async def test_a_block_that_swallows_its_cancellation_ends_as_one_whose_client_left() -> None:
    client = Client()
    with anyio.fail_after(5), pytest.raises(ClientGone):
        async with Presence(client):
            client.leave()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_an_error_of_the_block_is_told_even_if_the_client_left() -> None:
    client = Client()
    with anyio.fail_after(5), pytest.raises(LookupError):
        async with Presence(client):
            client.leave()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise LookupError from None
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_who_cancels_the_task_for_another_reason_cancels_it() -> None:
    client = Client()
    started = asyncio.Event()

    async def main(also_leave: bool) -> None:
        async with Presence(client):
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                if also_leave:
                    client.leave()
                    for _ in range(3):
                        with contextlib.suppress(asyncio.CancelledError):
                            await asyncio.sleep(0)

    for also_leave in (False, True):
        started.clear()
        task = asyncio.create_task(main(also_leave))
        with anyio.fail_after(5):
            await started.wait()
            task.cancel()
            await asyncio.wait({task})
        assert task.cancelled()
