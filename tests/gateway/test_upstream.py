"""The gateway's HTTP client, against servers that say every byte themselves."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.errors import AgentEnvError, MessageTooLarge, ProtocolError, TransportError
from agent_env.gateway import upstream
from agent_env.gateway.upstream import Endpoint, NotConnected, post

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


class Server:
    """Answers each request on a connection with the next of its replies, cut as told; None closes the connection."""

    def __init__(self, *replies: list[bytes | None]) -> None:
        self.replies = list(replies)
        self.requests: list[bytes] = []
        self.connections = 0
        self.ended = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.replies:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                for piece in self.replies.pop(0):
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended.set()
            writer.close()


@asynccontextmanager
async def serving(*replies: list[bytes | None], context: ssl.SSLContext | None = None) -> AsyncGenerator[Server, None]:
    server = Server(*replies)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    port = listening.sockets[0].getsockname()[1]
    server.url = f"http{'s' if context else ''}://127.0.0.1:{port}/v1/x?y=1"
    async with listening:
        with anyio.fail_after(20):
            yield server
    await upstream._pools.aclose()  # pyright: ignore[reportPrivateUsage]


async def ask(server: Server, most: int = 10**6) -> tuple[int, bytes]:
    reply = await post(Endpoint.of(server.url, {"Authorization": "Bearer k"}), b"body", b"X-More: 1\r\n")
    try:
        return reply.status, await reply.read(most)
    finally:
        reply.close()


async def test_a_request_is_one_of_http_and_a_connection_serves_many() -> None:
    async with serving([OK], [OK]) as server:
        assert await ask(server) == await ask(server) == (200, b"hi")
        port = server.url.split(":")[2].split("/")[0]
        assert server.connections == 1
        assert (
            server.requests
            == [
                f"POST /v1/x?y=1 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                "Accept-Encoding: identity\r\nAuthorization: Bearer k\r\nContent-Length: 4\r\nX-More: 1\r\n\r\nbody".encode()
            ]
            * 2
        )


CHUNKED = b"HTTP/1.1 503 Busy\r\nX-Name:  v \r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


@settings(max_examples=30)
@given(st.lists(st.integers(0, len(CHUNKED)), max_size=6))
def test_however_a_reply_is_cut_it_is_read(cuts: list[int]) -> None:
    async def play() -> None:
        places = [0, *sorted(cuts), len(CHUNKED)]
        pieces = [CHUNKED[begin:end] for begin, end in itertools.pairwise(places)]
        async with serving([*pieces]) as server:
            assert await ask(server) == (503, b"abcde")

    asyncio.run(play())


async def test_a_reply_without_a_length_ends_with_its_connection() -> None:
    async with serving([b"HTTP/1.1 200 OK\r\n\r\nab", b"cd", None], [OK]) as server:
        assert await ask(server) == (200, b"abcd")
        assert await ask(server) == (200, b"hi")
        assert server.connections == 2


async def test_an_interim_reply_is_passed_over() -> None:
    async with serving([b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK]) as server:
        assert await ask(server) == (200, b"hi")


async def test_a_server_that_closes_says_so_and_is_connected_to_anew() -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
    async with serving([closing, None], [OK]) as server:
        assert await ask(server) == await ask(server) == (200, b"hi")
        assert server.connections == 2


async def test_an_idle_connection_that_its_server_closed_is_not_used_again() -> None:
    async with serving([OK, None], [OK]) as server:
        assert await ask(server) == (200, b"hi")
        await server.ended.wait()
        pool = upstream._pools.get(None)  # pyright: ignore[reportPrivateUsage]
        while any(pool._idle.values()):  # noqa: ASYNC110 - it is the loop that tells  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0)
        assert await ask(server) == (200, b"hi")
        assert server.connections == 2


async def test_an_old_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "_KEEP_ALIVE_SECONDS", 0.01)
    async with serving([OK], [OK]) as server:
        assert await ask(server) == (200, b"hi")
        await server.ended.wait()
        assert await ask(server) == (200, b"hi")
        assert server.connections == 2


@pytest.mark.parametrize(
    ("pieces", "error", "told"),
    [
        ([None], TransportError, "closed the connection without an answer"),
        ([b"HTTP/1.1 2", None], TransportError, "without an answer"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", None], TransportError, "^the connection .* broke within"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", None], TransportError, "broke within"),
        ([b"Hello!\r\n\r\n"], ProtocolError, "the reply is none of HTTP"),
        (
            [b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi"],
            ProtocolError,
            "it is compressed, which nobody asked for",
        ),
    ],
)
async def test_a_reply_that_is_none_is_told(pieces: list[bytes | None], error: type[AgentEnvError], told: str) -> None:
    async with serving(pieces, [OK]) as server:
        with pytest.raises(error, match=told):
            await ask(server)
        assert await ask(server) == (200, b"hi")


async def test_the_trailers_of_a_reply_are_no_headers_of_the_next() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nContent-Encoding: gzip\r\n\r\n"
    async with serving([chunked], [OK]) as server:
        assert await ask(server) == await ask(server) == (200, b"hi")
        assert server.connections == 1


async def test_a_head_without_end_is_given_up() -> None:
    lines = [b"HTTP/1.1 200 OK\r\n", *[b"X-Filler: " + b"x" * 1000 + b"\r\n"] * 100]
    async with serving([*lines], [OK]) as server:
        with pytest.raises(ProtocolError, match="its head has more than 65536 bytes"):
            await ask(server)


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    async with serving([OK + OK], [OK]) as server:
        assert await ask(server) == await ask(server) == (200, b"hi")
        assert server.connections == 2


async def test_a_reply_beyond_the_bound_is_given_up() -> None:
    async with serving([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 50]) as server:
        with pytest.raises(MessageTooLarge, match="more than 49 bytes"):
            await ask(server, 49)
        await server.ended.wait()


async def test_a_slow_reader_holds_its_server_up_and_loses_nothing() -> None:
    size = 30_000_000
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
    async with serving([head, *[b"x" * 1_000_000] * 30]) as server:
        reply = await post(Endpoint.of(server.url, {}), b"")
        for _ in range(2000):
            await asyncio.sleep(0)
        assert reply._waiting < 10_000_000  # pyright: ignore[reportPrivateUsage]
        assert len(await reply.read(size)) == size


async def test_a_reply_that_nobody_reads_does_not_hold_up_the_next_one() -> None:
    size = upstream._MOST_WAITING + 10  # pyright: ignore[reportPrivateUsage]
    async with serving([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, b"x" * size], [OK]) as server:
        reply = await post(Endpoint.of(server.url, {}), b"")
        while not reply.complete:  # noqa: ASYNC110 - it is the loop that tells
            await asyncio.sleep(0)
        reply.close()
        assert await ask(server) == (200, b"hi")
        assert server.connections == 1


async def test_a_long_reply_whose_server_closed_at_once_is_read_whole() -> None:
    size = 3 * upstream._MOST_WAITING  # pyright: ignore[reportPrivateUsage]
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size
    async with serving([head + b"x" * size, None]) as server:
        reply = await post(Endpoint.of(server.url, {}), b"")
        for _ in range(2000):
            await asyncio.sleep(0)
        assert len(await reply.read(size)) == size


async def test_a_caller_that_gives_up_ends_the_servers_work() -> None:
    async with serving([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi"]) as server:
        with anyio.move_on_after(0.05):
            await ask(server)
        await server.ended.wait()


async def test_a_host_that_there_is_not_is_not_connected_to() -> None:
    with pytest.raises(NotConnected, match=r"http://nowhere\.invalid/v1 cannot be reached"):
        await post(Endpoint.of("http://nowhere.invalid/v1", {}), b"")


async def test_a_server_is_trusted_by_its_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 1 -subj /CN=x"
    subprocess.run(  # noqa: ASYNC221 - nothing else runs yet
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with serving([OK], context=context) as server:
        with pytest.raises(NotConnected, match="cannot be reached"):
            await ask(server)
        monkeypatch.setattr(upstream, "_trust", lambda: ssl.create_default_context(cafile=str(certificate)))
        assert await ask(server) == (200, b"hi")


def test_an_endpoint_names_its_host_as_http_wants_it() -> None:
    found = Endpoint.of("https://user:pa@[::1]/v1", {"X": "y"})
    assert found.origin == ("::1", 443, True) and found.url == "https://[::1]/v1"
    assert b"\r\nHost: [::1]\r\n" in found.head and b"\r\nAuthorization: Basic dXNlcjpwYQ==\r\nX: y\r\n" in found.head
    with pytest.raises(ValueError, match="no host"):
        Endpoint.of("http:///v1", {})
