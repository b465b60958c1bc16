"""One model call through the gateway: forwarded to the seat's policy, answered as it answered, and recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agent_env.context import new_call_id
from agent_env.episodes import CallRecord
from agent_env.errors import (
    AgentEnvError,
    DeadlineExceeded,
    InvalidArguments,
    NotSupported,
    ProtocolError,
    TransportError,
)
from agent_env.gateway.capture import NO_ANSWER, StreamCapture, told_failure
from agent_env.gateway.dialects import CHAT, TRANSLATED, Dialect, Translation
from agent_env.gateway.dialects.usage import WithoutUsage
from agent_env.gateway.http import Receive, Send, dump_read, parse_object, reply, reply_error
from agent_env.gateway.policies import Admission
from agent_env.gateway.presence import in_time, until_gone
from agent_env.gateway.recording import MOST_CHOICES, Recording, came, number_of
from agent_env.gateway.retries import mark_of, tell
from agent_env.gateway.runs import OpenRun
from agent_env.gateway.upstream import Endpoint, NotConnected, Reply, post, too_large
from agent_env.net.http import MODEL_CALL_HEADER

_PASSED_BACK = (b"retry-after", b"x-request-id", b"request-id", b"x-should-retry")
"""Headers of an upstream that mean something to OpenAI's and Anthropic's clients."""

_MODEL_CALL = MODEL_CALL_HEADER.lower().encode()
_SHOWN_ERROR = 2000
_TRIES = 3
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What an agent sent: in which dialect, its body, and its headers (lower-case names)."""

    dialect: Dialect
    body: bytes
    headers: Mapping[bytes, bytes]


