"""Environment Cards as they were read lately: a conversation a second must not read a card a second."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Any, NamedTuple

from agent_env.errors import InvalidCard
from agent_env.net.credentials import bearer_headers
from agent_env.net.http import get_json, shown
from agent_env.net.loops import PerLoop
from agent_env_cards import CardError, EnvironmentCard

CARD_SECONDS = 15.0
"""How long a card that was read is believed before it is read again."""

_MOST = 1024


class ReadCard(NamedTuple):
    """A card that was read, and its digest, which is worth computing once."""

    card: EnvironmentCard
    digest: str


class _Place:
    """The card at one address, as one token sees it."""

    def __init__(self) -> None:
        self.reading = asyncio.Lock()
        self.read: ReadCard | None = None
        self.until = 0.0

    def known(self, digest: str | None) -> ReadCard | None:
        read = self.read if time.monotonic() < self.until else None
        return None if read is not None and digest not in (None, read.digest) else read


class _Cards:
    """The cards that one event loop has read."""

    def __init__(self, _: None) -> None:
        self._places: OrderedDict[tuple[str, str | None], _Place] = OrderedDict()

    def at(self, address: str, token: str | None) -> _Place:
        place = self._places.setdefault((address, token), _Place())
        self._places.move_to_end((address, token))
        if len(self._places) > _MOST:
            self._places.popitem(last=False)
        return place

    async def aclose(self) -> None:
        self._places.clear()


_cards: PerLoop[None, _Cards] = PerLoop(_Cards, _Cards.aclose)


async def read_card(
    address: str, token: str | None = None, seconds: float | None = None, *, digest: str | None = None
) -> ReadCard:
    """Reads the card at an address; one that was read a moment ago is not read again.

    With a `digest`, a remembered card of another release is read again, which then may be that other one all the
    same. Raises `InvalidCard` with every problem, or what the transport raises.
    """
    place = _cards.get(None).at(address, token)
    read = place.known(digest)
    if read is None:
        async with place.reading:
            read = place.known(digest)
            if read is None:
                read = parse_card(
                    await get_json(address, headers=bearer_headers(token), timeout=seconds), shown(address)
                )
                place.read, place.until = read, time.monotonic() + CARD_SECONDS
    return read


def forget_card(address: str, token: str | None = None) -> None:
    """Drops what is remembered: something there is not as it was."""
    _cards.get(None).at(address, token).until = 0.0


def parse_card(wire: Any, where: str) -> ReadCard:
    """Parses a card that came from `where`; raises `InvalidCard`."""
    try:
        card = EnvironmentCard.parse(wire)
        digest = card.digest()
    except CardError as error:
        raise InvalidCard(
            f"the card at {where} is not valid: {error}", problems=[problem.to_dict() for problem in error.problems]
        ) from None
    if card.stated_digest is not None and card.stated_digest != digest:
        raise InvalidCard(f"the card at {where} says its digest is {card.stated_digest}, but it is {digest}")
    return ReadCard(card, digest)
