"""What the A2A face remembers is bounded: tasks, push addresses, contexts, and events that nobody has taken yet."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from a2a.server.context import ServerCallContext
from a2a.types import ListTasksRequest, Task, TaskPushNotificationConfig, TaskState, TaskStatus, TaskStatusUpdateEvent

from agent_env.errors import UnknownSession
from agent_env.net import OutwardGuard
from agent_env.serving.environment import AgentEnvironment
from agent_env.serving.faces import a2a_push
from agent_env.serving.faces.a2a_conversations import Conversations
from agent_env.serving.faces.a2a_feed import Feed
from agent_env.serving.faces.a2a_push import PushConfigs, PushSender
from agent_env.serving.faces.a2a_tasks import BoundedTaskStore, Owner
from agent_env_wrappers.contract import Event, TextDelta

pytestmark = pytest.mark.anyio


def owner(name: str = "alice") -> ServerCallContext:
    return ServerCallContext(user=Owner(name), state={"headers": {"a2a-version": "1.0"}})


def task(number: int, state: TaskState = TaskState.TASK_STATE_COMPLETED, size: int = 0) -> Task:
    made = Task(id=f"t{number}", context_id="c", status=TaskStatus(state=state))
    if size:
        made.metadata.update({"x": "x" * size})
    return made


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def kept(store: BoundedTaskStore, count: int) -> list[int]:
    return [number for number in range(count) if await store.get(f"t{number}", owner()) is not None]


async def test_the_oldest_tasks_are_forgotten_beyond_a_count() -> None:
    forgotten: list[str] = []
    store = BoundedTaskStore(max_tasks=3, on_forget=forgotten.append)
    for number in range(5):
        await store.save(task(number), owner())
    assert await kept(store, 5) == [2, 3, 4]
    assert forgotten == ["t0", "t1"]
    # A task that changes is a new one.
    await store.save(task(2), owner())
    await store.save(task(5), owner())
    assert await kept(store, 6) == [2, 4, 5]


async def test_tasks_are_forgotten_beyond_a_size() -> None:
    store = BoundedTaskStore(max_bytes=2500)
    for number in range(4):
        await store.save(task(number, size=1000), owner())
    assert await kept(store, 4) == [2, 3]


async def test_tasks_are_forgotten_beyond_an_age() -> None:
    clock = Clock()
    store = BoundedTaskStore(max_seconds=10, clock=clock)
    await store.save(task(0), owner())
    clock.now = 6
    await store.save(task(1, TaskState.TASK_STATE_INPUT_REQUIRED), owner())
    clock.now = 11
    assert await kept(store, 2) == [1]
    clock.now = 17
    assert (await store.list(ListTasksRequest(), owner())).total_size == 0


async def test_a_task_that_runs_is_never_forgotten() -> None:
    clock = Clock()
    store = BoundedTaskStore(max_tasks=1, max_bytes=1, max_seconds=1, clock=clock)
    await store.save(task(0, TaskState.TASK_STATE_INPUT_REQUIRED), owner())
    await store.save(task(1, TaskState.TASK_STATE_WORKING), owner())
    await store.save(task(2, TaskState.TASK_STATE_WORKING), owner())
    clock.now = 100
    assert await kept(store, 3) == [1, 2]
    await store.delete("t1", owner())
    assert await kept(store, 3) == [2]


async def test_a_stored_task_does_not_change_with_the_callers_copy() -> None:
    store = BoundedTaskStore()
    mine = task(0)
    await store.save(mine, owner())
    mine.metadata.update({"x": 1})
    found = await store.get("t0", owner())
    assert found is not None
    assert not found.metadata.fields
    assert await store.get("t0", owner("bob")) is None


async def test_push_addresses_belong_to_who_gave_them_and_go_with_their_tasks() -> None:
    configs = PushConfigs(max_tasks=2)
    for number in range(3):
        await configs.set_info(f"t{number}", TaskPushNotificationConfig(url="http://x"), owner())
    assert [bool(await configs.get_info(f"t{number}", owner())) for number in range(3)] == [False, True, True]
    assert await configs.get_info("t1", owner("bob")) == []
    await configs.delete_info("t1", owner("bob"))
    assert len(await configs.get_info_for_dispatch("t1")) == 1
    await configs.delete_info("t1", owner())
    assert await configs.get_info_for_dispatch("t1") == []
    configs.forget("t2")
    assert await configs.get_info_for_dispatch("t2") == []


async def test_a_slow_receiver_misses_pieces_of_the_reply_but_no_change_of_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from a2a.types import Artifact, Part, TaskArtifactUpdateEvent

    monkeypatch.setattr(a2a_push, "MAX_QUEUED", 3)
    sent: list[Any] = []
    go_on = anyio.Event()

    async def post(self: PushSender, task_id: str, config: TaskPushNotificationConfig, payload: Any) -> None:
        await go_on.wait()
        sent.append(payload)

    monkeypatch.setattr(PushSender, "_post", post)
    configs = PushConfigs()
    await configs.set_info("t0", TaskPushNotificationConfig(url="http://127.0.0.1:9"), owner())
    sender = PushSender(configs, OutwardGuard(local=True), BoundedTaskStore())
    piece = TaskArtifactUpdateEvent(task_id="t0", context_id="c", artifact=Artifact(parts=[Part(text="x")]))
    ended = TaskStatusUpdateEvent(task_id="t0", context_id="c", status=TaskStatus(state=TaskState.TASK_STATE_COMPLETED))
    await sender.send_notification("t0", task(0, TaskState.TASK_STATE_SUBMITTED))
    for _ in range(10):
        await sender.send_notification("t0", piece)
    await sender.send_notification("t0", ended)
    go_on.set()
    await sender.aclose()
    assert next(iter(sent[0])) == "task"
    assert next(iter(sent[-1])) == "statusUpdate"
    assert len(sent) <= 4
    await sender.aclose()


async def test_a_server_that_ends_does_not_wait_for_a_receiver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_push, "CLOSE_SECONDS", 0.05)

    async def post(self: PushSender, task_id: str, config: TaskPushNotificationConfig, payload: Any) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(PushSender, "_post", post)
    configs = PushConfigs()
    await configs.set_info("t0", TaskPushNotificationConfig(url="http://127.0.0.1:9"), owner())
    sender = PushSender(configs, OutwardGuard(local=True), BoundedTaskStore())
    await sender.send_notification("t0", task(0))
    with anyio.fail_after(5):
        await sender.aclose()


async def test_contexts_are_remembered_within_a_bound() -> None:
    async def echo(message: str) -> str:
        return message

    runtime = await AgentEnvironment(echo, hub=False).runtime()
    conversations = Conversations(runtime, remembered=2)
    for context in ("a", "b", "c"):
        conversations.keep("alice", context)
    conversations.check("bob", "a")
    for context in ("b", "c"):
        with pytest.raises(UnknownSession):
            conversations.check("bob", context)
    for number in range(3):
        conversations.wait("alice", f"c{number}", f"t{number}")
    assert [conversations.waiting("alice", f"c{number}") for number in range(3)] == [None, "t1", "t2"]
    assert conversations.waiting("bob", "c1") is None
    conversations.go_on("alice", "c1")
    assert conversations.waiting("alice", "c1") is None
    assert conversations.question("alice", "c1") is None


async def test_events_that_come_fast_go_out_together_and_none_is_lost() -> None:
    feed = Feed()
    batches: list[list[Event]] = []

    async def take() -> None:
        async for batch in feed.batches():
            batches.append(batch)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        for number in range(100):
            await feed.put(TextDelta(str(number)))
            if number == 50:
                await anyio.lowlevel.checkpoint()
        feed.end()
    assert [event for batch in batches for event in batch] == [TextDelta(str(number)) for number in range(100)]
    assert len(batches) < 10
    assert all(batches)


async def test_a_feed_without_events_just_ends() -> None:
    feed = Feed()
    feed.end()
    assert [batch async for batch in feed.batches()] == []
