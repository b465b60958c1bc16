"""One model call through the gateway: forwarded to the seat's policy, answered as it answered, and recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from agent_env.context import new_call_id
from agent_env.episodes import CallRecord
from agent_env.episodes.records import check_fields
from agent_env.errors import (
    AgentEnvError,
    DeadlineExceeded,
    InvalidArguments,
    NotSupported,
    ProtocolError,
    TransportError,
)
from agent_env.gateway.capture import StreamCapture, note_missing
from agent_env.gateway.dialects import CHAT, TRANSLATED, Dialect, Translation
from agent_env.gateway.http import Receive, Send, dump_read, parse_object, reply, reply_error
from agent_env.gateway.policies import Admission
from agent_env.gateway.prompts import add_prompt
from agent_env.gateway.retries import mark_of
from agent_env.gateway.runs import OpenRun
from agent_env.gateway.upstream import Endpoint, NotConnected, Reply, post, too_large

R = TypeVar("R")

_PASSED_BACK = (b"retry-after", b"x-request-id", b"request-id", b"x-should-retry")
"""Headers of an upstream that mean something to OpenAI's and Anthropic's clients."""

_SHOWN_ERROR = 2000
_TRIES = 3
_PAUSE_SECONDS = 0.05
_LAST_SECONDS = 5.0
"""How long a caller that does not read may keep a call whose answer is whole, or failed."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What an agent sent: in which dialect, its body, and its headers (lower-case names)."""

    dialect: Dialect
    body: bytes
    headers: Mapping[bytes, bytes]


