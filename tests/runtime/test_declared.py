"""Plain functions as tools: their schemas, descriptions and checks."""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import pytest
from pydantic import Field

from agent_env.errors import ConfigurationError, InvalidArguments
from agent_env.runtime.declared import Reward, declare, invoke
from agent_env.runtime.definition import SessionView
from agent_env_wrappers.threads import Threads

pytestmark = pytest.mark.anyio


class Colour(Enum):
    """What it looks like."""

    RED = "red"


@dataclass
class Box:
    """Something with a title."""

    title: str
    colour: Colour = Colour.RED


def paint(
    box: Box, coats: Annotated[int, Field(ge=1, description="How often.")] = 1, title: str = ""
) -> dict[str, int]:
    """Paints a box.

    It takes a while.

    Args:
        box (Box): What to paint.
        title: A name: or none.

    Returns:
        Something.
    """
    return {"coats": coats}


def test_the_signature_gives_the_schema_and_the_docstring_the_words() -> None:
    declared = declare(paint)
    properties = declared.parameters["properties"]
    assert (declared.name, declared.description) == ("paint", "Paints a box.")
    assert declared.parameters["required"] == ["box"]
    assert declared.parameters["additionalProperties"] is False
    assert properties["box"]["description"] == "What to paint."
    assert properties["coats"] == {"type": "integer", "minimum": 1, "default": 1, "description": "How often."}
    assert properties["title"]["description"] == "A name: or none."
    assert "title" not in declared.parameters  # the titles that pydantic makes up say nothing
    assert declared.parameters["$defs"]["Box"]["properties"]["title"] == {"type": "string"}
    assert declared.output == {"type": "object", "additionalProperties": {"type": "integer"}}


def test_sphinx_fields_describe_parameters_too() -> None:
    def tool(a: int, b_c: int) -> None:
        """Does it.

        :param a: The first one.
        """

    properties = declare(tool).parameters["properties"]
    assert properties["a"]["description"] == "The first one."
    assert properties["b_c"]["description"] == "b c"  # every parameter has one


def test_a_function_without_a_docstring_is_described_by_its_name() -> None:
    def look_up(word) -> Any:  # type: ignore[no-untyped-def]
        return word

    declared = declare(look_up, name="find", weight=2.0)
    assert (declared.name, declared.description, declared.weight) == ("find", "find", 2.0)
    assert declared.output is None
    assert declared.validate({"word": [1]}) == {"word": [1]}


def test_the_session_is_no_part_of_the_schema() -> None:
    def reward(session: SessionView) -> Reward:
        return Reward(1.0)

    declared = declare(reward)
    assert declared.parameters["properties"] == {}
    assert declared.injects == {"session"}
    assert declared.output is None


def test_functions_that_no_caller_could_call_are_refused() -> None:
    def star(*words: str) -> None: ...

    def keywords(**words: str) -> None: ...

    def positional(word: str, /) -> None: ...

    for function in (star, keywords, positional):
        with pytest.raises(ConfigurationError, match="give the function plain named parameters"):
            declare(function)


def test_types_without_a_schema_are_refused_with_the_remedy() -> None:
    def takes(lock: threading.Thread) -> None: ...

    def gives() -> threading.Thread: ...

    for function in (takes, gives):
        with pytest.raises(ConfigurationError, match="annotate it with JSON types"):
            declare(function)


def test_every_problem_of_the_arguments_is_named() -> None:
    with pytest.raises(InvalidArguments) as refused:
        declare(paint).validate({"box": {"title": 3, "colour": "blue"}, "coats": 0, "speed": 1})
    pointers = [problem["pointer"] for problem in refused.value.data["problems"]]
    assert pointers == ["/box/title", "/box/colour", "/coats", "/speed"]


def test_arguments_become_what_the_function_asks_for() -> None:
    keywords = declare(paint).validate({"box": {"title": "b", "colour": "red"}})
    assert keywords == {"box": Box("b", Colour.RED), "coats": 1, "title": ""}


async def test_sync_functions_run_in_a_thread_and_async_ones_do_not() -> None:
    def sync() -> str:
        return threading.current_thread().name

    async def coroutine() -> str:
        return threading.current_thread().name

    def lazy() -> Awaitable[str]:
        return coroutine()

    threads = Threads(name="owner's function")
    assert await invoke(sync, threads) == "owner's function turn"
    assert await invoke(coroutine, threads) == "MainThread"
    assert await invoke(lazy, threads) == "MainThread"
    assert await invoke(functools.partial(pow, 2), threads, 5) == 32


async def test_call_validates_and_runs() -> None:
    declared = declare(paint)
    assert await declared.call({"box": {"title": "b"}, "coats": 3}, {"session": None}) == {"coats": 3}
