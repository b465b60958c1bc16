"""Our errors in A2A's words: as JSON-RPC errors, and as HTTP responses (A2A 1.0 §9.5 and §11.6).

Each carries our own form under the extension's URI in the metadata of its `google.rpc.ErrorInfo`.
"""

from __future__ import annotations

from typing import Any, Final

from a2a.utils.error_handlers import build_error_details
from a2a.utils.errors import (
    JSON_RPC_ERROR_CODE_MAP,
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    UnsupportedOperationError,
)
from starlette.responses import JSONResponse, Response

from agent_env.errors import (
    AgentEnvError,
    AtCapacity,
    Forbidden,
    NotSupported,
    Refusal,
    RequestError,
    Unauthenticated,
    UnsupportedContent,
)
from agent_env.net.a2a_wire import EXTENSION
from agent_env.net.refusals import error_headers

# The first class that an error is an instance of decides; what is none of them went wrong on this side.
_KINDS: Final[tuple[tuple[type[AgentEnvError], type[A2AError]], ...]] = (
    (UnsupportedContent, ContentTypeNotSupportedError),
    (NotSupported, UnsupportedOperationError),
    (Unauthenticated, InvalidRequestError),
    (Forbidden, InvalidRequestError),
    (RequestError, InvalidParamsError),
    (AtCapacity, InternalError),
    (Refusal, InvalidRequestError),
)

_STATUSES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT",
    424: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def a2a_error(error: AgentEnvError) -> A2AError:
    """The A2A error that says the same."""
    kind = next((a2a for ours, a2a in _KINDS if isinstance(error, ours)), InternalError)
    return kind(error.message, data={EXTENSION: error.to_wire()})


def failed_inside() -> AgentEnvError:
    """What callers are told about a failure of the server itself."""
    return AgentEnvError("the server failed; its log has the details")


def rest_response(error: AgentEnvError) -> Response:
    """The error as an answer of the HTTP+JSON binding."""
    fields = {
        "code": error.http_status,
        "status": _STATUSES.get(error.http_status, "UNKNOWN"),
        "message": error.message,
        "details": build_error_details(a2a_error(error)),
    }
    return JSONResponse({"error": fields}, error.http_status, error_headers(error))


def jsonrpc_response(error: AgentEnvError) -> Response:
    """The error as an answer to a JSON-RPC request that was refused before it was read."""
    a2a = a2a_error(error)
    fields: dict[str, Any] = {
        "code": JSON_RPC_ERROR_CODE_MAP[type(a2a)],
        "message": error.message,
        "data": build_error_details(a2a),
    }
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": fields}, error.http_status, error_headers(error))
