"""Small models of Hugging Face, made here: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

MARKS = ["<pad>", "<end>", "<unk>", "<system>", "<user>", "<assistant>", "<tool>"]
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }} "
    "{% if message.role == 'assistant' %}<end> {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def save_model(
    folder: Path, words: Sequence[str], *, seed: int = 0, template: str | None = TEMPLATE, **config: Any
) -> Path:
    """Saves a Llama of two layers and a tokenizer of whole words, as `save_pretrained` does; returns the folder."""
    tokenizer = word_tokenizer(words, template)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                **{
                    "vocab_size": len(tokenizer),
                    "hidden_size": 48,
                    "intermediate_size": 96,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 2,
                    "max_position_embeddings": 64,
                    "pad_token_id": 0,
                    "eos_token_id": 1,
                    "bos_token_id": None,
                    "initializer_range": 0.2,
                    **config,
                }
            )
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def word_tokenizer(words: Sequence[str], template: str | None = TEMPLATE) -> Any:
    inner = Tokenizer(WordLevel({token: index for index, token in enumerate([*MARKS, *words])}, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unk>",
        additional_special_tokens=["<system>", "<user>", "<assistant>", "<tool>"],
    )
    tokenizer.chat_template = template
    return tokenizer
