"""`Environment`: another agent, as a caller sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from agent_env.client import calls
from agent_env.client.lanes.contract import OnEvent
from agent_env.client.resolution import LaneName, Reached, Seated, reach
from agent_env.errors import AgentEnvError, DeadlineExceeded, ProtocolError, TransportError, UnknownSession
from agent_env.net.keyring import Keyring
from agent_env.runtime.results import ResetResult, StepResult, ToolResult
from agent_env_cards import EnvironmentCard
from agent_env_wrappers.contract import Event

if TYPE_CHECKING:
    from agent_env.client.sync import SyncEnvironment

log = logging.getLogger("agent_env.client")

_AHEAD = 64
"""How many events of a stream may wait for whoever reads it."""


class Environment:
    """One conversation with an environment.

    `ref` is a reference to the hub (`"name@1.0.0"`, `"name@^1"`, `"name"`, with `#sha256:…` to pin), an http(s) URL, a
    card with absolute addresses, or an agent or `AgentEnvironment` in this process. The fastest lane that both sides
    have is taken; `lane` forces one of "inprocess", "websocket", "mcp", "a2a", "http". `auth` is a bearer token
    (or a `Keyring`, which has one for each of several origins and names), `timeout` the seconds that one call may take, `hub` overrides the default hub, and `seat` names the place that the
    environment has in the team of a run.

    The session is opened by the first call and released at the end of the block; give `session_id` to go on with one
    that exists, which is then not released.

        async with Environment("agent-b@1.0.0") as agent_b:
            response = await agent_b.call_tool("chat", {"message": "Hello!"})
            print(response.text)

    Every method raises the errors of `agent_env.errors`, the same on every lane. A call that is refused at capacity is
    made again when the environment said so (`Retry-After`), twice at most.
    """

    def __init__(
        self,
        ref: object,
        *,
        session_id: str | None = None,
        lane: LaneName | None = None,
        auth: str | Keyring | None = None,
        timeout: float | None = 600.0,
        hub: str | Path | None = None,
        seat: str | None = None,
    ) -> None:
        self._ref = ref
        self._lane_name: LaneName | None = lane
        self._auth = auth
        self._timeout = timeout
        self._hub = hub
        self._seat = seat
        self._reached: Reached | None = None
        self._reaching = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._streams: set[asyncio.Task[ToolResult]] = set()
        self._own_session = session_id is None
        self.session_id = session_id
        self.afresh: Mapping[str, str] = {}

    @property
    def card(self) -> EnvironmentCard:
        """The environment's card; there is one after `initialize` or the first call."""
        if self._reached is None:
            raise AgentEnvError("the environment has not been reached yet; use `async with`, or await `initialize()`")
        return self._reached.card

    @property
    def lane(self) -> str:
        """The lane in use."""
        return "" if self._reached is None else self._reached.lane.name

    async def initialize(self) -> Self:
        """Finds the environment and reads its card; nothing is opened on the other side yet."""
        await self._reach()
        return self

    async def release(self) -> None:
        """Releases the session that this object opened, and lets go of the connection."""
        await self._end_streams()
        reached, self._reached = self._reached, None
        if reached is None:
            return
        session_id = self.session_id
        try:
            if session_id is not None and self._own_session:
                self.session_id = None
                # Bounded, since a peer that hangs must not hold up who says goodbye.
                await calls.call(
                    reached.lane,
                    "release",
                    {"session_id": session_id},
                    seconds=10.0,
                    callee=reached.identity,
                    seat=self._seat,
                    trusted=False,
                )
        except UnknownSession:
            pass  # it was released or reaped already, which is what was wanted
        finally:
            await reached.aclose()

    def keep_session(self) -> str | None:
        """Leaves the session open after `release` and returns its id, for another object or process to go on with."""
        self._own_session = False
        return self.session_id

    async def __aenter__(self) -> Self:
        return await self.initialize()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except AgentEnvError as failure:
            # What broke the block is what the caller must see. And all that a lost connection leaves to do is done by
            # the other side, which reaps the session by itself.
            if error is None and not isinstance(failure, TransportError | DeadlineExceeded):
                raise
            log.info("the session with %s was not released: %s", self._ref, failure)

    # ── tools ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_tools(self) -> list[dict[str, Any]]:
        """The tools of the environment: name, description, inputSchema, outputSchema."""
        return list((await self._call("list_tools", {}))["tools"])

    async def list_openai_tools(self) -> list[dict[str, Any]]:
        """The same tools in the form that OpenAI's chat completions take."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool["description"],
                    "parameters": tool["inputSchema"],
                },
            }
            for tool in await self.list_tools()
        ]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_event: OnEvent | None = None,
    ) -> ToolResult:
        """Calls a tool in this conversation; `on_event` gets the events of the turn as they come."""
        wire = await self._in_session(
            "call_tool", {"name": name, "arguments": dict(arguments or {})}, timeout=timeout, on_event=on_event
        )
        return ToolResult.from_json(wire)

    async def chat(self, message: str, *, timeout: float | None = None) -> ToolResult:
        """Says something; the same as the tool `chat`."""
        return await self.call_tool("chat", {"message": message}, timeout=timeout)

    async def stream(self, message: str, *, timeout: float | None = None) -> AsyncGenerator[Event | ToolResult, None]:
        """Says something and yields the events of the turn, then its `ToolResult`; closing it cancels the turn."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        room = asyncio.Semaphore(_AHEAD)

        async def on_event(event: Event) -> None:
            await room.acquire()
            queue.put_nowait(event)

        task = asyncio.create_task(self.call_tool("chat", {"message": message}, timeout=timeout, on_event=on_event))
        # The end needs no room, so that it comes whoever ends the turn.
        task.add_done_callback(lambda _: queue.put_nowait(None))
        self._streams.add(task)
        try:
            while (event := await queue.get()) is not None:
                room.release()
                yield event
            yield await task
        finally:
            self._streams.discard(task)
            task.cancel()
            await _ended({task})

    # ── episodes ───────────────────────────────────────────────────────────────────────────────────────────────

    async def reset(self, *, seed: int | None = None, options: Any = None) -> ResetResult:
        """Starts an episode: the conversation is forgotten, and its first observation returned."""
        wire = await self._in_session("reset", {"seed": seed, "options": options})
        return ResetResult.from_json(wire)

    async def step(self, action: Any, *, timeout: float | None = None) -> StepResult:
        """Takes one step; a string is a chat turn, `{"tool", "arguments"}` calls that tool."""
        return StepResult.from_json(await self._in_session("step", {"action": action}, timeout=timeout))

    async def state(self) -> Mapping[str, Any]:
        """Where the session stands: turns, messages, whether it ended, and what it waits for."""
        return await self._call("state", {"session_id": self._session()})

    async def call_function(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Calls a function of the environment and returns its result."""
        fields: dict[str, Any] = {"name": name, "arguments": dict(arguments or {})}
        if self.session_id is not None:
            fields["session_id"] = self.session_id
        return (await self._call("call_function", fields))["result"]

    async def call_reward(self, name: str, arguments: Mapping[str, Any] | None = None) -> float | None:
        """Scores the session as it stands; None where the reward gives nothing."""
        fields = {"name": name, "arguments": dict(arguments or {}), "session_id": self._session()}
        value: float | None = (await self._call("call_reward", fields))["value"]
        return value

    async def fork(self) -> Environment:
        """Copies the conversation into a session of its own, which the new object owns.

        Its `afresh` has the seats whose peers could not copy what they remember, each with why.
        """
        wire = await self._call("fork", {"session_id": self._session()})
        copy = self._like(self._ref, self._seat)
        copy.session_id = wire["session_id"]
        copy.afresh = wire.get("afresh") or {}
        copy._reached = await (await self._reach()).again()
        return copy

    def seated(self, seat: str, *, auth: str | Keyring | None = None) -> Environment:
        """Another conversation with the same environment, as the peer that an owner seats under this name.

        `auth` is for one that has none of its own.
        """
        seated = self._like(Seated(self._ref), seat)
        seated._auth = auth if self._auth is None else self._auth
        return seated

    def sync(self) -> SyncEnvironment:
        """The same object for code without an event loop: `with Environment(ref).sync() as env: env.chat("Hi")`."""
        from agent_env.client.sync import SyncEnvironment

        return SyncEnvironment(self)

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _like(self, ref: object, seat: str | None) -> Environment:
        return Environment(ref, lane=self._lane_name, auth=self._auth, timeout=self._timeout, hub=self._hub, seat=seat)

    async def _end_streams(self) -> None:
        """Cancels the turns whose streams were left before their end: the session would wait for them."""
        tasks, self._streams = self._streams, set()
        for task in tasks:
            task.cancel()
        await _ended(tasks)

    def _session(self) -> str:
        if self.session_id is None:
            raise UnknownSession("there is no session yet; it is opened by the first call of a tool, reset or step")
        return self.session_id

    async def _reach(self) -> Reached:
        if self._reached is not None:
            return self._reached
        async with self._reaching:
            if self._reached is None:
                self._reached = await reach(
                    self._ref, lane=self._lane_name, token=self._auth, hub=self._hub, seconds=self._timeout
                )
            return self._reached

    async def _in_session(
        self,
        verb: str,
        arguments: dict[str, Any],
        *,
        timeout: float | None = None,
        on_event: OnEvent | None = None,
    ) -> Mapping[str, Any]:
        """Calls a verb that opens a session if there is none; two first calls at once share one session."""
        if self.session_id is None:
            async with self._opening:
                if self.session_id is None:
                    wire = await self._call(verb, arguments, timeout=timeout, on_event=on_event)
                    self.session_id = wire.get("session_id") or None
                    return wire
        arguments["session_id"] = self.session_id
        return await self._call(verb, arguments, timeout=timeout, on_event=on_event)

    async def _call(
        self,
        verb: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        on_event: OnEvent | None = None,
    ) -> Mapping[str, Any]:
        reached = await self._reach()
        try:
            return await calls.call(
                reached.lane,
                verb,
                arguments,
                seconds=self._timeout if timeout is None else timeout,
                callee=reached.identity,
                seat=self._seat,
                trusted=reached.trusted,
                on_event=on_event,
            )
        except (TransportError, ProtocolError):
            # The next one who asks must not be sent to the same place.
            if reached.lost is not None:
                await reached.lost()
            if self.session_id is None and self._reached is reached:
                # There is nothing to lose here, so the next call may look elsewhere.
                self._reached = None
                await reached.aclose()
            raise


async def _ended(tasks: set[asyncio.Task[ToolResult]]) -> None:
    """Waits for cancelled tasks; nobody asks for what they still raise."""
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
