"""Publishing: new weights become what a policy's calls are answered by, everywhere at once or nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import anyio

from agent_env.errors import (
    ConfigurationError,
    DeadlineExceeded,
    InvalidArguments,
    PublishFailed,
    TransportError,
)
from agent_env.gateway import PolicyHandle, PolicyState
from agent_env.net.http import shown

W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)

_PAUSE_MARGIN = 60.0


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

    async def join(self, endpoints: Sequence[str], state: PolicyState) -> None:
        """Puts the weights that are in place at further endpoints, to which no call goes yet. Raises `PublishFailed`."""
        ...


class PublishedPolicy(Generic[W]):
    """A policy at a gateway together with the way its weights get there.

        solver = PublishedPolicy(run.policy("solver"), VllmLora())
        version = await solver.publish("/adapters/solver-3")

    One version answers at a time: calls wait while those under way end and the weights are put in place, and each
    record tells the version that answered it. `drain_seconds` bounds the former. A call that has waited for `hold`
    seconds is refused with 429 and a `Retry-After` of `retry_after`: stock clients come back twice, so their agents
    bear three times as long as both together.
    """

    def __init__(
        self,
        policy: PolicyHandle,
        publisher: Publisher[W],
        *,
        retry_after: float = 1.0,
        hold: float = 20.0,
        drain_seconds: float = 60.0,
    ) -> None:
        self.policy = policy
        self.publisher = publisher
        self.retry_after = retry_after
        self.hold = hold
        self.drain_seconds = drain_seconds
        self._lock = asyncio.Lock()
        self._published = 0

    async def publish(self, weights: W, *, version: int | None = None) -> int:
        """Pauses, drains, puts the weights in place and resumes; returns the version that they have from now on.

        It is the present one and 1, or `version`, such as that of the learner. Whatever fails leaves the version
        before in place, and the policy going on: raises `PublishFailed`, `DeadlineExceeded` for calls that do not
        end, `InvalidArguments` for a version that is not above the present one, and what the gateway raises.
        """
        seconds = self.drain_seconds + self.publisher.seconds + _PAUSE_MARGIN
        async with self._lock:
            quiet = self.policy.quiet(
                retry_after=self.retry_after, hold=self.hold, drain_seconds=self.drain_seconds, seconds=seconds
            )
            async with quiet as state:
                # The gateway may be another process than last time, and know of no version.
                new = _next(state, max(self.publisher.version or 0, self._published), version)
                async with self.publisher.loading(weights, state, new) as model:
                    # Not to be left half done: what is asked of the gateway has a bound of its own.
                    with anyio.CancelScope(shield=True):
                        await self._change(model, new, state.version)
                        self._published = new
        return new

    async def serve_from(self, endpoints: Sequence[str]) -> PolicyState:
        """Has the policy's calls answered at these endpoints from now on; new ones get its weights first.

        Nothing pauses: calls that are under way end where they are. Raises `PublishFailed`, with the endpoints as they
        were.
        """
        async with self._lock:
            state = await self.policy.state()
            await self.publisher.join([one for one in endpoints if one not in state.endpoints], state)
            return await self.policy.change(endpoints=endpoints, replaces=state.version)

    async def _change(self, model: str, version: int, replaces: int | None) -> None:
        try:
            await self.policy.change(model=model, version=version, replaces=replaces)
        except (TransportError, DeadlineExceeded):
            # Perhaps only the answer was lost; putting the weights back would then be wrong.
            if (await self.policy.state()).version != version:
                raise


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

    async def join(self, endpoints: Sequence[str], state: PolicyState) -> None:
        """Does nothing: another endpoint is another address of this process."""

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
