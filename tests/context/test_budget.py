"""A budget: calls are shared, never made up, and what is not used comes back."""

from __future__ import annotations

import asyncio
import threading
import time

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.context import Budget, Grant
from agent_env.errors import BudgetExhausted

pytestmark = pytest.mark.anyio


async def test_no_bound_is_shared_by_all_without_end() -> None:
    budget = Budget(None)
    grants = [await budget.take() for _ in range(10)]
    assert grants == [Grant(None)] * 10
    budget.give_back(grants[0], left=3)
    assert budget.left is None


async def test_a_call_that_starts_alone_gets_everything() -> None:
    budget = Budget(5)
    grant = await budget.take()
    assert grant.calls == 4  # the call itself is one of the five
    assert budget.left == 0


async def test_calls_that_start_together_get_equal_parts() -> None:
    budget = Budget(11)
    grants = await asyncio.gather(*(budget.take() for _ in range(4)))
    assert sorted(grant.calls or 0 for grant in grants) == [1, 2, 2, 2]


async def test_what_a_callee_did_not_use_comes_back() -> None:
    budget = Budget(5)
    grant = await budget.take()
    budget.give_back(grant, left=3)
    assert budget.left == 3


async def test_a_callee_that_says_nothing_has_used_its_share() -> None:
    budget = Budget(5)
    budget.give_back(await budget.take())
    assert budget.left == 0


async def test_a_callee_cannot_give_back_more_than_it_got() -> None:
    budget = Budget(5)
    budget.give_back(await budget.take(), left=100)
    assert budget.left == 4
    budget.give_back(await budget.take(), left=-7)
    assert budget.left == 0


async def test_a_call_that_was_never_made_costs_nothing() -> None:
    budget = Budget(5)
    budget.give_back(await budget.take(), spent=0)
    assert budget.left == 5


async def test_nothing_left_is_refused_at_once() -> None:
    budget = Budget(1)
    budget.give_back(await budget.take())
    with anyio.fail_after(1), pytest.raises(BudgetExhausted, match="raise the budget"):
        await budget.take()


async def test_more_calls_at_once_than_there_are_wait_for_what_comes_back() -> None:
    budget = Budget(1)
    first = await budget.take()
    waiting = asyncio.create_task(budget.take())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    budget.give_back(first, spent=0)
    with anyio.fail_after(1):
        assert await waiting == Grant(0)


async def test_a_call_that_waits_is_refused_when_nothing_comes_back() -> None:
    budget = Budget(1)
    first = await budget.take()
    waiting = asyncio.create_task(budget.take())
    await asyncio.sleep(0)
    budget.give_back(first)
    with anyio.fail_after(1), pytest.raises(BudgetExhausted):
        await waiting


async def test_a_call_that_is_cancelled_while_it_waits_takes_nothing() -> None:
    budget = Budget(1)
    first = await budget.take()
    waiting = asyncio.create_task(budget.take())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    budget.give_back(first, spent=0)
    assert budget.left == 1


async def test_a_call_that_is_cancelled_as_it_gets_its_share_gives_it_back() -> None:
    budget = Budget(3)
    taking = asyncio.create_task(budget.take())
    # The share is set by a callback of the loop; the cancel comes after it and before the task runs again.
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(taking.cancel)
    await asyncio.wait({taking})
    assert budget.left == 3


async def _spend(budget: Budget, plan: list[tuple[int, int]], spent: list[int], depth: int) -> None:
    """Plays one turn: calls children as planned; each child spends some of its share and gives the rest back."""

    async def child(pause: int, inner: int) -> None:
        for _ in range(pause):
            await asyncio.sleep(0)
        try:
            grant = await budget.take()
        except BudgetExhausted:
            return
        spent[0] += 1
        assert grant.calls is not None
        assert grant.calls >= 0
        own = Budget(grant.calls)
        if depth:
            await _spend(own, [(i % 3, inner) for i in range(inner)], spent, depth - 1)
        budget.give_back(grant, left=own.left)

    await asyncio.gather(*(child(pause, inner) for pause, inner in plan))


@given(
    calls=st.integers(0, 40),
    plan=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8),
    depth=st.integers(0, 2),
)
@settings(max_examples=150)
def test_never_more_calls_than_granted_and_everything_unspent_returns(
    calls: int, plan: list[tuple[int, int]], depth: int
) -> None:
    budget, spent = Budget(calls), [0]
    asyncio.run(asyncio.wait_for(_spend(budget, plan, spent, depth), 10))
    assert spent[0] <= calls
    assert budget.left == calls - spent[0]


@given(calls=st.integers(1, 30), takers=st.integers(1, 30), cancelled=st.sets(st.integers(0, 29)))
@settings(max_examples=100)
def test_cancelled_takers_leave_the_budget_whole(calls: int, takers: int, cancelled: set[int]) -> None:
    async def main() -> None:
        budget = Budget(calls)

        async def taker() -> None:
            grant = await budget.take()
            try:
                await asyncio.sleep(0)
            finally:
                budget.give_back(grant, spent=0)

        tasks = [asyncio.create_task(taker()) for _ in range(takers)]
        await asyncio.sleep(0)
        for index in cancelled:
            if index < takers:
                tasks[index].cancel()
        await asyncio.wait(tasks, timeout=10)
        assert all(task.done() for task in tasks)
        for task in tasks:
            assert task.cancelled() or task.exception() is None
        assert budget.left == calls

    asyncio.run(main())


def test_loops_of_several_threads_share_a_budget_and_wake_each_other() -> None:
    budget = Budget(8)

    async def call() -> None:
        for _ in range(2):
            grant = await budget.take()
            await asyncio.sleep(0.01)
            budget.give_back(grant, left=grant.calls)

    async def in_time() -> None:
        # A loop that is not woken up waits for its next timer, which here is this one.
        async with asyncio.timeout(20):
            await call()

    began = time.monotonic()
    threads = [threading.Thread(target=lambda: asyncio.run(in_time())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert time.monotonic() - began < 5
    assert budget.left == 0


def test_a_loop_that_ended_while_it_waited_gives_its_share_back() -> None:
    budget = Budget(2)

    async def hold() -> Grant:
        return await budget.take()

    async def wait_and_end() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await budget.take()

    grant = asyncio.run(hold())
    asyncio.run(wait_and_end())

    async def go_on() -> None:
        budget.give_back(grant, left=grant.calls)
        assert (await asyncio.wait_for(budget.take(), 5)).calls == 0

    asyncio.run(go_on())
