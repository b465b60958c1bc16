"""The run plane: where the model calls and the records of a run go, seat by seat.

A run travels beside the call context, in a header of its own, because it holds tokens: baggage reaches every model
vendor, this must not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Route:
    """A seat's way to the gateway: `token` opens it for one episode, `model` names the seat's policy, "" for none."""

    token: str
    model: str


@dataclass(frozen=True, slots=True)
class Run:
    """One episode of a run as an agent sees it.

    `gateway` is the gateway's base URL; the model endpoint of one call is `{gateway}/runs/{run}/{episode}/{seat}/
    {call_id}/v1`, the collector is `{gateway}/runs/{run}/{episode}/records`. `seat` is the receiver's own.
    """

    gateway: str
    run: str
    episode: str
    seat: str
    routes: Mapping[str, Route] = field(default_factory=dict[str, Route])

    def at(self, seat: str) -> Run:
        """The same run, seen from another seat."""
        return replace(self, seat=seat)

    @property
    def route(self) -> Route | None:
        """The way of the receiver's model calls, None for a seat that no policy plays."""
        route = self.routes.get(self.seat)
        return None if route is None or not route.model else route

    def model_url(self, call_id: str) -> str:
        """The base URL of the model endpoint for the turn `call_id`."""
        return f"{self.gateway}/runs/{self.run}/{self.episode}/{self.seat}/{call_id}/v1"

    def collector_url(self) -> str:
        """Where the receiver posts its records."""
        return f"{self.gateway}/runs/{self.run}/{self.episode}/records"
