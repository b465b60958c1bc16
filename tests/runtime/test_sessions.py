"""The store of sessions: places, queues, reaping, and whose session is whose."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from agent_env.errors import AtCapacity, DeadlineExceeded, TransportError, UnknownSession
from agent_env.net.limits import Limits
from agent_env.runtime.sessions import Session, SessionStore, acquire, mint_session_id

pytestmark = pytest.mark.anyio


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


MakeStore = Callable[..., SessionStore]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def disposed() -> list[str]:
    return []


@pytest.fixture
async def store_of(clock: Clock, disposed: list[str]) -> AsyncIterator[MakeStore]:
    made: list[SessionStore] = []

    async def dispose(session: Session) -> None:
        disposed.append(session.id)

    def make(**limits: float) -> SessionStore:
        store = SessionStore(Limits(**limits), dispose=dispose, clock=clock)  # type: ignore[arg-type]
        made.append(store)
        return store

    yield make
    for store in made:
        await store.aclose()


async def settle() -> None:
    """Lets everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_id_has_128_random_bits_and_no_two_are_alike() -> None:
    ids = {mint_session_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(id.removeprefix("s-")) * 6 >= 128 for id in ids)


async def test_a_session_is_found_by_its_principal_alone(store_of: MakeStore) -> None:
    store = store_of()
    session = await store.open("alice")
    assert store.find("alice", session.id) is session
    assert store.knows("alice", session.id)
    with pytest.raises(UnknownSession) as foreign:
        store.find("bob", session.id)
    with pytest.raises(UnknownSession) as missing:
        store.find("bob", "s-nothing")
    # Whoever guesses must not learn that the session exists.
    assert foreign.value.message.replace(session.id, "?") == missing.value.message.replace("s-nothing", "?")


async def test_two_principals_may_choose_the_same_id(store_of: MakeStore) -> None:
    store = store_of()
    one, other = await store.open("alice", "thread-1"), await store.open("bob", "thread-1")
    assert one is not other
    assert one.hash != other.hash


async def test_an_id_that_got_its_session_meanwhile_is_not_opened_twice(store_of: MakeStore) -> None:
    store = store_of(max_sessions=2, queue_seconds=5)
    blocker = await store.open("alice")
    other = await store.open("alice")
    opening = [asyncio.create_task(store.open("alice", "thread-1")) for _ in range(2)]
    await settle()
    await store.remove(blocker)
    await store.remove(other)
    with anyio.fail_after(5):
        first, second = await asyncio.gather(*opening)
    assert first is second
    assert len(store) == 1
    with anyio.fail_after(5):
        await store.open("alice")  # the place that the second one did not need is free


async def test_turns_of_a_session_run_in_the_order_of_arrival(store_of: MakeStore) -> None:
    store = store_of()
    session = await store.open("alice")
    order: list[int] = []
    go = asyncio.Event()

    async def turn(number: int) -> None:
        async with store.hold(session):
            await go.wait()
            order.append(number)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(turn, number)
            await settle()
            assert session.using == 20
            go.set()
    assert order == list(range(20))
    assert session.using == 0


async def test_more_turns_than_may_wait_are_refused_and_the_others_run(store_of: MakeStore) -> None:
    store = store_of(max_queued_turns=1)
    session = await store.open("alice")
    async with store.hold(session):
        waiting = asyncio.create_task(_hold(store, session))
        await settle()
        with pytest.raises(AtCapacity, match="1 turns already wait") as refused:
            await _hold(store, session)
        assert refused.value.retry_after == 1.0
    with anyio.fail_after(5):
        await waiting


async def _hold(store: SessionStore, session: Session, seconds: float | None = None) -> None:
    async with store.hold(session, seconds):
        pass


async def test_a_turn_waits_for_the_one_before_it_no_longer_than_its_deadline(store_of: MakeStore) -> None:
    store = store_of()
    session = await store.open("alice")
    async with store.hold(session):
        with anyio.fail_after(5), pytest.raises(DeadlineExceeded, match="the turn before it"):
            await _hold(store, session, 0.01)
    await _hold(store, session, 0.01)


async def test_a_lock_that_was_just_promised_to_another_is_waited_for_within_the_deadline() -> None:
    lock = asyncio.Lock()
    await lock.acquire()
    first = asyncio.create_task(lock.acquire())
    await settle()
    lock.release()  # it is free to look at, and already the first one's
    with anyio.fail_after(5), pytest.raises(DeadlineExceeded):
        await acquire(lock, 0.02, "somebody")
    assert first.done()


async def test_a_session_that_is_released_while_a_turn_waits_is_unknown_to_it(store_of: MakeStore) -> None:
    store = store_of()
    session = await store.open("alice")
    async with store.hold(session):
        waiting = asyncio.create_task(_hold(store, session))
        await settle()
        await store.remove(session)
    with anyio.fail_after(5), pytest.raises(UnknownSession, match="released while this call waited"):
        await waiting


# ── places ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_session_beyond_the_bound_waits_and_gets_the_place_that_becomes_free(store_of: MakeStore) -> None:
    store = store_of(max_sessions=2, queue_seconds=5)
    one, _ = await store.open("a"), await store.open("b")
    waiting = [asyncio.create_task(store.open(name)) for name in ("c", "d")]
    await settle()
    assert len(store) == 2
    await store.remove(one)
    with anyio.fail_after(5):
        assert (await waiting[0]).principal == "c"  # whoever waits longest is next
    await settle()
    assert not waiting[1].done()
    waiting[1].cancel()
    await asyncio.wait({waiting[1]})


