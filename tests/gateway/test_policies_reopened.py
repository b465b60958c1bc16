"""What a run that is opened again keeps of its policies: pauses and the calls under way, whatever it now means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from agent_env.errors import InvalidArguments
from agent_env.gateway import RunHandle, SeatPolicy

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

ADMIN = "admin-token"
Upstream = Any
"""The model server of the fixture `upstream`."""
Chat = Callable[..., Awaitable[Any]]


@pytest.fixture(params=[None, "solver"], ids=["own", "named"])
async def opened(request: Any, gateway: str, upstream: Upstream) -> AsyncGenerator[RunHandle, None]:
    """A run with one policy, of its own or by name."""
    seats = {"a": SeatPolicy("A", (upstream.url,), policy=request.param)}
    async with await RunHandle.open(gateway, ADMIN, seats, keep_journal=False) as run:
        yield run


async def again(run: RunHandle, **changes: Any) -> RunHandle:
    seats = {seat: policy and replace(policy, **changes) for seat, policy in run.seats.items()}
    return await RunHandle.open(run.gateway, ADMIN, seats, run=run.run, secret=run.secret)


def name_of(run: RunHandle) -> str:
    policy = run.seats["a"]
    assert policy is not None
    return policy.policy or policy.model


@pytest.mark.parametrize(
    "changes",
    [{}, {"version": 3}, {"api_key": "k"}, {"endpoints": ("http://127.0.0.1:9/v1",)}, {"settings": {"top_k": 1}}],
    ids=lambda changes: next(iter(changes), "as it was"),
)
async def test_a_run_that_is_opened_again_keeps_a_policys_pauses_and_its_calls_under_way(
    opened: RunHandle, upstream: Upstream, chat: Chat, changes: dict[str, Any]
) -> None:
    upstream.hold = asyncio.Event()
    asking = asyncio.ensure_future(chat(opened.episode("e1", "a")))
    await upstream.arrived.wait()
    pause = await opened.policy(name_of(opened)).pause(retry_after=7)
    run = await again(opened, **changes)
    policy = run.policy(name_of(opened))
    state = await policy.state()
    assert (state.paused, state.retry_after, state.in_flight) == (True, 7, 1)
    assert state.endpoints == tuple(changes.get("endpoints", (upstream.url,)))
    assert (await chat(run.episode("e1", "a"))).status == 429
    draining = asyncio.ensure_future(policy.drain())
    upstream.hold.set()
    assert (await asking).status == 200 and (await draining).in_flight == 0
    assert not (await policy.resume(pause)).paused


async def test_a_named_policy_stays_paused_when_its_only_run_means_another_model_by_it(
    gateway: str, upstream: Upstream, chat: Chat
) -> None:
    seats = {seat: SeatPolicy("A", (upstream.url,), policy="solver") for seat in ("a", "b")}
    async with await RunHandle.open(gateway, ADMIN, seats, keep_journal=False) as run:
        await run.policy("solver").pause()
        changed = await again(run, model="B")
        state = await changed.policy("solver").state()
        assert (state.model, state.paused) == ("B", True)
        assert not (await changed.policy("solver").resume()).paused
        assert (await chat(changed.episode("e1", "b"))).status == 200 and upstream.asked[-1]["model"] == "B"


async def test_what_refuses_to_be_opened_again_changes_no_policy(opened: RunHandle, upstream: Upstream) -> None:
    await opened.policy(name_of(opened)).pause()
    before = await opened.policy(name_of(opened)).state()
    name = opened.seats["a"] and opened.seats["a"].policy
    seats = {
        "a": SeatPolicy("A", ("http://127.0.0.1:9/v1",), policy=name),
        "b": SeatPolicy("B", ("http://xn--\u00e9/v1",)),
    }
    with pytest.raises(InvalidArguments):
        await RunHandle.open(opened.gateway, ADMIN, seats, run=opened.run, secret=opened.secret)
    assert await opened.policy(name_of(opened)).state() == before


async def test_of_two_own_policies_with_one_name_each_stays_what_it_was(
    gateway: str, upstream: Upstream, chat: Chat
) -> None:
    """The changed one of two namesakes takes nothing from the one that is meant as it was."""
    other = SeatPolicy("A", ("http://127.0.0.1:9/v1",))
    seats = {"a": SeatPolicy("A", (upstream.url,)), "b": other}
    async with await RunHandle.open(gateway, ADMIN, seats, keep_journal=False) as run:
        upstream.hold = asyncio.Event()
        asking = asyncio.ensure_future(chat(run.episode("e1", "a")))
        await upstream.arrived.wait()
        one = {"b": SeatPolicy("A", ("http://127.0.0.1:7/v1",)), "a": SeatPolicy("A", (upstream.url,))}
        await RunHandle.open(gateway, ADMIN, one, run=run.run, secret=run.secret)
        only = {"a": SeatPolicy("A", (upstream.url,))}
        left = await RunHandle.open(gateway, ADMIN, only, run=run.run, secret=run.secret)
        assert (await left.policy("A").state()).in_flight == 1
        upstream.hold.set()
        assert (await asking).status == 200
