"""Playing turns in tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

from agent_env_wrappers.contract import Done, Event, Interrupt, Message, PeerTool, Turn
from agent_env_wrappers.threads import blocking


async def events(wrapper: Any, said: str | Message = "hello", state: Any = None, **more: Any) -> list[Event]:
    """All events of one turn."""
    message = Message.of(said) if isinstance(said, str) else said
    async with aclosing(wrapper.run(Turn(message, state=state, **more))) as stream:
        return [event async for event in stream]


async def done(wrapper: Any, said: str | Message = "hello", state: Any = None, **more: Any) -> Done:
    """The reply of one turn."""
    end = (await events(wrapper, said, state, **more))[-1]
    assert isinstance(end, Done), end
    return end


async def question(wrapper: Any, said: str = "hello", state: Any = None, **more: Any) -> Interrupt:
    """The question that one turn ends with."""
    end = (await events(wrapper, said, state, **more))[-1]
    assert isinstance(end, Interrupt), end
    return end


def peer(reply: Callable[[str], Awaitable[str]], seat: str = "solver") -> PeerTool:
    """A peer that replies by a function of the message."""

    async def acall(message: str) -> str:
        return await reply(message)

    return PeerTool(
        name=f"ask_{seat}",
        description=f"Asks the {seat}.",
        parameters={"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
        acall=acall,
        call=blocking(asyncio.get_running_loop(), acall),
        seat=seat,
    )


async def threads_end(name: str) -> None:
    """Waits until no thread of an agent's turn is left."""
    for thread in threading.enumerate():
        if thread.name == f"{name} turn":
            await asyncio.to_thread(thread.join, 5)
            assert not thread.is_alive()
