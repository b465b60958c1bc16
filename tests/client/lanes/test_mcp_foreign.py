"""The MCP lane with a server that knows nothing of environments."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
import pytest
import uvicorn
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ListToolsResult,
    ResourceLink,
    TextResourceContents,
    Tool,
)
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_env import Environment
from agent_env.client.lanes.contract import Outgoing
from agent_env.client.lanes.mcp import McpLane
from agent_env.client.lanes.mcp_foreign import message_name
from agent_env.context import CallContext
from agent_env.errors import (
    AgentEnvError,
    AgentFailed,
    DeadlineExceeded,
    InvalidArguments,
    NotSupported,
    ProtocolError,
    TransportError,
    UnknownTool,
)
from agent_env.net import listen
from agent_env_wrappers.contract import Event, Status

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def hosted(app: ASGIApp) -> AsyncGenerator[str]:
    with listen("127.0.0.1", 0) as socket:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [socket])
            try:
                yield f"http://127.0.0.1:{socket.getsockname()[1]}/mcp"
            finally:
                server.should_exit = True


@asynccontextmanager
async def lane_to(server: MCPServer | Server[Any]) -> AsyncGenerator[McpLane]:
    async with hosted(server.streamable_http_app()) as url:
        with anyio.fail_after(20):
            lane = McpLane(url)
            try:
                yield lane
            finally:
                await lane.aclose()


def outgoing(**fields: Any) -> Outgoing:
    return Outgoing(CallContext(**fields).within(20))


async def call(lane: McpLane, name: str, session_id: str | None = None, **arguments: Any) -> Any:
    session = {} if session_id is None else {"session_id": session_id}
    return await lane.perform("call_tool", {"name": name, "arguments": arguments, **session}, outgoing())


def tool(**properties: Any) -> Tool:
    required = [name for name, schema in properties.items() if "default" not in schema]
    return Tool(name="t", input_schema={"type": "object", "properties": properties, "required": required})


TEXT, NUMBER = {"type": "string"}, {"type": "number"}


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (tool(prompt=TEXT), "prompt"),
        (tool(query=TEXT, limit={**NUMBER, "default": 3}), "query"),
        (tool(text={"anyOf": [TEXT, {"type": "null"}]}), "text"),
        (tool(query=TEXT, limit=NUMBER), None),
        (tool(prompt=TEXT, input=TEXT), None),
        (tool(task=NUMBER), None),
        (tool(task={"default": 1}), None),
        (tool(), None),
        (Tool(name="t", input_schema={"type": "object"}), None),
        (Tool(name="t", input_schema={"type": "object", "properties": {"task": True}}), None),
    ],
)
def test_a_tool_is_like_chat_when_a_message_is_all_that_it_needs(found: Tool, name: str | None) -> None:
    assert message_name(found) == name


async def test_the_one_tool_that_takes_a_message_is_the_chat() -> None:
    server = MCPServer("foreign")

    @server.tool()
    async def ask(prompt: str, loud: bool = False) -> str:
        """Asks."""
        return prompt.upper() if loud else prompt

    @server.tool()
    async def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    async with lane_to(server) as lane:
        answer = await call(lane, "chat", message="hi", loud=True)
        assert answer["content"] == [{"type": "text", "text": "HI"}]
        assert (answer["text"], answer["data"], answer["is_error"], answer["session_id"]) == ("HI", None, False, "")
        assert (await call(lane, "chat", prompt="hi"))["text"] == "hi"
        assert (await call(lane, "ask", prompt="hi"))["text"] == "hi"
        assert (await call(lane, "add", a=1, b=2))["data"] == {"result": 3}
        with pytest.raises(InvalidArguments, match="it got 3"):
            await call(lane, "chat", message=3)
        listed = await lane.perform("list_tools", {}, outgoing())
        assert [entry["name"] for entry in listed["tools"]] == ["ask", "add"]
        assert listed["tools"][1]["inputSchema"]["required"] == ["a", "b"]
        assert listed["tools"][1]["outputSchema"]["properties"]["result"]["type"] == "integer"


async def test_a_tool_named_chat_comes_first_and_may_call_its_message_what_it_likes() -> None:
    server = MCPServer("foreign")

    @server.tool()
    async def search(query: str) -> str:
        return f"found {query}"

    @server.tool()
    async def chat(input: str) -> str:
        return f"said {input}"

    async with lane_to(server) as lane:
        assert (await call(lane, "chat", message="hi"))["text"] == "said hi"
        assert (await call(lane, "chat", input="hi"))["text"] == "said hi"


async def test_a_chat_that_nothing_or_too_much_is_like_is_an_error_that_names_the_tools() -> None:
    server = MCPServer("foreign")

    @server.tool()
    async def add(a: int, b: int) -> int:
        return a + b

    async with lane_to(server) as lane:
        with pytest.raises(UnknownTool, match=r"no tool takes just a message \(it has add\)"):
            await call(lane, "chat", message="hi")

        @server.tool()
        async def ask(prompt: str) -> str:
            return prompt

        @server.tool()
        async def find(query: str) -> str:
            return query

        with pytest.raises(UnknownTool, match=r"several tools take a message \(ask, find\)"):
            await call(lane, "chat", message="hi")
        with pytest.raises(UnknownTool, match="has no tool 'sub'; it has add, ask, find"):
            await call(lane, "sub")
        # What was added since the connection was opened is found.
        assert (await call(lane, "find", query="x"))["text"] == "x"


class Answer(BaseModel):
    session_id: str
    turns: int


async def test_a_session_id_goes_to_tools_that_have_a_place_for_it_alone() -> None:
    server = MCPServer("foreign")
    turns: dict[str, int] = {}

    @server.tool()
    async def chat(message: str, session_id: str = "") -> Answer:
        key = session_id or f"n{len(turns)}"
        turns[key] = turns.get(key, 0) + 1
        return Answer(session_id=key, turns=turns[key])

    @server.tool()
    async def add(a: int, b: int) -> int:
        return a + b

    async with lane_to(server) as lane:
        first = await call(lane, "chat", message="hi")
        assert (first["session_id"], first["data"]["turns"]) == ("n0", 1)
        assert (await call(lane, "chat", "n0", message="hi"))["data"]["turns"] == 2
        with pytest.raises(NotSupported, match="takes no session id"):
            await call(lane, "add", "n0", a=1, b=2)


async def test_all_kinds_of_content_become_parts() -> None:
    server = MCPServer("foreign")

    @server.tool(structured_output=False)
    async def draw() -> list[Any]:
        return [
            "a picture",
            Image(data=b"png", format="png"),
            ResourceLink(uri="https://a.example/x.csv", name="x.csv", mime_type="text/csv"),
            EmbeddedResource(resource=TextResourceContents(uri="a:b", text="inner")),
            EmbeddedResource(resource=BlobResourceContents(uri="a:c", blob="AA==")),
        ]

    @server.tool(structured_output=False)
    async def nothing() -> list[Any]:
        return []

    async with lane_to(server) as lane:
        answer = await call(lane, "draw")
        assert answer["content"] == [
            {"type": "text", "text": "a picture"},
            {"type": "file", "mediaType": "image/png", "data": base64.b64encode(b"png").decode()},
            {"type": "file", "mediaType": "text/csv", "uri": "https://a.example/x.csv", "name": "x.csv"},
            {"type": "text", "text": "inner"},
            {"type": "file", "mediaType": "application/octet-stream", "data": "AA=="},
        ]
        assert answer["text"] == "a picture\ninner"
        assert (await call(lane, "nothing"))["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-32602, InvalidArguments),
        (-32601, NotSupported),
        (-32021, NotSupported),
        (-32001, DeadlineExceeded),
        (-32600, ProtocolError),
        (-32603, AgentFailed),
        (7, AgentFailed),
    ],
)
async def test_errors_of_the_protocol_become_typed(code: int, kind: type[AgentEnvError]) -> None:
    server = MCPServer("foreign")

    @server.tool()
    async def fail() -> str:
        raise MCPError(code=code, message="no such luck", data={"code": 3})

    async with lane_to(server) as lane:
        with pytest.raises(kind, match="no such luck"):
            await call(lane, "fail")


async def test_a_failure_that_a_tool_reports_is_an_answer() -> None:
    server = MCPServer("foreign")

    @server.tool()
    async def fail() -> str:
        raise ToolError("the oven is cold")

    async with lane_to(server) as lane:
        answer = await call(lane, "fail")
        assert answer["is_error"]
        assert "the oven is cold" in answer["text"]


async def test_progress_is_status() -> None:
    server = MCPServer("foreign")

    @server.tool()
    async def work(task: str, context: Context) -> str:
        await context.report_progress(1, 2, "half")
        await context.report_progress(2, 2)
        return task

    heard: list[Event] = []

    async def on_event(event: Event) -> None:
        heard.append(event)

    async with lane_to(server) as lane:
        arguments = {"name": "chat", "arguments": {"message": "bake"}}
        answer = await lane.perform("call_tool", arguments, outgoing(calls=4), on_event)
    assert heard == [Status("half")]
    # It cannot spend what it knows nothing of.
    assert (answer["text"], answer["calls_left"]) == ("bake", 4)


async def test_a_foreign_server_is_an_environment_with_what_it_has() -> None:
    server = MCPServer("foreign")

    @server.tool()
    async def ask(prompt: Annotated[str, Field(min_length=1)]) -> str:
        return f"you said {prompt}"

    async with hosted(server.streamable_http_app()) as url:
        with anyio.fail_after(20):
            async with Environment(url, lane="mcp") as env:
                assert (await env.chat("hi")).text == "you said hi"
                for verb in (env.reset, lambda: env.step("hi")):
                    with pytest.raises(NotSupported, match="not an environment"):
                        await verb()


class OldServer:
    """Lets nothing of 2026 through, as a server of the handshake era would not, and ends sessions when told to."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.methods: list[str] = []
        self.forget = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            self.methods.append(request.method)
            if request.headers.get("mcp-protocol-version", "").startswith("2026"):
                await Response("unsupported version", 400)(scope, receive, send)
                return
            if self.forget and "mcp-session-id" in request.headers:
                await Response("no such session", 404)(scope, receive, send)
                return
        await self.app(scope, receive, send)


