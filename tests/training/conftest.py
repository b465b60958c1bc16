"""Tiny policies to test with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from agent_env.training.policy import Policy
from agent_env.training.tiny import WordTokenizer, make_model

# Tests are no packages; this is how they find what they share.
sys.path.insert(0, str(Path(__file__).parent))


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
