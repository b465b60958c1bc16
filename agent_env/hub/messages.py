"""What a served hub is asked: the bodies of its requests."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _json(value: dict[str, Any]) -> dict[str, Any]:
    # 1e999 is read as an infinity, which no answer could carry (RFC 8259, section 6).
    json.dumps(value, allow_nan=False)
    return value


JSONObject: TypeAlias = Annotated[dict[str, Any], AfterValidator(_json)]
"""An object that can be written as JSON again."""

Count: TypeAlias = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""A number of sessions, as a column of any database holds it."""

Seconds: TypeAlias = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
"""How long a launch may be claimed for: a day at most, since nobody else launches meanwhile."""


class Request(BaseModel):
    """A request to the hub; a member that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Publish(Request):
    """Publish a card."""

    card: JSONObject
    launch: JSONObject | None = None


class Mark(Request):
    """Yank, unyank or deprecate a release."""

    name: str
    version: str
    reason: str = ""


class Prune(Request):
    """Remove what is gone."""

    drafts_older_than: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    dry_run: bool = False


class Register(Request):
    """List an instance of a card."""

    card: JSONObject
    url: str
    capacity: Count | None = None
    load: Count = 0
    source: str | None = None
    launch: JSONObject | None = None
    launch_id: str | None = None


class Renew(Request):
    """Renew a lease."""

    lease: str
    load: Count | None = None


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
    seconds: Seconds
    after: str | None = None


class EndLaunch(Request):
    """End a claim."""

    claim: str
    error: str | None = None
