"""Tiny policies to test with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agent_env.training.policy import Policy
from agent_env.training.tiny import WordTokenizer, make_model

# Tests are no packages; this is how they find what they share.
sys.path.insert(0, str(Path(__file__).parent))

from example_runs import Stopped, stopped_and_gone_on


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Threads of several test processes on one core only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture
def tokenizer() -> WordTokenizer:
    return WordTokenizer(["boat", "car", "zip", "zap"])


@pytest.fixture
def policy(tokenizer: WordTokenizer) -> Policy:
    return Policy("A", make_model(tokenizer, seed=1), tokenizer, seed=1)


@pytest.fixture(scope="session")
def stopped_example(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Stopped]:
    """Gives an example that was stopped and gone on with; each is run once."""
    ran: dict[str, Stopped] = {}

    def played(name: str) -> Stopped:
        if name not in ran:
            ran[name] = stopped_and_gone_on(name, tmp_path_factory.mktemp(name))
        return ran[name]

    return played
