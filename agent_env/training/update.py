"""One step of a policy: the clipped policy gradient over its own rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from agent_env.training.rows import Row
from agent_env.training.tiny import PAD, TinyLM


@dataclass(frozen=True, slots=True)
class Settings:
    """How a policy learns.

    `clip` bounds how far one update trusts a token's probability ratio (PPO, arXiv 1707.06347 §3), `entropy` weighs the
    bonus that keeps the policy from settling too early, `clip_norm` bounds the gradient, `epochs` is how often an
    update goes over the same rows.

    `average` says what counts the same in the loss: each of the "tokens" that were sampled, so that whoever says more
    counts for more; or each of the "units", a seat in an episode, so that neither long conversations nor many rows
    outweigh others (by the rows' `weight`, which is their share in their unit and is used for nothing else).
    """

    learning_rate: float = 3e-3
    entropy: float = 0.02
    clip: float = 0.2
    clip_norm: float = 1.0
    epochs: int = 1
    average: Literal["tokens", "units"] = "tokens"


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What an update saw: `tokens` under the mask, the mean `entropy` in nats as the loss averages it, and the `clipped` part of the ratios."""

    rows: int
    tokens: int
    loss: float
    entropy: float
    clipped: float
    gradient_norm: float


def train_step(
    model: TinyLM, optimizer: torch.optim.Optimizer, rows: Sequence[Row], settings: Settings
) -> UpdateStats | None:
    """Updates a model from its own rows, each with its advantage; None without rows.

    The loss of a batch is a mean over the sampled tokens or over the units, as `settings.average` says.
    """
    if not rows:
        return None
    tokens, mask = batch([row.token_ids for row in rows], [row.loss_mask for row in rows])
    old = _padded([row.logprobs for row in rows], 0.0)[:, 1:]
    advantage = torch.tensor([[row.advantage] for row in rows])
    count = mask.sum()
    shares, total = _shares(rows, mask, settings)
    stats: UpdateStats | None = None
    for _ in range(settings.epochs):
        logprobs, entropy = token_logprobs(model, tokens)
        ratio = ((logprobs - old) * mask).exp()
        kept = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        gain = torch.minimum(ratio * advantage, kept * advantage)
        spread = (entropy * shares).sum() / total
        loss = -(gain * shares).sum() / total - settings.entropy * spread
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        clipped = ((ratio != kept) * mask).sum() / count
        stats = UpdateStats(len(rows), int(count.item()), loss.item(), spread.item(), clipped.item(), norm.item())
    return stats


def _shares(rows: Sequence[Row], mask: torch.Tensor, settings: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    """How much each predicted token counts in the loss, and what all of them add up to."""
    if settings.average == "tokens":
        return mask, mask.sum()
    weights = torch.tensor([[row.weight] for row in rows])
    return mask * weights / mask.sum(dim=1, keepdim=True).clamp(min=1), weights.sum()


def fit(model: TinyLM, optimizer: torch.optim.Optimizer, sequences: Sequence[tuple[list[int], list[int]]]) -> float:
    """Takes one supervised step on (prompt, answer) pairs and returns the loss in nats a token of the answers."""
    tokens, mask = batch(
        [prompt + answer for prompt, answer in sequences],
        [[0] * len(prompt) + [1] * len(answer) for prompt, answer in sequences],
    )
    logprobs, _ = token_logprobs(model, tokens)
    loss = -(logprobs * mask).sum() / mask.sum()
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()
    return float(loss.item())


def batch(sequences: Sequence[list[int]], masks: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pads sequences on the right: tokens `[B, T]` and the mask of the predicted ones `[B, T - 1]`."""
    return _padded(sequences, PAD), _padded(masks, 0)[:, 1:].float()


def token_logprobs(model: TinyLM, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The logprob of each token after the first and the entropy of the distribution it came from, both `[B, T - 1]`."""
    distribution = torch.log_softmax(model(tokens[:, :-1]), dim=-1)
    logprobs = distribution.gather(2, tokens[:, 1:, None])[:, :, 0]
    return logprobs, -(distribution.exp() * distribution).sum(dim=-1)


def _padded(values: Sequence[Sequence[float]], fill: float) -> torch.Tensor:
    longest = max(map(len, values))
    return torch.tensor([[*value, *([fill] * (longest - len(value)))] for value in values])
