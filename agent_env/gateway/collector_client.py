"""Posting records to the collector of a run."""

from __future__ import annotations

from collections.abc import Sequence

from agent_env.context import Record, Run
from agent_env.errors import ConfigurationError
from agent_env.net import OutwardGuard, bearer_headers, post_json

_SECONDS = 30.0


class RunRecorder:
    """The `Recorder` of a turn that is played for a run: it posts to the run's collector.

    `guard` decides whether the gateway's address, which the caller chose, may be called. Raises `TransportError` or
    the gateway's own refusal when the records were not kept.
    """

    def __init__(self, run: Run, *, guard: OutwardGuard | None = None, timeout: float = _SECONDS) -> None:
        route = run.route or next(iter(run.routes.values()), None)
        if route is None:
            raise ConfigurationError(f"the run {run.run!r} gives no token, so its collector takes nothing from here")
        self._url = run.collector_url()
        self._headers = bearer_headers(route.token)
        self._guard = guard
        self._timeout = timeout

    async def record(self, records: Sequence[Record]) -> None:
        """Posts the records; when it returns, they are on the gateway's disk."""
        if records:
            await post_json(self._url, list(records), headers=self._headers, timeout=self._timeout, guard=self._guard)
