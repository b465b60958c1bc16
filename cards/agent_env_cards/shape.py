"""The form of a card: JSON text into a value, and what the models refused into problems."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import cast

from pydantic import ValidationError

from agent_env_cards.pointers import pointer
from agent_env_cards.problems import CardError, Problem


def read_json(card: object) -> object:
    """The JSON value of a card; text and bytes are decoded, a value stays. Raises `CardError` if they are not JSON."""
    if not isinstance(card, str | bytes | bytearray):
        return card
    try:
        return cast("object", json.loads(card))
    except (ValueError, RecursionError) as error:
        raise CardError(f"the card is not JSON: {error}", [Problem("", f"not JSON: {error}", "EC-01")]) from error


def shape_problems(error: ValidationError) -> list[Problem]:
    """Turns what the models refused into problems with pointers."""
    problems: list[Problem] = []
    for detail in error.errors(include_url=False, include_context=False):
        message = detail["msg"][0].lower() + detail["msg"][1:]
        if detail["type"] != "missing":
            message += f", not {_short(detail['input'])}"
        problems.append(Problem(pointer(*detail["loc"]), message, "EC-03"))
    return problems


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """The problems by place and clause, each once."""
    return sorted(set(problems), key=lambda problem: (problem.pointer, problem.clause, problem.message))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
