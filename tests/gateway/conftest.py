"""A gateway on a socket, and model servers behind it: tiny policies, and one that misbehaves on request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse

from agent_env.context import Run
from agent_env.gateway import Gateway, RunHandle, SeatPolicy, running
from agent_env.net import shared_http, transport_errors

ADMIN = "admin-token"

COMPLETION: dict[str, Any] = json.loads((Path(__file__).parent / "completion.json").read_text())


@dataclass
class Upstream:
    """A model server that does as it is told and remembers what it was asked."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    status: int = 200
    answer: Any = field(default_factory=lambda: COMPLETION)
    extra: list[tuple[bytes, bytes]] = field(default_factory=list)
    pieces: list[bytes] | None = None
    usage: bytes | None = None
    """The event of a stream that tells its usage: sent before the last piece to those who ask for it alone."""
    hold: asyncio.Event | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    breaks: bool = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.asked.append(json.loads(body))
        self.paths.append(scope["path"] + ("?" if scope["query_string"] else "") + scope["query_string"].decode())
        self.arrived.set()
        self.headers.append({key.decode(): value.decode() for key, value in scope["headers"]})
        if self.pieces is not None:
            asked = (self.asked[-1].get("stream_options") or {}).get("include_usage")
            await self._stream(receive, send, [self.usage] if asked and self.usage is not None else [])
            return
        if self.hold is not None:
            await self._wait(receive)
        answer = self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer, indent=1).encode()
        kind = (b"content-type", b"application/json")
        await send({"type": "http.response.start", "status": self.status, "headers": [kind, *self.extra]})
        await send({"type": "http.response.body", "body": answer})

    async def _stream(self, receive: Any, send: Any, before_last: list[bytes]) -> None:
        head = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        assert self.pieces is not None
        for piece in [*self.pieces[:-1], *before_last, *self.pieces[-1:]]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if self.hold is not None:
            await self._wait(receive)
        if self.breaks:
            raise ConnectionAbortedError
        await send({"type": "http.response.body", "body": b""})

    async def _wait(self, receive: Any) -> None:
        """Waits for `hold`, or for the caller to go away."""
        assert self.hold is not None
        leaving = asyncio.ensure_future(receive())
        holding = asyncio.ensure_future(self.hold.wait())
        done, pending = await asyncio.wait((leaving, holding), return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if leaving in done:
            self.gone.set()

    def reset(self) -> None:
        """Forgets what the last test told it and asked of it."""
        for field_ in fields(self):
            if field_.name != "url":
                factory = field_.default_factory
                setattr(self, field_.name, field_.default if factory is MISSING else factory())


@pytest.fixture(scope="module")
async def upstream_server() -> AsyncGenerator[Upstream, None]:
    server = Upstream()
    async with running(server) as url:
        server.url = f"{url}/v1"
        yield server


@pytest.fixture
async def upstream(upstream_server: Upstream) -> Upstream:
    """The model server, fresh for each test."""
    upstream_server.reset()
    return upstream_server


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str, None]:
    """A gateway; what a test opens there it closes again."""
    async with _serving(tmp_path_factory.mktemp("gateway")) as url:
        yield url


@pytest.fixture
def serve() -> Callable[..., AbstractAsyncContextManager[str]]:
    """Serves a gateway of the test's own."""
    return _serving


@asynccontextmanager
async def _serving(directory: Path, **options: Any) -> AsyncGenerator[str, None]:
    app = Gateway(directory, admin_token=ADMIN, **options)
    async with running(app) as url:
        yield url
    app.close()


@pytest.fixture
async def run(gateway: str, upstream: Upstream) -> AsyncGenerator[RunHandle, None]:
    """A run with two seats, both played by the same server."""
    seats = {seat: SeatPolicy(seat.upper(), (upstream.url,)) for seat in ("a", "b")}
    async with await RunHandle.open(gateway, ADMIN, seats, run="r1", keep_journal=False) as opened:
        yield opened


@dataclass
class Answer:
    """What came back."""

    status: int
    body: Any
    headers: dict[str, str]


@pytest.fixture
def chat() -> Callable[..., Awaitable[Answer]]:
    """Asks the model of a seat, as an agent does."""
    return _chat


async def _chat(
    seen: Run, body: Any = None, *, call_id: str = "c1", token: str | None = None, path: str = ""
) -> Answer:
    route = seen.route
    given = token if token is not None else route.token if route is not None else ""
    if body is None:
        body = {"model": "agents-own", "messages": [{"role": "user", "content": "boat"}]}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = seen.model_url(call_id) + "/chat/completions"
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {given}"} if given else {})
    with transport_errors(url):
        response = await shared_http().post(url, data=content, headers=headers)
        async with response:
            return await _answer(response)


async def _answer(response: ClientResponse) -> Answer:
    text = await response.read()
    body = json.loads(text) if response.content_type == "application/json" else text
    return Answer(response.status, body, {key.lower(): value for key, value in response.headers.items()})
