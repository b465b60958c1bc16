"""`AgentEnvironment`: an agent as an environment, ready to be called in process, mounted, or served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from starlette.types import ASGIApp

from agent_env.context import Recorder
from agent_env.errors import ConfigurationError
from agent_env.net import Keyring, Limits, OutwardGuard, Tokens, bound_url, check_binding, is_loopback, listen
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
from agent_env.serving.interfaces import interfaces
from agent_env.serving.lifespan import lazily
from agent_env.serving.options import HubTarget
from agent_env.serving.peers import peer_source
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
from agent_env_cards.names import seat_fault, tool_fault

if TYPE_CHECKING:
    from agent_env.serving.server import Server

F = TypeVar("F", bound=Callable[..., Any])


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
    | `peers` | peers that are named instead of paired: seat to reference, URL, card, agent, or an `Environment` with its `auth` |
    | `peer_auth` | the tokens of peers: origin, environment's name in the hub, or seat of `peers` to token; see `Keyring` |
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
        peer_auth: Keyring | Mapping[str, str] | None = None,
        auth: Tokens | Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        hub: HubTarget = None,
        recorder: Recorder | None = None,
        provider: Provider | None = None,
        license: str | None = None,
        wrapper: str | type[Any] | None = None,
    ) -> None:
        self._runtime: Runtime | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = asyncio.Lock()
        self._servers = 0
        self._agent = agent
        self._hub: HubTarget = hub
        self._peers = dict(peers or {})
        self._peer_auth = peer_auth if isinstance(peer_auth, Keyring) else Keyring(peer_auth)
        self._recorder = recorder
        self._provider = provider
        self._license = license
        self._tokens = auth if auth is None or isinstance(auth, Tokens) else Tokens(auth)
        if version is not None:
            _check_version(version)
        faults = [] if name is None else [name_fault(name)]
        for fault in (*faults, *map(seat_fault, self._peers)):
            if fault is not None:
                raise ConfigurationError(fault)
        needs = tuple(needs)
        for need in needs:
            if not isinstance(need, Need):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"a need is a Need, not {need!r:.100}; write Need('solver', skills=[…])")
        self._definition = Definition(
            name or "",
            version or DRAFT_VERSION,
            wrapped(agent, wrapper),
            description=description,
            limits=limits or Limits(),
            needs=needs,
            offers=offers or _offer(skills, tags, examples),
        )
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
        self._refuse_when_running("on_reset")
        self._definition.on_reset = declared
        return function

    def add_peer_auth(self, tokens: Keyring | Mapping[str, str]) -> None:
        """Adds tokens for peers, as `peer_auth` takes them: whoever serves an environment may have some that its code
        has not. Of two for the same peer the added one counts."""
        self._refuse_when_running("tokens")
        self._peer_auth = self._peer_auth.with_others(tokens if isinstance(tokens, Keyring) else Keyring(tokens))

    def _add(
        self, known: dict[str, Declared], kind: str, function: Any, *, name: str | None, weight: float = 1.0
    ) -> Any:
        if function is None:
            return partial(self._add, known, kind, name=name, weight=weight)
        declared = declare(function, name=name, weight=weight)
        if fault := tool_fault(declared.name, kind):
            raise ConfigurationError(f"{fault}; pass name=…")
        if declared.name in known or (kind == "tool" and declared.name == "chat"):
            raise ConfigurationError(
                f"there is a {kind} {declared.name!r} already; pass name=… to give this one another"
            )
        if kind == "reward":
            _without_arguments(declared, kind)
        self._refuse_when_running(kind)
        known[declared.name] = declared
        return function

    def _refuse_when_running(self, kind: str) -> None:
        if self._runtime is not None:
            raise ConfigurationError(
                f"the environment runs already, and its card is out; add the {kind} before its first use"
            )

    # ── what it becomes ────────────────────────────────────────────────────────────────────────────────────────

    async def runtime(self) -> Runtime:
        """The running environment, started at the first call; `aclose` ends it.

        It belongs to the event loop that it was started in. Raises `ConfigurationError` in another one, for an agent
        without a name, and for facts that no card may have.
        """
        self._enter_loop()
        if self._runtime is None:
            async with self._starting:
                if self._runtime is None:
                    self._runtime = await self._start()
        return self._runtime

    def _enter_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._runtime is not None and self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise ConfigurationError(
                    f"{self._definition.identity} runs in another event loop; reach it by its URL or its reference"
                )
            # Its sessions ended with the loop that they lived in.
            self._runtime = None
            self._starting = asyncio.Lock()
            self._servers = 0
        self._loop = loop

    async def _start(self) -> Runtime:
        definition = self._definition
        info = await definition.wrapper.describe()
        if not definition.name:
            definition.name = name_of(self._agent, info)
        definition.description = definition.description or info.description
        peers = peer_source(
            definition, self._peers, auth=self._peer_auth, hub=self._hub, card=lambda: own_card(runtime)
        )
        runtime = Runtime(definition, info, peers=peers)
        try:
            own_card(runtime).to_dict()
        except CardError as error:
            raise ConfigurationError(f"{definition.identity} cannot be an environment as it is: {error}") from None
        return runtime

    async def card(self) -> EnvironmentCard:
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

    def app(
        self,
        *,
        public_url: str | None = None,
        trusted_proxies: Collection[str] = (),
        local: bool = False,
        insecure: bool = False,
    ) -> ASGIApp:
        """The ASGI app with every face, for a server of your own; it starts and stops with the server's lifespan.

        `public_url` is the address that clients use, where neither the Host header nor one of `trusted_proxies`
        (addresses; loopback by default) tells it. Without tokens the app answers this machine alone, unless
        `insecure`, and only loopback callers may bring a run. `local` says that the server listens on loopback alone:
        then the gateway of a run may be on this machine too.
        """
        address = PublicAddress(public_url or "http://127.0.0.1", public_url, trusted_proxies)

        async def build() -> ASGIApp:
            app = await self._build(address, OutwardGuard(local=local), insecure)
            self._servers += 1
            return app

        return lazily(build, self._leave)

    async def _build(self, address: PublicAddress, guard: OutwardGuard, insecure: bool) -> ASGIApp:
        # The faces bring the SDKs of their protocols, which an environment that is only called in process never needs.
        from agent_env.serving.app import build_app

        access = Access(self._tokens, self._recorder, guard, insecure)
        return build_app(await self.runtime(), await self.card(), access, address)

    @asynccontextmanager
    async def serving(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        public_url: str | None = None,
        trusted_proxies: Collection[str] = (),
        register: bool = True,
        insecure: bool = False,
        source: str | None = None,
        launch_id: str | None = None,
    ) -> AsyncGenerator[Server]:
        """Serves inside a program until the block ends; port 0 takes a free one.

        Registers in the hub and keeps the lease, unless `register` is False or the environment has `hub=False`.
        `public_url` and `trusted_proxies` are as in `app`. Raises `ConfigurationError` for a port that is taken, or a
        host beyond loopback without tokens.
        """
        from agent_env.serving.server import Server, serve

        check_binding(host, self._tokens, insecure=insecure)
        with listen(host, port) as listener:
            fallback = bound_url(listener)
            address = PublicAddress(fallback, public_url, trusted_proxies)
            app = await self._build(address, OutwardGuard(local=is_loopback(host)), insecure)
            server = Server((public_url or fallback).rstrip("/"), fallback, await self.card(), await self.runtime())
            self._servers += 1
            try:
                async with serve(
                    app,
                    listener,
                    server,
                    register=register and not isinstance(self._hub, bool),
                    hub=None if isinstance(self._hub, bool) else self._hub,
                    source=source,
                    launch_id=launch_id,
                ):
                    yield server
            finally:
                await self._leave()

    async def _leave(self) -> None:
        """Ends what the last server leaves behind."""
        self._servers -= 1
        if self._servers <= 0:
            self._servers = 0
            await self.aclose()

    async def aclose(self) -> None:
        """Ends all sessions; the agent stays, and the environment can be started again."""
        async with self._starting:
            runtime, self._runtime = self._runtime, None
            if runtime is not None:
                await runtime.aclose()


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
