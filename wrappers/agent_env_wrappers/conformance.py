"""The contract as a function: plays a wrapper through everything it claims, and shows that it refuses the rest.

    report = await check_wrapper(Subject(make=lambda: MyWrapper(MyAgent()), seen=..., ...))
    print(report)
    assert report.ok

Each check shows a capability, or shows that what the caps deny is refused clearly. A capability that the caps claim
and that the subject gives no words to provoke fails its check: what nobody can see is not there.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from agent_env_wrappers.contract import (
    AgentError,
    Answer,
    Caps,
    Done,
    Event,
    Interrupt,
    Json,
    Message,
    ModelRoute,
    PeerTool,
    TextDelta,
    ToolCall,
    ToolReturn,
    Turn,
    WrapError,
    Wrapper,
)
from agent_env_wrappers.registry import wrap
from agent_env_wrappers.threads import blocking

T = TypeVar("T")


def seen_in(reply: str) -> int:
    """Reads `seen=<n>` from a reply: how many messages of the caller the agent has seen."""
    found = re.search(r"seen=(\d+)", reply)
    if found is None:
        raise ConformanceError(f"the reply {reply!r} does not tell how many messages the agent has seen")
    return int(found[1])


class ConformanceError(AssertionError):
    """A wrapper does not do what it claims, or not as the contract says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An agent to check, and what to say to it so that it shows what it can.

    | field | the agent, told this, ... |
    |---|---|
    | `hello` | answers; `seen(reply)` tells how many messages of the caller it has seen in this conversation |
    | `use_tool` | calls a tool of its own and answers |
    | `ask_peer` | calls the tool `ask_solver` (seat "solver") and repeats its reply |
    | `ask_caller` | interrupts; given `answer`, it goes on and answers |
    | `hang` | does not answer within the test; `hanging()` returns once it is at it |
    | `fail` | fails |

    `make()` gives a new agent or wrapper. `route(word)` gives a route to another model, whose replies hold the word.
    """

    make: Callable[[], object]
    hello: str = "hello"
    seen: Callable[[str], int] = seen_in
    use_tool: str | None = None
    ask_peer: str | None = None
    ask_caller: str | None = None
    answer: Json = True
    hang: str | None = None
    hanging: Callable[[], Awaitable[Any]] | None = None
    fail: str | None = None
    route: Callable[[str], ModelRoute] | None = None


class Outcome(NamedTuple):
    """What one check found: the capability was shown, or is absent and refused clearly, or the check failed."""

    check: str
    verdict: Literal["shown", "absent", "failed"]
    note: str


@dataclass(frozen=True, slots=True)
class Report:
    """What all checks found; `str(report)` is a table for people."""

    framework: str
    outcomes: Sequence[Outcome]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return all(outcome.verdict != "failed" for outcome in self.outcomes)

    def __str__(self) -> str:
        lines = [f"{outcome.verdict:7} {outcome.check:28} {outcome.note}" for outcome in self.outcomes]
        return "\n".join([f"wrapper {self.framework!r}", *lines])


async def check_wrapper(subject: Subject, *, seconds: float = 30.0) -> Report:
    """Runs all checks, each on a new agent and at most `seconds` long."""
    outcomes: list[Outcome] = []
    framework = "?"
    for check in CHECKS:
        try:
            note = await run_check(check, subject, seconds=seconds)
            outcomes.append(Outcome(check.__name__, "absent" if note.startswith("absent") else "shown", note))
        except Exception as error:  # noqa: BLE001 - whatever a wrapper raises is what the report must tell
            outcomes.append(Outcome(check.__name__, "failed", f"{type(error).__name__}: {error}"))
    wrapper = wrap(subject.make())
    framework = (await wrapper.describe()).framework
    await wrapper.aclose()
    return Report(framework, outcomes)


async def run_check(check: Check, subject: Subject, *, seconds: float = 30.0) -> str:
    """Runs one check on a new agent and returns its note; raises what it finds wrong."""
    wrapper = wrap(subject.make())
    try:
        async with asyncio.timeout(seconds):
            caps = (await wrapper.describe()).caps
            return await check(Trial(subject, wrapper, caps))
    finally:
        await wrapper.aclose()


@dataclass(frozen=True, slots=True)
class Trial:
    """One check's agent, and how it is talked to."""

    subject: Subject
    wrapper: Wrapper
    caps: Caps

    async def play(self, said: str, state: Any = None, **more: Any) -> Played:
        """Plays a turn to its end; raises `ConformanceError` when it does not end with exactly one end."""
        events: list[Event] = []
        turn: Any = self.wrapper.run(Turn(Message.of(said), state=state, **more))
        async with aclosing(turn) as stream:
            async for event in stream:
                events.append(event)
        ends = [event for event in events if isinstance(event, Done | Interrupt)]
        require(len(ends) == 1 and events[-1] is ends[0], f"the turn has {len(ends)} ends in {events!r}")
        return Played(events, ends[0])

    async def fork(self, state: Any) -> Any:
        """Copies a conversation as whoever drives the wrapper does."""
        fork = getattr(self.wrapper, "fork", None)
        return copy.deepcopy(state) if fork is None else await fork(state)

    def words(self, name: str) -> str:
        """The subject's words that provoke a capability that the caps claim."""
        words: str | None = getattr(self.subject, name)
        require(words is not None, f"the caps claim what `{name}` would provoke, and the subject has no such words")
        return str(words)

    @property
    def remembers(self) -> bool:
        return self.caps.state != "none"


