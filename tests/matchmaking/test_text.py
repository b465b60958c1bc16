"""The text of cards orders what is equal in everything else."""

from __future__ import annotations

from typing import Any

from agent_env.matchmaking import Matchmaker
from agent_env.matchmaking.text import Corpus, card_words, need_words, words
from agent_env_cards import Criteria, Need

CARDS = {
    "algebra": ["Solve the equation 3x + 4 = 10", "Simplify this polynomial"],
    "law": ["Review this rental contract", "Is this clause enforceable?"],
    "travel": ["Book a flight to Lisbon", "Find a cheap hotel near the station"],
    "cooking": ["Give me a recipe with lentils", "How long do I boil an egg?"],
    "code": ["Why does this Python function raise a TypeError?", "Refactor this class"],
    "music": ["Write a melody in D minor", "Which chords fit this song?"],
}
ASKED = {
    "algebra": "please solve some equations for x",
    "law": "someone to review contracts and their clauses",
    "travel": "book flights and hotels",
    "cooking": "recipes for dinner",
    "code": "find out why a function raises",
    "music": "a melody with chords",
}


def test_sample_requests_find_the_right_card_among_equals(card: Any) -> None:
    matchmaker = Matchmaker([card(name, examples=requests) for name, requests in CARDS.items()])
    for name, text in ASKED.items():
        best = matchmaker.pair(Need("x", prefers=Criteria(examples=[text]))).require()
        assert best.candidate.card.name == name and best.scores.text > 0


def test_words_are_compared_without_case_and_endings() -> None:
    assert list(words("Solving EQUATIONS, solved; the equation's x_1")) == [
        *("solv", "equation", "solv", "equation", "x", "1")
    ]
    assert list(words("classes class")) == ["class", "class"]


def test_a_need_asks_with_its_description_and_its_sample_requests() -> None:
    wished = Criteria(skills=["law"], examples=["Is this proof sound?"])
    need = Need("x", skills=["math"], description="Check proofs", examples=["Prove it"], prefers=wished)
    assert need_words(need) == ["check", "proof", "prov", "sound"]


def test_repeating_a_word_does_not_pay_without_end(card: Any) -> None:
    once, often = card("once", description="equation"), card("often", description="equation " * 10_000)
    assert card_words(often).total() == card_words(once).total()
    corpus = Corpus([once, often, *(card(f"other-{number}") for number in range(10))])
    scores = corpus.scores(["equation"], range(3))
    assert 0 < scores[1] == scores[0] and scores[2] == 0
    assert corpus.score(["equation"], once) == scores[0]
    assert Corpus([]).scores(["equation"], []) == {}
