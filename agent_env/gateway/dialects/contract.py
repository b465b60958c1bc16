"""What a dialect is: a way to ask a model, with its path, its fields for tokens, its stream and its errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from agent_env.episodes import CallRecord
from agent_env.errors import AgentEnvError, InvalidArguments, NotSupported
from agent_env.gateway.capture import StreamCapture
from agent_env.gateway.http import dump, dump_read


class Dialect(ABC):
    """One dialect. Its objects hold nothing, so one serves all calls.

    Adding one: subclass this in a file of its own, and list it in `agent_env.gateway.dialects.DIALECTS`.
    """

    name: ClassVar[str]
    """Its name, as it stands in `SeatPolicy.dialects` and `CallRecord.api`."""
    path: ClassVar[str]
    """Where it is asked, below `…/v1/`."""
    what: ClassVar[str]
    """What an answer is called in messages."""
    tells: ClassVar[tuple[str, ...]] = ("prompt_token_ids", "token_ids", "logprobs")
    """The token fields of a record that a server can tell in this dialect."""
    passed_on: ClassVar[tuple[bytes, ...]] = ()
    """Headers of the caller that mean something to the model's server."""

    @abstractmethod
    def ask_for_tokens(self, body: dict[str, Any]) -> None:
        """Makes a request ask for the logprobs and ids of its tokens, in vLLM's field names."""

    def ask_for_usage(self, body: dict[str, Any]) -> bool:
        """Makes a streamed request ask for its usage where its caller does not, and tells whether it was made to: then
        the event that tells it is not the caller's. False in a dialect whose streams tell it unasked."""
        return False

    def wants_logprobs(self, body: Mapping[str, Any]) -> bool:
        """Tells whether the agent asks for logprobs itself, so that its answer keeps them."""
        return bool(body.get("logprobs"))

    @abstractmethod
    def capture(self, record: CallRecord, response: dict[str, Any], *, keep_logprobs: bool) -> None:
        """Fills a record from an unstreamed answer, out of which it takes what the record has a field for.

        `keep_logprobs` leaves the logprobs in the answer as well. Raises `KeyError`, `TypeError` or `AttributeError`
        for what is no such answer.
        """

    @abstractmethod
    def stream(self, watch: Callable[[dict[str, Any]], None] | None = None) -> StreamCapture:
        """A capture of one streamed answer."""

    @abstractmethod
    def events(self, response: Mapping[str, Any], request: Mapping[str, Any]) -> bytes:
        """The stream that tells an unstreamed answer to whoever asked for one by this request: put together again, it
        is that answer. Raises what `capture` raises, and `ValueError`, for what is no such answer."""

    def key_headers(self, api_key: str | None) -> dict[str, str]:
        """The headers that show an upstream its key."""
        return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}

    def status(self, error: AgentEnvError) -> int:
        """The HTTP status of a refusal: vendors answer 400 to a body that they cannot take, and their clients raise
        their `BadRequestError` for it and do not try again, as they would for a status of 500 and more."""
        return 400 if isinstance(error, InvalidArguments | NotSupported) else error.http_status

    def refusal(self, status: int, error: Mapping[str, Any]) -> dict[str, Any]:
        """The body of an error of a status, out of its wire form or that of a server: the dialect's clients read it,
        and so do agent-env's own."""
        return {"error": {"param": None, "type": error.get("code"), **error}}

    def broken(self, error: AgentEnvError) -> bytes:
        """The event that ends a stream which cannot go on, such that the dialect's clients raise it."""
        return b"data: " + dump({"error": error.to_wire()}) + b"\n\n"


def event_of(value: Mapping[str, Any], kind: str = "") -> bytes:
    """One event of a `text/event-stream`, as it goes out; raises `InvalidArguments` for what is nested too deeply."""
    return (f"event: {kind}\n" if kind else "").encode() + b"data: " + dump_read(value) + b"\n\n"


def counted(record: CallRecord) -> dict[str, Any] | None:
    """The usage that the token ids tell, for a stream that told no other."""
    if record.prompt_token_ids is None or record.token_ids is None:
        return None
    prompt, sampled = len(record.prompt_token_ids), len(record.token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def choices_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """An answer as one of each of its choices; itself alone, where it has one or none."""
    choices = response.get("choices")
    if not isinstance(choices, list) or len(choices) < 2:
        return [response]
    return [{**response, "choices": [choice]} for choice in choices]


def first_choice(response: Mapping[str, Any]) -> dict[str, Any] | None:
    """The choice that a record tells of; None for an answer that has none."""
    choices = response.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) else None
