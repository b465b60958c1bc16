"""A graph's stream, read as the contract's events."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from agent_env_wrappers.contract import Event, ModelCall, StopReason, TextDelta, ToolCall, ToolReturn, Usage, WrapError
from agent_env_wrappers.openai_client_hook import Routed

REPOINTED = frozenset({"openai", "azure", "deepseek", "xai", "anthropic"})
"""LangChain's names of the providers whose chat models ask through an SDK that takes the hook."""

STOPS: Mapping[str | None, StopReason] = {
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "content_filter": "refusal",
    "refusal": "refusal",
}
FACTORY = "hand over a factory that uses build.model"


class Reader:
    """Reads one run: its events, the last values of the state, and the interrupts that it stopped at.

    `watch` is the callback that counts the run's model calls; LangGraph hands it to every model in the graph.
    """

    def __init__(self, route: Routed | None) -> None:
        self.calls: list[ModelCall] = []
        self.watch = _watch(self.calls, route)
        self.values: Any = None
        self.interrupts: list[Any] | None = None
        self._told = 0
        self._known: set[str] | None = None

    @property
    def usage(self) -> Usage | None:
        """The sum over the run's model calls; None when no model told."""
        told = [call.usage for call in self.calls if call.usage.input_tokens or call.usage.output_tokens]
        return sum(told, Usage()) if told else None

    @property
    def stop(self) -> StopReason:
        """Why the last model call ended, as the turn's reason."""
        return STOPS.get(self.calls[-1].finish_reason if self.calls else None, "end_turn")

    def read(self, namespace: tuple[str, ...], mode: str, item: Any) -> Iterator[Event]:
        """The events of one item of the stream; `namespace` is empty for the graph itself, else a subgraph's."""
        if mode == "values" and not namespace:
            self.values = item
            if self._known is None:
                self._known = {message.id for message in _messages(item)}
        elif mode == "messages":
            message = item[0]
            if message.type in ("ai", "AIMessageChunk") and (text := text_of(message)):
                yield TextDelta(text)
        elif mode == "updates":
            if not namespace and "__interrupt__" in item:
                self.interrupts = [*(self.interrupts or ()), *item["__interrupt__"]]
            for update in item.values():
                for message in _messages(update):
                    yield from self._tools(message)
        while self._told < len(self.calls):
            yield self.calls[self._told]
            self._told += 1

    def _tools(self, message: Any) -> Iterator[Event]:
        """Tool calls and returns of a message that is new in this run: subgraphs and their parent tell it twice."""
        known = self._known if self._known is not None else set[str]()
        if message.id in known:
            return
        known.add(message.id)
        for call in getattr(message, "tool_calls", ()):
            yield ToolCall(call["id"], call["name"], call["args"])
        if message.type == "tool":
            yield ToolReturn(message.tool_call_id, text_of(message), message.status == "error")


def text_of(message: Any) -> str:
    """The text of a LangChain message, which may be made of blocks."""
    text = message.text
    return str(text) if isinstance(text, str) else str(text())


@contextmanager
def apart() -> Generator[None]:
    """Runs a graph for itself, also where another graph's tool calls it.

    Otherwise it would take itself for a subgraph of that graph: it would stream into it and write its checkpoints.
    """
    from langchain_core.runnables.config import var_child_runnable_config

    token = var_child_runnable_config.set(None)
    try:
        yield
    finally:
        # A turn that was dropped is closed in another context, where there is nothing to put back.
        with suppress(ValueError):
            var_child_runnable_config.reset(token)


def _messages(update: Any) -> Iterator[Any]:
    found = update.get("messages", ()) if isinstance(update, Mapping) else ()
    for message in found if isinstance(found, Sequence) and not isinstance(found, str) else (found,):
        if hasattr(message, "tool_call_id") or hasattr(message, "response_metadata"):
            yield message


def _watch(calls: list[ModelCall], route: Routed | None) -> Any:
    """The callback that notes each model call, and refuses those that would pass by the route."""
    from langchain_core.callbacks import BaseCallbackHandler

    class Watch(BaseCallbackHandler):
        raise_error = True
        run_inline = True

        def on_chat_model_start(self, serialized: Any, messages: Any, **facts: Any) -> None:
            provider = (facts.get("metadata") or {}).get("ls_provider")
            if route is not None and provider not in REPOINTED:
                raise WrapError(
                    f"the graph asks a model of {provider!r}, which goes through neither the openai nor the "
                    f"anthropic client and cannot be re-pointed; use ChatOpenAI, or {FACTORY}"
                )

        def on_llm_start(self, serialized: Any, prompts: Any, **facts: Any) -> None:
            if route is not None:
                raise WrapError(f"the graph asks a text completion model, which cannot be re-pointed; {FACTORY}")

        def on_llm_end(self, response: Any, **facts: Any) -> None:
            message = getattr(response.generations[0][0], "message", None)
            used = getattr(message, "usage_metadata", None) or {}
            if used.get("total_cost") == 0:
                return  # out of LangChain's cache, as it marks such an answer: no model was asked
            told: Mapping[str, Any] = getattr(message, "response_metadata", None) or {}
            usage = Usage(used.get("input_tokens", 0), used.get("output_tokens", 0), 1)
            calls.append(
                ModelCall(told.get("model_name", ""), usage, told.get("finish_reason") or told.get("stop_reason"))
            )
            if route is not None and not route.requests:
                raise WrapError(f"the graph's model was asked without the client that is re-pointed; {FACTORY}")

    return Watch()
