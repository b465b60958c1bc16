"""Where the key of a policy goes: to the servers that it was given for, and nowhere else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from agent_env.errors import InvalidArguments
from agent_env.gateway import RunHandle, SeatPolicy

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

ADMIN = "admin-token"
Upstream = Any
"""The model server of the fixture `upstream`."""
Chat = Callable[..., Awaitable[Any]]


@pytest.fixture
async def keyed(gateway: str, upstream: Upstream) -> AsyncGenerator[RunHandle, None]:
    """A run whose policy has a key for a server that is not the one of `upstream`."""
    seats = {
        "a": SeatPolicy("A", ("http://127.0.0.1:9/v1",), "s3cret"),
        "b": SeatPolicy("B", ("http://127.0.0.1:9/v1",)),
    }
    async with await RunHandle.open(gateway, ADMIN, seats, keep_journal=False) as run:
        yield run


def beside(url: str) -> list[str]:
    """Endpoints of which one is of another origin than 127.0.0.1:9, in one way each."""
    return [url, "https://127.0.0.1:9/v1", "http://localhost:9/v1", "http://127.0.0.1/v1", "http://127.0.0.1:90/v1"]


async def test_a_key_goes_to_no_server_that_it_was_not_given_for(
    keyed: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    policy = keyed.policy("A")
    before = await policy.state()
    for other in beside(upstream.url):
        for endpoints in ([other], ["http://127.0.0.1:9/v1", other]):
            with pytest.raises(
                InvalidArguments, match="the api_key of the policy 'A' was not given for http"
            ) as refused:
                await policy.change(endpoints=endpoints)
            assert "s3cret" not in str(refused.value.to_wire())
    assert await policy.state() == before and upstream.asked == []
    await policy.change(endpoints=["http://127.0.0.1:9/v2", "http://127.0.0.1:9/v1"])


@pytest.mark.parametrize("api_key", ["another", None])
async def test_endpoints_come_with_a_key_of_their_own_or_with_none(
    keyed: RunHandle, upstream: Upstream, chat: Chat, api_key: str | None
) -> None:
    await keyed.policy("A").change(endpoints=[upstream.url], api_key=api_key)
    assert (await chat(keyed.episode("e1", "a"))).status == 200
    assert upstream.headers[-1].get("authorization") == (api_key and f"Bearer {api_key}")
    # The first key was of another server, so it is no way back for the second.
    if api_key is not None:
        with pytest.raises(InvalidArguments, match="not given for"):
            await keyed.policy("A").change(endpoints=["http://127.0.0.1:9/v1"])


async def test_a_policy_without_a_key_moves_freely_and_a_key_that_no_header_holds_is_refused(
    keyed: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    await keyed.policy("B").change(endpoints=[upstream.url])
    assert (await chat(keyed.episode("e1", "b"))).status == 200
    assert "authorization" not in upstream.headers[-1]
    with pytest.raises(InvalidArguments, match="a string that a header can hold"):
        await keyed.policy("B").change(api_key="x\r\nY: z")
