"""A policy: a model with its tokenizer, its optimizer and a version that every update raises."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agent_env.training.rows import Row
from agent_env.training.sampling import Completion, Prompt, sample
from agent_env.training.tiny import TinyLM, WordTokenizer
from agent_env.training.update import Settings, UpdateStats, train_step


class Policy:
    """What plays a seat and learns from what it played.

    Sampling and updating share the weights in memory and both run to their end before anything else does, so no
    completion mixes two versions. A frozen policy (`trainable=False`) samples and never changes.
    """

    def __init__(
        self,
        name: str,
        model: TinyLM,
        tokenizer: WordTokenizer,
        *,
        settings: Settings | None = None,
        trainable: bool = True,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings or Settings()
        self.trainable = trainable
        self.version = 0
        self._generator = torch.Generator().manual_seed(seed)
        self._optimizer = torch.optim.Adam(
            model.parameters(), lr=self.settings.learning_rate, betas=(0.9, 0.95), foreach=True
        )

    def sample(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """Completes a batch of prompts with the present version."""
        return sample(self.model, prompts, self._generator)

    def update(self, rows: Sequence[Row]) -> UpdateStats | None:
        """Learns from the policy's own rows, each with its advantage; None if it is frozen or there are none."""
        if not self.trainable:
            return None
        stats = train_step(self.model, self._optimizer, rows, self.settings)
        if stats is not None:
            self.version += 1
        return stats
