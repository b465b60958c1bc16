"""One step of a policy: the clipped policy gradient over its own rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from agent_env.errors import AgentFailed, ConfigurationError
from agent_env.training.language import LanguageModel
from agent_env.training.rows import Row
from agent_env.training.tiny import PAD


@dataclass(frozen=True, slots=True)
class Settings:
    """How a policy learns.

    `clip` bounds how far one update trusts a token's probability ratio (PPO, arXiv 1707.06347 §3), `entropy` weighs the
    bonus that keeps the policy from settling too early, `clip_norm` bounds the gradient, `epochs` is how often an
    update goes over the same rows.

    `average` says what counts the same in the loss: each of the "units", a seat in an episode, so that neither long
    conversations nor many rows outweigh others (by the rows' `weight`, which is their share in their unit and is used
    for nothing else); or each of the "tokens" that were sampled, so that whoever says more counts for more.

    `batch_tokens` bounds how many tokens, padding included, go through the model at a time; the gradients of all parts
    add up to that of the whole, so it decides on memory alone. None is all at once.
    """

    learning_rate: float = 3e-3
    entropy: float = 0.02
    clip: float = 0.2
    clip_norm: float = 1.0
    epochs: int = 1
    average: Literal["tokens", "units"] = "units"
    batch_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.average not in ("tokens", "units"):
            raise ConfigurationError(f'average is "tokens" or "units", not {self.average!r}')


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What an update saw: `tokens` under the mask, the mean `entropy` in nats as the loss averages it, and the `clipped`
    part of the ratios."""

    rows: int
    tokens: int
    loss: float
    entropy: float
    clipped: float
    gradient_norm: float


def train_step(
    model: LanguageModel,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Row],
    settings: Settings,
    *,
    step: bool = True,
) -> UpdateStats | None:
    """Updates a model from its own rows, each with its advantage; None without rows.

    The loss of a batch is a mean over the sampled tokens or over the units, as `settings.average` says. Tokens are
    compared under the temperature at which they were sampled (that of a greedy one counts as 1, as its logprob does).
    `step=False` only looks: it changes no weight.
    """
    if not rows:
        return None
    count = sum(sum(row.loss_mask[1:]) for row in rows)
    total = float(count if settings.average == "tokens" else sum(row.weight for row in rows))
    stats: UpdateStats | None = None
    for _ in range(settings.epochs):
        optimizer.zero_grad()
        sums = torch.zeros(3)
        for part in _parts(rows, settings.batch_tokens):
            sums += _backward(model, part, settings, total)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        if not torch.isfinite(norm):
            raise AgentFailed(
                f"the gradient's norm is {float(norm)}, so no weight was changed; look at the rows, or lower the learning "
                f"rate of {settings.learning_rate}"
            )
        if step:
            optimizer.step()
        loss, entropy, clipped = sums.tolist()
        stats = UpdateStats(len(rows), count, loss, entropy, clipped / max(count, 1), float(norm))
    return stats


def _backward(model: LanguageModel, rows: Sequence[Row], settings: Settings, total: float) -> torch.Tensor:
    """Adds the gradients of a part of the rows; gives its shares in the loss and the entropy, and its clipped ratios."""
    tokens, mask = batch([row.token_ids for row in rows], [row.loss_mask for row in rows])
    sampled = mask > 0
    old = _padded([row.logprobs for row in rows], 0.0)[:, 1:][sampled]
    shares = _shares(rows, mask, settings)[sampled] / total
    heat = _padded([row.temperatures for row in rows], 1.0)[:, 1:][sampled]
    advantage = torch.tensor([[row.advantage] for row in rows]).expand_as(mask)[sampled]
    device = model.device
    old, shares, advantage, heat = old.to(device), shares.to(device), advantage.to(device), heat.to(device)
    logprobs, entropy = token_logprobs(model, tokens.to(device), heat[:, None], where=sampled.to(device))
    ratio = (logprobs - old).exp()
    kept = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    gain = torch.minimum(ratio * advantage, kept * advantage)
    spread = (entropy * shares).sum()
    loss = -(gain * shares).sum() - settings.entropy * spread
    torch.autograd.backward(loss)
    return torch.stack((loss, spread, (ratio != kept).sum())).detach().cpu()


def _parts(rows: Sequence[Row], tokens: int | None) -> Iterator[Sequence[Row]]:
    """Cuts rows into parts of at most so many tokens as they are padded, at least a row each."""
    if tokens is None:
        yield rows
        return
    part: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.token_ids)):
        # They come shortest first, so the last one is what all are padded to.
        if part and len(row.token_ids) * (len(part) + 1) > tokens:
            yield part
            part = []
        part.append(row)
    yield part


def _shares(rows: Sequence[Row], mask: torch.Tensor, settings: Settings) -> torch.Tensor:
    """How much each predicted token counts in the loss."""
    if settings.average == "tokens":
        return mask
    weights = torch.tensor([[row.weight] for row in rows])
    return mask * weights / mask.sum(dim=1, keepdim=True).clamp(min=1)


def fit(
    model: LanguageModel, optimizer: torch.optim.Optimizer, sequences: Sequence[tuple[list[int], list[int]]]
) -> float:
    """Takes one supervised step on (prompt, answer) pairs and returns the loss in nats a token of the answers."""
    tokens, mask = batch(
        [prompt + answer for prompt, answer in sequences],
        [[0] * len(prompt) + [1] * len(answer) for prompt, answer in sequences],
    )
    tokens, mask = tokens.to(model.device), mask.to(model.device)
    logprobs, _ = token_logprobs(model, tokens)
    loss = -(logprobs * mask).sum() / mask.sum()
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()
    return float(loss.item())


def batch(sequences: Sequence[list[int]], masks: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pads sequences on the right: tokens `[B, T]` and the mask of the predicted ones `[B, T - 1]`."""
    return _padded(sequences, PAD), _padded(masks, 0)[:, 1:].float()


def token_logprobs(
    model: LanguageModel,
    tokens: torch.Tensor,
    temperature: torch.Tensor | float = 1.0,
    *,
    where: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logprob of each token after the first and the entropy of the distribution it came from, both `[B, T - 1]`.

    With `where[B, T - 1]` only those of the tokens that it marks, `[N]`, in order: a distribution over a large
    vocabulary is made for none of the others. `temperature` is one, or has a last dimension of 1.
    """
    logits, chosen = model(tokens[:, :-1]), tokens[:, 1:]
    if where is not None:
        logits, chosen = logits[where], chosen[where]
    distribution = torch.log_softmax(logits / temperature, dim=-1)
    logprobs = distribution.gather(-1, chosen[..., None])[..., 0]
    return logprobs, -(distribution.exp() * distribution).sum(dim=-1)


def _padded(values: Sequence[Sequence[float]], fill: float) -> torch.Tensor:
    longest = max(map(len, values))
    return torch.tensor([[*value, *([fill] * (longest - len(value)))] for value in values])
