"""A synchronous mirror of `Environment`: a portal to an event loop in a thread of its own, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from agent_env.errors import ConfigurationError
from agent_env.runtime.results import ResetResult, StepResult, ToolResult
from agent_env_cards import EnvironmentCard
from agent_env_wrappers.contract import Event

if TYPE_CHECKING:
    from agent_env.client.environment import Environment

T = TypeVar("T")


class SyncEnvironment:
    """An `Environment` for code without an event loop.

    with Environment("agent-b@1.0.0").sync() as agent_b:
        print(agent_b.chat("Hello!").text)
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        if self._portal is None:
            self._portal = self._stack.enter_context(start_blocking_portal())
        try:
            self._run(self.environment.initialize)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def leave() -> None:
            await self.environment.__aexit__(kind, error, trace)

        try:
            self._run(leave)
        finally:
            self._leave()

    def _leave(self) -> None:
        self._portal = None
        self._stack.close()

    def _run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._portal is None:
            raise ConfigurationError("a synchronous environment is used inside `with`")
        result: T = self._portal.call(function)
        return result

    @property
    def card(self) -> EnvironmentCard:
        """See `Environment.card`."""
        return self.environment.card

    @property
    def session_id(self) -> str | None:
        """The session of this conversation, None before its first call."""
        return self.environment.session_id

    def release(self) -> None:
        """See `Environment.release`."""
        self._run(self.environment.release)

    def list_tools(self) -> list[dict[str, Any]]:
        """See `Environment.list_tools`."""
        return self._run(self.environment.list_tools)

    def list_openai_tools(self) -> list[dict[str, Any]]:
        """See `Environment.list_openai_tools`."""
        return self._run(self.environment.list_openai_tools)

    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> ToolResult:
        """See `Environment.call_tool`."""
        return self._run(lambda: self.environment.call_tool(name, arguments, timeout=timeout))

    def chat(self, message: str, *, timeout: float | None = None) -> ToolResult:
        """See `Environment.chat`."""
        return self._run(lambda: self.environment.chat(message, timeout=timeout))

    def stream(self, message: str, *, timeout: float | None = None) -> Iterator[Event | ToolResult]:
        """See `Environment.stream`."""
        portal = self._portal
        if portal is None:
            raise ConfigurationError("a synchronous environment is used inside `with`")
        events = self.environment.stream(message, timeout=timeout)
        done = object()

        async def following() -> Any:
            return await anext(events, done)

        try:
            while (event := portal.call(following)) is not done:
                yield event
        finally:
            # Leaving the block has ended what is left of a stream that was not read to its end.
            if self._portal is portal:
                portal.call(events.aclose)

    def reset(self, *, seed: int | None = None, options: Any = None) -> ResetResult:
        """See `Environment.reset`."""
        return self._run(lambda: self.environment.reset(seed=seed, options=options))

    def step(self, action: Any, *, timeout: float | None = None) -> StepResult:
        """See `Environment.step`."""
        return self._run(lambda: self.environment.step(action, timeout=timeout))

    def state(self) -> Mapping[str, Any]:
        """See `Environment.state`."""
        return self._run(self.environment.state)

    def call_function(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """See `Environment.call_function`."""
        return self._run(lambda: self.environment.call_function(name, arguments))

    def call_reward(self, name: str, arguments: Mapping[str, Any] | None = None) -> float | None:
        """See `Environment.call_reward`."""
        return self._run(lambda: self.environment.call_reward(name, arguments))

    def fork(self) -> SyncEnvironment:
        """See `Environment.fork`; the copy lives inside the same `with`, and `release` ends it."""
        copy = SyncEnvironment(self._run(self.environment.fork))
        copy._portal = self._portal
        return copy
