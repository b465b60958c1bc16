"""Run by an interpreter with a2a-sdk 0.3: talks to a server with the stock client and prints what it got as JSON."""

import asyncio
import json
import sys
import uuid
from typing import Any

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientHTTPError, A2AClientJSONRPCError
from a2a.types import (
    DataPart,
    Message,
    Part,
    PushNotificationConfig,
    Role,
    TaskIdParams,
    TaskQueryParams,
    TextPart,
    TransportProtocol,
)

EXTENSION = "urn:agent-env:environment-card:v1"


def message(*parts: Any, **ids: Any) -> Message:
    return Message(message_id=uuid.uuid4().hex, role=Role.user, parts=[Part(root=part) for part in parts], **ids)


async def answers(client: Any, said: Message) -> list[Any]:
    return [answer async for answer in client.send_message(said)]


def text_of(answer: Any) -> str:
    if isinstance(answer, Message):
        return answer.parts[0].root.text
    return "".join(part.root.text for part in answer[0].artifacts[0].parts)


async def talk(http: httpx.AsyncClient, card: Any, transport: TransportProtocol) -> dict[str, Any]:
    def client(**options: Any) -> Any:
        config = ClientConfig(
            httpx_client=http, supported_transports=[transport], use_client_preference=True, **options
        )
        return ClientFactory(config).create(card)

    seen: dict[str, Any] = {"turns": []}
    blocking, streaming, polling = (
        client(streaming=False),
        client(streaming=True),
        client(polling=True, streaming=False),
    )
    context: str | None = None
    for text in ("my name is Ada", "what is my name?", "bye"):
        (answer,) = await answers(blocking, message(TextPart(text=text), context_id=context))
        context = answer.context_id
        seen["turns"].append(text_of(answer))
    seen["context"] = context

    seen["stream"] = []
    async for task, update in streaming.send_message(message(TextPart(text="one two"), context_id=context)):
        # The client gives out the same task each time, as it stands.
        seen["stream"].append([task.status.state.value, type(update).__name__])
        seen["streamed"] = text_of((task, update)) if task.artifacts else ""

    ((task, _),) = await answers(polling, message(TextPart(text="wait")))
    seen["polled"] = (await blocking.get_task(TaskQueryParams(id=task.id))).status.state.value
    seen["cancelled"] = (await blocking.cancel_task(TaskIdParams(id=task.id))).status.state.value

    ((asked, _),) = await answers(blocking, message(TextPart(text="ask")))
    seen["asked"] = [asked.status.state.value, asked.status.message.parts[0].root.text]
    ((answered, _),) = await answers(
        blocking, message(TextPart(text="Ada"), context_id=asked.context_id, task_id=asked.id)
    )
    seen["answered"] = [answered.status.state.value, text_of((answered, None)), answered.id == asked.id]

    verb = DataPart(data={"verb": "call_tool", "arguments": {"name": "add", "arguments": {"a": 1, "b": 2}}})
    (result,) = await answers(blocking, message(verb, extensions=[EXTENSION]))
    seen["verb"] = [result.parts[0].root.data["result"]["data"], result.extensions]

    seen["errors"] = []
    for ask, said in (
        (blocking, message(DataPart(data={"verb": "nope"}), extensions=[EXTENSION])),
        (blocking, message(TextPart(text="x"), context_id="s-" + "x" * 22)),
        (streaming, message(TextPart(text="x"), context_id="s-" + "x" * 22)),
    ):
        try:
            await answers(ask, said)
        except A2AClientJSONRPCError as error:
            seen["errors"].append([error.error.code, error.error.data[EXTENSION]["code"]])
        except A2AClientHTTPError as error:
            seen["errors"].append([error.status_code])
    return seen


async def pushed(http: httpx.AsyncClient, card: Any) -> list[Any]:
    """What a webhook of the old kind is sent: the whole task, each time."""
    got: list[Any] = []
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(line.partition(":")[2] for line in head.split("\r\n") if line.startswith("content-length"))
        task = json.loads(await reader.readexactly(int(length)))
        got.append([task["kind"], task["status"]["state"], "x-a2a-notification-token: t0ken" in head])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()
        if task["status"]["state"] == "completed":
            ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    config = ClientConfig(
        httpx_client=http,
        streaming=False,
        push_notification_configs=[PushNotificationConfig(url=url, token="t0ken")],
    )
    await answers(ClientFactory(config).create(card), message(TextPart(text="hi")))
    await asyncio.wait_for(ended.wait(), 20)
    server.close()
    return got


async def main(url: str) -> None:
    async with httpx.AsyncClient(timeout=30) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        old = await A2ACardResolver(http, url, agent_card_path="/.well-known/agent.json").get_agent_card()
        seen = {
            "card": [card.name, card.version, card.protocol_version, card.url, str(card.preferred_transport)],
            "same card": card.model_dump(exclude={"capabilities"}) == old.model_dump(exclude={"capabilities"}),
            "environment card": card.capabilities.extensions[0].params["card"],
        }
        for transport in (TransportProtocol.jsonrpc, TransportProtocol.http_json):
            seen[transport.value] = await talk(http, card, transport)
        seen["pushed"] = await pushed(http, card)
    print(json.dumps(seen))


asyncio.run(main(sys.argv[1]))
