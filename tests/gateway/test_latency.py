"""How long a model call took, as its record tells: from the request that came to the answer that was whole."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import anyio
import pytest

from agent_env.gateway import RunHandle, SeatPolicy, running
from agent_env.net import shared_http

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
HELD = 0.08
"""How long the server takes for each part of its answer, at least."""
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "zip"}, "finish_reason": "stop"}]}
CHUNKS = [
    b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "zi"}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"content": "p"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n',
]


class Slow:
    """A model server that tells when it was asked, and sends each part of its answer when it may."""

    def __init__(self, kind: bytes, parts: list[bytes]) -> None:
        self.arrived = asyncio.Event()
        self.may = [asyncio.Event() for _ in parts]
        self._kind, self._parts = kind, parts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.arrived.set()
        for number, (part, may) in enumerate(zip(self._parts, self.may, strict=True)):
            await may.wait()
            if number == 0:
                head = [(b"content-type", self._kind)]
                await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("streams", [False, True])
async def test_a_record_tells_when_its_call_began_and_how_long_it_took_to_the_end_of_the_answer(
    gateway: str, streams: bool
) -> None:
    server = Slow(b"text/event-stream", CHUNKS) if streams else Slow(b"application/json", [json.dumps(ANSWER).encode()])
    with anyio.fail_after(20):
        async with running(server) as url:
            seats = {"a": SeatPolicy("A", (f"{url}/v1",))}
            async with await RunHandle.open(gateway, ADMIN, seats, keep_journal=False) as run:
                seen = run.episode("e1", "a")
                assert seen.route is not None
                path, key = seen.model_url("t1"), {"Authorization": f"Bearer {seen.route.token}"}
                body = {"messages": [], "stream": streams}

                began = released = time.monotonic()
                begun = time.time()
                asking = asyncio.ensure_future(shared_http().post(f"{path}/chat/completions", json=body, headers=key))
                await server.arrived.wait()
                arrived, at = time.monotonic(), time.time()
                for number, may in enumerate(server.may):
                    if number > 0:
                        # What came of a stream is there long before the answer is whole.
                        assert await (await asking).content.readline() != b""
                    await asyncio.sleep(HELD)
                    released = time.monotonic()
                    may.set()
                async with await asking as response:
                    assert response.status == 200 and await response.read()
                ended = time.monotonic()
                (record,) = (await run.collect(["e1"]))["e1"]

    assert record["status"] == "ok" and record["stream"] is streams
    assert HELD * len(server.may) * 0.9 < released - arrived <= record["seconds"] <= ended - began
    assert begun <= record["started"] <= at
