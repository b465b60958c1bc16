"""Sampling from a model: a batch of prompts in, sampled tokens with their logprobs out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from agent_env.training.language import LanguageModel
from agent_env.training.tiny import PAD


@dataclass(slots=True)
class Prompt:
    """What one completion is to be made of; a temperature of 0 is greedy."""

    token_ids: list[int]
    temperature: float = 1.0
    max_tokens: int = 16


@dataclass(slots=True)
class Completion:
    """What was sampled, the end mark included; `logprobs` are those of the distribution that was sampled from (of
    temperature 1 where it was greedy)."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]


@torch.inference_mode()
def sample(
    model: LanguageModel, prompts: Sequence[Prompt], generator: torch.Generator | None = None
) -> list[Completion]:
    """Completes a batch of prompts, of any lengths, until the end mark or each one's bound.

    A prompt that leaves no room in the model's context gets none: its completion is empty and ends by length. The
    generator must be of the model's device.
    """
    device = model.device
    longest = max(len(prompt.token_ids) for prompt in prompts)
    tokens = torch.tensor([[PAD] * (longest - len(prompt.token_ids)) + prompt.token_ids for prompt in prompts])
    padded = any(len(prompt.token_ids) < longest for prompt in prompts)
    lengths = torch.tensor([longest - len(prompt.token_ids) for prompt in prompts])
    padding = torch.arange(longest)[None] < lengths[:, None] if padded else None
    heat = torch.tensor([[prompt.temperature] for prompt in prompts])
    greedy = heat <= 0
    any_greedy = bool(greedy.any())
    scale = torch.where(greedy, 1.0, heat).to(device)
    tokens, greedy = tokens.to(device), greedy.to(device)
    if padding is not None:
        padding = padding.to(device)
    completions = [Completion([], [], "length") for _ in prompts]
    bounds = [min(prompt.max_tokens, model.context - len(prompt.token_ids)) for prompt in prompts]
    live = {index for index, bound in enumerate(bounds) if bound > 0}
    ends = model.ends
    cache = model.new_cache()
    for step in range(max(bounds, default=0)):
        logprobs = torch.log_softmax(model(tokens, padding, cache, last=True)[:, -1] / scale, dim=-1)
        # The first of exponential clocks with these rates to ring is a sample (the Gumbel-max trick).
        clocks = torch.empty_like(logprobs).exponential_(generator=generator)
        chosen = (logprobs - clocks.log()).argmax(dim=-1, keepdim=True)
        if any_greedy:
            chosen = torch.where(greedy, logprobs.argmax(dim=-1, keepdim=True), chosen)
        picked = logprobs.gather(1, chosen)
        for index, (token, logprob) in enumerate(zip(chosen[:, 0].tolist(), picked[:, 0].tolist(), strict=True)):
            if index not in live:
                continue
            completion = completions[index]
            completion.token_ids.append(token)
            completion.logprobs.append(logprob)
            if token in ends:
                completion.finish_reason = "stop"
                live.discard(index)
            elif step + 1 >= bounds[index]:
                live.discard(index)
        if not live:
            break
        tokens = chosen
        if padding is not None:
            padding = torch.cat((padding, torch.zeros(len(prompts), 1, dtype=torch.bool, device=device)), dim=1)
    return completions
