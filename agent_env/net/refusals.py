"""What HTTP has headers for when an answer is an error."""

from __future__ import annotations

import math

from agent_env.errors import AgentEnvError, Forbidden, RequestTimeout, Unauthenticated


def error_headers(error: AgentEnvError) -> dict[str, str]:
    """`Retry-After` where it is known (RFC 9110 §10.2.3), the challenge of RFC 6750 §3, and an end of the connection on
    which half a request lies (RFC 9110 §15.5.9)."""
    headers: dict[str, str] = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after))
    if isinstance(error, RequestTimeout):
        headers["connection"] = "close"
    elif isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    elif isinstance(error, Forbidden) and "scope" in error.data:
        headers["www-authenticate"] = f'Bearer error="insufficient_scope", scope="{error.data["scope"]}"'
    return headers
