"""The conformance checks: each shows a capability, or shows that what the caps deny is refused clearly.

A check takes a `Trial` and returns a note for people, which begins with "absent" where the caps deny the capability.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from agent_env_wrappers.conformance_trial import ConformanceError, Solver, Trial, refuses, require
from agent_env_wrappers.contract import (
    AgentError,
    Answer,
    Interrupt,
    ModelRoute,
    TextDelta,
    ToolCall,
    ToolReturn,
    WrapError,
)

Check: TypeAlias = Callable[[Trial], Awaitable[str]]


async def first_turn(trial: Trial) -> str:
    """A fresh conversation is answered by exactly one `Done` with text."""
    done = (await trial.play(trial.subject.hello)).done
    require(bool(done.text), "the reply is empty")
    require(not trial.remembers or trial.subject.seen(done.text) == 1, f"the first reply is {done.text!r}")
    return done.text


async def second_turn_remembers(trial: Trial) -> str:
    """The next turn knows the one before, and a turn without state does not."""
    first = (await trial.play(trial.subject.hello)).done
    if not trial.remembers:
        require(first.state is None, f"the caps deny a state, and the turn ended with {first.state!r}")
        return "absent: turns end without a state"
    second = (await trial.play(trial.subject.hello, first.state)).done
    require(trial.subject.seen(second.text) == 2, f"the second reply is {second.text!r}")
    fresh = (await trial.play(trial.subject.hello)).done
    require(trial.subject.seen(fresh.text) == 1, f"a turn without state remembers: {fresh.text!r}")
    return second.text


async def conversations_stay_apart(trial: Trial) -> str:
    """Two conversations that take turns on one agent, at the same time where it may be, do not mix."""
    states: list[Any] = [None, None, None]
    for number in (1, 2, 3):
        played = await trial.together([trial.play(trial.subject.hello, state) for state in states])
        states = [turn.done.state for turn in played]
        if trial.remembers:
            counts = [trial.subject.seen(turn.done.text) for turn in played]
            require(counts == [number] * 3, f"in turn {number} the conversations have seen {counts} messages")
    return f"three conversations, {trial.caps.concurrency}"


async def streams(trial: Trial) -> str:
    """Pieces of the reply come before its end, and together they are the reply."""
    played = await trial.play(trial.subject.hello)
    pieces = [delta.text for delta in played.of(TextDelta) if delta.channel == "answer"]
    if not trial.caps.streaming:
        require(len(pieces) <= 1, f"the caps deny streaming, and the reply came as {pieces!r}")
        return "absent: the reply comes whole"
    require(len(pieces) > 1, f"the reply came in {len(pieces)} pieces")
    require("".join(pieces) == played.done.text, f"the pieces {pieces!r} are not the reply {played.done.text!r}")
    return f"{len(pieces)} pieces"


async def tells_of_tools(trial: Trial) -> str:
    """A tool's call and return are told, with one id."""
    if not trial.caps.tool_events:
        played = await trial.play(trial.subject.use_tool or trial.subject.hello)
        require(not played.of(ToolCall) and not played.of(ToolReturn), "the caps deny tool events, and there are some")
        return "absent: no tool is told of"
    words = "use_tool" if trial.subject.use_tool is not None else "ask_peer"
    peers = () if words == "use_tool" else (Solver("42").tool(),)
    played = await trial.play(trial.words(words), tools=peers)
    calls, returns = played.of(ToolCall), played.of(ToolReturn)
    require([call.id for call in calls] == [back.id for back in returns] != [], f"{calls!r} and {returns!r} differ")
    require(played.events.index(calls[0]) < played.events.index(returns[0]), "a tool returned before it was called")
    return f"{calls[0].name}({calls[0].arguments}) -> {returns[0].output}"


async def tells_usage(trial: Trial) -> str:
    """Usage is that of the turn, not of the conversation or of the agent's life."""
    first = (await trial.play(trial.subject.hello)).done
    if not trial.caps.usage:
        require(first.usage is None, f"the caps deny usage, and the turn has {first.usage!r}")
        return "absent: usage is None"
    second = (await trial.play(trial.subject.hello, first.state)).done
    for usage in (first.usage, second.usage):
        require(usage is not None and usage.requests == 1, f"a turn of one model request has {usage!r}")
        require(bool(usage and usage.input_tokens and usage.output_tokens), f"the tokens of {usage!r} are not counted")
    require(
        bool(first.usage and second.usage and first.usage.output_tokens * 2 > second.usage.output_tokens), "it adds"
    )
    return f"{first.usage}"


async def question_is_answered(trial: Trial) -> str:
    """A question ends the turn, only its own answer continues it, and nothing else can be answered."""
    stray = trial.play(trial.subject.hello, answers=[Answer("no-such-question", True)])
    await refuses(stray, AgentError, "no-such-question")
    if not trial.caps.interrupts:
        return "absent: an answer is refused, since no question is ever open"
    asked = (await trial.play(trial.words("ask_caller"))).end
    require(isinstance(asked, Interrupt), f"it did not ask but said {asked!r}")
    question = asked if isinstance(asked, Interrupt) else Interrupt("", "question", "")
    require(bool(question.prompt and question.id and question.state is not None), f"{question!r} cannot be answered")
    wrong = trial.play("", question.state, answers=[Answer("no-such-question", True)])
    await refuses(wrong, AgentError, "no-such-question", question.id)
    branch = await trial.fork(question.state) if trial.caps.fork else question.state
    done = (await trial.play("", branch, answers=[Answer(question.id, trial.subject.answer)])).done
    require(bool(done.text), "the answered turn has no reply")
    if trial.remembers:
        after = (await trial.play(trial.subject.hello, done.state)).done
        require(trial.subject.seen(after.text) >= 2, f"after the question it has forgotten: {after.text!r}")
    return f"{question.prompt} -> {done.text}"