async def test_where_the_server_keeps_a_session_conversations_do_not_share_it() -> None:
    server = MCPServer("foreign")

    @server.tool()
    async def chat(message: str, context: Context) -> str:
        assert context.headers is not None
        return context.headers["mcp-session-id"]

    old = OldServer(server.streamable_http_app())
    async with hosted(old) as url:
        with anyio.fail_after(20):
            lanes = [McpLane(url) for _ in range(3)]
            async with anyio.create_task_group() as group:
                for lane in lanes:
                    group.start_soon(lambda lane=lane: lane.perform("list_tools", {}, outgoing()))
            sessions = [(await call(lane, "chat", message="hi"))["text"] for lane in lanes]
            assert len(set(sessions)) == 3
            assert [(await call(lane, "chat", message="hi"))["text"] for lane in lanes] == sessions
            old.forget = True
            with pytest.raises(TransportError, match="has ended the MCP session"):
                await call(lanes[0], "chat", message="hi")
            old.forget = False
            assert (await call(lanes[0], "chat", message="hi"))["text"] not in sessions
            for lane in lanes:
                await lane.aclose()


async def test_tools_on_many_pages_are_all_found_and_endless_pages_are_not_read() -> None:
    pages = 3

    async def on_list_tools(context: Any, params: Any) -> ListToolsResult:
        page = int((params and params.cursor) or 0)
        tools = [Tool(name=f"tool{page}", input_schema={"type": "object"})]
        return ListToolsResult(tools=tools, next_cursor=str(page + 1) if page + 1 < pages else None)

    async def on_call_tool(context: Any, params: Any) -> CallToolResult:
        return CallToolResult(content=[])

    async with lane_to(Server("paged", on_list_tools=on_list_tools, on_call_tool=on_call_tool)) as lane:
        listed = await lane.perform("list_tools", {}, outgoing())
        assert [entry["name"] for entry in listed["tools"]] == ["tool0", "tool1", "tool2"]
        pages = 1000
        with pytest.raises(ProtocolError, match="more than 100 pages"):
            await lane.perform("list_tools", {}, outgoing())


