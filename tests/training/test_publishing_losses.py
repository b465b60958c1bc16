"""Publishing to a gateway whose answers are lost: nothing is put back on a guess."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from agent_env.errors import AgentEnvError, DeadlineExceeded, ProtocolError, Refusal, TransportError, UnknownTool
from agent_env.gateway import Gateway, PolicyHandle, PolicyState, RunHandle, SeatPolicy, running
from agent_env.training import PublishedPolicy, publishing

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

ADMIN = "admin"
LOSSES = [TransportError("the connection broke"), DeadlineExceeded("no answer in time"), ProtocolError("not JSON")]

Fate = Literal["done", "answer lost", "request lost"]


class Lossy(PolicyHandle):
    """A handle whose requests or answers are lost on the way, as `changes` and `states` say, one after another."""

    def __init__(self, run: RunHandle, error: AgentEnvError) -> None:
        super().__init__(run.gateway, ADMIN, "A", run=run.run)
        self.error = error
        self.changes: list[Fate] = []
        self.states: list[Fate] = []
        self.resumes: list[Fate] = []
        self.lasting: Fate = "done"
        """What happens when the lists are used up."""
        self.late: Callable[[], Any] | None = None

    async def change(self, **wanted: Any) -> PolicyState:
        late, self.late = self.late, None
        if late is not None:
            await late()
        return await self._lossy(self.changes, lambda: super(Lossy, self).change(**wanted))

    async def state(self) -> PolicyState:
        return await self._lossy(self.states, lambda: super(Lossy, self).state())

    async def resume(self, pause: str | None = None) -> PolicyState:
        return await self._lossy(self.resumes, lambda: super(Lossy, self).resume(pause))

    async def _lossy(self, fates: list[Fate], ask: Callable[[], Any]) -> PolicyState:
        fate = fates.pop(0) if fates else self.lasting
        if fate == "request lost":
            raise self.error
        answer: PolicyState = await ask()
        if fate == "answer lost":
            raise self.error
        return answer


class Shelf:
    """A publisher with one place for weights; a call that began would see what is there now."""

    seconds = 5.0
    version = None

    def __init__(self) -> None:
        self.weights = 0

    @asynccontextmanager
    async def loading(self, weights: int, state: PolicyState, version: int) -> AsyncGenerator[str, None]:
        before, self.weights = self.weights, weights
        try:
            yield f"model-{version}"
        except BaseException:
            self.weights = before
            raise

    @asynccontextmanager
    async def joining(self, endpoints: Any, state: PolicyState, **key: Any) -> AsyncGenerator[None, None]:
        """Has nothing to bring."""
        yield


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_RETRY_SECONDS", 0.005)


@pytest.fixture
async def run(tmp_path: Path) -> AsyncGenerator[RunHandle]:
    gateway = Gateway(tmp_path, admin_token=ADMIN)
    seats = {"a": SeatPolicy("A", ("http://127.0.0.1:9/v1",))}
    async with running(gateway) as url, await RunHandle.open(url, ADMIN, seats) as opened:
        yield opened
    gateway.close()


def published(run: RunHandle, error: AgentEnvError, **options: Any) -> tuple[PublishedPolicy[int], Lossy, Shelf]:
    lossy, shelf = Lossy(run, error), Shelf()
    return PublishedPolicy(lossy, shelf, **{"settle_seconds": 0.2} | options), lossy, shelf


async def truth(run: RunHandle) -> PolicyState:
    """What the gateway has, over a line that loses nothing."""
    return await run.policy("A").state()


@pytest.mark.parametrize("error", LOSSES, ids=lambda error: error.code)
@pytest.mark.parametrize("first", ["answer lost", "request lost"])
@pytest.mark.parametrize("silent", [0, 1, 3])
async def test_a_change_whose_answer_is_lost_is_asked_about_until_it_is_known_and_made(
    run: RunHandle, error: AgentEnvError, first: Fate, silent: int
) -> None:
    policy, lossy, shelf = published(run, error, settle_seconds=20.0)
    lossy.changes, lossy.states = [first], ["request lost"] * silent
    with anyio.fail_after(20):
        assert await policy.publish(5) == 1
    state = await truth(run)
    assert (state.version, state.model, state.paused, shelf.weights) == (1, "model-1", False, 5)


@pytest.mark.parametrize(
    ("changes", "states"),
    [
        (changes, states)
        for changes in itertools.product(("answer lost", "request lost"), repeat=2)
        for states in itertools.product(("done", "answer lost"), repeat=2)
    ],
)
async def test_whatever_is_lost_the_weights_are_those_of_the_version_that_the_gateway_has(
    run: RunHandle, changes: tuple[Fate, ...], states: tuple[Fate, ...]
) -> None:
    policy, lossy, shelf = published(run, LOSSES[0], settle_seconds=20.0)
    lossy.changes, lossy.states = [*changes], [*states]
    with anyio.fail_after(30):
        for number in (1, 2):
            assert await policy.publish(number * 10) == number
            state = await truth(run)
            assert (state.version, shelf.weights, state.paused) == (number, number * 10, False)


async def test_a_change_that_the_gateway_never_gets_leaves_the_version_before(run: RunHandle) -> None:
    policy, lossy, shelf = published(run, LOSSES[0])
    lossy.changes = ["request lost"] * 100
    with pytest.raises(TransportError, match="the connection broke"):
        await policy.publish(5)
    state = await truth(run)
    assert (state.version, state.paused, shelf.weights) == (None, False, 0)


@pytest.mark.parametrize("reached", [True, False])
@pytest.mark.parametrize("by", ["settle", "publish", "serve_from"])
async def test_what_cannot_be_known_stays_paused_with_the_new_weights_until_it_is_known(
    run: RunHandle, reached: bool, by: str
) -> None:
    policy, lossy, shelf = published(run, LOSSES[0])
    lossy.changes, lossy.lasting = ["answer lost" if reached else "request lost"], "done"
    silent: list[Fate] = ["request lost"] * 1000
    lossy.changes += silent
    lossy.states = list(silent)
    with anyio.fail_after(30):
        with pytest.raises(
            TransportError, match=r"is at version None or 1 cannot be known: .* stay paused; call settle"
        ):
            await policy.publish(5)
        with pytest.raises(TransportError, match="cannot be known"):
            await policy.settle()
        with pytest.raises(TransportError, match="cannot be known"):
            await policy.publish(6)
        state = await truth(run)
        assert (state.version, state.paused, shelf.weights) == (1 if reached else None, True, 5)
        lossy.states.clear()
        if not reached and by == "settle":
            # It answers again, and never gets the change.
            assert await policy.settle() is None
            assert shelf.weights == 0
        else:
            lossy.changes.clear()
            match by:
                case "settle":
                    assert await policy.settle() == 1
                case "publish":
                    assert await policy.publish(7) == 2
                case _:
                    assert (
                        len((await policy.serve_from(["http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1"])).endpoints)
                        == 2
                    )
            assert shelf.weights == (7 if by == "publish" else 5)
        lossy.changes.clear()
        state = await truth(run)
        assert not state.paused and await policy.settle() is None
        assert await policy.publish(8) == (state.version or 0) + 1 and shelf.weights == 8


async def test_a_change_that_comes_through_late_is_not_made_twice(run: RunHandle) -> None:
    policy, lossy, shelf = published(run, LOSSES[0], settle_seconds=20.0)
    lossy.changes = ["request lost", "done"]

    async def first_is_lost() -> None:
        # The second one finds that the first has come through in the meantime.
        async def arrive() -> None:
            await run.policy("A").change(model="model-1", version=1, replaces=None)

        lossy.late = arrive

    lossy.late = first_is_lost
    with anyio.fail_after(20):
        assert await policy.publish(5) == 1
    assert ((await truth(run)).version, shelf.weights) == (1, 5)


async def test_another_one_who_publishes_meanwhile_is_not_taken_for_this_one(run: RunHandle) -> None:
    policy, lossy, shelf = published(run, LOSSES[0], settle_seconds=20.0)
    lossy.changes = ["request lost"]

    async def another() -> None:
        await run.policy("A").change(model="theirs", version=1)

    lossy.late = another
    with anyio.fail_after(20), pytest.raises(Refusal):
        await policy.publish(5)
    assert ((await truth(run)).model, shelf.weights) == ("theirs", 0)


async def test_a_run_that_is_gone_settles_what_was_unknown(run: RunHandle) -> None:
    other = await RunHandle.open(run.gateway, ADMIN, {"a": SeatPolicy("A", ("http://127.0.0.1:9/v1",))})
    policy, lossy, shelf = published(other, LOSSES[0])
    lossy.changes, lossy.states = ["answer lost"], ["request lost"] * 1000
    with pytest.raises(TransportError, match="cannot be known"):
        await policy.publish(5)
    lossy.states.clear()
    await other.aclose()
    with pytest.raises(UnknownTool):
        await policy.settle()
    assert shelf.weights == 0 and await policy.settle() is None


async def test_a_pause_that_cannot_be_ended_does_not_undo_what_was_published(
    run: RunHandle, caplog: pytest.LogCaptureFixture
) -> None:
    policy, lossy, shelf = published(run, LOSSES[0])
    lossy.resumes = ["request lost"]
    assert await policy.publish(5) == 1
    state = await truth(run)
    assert (state.version, state.paused, shelf.weights) == (1, True, 5)
    assert "the policy 'A' has version 1; its pause ends by itself" in caplog.text
