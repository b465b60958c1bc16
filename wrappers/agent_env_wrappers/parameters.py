"""What a callable wants to be called with, read from its signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from agent_env_wrappers.contract import Message, WrapError

MESSAGE = ("message", "prompt", "text", "input", "query")
OPTIONAL = ("history", "peers", "context", "model", "answers", "state")
FREE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Parameters:
    """How to call a callable agent.

    `message` is the parameter that gets the message, by position if `positional`, as a whole `Message` if `whole`;
    `takes` are the optional names it has. `is_async` and `generator` tell what can be seen without calling it.
    """

    called: str
    name: str | None
    description: str
    message: str
    positional: bool
    whole: bool
    takes: frozenset[str]
    is_async: bool
    generator: bool

    @classmethod
    def of(cls, agent: Callable[..., Any]) -> Parameters:
        """Reads the signature; raises `WrapError` that lists the accepted names when it cannot be filled."""
        function = _underlying(agent)
        name = _name(agent, function)
        called = f"the callable {name!r}" if name else f"the callable {agent!r}"
        parameters = _parameters(agent, called)
        message = _message(parameters, called)
        return cls(
            called=called,
            name=name,
            description=(inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " "),
            message=message.name,
            positional=message.kind is Parameter.POSITIONAL_ONLY,
            whole=message.annotation in (Message, "Message"),
            takes=frozenset(parameter.name for parameter in parameters if parameter.name in OPTIONAL),
            is_async=inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function),
            generator=inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function),
        )


def _underlying(agent: Callable[..., Any]) -> Callable[..., Any]:
    """The function that runs in the end: inside partials, and of an object its `__call__`."""
    while isinstance(agent, functools.partial):
        agent = agent.func
    if inspect.isroutine(agent):
        return agent
    return type(agent).__call__


def _name(agent: Callable[..., Any], function: Callable[..., Any]) -> str | None:
    own = getattr(agent, "name", None)
    if isinstance(own, str) and own:
        return own
    if function.__name__ == "__call__":
        return type(agent).__name__
    return None if function.__name__ == "<lambda>" else function.__name__


def _parameters(agent: Callable[..., Any], called: str) -> list[Parameter]:
    try:
        return list(inspect.signature(agent, eval_str=True).parameters.values())
    except (TypeError, ValueError) as error:
        raise WrapError(f"{called} does not tell its parameters; hand over a function around it") from error
    except Exception:  # noqa: BLE001 - evaluating an annotation may raise anything
        # It names something that is imported for type checkers alone: it tells us nothing.
        return list(inspect.signature(agent).parameters.values())


def _message(parameters: list[Parameter], called: str) -> Parameter:
    single = parameters[0] if len(parameters) == 1 else None
    if single and single.kind not in FREE and single.name not in (*OPTIONAL, "messages"):
        return single
    named = [parameter for parameter in parameters if parameter.name in MESSAGE and parameter.kind not in FREE]
    required = [parameter for parameter in named if parameter.default is Parameter.empty]
    message = next(iter(required or named), None)
    unfilled = [
        parameter.name
        for parameter in parameters
        if parameter.kind not in FREE
        and parameter.default is Parameter.empty
        and parameter is not message
        and (parameter.name not in OPTIONAL or parameter.kind is Parameter.POSITIONAL_ONLY)
    ]
    if message is None or unfilled:
        nothing_fills = f"has parameters that nothing fills ({', '.join(unfilled)})"
        what = nothing_fills if unfilled else "has no parameter for the message"
        raise WrapError(
            f"{called} {what}; name the message one of {', '.join(MESSAGE)}, and use no others than "
            f"{', '.join(OPTIONAL)} without a default"
        )
    return message