async def cancel_rolls_back(trial: Trial) -> str:
    """A cancelled turn ends at once, and the conversation goes on as if it had not been."""
    first = (await trial.play(trial.subject.hello)).done
    hang, hanging = trial.words("hang"), trial.subject.hanging
    if hanging is None:
        raise ConformanceError("the subject does not tell when it hangs")
    task = asyncio.create_task(trial.play(hang, first.state))
    begun = asyncio.ensure_future(hanging())
    try:
        await asyncio.wait({task, begun}, return_when=asyncio.FIRST_COMPLETED)
        require(begun.done() and not task.done(), f"it did not hang: {task}")
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=trial.subject.patience)
        require(bool(done) and task.cancelled(), f"the cancelled turn goes on, or ended otherwise: {task}")
    finally:
        task.cancel()
        begun.cancel()
    again = (await trial.play(trial.subject.hello, first.state)).done
    if trial.remembers:
        require(trial.subject.seen(again.text) == 2, f"the cancelled turn is remembered: {again.text!r}")
    return again.text


async def failure_is_told(trial: Trial) -> str:
    """A failure is an `AgentError` that says who failed and nothing more, and changes nothing."""
    first = (await trial.play(trial.subject.hello)).done
    message = await refuses(trial.play(trial.words("fail"), first.state), AgentError)
    require("Traceback" not in message and "\n" not in message, f"the message {message!r} shows internals")
    again = (await trial.play(trial.subject.hello, first.state)).done
    if trial.remembers:
        require(trial.subject.seen(again.text) == 2, f"the failed turn is remembered: {again.text!r}")
    return message


async def peers_are_called(trial: Trial) -> str:
    """Peers of the turn are called as tools; they are gone in the next turn; a failing one does not crash it."""
    solver = Solver("the answer is 42")
    if trial.caps.tools != "turn":
        turn = trial.play(trial.subject.hello, tools=(solver.tool(),))
        return "absent: " + await refuses(turn, WrapError, "factory", "peers")
    played = await trial.play(trial.words("ask_peer"), tools=(solver.tool(),))
    require(len(solver.heard) == 1, f"the peer was called {len(solver.heard)} times")
    require("the answer is 42" in played.done.text, f"the peer's reply is not in {played.done.text!r}")
    await trial.play(trial.subject.hello, played.done.state)
    with suppress(AgentError):
        await trial.play(trial.words("ask_peer"), tools=(Solver(AgentError("the solver is out")).tool(),))
    return f"heard {solver.heard[0]!r}"


async def model_is_repointed(trial: Trial) -> str:
    """Each turn's model calls go to the turn's route, those of concurrent turns apart, and the next one's do not."""
    if trial.caps.model != "turn":
        turn = trial.play(trial.subject.hello, model=ModelRoute("http://127.0.0.1:9/v1", "other"))
        return "absent: " + await refuses(turn, WrapError, "factory", "model")
    route = trial.subject.route
    if route is None:
        raise ConformanceError("the caps claim that the model can be re-pointed, and the subject has no `route`")
    hello = trial.subject.hello
    scarlet, azure = await trial.together([trial.play(hello, model=route(word)) for word in ("scarlet", "azure")])
    for played, word, other in ((scarlet, "scarlet", "azure"), (azure, "azure", "scarlet")):
        text = played.done.text
        require(word in text and other not in text, f"the turn that was routed to {word!r} says {text!r}")
    own = (await trial.play(hello)).done.text
    require("scarlet" not in own and "azure" not in own, f"a route outlives its turn: {own!r}")
    return scarlet.done.text


async def forks(trial: Trial) -> str:
    """A copy of a conversation goes its own way, and the original does not notice."""
    first = (await trial.play(trial.subject.hello)).done
    if not trial.caps.fork:
        require(trial.caps.state == "handle" or not trial.remembers, "a value can be copied, and the caps deny it")
        return "absent: there is no state to copy" if not trial.remembers else "absent: the handle has no copy"
    branches = [await trial.fork(first.state) for _ in range(2)]
    for state in (*branches, first.state):
        second = (await trial.play(trial.subject.hello, state)).done
        require(trial.subject.seen(second.text) == 2, f"a branch has seen another one's turns: {second.text!r}")
    release = getattr(trial.wrapper, "release", None)
    if release is not None:
        await release(branches[0])
    return f"{len(branches)} branches"


CHECKS: Sequence[Check] = (
    first_turn,
    second_turn_remembers,
    conversations_stay_apart,
    streams,
    tells_of_tools,
    tells_usage,
    question_is_answered,
    cancel_rolls_back,
    failure_is_told,
    peers_are_called,
    model_is_repointed,
    forks,
)
"""All checks, in the order in which they are reported."""
