"""Where a hub is: a file, a database, or the URL of a served one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from platformdirs import user_data_path

from agent_env.errors import ConfigurationError
from agent_env.net import is_loopback, shown

HUB_VARIABLE = "AGENT_ENV_HUB"
"""The environment variable that names the hub: a path, a SQLAlchemy URL, or the http(s) URL of a served hub."""

TOKEN_VARIABLE = "AGENT_ENV_HUB_TOKEN"
"""The environment variable with the bearer token for a served hub."""

LAUNCH_VARIABLE = "AGENT_ENV_LAUNCH_ID"
"""The environment variable by which a process learns which launch it is; it registers its instance with it."""

_ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a hub: `url` is an http(s) URL or a SQLAlchemy URL with an async driver; `file` its file, if any."""

    url: str
    file: Path | None = None

    @property
    def remote(self) -> bool:
        """Tells whether the hub is served over HTTP."""
        return self.url.startswith(("http://", "https://"))

    @property
    def local(self) -> bool:
        """Tells whether what the hub says comes from this machine: a file, or a server on loopback."""
        return self.file is not None or (self.remote and is_loopback(urlsplit(self.url).hostname or ""))

    @property
    def target(self) -> str:
        """The location as another process would be told it, in AGENT_ENV_HUB."""
        return str(self.file) if self.file is not None else self.url

    def __str__(self) -> str:
        return str(self.file) if self.file is not None else shown(self.url)


def locate(target: str | Path | None = None) -> Location:
    """Reads what the user calls the hub; None is AGENT_ENV_HUB, else `hub.db` in the user's data directory."""
    if target is None:
        target = os.environ.get(HUB_VARIABLE) or user_data_path("agent-env", appauthor=False) / "hub.db"
    text = str(target).strip()
    if not text:
        raise ConfigurationError("the hub's location is empty; give a path, a SQLAlchemy URL or an http(s) URL")
    scheme, mark, rest = text.partition("://")
    if not mark:
        file = Path(text).expanduser().absolute()
        return Location(f"sqlite+aiosqlite:///{file}", file)
    if scheme in ("http", "https"):
        return Location(text.rstrip("/"))
    dialect, _, driver = scheme.partition("+")
    if dialect not in _ASYNC_DRIVERS:
        known = ", ".join(sorted(_ASYNC_DRIVERS))
        raise ConfigurationError(
            f"the hub {shown(text)!r} has the scheme {scheme!r}; give a path, an http(s) URL, or a SQLAlchemy URL "
            f"of one of these: {known}"
        )
    if dialect == "sqlite":
        path = rest.removeprefix("/").partition("?")[0]
        if path in ("", ":memory:"):
            return Location("sqlite+aiosqlite://")
        return locate(Path(path))
    return Location(text if driver else f"{_ASYNC_DRIVERS[dialect]}://{rest}")
