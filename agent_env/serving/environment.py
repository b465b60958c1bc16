"""`AgentEnvironment`: an agent as an environment, ready to be called in process, mounted, or served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from agent_env.context import Recorder
from agent_env.errors import ConfigurationError
from agent_env.net import Limits, OutwardGuard, Tokens, check_binding, is_loopback
from agent_env.runtime.caller import Caller
from agent_env.runtime.card import environment_card, own_card
from agent_env.runtime.declared import INJECTED, Declared, declare
from agent_env.runtime.definition import Definition
from agent_env.runtime.environment import Runtime
from agent_env.runtime.local import name_of, wrapped
from agent_env.runtime.results import ToolResult
from agent_env.runtime.turns import OnEvent
from agent_env.serving.access import Access
from agent_env.serving.address import PublicAddress
from agent_env.serving.app import ASGIApp, build_app, interfaces, lazily
from agent_env.serving.peers import peer_source
from agent_env.serving.server import Server, listen, serve
from agent_env_cards import (
    AGENT_CARD_PATH,
    DRAFT_VERSION,
    Auth,
    CardError,
    EnvironmentCard,
    Need,
    Offer,
    Provider,
    SampleRequest,
    Skill,
    name_fault,
    parse_version,
)

F = TypeVar("F", bound=Callable[..., Any])
HubTarget = str | Path | Literal[False] | None


class AgentEnvironment:
    """An agent as an environment.

        env = AgentEnvironment(my_agent, name="agent-b", version="1.0.0", skills=["math"])

        @env.reward
        def correct(session) -> float:
            return 1.0 if session.reply == "42" else 0.0

        async with env.serving() as server:      # or: app = env.app()
            print(server.url)

    | argument | meaning |
    |---|---|
    | `agent` | an object of a known framework, a callable, a factory, or a wrapper; it is never changed |
    | `name`, `version` | the agent's own name as a slug, and a draft, where they are not given |
    | `tools`, `functions`, `rewards` | plain functions; the decorators of the same names add more |
    | `skills`, `tags`, `examples`, or `offers` | what it offers to others; the matchmaker reads it |
    | `needs` | the peers that it needs; each is paired at a session's first turn |
    | `peers` | peers that are named instead of paired: seat to reference, URL, card, agent or environment |
    | `auth` | bearer tokens: a `Tokens`, or a mapping from token to scopes; none for loopback |
    | `limits` | bounds on sessions, turns, sizes and chains |
    | `hub` | where peers are looked up and the server registers: a path, a URL, False for nowhere |
    | `recorder` | takes the records of calls that belong to no run |
    | `wrapper` | the wrapper to use, where the choice is not to be left to the registry |

    Raises `ConfigurationError` when the agent cannot be wrapped or a name is malformed.
    """

    def __init__(
        self,
        agent: object,
        *,
        name: str | None = None,
        version: str | None = None,
        description: str = "",
        tools: Iterable[Callable[..., Any]] = (),
        functions: Iterable[Callable[..., Any]] = (),
        rewards: Iterable[Callable[..., Any]] = (),
        skills: Sequence[str | Skill] = (),
        tags: Sequence[str] = (),
        examples: Sequence[str | SampleRequest] = (),
        offers: Offer | None = None,
        needs: Sequence[Need] = (),
        peers: Mapping[str, object] | None = None,
        auth: Tokens | Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        hub: HubTarget = None,
        recorder: Recorder | None = None,
        provider: Provider | None = None,
        license: str | None = None,
        wrapper: str | type[Any] | None = None,
    ) -> None:
        self._runtime: Runtime | None = None
        self._starting = asyncio.Lock()
        self._agent = agent
        self._hub: HubTarget = hub
        self._peers = dict(peers or {})
        self._recorder = recorder
        self._provider = provider
        self._license = license
        self._tokens = auth if auth is None or isinstance(auth, Tokens) else Tokens(auth)
        if version is not None:
            _check_version(version)
        if name is not None and (fault := name_fault(name)):
            raise ConfigurationError(fault)
        self._definition = Definition(
            name or "",
            version or DRAFT_VERSION,
            wrapped(agent, wrapper),
            description=description,
            limits=limits or Limits(),
            needs=tuple(needs),
            offers=offers or _offer(skills, tags, examples),
        )
        seats = {need.seat for need in needs}
        unknown = sorted(self._peers.keys() - seats)
        # A peer that is named needs no need on the card; the agent gets it all the same.
        self._extra_seats = tuple(unknown)
        for function in tools:
            self.tool(function)
        for function in functions:
            self.function(function)
        for function in rewards:
            self.reward(function)

    # ── what the owner adds ────────────────────────────────────────────────────────────────────────────────────

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, *, name: str | None = None) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, *, name: str | None = None) -> Any:
        """Adds a tool that calling agents see beside `chat`; a parameter named `session` gets a `SessionView`."""
        return self._add(self._definition.tools, "tool", function, name=name)

    @overload
    def function(self, function: F, /) -> F: ...
    @overload
    def function(self, /, *, name: str | None = None) -> Callable[[F], F]: ...
    def function(self, function: Any = None, /, *, name: str | None = None) -> Any:
        """Adds a function for orchestrators: set up, inspect, grade; agents do not see it."""
        return self._add(self._definition.functions, "function", function, name=name)

    @overload
    def reward(self, function: F, /) -> F: ...
    @overload
    def reward(self, /, *, name: str | None = None, weight: float = 1.0) -> Callable[[F], F]: ...
    def reward(self, function: Any = None, /, *, name: str | None = None, weight: float = 1.0) -> Any:
        """Adds a reward: called after every turn with the `SessionView` as `session`; returns a number, None or a
        `Reward` that may end the episode."""
        return self._add(self._definition.rewards, "reward", function, name=name, weight=weight)

    def on_reset(self, function: F) -> F:
        """Sets what makes an episode's first observation, from the `SessionView` with its seed and options."""
        declared = declare(function, name="on_reset")
        _without_arguments(declared, "on_reset")
        self._definition.on_reset = declared
        return function

    def _add(
        self, known: dict[str, Declared], kind: str, function: Any, *, name: str | None, weight: float = 1.0
    ) -> Any:
        if function is None:
            return partial(self._add, known, kind, name=name, weight=weight)
        declared = declare(function, name=name, weight=weight)
        if declared.name in known or (kind == "tool" and declared.name == "chat"):
            raise ConfigurationError(
                f"there is a {kind} {declared.name!r} already; pass name=… to give this one another"
            )
        if kind == "reward":
            _without_arguments(declared, kind)
        if self._runtime is not None:
            raise ConfigurationError(
                f"the environment runs already, and its card is out; add the {kind} before its first use"
            )
        known[declared.name] = declared
        return function

    # ── what it becomes ────────────────────────────────────────────────────────────────────────────────────────

    async def runtime(self) -> Runtime:
        """The running environment, started at the first call; `aclose` ends it."""
        if self._runtime is None:
            async with self._starting:
                if self._runtime is None:
                    definition = self._definition
                    info = await definition.wrapper.describe()
                    if not definition.name:
                        definition.name = name_of(self._agent, info)
                    definition.description = definition.description or info.description
                    peers = peer_source(
                        definition, self._peers, hub=self._hub, card=lambda: own_card(self._started())
                    )
                    self._runtime = Runtime(definition, info, peers=peers)
        return self._runtime

    def _started(self) -> Runtime:
        assert self._runtime is not None
        return self._runtime

    async def card(self, *, url: str | None = None) -> EnvironmentCard:
        """The Environment Card; the same facts and digest whether it is served or not."""
        auth = None if self._tokens is None else Auth.bearer(["chat"])
        return environment_card(
            await self.runtime(),
            interfaces=interfaces(),
            auth=auth,
            agent_card=AGENT_CARD_PATH,
            provider=self._provider,
            license=self._license,
        )

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        session: str | None = None,
        caller: Caller | None = None,
        on_event: OnEvent | None = None,
    ) -> ToolResult:
        """Calls a tool directly; what every face does behind its protocol."""
        runtime = await self.runtime()
        return await runtime.call_tool(
            tool, arguments, session_id=session, caller=caller or Caller(recorder=self._recorder), on_event=on_event
        )

    def app(self, *, public_url: str | None = None, local: bool = False) -> ASGIApp:
        """The ASGI app with every face, for a server of your own; it starts and stops with the server's lifespan.

        Without tokens only loopback callers may bring a run. `public_url` is the address that clients use, where
        neither the Host header nor a trusted proxy tells it.
        """
        return lazily(lambda: self._build(public_url or "http://127.0.0.1", public_url, local), self.aclose)

    async def _build(self, fallback: str, public_url: str | None, local: bool) -> ASGIApp:
        access = Access(self._tokens, self._recorder, OutwardGuard(local=local))
        return build_app(await self.runtime(), await self.card(), access, PublicAddress(fallback, public_url))

    @asynccontextmanager
    async def serving(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        public_url: str | None = None,
        register: bool = True,
        insecure: bool = False,
        source: str | None = None,
        launch_id: str | None = None,
    ) -> AsyncGenerator[Server]:
        """Serves inside a program until the block ends; port 0 takes a free one.

        Registers in the hub and keeps the lease, unless `register` is False or the environment has `hub=False`.
        Raises `ConfigurationError` for a port that is taken, or a host beyond loopback without tokens.
        """
        check_binding(host, self._tokens, insecure=insecure)
        with listen(host, port) as socket:
            fallback = _address(host, socket.getsockname()[1])
            app = await self._build(fallback, public_url, is_loopback(host))
            runtime = await self.runtime()
            card = await self.card()
            url = (public_url or fallback).rstrip("/")
            hub = None if isinstance(self._hub, bool) else self._hub
            async with serve(
                app,
                socket,
                Server(url, fallback, card, runtime),
                register=register and not isinstance(self._hub, bool),
                hub=hub,
                source=source,
                launch_id=launch_id,
            ) as server:
                yield server
        await self.aclose()

    async def aclose(self) -> None:
        """Ends all sessions; the agent stays, and the environment can be started again."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.aclose()


def _address(host: str, port: int) -> str:
    # An unspecified address is where a server listens, never where a client finds it.
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name and not name.startswith('[') else name}:{port}"


def _offer(skills: Sequence[str | Skill], tags: Sequence[str], examples: Sequence[str | SampleRequest]) -> Offer | None:
    if not (skills or tags or examples):
        return None
    return Offer.model_validate({"skills": list(skills), "tags": list(tags), "examples": list(examples)})


def _check_version(version: str) -> None:
    try:
        parse_version(version)
    except (ValueError, CardError) as error:
        raise ConfigurationError(f"{error}; give a version such as '1.0.0'") from None


def _without_arguments(declared: Declared, kind: str) -> None:
    required = declared.parameters.get("required", [])
    if required:
        raise ConfigurationError(
            f"the {kind} {declared.name!r} needs {', '.join(map(repr, required))}, which nobody gives it; its only "
            f"parameter without a default may be {', '.join(map(repr, sorted(INJECTED)))}"
        )
