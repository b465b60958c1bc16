"""Publishing: new weights become what a policy's calls are answered by, everywhere at once or nowhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import anyio

from agent_env.errors import (
    AgentEnvError,
    ConfigurationError,
    DeadlineExceeded,
    InvalidArguments,
    ProtocolError,
    PublishFailed,
    Refusal,
    TransportError,
)
from agent_env.gateway import PolicyHandle, PolicyState
from agent_env.gateway.policy_client import UNCHANGED
from agent_env.gateway.runs import checked_endpoints
from agent_env.net.http import shown

W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)

log = logging.getLogger("agent_env.training")

_PAUSE_MARGIN = 60.0
_RETRY_SECONDS = 0.1
"""After how long the gateway is asked again; twice as long each time, up to a second."""

_LOST = (TransportError, DeadlineExceeded, ProtocolError)
"""Errors after which what was asked may have been done: the answer is missing, or none of the gateway's."""


class Publisher(Protocol[W_contra]):
    """A way to put weights in place where a policy's endpoints find them."""

    @property
    def seconds(self) -> float:
        """How long `loading` may take to begin."""
        ...

    @property
    def version(self) -> int | None:
        """The version that is in place, where the publisher knows better than the gateway."""
        ...

    def loading(self, weights: W_contra, state: PolicyState, version: int) -> AbstractAsyncContextManager[str]:
        """Puts weights in place at all endpoints of a policy, and gives the model's name under which they answer.

        No call of the policy is under way meanwhile. When the block raises, what was before is put back; when it ends
        well, what was before may be let go. Raises `PublishFailed`, with what was before in place.
        """
        ...

    def joining(
        self, endpoints: Sequence[str], state: PolicyState, *, api_key: str | None = UNCHANGED
    ) -> AbstractAsyncContextManager[None]:
        """Puts the weights that are in place at those of the endpoints that the state does not have, to which no call
        goes yet; in the block the policy's calls are sent to all of them.

        When the block raises, they go nowhere new, and what was put there is taken away again. Raises `PublishFailed`,
        with nothing put anywhere. `api_key` is the key of them all, None for none, and is given where `serve_from` was
        given one.
        """
        ...


