"""OpenAI Completions, with vLLM's token fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent_env.episodes import CallRecord
from agent_env.gateway.capture import StreamCapture, keep_tokens
from agent_env.gateway.dialects.chat import ChoicesStream, told_in_chunks
from agent_env.gateway.dialects.contract import Dialect, counted, first_choice
from agent_env.gateway.dialects.usage import ask_for_usage


class Completions(Dialect):
    """`POST …/v1/completions`."""

    name = "completions"
    path = "completions"
    what = "completion"

    def ask_for_tokens(self, body: dict[str, Any]) -> None:
        # How many alternatives are told beside the sampled token; servers take 0 for a wish for none at all.
        body["logprobs"] = body.get("logprobs") or 1
        body["return_token_ids"] = True

    def ask_for_usage(self, body: dict[str, Any]) -> bool:
        return ask_for_usage(body)

    def wants_logprobs(self, body: Mapping[str, Any]) -> bool:
        return body.get("logprobs") is not None

    def capture(self, record: CallRecord, response: dict[str, Any], *, keep_logprobs: bool) -> None:
        record.response = response
        record.usage = response.pop("usage", None)
        record.policy_version = response.pop("policy_version", None)
        prompt = response.pop("prompt_token_ids", None)
        choice = first_choice(response)
        if choice is not None:
            record.finish_reason = choice.get("finish_reason")
            keep_tokens(record, "token_ids", choice.pop("token_ids", None))
            of_choice = choice.pop("prompt_token_ids", None)
            prompt = of_choice if prompt in (None, []) else prompt
            echo = isinstance(record.request, Mapping) and bool(record.request.get("echo"))
            # Those of the prompt go first, and its first token has none.
            sampled = len(record.token_ids or ()) if echo else None
            keep_tokens(record, "logprobs", choice.get("logprobs"), lambda told: _logprobs(told, sampled))
            if not keep_logprobs:
                choice.pop("logprobs", None)
        keep_tokens(record, "prompt_token_ids", prompt)
        if record.usage is None and len(response.get("choices") or ()) == 1:
            record.usage = counted(record)

    def stream(self, watch: Callable[[dict[str, Any]], None] | None = None) -> StreamCapture:
        return CompletionsStream(watch)

    def events(self, response: Mapping[str, Any], request: Mapping[str, Any]) -> bytes:
        return told_in_chunks(response, response.get("choices") or (), request)


def _logprobs(told: Mapping[str, Any], sampled: int | None) -> Any:
    """The logprobs of the sampled tokens, of which there are so many if others go before them."""
    of_tokens = told["token_logprobs"]
    return of_tokens if of_tokens is None or sampled is None else of_tokens[len(of_tokens) - sampled :]


class CompletionsStream(ChoicesStream):
    """The chunks of a streamed completion, which end with `data: [DONE]`."""

    what = "completion chunk"
    object = "text_completion"
