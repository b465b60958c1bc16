"""One model call through the gateway: forwarded to the seat's policy, answered as it answered, and recorded."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp

from agent_env.context import new_call_id
from agent_env.episodes import CallRecord
from agent_env.episodes.records import check_fields
from agent_env.errors import AgentEnvError, InvalidArguments, MessageTooLarge, ProtocolError, TransportError
from agent_env.gateway.capture import StreamCapture, ask_for_tokens, capture
from agent_env.gateway.http import Receive, Send, dump, parse_object, reply, reply_error
from agent_env.gateway.runs import OpenRun
from agent_env.net import read_body, shared_http, transport_errors

_PASSED_BACK = ("retry-after", "x-request-id", "x-should-retry")
"""Headers of an upstream that mean something to OpenAI clients."""

_SHOWN_ERROR = 2000


class ModelCall:
    """A chat completion that a turn asks for.

    The body goes out as it came in, with the seat's model in place of the agent's and with the wish for token ids;
    the answer goes back byte for byte. The record is on disk before the caller has the answer's end.
    """

    def __init__(self, run: OpenRun, episode: str, seat: str, turn: str, body: bytes, max_reply: int) -> None:
        request = parse_object(body, "the body of a chat completion must be a JSON object")
        self._run = run
        self._seating = run.seating
        self._max_reply = max_reply
        policy = run.seats[seat]
        self._own_logprobs = bool(request.get("logprobs"))
        self._record = CallRecord(
            new_call_id(), turn, seat, policy.model, episode, run.name, stream=bool(request.get("stream"))
        )
        self._record.request = dict(request)
        self._record.started = time.time()
        request.update(policy.settings)
        request["model"] = policy.model
        if policy.tokens:
            ask_for_tokens(request)
        self._sent = dump(request)
        self._begun = time.monotonic()
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
            await reply_error(send, error)
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
        url, headers = self._seating.endpoint(self._record.episode or "", self._record.seat)
        limit = aiohttp.ClientTimeout(total=timeout)
        with transport_errors(str(url)):
            async with shared_http().post(
                url, data=self._sent, headers=headers, allow_redirects=False, timeout=limit
            ) as upstream:
                self._record.http_status = upstream.status
                if upstream.status == 200 and upstream.content_type == "text/event-stream":
                    await self._stream(upstream, send)
                    return
                answer = await read_body(upstream, self._max_reply, who="the model's server")
        if upstream.status == 200:
            self._take(_object(answer))
            await self._keep()
        else:
            shown = answer[:_SHOWN_ERROR].decode("utf-8", "replace")
            await self._keep(ProtocolError(shown), status="upstream_error")
        back = [(name.encode(), upstream.headers[name].encode()) for name in _PASSED_BACK if name in upstream.headers]
        await reply(send, upstream.status, answer, back)

    async def _stream(self, upstream: aiohttp.ClientResponse, send: Send) -> None:
        whole = StreamCapture()
        head = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        try:
            with transport_errors(str(upstream.url)):
                size = 0
                async for piece in upstream.content.iter_any():
                    size += len(piece)
                    if size > self._max_reply:
                        raise _too_large(upstream, self._max_reply)
                    whole.feed(piece)
                    if whole.done:
                        self._take(whole.finish())
                        await self._keep()
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not whole.done:
                raise TransportError("the model's server ended its stream without data: [DONE]")
        except AgentEnvError as error:
            self._record.response = self._record.response or whole.finish()
            await self._keep(error)
            # The status is out already; OpenAI clients raise what an error event tells.
            event = b"data: " + dump({"error": error.to_wire()}) + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
        except asyncio.CancelledError:
            self._record.response = self._record.response or whole.finish()
            raise
        await send({"type": "http.response.body", "body": b""})

    def _take(self, response: dict[str, Any]) -> None:
        record = self._record
        try:
            capture(record, response, keep_logprobs=self._own_logprobs)
            check_fields(record)
        except (KeyError, TypeError, AttributeError, ProtocolError):
            # A record that could not be read again would cost the whole episode.
            record.prompt_token_ids = record.token_ids = record.logprobs = record.usage = record.finish_reason = None
            raise ProtocolError("the model's server answered with what is no chat completion") from None

    async def _keep(self, error: AgentEnvError | None = None, *, status: str | None = None) -> None:
        """Puts the record on disk, once: what fails afterwards is not the model's."""
        if self._kept:
            return
        self._kept = True
        if error is not None:
            self._tell(error, status)
        self._record.seconds = time.monotonic() - self._begun
        try:
            line = dump(self._record.to_json())
        except InvalidArguments as unwritable:
            self._record.request = self._record.response = None
            self._tell(ProtocolError(unwritable.message), None)
            line = dump(self._record.to_json())
        await self._run.journal.append(self._record.episode or "", [line + b"\n"])

    def _tell(self, error: AgentEnvError, status: str | None) -> None:
        self._record.status = status or error.code
        self._record.error = {"code": self._record.status, "message": error.message}


async def _until_gone(receive: Receive, task: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()


def _too_large(upstream: aiohttp.ClientResponse, limit: int) -> MessageTooLarge:
    upstream.close()
    return MessageTooLarge(f"the model's server answered with more than {limit} bytes")


def _object(answer: bytes) -> dict[str, Any]:
    try:
        return parse_object(answer, "the model's server answered with what is not a JSON object")
    except InvalidArguments as error:
        raise ProtocolError(error.message) from None
