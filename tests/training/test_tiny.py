"""Tiny models and their tokenizer: a real causal model, whatever is beside it in the batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agent_env.errors import InvalidArguments
from agent_env.training.sampling import Prompt, sample
from agent_env.training.tiny import END, Cache, TinyLM, WordTokenizer, make_model

WORDS = ["boat", "car", "zip", "zap"]
TOKENIZER = WordTokenizer(WORDS)
MODEL = make_model(TOKENIZER, seed=3)

ids = st.lists(st.integers(2, len(TOKENIZER) - 1), min_size=1, max_size=10)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@given(st.lists(st.sampled_from(WORDS)))
def test_words_come_back_as_they_were(words: list[str]) -> None:
    text = " ".join(words)
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_a_word_that_the_model_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(InvalidArguments, match="the word 'ship' is not in the vocabulary"):
        TOKENIZER.encode("boat ship")


@given(st.lists(st.sampled_from(WORDS), max_size=3), st.lists(st.sampled_from(WORDS), max_size=3))
def test_what_a_model_says_continues_its_prompt_as_the_next_prompt_renders_it(
    said: list[str], asked: list[str]
) -> None:
    first = [user("boat")]
    answer = [*TOKENIZER.encode(" ".join(said)), END]
    second = [*first, {"role": "assistant", "content": " ".join(said)}, user(" ".join(asked))]
    begun = TOKENIZER.render(first) + answer
    assert TOKENIZER.render(second)[: len(begun)] == begun


@pytest.mark.parametrize("message", [{"role": "wizard", "content": "boat"}, {"role": "user", "content": [{}]}, {}])
def test_a_message_that_is_no_text_of_a_known_role_is_refused(message: dict[str, object]) -> None:
    with pytest.raises(InvalidArguments, match="must have a role of system, user, assistant, tool"):
        TOKENIZER.render([message])


@given(ids, st.integers(2, len(TOKENIZER) - 1))
def test_a_later_token_changes_nothing_before_it(sequence: list[int], last: int) -> None:
    with torch.inference_mode():
        short = MODEL(torch.tensor([sequence]))
        longer = MODEL(torch.tensor([[*sequence, last]]))
    torch.testing.assert_close(longer[:, :-1], short)


@given(ids)
def test_reading_token_by_token_is_reading_all_at_once(sequence: list[int]) -> None:
    cache: Cache = []
    with torch.inference_mode():
        whole = MODEL(torch.tensor([sequence]))
        steps = [MODEL(torch.tensor([[token]]), None, cache) for token in sequence]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-5, rtol=1e-4)


@given(st.lists(ids, min_size=1, max_size=5))
def test_a_greedy_completion_does_not_depend_on_its_neighbours(prompts: list[list[int]]) -> None:
    together = sample(MODEL, [Prompt(prompt, 0.0, 4) for prompt in prompts])
    alone = [sample(MODEL, [Prompt(prompt, 0.0, 4)])[0] for prompt in prompts]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_the_logprobs_are_those_that_training_computes() -> None:
    from agent_env.training.update import token_logprobs

    prompt = TOKENIZER.render([user("boat car")])
    for completion in sample(MODEL, [Prompt(prompt, 1.0, 5)] * 20, torch.Generator().manual_seed(0)):
        tokens = torch.tensor([prompt + completion.token_ids])
        logprobs, _ = token_logprobs(MODEL, tokens)
        assert logprobs[0, len(prompt) - 1 :].tolist() == pytest.approx(completion.logprobs, abs=1e-5)


def test_sampling_follows_the_distribution_and_its_temperature() -> None:
    prompt = [2, 7]
    with torch.inference_mode():
        logits = MODEL(torch.tensor([prompt]))[0, -1]
    count = 20_000
    for temperature in (0.5, 1.0, 2.0):
        expected = torch.softmax(logits / temperature, dim=-1)
        drawn = sample(MODEL, [Prompt(prompt, temperature, 1)] * count, torch.Generator().manual_seed(1))
        counted = torch.bincount(torch.tensor([c.token_ids[0] for c in drawn]), minlength=len(expected)) / count
        # Five standard deviations of a proportion.
        assert (counted - expected).abs().max() < 5 * (0.25 / count) ** 0.5
        scaled = torch.log_softmax(logits / temperature, dim=-1)
        assert drawn[0].logprobs[0] == pytest.approx(scaled[drawn[0].token_ids[0]].item(), abs=1e-5)


def test_the_same_seed_draws_the_same() -> None:
    prompts = [Prompt([2, 7], 1.0, 8)] * 10
    one, other = (sample(MODEL, prompts, torch.Generator().manual_seed(5)) for _ in range(2))
    assert one == other


def test_a_completion_ends_at_its_own_bound_or_the_end_of_the_context() -> None:
    model = TinyLM(MODEL.config.__class__(len(TOKENIZER), context=8))
    prompts = [Prompt([3] * length, 1.0, bound) for length, bound in ((1, 3), (6, 9), (8, 9), (2, 1))]
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        completions = sample(model, prompts, generator)
        for completion, bound in zip(completions, (3, 2, 0, 1), strict=True):
            assert len(completion.token_ids) == len(completion.logprobs) <= bound
            ended = bool(completion.token_ids) and completion.token_ids[-1] == END
            assert completion.finish_reason == ("stop" if ended else "length")
            assert ended or len(completion.token_ids) == bound
    with pytest.raises(InvalidArguments, match="the model sees 8 tokens; 9 were given"):
        model(torch.tensor([[3] * 9]))


def test_a_seed_decides_the_weights_and_leaves_the_programs_own_randomness_alone() -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    one, other, third = (make_model(TOKENIZER, seed=seed) for seed in (4, 4, 5))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.head.weight, other.head.weight) and not torch.equal(one.head.weight, third.head.weight)