class PublishedPolicy(Generic[W]):
    """A policy at a gateway together with the way its weights get there.

        solver = PublishedPolicy(run.policy("solver"), VllmLora())
        version = await solver.publish("/adapters/solver-3")

    One version answers at a time: calls wait while those under way end and the weights are put in place, and each
    record tells the version that answered it. `drain_seconds` bounds the former. A call that has waited for `hold`
    seconds is refused with 429 and a `Retry-After` of `retry_after`: stock clients come back twice, so their agents
    bear three times as long as both together.

    Where the gateway's answer to the change is lost, it is asked which version it goes by, and to change again, for
    `settle_seconds`: nothing is put back on a guess. See `publish` for what is when it cannot be asked at all.
    """

    def __init__(
        self,
        policy: PolicyHandle,
        publisher: Publisher[W],
        *,
        retry_after: float = 1.0,
        hold: float = 20.0,
        drain_seconds: float = 60.0,
        settle_seconds: float = 30.0,
    ) -> None:
        self.policy = policy
        self.publisher = publisher
        self.retry_after = retry_after
        self.hold = hold
        self.drain_seconds = drain_seconds
        self.settle_seconds = settle_seconds
        self._lock = asyncio.Lock()
        self._published = 0
        self._open: _Open | None = None

    async def publish(self, weights: W, *, version: int | None = None) -> int:
        """Pauses, drains, puts the weights in place and resumes; returns the version that they have from now on.

        It is the present one and 1, or `version`, such as that of the learner. Whatever fails leaves the version
        before in place, and the policy going on: raises `PublishFailed`, `DeadlineExceeded` for calls that do not
        end, `InvalidArguments` for a version that is not above the present one, and what the gateway raises.

        One thing leaves neither: a gateway that cannot be asked any more which version it goes by. Then
        `TransportError` says so, the new weights stay where they are with those before beside them, and the policy
        stays paused: until `settle` or the next `publish` learns which it is, or the pause ends by itself.
        """
        async with self._lock:
            await self._settle()
            return await self._publish(weights, version)

    async def settle(self) -> int | None:
        """Finds out what became of a publication that nothing was known of, finishes or undoes it, and resumes.

        Returns the version that it published; None when it was not made, or there is none to settle. Raises
        `TransportError` while the gateway still cannot be asked.
        """
        async with self._lock:
            return await self._settle()

    async def serve_from(self, endpoints: Sequence[str], *, api_key: str | None = UNCHANGED) -> PolicyState:
        """Has the policy's calls answered at these endpoints from now on; new ones get its weights first.

        `api_key` is the key of them all, None for none; without it the policy's key stays, and goes to no server that it
        was not given for: endpoints at another one raise `InvalidArguments`, as do those that are no http URLs. Nothing
        pauses: calls that are under way end where they are. That, `PublishFailed` and a refusal of the gateway leave the
        endpoints, their key and what is loaded at servers as they were. Cancelled while weights are loaded, new ones have
        none afterwards. Where the gateway's answer is lost (`TransportError`), or the wait for it is cancelled, new ones
        keep the weights, since calls may go there already; call this again.
        """
        key = {} if api_key is UNCHANGED else {"api_key": api_key}
        endpoints = checked_endpoints(f"the policy {self.policy.policy!r}", list(endpoints))
        async with self._lock:
            await self._settle()
            state = await self.policy.state()
            async with self.publisher.joining(endpoints, state, **key):
                try:
                    return await self.policy.change(endpoints=endpoints, replaces=state.version, **key)
                except (*_LOST, asyncio.CancelledError) as error:
                    lost = error  # not known to be undone, so nothing else is either
            raise lost

    async def _publish(self, weights: W, version: int | None) -> int:
        bounds = self.drain_seconds + self.publisher.seconds + 2 * self.settle_seconds
        quiet = self.policy.quiet(
            retry_after=self.retry_after,
            hold=self.hold,
            drain_seconds=self.drain_seconds,
            seconds=bounds + _PAUSE_MARGIN,
        )
        made: int | None = None
        try:
            async with AsyncExitStack() as stack:
                state = await stack.enter_async_context(quiet)
                # The gateway may be another process than last time, and know of no version.
                new = _next(state, max(self.publisher.version or 0, self._published), version)
                model = await stack.enter_async_context(self.publisher.loading(weights, state, new))
                change = _Change(model, new, state.version)
                # Not to be left half done: what is asked of the gateway has a bound of its own.
                with anyio.CancelScope(shield=True):
                    try:
                        await self._make(change)
                    except _Unknown as unknown:
                        # Neither to be finished nor to be undone; what is open stays so.
                        self._open = _Open(change, stack.pop_all())
                        raise self._unknown(change, unknown) from unknown.__cause__
                made = self._published = new
        except _LOST as error:
            if made is None:
                raise
            log.warning("the policy %r has version %d; its pause ends by itself: %s", self.policy.policy, made, error)
        return self._published

    async def _settle(self) -> int | None:
        if self._open is None:
            return None
        change, stack = self._open.change, self._open.stack
        with anyio.CancelScope(shield=True):
            try:
                await self._make(change, lost=True)
            except _Unknown as unknown:
                raise self._unknown(change, unknown) from unknown.__cause__
            except AgentEnvError as error:
                self._open = None
                await stack.__aexit__(type(error), error, error.__traceback__)
                return None
            self._open = None
            self._published = change.version
            await stack.aclose()
        return change.version

    async def _make(self, change: _Change, *, lost: bool = False) -> None:
        """Makes a change, once: returns when it is made, and raises when it is not; `lost` is one that was asked for.

        Raises `_Unknown` when the gateway could not be asked which of the two it is.
        """
        last: AgentEnvError = TransportError(
            f"the gateway did not answer within {self.settle_seconds:g} s when the policy {self.policy.policy!r} was to "
            f"have version {change.version}"
        )
        refused: Refusal | None = None
        with anyio.move_on_after(self.settle_seconds):
            for wait in _waits():
                asked = lost
                try:
                    if lost and await self._has(change):
                        return
                    if refused is not None:
                        raise refused
                    lost = True
                    # Asking anew is harmless: `replaces` lets one of them pass.
                    await self.policy.change(model=change.model, version=change.version, replaces=change.replaces)
                    return
                except _LOST as error:
                    last = error
                except Refusal as error:
                    if refused is not None or not asked:
                        raise
                    refused = error  # perhaps by what was lost, which came through after all
                    continue
                await anyio.sleep(wait)
        with anyio.move_on_after(self.settle_seconds):
            for wait in _waits():
                try:
                    made = await self._has(change)
                except _LOST as error:
                    last = error
                else:
                    if made:
                        return
                    raise last
                await anyio.sleep(wait)
        raise _Unknown from last

    async def _has(self, change: _Change) -> bool:
        state = await self.policy.state()
        return (state.version, state.model) == (change.version, change.model)

    def _unknown(self, change: _Change, unknown: _Unknown) -> TransportError:
        return TransportError(
            f"whether the policy {self.policy.policy!r} is at version {change.replaces!r} or {change.version} cannot be "
            f"known: the gateway has not said it for {self.settle_seconds:g} s ({unknown.__cause__}). Its calls stay "
            "paused; call settle() or publish again when the gateway can be reached"
        )


