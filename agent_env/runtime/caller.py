"""Who calls an environment, as a face found it out."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent_env.context import CallContext, Principal, Recorder, Run
from agent_env.errors import Forbidden


@dataclass(frozen=True, slots=True)
class Caller:
    """The principal, the call context, the run that the call belongs to, and where its records go."""

    principal: Principal = field(default_factory=Principal)
    context: CallContext = field(default_factory=CallContext)
    run: Run | None = None
    recorder: Recorder | None = None

    def need(self, scope: str, verb: str) -> None:
        """Raises `Forbidden` unless the principal has the scope."""
        if scope not in self.principal.scopes:
            raise Forbidden(
                f"{verb!r} needs a token with the scope {scope!r}; yours has {sorted(self.principal.scopes)}",
                scope=scope,
            )
