"""Push notifications of the A2A face: to a real receiver, in order, guarded, and never at the task's expense."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from a2a.client import Client, ClientConfig, create_client
from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError

from agent_env.serving.environment import AgentEnvironment
from agent_env.serving.faces import a2a_push
from agent_env.serving.server import Server
from agent_env_cards import EXTENSION_URI

pytestmark = pytest.mark.anyio


async def echo(message: str) -> str:
    if message == "wait":
        await anyio.sleep_forever()
    return message


@asynccontextmanager
async def serving() -> AsyncGenerator[Server]:
    async with AgentEnvironment(echo, name="echo", version="1.0.0", hub=False).serving() as server:
        yield server


@asynccontextmanager
async def stock(server: Server) -> AsyncGenerator[Client]:
    async with httpx.AsyncClient(timeout=20) as http:
        yield await create_client(server.url, ClientConfig(streaming=False, httpx_client=http))


def message(text: str) -> SendMessageRequest:
    said = Message(message_id=secrets.token_hex(8), role=Role.ROLE_USER, parts=[Part(text=text)])
    return SendMessageRequest(message=said)


async def ask(client: Client, request: SendMessageRequest) -> list[StreamResponse]:
    with anyio.fail_after(20):
        return [answer async for answer in client.send_message(request)]


class Receiver:
    """A webhook on a real socket; it answers with the statuses in `answers`, then with 200."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.got: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.arrived = anyio.Event()
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[Receiver]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = [line.partition(":") for line in head.split("\r\n")[1:] if line]
        headers = {name.lower(): value.strip() for name, _, value in lines}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        status = self.answers.pop(0) if self.answers else 200
        if status == 200:
            self.got.append((headers, body))
        writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        self.arrived.set()

    async def ended(self) -> list[dict[str, Any]]:
        with anyio.fail_after(20):
            while True:
                await self.arrived.wait()
                self.arrived = anyio.Event()
                if any("TASK_STATE_COMPLETED" in json.dumps(body) for _, body in self.got):
                    return [body for _, body in self.got]


def polled(text: str) -> SendMessageRequest:
    request = message(text)
    request.configuration.return_immediately = True
    return request


def pushed(text: str, url: str, **fields: Any) -> SendMessageRequest:
    request = message(text)
    request.configuration.task_push_notification_config.CopyFrom(TaskPushNotificationConfig(url=url, **fields))
    return request


async def test_each_update_of_a_task_is_pushed_in_order() -> None:
    async with serving() as server, stock(server) as client, Receiver().listening() as receiver:
        request = pushed("a", receiver.url, token="t0ken")
        request.configuration.task_push_notification_config.authentication.scheme = "Bearer"
        request.configuration.task_push_notification_config.authentication.credentials = "s3cret"
        (answer,) = await ask(client, request)
        assert answer.task.status.state == TaskState.TASK_STATE_COMPLETED
        bodies = await receiver.ended()
        assert [next(iter(body)) for body in bodies] == ["task", "statusUpdate", "artifactUpdate", "statusUpdate"]
        assert bodies[0]["task"]["id"] == answer.task.id
        headers = receiver.got[0][0]
        assert headers["x-a2a-notification-token"] == "t0ken"
        assert headers["authorization"] == "Bearer s3cret"


async def test_a_receiver_that_fails_for_a_moment_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_push, "RETRY_SECONDS", 0.01)
    async with serving() as server, stock(server) as client, Receiver(503, 500).listening() as receiver:
        await ask(client, pushed("a", receiver.url))
        assert next(iter((await receiver.ended())[0])) == "task"


async def test_a_receiver_that_refuses_does_not_hold_up_the_task(caplog: pytest.LogCaptureFixture) -> None:
    refusing = Receiver(404, 404, 404)
    async with serving() as server, stock(server) as client, refusing.listening():
        (answer,) = await ask(client, pushed("a", refusing.url))
        assert answer.task.status.state == TaskState.TASK_STATE_COMPLETED
        await refusing.ended()
    assert "it answered 404" in caplog.text


async def test_addresses_that_the_server_must_not_call_are_refused() -> None:
    async with serving() as server, stock(server) as client:
        for url in ("http://169.254.169.254/latest", "ftp://127.0.0.1/x", "http://user:pw@127.0.0.1/"):
            with pytest.raises(InvalidParamsError) as caught:
                await ask(client, pushed("a", url))
            assert EXTENSION_URI in (caught.value.data or {})
        assert len(server.runtime.sessions) == 0


async def test_push_addresses_are_listed_replaced_and_deleted_and_have_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(a2a_push, "RETRY_SECONDS", 0.01)
    async with serving() as server, stock(server) as client:
        (answer,) = await ask(client, polled("wait"))
        task_id = answer.task.id

        def config(number: int, path: str = "") -> TaskPushNotificationConfig:
            return TaskPushNotificationConfig(task_id=task_id, id=f"c{number}", url=f"http://127.0.0.1:9/{path}")

        for number in range(a2a_push.MAX_CONFIGS):
            await client.create_task_push_notification_config(config(number))
        with pytest.raises(InvalidParamsError, match="at most 8 addresses"):
            await client.create_task_push_notification_config(config(99))
        await client.create_task_push_notification_config(config(0, "new"))
        one = GetTaskPushNotificationConfigRequest(task_id=task_id, id="c0")
        assert (await client.get_task_push_notification_config(one)).url.endswith("/new")
        await client.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="c0")
        )
        listed = await client.list_task_push_notification_configs(
            ListTaskPushNotificationConfigsRequest(task_id=task_id)
        )
        assert len(listed.configs) == a2a_push.MAX_CONFIGS - 1
        with pytest.raises(TaskNotFoundError):
            await client.get_task_push_notification_config(one)
        await client.cancel_task(CancelTaskRequest(id=task_id))
