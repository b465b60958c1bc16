"""The OpenAPI document: what it says is what is served."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import anyio
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from agent_env import AgentEnvironment
from agent_env.runtime.verbs import VERBS
from agent_env.serving.server import Server

pytestmark = pytest.mark.anyio


@dataclass
class Place:
    """Where it is."""

    x: int


def look(at: Place, twice: bool = False) -> Place:
    """Looks at a place."""
    return at


def seed() -> int:
    """The seed."""
    return 1


def length(session: Any) -> float:
    """The length of the reply."""
    return float(len(session.reply))


async def echo(message: str, history: list[Any]) -> str:
    """Says it again."""
    if message == "fail":
        raise ValueError
    return message


@asynccontextmanager
async def serving(**options: Any) -> AsyncGenerator[tuple[Server, dict[str, Any]]]:
    env = AgentEnvironment(echo, version="1.0.0", tools=[look], functions=[seed], rewards=[length], **options)
    with anyio.fail_after(30):
        async with (
            env.serving(register=False) as server,
            aiohttp.ClientSession() as http,
            http.get(f"{server.url}/openapi.json") as response,
        ):
            yield server, await response.json()


def fits(document: dict[str, Any], schema: Any, value: Any) -> bool:
    registry = Registry().with_resource("urn:doc", Resource.from_contents(document, DRAFT202012))
    return Draft202012Validator(_absolute(schema), registry=registry).is_valid(value)


def _absolute(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: f"urn:doc{item}" if key == "$ref" and item.startswith("#") else _absolute(item)
            for key, item in value.items()
        }
    return [_absolute(item) for item in value] if isinstance(value, list) else value


async def test_the_document_names_the_release_and_every_verb() -> None:
    async with serving() as (server, document):
        assert document["openapi"].startswith("3.1")
        assert (document["info"]["title"], document["info"]["version"]) == ("echo", "1.0.0")
        assert "Says it again." in document["info"]["description"]
        assert document["servers"] == [{"url": server.url}]
        assert {f"/v1/{verb}" for verb in VERBS} | {"/health", "/agentenv"} == set(document["paths"])
        assert "get" in document["paths"]["/v1/list_tools"]
        operations = [operation for path in document["paths"].values() for operation in path.values()]
        assert len({operation["operationId"] for operation in operations}) == len(operations)
        assert all(operation["summary"] and operation["description"] for operation in operations)
        assert "application/x-ndjson" in document["paths"]["/v1/call_tool"]["post"]["responses"]["200"]["content"]


async def test_the_models_take_exactly_the_arguments_of_the_verbs() -> None:
    async with serving() as (_, document):
        schemas = document["components"]["schemas"]
        names = {
            "list_tools": "ListToolsRequest",
            "call_tool": "CallToolRequest_chat",
            "reset": "ResetRequest",
            "step": "StepRequest",
            "state": "SessionRequest",
            "call_function": "CallFunctionRequest_seed",
            "call_reward": "CallRewardRequest_length",
            "fork": "SessionRequest",
            "release": "SessionRequest",
        }
        for verb, known in VERBS.items():
            assert set(schemas[names[verb]].get("properties", {})) == known


async def test_requests_and_answers_are_as_documented() -> None:
    async with serving() as (server, document), aiohttp.ClientSession() as http:

        async def call(verb: str, body: dict[str, Any], status: int = 200) -> Any:
            operation = document["paths"][f"/v1/{verb}"]["post"]
            documented = fits(document, operation["requestBody"]["content"]["application/json"]["schema"], body)
            async with http.post(f"{server.url}/v1/{verb}", json=body) as response:
                assert response.status == status
                answer = await response.json()
            schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
            assert fits(document, schema, answer), (verb, answer)
            assert documented or status in (404, 422), (verb, body)
            assert not (documented and status == 422), (verb, body)
            return answer

        await call("list_tools", {})
        session_id = (await call("call_tool", {"name": "chat", "arguments": {"message": "x"}}))["session_id"]
        await call("call_tool", {"name": "look", "arguments": {"at": {"x": 1}, "twice": True}})
        await call("call_tool", {"name": "look", "arguments": {"at": {"x": "one"}}}, 422)
        await call("call_tool", {"name": "look", "arguments": {}}, 422)
        await call("call_tool", {"name": "look"}, 422)
        await call("call_tool", {"name": "dance", "arguments": {}}, 404)
        await call("call_tool", {"name": "chat", "arguments": {"message": "fail"}}, 500)
        await call("step", {"action": "x", "session_id": session_id})
        await call("step", {}, 422)
        await call("state", {"session_id": session_id})
        await call("state", {}, 422)
        await call("call_function", {"name": "seed"})
        await call("call_reward", {"name": "length", "session_id": session_id})
        await call("fork", {"session_id": session_id})
        await call("reset", {"session_id": session_id, "seed": 3, "options": {"a": 1}})
        await call("release", {"session_id": session_id})
        await call("release", {"session_id": session_id}, 404)


async def test_the_tools_of_this_very_environment_are_the_choices() -> None:
    async with serving() as (_, document):
        schemas = document["components"]["schemas"]
        assert [choice["$ref"].rpartition("_")[2] for choice in schemas["CallToolRequest"]["oneOf"]] == ["chat", "look"]
        assert schemas["CallToolRequest_look_Place"]["properties"]["x"]["type"] == "integer"
        assert schemas["CallToolRequest_look"]["properties"]["name"] == {"const": "look"}


async def test_credentials_are_documented_where_they_are_asked_for() -> None:
    async with serving() as (_, document):
        assert "securitySchemes" not in document["components"]
    async with serving(auth={"t": ["chat"]}) as (_, document):
        assert document["components"]["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}
        assert document["security"] == [{"bearer": ["chat"]}]


async def test_the_page_shows_the_document_beside_it() -> None:
    async with serving() as (server, _), aiohttp.ClientSession() as http, http.get(f"{server.url}/docs") as response:
        assert response.content_type == "text/html"
        page = await response.text()
        assert "url: 'openapi.json'" in page
        assert "<title>echo 1.0.0</title>" in page
