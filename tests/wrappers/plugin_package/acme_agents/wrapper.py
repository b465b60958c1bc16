"""How agent-env drives a parrot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

from acme_agents import Parrot
from agent_env_wrappers.answers import refuse_answers
from agent_env_wrappers.contract import AgentError, AgentInfo, Caps, Done, Event, Turn, WrapError


class AcmeWrapper:
    """Drives a parrot; what it has heard is a value."""

    framework: ClassVar[str] = "acme"

    def __init__(self, agent: Parrot) -> None:
        self._parrot = agent

    @classmethod
    def match(cls, agent: object) -> int:
        """1 for parrots, as much as ours gives to everything that can be called."""
        return int(isinstance(agent, Parrot))

    async def describe(self) -> AgentInfo:
        return AgentInfo("acme", Caps(state="value", fork=True), name=self._parrot.name)

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        refuse_answers(turn)
        if turn.tools or turn.model:
            raise WrapError("parrots have neither peers nor a model; teach one, or use a factory")
        if turn.message.text == "sleep":
            await self._parrot.sleep()
        heard = list(turn.state or ())
        try:
            text = self._parrot.squawk(turn.message.text, heard)
        except ValueError as error:
            raise AgentError(f"the parrot raised {type(error).__name__}") from error
        yield Done(text, state=[*heard, turn.message.text])

    async def aclose(self) -> None:
        pass
