"""OpenAI Chat Completions, with the token fields of vLLM, or those of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from agent_env.episodes import CallRecord
from agent_env.gateway.capture import StreamCapture, keep_tokens
from agent_env.gateway.dialects.contract import Dialect, counted, event_of, first_choice
from agent_env.gateway.dialects.deltas import PROMPT, checked_index, merge, same_prompt, settled
from agent_env.gateway.dialects.usage import ask_for_usage, wants_usage


class Chat(Dialect):
    """`POST …/v1/chat/completions`."""

    name = "chat"
    path = "chat/completions"
    what = "chat completion"

    def ask_for_tokens(self, body: dict[str, Any]) -> None:
        body["logprobs"] = True
        body["return_token_ids"] = True

    def ask_for_usage(self, body: dict[str, Any]) -> bool:
        return ask_for_usage(body)

    def capture(self, record: CallRecord, response: dict[str, Any], *, keep_logprobs: bool) -> None:
        record.response = response
        record.usage = response.pop("usage", None)
        record.policy_version = response.pop("policy_version", None)
        prompt = response.pop("prompt_token_ids", None)
        choice = first_choice(response)
        if choice is not None:
            record.finish_reason = choice.get("finish_reason")
            sampled = choice.pop("token_ids", None)
            keep_tokens(record, "token_ids", sampled)
            of_choice = choice.pop("prompt_token_ids", None)
            prompt = of_choice if prompt in (None, []) else prompt
            logprobs: Any = choice.get("logprobs")
            keep_tokens(record, "logprobs", logprobs, _logprobs)
            if record.logprobs:
                content = logprobs["content"]
                if sampled is None and all("id" in entry for entry in content):
                    _take_named(record, [entry["id"] for entry in content])
            if not keep_logprobs:
                choice.pop("logprobs", None)
        keep_tokens(record, "prompt_token_ids", prompt)
        if record.usage is None and len(response.get("choices") or ()) == 1:
            record.usage = counted(record)

    def stream(self, watch: Callable[[dict[str, Any]], None] | None = None) -> StreamCapture:
        return ChatStream(watch)

    def events(self, response: Mapping[str, Any], request: Mapping[str, Any]) -> bytes:
        choices: list[dict[str, Any]] = []
        for choice in response.get("choices") or ():
            delta = dict(choice.get("message") or {})
            if calls := delta.get("tool_calls"):
                delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
            choices.append({**{name: choice[name] for name in choice if name != "message"}, "delta": delta})
        return told_in_chunks({**response, "object": "chat.completion.chunk"}, choices, request)


def told_in_chunks(
    response: Mapping[str, Any], choices: Iterable[Mapping[str, Any]], request: Mapping[str, Any]
) -> bytes:
    """An unstreamed answer as one chunk of all its choices, and one of its usage for who asked for that."""
    chunk = {name: value for name, value in response.items() if name != "usage"}
    events = [event_of({**chunk, "choices": [{"index": place, **choice} for place, choice in enumerate(choices)]})]
    if (usage := response.get("usage")) is not None and wants_usage(request):
        events.append(event_of({**chunk, "choices": [], "usage": usage}))
    return b"".join([*events, b"data: [DONE]\n\n"])


def _logprobs(told: Any) -> list[Any] | None:
    content = told.get("content")
    return None if content is None else [entry["logprob"] for entry in content]


def _take_named(record: CallRecord, ids: list[Any]) -> None:
    """Takes the ids that llama.cpp names in its logprobs, if they are as many as it counted: its streams do not tell
    the token that ends a message."""
    if len(ids) == (record.usage or {}).get("completion_tokens"):
        keep_tokens(record, "token_ids", ids)
    else:
        record.logprobs = None
        record.missing = dict.fromkeys(("token_ids", "logprobs"), "incomplete")


class ChoicesStream(StreamCapture):
    """A stream of chunks whose choices grow by what each chunk adds."""

    object: ClassVar[str]
    """What the whole answer calls itself."""

    def __init__(self, watch: Callable[[dict[str, Any]], None] | None = None) -> None:
        super().__init__(watch)
        self.response: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def take(self, event: dict[str, Any]) -> None:
        for choice in event.pop("choices", None) or ():
            self.add(self._choices, checked_index(choice.pop("index", 0)), choice)
        for name, value in event.items():
            if value is not None:
                self.response[name] = same_prompt(self.response.get(name), value) if name == PROMPT else value

    def add(self, choices: dict[int, dict[str, Any]], index: int, choice: dict[str, Any]) -> None:
        """Adds what a chunk tells of one choice."""
        merge(choices.setdefault(index, {"index": index}), choice)

    def finish(self) -> dict[str, Any]:
        """The whole answer."""
        self.response["object"] = self.object
        self.response["choices"] = [settled(self._choices[index]) for index in sorted(self._choices)]
        return self.response


class ChatStream(ChoicesStream):
    """The chunks of a streamed chat completion, which end with `data: [DONE]`."""

    what = "chat completion chunk"
    object = "chat.completion"

    def add(self, choices: dict[int, dict[str, Any]], index: int, choice: dict[str, Any]) -> None:
        whole = choices.get(index)
        if whole is None:
            whole = choices[index] = {"index": index, "message": {}}
        merge(whole["message"], choice.pop("delta", None) or {})
        merge(whole, choice)
