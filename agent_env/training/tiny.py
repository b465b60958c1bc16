"""Tiny causal language models: a decoder-only transformer made from a config, and a tokenizer of whole words.

They are real networks, small enough to be sampled and trained on a shared core: 64 wide, two layers and forty words
make 90,000 parameters. Needs the extra `agent-env[train]`.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from agent_env.errors import ConfigurationError, InvalidArguments

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as error:  # pragma: no cover - the extra is installed where this is tested
    raise ConfigurationError("training needs PyTorch: pip install 'agent-env[train]'") from error

Cache: TypeAlias = "list[tuple[torch.Tensor, torch.Tensor]]"

ROLES = ("system", "user", "assistant", "tool")
PAD, END = 0, 1

KIND = "agent-env-tiny"
"""What the `config.json` of a saved tiny model says under `model_type`."""


class WordTokenizer:
    """Turns texts of known words into ids and chats into prompts.

    Ids 0 and 1 are padding and the end of an assistant's message, then come the marks of the roles, then the words in
    alphabetical order. A chat is rendered as `<role> word …` a message, with `<end>` after an assistant's, and
    `<assistant>` at the end: what a model then says, up to and with its `<end>`, continues the prompt exactly as the
    next prompt renders it.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.tokens = ["<pad>", "<end>", *(f"<{role}>" for role in ROLES), *sorted(set(words))]
        self._ids = {token: index for index, token in enumerate(self.tokens)}

    @property
    def words(self) -> list[str]:
        """The words, without the marks."""
        return self.tokens[len(ROLES) + 2 :]

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """The ids of a text's words; raises `InvalidArguments` for a word that the model does not know."""
        try:
            return [self._ids[word] for word in text.split()]
        except KeyError as error:
            raise InvalidArguments(
                f"the word {error.args[0]!r} is not in the vocabulary of this model: it knows the words that it was made "
                "with, those of a scenario's `words` or else of its tasks"
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        """The words of a text, without marks."""
        return " ".join(self.tokens[index] for index in ids if index >= len(ROLES) + 2)

    def name(self, token: int) -> str:
        """A word, or a mark such as `<end>`."""
        return self.tokens[token]

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The prompt of a chat; raises `InvalidArguments` for a message that is not text of a known role."""
        ids: list[int] = []
        for message in messages:
            role, content = message.get("role"), message.get("content")
            if role not in ROLES or not isinstance(content, str):
                raise InvalidArguments(f"a message must have a role of {', '.join(ROLES)} and a text, not {message!r}")
            ids.append(self._ids[f"<{role}>"])
            ids += self.encode(content)
            if role == "assistant":
                ids.append(END)
        ids.append(self._ids["<assistant>"])
        return ids


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """The shape of a tiny model; `context` is the longest sequence in tokens."""

    vocabulary: int
    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 64


class TinyLM(nn.Module):
    """A decoder-only transformer: RMS norms, rotary positions, gated feed-forward, untied output.

    `forward(tokens[B, T]) -> logits[B, T, V]`. Positions are relative (rotary), so padding on the left changes
    nothing but what `padding[B, T]` (True: no token) hides from attention.
    """

    rotations: torch.Tensor

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        # Twice the context: a short prompt beside a long one is padded to the same length and keeps its room.
        rotations = _rotations(2 * config.context, config.width // config.heads)
        self.register_buffer("rotations", rotations, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    @property
    def context(self) -> int:
        """The longest sequence in tokens."""
        return self.config.context

    @property
    def ends(self) -> frozenset[int]:
        """The end of an assistant's message."""
        return frozenset((END,))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed.weight.device

    def new_cache(self) -> Cache:
        """A cache that has seen nothing."""
        return []

    def forward(
        self,
        tokens: torch.Tensor,
        padding: torch.Tensor | None = None,
        cache: Cache | None = None,
        *,
        last: bool = False,
    ) -> torch.Tensor:
        """The logits of the token after each one, or after the `last` one; `cache` keeps what was seen before."""
        seen = cache[0][0].shape[2] if cache else 0
        count = tokens.shape[1]
        if padding is None and seen + count > self.config.context:
            raise InvalidArguments(f"the model sees {self.config.context} tokens; {seen + count} were given")
        rotations = self.rotations[:, seen : seen + count]
        hidden = self.embed(tokens)
        mask = None if padding is None else _visible(padding, count)
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, rotations, mask, cache, index)
        logits: torch.Tensor = self.head(self.norm(hidden[:, -1:] if last else hidden))
        return logits

    def save(self, directory: Path, tokenizer: WordTokenizer) -> None:
        """Writes the shape and the words to `config.json`, the weights to `weights.pt`."""
        config = {"model_type": KIND, **asdict(self.config), "words": tokenizer.words}
        (directory / "config.json").write_text(json.dumps(config, ensure_ascii=False), "utf-8")
        torch.save(self.state_dict(), directory / "weights.pt")


