"""TRL `GRPOTrainer` by `environment_factory`: a class whose public methods are the tools of served agents.

TRL itself is the agent here: it gives the tools to the model, calls what the model asks for and goes on. It calls the
tools of different rollouts one after another, so for agents that take their time there is `trl_rollout_func`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from anyio.from_thread import BlockingPortal, start_blocking_portal

from agent_env.client.environment import Environment
from agent_env.errors import (
    AgentEnvError,
    ConfigurationError,
    InvalidArguments,
    MessageTooLarge,
    UnknownTool,
    UnsupportedContent,
)
from agent_env.training.exports.trl_tools import Tool, method_of, tool_of

log = logging.getLogger("agent_env.training")

Observe: TypeAlias = Callable[[Mapping[str, Any]], "str | None"]
Reward: TypeAlias = Callable[[Any], "float | None"]

_GOODBYE_SECONDS = 15.0
_MISTAKES = (InvalidArguments, MessageTooLarge, UnknownTool, UnsupportedContent)
"""What is said of a call, and not of whoever was called."""


@dataclass(slots=True)
class ToolUse:
    """One call of a peer's tool: what it was asked, and what it replied, or why it did not."""

    peer: str
    tool: str
    arguments: Mapping[str, Any]
    reply: str | None = None
    error: AgentEnvError | None = None


@dataclass(slots=True)
class _Peers:
    """What all instances of a class share: an event loop, who the peers are, and goodbyes that are under way."""

    portal: BlockingPortal
    refs: Mapping[str, Environment]
    live: set[Environment] = field(default_factory=set[Environment])
    leaving: set[Future[None]] = field(default_factory=set[Future[None]])

    def open(self, peer: str) -> Environment:
        """A conversation with a peer that begins with its first call."""
        environment = self.refs[peer].seated(peer)
        self.live.add(environment)
        return environment

    def let_go(self, environments: Iterable[Environment]) -> None:
        """Releases conversations, without waiting for it."""
        gone = list(environments)
        self.live.difference_update(gone)
        if gone:
            left = self.portal.start_task_soon(_release, gone)
            self.leaving.add(left)
            left.add_done_callback(self.leaving.discard)


class PeerEnvironment:
    """One rollout: a conversation with each peer, opened when it is first asked and released at the next reset.

    `calls` are the calls so far, for reward functions: TRL gives them the environments of a batch as `environments`.
    Every public method of a class that `trl_environment` makes is a tool, but for `reset` and `get_reward`.
    """

    _peers: ClassVar[_Peers]
    _observe: ClassVar[Observe | None] = None

    def __init__(self) -> None:
        self.row: Mapping[str, Any] = {}
        self.calls: list[ToolUse] = []
        self._open: dict[str, tuple[Environment, asyncio.Lock]] = {}

    def reset(self, **row: Any) -> str | None:
        """Begins a rollout for a row of the data set; what is returned goes to the end of its prompt."""
        self._peers.let_go(environment for environment, _ in self._open.values())
        self._open = {}
        self.row, self.calls = row, []
        observe = type(self)._observe
        return None if observe is None else observe(row)

    @property
    def failed(self) -> bool:
        """Tells whether a peer did not answer; that a model asked for what a tool does not take is its own mistake."""
        return any(call.error is not None and not isinstance(call.error, _MISTAKES) for call in self.calls)

    async def _ask(self, peer: str, tool: Tool, given: Mapping[str, Any]) -> str:
        # The trainer waits in a thread, and maybe a loop, of its own.
        return await asyncio.wrap_future(self._peers.portal.start_task_soon(self._use, peer, tool, given))

    async def _use(self, peer: str, tool: Tool, given: Mapping[str, Any]) -> str:
        if peer not in self._open:
            self._open[peer] = self._peers.open(peer), asyncio.Lock()
        environment, lock = self._open[peer]
        use = ToolUse(peer, tool.name, tool.arguments(given))
        self.calls.append(use)
        try:
            # A model may ask one peer twice in a message; a conversation has one turn at a time.
            async with lock:
                result = await environment.call_tool(tool.name, use.arguments)
        except AgentEnvError as error:
            use.error = error
            log.warning("%s did not answer: %s", peer, error)
            raise
        use.reply = result.text or ("" if result.data is None else json.dumps(result.data, ensure_ascii=False))
        return use.reply


