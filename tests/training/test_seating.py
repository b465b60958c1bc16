"""Policies for seats: folders with models, fresh tiny ones, and what is said where one is missing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from games import WORDS, game, guesser, play
from pretrained_models import save_model

from agent_env.errors import ConfigurationError
from agent_env.training import Policy, Scenario, Seat, WordTokenizer, make_model
from agent_env.training.seating import make_policies, seat_policies, vocabulary


def team(**seats: Seat) -> Scenario:
    return replace(game(), seats=seats)


def test_fresh_policies_know_the_words_of_the_scenario_and_differ_by_place() -> None:
    scenario = team(a=Seat(guesser, policy="p"), b=Seat(guesser, policy="q"), judge=Seat(guesser, "j", trainable=False))
    made = make_policies(scenario, tiny=True, seed=3)
    assert {name: policy.trainable for name, policy in made.items()} == {"p": True, "q": True, "j": False}
    for policy in made.values():
        assert isinstance(policy.tokenizer, WordTokenizer) and policy.tokenizer.words == sorted(WORDS)
    again = make_policies(scenario, tiny=True, seed=3)
    head = {name: policy.model.state_dict()["head.weight"] for name, policy in made.items()}
    assert torch.equal(head["p"], again["p"].model.state_dict()["head.weight"])
    assert not torch.equal(head["p"], head["q"])
    assert set(make_policies(scenario, tiny=True, known=["p", "j"])) == {"q"}


def test_a_policy_learns_if_any_of_its_seats_does() -> None:
    scenario = team(a=Seat(guesser, policy="p", trainable=False), b=Seat(guesser, policy="p"))
    assert make_policies(scenario, tiny=True)["p"].trainable


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"words": ["sun moon", "day"]}, ["day", "moon", "sun"]),
        ({"words": (), "tasks": [{"id": "x", "ask": ["a b", {"deep": "c"}], "n": 3}]}, ["a", "b", "c", "x"]),
        ({"words": (), "tasks": lambda chance, count: ["d e"] * count}, ["d", "e"]),
    ],
)
def test_a_vocabulary_is_the_words_or_else_those_of_the_tasks(fields: dict[str, Any], words: list[str]) -> None:
    assert vocabulary(replace(game(), **fields)) == words


def test_a_scenario_without_words_has_no_tiny_models() -> None:
    with pytest.raises(ConfigurationError, match="the scenario 'game' has no words"):
        make_policies(replace(game(), words=(), tasks=[1, 2]), tiny=True)


def test_an_object_says_what_is_trained_on_as_a_scenario_does() -> None:
    class Game:
        play = staticmethod(play)
        words = WORDS

        def tasks(self, chance: random.Random, count: int) -> Sequence[str]:
            return ["day"] * count

    scenario = Scenario.of(Game())
    assert callable(scenario.tasks) and scenario.tasks(random.Random(), 2) == ["day", "day"]
    assert vocabulary(scenario) == sorted(WORDS)
    assert Scenario.of(play).tasks == () and Scenario.of(play).words == ()


def test_folders_are_given_by_seat(tmp_path: Path) -> None:
    scenario = team(a=Seat(guesser), b=Seat(guesser, policy="p"), c=Seat(guesser, policy="p"))
    seated, folders = seat_policies(scenario, {"a": tmp_path / "x", "c": tmp_path / "y"})
    assert folders == {"a": tmp_path / "x", "p": tmp_path / "y"}
    assert seated.seats["a"].policy == "a" and scenario.seats["a"].policy is None
    with pytest.raises(ConfigurationError, match="no seat 'z' to give a policy to; the seats: 'a', 'b', 'c'"):
        seat_policies(scenario, {"z": tmp_path})
    with pytest.raises(ConfigurationError, match="the policy 'p' plays several seats and cannot be both"):
        seat_policies(scenario, {"b": tmp_path / "x", "c": tmp_path / "y"})


def test_models_are_read_whole_by_adapter_or_tiny(tmp_path: Path) -> None:
    model = save_model(tmp_path / "hf", WORDS)
    tokenizer = WordTokenizer(WORDS)
    small = Policy("old", make_model(tokenizer, seed=5), tokenizer)
    small.version = 7
    small.save(tmp_path / "tiny")
    scenario = team(a=Seat(guesser, policy="a"), b=Seat(guesser, policy="b"), j=Seat(guesser, "j", trainable=False))
    folders = {"a": model, "b": tmp_path / "tiny", "j": model}
    made: Any = make_policies(scenario, folders, lora=True, learning_rate=0.5, device="cpu")
    assert made["a"].model.adapted and not made["j"].model.adapted  # a frozen one needs none
    assert made["b"].name == "b" and made["b"].version == 0
    assert torch.equal(made["b"].model.state_dict()["head.weight"], small.model.state_dict()["head.weight"])
    assert {policy.settings.learning_rate for policy in made.values()} == {0.5}
    usual: Any = make_policies(scenario, folders, device="cpu")
    assert not usual["a"].model.adapted
    assert [usual[name].settings.learning_rate for name in "abj"] == [1e-5, 3e-3, 1e-5]
    assert {policy.settings.average for policy in usual.values()} == {"units"}
    by_tokens: Any = make_policies(scenario, folders, average="tokens", device="cpu")
    assert [policy.settings for policy in by_tokens.values()] == [
        replace(policy.settings, average="tokens") for policy in usual.values()
    ]


def test_what_nothing_plays_is_told_with_both_ways_out(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="nothing plays the seat 'guesser'; give it a model with --policy guesser=DIR"
    ):
        make_policies(game())
    with pytest.raises(ConfigurationError, match=r"there is no folder .*gone' to read the policy 'p' from"):
        make_policies(game(), {"p": tmp_path / "gone"})
    with pytest.raises(ConfigurationError, match="a tiny model is trained whole"):
        make_policies(game(), tiny=True, lora=True)
