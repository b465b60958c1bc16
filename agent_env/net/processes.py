"""Ending processes that this program started."""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def ended(process: asyncio.subprocess.Process, seconds: float) -> None:
    """Waits until a process that was asked to end has ended; one that has not within `seconds` is killed."""
    try:
        await asyncio.wait_for(process.wait(), seconds)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
