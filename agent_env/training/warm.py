"""A warm start: a few supervised steps that teach a fresh model the form of its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import torch

from agent_env.training.tiny import END, TinyLM, WordTokenizer
from agent_env.training.update import fit

Said: TypeAlias = str | Sequence[Mapping[str, str]]
"""What is to be answered: a user's message, or all messages of a chat."""


def warm_start(
    model: TinyLM,
    tokenizer: WordTokenizer,
    example: Callable[[], tuple[Said, str]],
    *,
    steps: int = 120,
    batch: int = 64,
    learning_rate: float = 3e-3,
) -> float:
    """Trains a model on examples of (what is said, what it should answer); returns the last loss in nats.

    What the examples make likely is the prior that reinforcement learning begins with: say it beside every result.
    """
    losses = warm_steps(model, tokenizer, example, steps=steps, batch=batch, learning_rate=learning_rate)
    return [0.0, *losses][-1]


def warm_steps(
    model: TinyLM,
    tokenizer: WordTokenizer,
    example: Callable[[], tuple[Said, str]],
    *,
    steps: int = 120,
    batch: int = 64,
    learning_rate: float = 3e-3,
) -> Iterator[float]:
    """Does what `warm_start` does a step at a time, and yields each loss, for whoever has other things to do meanwhile.

        for _ in warm_steps(model, tokenizer, example, steps=700):
            await asyncio.sleep(0)

    An event loop that is let on between steps hears Ctrl-C, and goes on serving.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0, foreach=True)
    for step in range(steps):
        # Ten steps of warm-up, then down to a tenth.
        optimizer.param_groups[0]["lr"] = learning_rate * min(1.0, (step + 1) / 10) * (1 - 0.9 * step / steps)
        pairs: list[tuple[list[int], list[int]]] = []
        for _ in range(batch):
            said, answer = example()
            chat = [{"role": "user", "content": said}] if isinstance(said, str) else said
            pairs.append((tokenizer.render(chat), [*tokenizer.encode(answer), END]))
        yield fit(model, optimizer, pairs)
