"""What a served hub is asked: the bodies of its requests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Request(BaseModel):
    """A request to the hub; a member that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Publish(Request):
    """Publish a card."""

    card: dict[str, Any]
    launch: dict[str, Any] | None = None


class Mark(Request):
    """Yank, unyank or deprecate a release."""

    name: str
    version: str
    reason: str = ""


class Register(Request):
    """List an instance of a card."""

    card: dict[str, Any]
    url: str
    capacity: int | None = None
    load: int = 0
    source: str | None = None
    launch: dict[str, Any] | None = None
    launch_id: str | None = None


class Renew(Request):
    """Renew a lease."""

    lease: str
    load: int | None = None


class End(Request):
    """End a lease."""

    lease: str


class Doubt(Request):
    """Report an instance that could not be reached."""

    instance: str


class ClaimLaunch(Request):
    """Ask to launch a release."""

    name: str
    version: str
    seconds: float
    after: str | None = None


class EndLaunch(Request):
    """End a claim."""

    claim: str
    error: str | None = None