@dataclass(frozen=True, slots=True)
class Played:
    """A turn that has been played."""

    events: Sequence[Event]
    end: Done | Interrupt

    @property
    def done(self) -> Done:
        """The reply; raises `ConformanceError` when the turn ended with a question."""
        if isinstance(self.end, Interrupt):
            raise ConformanceError(f"the turn ended with a question: {self.end.prompt!r}")
        return self.end

    def of(self, kind: type[T]) -> list[T]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


def require(condition: bool, otherwise: str) -> None:
    """Raises `ConformanceError`; unlike `assert` it is there under `python -O`."""
    if not condition:
        raise ConformanceError(otherwise)


async def refuses(awaitable: Awaitable[Any], kind: type[Exception], *words: str) -> str:
    """Awaits a refusal of one kind whose message has one of the words; returns the message."""
    try:
        await awaitable
    except kind as error:
        message = str(error)
        require(not words or any(word in message for word in words), f"{message!r} names no remedy of {words}")
        return message
    raise ConformanceError(f"it was not refused with {kind.__name__}")


Check = Callable[[Trial], Awaitable[str]]
"""Plays with a new agent, and returns how a capability was shown, or "absent: ..." with the refusal."""


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
        turns = [trial.play(trial.subject.hello, state) for state in states]
        if trial.caps.concurrency == "reentrant":
            played = await asyncio.gather(*turns)
        else:
            played = [await turn for turn in turns]
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
    peers = () if words == "use_tool" else (_Solver("42").tool(),)
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
    await asyncio.wait({task, begun}, return_when=asyncio.FIRST_COMPLETED)
    require(begun.done() and not task.done(), f"it did not hang: {task}")
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5)
    require(bool(done) and task.cancelled(), f"the cancelled turn goes on, or ended otherwise: {task}")
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
    solver = _Solver("the answer is 42")
    if trial.caps.tools != "turn":
        turn = trial.play(trial.subject.hello, tools=(solver.tool(),))
        return "absent: " + await refuses(turn, WrapError, "factory", "peers")
    played = await trial.play(trial.words("ask_peer"), tools=(solver.tool(),))
    require(len(solver.heard) == 1, f"the peer was called {len(solver.heard)} times")
    require("the answer is 42" in played.done.text, f"the peer's reply is not in {played.done.text!r}")
    await trial.play(trial.subject.hello, played.done.state)
    with suppress(AgentError):
        await trial.play(trial.words("ask_peer"), tools=(_Solver(AgentError("the solver is out")).tool(),))
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
    turns = [trial.play(hello, model=route(word)) for word in ("scarlet", "azure")]
    scarlet, azure = await asyncio.gather(*turns) if trial.caps.concurrency == "reentrant" else [await t for t in turns]
    for played, word, other in ((scarlet, "scarlet", "azure"), (azure, "azure", "scarlet")):
        text = played.done.text
        require(word in text and other not in text, f"the turn that was routed to {word!r} says {text!r}")
    own = (await trial.play(hello, scarlet.done.state)).done.text
    require("scarlet" not in own.replace(scarlet.done.text, ""), f"the route outlives its turn: {own!r}")
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


CHECKS: Sequence[Any] = (
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


@dataclass(slots=True)
class _Solver:
    """A peer that gives one reply, or raises it, and keeps what it heard."""

    reply: str | Exception
    heard: list[str] = field(default_factory=list[str])

    def tool(self) -> PeerTool:
        async def acall(message: str) -> str:
            self.heard.append(message)
            if isinstance(self.reply, Exception):
                raise self.reply
            return self.reply

        return PeerTool(
            name="ask_solver",
            description="Asks the solver, who answers any question.",
            parameters={"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
            acall=acall,
            call=blocking(asyncio.get_running_loop(), acall),
            seat="solver",
        )
