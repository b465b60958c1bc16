"""Plays a message as a turn of the agent: state in, events out, and everything committed at the end or not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_env.context import Peer, PeerSource
from agent_env.errors import AgentFailed, DeadlineExceeded, InvalidArguments, NeedUnmet, ReentrantCall
from agent_env.runtime import chat
from agent_env.runtime.caller import Caller
from agent_env.runtime.calls import Call, Outcome
from agent_env.runtime.definition import Definition, SessionView
from agent_env.runtime.owned import copied
from agent_env.runtime.parts import encode_message, reply_parts
from agent_env.runtime.results import ToolResult
from agent_env.runtime.rewards import earn, total
from agent_env.runtime.sessions import Session, acquire
from agent_env.runtime.turns import OnEvent, attributed, play
from agent_env_wrappers.contract import (
    AgentInfo,
    Answer,
    Done,
    FilePart,
    Interrupt,
    Limits,
    Message,
    ModelRoute,
    PeerTool,
    TextPart,
    Turn,
)
from agent_env_wrappers.threads import blocking

PEER_PARAMETERS = {
    "type": "object",
    "properties": {"message": {"type": "string", "description": "What you say to it."}},
    "required": ["message"],
    "additionalProperties": False,
}
"""The schema of a peer as a tool. It has no session id: random ids must not enter prompts and training rows."""


class Talk:
    """Plays messages as turns of one agent."""

    def __init__(
        self, definition: Definition, info: AgentInfo, peers: PeerSource | None, turns: asyncio.Lock | None
    ) -> None:
        self._definition = definition
        self._info = info
        self._peers = peers
        self._turns = turns

    async def say(
        self,
        session: Session,
        message: Message,
        arguments: Mapping[str, Any],
        caller: Caller,
        on_event: OnEvent | None,
    ) -> ToolResult:
        """Plays one turn of a session whose lock the caller holds."""
        self._refuse_after_the_end(session)
        answers = chat.read_answer(arguments, message, session.interrupt)
        request: Any = message.text if len(message.parts) == 1 and isinstance(message.parts[0], TextPart) else None
        call = Call(
            self._definition,
            session,
            caller,
            tool=chat.NAME,
            request=encode_message(message) if request is None else request,
        )

        async def work() -> Outcome:
            peers = await self._open_peers(session, call)
            frame = call.frame
            turn = Turn(
                message=message,
                state=session.state,
                answers=answers,
                tools=self._tools(peers),
                model=self._route(call),
                limits=Limits(seconds=frame.seconds_left()),
                conversation_id=session.hash,
                turn_id=frame.call_id,
                context={
                    "episode": frame.episode,
                    "trace_id": frame.trace_id,
                    "call_id": frame.call_id,
                    "caller": caller.context.chain[-1].environment if caller.context.chain else None,
                    "depth": caller.context.depth,
                    "seat": frame.seat,
                },
            )
            last = _carried(await self._play(turn, call, on_event), self._definition.identity)
            if isinstance(last, Interrupt):
                return self._asked(session, call, turn, last)
            return await self._answered(session, call, turn, last)

        return await call.play(work)

    def _refuse_after_the_end(self, session: Session) -> None:
        limit = self._definition.limits.turn_limit
        if session.terminated:
            raise InvalidArguments("the episode of this session has ended; reset it, or open a new session")
        if limit is not None and session.turns >= limit:
            raise InvalidArguments(f"this session has had its {limit} turns; reset it, or open a new session")

    async def _play(self, turn: Turn, call: Call, on_event: OnEvent | None) -> Done | Interrupt:
        agent, abandoned = self._definition.identity, self._definition.abandoned
        if self._turns is None:
            return await play(self._definition.wrapper, turn, call.frame, on_event, agent=agent, abandoned=abandoned)
        if any(link.environment == agent for link in call.frame.chain[:-1]):
            raise ReentrantCall(
                f"{agent} plays one turn at a time, and the chain of this call waits for one already; serve it with "
                "an agent that can play several at once, or do not call it back"
            )
        await acquire(self._turns, call.frame.seconds_left(), f"another conversation of {agent}")
        try:
            return await play(self._definition.wrapper, turn, call.frame, on_event, agent=agent, abandoned=abandoned)
        finally:
            self._turns.release()

    async def _open_peers(self, session: Session, call: Call) -> Sequence[Peer]:
        if session.peers is None:
            if self._peers is None:
                if self._definition.needs:
                    raise NeedUnmet(f"{self._definition.identity} needs peers, and nothing here can find any")
                session.peers = ()
            else:
                try:
                    async with asyncio.timeout(call.frame.seconds_left()):
                        session.peers = await self._peers.open()
                except TimeoutError:
                    raise DeadlineExceeded(
                        f"no peers were found for {self._definition.identity} before the deadline; allow more time"
                    ) from None
        if session.peers:
            call.frame.facts["pairings"] = {peer.seat: dict(peer.pairing) for peer in session.peers}
        return session.peers

    def _tools(self, peers: Sequence[Peer]) -> tuple[PeerTool, ...]:
        if not peers:
            return ()
        loop = asyncio.get_running_loop()
        tools: list[PeerTool] = []
        for peer in peers:

            async def ask(message: str, *, _peer: Peer = peer) -> str:
                return await _peer.ask(message)

            tools.append(
                PeerTool(
                    name=f"ask_{peer.seat.replace('-', '_')}",
                    description=peer.description,
                    parameters=PEER_PARAMETERS,
                    acall=ask,
                    call=blocking(loop, ask),
                    seat=peer.seat,
                )
            )
        return tuple(tools)

    def _route(self, call: Call) -> ModelRoute | None:
        run = call.frame.run
        if run is None or run.route is None:
            return None
        return ModelRoute(run.model_url(call.frame.call_id), run.route.model, api_key=run.route.token)

    def _asked(self, session: Session, call: Call, turn: Turn, last: Interrupt) -> Outcome:
        question = {"id": last.id, "kind": last.kind, "prompt": last.prompt, "schema": last.schema}

        def commit() -> None:
            session.state = last.state
            session.interrupt = last
            session.messages = [*session.messages, *_exchange(turn.message, turn.answers, last.prompt)]

        result = ToolResult(
            reply_parts(last.prompt, None),
            last.prompt,
            session_id=session.id,
            usage=last.usage,
            stop="input_required",
            interrupt=question,
            call_id=call.frame.call_id,
        )
        return Outcome(result, commit)

    async def _answered(self, session: Session, call: Call, turn: Turn, last: Done) -> Outcome:
        memory = session.memory
        reward: float | None = None
        done = False
        if self._definition.rewards:
            memory = copied(session.memory, self._definition)
            view = SessionView.of(session, memory=memory, message=turn.message.text, reply=last.text, data=last.data)
            view.turns += 1
            view.messages = [*session.messages, *_exchange(turn.message, turn.answers, last.text)]
            given: list[tuple[float, Any]] = []
            for name, declared in self._definition.rewards.items():
                who = f"the reward {name!r} of {self._definition.identity}"
                value = await call.bounded(attributed(declared.call({}, {"session": view}), who))
                given.append((declared.weight, earn(name, value)))
            reward, done = total(given)
            call.frame.facts["rewards"] = {
                name: item.value for name, (_, item) in zip(self._definition.rewards, given, strict=True)
            }

        def commit() -> None:
            session.state = last.state
            session.interrupt = None
            session.messages = [*session.messages, *_exchange(turn.message, turn.answers, last.text)]
            session.memory = memory
            session.turns += 1
            session.terminated = done

        result = ToolResult(
            reply_parts(last.text, last.data),
            last.text,
            last.data,
            session_id=session.id,
            usage=last.usage,
            reward=reward,
            stop=last.stop,
            call_id=call.frame.call_id,
        )
        return Outcome(result, commit)


def _carried(last: Done | Interrupt, agent: str) -> Done | Interrupt:
    """The end of a turn as every protocol can carry it; raises `AgentFailed` for data that none can."""
    if isinstance(last, Interrupt):
        prompt = _well_formed(last.prompt)
        return last if prompt is last.prompt else replace(last, prompt=prompt)
    if last.data is not None:
        try:
            json.dumps(last.data, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise AgentFailed(f"{agent} replied with data that are no JSON: {error}", agent=agent) from error
    text = _well_formed(last.text)
    return last if text is last.text else replace(last, text=text)


def _well_formed(text: str) -> str:
    """The text with whole characters: models that stream cut them in two halves, and some halves stay alone.

    Two halves become the character that they are, one becomes U+FFFD (as `toWellFormed` of ECMAScript has it).
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _exchange(message: Message, answers: Sequence[Answer], reply: str) -> list[dict[str, str]]:
    """A turn as people read it: what has no words of its own stands there as JSON, a file by its name."""
    lines = [
        f"[{part.name or part.media_type}]"
        if isinstance(part, FilePart)
        else part.text
        if isinstance(part, TextPart)
        else json.dumps(part.data, ensure_ascii=False)
        for part in message.parts
    ]
    said = "\n".join(line for line in lines if line)
    if not said:
        values = [answer.value for answer in answers]
        said = "\n".join(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)
    return [{"role": "user", "content": said}, {"role": "assistant", "content": reply}]
