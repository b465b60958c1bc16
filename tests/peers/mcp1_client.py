"""Run by an interpreter with mcp 1.x: talks to a server with the stock client and prints what it got as JSON."""

import asyncio
import json
import sys

from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamablehttp_client


async def main(url: str) -> None:
    seen: dict = {"progress": []}

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen["progress"].append(message)

    async with streamablehttp_client(url) as (read, write, session_id), ClientSession(read, write) as session:
        opened = await session.initialize()
        seen["protocol"] = opened.protocolVersion
        seen["server"] = [opened.serverInfo.name, opened.serverInfo.version]
        seen["mcp_session"] = session_id()
        seen["tools"] = [tool.name for tool in (await session.list_tools()).tools]
        seen["turns"] = []
        for message in ("my name is Ada", "what is my name?", "bye"):
            result = await session.call_tool("chat", {"message": message}, progress_callback=on_progress)
            seen["turns"].append([result.content[0].text, result.structuredContent["text"]])
        seen["session_id"] = result.structuredContent["session_id"]
        seen["cards"] = {}
        for resource in (await session.list_resources()).resources:
            read_back = await session.read_resource(resource.uri)
            seen["cards"][resource.name] = json.loads(read_back.contents[0].text)
        seen["errors"] = []
        for name, arguments in (
            ("nope", {}),
            ("chat", {"message": 1}),
            ("chat", {"message": "x", "session_id": "nope"}),
        ):
            try:
                await session.call_tool(name, arguments)
            except McpError as error:
                seen["errors"].append([error.error.code, error.error.data["code"]])
    print(json.dumps(seen))


asyncio.run(main(sys.argv[1]))
