"""Policies for the seats of a scenario: folders with models, or fresh tiny ones."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agent_env.errors import ConfigurationError
from agent_env.training.scenario import Json, Scenario

if TYPE_CHECKING:
    from agent_env.training.policy import Policy
    from agent_env.training.update import Settings

_TINY_CONTEXT = 256
_DRAWN = 256
"""How many tasks are drawn to learn their words from, where they are made and not listed."""


def seat_policies(scenario: Scenario, folders: Mapping[str, Path]) -> tuple[Scenario, dict[str, Path]]:
    """The scenario with a policy in each seat that a folder is given for, and the folders by the names of policies.

    Raises `ConfigurationError` for a seat that there is not, or for two folders for one policy.
    """
    unknown = [seat for seat in folders if seat not in scenario.seats]
    if unknown:
        known = ", ".join(map(repr, scenario.seats)) or "none"
        raise ConfigurationError(f"there is no seat {unknown[0]!r} to give a policy to; the seats: {known}")
    seats = dict(scenario.seats)
    by_policy: dict[str, Path] = {}
    for seat, folder in folders.items():
        name = seats[seat].policy or seat
        seats[seat] = replace(seats[seat], policy=name)
        if by_policy.setdefault(name, folder) != folder:
            raise ConfigurationError(
                f"the policy {name!r} plays several seats and cannot be both {str(by_policy[name])!r} and {str(folder)!r}"
            )
    return replace(scenario, seats=seats), by_policy


def make_policies(
    scenario: Scenario,
    folders: Mapping[str, Path] | None = None,
    *,
    tiny: bool = False,
    lora: bool = False,
    learning_rate: float | None = None,
    average: Literal["tokens", "units"] | None = None,
    device: str | None = None,
    seed: int = 0,
    known: Collection[str] = (),
) -> dict[str, Policy]:
    """Makes the policies that a scenario's seats name: those of `folders` are read, others are `tiny` and fresh.

    A policy that plays no seat that learns is frozen. `learning_rate` and `average` stand in place of those of the usual
    `Settings` of the kind of model. Those `known` are left out, since a checkpoint has them. Raises
    `ConfigurationError` for a policy with neither a folder nor leave to be tiny.
    """
    given = folders or {}
    playing = {name: learns for name, learns in _policies(scenario) if name not in known}
    missing = [name for name in playing if name not in given]
    if missing and not tiny:
        seats = [seat for seat, one in scenario.seats.items() if one.policy == missing[0]]
        raise ConfigurationError(
            f"nothing plays the seat {seats[0]!r}; give it a model with --policy {seats[0]}=DIR, or a small one with --tiny"
        )
    words = vocabulary(scenario) if missing else []
    made: dict[str, Policy] = {}
    for place, (name, learns) in enumerate(playing.items()):
        options: dict[str, Any] = {"trainable": learns, "seed": seed + place}
        if name in given:
            made[name] = _read(name, given[name], lora, learning_rate, device, options)
        else:
            made[name] = _fresh(name, words, learning_rate, options)
        if average is not None:
            made[name].settings = replace(made[name].settings, average=average)
    if lora and not any(getattr(policy.model, "adapted", False) for policy in made.values()) and made:
        raise ConfigurationError("adapters (--lora) are for models of Hugging Face; a tiny model is trained whole")
    return made


def vocabulary(scenario: Scenario) -> list[str]:
    """The words of a scenario: those of its `words`, or else of its tasks.

    Raises `ConfigurationError` when there are none.
    """
    texts = list(scenario.words) or list(_texts(sample_tasks(scenario, _DRAWN)))
    words = sorted({word for text in texts for word in text.split()})
    if not words:
        raise ConfigurationError(
            f"the scenario {scenario.name!r} has no words for a tiny model to know; set its `words` to texts with every "
            "word that anybody says"
        )
    return words


def sample_tasks(scenario: Scenario, count: int) -> Sequence[Json]:
    """Some tasks of a scenario, or all that it lists."""
    return scenario.tasks(random.Random(0), count) if callable(scenario.tasks) else scenario.tasks


def _policies(scenario: Scenario) -> Iterator[tuple[str, bool]]:
    """The names of the policies, each with whether it plays a seat that learns."""
    learning = {seat.policy for seat in scenario.seats.values() if seat.trainable}
    for name in dict.fromkeys(seat.policy for seat in scenario.seats.values()):
        if name is not None:
            yield name, name in learning


def _read(
    name: str, folder: Path, lora: bool, learning_rate: float | None, device: str | None, options: Mapping[str, Any]
) -> Policy:
    from agent_env.training.policy import Policy, is_tiny, load_model
    from agent_env.training.update import Settings

    if is_tiny(folder):
        model, tokenizer = load_model(folder)
        return Policy(name, model, tokenizer, settings=_settings(Settings(), learning_rate), **options)
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {str(folder)!r} to read the policy {name!r} from")
    from agent_env.training.pretrained import load_pretrained, usual_settings

    adapted = lora and options["trainable"]
    settings = None if learning_rate is None else replace(usual_settings(adapted=adapted), learning_rate=learning_rate)
    return load_pretrained(name, folder, lora=adapted, device=device, settings=settings, **options)


def _fresh(name: str, words: Iterable[str], learning_rate: float | None, options: Mapping[str, Any]) -> Policy:
    from agent_env.training.policy import Policy
    from agent_env.training.tiny import WordTokenizer, make_model
    from agent_env.training.update import Settings

    tokenizer = WordTokenizer(words)
    model = make_model(tokenizer, seed=options["seed"], context=_TINY_CONTEXT)
    return Policy(name, model, tokenizer, settings=_settings(Settings(), learning_rate), **options)


def _settings(usual: Settings, learning_rate: float | None) -> Settings:
    return usual if learning_rate is None else replace(usual, learning_rate=learning_rate)


def _texts(value: Json) -> Iterator[str]:
    """Every text in some JSON, the keys of objects aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
