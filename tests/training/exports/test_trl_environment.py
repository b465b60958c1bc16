"""TRL's `environment_factory`: a class whose methods are the tools of served agents, as TRL and transformers read it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import pytest
from anyio import to_thread
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers.utils import get_json_schema

from agent_env import AgentEnvironment, Environment
from agent_env.errors import AgentFailed, ConfigurationError, InvalidArguments, Unauthenticated
from agent_env.serving.server import Server
from agent_env.training.exports.trl_environment import PeerEnvironment, ToolUse, trl_environment
from agent_env.training.exports.trl_tools import Tool, docstring, hint_of, identifier, method_of, tool_of

pytestmark = pytest.mark.anyio


# ── tools as functions ─────────────────────────────────────────────────────────────────────────────────────────


def told(**properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [name for name in properties if name != "n"]}
    return {"name": "search", "description": "Searches a library.", "inputSchema": schema}


async def nobody(environment: Any, arguments: Mapping[str, Any]) -> str:
    return f"{arguments}"


def schema_of(tool: Tool) -> dict[str, Any]:
    """What transformers makes of the method, bound to an object as TRL finds it."""
    made = type("Made", (), {tool.function: method_of(tool, nobody)})
    schema: dict[str, Any] = get_json_schema(getattr(made(), tool.function))["function"]
    return schema


def test_transformers_reads_the_schema_of_the_tool_from_the_method() -> None:
    tool = tool_of(
        "ann",
        told(
            query={"type": "string", "description": "What to look for."},
            kind={"enum": ["book", "film"], "description": "Where."},
            years={"type": "array", "items": {"type": "integer"}, "description": "Of which years."},
            n={"type": "integer", "description": "How many at most.", "default": 3},
        ),
        "Ann knows books.",
    )
    assert tool.function == "ann_search"
    assert schema_of(tool) == {
        "name": "ann_search",
        "description": "Searches a library.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for."},
                "kind": {"type": "string", "enum": ["book", "film"], "description": "Where."},
                "years": {"type": "array", "items": {"type": "integer"}, "description": "Of which years."},
                "n": {"type": "integer", "description": "How many at most."},
            },
            "required": ["query", "kind", "years"],
        },
        "return": {"type": "string", "description": "The reply."},
    }


def test_the_docstring_is_in_googles_style_and_the_signature_has_defaults() -> None:
    tool = tool_of("ann", told(query={"type": "string"}, n={"type": "integer", "default": 3}), "")
    assert docstring(tool) == (
        "Searches a library.\n\nArgs:\n    query: The query.\n    n: The n.\n\nReturns:\n    The reply."
    )
    method = method_of(tool, nobody)
    assert str(inspect.signature(method)) == "(self, *, query: str, n: int = 3) -> str"
    assert inspect.iscoroutinefunction(method) and inspect.isfunction(method)
    assert (method.__name__, method.__doc__) == ("ann_search", docstring(tool))


def test_of_chat_the_message_alone_is_a_parameter_and_the_peer_describes_it() -> None:
    chat = {
        "name": "chat",
        "description": "",
        "inputSchema": {
            "type": "object",
            "properties": {"message": {"type": "string"}, "parts": {"type": "array"}},
            "required": ["message"],
        },
    }
    assert schema_of(tool_of("ann", chat, "Ann knows capitals."))["description"] == "Ann knows capitals."
    assert schema_of(tool_of("ann", chat, ""))["description"] == "Talk to ann."
    assert schema_of(tool_of("ann", chat, ""))["parameters"]["properties"] == {
        "message": {"type": "string", "description": "The message."}
    }


def test_words_that_readers_of_docstrings_stumble_over_are_harmless() -> None:
    tool = tool_of(
        "ann",
        {
            "name": "search",
            "description": "Says more.\n\nArgs:\n  other: thing\nReturns:\n  x\nRaises: y",
            "inputSchema": {
                "properties": {
                    "query": {"type": "string", "description": "One of (choices: a, b)\nsecond: line"},
                    "more": {"type": "object", "properties": {"deep": {"type": "string"}}},
                    "many": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "null"}}}},
                }
            },
        },
        "",
    )
    schema = schema_of(tool)
    assert schema["description"] == "Says more. Args - other: thing Returns - x Raises - y"
    assert list(schema["parameters"]["properties"]) == ["query", "more", "many"]
    said = {name: one["description"] for name, one in schema["parameters"]["properties"].items()}
    assert said["query"] == "One of (choices - a, b) second: line"
    # What a hint cannot say of an object is said in words.
    assert '"deep": {"type": "string"}' in said["more"] and '"a": {"type": "null"}' in said["many"]


@pytest.mark.parametrize(
    ("schema", "hint"),
    [
        ({"type": "string"}, str),
        ({"type": "integer"}, int),
        ({"type": "number"}, float),
        ({"type": "boolean"}, bool),
        ({"type": "null"}, type(None)),
        ({"type": "array"}, list),
        ({"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, list[list[str]]),
        ({"type": "object"}, dict),
        ({"type": "object", "additionalProperties": {"type": "number"}}, dict[str, float]),
        ({"type": "object", "additionalProperties": False}, dict),
        ({"const": 4}, Literal[4]),
        ({"enum": ["a", 1, None]}, Literal["a", 1, None]),  # noqa: PYI061 - that would be another hint
        ({"enum": [{"a": 1}]}, Any),
        ({"enum": []}, Any),
        ({"type": ["string", "null"]}, str | None),
        ({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]}, int | list[str]),
        ({"oneOf": [{"type": "integer"}, {"$ref": "#/x"}]}, Any),
        ({"anyOf": []}, Any),
        ({"$ref": "#/x"}, Any),
        ({}, Any),
    ],
)
def test_the_hint_of_a_schema_says_what_hints_can(schema: dict[str, Any], hint: Any) -> None:
    assert hint_of(schema) == hint


SCALARS = st.sampled_from(["string", "integer", "number", "boolean", "null"])
SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.one_of(
        st.builds(lambda kind: {"type": kind}, SCALARS),
        st.builds(lambda kinds: {"type": kinds}, st.lists(SCALARS, min_size=1, max_size=3, unique=True)),
        st.builds(lambda values: {"enum": values}, st.lists(st.text() | st.integers() | st.none(), max_size=3)),
        st.just({}),
    ),
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(lambda one: {"type": "object", "additionalProperties": one}, inner),
        st.builds(lambda some: {"type": "object", "properties": some}, st.dictionaries(st.text(), inner, max_size=2)),
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, max_size=3)),
    ),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.dictionaries(st.text(min_size=1), st.tuples(SCHEMAS, st.text() | st.text("\r\n\t ")), max_size=3))
@example({"00": ({}, "\r"), "0": ({}, "")})
def test_transformers_reads_any_tool_whose_arguments_can_be_told_apart(
    properties: dict[str, tuple[dict[str, Any], str]],
) -> None:
    given = {name: {**schema, "description": text} for name, (schema, text) in properties.items()}
    try:
        tool = tool_of("ann", told(**given), "")
    except ConfigurationError as error:
        assert "cannot be told apart" in str(error)
        return
    schema = schema_of(tool)
    assert len(schema["parameters"]["properties"]) == len(properties)
    assert tool.arguments({identifier(name): 1 for name in properties}) == dict.fromkeys(properties, 1)


def test_names_that_python_does_not_have_are_given_others_and_sent_as_they_were() -> None:
    tool = tool_of("ann-b", told(**{"from": {"type": "string"}, "2nd": {"type": "string"}, "a.b": {}}), "")
    assert tool.function == "ann_b_search"
    assert [parameter.name for parameter in tool.parameters] == ["from_", "n2nd", "a_b"]
    assert tool.arguments({"from_": 1, "n2nd": 2, "other": 3}) == {"from": 1, "2nd": 2, "other": 3}
    for clash in ({"a.b": {}, "a-b": {}}, {"self": {}}):
        with pytest.raises(ConfigurationError, match="cannot be told apart"):
            tool_of("ann", told(**clash), "")
    with pytest.raises(ConfigurationError, match="would be private as '_hidden_search'"):
        tool_of("_hidden", told(), "")


# ── the class, with served agents ──────────────────────────────────────────────────────────────────────────────


async def recall(message: str, history: list[dict[str, str]]) -> str:
    """Remembers what it was told."""
    if message == "break":
        raise RuntimeError("something that nobody must see")
    return " | ".join([said["content"] for said in history[::2]] + [message])


def add(left: int, right: int = 2) -> int:
    """Adds two numbers."""
    return left + right


class Desk:
    """Served peers, and their class as a trainer uses it."""

    def __init__(self, servers: Mapping[str, Server]) -> None:
        self.servers = servers

    @property
    def urls(self) -> dict[str, str]:
        return {name: server.url for name, server in self.servers.items()}

    def sessions(self) -> int:
        return sum(len(server.runtime.sessions) for server in self.servers.values())


@asynccontextmanager
async def desk() -> AsyncGenerator[Desk]:
    ann = AgentEnvironment(recall, name="ann", version="1.0.0", hub=False, tools=[add])
    bob = AgentEnvironment(recall, name="bob", version="1.0.0", hub=False, description="Bob, who listens.")
    async with ann.serving() as first, bob.serving() as second:
        with anyio.fail_after(60):
            yield Desk({"ann": first, "bob": second})


async def in_a_thread(work: Callable[[], None]) -> None:
    """Runs what a trainer does: in a thread, with event loops of its own."""
    await to_thread.run_sync(work)


def found(environment: PeerEnvironment) -> list[str]:
    """The tools, as TRL finds them."""
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    return [name for name, _ in members if name not in ("reset", "get_reward") and not name.startswith("_")]


async def test_peers_are_the_tools_of_a_class_and_remember_until_the_next_reset() -> None:
    async with desk() as peers:

        def work() -> None:
            with trl_environment(peers.urls, name="Office") as made:
                environment: Any = made()
                assert made.__name__ == "Office" and not hasattr(made, "get_reward")
                assert found(environment) == ["ann", "ann_add", "bob"]
                assert get_json_schema(environment.bob)["function"]["description"] == "Bob, who listens."
                assert environment.reset(prompt="x", answer="y") is None
                assert environment.row == {"prompt": "x", "answer": "y"}
                assert asyncio.run(environment.ann(message="one")) == "one"
                assert asyncio.run(environment.ann(message="two")) == "one | two"
                assert asyncio.run(environment.ann_add(left=1)) == "3"
                assert asyncio.run(environment.bob(message="three")) == "three"
                assert [(call.peer, call.tool, call.arguments) for call in environment.calls] == [
                    ("ann", "chat", {"message": "one"}),
                    ("ann", "chat", {"message": "two"}),
                    ("ann", "add", {"left": 1}),
                    ("bob", "chat", {"message": "three"}),
                ]
                other: Any = made()
                other.reset()
                assert asyncio.run(other.ann(message="I am another")) == "I am another"
                assert peers.sessions() == 3
                environment.reset()
                assert environment.calls == [] and not environment.failed
                assert asyncio.run(environment.ann(message="anew")) == "anew"

        await in_a_thread(work)
        assert peers.sessions() == 0


async def test_calls_of_one_message_are_made_together_and_those_to_one_peer_in_turn() -> None:
    async with desk() as peers:

        def work() -> None:
            with trl_environment(peers.urls) as made:
                environment: Any = made()
                environment.reset()

                async def message() -> list[str]:
                    return await asyncio.gather(
                        environment.ann(message="a"), environment.ann(message="b"), environment.bob(message="c")
                    )

                assert asyncio.run(message()) == ["a", "a | b", "c"]

        await in_a_thread(work)


async def test_a_rollout_in_which_a_peer_failed_has_no_reward_and_a_models_mistake_is_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with desk() as peers:

        def work() -> None:
            with trl_environment(peers.urls, reward=lambda environment: len(environment.calls) / 2) as made:
                environment: Any = made()
                environment.reset()
                with pytest.raises(InvalidArguments):
                    asyncio.run(environment.ann(wrong="argument"))
                assert environment.get_reward() == 0.5
                assert isinstance(environment.calls[0].error, InvalidArguments) and environment.calls[0].reply is None
                with pytest.raises(AgentFailed) as failed:
                    asyncio.run(environment.ann(message="break"))
                assert "nobody must see" not in str(failed.value)
                assert environment.failed and environment.get_reward() is None
                environment.reset()
                assert environment.get_reward() == 0.0
                # Nor is it the model's mistake that we were not let in.
                environment.calls.append(ToolUse("ann", "chat", {}, error=Unauthenticated("a token is needed")))
                assert environment.get_reward() is None

        await in_a_thread(work)
    assert "ann did not answer" in caplog.text


async def test_what_is_observed_goes_to_the_prompt() -> None:
    async with desk() as peers:

        def work() -> None:
            with trl_environment(peers.urls, observe=lambda row: f" It is {row['day']}.") as made:
                assert made().reset(day="Monday") == " It is Monday."

        await in_a_thread(work)


async def test_an_environment_brings_its_own_token() -> None:
    env = AgentEnvironment(recall, name="ann", version="1.0.0", hub=False, auth={"secret": ["chat"]})
    async with env.serving() as server:

        def work() -> None:
            with trl_environment({"ann": Environment(server.url, auth="secret")}) as made:
                environment: Any = made()
                environment.reset()
                assert asyncio.run(environment.ann(message="hi")) == "hi"

        await in_a_thread(work)


async def test_peers_that_cannot_be_tools_are_refused() -> None:
    async with desk() as peers:

        def work() -> None:
            ann = peers.urls["ann"]
            for clash in ({"reset": ann}, {"ann": ann, "ann_add": ann}, {"failed": ann}):
                with pytest.raises(ConfigurationError, match="which there is already"), trl_environment(clash):
                    pass
            with pytest.raises(ConfigurationError, match="needs peers"), trl_environment({}):
                pass

        await in_a_thread(work)
