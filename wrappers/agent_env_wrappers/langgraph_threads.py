"""Threads of a LangGraph checkpointer: where one stands, and a copy of one."""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby
from typing import Any

from agent_env_wrappers.contract import WrapError


async def head(saver: Any, thread: str) -> str | None:
    """The id of a thread's latest checkpoint, None when there is no such thread."""
    try:
        found = await saver.aget_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
    except NotImplementedError as error:
        name = type(saver).__name__
        raise WrapError(f"the graph's {name} has no async methods; compile it with its async form") from error
    return None if found is None else found.checkpoint["id"]


async def copy_thread(saver: Any, source: str, target: str) -> None:
    """Copies all checkpoints of a thread with their pending writes, so that both can go on from any of them."""
    with suppress(NotImplementedError, AttributeError):
        await saver.acopy_thread(source, target)
        return
    found = [item async for item in saver.alist({"configurable": {"thread_id": source}})]
    for item in sorted(found, key=lambda item: item.checkpoint["id"]):
        place = {"thread_id": target, "checkpoint_ns": item.config["configurable"]["checkpoint_ns"]}
        if item.parent_config is not None:
            place["checkpoint_id"] = item.parent_config["configurable"]["checkpoint_id"]
        versions = item.checkpoint["channel_versions"]
        made = await saver.aput({"configurable": place}, item.checkpoint, item.metadata, versions)
        for task, writes in groupby(item.pending_writes or (), key=lambda write: write[0]):
            await saver.aput_writes(made, [write[1:] for write in writes], task)
