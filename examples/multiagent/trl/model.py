"""A tiny Llama that knows the words of this example, and its tokenizer with a chat template that calls tools."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DELEGATION = Path(__file__).parents[1] / "delegation"
"""Where the scenario and its agents are; this example has none of its own."""
sys.path.insert(1, str(DELEGATION))

import torch
from agents import NOBODY, SPECIALISTS
from scenario import ANSWERS, EXPERTS, WORDS
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agent_env.training.pretrained import PretrainedLM, PretrainedTokenizer
from agent_env.training.update import fit

HINT = 0.25  # the part of the examples of the warm start in which the right specialist is asked, and not just anyone

# Turns are `<u> … <e>` and `<a> … <e>`. A call of a tool is what the served manager says to ask somebody, and its reply
# what that reads: both ways of training see the same tokens.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
<a> {% for call in message.tool_calls or [] -%}
@{{ call.function.name }} {% for key, value in call.function.arguments.items() -%}
{%- if key != 'message' %}{{ key }} {% endif %}{{ value }} {% endfor -%}
{%- endfor -%}
{%- if message.content %}{{ message.content }} {% endif -%}
<e> {% else -%}
<u> {{ message.content }} <e> {% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<a> {% endif -%}
"""

# How transformers reads what the model said: `@name word` is the call of a tool.
RESPONSE_TEMPLATE: Mapping[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<a>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"\s*@(?P<name>\w+)\s+",
            "close_pattern": r"\s*<e>\s*",
            "content": "text",
            "repeats": True,
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": {"message": "{content}"}},
            },
        },
        "content": {"close_pattern": r"\s*<e>\s*", "content": "text"},
    },
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of whole words; those that it does not have are `<unk>`."""
    marks = ["<pad>", "<unk>", "<e>", "<u>", "<a>"]
    words = [*marks, *(f"@{name}" for name in SPECIALISTS), *WORDS, *dict.fromkeys(ANSWERS.values()), NOBODY]
    inner = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<e>",
        additional_special_tokens=["<u>", "<a>"],
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.response_template = RESPONSE_TEMPLATE
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> LlamaForCausalLM:
    """A Llama of 89,500 fresh weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def warm_up(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, seed: int, steps: int = 300) -> None:
    """Teaches the form of a turn: to ask somebody about the word, and to answer what was replied.

    In `HINT` of the examples the right one is asked, in the others anyone.
    """
    rng = random.Random(seed)
    learner, reader = PretrainedLM(model, ends=[tokenizer.eos_token_id]), PretrainedTokenizer(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    replies = [*ANSWERS.values(), NOBODY]
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * (1 - 0.9 * step / steps)
        pairs: list[tuple[list[int], list[int]]] = []
        for _ in range(64):
            word, reply = rng.choice(WORDS), rng.choice(replies)
            expert = EXPERTS[word] if rng.random() < HINT else rng.choice(SPECIALISTS)
            chat = [{"role": "user", "content": word}]
            said = f"@{expert} {word}"
            pairs.append((reader.render(chat), tokenizer(f"{said} <e>")["input_ids"]))
            chat += [{"role": "assistant", "content": said}, {"role": "user", "content": reply}]
            pairs.append((reader.render(chat), tokenizer(f"{reply} <e>")["input_ids"]))
        fit(learner, optimizer, pairs)
