"""How near the text of a card is to what is asked: bm25 over sample requests, skills, tags and descriptions.

The weighting is Okapi's bm25 (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework") with words of
sample requests and skills counted more than once. Text only orders candidates that are equal in everything else.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from agent_env_cards import EnvironmentCard, Need

_WORD = re.compile(r"[^\W_]+")
_SATURATION = 1.2
_LENGTH = 0.75
_MOST_WORDS = 200
_MOST_TEXTS = 32
_COMMON = frozenset(
    _WORD.findall(
        "a an and are as at be by can do for from give how i in is it me my of on or please s that the this to we what "
        "which with you your"
    )
)


def words(text: str) -> Iterator[str]:
    """The words of a text as they are compared: in lower case, without common ones and without an ending."""
    for word in _WORD.findall(text.lower()):
        if word not in _COMMON:
            yield _stem(word)


def _stem(word: str) -> str:
    for ending, least in (("ations", 4), ("ation", 4), ("ings", 4), ("ing", 4), ("ies", 3), ("ed", 4), ("es", 4)):
        if word.endswith(ending) and len(word) - len(ending) >= least:
            return word[: -len(ending)]
    return word[:-1] if len(word) > 3 and word.endswith(("s", "e")) and not word.endswith("ss") else word


def card_words(card: EnvironmentCard) -> Counter[str]:
    """The words of a card, each as often as it counts.

    A text counts each of its words once, and only its beginning is read, so that repeating does not pay.
    """
    offer = card.offers
    counted: list[tuple[int, Iterable[str]]] = [
        (3, [sample.request for sample in offer.examples]),
        (2, [f"{skill.id} {skill.name or ''}" for skill in offer.skills]),
        (2, [*offer.tags, *(tag for skill in offer.skills for tag in skill.tags)]),
        (1, [skill.description for skill in offer.skills]),
        (1, [card.name, card.description]),
    ]
    found: Counter[str] = Counter()
    for weight, texts in counted:
        for text in islice(texts, _MOST_TEXTS):
            for word in dict.fromkeys(islice(words(text), _MOST_WORDS)):
                found[word] += weight
    return found


def need_words(need: Need) -> list[str]:
    """The words that a need asks with: of its description and its sample requests; skills and tags have rules."""
    texts = [need.description]
    for criteria in (need.requires, need.prefers):
        texts += [sample.request for sample in criteria.examples]
    found = dict.fromkeys(word for text in texts for word in words(text))
    return list(found)[:_MOST_WORDS]


class Corpus:
    """The words of many cards, and how much each tells."""

    def __init__(self, cards: Sequence[EnvironmentCard]) -> None:
        self._cards = [card_words(card) for card in cards]
        self._mean = sum(counted.total() for counted in self._cards) / max(1, len(self._cards)) or 1.0
        self._damping = [self._damp(counted) for counted in self._cards]
        self._spread: Counter[str] = Counter()
        for counted in self._cards:
            self._spread.update(counted.keys())

    def scores(self, asked: Iterable[str], among: Iterable[int]) -> dict[int, float]:
        """The bm25 scores of some of the cards."""
        weights = self._weights(asked)
        return {at: _score(weights, self._cards[at], self._damping[at]) for at in among}

    def score(self, asked: Iterable[str], card: EnvironmentCard) -> float:
        """The bm25 score of a card that need not be among them."""
        counted = card_words(card)
        return _score(self._weights(asked), counted, self._damp(counted))

    def _damp(self, counted: Counter[str]) -> float:
        return _SATURATION * (1 - _LENGTH + _LENGTH * counted.total() / self._mean)

    def _weights(self, asked: Iterable[str]) -> list[tuple[str, float]]:
        total = len(self._cards)
        spreads = ((word, self._spread[word]) for word in asked)
        return [(word, math.log(1 + (total - many + 0.5) / (many + 0.5))) for word, many in spreads if many]


def _score(weights: Sequence[tuple[str, float]], counted: Mapping[str, int], damping: float) -> float:
    score = 0.0
    for word, weight in weights:
        if (count := counted.get(word)) is not None:
            score += weight * count * (_SATURATION + 1) / (count + damping)
    return score
