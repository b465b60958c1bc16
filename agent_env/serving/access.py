"""Who is calling: from a request's headers to a `Caller` that the runtime trusts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.types import Scope

from agent_env.context import Principal, Recorder, Run, decode_run, extract
from agent_env.errors import Forbidden, Unauthenticated
from agent_env.gateway.collector_client import RunRecorder
from agent_env.net.credentials import Tokens
from agent_env.net.guard import OutwardGuard, is_loopback
from agent_env.runtime.caller import Caller
from agent_env.serving.address import PublicAddress


@dataclass(frozen=True, slots=True)
class Access:
    """Decides who callers are and what of their word is taken.

    Without tokens everybody on this machine is the principal "local" with both scopes, and nobody else is let in
    unless the owner said `insecure`. `recorder` takes the records of calls that belong to no run; `guard` decides
    which collectors may be called.
    """

    tokens: Tokens | None = None
    recorder: Recorder | None = None
    guard: OutwardGuard = field(default_factory=OutwardGuard)
    insecure: bool = False

    def admit(self, scope: Scope, headers: Mapping[str, str], address: PublicAddress) -> Principal:
        """The principal of a request that may be answered at all; `headers` are its own, by lower-case name.

        Raises `Unauthenticated`, and `Forbidden` for a page in a browser that is not this server's own.
        """
        if self.tokens is None and not self.insecure:
            self._check_local(scope, headers, address)
        origin = headers.get("origin")
        if origin is not None:  # programs send none
            from_here = urlsplit(origin).netloc.lower()
            if from_here != headers.get("host", "").lower() and from_here != _netloc(scope, address):
                raise Forbidden(f"pages of {origin!r} may not call this server; only its own may, and programs")
        return self.principal(headers.get("authorization"))

    def principal(self, authorization: str | None) -> Principal:
        """The principal of a request; raises `Unauthenticated`."""
        if self.tokens is None:
            return Principal()
        return self.tokens.authenticate(authorization)

    def caller(
        self, principal: Principal, carrier: Mapping[str, Any], run: str | None, client_host: str | None
    ) -> Caller:
        """Makes the caller of one call from what it says about itself.

        A run is taken from loopback, or elsewhere from the scope "orchestrate" of a real token: it re-points the
        agent's model calls. Raises `Forbidden` for anybody else's.
        """
        context = extract(carrier)
        if not run:
            return Caller(principal, context, recorder=self.recorder)
        trusted = is_loopback(client_host or "") if self.tokens is None else "orchestrate" in principal.scopes
        if not trusted:
            raise Forbidden(
                "the Agent-Env-Run header re-points this agent's model, so it is taken only from loopback or with a "
                "token that has the scope 'orchestrate'",
                scope="orchestrate",
            )
        decoded = decode_run(run)
        return Caller(principal, context, decoded, self._recorder(decoded))

    def _check_local(self, scope: Scope, headers: Mapping[str, str], address: PublicAddress) -> None:
        """Refuses who is not of this machine, where nothing else would."""
        client = scope.get("client")
        if client and _is_remote(client[0]):
            raise Unauthenticated(
                "this environment has no tokens and answers only this machine; its owner gives it tokens (auth=...), "
                "or passes insecure=True when something in front asks for credentials"
            )
        if not self.guard.local:
            return
        # A page that reaches this machine under a name of its own (DNS rebinding) is of the same origin as we are.
        host = headers.get("host", "")
        name = _hostname(host)
        if name and not is_loopback(name) and name != _hostname(urlsplit(address.public_url or "").netloc):
            raise Forbidden(
                f"this server is not {host!r}: it listens on this machine alone, and asks for no token. Call it as "
                "127.0.0.1, or give it public_url= if a proxy stands before it"
            )

    def _recorder(self, run: Run) -> Recorder | None:
        if run.seat not in run.routes:
            return self.recorder
        # A server that only this machine reaches may call this machine; looking that up each time would cost more
        # than the call.
        local = self.guard.local and is_loopback(urlsplit(run.gateway).hostname or "")
        return RunRecorder(run, guard=None if local else self.guard)


def _is_remote(host: str) -> bool:
    # What does not listen on a network (a Unix socket, a test client) gives a name for its client, or none.
    try:
        ip_address(host)
    except ValueError:
        return False
    return not is_loopback(host)


def _hostname(netloc: str) -> str:
    name = netloc.rpartition("@")[2].lower()
    return name.partition("]")[0] + "]" if name.startswith("[") else name.partition(":")[0]


def _netloc(scope: Scope, address: PublicAddress) -> str:
    return urlsplit(address.base(HTTPConnection(scope))).netloc.lower()