@dataclass(frozen=True, slots=True)
class _Change:
    """What is asked of the gateway when new weights are in place."""

    model: str
    version: int
    replaces: int | None


@dataclass(frozen=True, slots=True)
class _Open:
    """A publication that is neither made nor undone: `stack` has its pause, and the weights before."""

    change: _Change
    stack: AsyncExitStack


class _Unknown(Exception):
    """Whether a change was made cannot be known; its cause is what was heard last."""


def _waits() -> Iterator[float]:
    """Seconds to wait before the gateway is asked again."""
    wait = _RETRY_SECONDS
    while True:
        yield wait
        wait = min(2 * wait, 1.0)


def _next(state: PolicyState, placed: int, wanted: int | None) -> int:
    if state.version is not None and not isinstance(state.version, int):
        raise ConfigurationError(
            f"the version of the policy {state.policy!r} is {state.version!r}; those that are published are whole numbers"
        )
    present = max(state.version or 0, placed)
    if wanted is None:
        return present + 1
    if wanted <= present:
        raise InvalidArguments(f"the version of the policy {state.policy!r} must be above {present}, not {wanted!r}")
    return wanted


class _Module(Protocol):
    """What `InMemory` needs of a model; torch's modules have it."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> Any: ...


class ServedPolicy(Protocol):
    """What `InMemory` needs of a policy that is served in this process; `agent_env.training.Policy` has it."""

    version: int

    @property
    def lock(self) -> AbstractContextManager[Any]: ...

    @property
    def model(self) -> _Module: ...


Weights: TypeAlias = Mapping[str, Any]
"""Tensors by name, as `state_dict` gives them."""


class InMemory:
    """Puts weights into a policy that a `PolicyServer` of this process serves.

        served = Policy("solver", make_model(tokenizer), tokenizer, trainable=False)
        solver = PublishedPolicy(run.policy("solver"), InMemory(served))
        await solver.publish(learner.model.state_dict(), version=learner.version)

    The weights are copied, so the learner may go on with its own.
    """

    seconds = 60.0

    def __init__(self, served: ServedPolicy) -> None:
        self.served = served

    @property
    def version(self) -> int:
        """The version that is served."""
        return self.served.version

    @asynccontextmanager
    async def loading(self, weights: Weights, state: PolicyState, version: int) -> AsyncGenerator[str, None]:
        """Copies the weights; see `Publisher`."""
        # In threads: weights may be large, and who samples in a thread holds the lock.
        before = await anyio.to_thread.run_sync(self._copy)
        was = self.served.version
        try:
            try:
                await anyio.to_thread.run_sync(self._put, weights, version)
            except (RuntimeError, KeyError, TypeError, AttributeError) as error:
                said = f"{type(error).__name__}: {error}"
                raise publish_failed(state, [failure(state.endpoints[0], None, said)]) from error
            yield state.model
        except BaseException:
            # A model that does not fit has taken the tensors that do.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._put, before, was)
            raise

    @asynccontextmanager
    async def joining(
        self, endpoints: Sequence[str], state: PolicyState, *, api_key: str | None = UNCHANGED
    ) -> AsyncGenerator[None, None]:
        """Does nothing: another endpoint is another address of this process."""
        yield

    def _copy(self) -> Weights:
        with self.served.lock:
            return {name: tensor.detach().clone() for name, tensor in self.served.model.state_dict().items()}

    def _put(self, weights: Weights, version: int) -> None:
        with self.served.lock:
            self.served.model.load_state_dict(weights)
            self.served.version = version


def failure(endpoint: str, status: int | None, said: str) -> dict[str, Any]:
    """What one endpoint said when it was to take weights, for `publish_failed`."""
    return {"endpoint": shown(endpoint), "status": status, "said": said}


def publish_failed(state: PolicyState, failures: list[dict[str, Any]]) -> PublishFailed:
    """What is raised when weights could not be put in place everywhere."""
    told = "; ".join(
        f"{one['endpoint']} said{'' if one['status'] is None else ' ' + str(one['status'])}: {one['said']}"
        for one in failures
    )
    return PublishFailed(
        f"the policy {state.policy!r} stays at version {state.version!r}, on all of its {len(state.endpoints)} "
        f"endpoints: {told}",
        policy=state.policy,
        failures=failures,
    )
