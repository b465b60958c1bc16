"""The OpenAPI document of the HTTP face, with the tools of this very environment, and the page that shows it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import BaseModel

from agent_env.runtime.verbs import ORCHESTRATION
from agent_env.serving.faces import http_models as models
from agent_env.serving.faces.contract import Site
from agent_env_cards import EnvironmentCard

if TYPE_CHECKING:
    from fastapi.routing import APIRoute

# FastAPI is imported where a document is asked for: most servers are never asked, and it takes long to load.

_VERBS: Final[Mapping[str, tuple[type[models.Body], type[BaseModel], str]]] = {
    "list_tools": (models.ListToolsRequest, models.ListToolsAnswer, "List the tools"),
    "call_tool": (models.CallToolRequest, models.CallToolAnswer, "Call a tool"),
    "reset": (models.ResetRequest, models.ResetAnswer, "Start an episode"),
    "step": (models.StepRequest, models.StepAnswer, "Take a step"),
    "state": (models.SessionRequest, models.StateAnswer, "See where a session stands"),
    "call_function": (models.CallFunctionRequest, models.CallFunctionAnswer, "Call a function"),
    "call_reward": (models.CallRewardRequest, models.CallRewardAnswer, "Score a session"),
    "fork": (models.SessionRequest, models.ForkAnswer, "Copy a session"),
    "release": (models.SessionRequest, models.ReleaseAnswer, "End a session"),
}

_LINES = (
    "\n\nWith `Accept: application/x-ndjson` the answer comes in lines of JSON: each event of the turn as it happens "
    '(`{"type": "text_delta", "text"}`, `tool_call`, `tool_return`, `model_call`, `status`; `keep_alive` in a long '
    'silence), then `{"result": …}` with the same answer as without, or `{"error": …}`. A call that fails before its '
    "first event has the status of its error."
)

_ERRORS: Final = {
    400: "The body is not JSON.",
    401: "A bearer token is needed.",
    403: "The token lacks a scope, or the page that calls is not this server's.",
    404: "No such tool, or no such session for this caller.",
    408: "The request did not arrive in time.",
    409: "Refused before any work: too deep, a cycle, no calls left.",
    413: "The message is too large.",
    415: "The body is not declared as JSON, or has parts that this agent cannot read.",
    422: "The arguments do not fit.",
    424: "A peer that the agent needs cannot be found.",
    429: "All sessions are taken; `Retry-After` says when to come again.",
    500: "The agent failed.",
    501: "This agent cannot do it.",
    502: "Another agent that this one called failed.",
    504: "The deadline passed.",
}


def document(site: Site, base: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of an environment that clients reach at `base`."""
    from fastapi.openapi.utils import get_openapi

    made = get_openapi(
        title=site.card.name,
        version=site.card.version,
        description=_introduction(site.card),
        servers=[{"url": base}],
        routes=[*_verb_routes(), *_other_routes()],
    )
    schemas = made["components"]["schemas"]
    runtime = site.runtime
    _choose(schemas, "CallToolRequest", _callables(runtime.list_tools()))
    functions = [{"name": f.name, "inputSchema": f.parameters} for f in runtime.definition.functions.values()]
    _choose(schemas, "CallFunctionRequest", _callables(functions))
    _choose(schemas, "CallRewardRequest", [(name, {"type": "object"}) for name in runtime.definition.rewards])
    if site.card.auth is not None and site.card.auth.schemes:
        auth = site.card.auth.to_dict()
        made["components"]["securitySchemes"] = auth["schemes"]
        made["security"] = auth["security"]
    return made


def docs_page(card: EnvironmentCard) -> str:
    """The page that shows the document."""
    from fastapi.openapi.docs import get_swagger_ui_html

    # The address is relative, so that the page works under prefixes that a proxy takes away.
    page = get_swagger_ui_html(openapi_url="openapi.json", title=f"{card.name} {card.version}")
    return bytes(page.body).decode()


def _introduction(card: EnvironmentCard) -> str:
    return (
        f"{card.description}\n\nAn agent, served as an environment. Its card is at `/.well-known/agent-env.json`. "
        "A conversation is a session: call without `session_id` to open one, and send the id of the answer with the "
        "next call. The headers `traceparent` and `baggage` (W3C) carry the call context."
    )


