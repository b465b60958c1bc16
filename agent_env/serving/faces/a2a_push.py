"""Push notifications: where a task's updates are sent besides, in order, without holding up the task."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from a2a.compat.v0_3 import conversions
from a2a.server.context import ServerCallContext
from a2a.server.tasks import (
    PushNotificationConfigStore,
    PushNotificationEvent,
    PushNotificationSender,
    TaskStore,
)
from a2a.server.tasks.push_notification_config_store import normalize_push_notification_config
from a2a.types import Task, TaskArtifactUpdateEvent, TaskPushNotificationConfig
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import to_stream_response

from agent_env.errors import AgentEnvError, TransportError
from agent_env.net.a2a_wire import EXTENSION, to_json
from agent_env.net.guard import OutwardGuard
from agent_env.net.http import CONNECT_SECONDS, shared_http, shown, transport_errors
from agent_env.serving.faces.a2a_tasks import Owner

log = logging.getLogger("agent_env.serving")

MAX_CONFIGS: Final = 8
"""Addresses that one task notifies."""

MAX_QUEUED: Final = 256
"""Notifications that wait for a slow receiver; beyond, pieces of the reply are left out, never a change of state."""

POST_SECONDS: Final = 10.0
ATTEMPTS: Final = 3
RETRY_SECONDS: Final = 0.5
CLOSE_SECONDS: Final = 2.0
"""How long a server that ends goes on notifying."""


@dataclass(slots=True)
class _Configs:
    owner: str
    entries: dict[str, tuple[TaskPushNotificationConfig, bool]] = field(
        default_factory=dict[str, tuple[TaskPushNotificationConfig, bool]]
    )


class PushConfigs(PushNotificationConfigStore):
    """The addresses to notify, by task; those of the `max_tasks` tasks that were given one last."""

    def __init__(self, *, max_tasks: int = 10_000) -> None:
        self._max_tasks = max_tasks
        self._tasks: OrderedDict[str, _Configs] = OrderedDict()

    async def set_info(
        self, task_id: str, notification_config: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Adds or replaces an address; raises `InvalidParamsError` for one too many."""
        config = normalize_push_notification_config(task_id, notification_config)
        configs = self._tasks.setdefault(task_id, _Configs(context.user.user_name))
        if config.id not in configs.entries and len(configs.entries) >= MAX_CONFIGS:
            raise InvalidParamsError(f"a task notifies at most {MAX_CONFIGS} addresses; delete one of them first")
        headers: Mapping[str, str] = context.state.get("headers", {})
        configs.entries[config.id] = (config, not headers.get("a2a-version", "0.3").startswith("1"))
        self._tasks.move_to_end(task_id)
        while len(self._tasks) > self._max_tasks:
            self._tasks.popitem(last=False)
        return config

    async def get_info(self, task_id: str, context: ServerCallContext) -> list[TaskPushNotificationConfig]:
        """The addresses of a task of the caller's."""
        configs = self._tasks.get(task_id)
        if configs is None or configs.owner != context.user.user_name:
            return []
        return [config for config, _ in configs.entries.values()]

    async def get_info_for_dispatch(self, task_id: str) -> list[TaskPushNotificationConfig]:
        """The addresses of a task, whoever asks."""
        return [config for config, _ in self.of(task_id)]

    async def delete_info(self, task_id: str, context: ServerCallContext, config_id: str | None = None) -> None:
        """Removes one address of a task of the caller's, or all of them."""
        configs = self._tasks.get(task_id)
        if configs is None or configs.owner != context.user.user_name:
            return
        if config_id is None:
            configs.entries.clear()
        else:
            configs.entries.pop(config_id, None)
        if not configs.entries:
            self.forget(task_id)

    def of(self, task_id: str) -> list[tuple[TaskPushNotificationConfig, bool]]:
        """The addresses of a task, each with whether its owner speaks A2A 0.3."""
        configs = self._tasks.get(task_id)
        return [] if configs is None else list(configs.entries.values())

    def owner(self, task_id: str) -> Owner:
        """Whose the addresses of a task are."""
        return Owner(self._tasks[task_id].owner)

    def forget(self, task_id: str) -> None:
        """Removes all addresses of a task."""
        self._tasks.pop(task_id, None)


