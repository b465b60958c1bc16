"""Parts as MCP content, and schemas of answers."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest
from jsonschema import Draft202012Validator

from agent_env.runtime.parts import encode_part
from agent_env.runtime.results import ToolResult
from agent_env.serving.faces.mcp_content import blocks, message
from agent_env.serving.faces.mcp_tools import result_schema
from agent_env_wrappers.contract import DataPart, FilePart, Part, Status, TextDelta, TextPart


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (TextPart("hi"), types.TextContent(text="hi")),
        (DataPart({"ü": [1, None]}), types.TextContent(text='{"ü":[1,null]}')),
        (DataPart(None), types.TextContent(text="null")),
        (FilePart("image/png", b"\0"), types.ImageContent(data="AA==", mime_type="image/png")),
        (FilePart("audio/wav", b"\0"), types.AudioContent(data="AA==", mime_type="audio/wav")),
        (
            FilePart("text/csv", uri="https://a.example/t.csv", name="t.csv"),
            types.ResourceLink(uri="https://a.example/t.csv", name="t.csv", mime_type="text/csv"),
        ),
        (
            FilePart("application/pdf", b"\0", name="a.pdf"),
            types.EmbeddedResource(
                resource=types.BlobResourceContents(uri="attachment:a.pdf", blob="AA==", mime_type="application/pdf")
            ),
        ),
    ],
)
def test_each_kind_of_part_has_a_kind_of_content(part: Part, block: types.ContentBlock) -> None:
    assert blocks([encode_part(part)]) == [block]


def test_only_the_reply_itself_is_told_to_clients_that_asked_for_progress() -> None:
    events = [TextDelta("a"), TextDelta("b", "thought"), Status("c")]
    assert [message(event, everything=False) for event in events] == ["a", None, None]
    assert all(message(event, everything=True) for event in events)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (None, 3, None),
        ({"type": "object", "properties": {"x": {"type": "integer"}}}, {"x": 1}, {"x": "1"}),
        (
            {
                "type": "object",
                "properties": {"p": {"$ref": "#/$defs/P"}},
                "$defs": {"P": {"type": "array", "items": {"$ref": "#/$defs/P"}}},
            },
            {"p": [[], [[]]]},
            {"p": [3]},
        ),
        # A reference that would point elsewhere once the schema is a part of another: nothing is promised.
        (
            {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}},
            {"b": "x"},
            None,
        ),
    ],
)
def test_the_schema_of_an_answer_holds_that_of_its_data(schema: dict[str, Any] | None, good: Any, bad: Any) -> None:
    validator = Draft202012Validator(result_schema(schema))
    validator.validate(ToolResult([], data=good).to_json())
    validator.validate(ToolResult([]).to_json())
    if bad is not None:
        assert not validator.is_valid(ToolResult([], data=bad).to_json())
