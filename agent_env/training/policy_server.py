"""Serving policies: a batching, OpenAI-compatible chat endpoint that tells token ids, logprobs and versions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from agent_env.context import new_call_id
from agent_env.errors import AgentEnvError, AgentFailed, InvalidArguments, UnknownTool
from agent_env.gateway.http import (
    CallerGone,
    Receive,
    Scope,
    Send,
    dump,
    parse_object,
    read_body,
    reply,
    reply_error,
    reply_json,
)
from agent_env.training.policy import Policy
from agent_env.training.sampling import Completion, Prompt

log = logging.getLogger("agent_env.training")

_Waiting: TypeAlias = "tuple[Prompt, asyncio.Future[tuple[Completion, int]]]"

_MAX_BODY = 1024 * 1024

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1, 1.0),
    "top_k": (0, -1),
    "min_p": (0, 0.0),
    "stop": ([], ""),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "logit_bias": ({},),
}
"""What would change the distribution or the text, with the values that do not."""


class PolicyServer:
    """An ASGI app with `POST /v1/chat/completions` and `GET /v1/models` for policies of this process.

    Requests are sampled together, at most `batch`: as soon as none has come for `pause` seconds, and no later than
    `wait` seconds after the first. Sampling shares the weights with whoever updates the policies, in memory: on this
    event loop, or in a thread for policies that are `threaded`. Without `max_tokens` a completion has at most the
    policy's.

    Besides OpenAI's fields an answer has `prompt_token_ids`, `policy_version` and, in each choice, `token_ids` (vLLM's
    names); logprobs are told when `logprobs` is asked for. `n`, tools, images, stop words and whatever else bends the
    distribution (`top_p`, penalties) are refused: logprobs are of what was sampled from.
    """

    def __init__(
        self, policies: Iterable[Policy] = (), *, pause: float = 0.002, wait: float = 0.02, batch: int = 256
    ) -> None:
        self._queues: dict[str, _Queue] = {}
        self._pause = pause
        self._wait = wait
        self._batch = batch
        for policy in policies:
            self.serve(policy)

    def serve(self, policy: Policy) -> None:
        """Serves a policy by its name, in place of an earlier one of that name."""
        self._queues[policy.name] = _Queue(policy, self._pause, self._wait, min(self._batch, policy.batch))

    def serves(self, policy: Policy) -> bool:
        """Tells whether it is this policy that is served by its name."""
        queue = self._queues.get(policy.name)
        return queue is not None and queue.policy is policy

    def close(self) -> None:
        """Tells all who wait for a completion, and who still come for one, that there is none: serving ends."""
        for queue in self._queues.values():
            queue.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            match scope["method"], scope["path"]:
                case "POST", "/v1/chat/completions":
                    await self._complete(await read_body(scope, receive, _MAX_BODY), send)
                case "GET", "/v1/models":
                    models = [{"id": name, "object": "model", "owned_by": "agent-env"} for name in self._queues]
                    await reply_json(send, 200, {"object": "list", "data": models})
                case method, path:
                    raise UnknownTool(f"a policy server has no {method} {path!r}; it has POST /v1/chat/completions")
        except AgentEnvError as error:
            await reply_error(send, error)
        except CallerGone:
            return

    async def _complete(self, body: bytes, send: Send) -> None:
        request = parse_object(body, "the body of a chat completion must be a JSON object")
        queue = self._queues.get(str(request.get("model")))
        if queue is None:
            known = ", ".join(self._queues)
            raise InvalidArguments(f"no policy {request.get('model')!r} is served here; there are: {known}")
        prompt = _prompt(request, queue.policy)
        completion, version = await queue.complete(prompt)
        answer = _Answer(request, queue.policy, prompt, completion, version)
        if request.get("stream"):
            await answer.stream(send)
        else:
            await reply(send, 200, dump(answer.whole()))


class _Queue:
    """The requests to one policy that wait for the next batch."""

    def __init__(self, policy: Policy, pause: float, wait: float, batch: int) -> None:
        self.policy = policy
        self._pause = pause
        self._wait = wait
        self._batch = batch
        self._waiting: list[_Waiting] = []
        self._asked: set[asyncio.Future[tuple[Completion, int]]] = set()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._sampling: asyncio.Task[None] | None = None

    def complete(self, prompt: Prompt) -> asyncio.Future[tuple[Completion, int]]:
        if self._closed:
            raise self._gone()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[Completion, int]] = loop.create_future()
        self._asked.add(future)
        future.add_done_callback(self._asked.discard)
        self._waiting.append((prompt, future))
        if self._sampling is not None:
            # What comes while a thread samples is the next batch.
            return future
        if len(self._waiting) >= self._batch:
            self._sample()
        elif self._timer is None:
            self._look_again(loop, loop.time() + self._wait)
        return future

    def close(self) -> None:
        # A batch in a thread cannot be stopped, but nobody needs to wait for it.
        self._closed = True
        for future in [asked for asked in self._asked if not asked.done()]:
            future.set_exception(self._gone())

    def _gone(self) -> AgentFailed:
        return AgentFailed(f"the policy {self.policy.name!r} is served no longer")

    def _look_again(self, loop: asyncio.AbstractEventLoop, latest: float) -> None:
        """Samples after a pause in which nobody came, or else looks again."""
        seen = len(self._waiting)

        def look() -> None:
            if len(self._waiting) > seen and loop.time() + self._pause < latest:
                self._look_again(loop, latest)
            else:
                self._sample()

        self._timer = loop.call_later(self._pause, look)

    def _sample(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = [entry for entry in self._waiting if not entry[1].done()]
        waiting, self._waiting = waiting[: self._batch], waiting[self._batch :]
        if not waiting:
            return
        if self.policy.threaded:
            self._sampling = asyncio.create_task(self._sample_apart(waiting))
            return
        try:
            completions, version = self._completed(waiting)
        except Exception as error:  # noqa: BLE001 - whatever it was, everybody who waits must be told
            self._fail(waiting, error)
        else:
            self._answer(waiting, completions, version)

    async def _sample_apart(self, waiting: list[_Waiting]) -> None:
        try:
            completions, version = await asyncio.to_thread(self._completed, waiting)
        except Exception as error:  # noqa: BLE001 - whatever it was, everybody who waits must be told
            self._fail(waiting, error)
        else:
            self._answer(waiting, completions, version)
        finally:
            self._sampling = None
        self._sample()

    def _completed(self, waiting: list[_Waiting]) -> tuple[list[Completion], int]:
        with self.policy.lock:
            return self.policy.sample([prompt for prompt, _ in waiting]), self.policy.version

    def _answer(self, waiting: list[_Waiting], completions: list[Completion], version: int) -> None:
        for (_, future), completion in zip(waiting, completions, strict=True):
            if not future.done():
                future.set_result((completion, version))

    def _fail(self, waiting: list[_Waiting], error: Exception) -> None:
        log.error("the policy %r could not be sampled", self.policy.name, exc_info=error)
        for _, future in waiting:
            if not future.done():
                failure = AgentFailed(f"the policy {self.policy.name!r} could not be sampled: {type(error).__name__}")
                failure.__cause__ = error
                future.set_exception(failure)


class _Answer:
    def __init__(
        self, request: dict[str, Any], policy: Policy, prompt: Prompt, completion: Completion, version: int
    ) -> None:
        self._policy = policy
        self._completion = completion
        self._logprobs = bool(request.get("logprobs"))
        self._usage = {
            "prompt_tokens": len(prompt.token_ids),
            "completion_tokens": len(completion.token_ids),
            "total_tokens": len(prompt.token_ids) + len(completion.token_ids),
        }
        self._tell_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        self._head = {
            "id": f"chatcmpl-{new_call_id()}",
            "created": int(time.time()),
            "model": policy.name,
            "policy_version": version,
        }
        self._prompt = prompt

    def whole(self) -> dict[str, Any]:
        completion = self._completion
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": self._policy.tokenizer.decode(completion.token_ids)},
            "finish_reason": completion.finish_reason,
            "token_ids": completion.token_ids,
            "logprobs": self._entries(completion.token_ids, completion.logprobs),
        }
        return {
            **self._head,
            "object": "chat.completion",
            "prompt_token_ids": self._prompt.token_ids,
            "choices": [choice],
            "usage": self._usage,
        }

    async def stream(self, send: Send) -> None:
        """Tells the completion token by token, as `text/event-stream`."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await self._event(send, {"role": "assistant", "content": ""}, prompt_token_ids=self._prompt.token_ids)
        tokenizer = self._policy.tokenizer
        said = ""
        for count, (token, logprob) in enumerate(
            zip(self._completion.token_ids, self._completion.logprobs, strict=True), start=1
        ):
            text = tokenizer.decode(self._completion.token_ids[:count])
            last = count == len(self._completion.token_ids)
            if text.endswith(_UNFINISHED) and not last:
                text = said  # the character's other bytes are in the tokens to come
            delta, said = {"content": text[len(said) :]}, text
            choice = {"token_ids": [token], "logprobs": self._entries([token], [logprob])}
            await self._event(send, delta, choice, self._completion.finish_reason if last else None)
        if not self._completion.token_ids:
            await self._event(send, {}, {}, self._completion.finish_reason)
        if self._tell_usage:
            await self._send(send, {**self._head, "object": _CHUNK, "choices": [], "usage": self._usage})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _event(
        self,
        send: Send,
        delta: dict[str, Any],
        choice: dict[str, Any] | None = None,
        finish_reason: str | None = None,
        **fields: Any,
    ) -> None:
        entry = {"index": 0, "delta": delta, "finish_reason": finish_reason, **(choice or {})}
        await self._send(send, {**self._head, "object": _CHUNK, **fields, "choices": [entry]})

    async def _send(self, send: Send, value: Any) -> None:
        await send({"type": "http.response.body", "body": b"data: " + dump(value) + b"\n\n", "more_body": True})

    def _entries(self, token_ids: list[int], logprobs: list[float]) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        name = self._policy.tokenizer.name
        return {
            "content": [
                {"token": name(token), "logprob": logprob} for token, logprob in zip(token_ids, logprobs, strict=True)
            ]
        }


