"""Calls that are held while a policy is paused, and whose run or seat is gone meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env.gateway import PolicyHandle, RunHandle, SeatPolicy
from agent_env.net import shared_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

ADMIN = "admin-token"
Upstream = Any
"""The model server of the fixture `upstream`."""
Serve = Callable[..., AbstractAsyncContextManager[str]]


async def ask(run: RunHandle) -> tuple[int, bytes]:
    """Asks the model of the seat `a`; gives the status and the bytes of what comes back."""
    seen = run.episode("e1", "a")
    assert seen.route is not None
    headers = {"Authorization": f"Bearer {seen.route.token}"}
    body = {"messages": [{"role": "user", "content": "boat"}]}
    async with shared_http().post(f"{seen.model_url('c1')}/chat/completions", json=body, headers=headers) as response:
        return response.status, await response.read()


async def until_held(policy: PolicyHandle, count: int) -> None:
    while (await policy.state()).held != count:
        await anyio.lowlevel.checkpoint()


async def test_a_call_that_is_held_is_refused_when_its_run_is_closed_and_those_of_other_runs_stay_held(
    tmp_path: Path, upstream: Upstream, serve: Serve
) -> None:
    seats = {"a": SeatPolicy("A", (upstream.url,), policy="solver")}
    with anyio.fail_after(30):
        async with serve(tmp_path) as gateway:
            policy = PolicyHandle(gateway, ADMIN, "solver")
            closed, other = [await RunHandle.open(gateway, ADMIN, seats, run=name) for name in ("r1", "r2")]
            await policy.pause(hold=3600)
            refused, held = (asyncio.ensure_future(ask(run)) for run in (closed, other))
            await until_held(policy, 2)
            await closed.aclose()
            status, answer = await refused
            assert status == 410 and json.loads(answer)["error"]["code"] == "run_closed"
            assert (await policy.state()).held == 1 and not held.done() and upstream.asked == []
            await policy.resume()
            assert (await held)[0] == 200
            await other.aclose()
    assert [len((tmp_path / f"{name}.jsonl").read_text().splitlines()) for name in ("r1", "r2")] == [1, 2]


async def test_a_call_that_is_held_is_refused_when_its_seat_leaves_the_run(run: RunHandle, upstream: Upstream) -> None:
    with anyio.fail_after(30):
        await run.policy("A").pause(hold=3600)
        asking = asyncio.ensure_future(ask(run))
        await until_held(run.policy("A"), 1)
        seats = {"b": run.seats["b"]}
        await RunHandle.open(run.gateway, ADMIN, seats, run=run.run, secret=run.secret)
        status, answer = await asking
        assert status == 404 and b"the seat 'a' has left the run 'r1'" in answer and upstream.asked == []


async def test_a_call_that_is_held_goes_on_with_the_policy_that_its_seat_has_by_then(
    run: RunHandle, upstream: Upstream
) -> None:
    with anyio.fail_after(30):
        await run.policy("A").pause(hold=3600)
        asking = asyncio.ensure_future(ask(run))
        await until_held(run.policy("A"), 1)
        seats = {"a": SeatPolicy("C", (upstream.url,), policy="another"), "b": run.seats["b"]}
        again = await RunHandle.open(run.gateway, ADMIN, seats, run=run.run, secret=run.secret)
        assert (await asking)[0] == 200 and upstream.asked[-1]["model"] == "C"
        assert [record["policy"] for record in (await again.collect(["e1"]))["e1"]] == ["another"]


async def test_a_call_whose_seat_gets_another_paused_policy_is_held_by_that(run: RunHandle, upstream: Upstream) -> None:
    with anyio.fail_after(30):
        await run.policy("A").pause(hold=3600)
        await run.policy("B").pause(hold=3600)
        asking = asyncio.ensure_future(ask(run))
        await until_held(run.policy("A"), 1)
        seats = {"a": run.seats["b"], "b": run.seats["b"]}
        again = await RunHandle.open(run.gateway, ADMIN, seats, run=run.run, secret=run.secret)
        await until_held(again.policy("B"), 1)
        assert not asking.done() and upstream.asked == []
        await again.policy("B").resume()
        assert (await asking)[0] == 200 and upstream.asked[-1]["model"] == "B"
