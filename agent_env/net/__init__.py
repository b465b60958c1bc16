"""Below every protocol: the shared HTTP client, credentials, limits, and the guard on outward calls."""

from agent_env.net.credentials import Tokens, bearer, bearer_headers, check_binding, require
from agent_env.net.guard import OutwardGuard, is_loopback
from agent_env.net.http import (
    close_shared_http,
    error_of,
    get_json,
    post_json,
    read_body,
    request_json,
    shared_http,
    shown,
    transport_errors,
)
from agent_env.net.keyring import Keyring
from agent_env.net.limits import Limits
from agent_env.net.listening import bound_url, listen
from agent_env.net.loops import PerLoop

__all__ = [
    "Keyring",
    "Limits",
    "OutwardGuard",
    "PerLoop",
    "Tokens",
    "bearer",
    "bearer_headers",
    "bound_url",
    "check_binding",
    "close_shared_http",
    "error_of",
    "get_json",
    "is_loopback",
    "listen",
    "post_json",
    "read_body",
    "request_json",
    "require",
    "shared_http",
    "shown",
    "transport_errors",
]
