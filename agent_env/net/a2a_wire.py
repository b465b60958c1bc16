"""A2A messages and the values of ours inside them: what the A2A face and the A2A lane agree on.

A plain A2A message is one turn of `chat`. Under the extension that the Agent Card declares, a message performs any
verb; everything of ours stands under the extension's URI, so that others pass it by.

| where | what |
|---|---|
| the one part of a request's message | `{"verb", "arguments", "attached"?}` |
| the one part of the reply, in a message or in the task's artifact | `{"result"}` |
| metadata of a task's status updates | `{"events"}`, as they come |
| metadata of the message of a task that failed | `{"error"}` |
| metadata of a reply to a plain message | `{"session_id", "call_id", "usage", "reward", "stop", "interrupt"}` |
| `metadata` in the details of an error | the error |

Protobuf makes every number a double. So our part is a data part, or a text part of the type application/json, in
which numbers survive; the reply comes in the form of its request, with the metadata as JSON text as well.
`attached` says that the call ends with its connection even after it became a task.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

from a2a.types import Message, Part
from google.protobuf import json_format, struct_pb2  # type: ignore[import-untyped, unused-ignore]
from google.protobuf.message import Message as Proto  # type: ignore[import-untyped, unused-ignore]

from agent_env.errors import InvalidArguments
from agent_env_cards import EXTENSION_URI

EXTENSION: Final = EXTENSION_URI

JSON_TYPE: Final = "application/json"

EXTENSION_HEADERS: Final = ("A2A-Extensions", "X-A2A-Extensions")
"""How a request activates extensions, in A2A 1.0 and in 0.3."""

# Doubles hold every whole number up to here; beyond, turning one into an int would make up digits.
_WHOLE = 2**53

ParseError: TypeAlias = json_format.ParseError
"""What reading a protobuf message from JSON raises."""

P = TypeVar("P", bound=Proto)


def parse(fields: Mapping[str, Any], into: P) -> P:
    """Fills a protobuf message from its JSON form; unknown fields are ignored, as A2A asks for."""
    json_format.ParseDict(dict(fields), into, ignore_unknown_fields=True)
    return into


def to_json(message: Proto) -> dict[str, Any]:
    """A protobuf message in its JSON form."""
    fields: dict[str, Any] = json_format.MessageToDict(message)
    return fields


def plain(value: Proto) -> Any:
    """A protobuf message as JSON, whole numbers as ints: a double does not tell 3 from 3.0, and 3 is what is meant.

    Keys are sorted: protobuf gives them in another order each time, and agents would see another prompt each time.
    """
    return _whole(json_format.MessageToDict(value))


def _whole(value: Any) -> Any:
    match value:
        case float() if value.is_integer() and abs(value) <= _WHOLE:
            return int(value)
        case dict():
            return {key: _whole(item) for key, item in sorted(cast("dict[str, Any]", value).items())}
        case list():
            return [_whole(item) for item in value]
        case _:
            return value


# ── parts of plain messages ────────────────────────────────────────────────────────────────────────────────────


def encode_part(part: Mapping[str, Any]) -> Part:
    """Makes an A2A part of a part in our JSON form."""
    match part["type"]:
        case "text":
            return Part(text=clean(part["text"]))
        case "data":
            return encode_value(part["data"])
        case _:
            file = Part(media_type=part["mediaType"], filename=part.get("name") or "")
            if part.get("data") is not None:
                file.raw = base64.b64decode(part["data"])
            else:
                file.url = part["uri"]
            return file


def decode_part(part: Part) -> dict[str, Any]:
    """Reads an A2A part into our JSON form; a part without content is an empty text."""
    match part.WhichOneof("content"):
        case "data":
            return {"type": "data", "data": plain(part.data)}
        case "raw":
            return {**_file(part), "data": base64.b64encode(part.raw).decode()}
        case "url":
            return {**_file(part), "uri": part.url}
        case _:
            return {"type": "text", "text": part.text}


def _file(part: Part) -> dict[str, Any]:
    file = {"type": "file", "mediaType": part.media_type or "application/octet-stream"}
    return file | ({"name": part.filename} if part.filename else {})


def encode_value(value: Any, *, exact: bool = False) -> Part:
    """Makes a part of a JSON value: a data part, or JSON text where `exact` asks for it or protobuf cannot hold it."""
    if not exact:
        try:
            return Part(data=json_format.ParseDict(value, struct_pb2.Value()))
        except (json_format.ParseError, OverflowError, ValueError):
            pass  # too deep, too large, or with a string that is not Unicode; as text it is none of these
    return Part(text=json.dumps(value), media_type=JSON_TYPE)


def clean(text: str) -> str:
    """The text as protobuf takes it: half of a surrogate pair becomes U+FFFD, the replacement character."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# ── values of ours ─────────────────────────────────────────────────────────────────────────────────────────────


def decode_value(part: Part) -> tuple[Any, bool]:
    """Reads the value of a part of ours, and whether it was exact; None for a part of another kind.

    Raises `InvalidArguments` for a text that says it is JSON and is not.
    """
    if part.WhichOneof("content") == "data":
        return plain(part.data), False
    if part.media_type != JSON_TYPE:
        return None, False
    try:
        return json.loads(part.text), True
    except (ValueError, RecursionError):
        raise InvalidArguments(f"the part of type {JSON_TYPE} is not JSON, or is nested too deep") from None


def pack(value: Mapping[str, Any], *, exact: bool = False) -> dict[str, Any]:
    """Puts a value of ours into metadata."""
    if not exact:
        try:
            struct_pb2.Struct().update({EXTENSION: dict(value)})
            return {EXTENSION: dict(value)}
        except (OverflowError, ValueError):
            pass
    return {EXTENSION: json.dumps(value)}


def unpack(metadata: struct_pb2.Struct) -> Mapping[str, Any]:
    """Takes the value of ours out of metadata; empty where there is none."""
    if EXTENSION not in metadata.fields:
        return {}
    found = plain(metadata.fields[EXTENSION])
    return as_object(found)


def as_object(value: Any) -> Mapping[str, Any]:
    """A value of ours as it was before `pack`; empty for what is not one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def carrier(*metadata: struct_pb2.Struct) -> dict[str, str]:
    """The strings in metadata, of which the W3C Trace Context and Baggage are two; the first that has a key wins."""
    found: dict[str, str] = {}
    for entry in metadata:
        for key, value in entry.fields.items():
            if value.WhichOneof("kind") == "string_value":
                found.setdefault(key, value.string_value)
    return found


def text_of(message: Message) -> str:
    """The text parts of a message, on lines."""
    return "\n".join(part.text for part in message.parts if part.WhichOneof("content") == "text")
