"""The conformance function finds what is wrong: each way to break the contract fails the check that is for it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest

from agent_env_wrappers.conformance import Subject, check_wrapper
from agent_env_wrappers.contract import (
    AgentError,
    AgentInfo,
    Answer,
    Caps,
    Done,
    Event,
    Interrupt,
    ModelRoute,
    TextDelta,
    ToolCall,
    ToolReturn,
    Turn,
    Usage,
    WrapError,
)

pytestmark = pytest.mark.anyio

ALL = Caps(
    streaming=True,
    tool_events=True,
    usage=True,
    interrupts=True,
    state="value",
    fork=True,
    tools="turn",
    model="turn",
)
NONE = Caps()


class Honest:
    """A wrapper that does all that the contract has, in a few lines; subclasses break it."""

    framework: ClassVar[str] = "honest"
    caps: ClassVar[Caps] = ALL

    def __init__(self) -> None:
        self.hanging = asyncio.Event()

    @classmethod
    def match(cls, agent: object) -> int:
        return 0

    async def describe(self) -> AgentInfo:
        return AgentInfo(self.framework, self.caps)

    async def aclose(self) -> None:
        pass

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        said, state = turn.message.text, dict(turn.state or {"seen": 0, "asked": False})
        if turn.answers and not (state["asked"] and turn.answers[0].interrupt_id == "q"):
            raise AgentError(f"{turn.answers[0].interrupt_id} is not open, q may be", kind="refused")
        state |= {"seen": state["seen"] + 1, "asked": said == "ask"}
        if said == "fail":
            raise AgentError("it failed")
        if said == "hang":
            self.hanging.set()
            await asyncio.Event().wait()
        if said == "ask":
            yield Interrupt("q", "question", "Why?", state=state)
            return
        if said == "tool":
            yield ToolCall("1", "clock", {})
            yield ToolReturn("1", "noon")
        text = await turn.tools[0].acall(message="x") if said == "peer" else turn.model.model if turn.model else "own"
        yield TextDelta(text)
        yield TextDelta(f" seen={state['seen']}")
        yield Done(f"{text} seen={state['seen']}", state=state, usage=Usage(1, 1, 1))


def subject(kind: type[Honest], **more: Any) -> Subject:
    wrapper = kind()
    words: dict[str, Any] = {
        "use_tool": "tool",
        "ask_peer": "peer",
        "ask_caller": "ask",
        "hang": "hang",
        "hanging": wrapper.hanging.wait,
        "fail": "fail",
        "route": lambda word: ModelRoute("http://there/v1", word),
        "patience": 0.1,
    }
    return Subject(make=lambda: wrapper, **{**words, **more})


async def failed(kind: type[Honest], **more: Any) -> dict[str, str]:
    """The checks that fail, with what they say."""
    report = await check_wrapper(subject(kind, **more), seconds=2)
    return {outcome.check: outcome.note for outcome in report.outcomes if outcome.verdict == "failed"}


async def test_an_honest_wrapper_passes_and_the_report_is_a_table() -> None:
    report = await check_wrapper(subject(Honest))
    assert report.ok
    lines = str(report).splitlines()
    assert lines[0] == "wrapper 'honest'"
    assert lines[1].split() == ["shown", "first_turn", "own", "seen=1"]
    assert len(lines) == 13


async def test_a_claim_that_nothing_provokes_fails() -> None:
    silent: dict[str, Any] = dict.fromkeys(("use_tool", "ask_peer", "ask_caller", "hang", "hanging", "fail", "route"))
    assert set(await failed(Honest, **silent)) == {
        "tells_of_tools",
        "question_is_answered",
        "cancel_rolls_back",
        "failure_is_told",
        "peers_are_called",
        "model_is_repointed",
    }
    assert set(await failed(Honest, hanging=None)) == {"cancel_rolls_back"}


async def test_a_reply_that_tells_nothing_cannot_be_judged() -> None:
    class Mute(Honest):
        async def run(self, turn: Turn) -> AsyncIterator[Event]:
            async for event in super().run(turn):
                yield dataclasses.replace(event, text="hm") if isinstance(event, Done) else event

    assert "does not tell how many" in (await failed(Mute))["first_turn"]


class Forgets(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        async for event in super().run(dataclasses.replace(turn, state=None)):
            yield event


class Mixes(Honest):
    memory: Any = None

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        async for event in super().run(dataclasses.replace(turn, state=self.memory, answers=())):
            if isinstance(event, Done):
                self.memory = event.state
            yield event


class RemembersWhatWasCancelled(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        if turn.state and turn.message.text in ("hang", "fail"):
            turn.state["seen"] += 1
        async for event in super().run(turn):
            yield event


class EndsTwice(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        async for event in super().run(turn):
            yield event
            if isinstance(event, Done):
                yield event


class NeverEnds(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        async for event in super().run(turn):
            if not isinstance(event, Done | Interrupt):
                yield event


class StreamsSomethingElse(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        async for event in super().run(turn):
            yield TextDelta("draft ") if isinstance(event, TextDelta) else event


class ReturnsBeforeItCalls(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        async for event in super().run(turn):
            if isinstance(event, ToolCall):
                yield ToolReturn("1", "noon")
            yield ToolCall("1", "clock", {}) if isinstance(event, ToolReturn) else event


class AddsUp(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        async for event in super().run(turn):
            if isinstance(event, Done):
                seen = event.state["seen"]
                event = dataclasses.replace(event, usage=Usage(seen, seen, seen))
            yield event


class AnswersEmptily(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        async for event in super().run(turn):
            yield Done("", state=event.state) if isinstance(event, Interrupt) else event


class TakesAnyAnswer(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        known = [Answer("q", answer.value) for answer in turn.answers if turn.state]
        async for event in super().run(dataclasses.replace(turn, answers=known)):
            yield event


class Clings(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        try:
            async for event in super().run(turn):
                yield event
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
            raise


class SwallowsItsCancellation(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        try:
            async for event in super().run(turn):
                yield event
        except asyncio.CancelledError:
            yield Done("never mind")


class Leaks(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        if turn.message.text == "fail":
            raise AgentError("Traceback (most recent call last):\n  it failed")
        async for event in super().run(turn):
            yield event


class Crashes(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        if turn.message.text == "fail":
            raise ValueError("it failed")
        async for event in super().run(turn):
            yield event


class IgnoresPeers(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        if turn.message.text == "peer":
            yield Done("I know it myself seen=1", state={"seen": 1, "asked": False})
            return
        async for event in super().run(turn):
            yield event


class IgnoresRoutes(Honest):
    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        async for event in super().run(dataclasses.replace(turn, model=None)):
            yield event


class KeepsTheRoute(Honest):
    model: ModelRoute | None = None

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        self.model = turn.model or self.model
        async for event in super().run(dataclasses.replace(turn, model=self.model)):
            yield event


class ForksNothing(Honest):
    async def fork(self, state: Any) -> Any:
        return state

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        async for event in super().run(turn):
            if turn.state:
                turn.state["seen"] += 1
            yield event


@pytest.mark.parametrize(
    ("kind", "checks"),
    [
        (Forgets, {"second_turn_remembers", "conversations_stay_apart", "cancel_rolls_back", "forks"}),
        (Mixes, {"second_turn_remembers", "conversations_stay_apart"}),
        (RemembersWhatWasCancelled, {"cancel_rolls_back", "failure_is_told"}),
        (EndsTwice, {"first_turn", "streams"}),
        (NeverEnds, {"first_turn", "question_is_answered"}),
        (StreamsSomethingElse, {"streams"}),
        (ReturnsBeforeItCalls, {"tells_of_tools"}),
        (AddsUp, {"tells_usage"}),
        (AnswersEmptily, {"question_is_answered"}),
        (TakesAnyAnswer, {"question_is_answered"}),
        (Clings, {"cancel_rolls_back"}),
        (SwallowsItsCancellation, {"cancel_rolls_back"}),
        (Leaks, {"failure_is_told"}),
        (Crashes, {"failure_is_told"}),
        (IgnoresPeers, {"peers_are_called"}),
        (IgnoresRoutes, {"model_is_repointed"}),
        (KeepsTheRoute, {"model_is_repointed"}),
        (ForksNothing, {"forks"}),
    ],
)
async def test_each_way_to_break_the_contract_fails_its_check(kind: type[Honest], checks: set[str]) -> None:
    assert checks <= set(await failed(kind))


class ClaimsNothing(Honest):
    caps: ClassVar[Caps] = NONE

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        if turn.tools or turn.model:
            raise WrapError("no peers and no model; use a factory")
        async for event in super().run(dataclasses.replace(turn, state=None)):
            if not isinstance(event, TextDelta | ToolCall | ToolReturn):
                yield dataclasses.replace(event, state=None, usage=None) if isinstance(event, Done) else event


async def test_a_wrapper_that_claims_nothing_passes_when_it_refuses_clearly() -> None:
    report = await check_wrapper(subject(ClaimsNothing))
    assert report.ok, str(report)
    assert sum(outcome.verdict == "absent" for outcome in report.outcomes) == 8


class DoesMoreThanItClaims(Honest):
    caps: ClassVar[Caps] = NONE


async def test_what_the_caps_deny_must_not_happen_in_silence() -> None:
    assert set(await failed(DoesMoreThanItClaims)) == {
        "second_turn_remembers",
        "streams",
        "tells_of_tools",
        "tells_usage",
        "peers_are_called",
        "model_is_repointed",
    }


class OneAtATime(Honest):
    caps: ClassVar[Caps] = dataclasses.replace(ALL, concurrency="lock")
    busy: bool = False

    async def run(self, turn: Turn) -> AsyncIterator[Event]:
        if self.busy:
            raise AgentError("busy")
        self.busy = True
        try:
            await asyncio.sleep(0)
            async for event in super().run(turn):
                yield event
        finally:
            self.busy = False


async def test_a_wrapper_that_plays_one_turn_at_a_time_is_asked_for_no_more() -> None:
    report = await check_wrapper(subject(OneAtATime))
    assert report.ok, str(report)
