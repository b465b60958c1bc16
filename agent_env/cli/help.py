"""What `--help` shows of an option: the type of its value, and nothing for a flag, which has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

F = TypeVar("F", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command whose help is plain, and which says what it was given where it cannot take that."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, the option `--help` among them."""
        return _plain(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the command line."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            value = _given(getattr(error.param, "opts", ()), given)
            if value is not None and repr(value) not in error.message:
                error.message = f"{error.message.rstrip('.')}, not {value!r}"
            raise


class Group(TyperGroup):
    """A group of commands whose help is plain."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, the option `--help` among them."""
        return _plain(super().get_params(ctx))


class Application(typer.Typer):
    """Commands with plain help; called without arguments it shows that help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=Group, no_args_is_help=True, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """Adds a command."""
        return super().command(name, cls=Command, **settings)


def _given(names: Iterable[str], arguments: Sequence[str]) -> str | None:
    """What an option was given on a command line, the last time that it was."""
    found: str | None = None
    for argument, after in pairwise([*arguments, ""]):
        for name in names:
            if argument == name:
                found = after
            elif argument.startswith(f"{name}="):
                found = argument.removeprefix(f"{name}=")
    return found


def _plain(parameters: Any) -> Any:
    for parameter in parameters:
        if parameter.metavar is None:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            elif getattr(parameter, "multiple", False):
                parameter.metavar = "<str>"
    return parameters
