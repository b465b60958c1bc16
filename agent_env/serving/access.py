"""Who is calling: from a request's headers to a `Caller` that the runtime trusts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from agent_env.context import Principal, Recorder, Run, decode_run, extract
from agent_env.errors import Forbidden
from agent_env.gateway.collector_client import RunRecorder
from agent_env.net.credentials import Tokens
from agent_env.net.guard import OutwardGuard, is_loopback
from agent_env.runtime.caller import Caller


@dataclass(frozen=True, slots=True)
class Access:
    """Decides who callers are and what of their word is taken.

    Without tokens everybody is the principal "local" with both scopes: that is for loopback, or for an owner who
    said `insecure=True`. `recorder` takes the records of calls that belong to no run; `guard` decides which
    collectors may be called.
    """

    tokens: Tokens | None = None
    recorder: Recorder | None = None
    guard: OutwardGuard = field(default_factory=OutwardGuard)

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

    def _recorder(self, run: Run) -> Recorder | None:
        if run.route is None:
            return self.recorder
        # A server that only this machine reaches may call this machine; looking that up each time would cost more
        # than the call.
        local = self.guard.local and is_loopback(urlsplit(run.gateway).hostname or "")
        return RunRecorder(run, guard=None if local else self.guard)


def same_origin(origin: str | None, host: str | None) -> bool:
    """Tells whether a browser's request comes from a page of this server; programs send no Origin."""
    if origin is None:
        return True
    return bool(host) and urlsplit(origin).netloc.lower() == (host or "").lower()