@contextmanager
def trl_environment(
    peers: Mapping[str, object],
    *,
    observe: Observe | None = None,
    reward: Reward | None = None,
    name: str = "AgentEnvironment",
    auth: str | None = None,
    timeout: float | None = 600.0,
    hub: str | Path | None = None,
) -> Generator[type[PeerEnvironment]]:
    """Makes the class for `GRPOTrainer(environment_factory=…)`, usable while the block runs.

        peers = {"ann": "specialist-ann@1.0.0", "bob": "specialist-bob@1.0.0"}
        with trl_environment(peers, reward=lambda env: float(len(env.calls) == 1)) as Desk:
            GRPOTrainer(model, environment_factory=Desk, train_dataset=rows, …).train()

    `peers` are what `Environment(…)` takes, or `Environment`s, by the names that the model calls them by. The tool
    `chat` of a peer is a method of the peer's name, any other tool `<peer>_<tool>`; type hints and Google docstrings,
    which TRL makes the tools' schemas of, come from the peers' cards. `observe(row)` is what is added to the prompt of a
    row. `reward(environment)` scores a rollout by what was called; one in which a peer did not answer has no reward, and
    TRL leaves it out. Without it there is no `get_reward`, and `reward_funcs` score, by the completions.

    The methods are async, so TRL makes the calls of one message together. Raises the error of a peer that cannot be
    reached, and `ConfigurationError` for tools that cannot be methods.
    """
    if not peers:
        raise ConfigurationError("an environment needs peers whose tools the model can call; give {name: reference}")
    with start_blocking_portal(name="agent-env-peers") as portal:
        refs = {
            peer: ref if isinstance(ref, Environment) else Environment(ref, auth=auth, timeout=timeout, hub=hub)
            for peer, ref in peers.items()
        }
        shared = _Peers(portal, refs)
        made = type(name, (PeerEnvironment,), {"_peers": shared, **_members(portal, refs, observe, reward)})
        try:
            yield made
        finally:
            shared.let_go(shared.live)
            wait(set(shared.leaving), timeout=_GOODBYE_SECONDS)


def _members(
    portal: BlockingPortal, refs: Mapping[str, Environment], observe: Observe | None, reward: Reward | None
) -> dict[str, Any]:
    """What the class has of its own: a method a tool, and what observes and scores."""
    members: dict[str, Any] = {"_observe": None if observe is None else staticmethod(observe)}
    if reward is not None:
        members["get_reward"] = _scoring(reward)
    for peer, environment in refs.items():
        for tool in portal.call(_tools, peer, environment):
            if tool.function in members or hasattr(PeerEnvironment, tool.function):
                raise ConfigurationError(
                    f"the tool {tool.name!r} of {peer!r} cannot be called {tool.function!r}, which there is already; "
                    "name the peer otherwise"
                )
            members[tool.function] = _asking(peer, tool)
    return members


async def _tools(peer: str, environment: Environment) -> list[Tool]:
    async with environment:
        about = environment.card.description or ""
        return [tool_of(peer, told, about) for told in await environment.list_tools()]


def _asking(peer: str, tool: Tool) -> Any:
    async def ask(self: PeerEnvironment, given: Mapping[str, Any]) -> str:
        return await self._ask(peer, tool, given)  # pyright: ignore[reportPrivateUsage]

    return method_of(tool, ask)


def _scoring(reward: Reward) -> Callable[[PeerEnvironment], float | None]:
    def get_reward(self: PeerEnvironment) -> float | None:
        return None if self.failed else reward(self)

    return get_reward


async def _release(environments: Sequence[Environment]) -> None:
    ended = await asyncio.gather(*(one.release() for one in environments), return_exceptions=True)
    for error in ended:
        if error is not None:
            log.info("a conversation was not released: %s", error)