async def test_answers_that_break_the_protocol_are_said_to() -> None:
    results: dict[str, Any] = {
        "server/discover": {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}},
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
        },
        "tools/list": {
            "tools": [
                {"name": "chat", "inputSchema": {"type": "object"}, "_meta": {"dev.agent-env/verb": "call_tool"}},
                {"name": "typed", "inputSchema": {"type": "object"}, "outputSchema": {"type": "integer"}},
            ],
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
        },
        "tools/call": {"content": [], "resultType": "complete"},
    }

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = await Request(scope, receive).json()
            answer = {"jsonrpc": "2.0", "id": request["id"], "result": results[request["method"]]}
            await JSONResponse(answer)(scope, receive, send)

    with listen("127.0.0.1", 0) as socket:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [socket])
            with anyio.fail_after(20):
                url = f"http://127.0.0.1:{socket.getsockname()[1]}/mcp"
                lane = McpLane(url)
                with pytest.raises(ProtocolError, match="without structured content"):
                    await call(lane, "chat", message="hi")
                del results["tools/list"]["tools"][0]["_meta"]
                foreign = McpLane(url + "/")
                with pytest.raises(ProtocolError, match="what MCP does not allow"):
                    await call(foreign, "typed")
                results["tools/call"] = {"content": "many", "resultType": "complete"}
                with pytest.raises(ProtocolError, match="what MCP does not allow"):
                    await call(foreign, "chat", message="hi")
                results["tools/list"] = {"tools": "many"}
                with pytest.raises(ProtocolError, match="what MCP does not allow"):
                    await McpLane(url + "?3").perform("list_tools", {}, outgoing())
                await lane.aclose()
                await foreign.aclose()
            server.should_exit = True
