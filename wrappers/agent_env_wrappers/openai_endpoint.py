"""A chat-completions endpoint as an agent: a URL and the name of a model, and optionally what it is told first.

    serve_agent_as_env(OpenAIEndpoint("http://127.0.0.1:8000/v1", "my-model", system="You solve puzzles."))
    serve_agent_as_env("openai:http://127.0.0.1:8000/v1#my-model", name="solver")

The model is given peers as tools, and their calls are made here, in a loop that ends with its answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from agent_env_wrappers.answers import refuse_answers
from agent_env_wrappers.chat_completions import Completion, read
from agent_env_wrappers.contract import (
    AgentError,
    AgentInfo,
    Caps,
    Done,
    Event,
    Json,
    ModelCall,
    ModelRoute,
    PeerTool,
    StopReason,
    TextDelta,
    ToolCall,
    ToolReturn,
    Turn,
    Usage,
    WrapError,
)
from agent_env_wrappers.parts import refuse_files
from agent_env_wrappers.peers import PeerReply, arguments_of, ask
from agent_env_wrappers.retries import Tries
from agent_env_wrappers.versions import installed

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

SCHEME = "openai:"
STOPS: Mapping[str | None, StopReason] = {"length": "max_tokens", "content_filter": "refusal"}


@dataclass(frozen=True, slots=True)
class OpenAIEndpoint:
    """Where a model answers chat completions, and how it is asked.

    `url` ends where `/chat/completions` begins. `options` are further fields of the request (`temperature`...).
    With `stream=False` replies come whole, which is cheaper where nobody watches. `max_steps` bounds the requests of
    one turn where the turn itself does not. A request that is refused because the model is busy, or that nobody
    answers, is made again up to `max_retries` times within the turn's time, as the openai SDK does it.
    """

    url: str
    model: str
    api_key: str = field(default="", repr=False)
    system: str | None = None
    name: str | None = None
    description: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    options: Mapping[str, Json] = field(default_factory=dict[str, Json])
    stream: bool = True
    max_steps: int = 16
    max_retries: int = 2

    @classmethod
    def parse(cls, text: str) -> OpenAIEndpoint:
        """Reads `openai:URL#model`; raises `WrapError` when it is something else."""
        url, mark, model = text.removeprefix(SCHEME).partition("#")
        if not (text.startswith(SCHEME) and url.startswith(("http://", "https://")) and mark and model):
            raise WrapError(f"{text!r} names no endpoint; write 'openai:http://host:port/v1#model'")
        return cls(url, model)


class OpenAIEndpointWrapper:
    """Drives a chat-completions endpoint; the conversation is the list of messages, as a value."""

    framework: ClassVar[str] = "openai-endpoint"

    def __init__(self, agent: OpenAIEndpoint | str) -> None:
        self._endpoint = OpenAIEndpoint.parse(agent) if isinstance(agent, str) else agent
        self._session: ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def match(cls, agent: object) -> int:
        """100 for endpoints and for texts that begin with "openai:"."""
        return 100 if isinstance(agent, OpenAIEndpoint) or (isinstance(agent, str) and agent.startswith(SCHEME)) else 0

    @classmethod
    def probe(cls) -> str:
        """Names the version of the HTTP client, or says how to install it."""
        return installed("aiohttp", install="aiohttp", least=(3, 11))

    async def describe(self) -> AgentInfo:
        """Describes the endpoint by what it was made with."""
        endpoint = self._endpoint
        caps = Caps(
            streaming=endpoint.stream,
            tool_events=True,
            usage=True,
            state="value",
            fork=True,
            tools="turn",
            model="turn",
            parts=frozenset({"text", "data"}),
        )
        return AgentInfo(
            framework=self.framework,
            caps=caps,
            name=endpoint.name or endpoint.model,
            description=endpoint.description,
            instructions=endpoint.system,
        )

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        """Asks the model until it answers without calling a peer."""
        refuse_files(turn, self.framework)
        refuse_answers(turn)
        messages: list[Json] = [*(turn.state or {}).get("messages", ())]
        messages.append({"role": "user", "content": turn.message.prompt})
        usage: Usage | None = None
        bound = turn.limits.steps or self._endpoint.max_steps
        until = None if turn.limits.seconds is None else time.monotonic() + turn.limits.seconds
        for _ in range(bound):
            completion = Completion()
            async with aclosing(self._ask(messages, turn, completion, until)) as events:
                async for event in events:
                    yield event
            used = completion.usage
            usage = usage + used if usage and used else usage or used
            yield ModelCall(completion.model, used or Usage(requests=1), completion.finish_reason)
            messages.append(completion.message)
            if not completion.calls:
                stop = STOPS.get(completion.finish_reason, "end_turn")
                yield Done(completion.text, state={"messages": messages}, usage=usage, stop=stop)
                return
            calls = completion.calls
            for call in calls:
                yield ToolCall(call["id"], call["name"], arguments_of(call["arguments"]))
            replies = await asyncio.gather(*(_call(turn.tools, call) for call in calls))
            for call, reply in zip(calls, replies, strict=True):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": reply.text})
                yield ToolReturn(call["id"], reply.text, reply.is_error)
        raise AgentError(f"the agent asked its model {bound} times in one turn and has no answer", kind="limit")

    async def aclose(self) -> None:
        """Closes the connections, if they are this loop's."""
        if self._session is not None and self._loop is asyncio.get_running_loop():
            await self._session.close()
        self._session = None

    async def _ask(
        self, messages: list[Json], turn: Turn, completion: Completion, until: float | None
    ) -> AsyncGenerator[TextDelta]:
        """Makes one request and reads its reply into `completion`; raises `AgentError` of kind "model"."""
        from aiohttp import ClientError

        endpoint = self._endpoint
        route = turn.model or ModelRoute(endpoint.url, endpoint.model, endpoint.api_key, headers=endpoint.headers)
        request = self._request(messages, turn.tools, route.model)
        try:
            response = await self._send(route, request, Tries(endpoint.max_retries, until))
            async with response, aclosing(read(response, completion)) as deltas:
                async for delta in deltas:
                    yield delta
        except (ClientError, OSError) as error:
            name = type(error).__name__
            raise AgentError(f"the agent's model cannot be reached ({name})", kind="model", retryable=True) from error

    async def _send(self, route: ModelRoute, request: Mapping[str, Json], tries: Tries) -> ClientResponse:
        """Sends a request until it is answered or there are no more tries; returns the last answer, its body unread."""
        from aiohttp import ClientConnectionError

        headers = {**({"Authorization": f"Bearer {route.api_key}"} if route.api_key else {}), **route.headers}
        while True:
            try:
                response = await self._client().post(
                    f"{route.base_url.rstrip('/')}/chat/completions",
                    json=request,
                    headers={**headers, **tries.mark},
                    allow_redirects=False,
                )
            except (ClientConnectionError, OSError):
                pause = tries.unanswered()
                if pause is None:
                    raise
            else:
                pause = tries.after(response.status, response.headers)
                if pause is None:
                    return response
                response.release()
            await asyncio.sleep(pause)

    def _request(self, messages: list[Json], tools: Sequence[PeerTool], model: str) -> dict[str, Json]:
        endpoint = self._endpoint
        first = [{"role": "system", "content": endpoint.system}] if endpoint.system else []
        request: dict[str, Json] = {**endpoint.options, "model": model, "messages": [*first, *messages]}
        if tools:
            request["tools"] = [{"type": "function", "function": _function(tool)} for tool in tools]
        if endpoint.stream:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        return request

    def _client(self) -> ClientSession:
        """The session of the running loop, without a bound on connections: a model may itself wait for a turn."""
        from aiohttp import ClientSession, ClientTimeout, TCPConnector

        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            timeout = ClientTimeout(total=None, sock_connect=30)
            self._session = ClientSession(connector=TCPConnector(limit=0), timeout=timeout)
            self._loop = loop
        return self._session


def _function(tool: PeerTool) -> dict[str, Json]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


async def _call(tools: Sequence[PeerTool], call: Mapping[str, str]) -> PeerReply:
    tool = next((tool for tool in tools if tool.name == call["name"]), None)
    if tool is None:
        return PeerReply(f"there is no tool {call['name']!r}", is_error=True)
    return await ask(tool, call["arguments"])
