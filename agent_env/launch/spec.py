"""How a release is started: typed launch specifications, as a hub keeps them."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from agent_env.errors import ConfigurationError, LaunchFailed
from agent_env.launch.source import source_hash

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def to_json(self) -> dict[str, Any]:
        """The specification as a hub keeps it."""
        return self.model_dump(exclude_none=True)


class _Process(_Spec):
    directory: str
    env: tuple[str, ...] = ()
    """Names of the environment variables that the process needs; values are never stored."""
    source: str | None = None
    machine: str | None = None
    """The host name of the machine whose paths these are."""

    @field_validator("env")
    @classmethod
    def _names_alone(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of an environment variable (values are not stored)")
        return names


class PythonLaunch(_Process):
    """`agent-env serve module:attribute`, run by one interpreter in one directory.

    `options` are those that decide what the card says: `--name`, `--version`, `--skill`, as they were pushed.
    """

    kind: Literal["python"] = "python"
    target: str
    interpreter: str
    options: tuple[str, ...] = ()

    def argv(self, linger: float) -> list[str]:
        """The command; it ends by itself `linger` seconds after its last session."""
        command = [self.interpreter, "-m", "agent_env.cli", "serve", self.target, *self.options]
        return [*command, "--host", "127.0.0.1", "--port", "0", "--linger", f"{linger:g}"]


class CommandLaunch(_Process):
    """Any command that serves the release and registers it with the hub of its environment variables."""

    kind: Literal["command"] = "command"
    command: tuple[str, ...] = Field(min_length=1)

    def argv(self, linger: float) -> list[str]:
        """The command as it is; it knows by itself what it serves, and for how long."""
        return list(self.command)


class UrlLaunch(_Spec):
    """An environment that somebody else keeps running at one URL; it is not started, only checked."""

    kind: Literal["url"] = "url"
    url: str


LaunchSpec: TypeAlias = PythonLaunch | CommandLaunch | UrlLaunch

_any_spec: TypeAdapter[LaunchSpec] = TypeAdapter(Annotated[LaunchSpec, Field(discriminator="kind")])


def parse_launch(value: Mapping[str, Any]) -> LaunchSpec:
    """Reads a specification from a hub; raises `LaunchFailed` for one that this release does not understand."""
    try:
        return _any_spec.validate_python(dict(value))
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        raise LaunchFailed(
            f"the launch specification is not understood: {'/'.join(map(str, found['loc']))}: {found['msg']}; "
            f"push the release again, or upgrade agent-env"
        ) from None


def python_launch(
    target: str,
    *,
    options: Sequence[str] = (),
    directory: str | Path = ".",
    interpreter: str | None = None,
    env: Sequence[str] = (),
) -> PythonLaunch:
    """Describes how to serve `module:attribute` again as it is now, by this interpreter unless another is given.

    `options` are the options of `agent-env serve` that the card depends on, `env` the names of variables.

    Raises `ConfigurationError` for a module that is not found and names that are none.
    """
    place = Path(directory).absolute()
    try:
        return PythonLaunch(
            target=target,
            interpreter=interpreter or sys.executable,
            options=tuple(options),
            directory=str(place),
            env=tuple(env),
            source=source_hash(target, place),
            machine=platform.node(),
        )
    except ValidationError as error:
        raise ConfigurationError(
            f"{target!r} cannot be launched: {error.errors(include_url=False)[0]['msg']}"
        ) from None
