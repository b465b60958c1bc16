"""`serve_agent_as_env` and what it runs: until it is stopped, or until nobody uses it any more."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from agent_env import AgentEnvironment, Environment, serve_agent_as_env
from agent_env.errors import ConfigurationError, TransportError
from agent_env.net import bound_url, listen
from agent_env.net.serving import served
from agent_env.serving.run import serve_until_stopped
from agent_env.serving.server import Server

pytestmark = pytest.mark.anyio


async def echo(message: str) -> str:
    return message


@asynccontextmanager
async def served_until_stopped(
    linger: float | None = None, agent: Any = echo, **options: Any
) -> AsyncGenerator[Server]:
    """Serves in a task of its own; the block ends when the server has ended by itself."""
    ready: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve_until_stopped(agent, linger=linger, on_ready=ready.set_result, **options))
    with anyio.fail_after(20):
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await task
        yield ready.result()
        await task


async def test_inside_a_running_loop_it_names_what_to_write_instead() -> None:
    with pytest.raises(ConfigurationError, match=r"async with env\.serving\(\) as server"):
        serve_agent_as_env(echo)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_in_order(kind: signal.Signals) -> None:
    before = signal.getsignal(kind)
    async with served_until_stopped(name="echo", version="1.0.0") as server:
        async with Environment("echo@1.0.0", lane="http") as env:
            assert (await env.chat("hi")).text == "hi"
        os.kill(os.getpid(), kind)
    assert server.runtime.closing
    assert signal.getsignal(kind) in (before, signal.default_int_handler, signal.SIG_DFL)


async def test_it_lingers_while_somebody_uses_it_and_then_ends_by_itself() -> None:
    async with served_until_stopped(linger=0.3, hub=False) as server:
        async with Environment(server.url, lane="http") as env:
            await env.chat("hi")
            with anyio.move_on_after(1.0):
                await wait_closing(server)
            assert not server.runtime.closing  # a session is open
    assert server.runtime.closing


async def wait_closing(server: Server) -> None:
    while not server.runtime.closing:  # noqa: ASYNC110 - nothing tells when a runtime closes
        await anyio.sleep(0.02)


async def test_calls_without_a_session_count_as_use_too() -> None:
    started, go_on = anyio.Event(), anyio.Event()
    env = AgentEnvironment(echo, name="echo", hub=False)

    @env.tool
    async def slow() -> str:
        """Waits."""
        started.set()
        await go_on.wait()
        return "done"

    async with served_until_stopped(linger=0.3, agent=env) as server:
        caller = Environment(server.url, lane="http")
        call = asyncio.create_task(caller.call_tool("slow"))
        await started.wait()
        with anyio.move_on_after(1.0):
            await wait_closing(server)
        assert not server.runtime.closing and len(server.runtime.sessions) == 0
        go_on.set()
        assert (await call).text == "done"
        await caller.release()


async def test_without_any_user_it_ends_after_its_linger() -> None:
    async with served_until_stopped(linger=0.05, hub=False) as server:
        pass
    assert server.runtime.closing


async def test_an_environment_has_its_options_already() -> None:
    with pytest.raises(ConfigurationError, match="drop these here"):
        await serve_until_stopped(AgentEnvironment(echo), name="other")
    with pytest.raises(ConfigurationError, match="drop these here"):
        await serve_until_stopped(AgentEnvironment(echo), skills=["math"])


async def test_a_port_that_is_taken_is_named_with_the_remedy() -> None:
    with listen() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} of 127.0.0.1 is taken .* choose another port, or 0"):
            await serve_until_stopped(echo, port=port)


def test_it_runs_in_a_thread_of_a_program_too(capsys: pytest.CaptureFixture[str]) -> None:
    with listen() as free:
        port = free.getsockname()[1]
    loops: list[asyncio.AbstractEventLoop] = []

    class Telling(AgentEnvironment):
        async def runtime(self) -> Any:
            loops.append(asyncio.get_running_loop())
            return await super().runtime()

    env = Telling(echo, name="echo", hub=False)

    def serve() -> None:
        with pytest.raises(asyncio.CancelledError):
            serve_agent_as_env(env, port=port)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    async def converse() -> str:
        with anyio.fail_after(20):
            while True:
                try:
                    async with Environment(f"http://127.0.0.1:{port}", lane="http") as caller:
                        return (await caller.chat("hi")).text
                except TransportError:
                    await anyio.sleep(0.05)

    assert asyncio.run(converse()) == "hi"

    def stop() -> None:
        # Outside of the main thread no signal ends it; it ends as every task does.
        (task,) = [task for task in asyncio.all_tasks() if task.get_coro().__name__ == "serve_until_stopped"]
        task.cancel()

    loops[0].call_soon_threadsafe(stop)
    thread.join(20)
    assert not thread.is_alive()
    told = capsys.readouterr().out
    assert "echo@0.0.0-dev is an environment now" in told
    for url in ("/.well-known/agent-env.json", "/.well-known/agent-card.json", "/mcp", "/a2a", "/v1/ws", "/docs"):
        assert f"127.0.0.1:{port}{url}" in told


# ── the server itself ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_app_that_never_ends_is_left_behind_in_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from agent_env.net import serving

    monkeypatch.setattr(serving, "LIFESPAN_SECONDS", 0.3)
    never = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await never.wait()

    with anyio.fail_after(10):
        async with served(app, listen(), stop_seconds=0):
            pass
    assert "is left behind" in caplog.text


async def test_a_request_that_does_not_end_is_cancelled_at_the_stop() -> None:
    import aiohttp

    started, cancelled = anyio.Event(), anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    listener = listen()
    with anyio.fail_after(10):
        async with aiohttp.ClientSession() as session:
            async with served(app, listener, lifespan=False, stop_seconds=0):
                request = asyncio.ensure_future(session.get(bound_url(listener)))
                await started.wait()
            await cancelled.wait()
            async with await request as response:
                assert (response.status, await response.text()) == (500, "Internal Server Error")


async def test_what_the_app_raises_at_its_start_ends_nobodys_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("no model file")

    with pytest.raises(ConfigurationError, match="the app did not start"):
        async with served(app, listen()):
            raise AssertionError("it must not be served")
    assert "no model file" in caplog.text
