"""Re-points the anthropic SDK's messages, as `openai_client_hook` does the requests of the openai SDK.

The server of a route must speak Anthropic Messages beside OpenAI's dialects, as the gateway does.
"""

from __future__ import annotations

from typing import Any

from agent_env_wrappers.contract import WrapError
from agent_env_wrappers.openai_client_hook import KEPT, BuildRequest, proven

MESSAGES = "/v1/messages"
_KEPT = KEPT | {"anthropic-version", "anthropic-beta"}


def install() -> str | None:
    """Puts the hook into the anthropic SDK, once in a process, and returns the SDK's version; None where it is not
    installed.

    Raises `WrapError` when a request that is built for the test does not take the route.
    """
    try:
        import anthropic
    except ImportError:
        return None
    version = str(anthropic.__version__)
    try:
        from anthropic._base_client import BaseClient
    except ImportError as error:
        raise WrapError(_moved(version)) from error
    client: Any = BaseClient
    if not isinstance(getattr(client, "_build_request", None), _BuildMessages):
        original = getattr(client, "_build_request", None)
        if original is None:
            raise WrapError(_moved(version))
        client._build_request = _BuildMessages(original)
        try:
            _prove()
        except Exception as error:
            client._build_request = original
            raise WrapError(_moved(version)) from error
    return version


class _BuildMessages(BuildRequest):
    kept = _KEPT

    def path(self, url: str) -> str | None:
        # With a query where a client asks for beta features; a header says which.
        return "/messages" if url.partition("?")[0].endswith(MESSAGES) else None


def _prove() -> None:
    from anthropic import Anthropic
    from anthropic._models import FinalRequestOptions

    with Anthropic(api_key="own", base_url="http://own.invalid") as client:
        options = FinalRequestOptions(method="post", url=MESSAGES, json_data={"model": "own", "messages": []})
        request = proven(client, options)
    if str(request.url) != "http://route.invalid/v1/messages" or "x-api-key" in request.headers:
        raise RuntimeError(f"the request went out to {request.url} with {list(request.headers)}")


def _moved(version: str) -> str:
    return (
        f"anthropic {version} no longer builds its requests in BaseClient._build_request as the versions 1 and 2 do, so "
        "the model of this agent cannot be re-pointed; install an earlier anthropic, or hand over a factory that uses "
        "build.model"
    )
