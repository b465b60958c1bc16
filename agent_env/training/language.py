"""What a language model and its tokenizer must do to be sampled, served and trained, whoever made them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Tokenizer(Protocol):
    """Turns chats into prompts, and what was sampled into text."""

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The prompt of a chat, up to where the assistant begins to speak.

        Raises `InvalidArguments` for messages that the model has no form for.
        """
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of what was sampled, without marks such as the end of a message."""
        ...

    def name(self, token: int) -> str:
        """One token as it is told beside its logprob, a mark included."""
        ...


class LanguageModel(Protocol):
    """A causal language model that the sampler and the update share.

    `model(tokens[B, T], padding, cache, last=False) -> logits[B, T, V]` in float32: the logits of the token after each
    one, or with `last` after the last one alone, `[B, 1, V]`. `padding[B, S]` (True: no token) hides what pads the
    left of sequences of different lengths, over all S tokens seen so far; it never changes what the others predict.
    `cache`, from `new_cache`, keeps what was seen before. Nothing in it is random: what is sampled from and what is
    trained are the same distribution.
    """

    @property
    def context(self) -> int:
        """The longest sequence in tokens."""
        ...

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end an assistant's message."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    def __call__(
        self, tokens: torch.Tensor, padding: torch.Tensor | None = None, cache: Any = None, *, last: bool = False
    ) -> torch.Tensor:
        """The logits of the token after each one."""
        ...

    def new_cache(self) -> Any:
        """A cache that has seen nothing."""
        ...

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The weights; those that do not require a gradient stay as they are."""
        ...

    def state_dict(self) -> Mapping[str, Any]:
        """The weights by name, as tensors."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> Any:
        """Takes weights that `state_dict` gave."""
        ...

    def save(self, directory: Path, tokenizer: Any) -> None:
        """Writes the weights and the tokenizer, as `load_model` reads them."""
        ...
