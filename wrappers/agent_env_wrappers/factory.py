"""A factory as an agent: a function that builds the agent anew for each turn, with that turn's peers and model.

It is how agents whose tools and model are fixed once they are built, such as compiled graphs, are given peers and
are pointed at another model:

    @agent_factory
    def build(build: BuildContext):
        model = ChatOpenAI(base_url=build.model.base_url, ...) if build.model else ChatOpenAI(...)
        return create_agent(model, tools=[as_tool(peer) for peer in build.tools])

What has to outlive a turn, such as a checkpointer, is made outside of the function.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar

from agent_env_wrappers.contract import (
    AgentError,
    AgentInfo,
    BuildContext,
    Event,
    ModelRoute,
    PeerTool,
    Turn,
    WrapError,
    Wrapper,
)
from agent_env_wrappers.registry import wrap


class Factory:
    """A function that builds an agent; `fn(build)` may be async, and is called in the event loop."""

    def __init__(self, fn: Callable[[BuildContext], Any]) -> None:
        self.fn = fn

    def __call__(self, build: BuildContext) -> Any:
        """Builds an agent, as the function does."""
        return self.fn(build)


def agent_factory(fn: Callable[[BuildContext], Any]) -> Factory:
    """Marks a function as a factory, so that it is not taken for an agent itself."""
    return Factory(fn)


class FactoryWrapper:
    """Builds an agent for each turn and plays the turn with the wrapper that fits it.

    What the function reads of its `BuildContext` is its own affair; peers or a model that it does not read go on to
    the built agent's wrapper, which takes them or refuses. So they are never lost in silence.
    """

    framework: ClassVar[str] = "factory"

    def __init__(self, agent: Factory | Callable[[BuildContext], Any]) -> None:
        self._factory = agent if isinstance(agent, Factory) else Factory(agent)
        self._wrapped: Wrapper | None = None
        self._built: type[Any] = object

    @classmethod
    def match(cls, agent: object) -> int:
        """200 for factories, marked or told by their only parameter, which is annotated `BuildContext`."""
        return 200 if isinstance(agent, Factory) or _takes_build(agent) else 0

    async def describe(self) -> AgentInfo:
        """Builds an agent without peers and model, and describes that."""
        inner, read = await self._build()
        try:
            info = await inner.describe()
        finally:
            await inner.aclose()
        caps = dataclasses.replace(
            info.caps,
            tools="turn" if "tools" in read or info.caps.tools == "turn" else "none",
            model="turn" if "model" in read or info.caps.model == "turn" else "none",
        )
        fn: Any = self._factory.fn
        return dataclasses.replace(
            info,
            caps=caps,
            name=info.name or getattr(fn, "__name__", None),
            description=info.description or (inspect.getdoc(fn) or "").partition("\n\n")[0],
        )

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        """Builds an agent with the turn's peers and model, and plays the turn with it."""
        inner, read = await self._build(turn.tools, turn.model, turn.conversation_id)
        left = dataclasses.replace(
            turn, tools=() if "tools" in read else turn.tools, model=None if "model" in read else turn.model
        )
        try:
            turn_of_inner: Any = inner.run(left)
            async with aclosing(turn_of_inner) as events:
                async for event in events:
                    yield event
        finally:
            await inner.aclose()

    async def aclose(self) -> None:
        """Frees nothing: what was built for a turn is freed with it."""

    async def fork(self, state: Any) -> Any:
        """Copies a conversation: the built agent's way if it has one, else the value."""
        inner, _ = await self._build()
        try:
            fork = getattr(inner, "fork", None)
            return copy.deepcopy(state) if fork is None else await fork(state)
        finally:
            await inner.aclose()

    async def release(self, state: Any) -> None:
        """Lets the built agent free what a handle names; for a value there is nothing to free."""
        inner, _ = await self._build()
        try:
            release = getattr(inner, "release", None)
            if release is not None:
                await release(state)
        finally:
            await inner.aclose()

    async def _build(
        self, tools: Sequence[PeerTool] = (), model: ModelRoute | None = None, conversation_id: str = ""
    ) -> tuple[Wrapper, frozenset[str]]:
        """The wrapper of a new agent, and which of "tools" and "model" the function has read."""
        build = _Watched(tools, model, conversation_id)
        try:
            agent = self._factory(build)
            if inspect.isawaitable(agent):
                agent = await agent
        except (AgentError, WrapError):
            raise
        except Exception as error:
            raise AgentError(f"the factory raised {type(error).__name__}") from error
        if agent is None:
            raise WrapError("the factory returned None; return the agent that it builds")
        return self._wrap(agent), frozenset(build.read)

    def _wrap(self, agent: object) -> Wrapper:
        """Wraps what was built; the wrapper that fitted the last one is tried first, since the search takes a while."""
        last: Any = type(self._wrapped)
        if self._wrapped is not None and type(agent) is self._built and last.match(agent):
            wrapped: Wrapper = last(agent)
        else:
            wrapped = wrap(agent)
        # An agent that is a wrapper itself is not made anew from itself.
        self._wrapped, self._built = (None if wrapped is agent else wrapped), type(agent)
        return wrapped


def _takes_build(agent: object) -> bool:
    function: Any = agent.func if isinstance(agent, partial) else agent
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        return False
    annotations = [parameter.annotation for parameter in inspect.signature(function).parameters.values()]
    return len(annotations) == 1 and (annotations[0] is BuildContext or str(annotations[0]).endswith("BuildContext"))


class _Watched(BuildContext):
    """A `BuildContext` that notes which of its peers and model are read."""

    __slots__ = ("read",)
    read: set[str]

    def __init__(self, tools: Sequence[PeerTool], model: ModelRoute | None, conversation_id: str) -> None:
        object.__setattr__(self, "read", set())
        super().__init__(tools, model, conversation_id)

    def __getattribute__(self, name: str) -> Any:
        if name in ("tools", "model"):
            object.__getattribute__(self, "read").add(name)
        return object.__getattribute__(self, name)