class ModelCall:
    """An answer of a model that a turn asks for.

    The body goes out as it came in, with the seat's model in place of the agent's and with the wish for token ids and
    for the usage of a stream; the answer goes back byte for byte, without that usage where the agent did not ask. Where
    the policy is asked in another dialect than the agent speaks, both are translated. The record is on disk before the
    caller has the answer's end. A server that answers a stream with a whole, or the other way round, is put right: the
    caller gets what it asked for.
    """

    def __init__(
        self,
        run: OpenRun,
        episode: str,
        seat: str,
        turn: str,
        request: ModelRequest,
        admission: Admission,
        max_reply: int,
    ) -> None:
        dialect = self._dialect = request.dialect
        asked = parse_object(request.body, f"the body of a {dialect.what} must be a JSON object")
        if isinstance(number := asked.get("n"), int) and number > MOST_CHOICES:
            raise InvalidArguments(f"at most {MOST_CHOICES} choices (`n`) are asked for at once, not {number}")
        policy = run.seats[seat]
        self._translation, self._upstream = _translation(dialect, policy.dialects, asked)
        mark = mark_of(request.headers)
        served = admission.served
        record = CallRecord(new_call_id(), turn, seat, served.model, episode, run.name, dialect.name)
        record.policy = admission.policy.name
        record.upstream_api = None if self._translation is None else self._upstream.name
        record.stream = bool(asked.get("stream"))
        attempt, repeats = run.recent.add((episode, seat, turn), mark, request.body, record.call_id)
        tell(record, mark, repeats)
        record.request = dict(asked)
        self._wish = asked.get("stream")
        record.started = time.time()
        self._record = record
        self._recording = Recording(
            record, run.journal, attempt, self._upstream, tokens=policy.tokens, version=served.version
        )
        self._max_reply = max_reply
        self._policy = admission.policy
        self._endpoints = admission.route(self._upstream.name, f"{episode}/{seat}")
        sent = asked if self._translation is None else self._translation.chat
        self._own_logprobs = self._upstream.wants_logprobs(sent)
        sent.update(policy.settings)
        if self._translation is not None and sent.get("n") not in (None, 1):
            raise InvalidArguments(f"an answer of {dialect.name} has one choice, not {sent['n']!r:.40} (`n`)")
        record.temperature = number_of(sent.get("temperature"))
        sent["model"] = served.model
        if policy.tokens:
            self._upstream.ask_for_tokens(sent)
        self._added_usage = policy.tokens and self._upstream.ask_for_usage(sent)
        self._sent = dump_read(sent)
        self._passed_on = b"".join(
            b"%b: %b\r\n" % (name, request.headers[name])
            for name in self._upstream.passed_on
            if name in request.headers
        )
        self._answered_by: Endpoint | None = None
        self._wait: asyncio.Timeout | None = None
        self._ended_by: AgentEnvError | None = None

    async def play(self, receive: Receive, send: Send, timeout: float) -> None:
        """Forwards the call and answers; a caller that goes away ends the upstream's work."""
        task = asyncio.current_task()
        assert task is not None
        watcher = asyncio.ensure_future(until_gone(receive, task))
        try:
            await self._play(send, timeout)
        except asyncio.CancelledError:
            gone = watcher.done()
            told = "the caller went away" if gone else "the server of the gateway ended the call"
            await self._recording.keep(TransportError(told), status="cancelled")
            if not gone or task.uncancel():
                raise
        finally:
            watcher.cancel()

    async def _play(self, send: Send, timeout: float) -> None:
        try:
            await self._forward(send, timeout)
        except AgentEnvError as error:
            await self._keep_failed(error)
            status = self._dialect.status(error)
            await in_time(reply_error(send, error, self._dialect.refusal(status, error.to_wire()), status=status))
        except Exception as error:
            # A fault of the gateway's own goes on as one, but the call that was made leaves its record.
            with suppress(asyncio.CancelledError):  # also where the caller leaves meanwhile
                await self._recording.keep(AgentEnvError(f"the gateway failed: {type(error).__name__}: {error}"))
            raise

    async def _keep_failed(self, error: AgentEnvError) -> None:
        """Records a call that failed; its caller is told which, where it is the model that did."""
        if error is not self._ended_by and not self._recording.kept:
            error.data["model_call"] = self._record.call_id
        await self._recording.keep(error)

    def end(self, error: AgentEnvError) -> None:
        """Ends the wait for the model's answer with an error; a call that has its whole answer goes on."""
        self._ended_by = error
        if self._wait is not None:
            with suppress(RuntimeError):  # between two waits: the next one ends as it begins
                self._wait.reschedule(0.0)

    def _waiting(self, until: float) -> asyncio.Timeout:
        self._wait = asyncio.timeout_at(until if self._ended_by is None else 0.0)
        return self._wait

    async def _forward(self, send: Send, timeout: float) -> None:
        until = asyncio.get_running_loop().time() + timeout
        upstream: Reply | None = None
        try:
            async with self._waiting(until):
                upstream = await self._ask()
                self._record.http_status = upstream.status
                streamed = upstream.status == 200 and upstream.headers.get(b"content-type", b"").startswith(_EVENTS)
                relayed = streamed and bool(self._wish)
                answer = b"" if relayed else await upstream.read(self._max_reply)
            if relayed:
                await self._stream(upstream, send, until)
            else:
                await self._answer(upstream, answer, streamed, send)
        except TimeoutError:
            raise self._late() from None
        finally:
            if upstream is not None:
                upstream.close()

    async def _ask(self) -> Reply:
        """Sends the call; where no connection can be made nothing was sent, so the next place is tried."""
        tries = max(_TRIES, len(self._endpoints))
        for number in range(tries):
            if number >= len(self._endpoints):
                await asyncio.sleep(_PAUSE_SECONDS * 2 ** (number - len(self._endpoints)))
            endpoint = self._endpoints[number % len(self._endpoints)]
            try:
                answer = await post(endpoint, self._sent, self._passed_on)
                self._policy.wake(endpoint)
                self._answered_by = endpoint
                return answer
            except NotConnected as error:
                self._policy.rest(endpoint)
                if number == tries - 1:
                    raise TransportError(str(error)) from error
                self._record.retries = number + 1
        raise AssertionError

    async def _answer(self, upstream: Reply, answer: bytes, streamed: bool, send: Send) -> None:
        kind, failure = _JSON, None
        if upstream.status == 200:
            if streamed:
                answer = self._take_streamed(answer)
            else:
                kind = _EVENTS if self._wish is True else _JSON
                answer, failure = self._take_whole(answer, as_events=kind is _EVENTS)
            await self._keep_answered(failure)
        else:
            shown = answer[:_SHOWN_ERROR].decode("utf-8", "replace")
            await self._recording.keep(ProtocolError(shown), status="upstream_error")
            if self._translation is not None:
                answer = dump_read(self._dialect.refusal(upstream.status, _error_of(answer)))
        back = [(name, upstream.headers[name]) for name in _PASSED_BACK if name in upstream.headers]
        if upstream.status != 200:
            back.append((_MODEL_CALL, self._record.call_id.encode()))
        await in_time(reply(send, upstream.status, answer, back, kind))

    def _take_whole(self, answer: bytes, *, as_events: bool) -> tuple[bytes, str | None]:
        """Takes a whole answer; returns what goes out for it, and what it tells of an error of the server's."""
        response, translation = _object(answer), self._translation
        failure, as_it_is = told_failure(response), translation is None and not as_events
        if failure is not None:
            self._record.response = response
            if not as_it_is:
                raise ProtocolError(failure)
            return answer, failure
        if as_it_is:
            self._recording.take(response, keep_logprobs=self._own_logprobs)
            return answer, None
        translated = None
        try:
            if translation is not None:
                translated = translation.whole(response)
                told = translation.flush() if as_events else dump_read(translated)
            else:
                told = self._dialect.events(response, self._record.request)
        except (*NO_ANSWER, InvalidArguments):
            raise self._recording.no_answer() from None
        self._take(response, translated)
        return told, None

    def _take_streamed(self, answer: bytes) -> bytes:
        """Takes a stream that nobody asked for; returns the whole that it tells."""
        translation = self._translation
        whole = self._upstream.stream(None if translation is None else translation.take)
        try:
            whole.feed(answer)
            if whole.failure is not None or not whole.done:
                raise _broken_off(whole)
            response, translated = came(whole), None if translation is None else self._ended(translation)
            if response is None:
                raise self._recording.no_answer()
            told = dump_read(response if translated is None else translated)
        except InvalidArguments:
            raise self._recording.no_answer() from None
        except AgentEnvError:
            self._recording.take_came(whole)
            raise
        self._take(response, translated)
        return told

    def _take(self, response: dict[str, Any], translated: dict[str, Any] | None) -> None:
        self._recording.take(response, keep_logprobs=self._own_logprobs)
        if translated is not None:
            self._record.response = translated

    async def _stream(self, upstream: Reply, send: Send, until: float) -> None:
        translation = self._translation
        whole = self._upstream.stream(None if translation is None else translation.take)
        head = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        begun = False
        try:
            async with self._waiting(until):
                await send({"type": "http.response.start", "status": 200, "headers": head})
                begun = True
                await (self._relay if translation is None else self._translate)(upstream, whole, send)
            if not whole.done:
                raise _broken_off(whole)
        except (AgentEnvError, TimeoutError) as failure:
            error = failure if isinstance(failure, AgentEnvError) else self._late()
            self._recording.take_came(whole)
            await self._keep_failed(error)
            if not begun:
                raise error from None
            # The status is out already; clients raise what an error event tells.
            await in_time(send({"type": "http.response.body", "body": self._dialect.broken(error)}))
            return
        except asyncio.CancelledError:
            self._recording.take_came(whole)
            raise
        await in_time(send({"type": "http.response.body", "body": b""}))

    async def _relay(self, upstream: Reply, whole: StreamCapture, send: Send) -> None:
        """Passes a stream on as it comes. The record is on disk before its last event goes out."""
        size, without = 0, WithoutUsage() if self._added_usage else None
        while piece := await upstream.next():
            size = self._counted(size, piece)
            whole.feed(piece)
            if whole.done:
                await self._keep_stream(whole, None)
            if without is not None:
                piece = without.pass_on(piece) + (without.rest() if whole.done else b"")
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _translate(self, upstream: Reply, whole: StreamCapture, send: Send) -> None:
        """Passes a stream on as another dialect tells it."""
        translation, size = self._translation, 0
        assert translation is not None
        while piece := await upstream.next():
            size = self._counted(size, piece)
            whole.feed(piece)
            if whole.failure is not None:
                raise _broken_off(whole)
            if whole.done and not self._recording.kept:
                await self._keep_stream(whole, self._ended(translation))
            if events := translation.flush():
                await send({"type": "http.response.body", "body": events, "more_body": True})

    def _ended(self, translation: Translation) -> dict[str, Any]:
        try:
            return translation.end()
        except (*NO_ANSWER, InvalidArguments):
            raise self._recording.no_answer() from None

    def _counted(self, size: int, piece: bytes) -> int:
        if size + len(piece) > self._max_reply:
            raise too_large(self._max_reply)
        return size + len(piece)

    async def _keep_stream(self, whole: StreamCapture, translated: dict[str, Any] | None) -> None:
        if self._recording.kept:
            return
        response = came(whole)
        if response is None:
            raise self._recording.no_answer()
        if whole.failure is None:
            self._take(response, translated)
        else:
            self._record.response = response
        await self._keep_answered(whole.failure)

    async def _keep_answered(self, failure: str | None) -> None:
        """Records a call whose answer is whole, be it one that tells an error of the server's."""
        if failure is not None:
            await self._recording.keep(ProtocolError(failure), status="upstream_error")
            return
        await self._recording.complete(self._answered_by, self._sent)
        await self._recording.keep()

    def _late(self) -> AgentEnvError:
        return self._ended_by or DeadlineExceeded(f"{self._endpoints[0].url} did not answer within the time allowed")


