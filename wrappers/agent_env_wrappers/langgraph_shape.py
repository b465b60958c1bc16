"""What a graph takes and gives: how a message goes in and a reply comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from agent_env_wrappers.contract import AgentError, Done, WrapError
from agent_env_wrappers.langgraph_stream import text_of
from agent_env_wrappers.parameters import MESSAGE
from agent_env_wrappers.replies import ending, to_json

REPLY = ("answer", "reply", "response", "output", "result", "text")
"""The keys of a state without messages in which its reply is looked for, in this order."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a graph takes: a state with `messages`, a state with one text under `key`, or (None) a text itself."""

    key: str | None

    @classmethod
    def of(cls, graph: Any) -> Shape:
        """Reads the graph's input schema; raises `WrapError` when no message can be put into it."""
        if hasattr(graph, "builder"):
            # Not by its JSON schema: pydantic refuses to make one of a `typing.TypedDict` before Python 3.12.
            keys, kind = list(get_type_hints(graph.builder.input_schema)), "object"
        else:
            schema: Mapping[str, Any] = graph.get_input_jsonschema()
            keys, kind = list(schema.get("properties", ())), schema.get("type", "string")
        if "messages" in keys:
            return cls("messages")
        if not keys and kind == "string":
            return cls(None)
        named = [name for name in MESSAGE if name in keys]
        if not named:
            takes = ", ".join(keys) or kind
            raise WrapError(
                f"the graph takes {takes}, and a message goes into one of messages, {', '.join(MESSAGE)}; give its "
                "input schema such a key, or hand over a function around it"
            )
        return cls(named[0])

    def given(self, prompt: str, memory: Mapping[str, Any]) -> Any:
        """The input of a run: the message, after the earlier ones where the conversation is a value."""
        if self.key is None:
            return prompt
        if self.key != "messages":
            return {self.key: prompt}
        from langchain_core.messages import HumanMessage, messages_from_dict

        return {"messages": [*messages_from_dict(memory.get("messages", [])), HumanMessage(prompt)]}

    def reply(self, values: Any) -> tuple[str, Any]:
        """The text and the data of a run's result."""
        if self.key == "messages" and isinstance(values, Mapping):
            last = values["messages"][-1]
            if last.type == "human":
                raise AgentError("the graph ended without a reply to the message", kind="framework")
            answer = values.get("structured_response")
            return text_of(last), None if answer is None else to_json(answer)
        done = ending(values)
        assert isinstance(done, Done)
        data: Any = done.data
        named = [data[name] for name in REPLY if isinstance(data.get(name), str)] if isinstance(data, dict) else []
        return named[0] if named else done.text, data
