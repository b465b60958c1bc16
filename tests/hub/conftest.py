"""A hub to test: the same one over its file and over its URL, with a clock that tests turn."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn
from sqlalchemy import text

from agent_env.hub import Hub, locate
from agent_env.hub.app import hub_app
from agent_env.hub.local import LocalHub
from agent_env.hub.schema import metadata
from agent_env.net import Tokens, bound_url, listen
from agent_env_cards import EnvironmentCard


class Clock:
    """Wall-clock seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "hub.db"


@pytest.fixture
def make_card() -> Callable[..., EnvironmentCard]:
    def make(name: str = "agent-b", version: str = "1.0.0", **facts: Any) -> EnvironmentCard:
        return EnvironmentCard(name=name, version=version, **{"description": "Solves things.", **facts})

    return make


@asynccontextmanager
async def serving(app: Any) -> AsyncGenerator[str, None]:
    """Runs an ASGI application on a free loopback port and gives its URL."""
    with listen() as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            with anyio.fail_after(10):
                while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                    await anyio.sleep(0.005)
            try:
                yield bound_url(listener)
            finally:
                server.should_exit = True


Served = Callable[..., AbstractAsyncContextManager[str]]


@pytest.fixture
def served(file: Path, clock: Clock) -> Served:
    """Serves a hub over the test's file; pass tokens to have it ask for them."""

    def serve(tokens: Tokens | None = None) -> AbstractAsyncContextManager[str]:
        return serving(hub_app(LocalHub(locate(file), clock=clock), tokens))

    return serve


_DATABASE = os.environ.get("AGENT_ENV_TEST_DATABASE")
"""The SQLAlchemy URL of a database server, if the machine has one: the same tests run over it, and empty it."""

_SERVER = ["server"] if _DATABASE else []


async def empty(hub: Hub) -> None:
    assert isinstance(hub, LocalHub)
    async with hub._database.write() as connection:
        await connection.run_sync(metadata.drop_all)
        await connection.execute(text("DROP TABLE schema_version"))


@pytest.fixture(params=["file", "url", *_SERVER])
async def hub(request: pytest.FixtureRequest, file: Path, clock: Clock, served: Served) -> AsyncGenerator[Hub, None]:
    if request.param == "file":
        async with Hub.open(file, clock=clock, rng=random.Random(0)) as hub:
            yield hub
    elif request.param == "url":
        async with served() as url, Hub.open(url, rng=random.Random(0)) as hub:
            yield hub
    else:
        async with Hub.open(_DATABASE, clock=clock, rng=random.Random(0)) as hub:
            yield hub
            await empty(hub)


@pytest.fixture(params=["file", *_SERVER])
async def target(request: pytest.FixtureRequest, file: Path) -> AsyncGenerator[str, None]:
    """A database that does not exist yet, as another process would be told of it."""
    if request.param == "file":
        yield str(file)
    else:
        assert _DATABASE is not None
        yield _DATABASE
        async with Hub.open(_DATABASE) as hub:
            await empty(hub)