@dataclass(slots=True)
class _Receiver:
    """What waits to be sent to one address of one task."""

    config: TaskPushNotificationConfig
    waiting: deque[tuple[Mapping[str, Any], bool]] = field(default_factory=deque[tuple[Mapping[str, Any], bool]])
    task: asyncio.Task[None] | None = None


class PushSender(PushNotificationSender):
    """Sends each update of a task to the task's addresses.

    `tasks` has the task as it stands: A2A 0.3 sends that (§9.5 there), 1.0 the update itself (§4.3.3).
    A receiver that fails is tried again a few times; a task never waits for one.
    """

    def __init__(self, configs: PushConfigs, guard: OutwardGuard, tasks: TaskStore) -> None:
        self._configs = configs
        self._guard = guard
        self._tasks = tasks
        self._receivers: dict[tuple[str, str], _Receiver] = {}

    async def send_notification(self, task_id: str, event: PushNotificationEvent) -> None:
        """Queues one update for the addresses of its task."""
        update: Mapping[str, Any] | None = None
        whole: Mapping[str, Any] | None = None
        for config, old in self._configs.of(task_id):
            if old and whole is None:
                owner = ServerCallContext(user=self._configs.owner(task_id))
                task = event if isinstance(event, Task) else await self._tasks.get(task_id, owner)
                if task is None:
                    continue
                whole = conversions.to_compat_task(task).model_dump(mode="json", by_alias=True, exclude_none=True)
            if not old and update is None:
                update = to_json(to_stream_response(event))
            payload = whole if old else update
            if payload is not None:
                self._queue(task_id, config, payload, isinstance(event, TaskArtifactUpdateEvent))

    def _queue(self, task_id: str, config: TaskPushNotificationConfig, payload: Mapping[str, Any], piece: bool) -> None:
        key = (task_id, config.id)
        receiver = self._receivers.get(key)
        if receiver is None:
            receiver = self._receivers[key] = _Receiver(config)
            receiver.task = asyncio.get_running_loop().create_task(self._deliver(key, receiver))
        if len(receiver.waiting) >= MAX_QUEUED:
            if piece:
                return
            receiver.waiting = deque(entry for entry in receiver.waiting if not entry[1])
        receiver.waiting.append((payload, piece))

    async def _deliver(self, key: tuple[str, str], receiver: _Receiver) -> None:
        try:
            while receiver.waiting:
                payload, _ = receiver.waiting.popleft()
                await self._post(key[0], receiver.config, payload)
        finally:
            del self._receivers[key]

    async def _post(self, task_id: str, config: TaskPushNotificationConfig, payload: Mapping[str, Any]) -> None:
        headers = {"X-A2A-Notification-Token": config.token} if config.token else {}
        if config.authentication.scheme and config.authentication.credentials:
            headers["Authorization"] = f"{config.authentication.scheme} {config.authentication.credentials}"
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._guard.check(config.url)
                with transport_errors(config.url):
                    async with shared_http(self._guard).post(
                        config.url,
                        json=payload,
                        headers=headers,
                        # A redirect would lead to an address that was not checked.
                        allow_redirects=False,
                        timeout=aiohttp.ClientTimeout(total=POST_SECONDS, sock_connect=CONNECT_SECONDS),
                    ) as response:
                        if response.status < 300:
                            return
                        if response.status < 500:
                            raise AgentEnvError(f"it answered {response.status}")
                        raise TransportError(f"it answered {response.status}")
            except AgentEnvError as error:
                if not error.retryable or attempt == ATTEMPTS:
                    log.warning("task %s: %s was not notified: %s", task_id, shown(config.url), error.message)
                    return
                await asyncio.sleep(RETRY_SECONDS * attempt)

    async def aclose(self) -> None:
        """Sends what still waits, for a bounded time, and stops."""
        tasks = [receiver.task for receiver in self._receivers.values() if receiver.task is not None]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


def url_check(guard: OutwardGuard) -> Callable[[str], Awaitable[bool]]:
    """The guard in the form that the SDK asks for when it is given an address."""

    async def check(url: str) -> bool:
        try:
            await guard.check(url)
        except AgentEnvError as error:
            raise InvalidParamsError(error.message, data={EXTENSION: error.to_wire()}) from None
        return True

    return check