def _verb_routes() -> list[APIRoute]:
    routes: list[APIRoute] = []
    for verb, (request, result, summary) in _VERBS.items():
        scope = "orchestrate" if verb in ORCHESTRATION else "chat"
        streams = _LINES if verb in ("call_tool", "step") else ""
        routes.append(
            _route(
                f"/v1/{verb}",
                verb,
                result,
                summary,
                f"{_own_words(request)} Needs the scope `{scope}`.{streams}",
                tag="orchestrate" if scope == "orchestrate" else "agents",
                request=request,
                stream=bool(streams),
            )
        )
    return routes


def _other_routes() -> list[APIRoute]:
    rpc = "JSON-RPC 2.0; `data/reset` starts every session of the caller anew, other methods are answered with -32601."
    return [
        _route("/v1/list_tools", "get_tools", models.ListToolsAnswer, "List the tools", "As the POST.", tag="agents"),
        _route("/health", "health", models.HealthAnswer, "See that it is up", "Asks for no token.", tag="server"),
        _route("/agentenv", "data_plane", models.RpcAnswer, "Data plane", rpc, tag="server", request=models.RpcRequest),
    ]


def _route(
    path: str,
    name: str,
    result: type[BaseModel],
    summary: str,
    description: str,
    *,
    tag: str,
    request: type[BaseModel] | None = None,
    stream: bool = False,
) -> APIRoute:
    from fastapi.routing import APIRoute

    def endpoint(body: Any = None) -> None:
        """Stands for the path in the document; it is never called."""

    parameters = [inspect.Parameter("body", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=request)]
    endpoint.__signature__ = inspect.Signature(parameters if request is not None else [])  # type: ignore[attr-defined]
    responses: dict[int | str, dict[str, Any]] = {}
    if tag != "server":
        responses |= {status: {"description": text, "model": models.ErrorAnswer} for status, text in _ERRORS.items()}
    if stream:
        responses[200] = {"content": {"application/x-ndjson": {"schema": {"type": "object"}}}}
    return APIRoute(
        path,
        endpoint,
        methods=["GET" if request is None else "POST"],
        operation_id=name,
        response_model=result,
        response_description="The answer.",
        responses=responses,
        summary=summary,
        description=description,
        tags=[tag],
    )


def _own_words(model: type[BaseModel]) -> str:
    return inspect.cleandoc(model.__doc__ or "")


def _callables(tools: Iterable[Mapping[str, Any]]) -> list[tuple[str, Any]]:
    return [(tool["name"], tool["inputSchema"]) for tool in tools]


def _choose(schemas: dict[str, Any], name: str, known: Iterable[tuple[str, Any]]) -> None:
    """Narrows a request to the names that there are, each with its own arguments."""
    general = schemas[name]
    choices: list[dict[str, Any]] = []
    for tool, parameters in known:
        title = f"{name}_{tool}"
        arguments = _hoisted(parameters, title, schemas)
        properties = {**general["properties"], "name": {"const": tool}, "arguments": arguments}
        required = sorted({*general.get("required", ()), *(["arguments"] if arguments.get("required") else [])})
        schemas[title] = {**general, "title": title, "properties": properties, "required": required}
        choices.append({"$ref": f"#/components/schemas/{title}"})
    if choices:
        schemas[name] = {"title": name, "description": general.get("description", ""), "oneOf": choices}


def _hoisted(schema: Any, owner: str, schemas: dict[str, Any]) -> Any:
    """A tool's schema inside the document: its `$defs` move to where references of a document can find them."""
    own = dict(cast("Mapping[str, Any]", schema))
    for name, part in own.pop("$defs", {}).items():
        schemas[f"{owner}_{name}"] = _repointed(part, owner)
    return _repointed(own, owner)


def _repointed(value: Any, owner: str) -> Any:
    if isinstance(value, Mapping):
        return {
            key: f"#/components/schemas/{owner}_{item.removeprefix('#/$defs/')}"
            if key == "$ref" and isinstance(item, str) and item.startswith("#/$defs/")
            else _repointed(item, owner)
            for key, item in cast("Mapping[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [_repointed(item, owner) for item in value]
    return value
