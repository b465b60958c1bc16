"""A framework: agents that repeat what they are told, so many times as they have heard something."""

import asyncio


class Parrot:
    """An agent of this framework. It can be called, so that ours would take it for a function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sleeping = asyncio.Event()

    def __call__(self, message: str) -> str:
        return f"{self.name} was called like a function"

    async def sleep(self) -> None:
        self.sleeping.set()
        await asyncio.Event().wait()

    def squawk(self, message: str, heard: list[str]) -> str:
        if message == "fail":
            raise ValueError("this parrot is no more")
        return f"{self.name}: {' '.join([*heard, message])} seen={len(heard) + 1}"