_JSON = b"application/json"
_EVENTS = b"text/event-stream"


def _broken_off(whole: StreamCapture) -> AgentEnvError:
    if whole.failure is not None:
        return ProtocolError(whole.failure)
    return TransportError("the model's server ended its stream before its last event (data: [DONE] in chat)")


def _translation(
    dialect: Dialect, spoken: tuple[str, ...], request: Mapping[str, Any]
) -> tuple[Translation | None, Dialect]:
    """How a call goes to a policy that speaks these dialects, and in which one."""
    if dialect.name in spoken:
        return None, dialect
    if CHAT.name in spoken and dialect.name in TRANSLATED:
        return TRANSLATED[dialect.name](request), CHAT
    raise NotSupported(
        f"this seat's policy is asked in {', '.join(spoken)}, and {dialect.name} cannot be put in these; "
        "ask in one of them, or list the dialect in the seat's `dialects` if its server speaks it"
    )


def _object(answer: bytes) -> dict[str, Any]:
    try:
        return parse_object(answer, "the model's server answered with what is not a JSON object")
    except InvalidArguments as error:
        raise ProtocolError(error.message) from None


def _error_of(answer: bytes) -> dict[str, Any]:
    """What a server's error says, to be told in another dialect."""
    try:
        error = _object(answer).get("error")
    except ProtocolError:
        error = None
    message = error.get("message") if isinstance(error, dict) else error
    code = error.get("code") if isinstance(error, dict) else None
    shown = message if isinstance(message, str) else answer[:_SHOWN_ERROR].decode("utf-8", "replace")
    return {"code": code or "upstream_error", "message": shown}