async def test_a_place_that_does_not_become_free_is_refused_with_when_to_try_again(store_of: MakeStore) -> None:
    store = store_of(max_sessions=1, queue_seconds=0.02)
    await store.open("a")
    with anyio.fail_after(5), pytest.raises(AtCapacity, match="all 1 sessions are taken") as refused:
        await store.open("b")
    assert refused.value.retry_after == 1.0
    assert refused.value.retryable


async def test_nobody_waits_where_nobody_may(store_of: MakeStore) -> None:
    store = store_of(max_sessions=1, queue_seconds=0)
    await store.open("a")
    with anyio.fail_after(1), pytest.raises(AtCapacity):
        await store.open("b")


async def test_a_deadline_that_comes_before_the_end_of_the_queue_is_a_deadline(store_of: MakeStore) -> None:
    store = store_of(max_sessions=1, queue_seconds=60)
    await store.open("a")
    with anyio.fail_after(5), pytest.raises(DeadlineExceeded, match="one of 1 sessions"):
        await store.open("b", seconds=0.02)


async def test_who_gives_up_waiting_leaves_the_place_to_the_next(store_of: MakeStore) -> None:
    store = store_of(max_sessions=1, queue_seconds=5)
    held = await store.open("a")
    first, second = asyncio.create_task(store.open("b")), asyncio.create_task(store.open("c"))
    await settle()
    first.cancel()
    await asyncio.wait({first})
    await store.remove(held)
    with anyio.fail_after(5):
        assert (await second).principal == "c"


async def test_a_place_that_comes_in_the_step_of_the_cancel_is_not_lost(store_of: MakeStore) -> None:
    store = store_of(max_sessions=1, queue_seconds=5)
    held = await store.open("a")
    first, second = asyncio.create_task(store.open("b")), asyncio.create_task(store.open("c"))
    await settle()
    await store.remove(held)  # the place is the first one's now
    first.cancel()
    with anyio.fail_after(5):
        assert (await second).principal == "c"
    assert first.cancelled()
    assert len(store) == 1


async def test_a_place_that_comes_in_the_step_of_the_timeout_is_not_lost(store_of: MakeStore, clock: Clock) -> None:
    store = store_of(max_sessions=1, queue_seconds=0.05, idle_seconds=60)
    await store.open("a")
    waiting = asyncio.create_task(store.open("b"))
    await settle()
    clock.now += 61
    asyncio.get_running_loop().call_later(0.01, store.sweep)
    time.sleep(0.1)  # noqa: ASYNC251 - the loop is busy: it finds both timers due at once, the freed place first
    with anyio.fail_after(5), pytest.raises(AtCapacity):
        await waiting
    with anyio.fail_after(1):
        await store.open("c")  # the place went back


# ── idle sessions ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_idle_session_is_reaped_and_its_place_free(
    store_of: MakeStore, clock: Clock, disposed: list[str]
) -> None:
    store = store_of(max_sessions=1, idle_seconds=60, queue_seconds=0)
    session = await store.open("a")
    clock.now += 59
    store.sweep()
    assert store.knows("a", session.id)
    clock.now += 1
    store.sweep()
    assert not store.knows("a", session.id)
    await settle()
    assert disposed == [session.id]
    await store.open("b")


async def test_a_full_store_reaps_before_it_lets_anybody_wait(store_of: MakeStore, clock: Clock) -> None:
    store = store_of(max_sessions=1, idle_seconds=60, queue_seconds=0)
    await store.open("a")
    clock.now += 61
    assert (await store.open("b")).principal == "b"


async def test_a_session_in_use_is_never_reaped(store_of: MakeStore, clock: Clock, disposed: list[str]) -> None:
    store = store_of(idle_seconds=60)
    session = await store.open("a")
    async with store.hold(session):
        waiting = asyncio.create_task(_hold(store, session))
        await settle()
        clock.now += 10_000
        store.sweep()
        assert store.knows("a", session.id)
    with anyio.fail_after(5):
        await waiting
    store.sweep()
    assert store.knows("a", session.id)  # the clock starts again when the turn ends
    clock.now += 61
    store.sweep()
    await settle()
    assert disposed == [session.id]


async def test_a_call_cannot_begin_in_a_session_that_is_being_reaped(store_of: MakeStore, clock: Clock) -> None:
    store = store_of(idle_seconds=60)
    session = await store.open("a")
    clock.now += 61
    store.sweep()
    with pytest.raises(UnknownSession, match="idle for more than 60 s"):
        store.find("a", session.id)


async def test_idle_sessions_are_reaped_with_nobody_calling(disposed: list[str]) -> None:
    gone = asyncio.Event()

    async def dispose(session: Session) -> None:
        gone.set()

    store = SessionStore(Limits(idle_seconds=0.02), dispose=dispose)
    await store.open("a")
    with anyio.fail_after(10):
        await gone.wait()
    assert len(store) == 0
    await store.aclose()


async def test_closing_ends_all_sessions_and_turns_away_who_waits(store_of: MakeStore, disposed: list[str]) -> None:
    store = store_of(max_sessions=2, queue_seconds=60)
    ids = {(await store.open("a")).id, (await store.open("b")).id}
    waiting = asyncio.create_task(store.open("c"))
    await settle()
    await store.aclose()
    assert set(disposed) == ids
    assert list(store) == []
    with anyio.fail_after(5), pytest.raises(TransportError, match="stopped"):
        await waiting