class ModelCall:
    """An answer of a model that a turn asks for.

    The body goes out as it came in, with the seat's model in place of the agent's and with the wish for token ids;
    the answer goes back byte for byte. Where the policy is asked in another dialect than the agent speaks, both are
    translated. The record is on disk before the caller has the answer's end.
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
        policy = run.seats[seat]
        self._translation, self._upstream = _translation(dialect, policy.dialects, asked)
        mark = mark_of(request.headers)
        served = admission.served
        record = CallRecord(new_call_id(), turn, seat, served.model, episode, run.name, dialect.name)
        record.policy = admission.policy.name
        record.upstream_api = None if self._translation is None else self._upstream.name
        record.stream = bool(asked.get("stream"))
        record.attempt = mark.attempt or None
        self._try, record.retry_of = run.recent.add((episode, seat, turn), mark, request.body, record.call_id)
        record.request = dict(asked)
        record.started = time.time()
        self._record = record
        self._run = run
        self._max_reply = max_reply
        self._tokens = policy.tokens
        self._policy, self._version = admission.policy, served.version
        self._endpoints = admission.route(self._upstream.name, f"{episode}/{seat}")
        sent = asked if self._translation is None else self._translation.chat
        self._own_logprobs = self._upstream.wants_logprobs(sent)
        sent.update(policy.settings)
        record.temperature = _number(sent.get("temperature"))
        sent["model"] = served.model
        if policy.tokens:
            self._upstream.ask_for_tokens(sent)
        self._sent = dump_read(sent)
        self._passed_on = b"".join(
            b"%b: %b\r\n" % (name, request.headers[name])
            for name in self._upstream.passed_on
            if name in request.headers
        )
        self._begun = time.monotonic()
        self._answered_by: Endpoint | None = None
        self._kept = False

    async def play(self, receive: Receive, send: Send, timeout: float) -> None:
        """Forwards the call and answers; a caller that goes away ends the upstream's work."""
        task = asyncio.current_task()
        assert task is not None
        watcher = asyncio.ensure_future(_until_gone(receive, task))
        try:
            await self._forward(send, timeout)
        except AgentEnvError as error:
            await self._keep(error)
            status = self._dialect.status(error)
            await reply_error(send, error, self._dialect.refusal(status, error.to_wire()), status=status)
        except asyncio.CancelledError:
            await self._keep(TransportError("the caller went away"), status="cancelled")
            if not watcher.done() or task.uncancel():
                raise
        except Exception as error:
            # A fault of the gateway's own goes on as one, but the call that was made leaves its record.
            await self._keep(AgentEnvError(f"the gateway failed: {type(error).__name__}: {error}"))
            raise
        finally:
            watcher.cancel()

    async def _forward(self, send: Send, timeout: float) -> None:
        until = asyncio.get_running_loop().time() + timeout
        upstream: Reply | None = None
        try:
            async with asyncio.timeout_at(until):
                upstream = await self._ask()
                self._record.http_status = upstream.status
                streamed = upstream.status == 200 and upstream.headers.get(b"content-type", b"").startswith(_EVENTS)
                answer = b"" if streamed else await upstream.read(self._max_reply)
            if streamed:
                await self._stream(upstream, send, until)
            else:
                await self._answer(upstream, answer, send)
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

    async def _answer(self, upstream: Reply, answer: bytes, send: Send) -> None:
        if upstream.status == 200:
            answer = self._take_whole(answer)
            await self._complete()
            await self._keep()
            self._try.answered = True
        else:
            shown = answer[:_SHOWN_ERROR].decode("utf-8", "replace")
            await self._keep(ProtocolError(shown), status="upstream_error")
            if self._translation is not None:
                answer = dump_read(self._dialect.refusal(upstream.status, _error_of(answer)))
        back = [(name, upstream.headers[name]) for name in _PASSED_BACK if name in upstream.headers]
        await reply(send, upstream.status, answer, back)

    def _take_whole(self, answer: bytes) -> bytes:
        response = _object(answer)
        if self._translation is None:
            self._take(response)
            return answer
        try:
            translated = self._translation.whole(response)
            told = dump_read(translated)
        except (*_NO_ANSWER, InvalidArguments):
            raise self._no_answer() from None
        self._take(response)
        self._record.response = translated
        return told

    async def _stream(self, upstream: Reply, send: Send, until: float) -> None:
        translation = self._translation
        whole = self._upstream.stream(None if translation is None else translation.take)
        head = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        try:
            async with asyncio.timeout_at(until):
                await (self._relay if translation is None else self._translate)(upstream, whole, send)
            if not whole.done:
                raise TransportError("the model's server ended its stream before its last event (data: [DONE] in chat)")
        except (AgentEnvError, TimeoutError) as failure:
            error = failure if isinstance(failure, AgentEnvError) else self._late()
            self._record.response = self._record.response or self._came(whole)
            await self._keep(error)
            # The status is out already; clients raise what an error event tells. One that does not read is let go.
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    await send({"type": "http.response.body", "body": self._dialect.broken(error), "more_body": True})
                    await send({"type": "http.response.body", "body": b""})
            return
        except asyncio.CancelledError:
            self._record.response = self._record.response or self._came(whole)
            raise
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                await send({"type": "http.response.body", "body": b""})

    async def _relay(self, upstream: Reply, whole: StreamCapture, send: Send) -> None:
        """Passes a stream on as it comes. The record is on disk before its last event goes out."""
        size = 0
        while piece := await upstream.next():
            size = self._counted(size, piece)
            whole.feed(piece)
            if whole.done:
                await self._keep_stream(whole, None)
            await send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _translate(self, upstream: Reply, whole: StreamCapture, send: Send) -> None:
        """Passes a stream on as another dialect tells it."""
        translation, size = self._translation, 0
        assert translation is not None
        while piece := await upstream.next():
            size = self._counted(size, piece)
            whole.feed(piece)
            if whole.done and not self._kept:
                await self._keep_stream(whole, self._ended(translation))
            if events := translation.flush():
                await send({"type": "http.response.body", "body": events, "more_body": True})

    def _ended(self, translation: Translation) -> dict[str, Any]:
        try:
            return translation.end()
        except (*_NO_ANSWER, InvalidArguments):
            raise self._no_answer() from None

    def _came(self, whole: StreamCapture) -> dict[str, Any] | None:
        """The answer as far as its stream came; None where its parts make none."""
        try:
            return whole.finish()
        except _NO_ANSWER:
            return None

    def _counted(self, size: int, piece: bytes) -> int:
        if size + len(piece) > self._max_reply:
            raise too_large(self._max_reply)
        return size + len(piece)

    async def _keep_stream(self, whole: StreamCapture, translated: Any) -> None:
        if self._kept:
            return
        response = self._came(whole)
        if response is None:
            raise self._no_answer()
        self._take(response)
        if translated is not None:
            self._record.response = translated
        await self._complete()
        await self._keep()
        self._try.answered = True

    async def _complete(self) -> None:
        """Asks for the prompt's tokens where the answer told those that were sampled and not these."""
        record, endpoint = self._record, self._answered_by
        if endpoint is not None and self._tokens and self._upstream is CHAT:
            await add_prompt(record, endpoint, self._sent)

    def _take(self, response: dict[str, Any]) -> None:
        record = self._record
        try:
            self._upstream.capture(record, response, keep_logprobs=self._own_logprobs)
            check_fields(record)
        except (*_NO_ANSWER, ProtocolError):
            # A record that could not be read again would cost the whole episode.
            record.prompt_token_ids = record.token_ids = record.logprobs = record.usage = record.finish_reason = None
            raise self._no_answer() from None
        note_missing(record, asked=self._tokens, tellable=self._upstream.tells)

    def _no_answer(self) -> ProtocolError:
        return ProtocolError(f"the model's server answered with what is no {self._upstream.what}")

    def _late(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"{self._endpoints[0].url} did not answer within the time allowed")

    async def _keep(self, error: AgentEnvError | None = None, *, status: str | None = None) -> None:
        """Puts the record on disk, once: what fails afterwards is not the model's."""
        if self._kept:
            return
        self._kept = True
        if error is not None:
            self._tell(error, status)
        self._record.seconds = time.monotonic() - self._begun
        if self._record.policy_version is None:
            self._record.policy_version = self._version
        try:
            line = dump_read(self._record.to_json())
        except InvalidArguments as unwritable:
            self._record.request = self._record.response = None
            self._tell(ProtocolError(unwritable.message), None)
            line = dump_read(self._record.to_json())
        await self._run.journal.append(self._record.episode or "", [line + b"\n"])

    def _tell(self, error: AgentEnvError, status: str | None) -> None:
        self._record.status = status or error.code
        self._record.error = {"code": self._record.status, "message": error.message}


_EVENTS = b"text/event-stream"

_NO_ANSWER = (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError)
"""What taking an answer apart raises where it is not of its dialect's form."""


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None  # a whole number beyond what a float holds: the server may say what it thinks of it


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


async def while_there(receive: Receive, waiting: Coroutine[Any, Any, R]) -> R:
    """What a call waits for, as long as its caller does; raises `TransportError` when that has gone away."""
    task = asyncio.ensure_future(waiting)
    watcher = asyncio.ensure_future(_until_gone(receive, task))
    try:
        await asyncio.wait({task})
        if task.cancelled():
            raise TransportError("the caller went away while its call was held")
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()


async def _until_gone(receive: Receive, task: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()


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