_CHUNK = "chat.completion.chunk"
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


def _prompt(request: dict[str, Any], policy: Policy) -> Prompt:
    messages = request.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InvalidArguments("a chat completion needs `messages`, a list of objects")
    for name in ("tools", "functions", "response_format"):
        if request.get(name):
            raise InvalidArguments(f"this server has no {name!r}; its models only speak")
    for name, neutral in _NEUTRAL.items():
        value = request.get(name)
        if value is not None and value not in neutral:
            raise InvalidArguments(f"this server samples as the model says and takes no {name!r}, not {value!r}")
    if (request.get("n") or 1) != 1:
        raise InvalidArguments(f"this server makes one completion a request, not n={request['n']!r}")
    temperature = request.get("temperature")
    if temperature is None:
        temperature = 1.0
    if not isinstance(temperature, int | float) or not 0 <= temperature <= 2:
        raise InvalidArguments(f"the temperature must be from 0 to 2, not {temperature!r}")
    bound = request.get("max_completion_tokens") or request.get("max_tokens") or policy.max_tokens
    if not isinstance(bound, int) or bound < 1:
        raise InvalidArguments(f"max_tokens must be a whole number above 0, not {bound!r}")
    token_ids = policy.tokenizer.render(messages)
    if len(token_ids) >= policy.model.context:
        raise InvalidArguments(
            f"the chat has {len(token_ids)} tokens; the model {policy.name!r} sees {policy.model.context}"
        )
    return Prompt(token_ids, float(temperature), bound)
