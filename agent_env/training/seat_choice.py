"""The seats that rows are asked of, and those that have model calls to make rows of."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from agent_env.errors import ConfigurationError

log = logging.getLogger("agent_env.training")


def chosen_seats(seats: Iterable[str] | None) -> list[str] | None:
    """The seats that rows are asked of, None for all; raises `ConfigurationError` for a text."""
    if isinstance(seats, str):
        raise ConfigurationError(f"several seats are asked for, not {seats!r}; for one alone: [{seats!r}]")
    return None if seats is None else list(seats)


def callers(called: Mapping[str, int], frozen: Collection[str]) -> str:
    """The seats that have model calls, how many, and which of them never learn."""
    return ", ".join(f"{seat!r} ({count}{', frozen' * (seat in frozen)})" for seat, count in sorted(called.items()))


def tell_idle(seats: Iterable[str] | None, called: Mapping[str, int], frozen: Collection[str]) -> None:
    """Warns of seats that no row can be made of though others have model calls: such as of a name that is misspelt, or
    of an agent without a model."""
    idle = [seat for seat in seats or () if seat in frozen or seat not in called]
    if idle and called:
        log.warning(
            "no row can be made of %s; there are model calls of %s",
            *(", ".join(map(repr, idle)), callers(called, frozen)),
        )
