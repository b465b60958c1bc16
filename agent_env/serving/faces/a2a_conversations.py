"""Contexts: which session a message of A2A belongs to, and which task of it waits for an answer.

A context id is a session id. Clients may choose it; then it belongs to the principal that used it first, and when its
session is gone it never opens another. Ids that the server made open nothing.
"""

from __future__ import annotations

import re
from collections import OrderedDict

from agent_env.errors import InvalidArguments
from agent_env.runtime.environment import Runtime
from agent_env.runtime.sessions import mint_session_id
from agent_env_wrappers.contract import Interrupt

_MINTED = re.compile(r"s-[\w-]{22}")
_MAX_LENGTH = 256


class Conversations:
    """The contexts of one environment; it remembers the `remembered` that were used last."""

    def __init__(self, runtime: Runtime, *, remembered: int = 50_000) -> None:
        self._sessions = runtime.sessions
        self._remembered = remembered
        self._owners: OrderedDict[str, str] = OrderedDict()
        self._waiting: OrderedDict[tuple[str, str], str] = OrderedDict()

    def mint(self) -> str:
        """Makes the id of a new context."""
        return mint_session_id()

    def check(self, principal: str, context_id: str) -> None:
        """Raises `UnknownSession` for a context that is somebody else's, or whose session is gone."""
        if len(context_id) > _MAX_LENGTH or not context_id.isprintable():
            raise InvalidArguments(f"a context id has at most {_MAX_LENGTH} printable characters")
        if self._sessions.knows(principal, context_id):
            return
        if context_id in self._owners or _MINTED.fullmatch(context_id):
            self._sessions.find(principal, context_id)

    def keep(self, principal: str, context_id: str) -> None:
        """Binds a context, in which a turn has ended, to its principal."""
        self._owners.setdefault(context_id, principal)
        self._owners.move_to_end(context_id)
        while len(self._owners) > self._remembered:
            self._owners.popitem(last=False)

    def question(self, principal: str, context_id: str) -> Interrupt | None:
        """What the context's agent waits for."""
        if not self._sessions.knows(principal, context_id):
            return None
        return self._sessions.find(principal, context_id).interrupt

    def wait(self, principal: str, context_id: str, task_id: str) -> None:
        """Notes that this task waits for the context's next message."""
        self._waiting[principal, context_id] = task_id
        while len(self._waiting) > self._remembered:
            self._waiting.popitem(last=False)

    def waiting(self, principal: str, context_id: str) -> str | None:
        """The task that the context's next message goes on with."""
        return self._waiting.get((principal, context_id))

    def go_on(self, principal: str, context_id: str) -> None:
        """Notes that no task of the context waits any more."""
        self._waiting.pop((principal, context_id), None)