class _Layer(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.attention_norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed_norm = nn.RMSNorm(width)
        self.gate_up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(
        self,
        hidden: torch.Tensor,
        rotations: torch.Tensor,
        mask: torch.Tensor | None,
        cache: Cache | None,
        index: int,
    ) -> torch.Tensor:
        batch, count, width = hidden.shape
        # [B, T, 3, H, D] -> three times [B, H, T, D]
        split = self.qkv(self.attention_norm(hidden)).view(batch, count, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        query, key = _rotate(query, rotations), _rotate(key, rotations)
        if cache is not None:
            if index < len(cache):
                key = torch.cat((cache[index][0], key), dim=2)
                value = torch.cat((cache[index][1], value), dim=2)
                cache[index] = key, value
            else:
                cache.append((key, value))
        causal = mask is None and count > 1
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, count, width))
        gate, up = self.gate_up(self.feed_norm(hidden)).chunk(2, dim=-1)
        fed: torch.Tensor = self.down(functional.silu(gate) * up)
        return hidden + fed


def _rotations(context: int, width: int) -> torch.Tensor:
    """The rotations of positions, `[2, context, width / 2]`: cosines and sines (RoFormer, arXiv 2104.09864 §3.2.2)."""
    frequency = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angle = torch.arange(context)[:, None] * frequency
    return torch.stack((angle.cos(), angle.sin()))


def _rotate(value: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    left, right = value.chunk(2, dim=-1)
    cosine, sine = rotations[0], rotations[1]
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


def _visible(padding: torch.Tensor, count: int) -> torch.Tensor:
    """Which keys each of the last `count` queries may see, `[B, 1, count, S]`; a pad sees itself alone."""
    total = padding.shape[1]
    past = torch.ones(total, total, dtype=torch.bool).tril()[total - count :]
    own = torch.eye(total, dtype=torch.bool)[total - count :]
    return ((past & ~padding[:, None, :]) | own)[:, None]


def make_model(tokenizer: WordTokenizer, *, seed: int, **shape: int) -> TinyLM:
    """Makes a model for a tokenizer, with weights that the seed decides."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        return TinyLM(TinyConfig(len(tokenizer), **shape))
    finally:
        torch.set_rng_state(state)


_DAMAGED = (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, pickle.UnpicklingError)
"""What reading a folder raises that somebody has changed, or that was cut off."""


def load_tiny(directory: Path) -> tuple[TinyLM, WordTokenizer]:
    """Reads a model and its tokenizer that `TinyLM.save` wrote; raises `ConfigurationError` for what is none."""
    try:
        config = json.loads((directory / "config.json").read_text("utf-8"))
        tokenizer = WordTokenizer(config["words"])
        shape = {name: config[name] for name in ("vocabulary", "width", "layers", "heads", "context")}
        model = TinyLM(TinyConfig(**shape))
        model.load_state_dict(torch.load(directory / "weights.pt", map_location="cpu", weights_only=True))
    except _DAMAGED as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigurationError(
            f"the tiny model in {str(directory)!r} cannot be read ({said:.200}); take another folder"
        ) from error
    return model, tokenizer
