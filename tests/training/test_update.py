"""Updates: towards what was rewarded, with the clip, the mask and the entropy bonus in effect."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import pytest
import torch
from games import WORDS, rows_of

from agent_env.training.policy import Policy
from agent_env.training.rows import Row
from agent_env.training.sampling import Prompt
from agent_env.training.tiny import WordTokenizer, make_model
from agent_env.training.update import Settings, batch, token_logprobs, train_step
from agent_env.training.warm import warm_start


def row(prompt: list[int], sampled: list[int], logprobs: list[float], advantage: float) -> Row:
    count = len(prompt)
    return Row(
        *("ep", "a", None, "A", prompt + sampled, [0] * count + [1] * len(sampled), [0.0] * count + logprobs, count),
        group="g",
        advantage=advantage,
    )


def logprob(policy: Policy, prompt: list[int], sampled: list[int]) -> float:
    with torch.inference_mode():
        found, _ = token_logprobs(policy.model, torch.tensor([prompt + sampled]))
    return float(found[0, len(prompt) - 1 :].sum())


def test_what_was_better_becomes_likelier_and_what_was_worse_rarer(policy: Policy) -> None:
    prompt = [3, 6]
    drawn = policy.sample([Prompt(prompt, 1.0, 1)] * 64)
    good, bad = {tuple(c.token_ids): c for c in drawn}.values().__iter__(), None
    first = next(good)
    bad = next(c for c in drawn if c.token_ids != first.token_ids)
    before = logprob(policy, prompt, first.token_ids), logprob(policy, prompt, bad.token_ids)
    stats = policy.update(
        [row(prompt, first.token_ids, first.logprobs, 1.0), row(prompt, bad.token_ids, bad.logprobs, -1.0)]
    )
    assert logprob(policy, prompt, first.token_ids) > before[0]
    assert logprob(policy, prompt, bad.token_ids) < before[1]
    assert policy.version == 1 and stats is not None
    assert (stats.rows, stats.tokens, stats.clipped) == (2, 2, 0.0)
    assert stats.entropy == pytest.approx(math.log(len(policy.tokenizer)), abs=0.1)


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def moved(before: Sequence[torch.Tensor], model: torch.nn.Module) -> bool:
    return any(not torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_a_frozen_policy_and_one_without_rows_stay_as_they_are(tokenizer: WordTokenizer) -> None:
    model = make_model(tokenizer, seed=1)
    before = weights(model)
    frozen = Policy("A", model, tokenizer, trainable=False)
    assert frozen.update([row([3], [6], [-1.0], 1.0)]) is None
    idle = Policy("A", model, tokenizer)
    assert idle.update([]) is None
    assert (frozen.version, idle.version) == (0, 0) and not moved(before, model)


def test_a_ratio_beyond_the_clip_teaches_no_more(tokenizer: WordTokenizer) -> None:
    model = make_model(tokenizer, seed=1)
    before = weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    # The policy is now far likelier to say this than when it was sampled, and it was good: enough of it.
    stats = train_step(model, optimizer, [row([3], [6], [-9.0], 1.0)], Settings(entropy=0.0))
    assert stats is not None and stats.clipped == 1.0 and not moved(before, model)
    # It was bad: the whole ratio counts.
    train_step(model, optimizer, [row([3], [6], [-9.0], -1.0)], Settings(entropy=0.0))
    assert moved(before, model)


def test_others_words_and_padding_have_no_gradient(tokenizer: WordTokenizer) -> None:
    model = make_model(tokenizer, seed=1)
    twin = copy.deepcopy(model)
    settings = Settings(entropy=0.1, clip_norm=1e9)
    one = row([3, 6], [7, 8], [-2.0, -2.0], 0.5)
    behind = copy.deepcopy(one)
    # Words of somebody else behind the row change nothing that comes before them.
    behind.token_ids += [9, 9, 9]
    behind.loss_mask += [0, 0, 0]
    behind.logprobs += [0.0, 0.0, 0.0]
    for net, rows in ((model, [one]), (twin, [behind])):
        train_step(net, torch.optim.SGD(net.parameters(), lr=0.1), rows, settings)
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-4)


def test_the_loss_is_the_mean_over_sampled_tokens_of_the_clipped_gain(tokenizer: WordTokenizer) -> None:
    model = make_model(tokenizer, seed=1)
    found, _ = token_logprobs(model, torch.tensor([[3, 6, 7]]))
    now = found[0].tolist()
    rows = [row([3], [6, 7], [now[0] - 0.1, now[1] + 0.5], 2.0)]
    stats = train_step(model, torch.optim.SGD(model.parameters(), lr=0.0), rows, Settings(entropy=0.0))
    expected = -(2.0 * math.exp(0.1) + 2.0 * math.exp(-0.5)) / 2
    assert stats is not None and stats.loss == pytest.approx(expected, rel=1e-4) and stats.clipped == 0.5


def loss(tokenizer: WordTokenizer, rows: list[Row], settings: Settings) -> float:
    model = make_model(tokenizer, seed=1)
    stats = train_step(model, torch.optim.SGD(model.parameters(), lr=0.0), rows, settings)
    assert stats is not None
    return stats.loss


def sampled_now(tokenizer: WordTokenizer, prompt: list[int], sampled: list[int], advantage: float) -> Row:
    """A row that the model of `loss` would sample just so: its ratios are 1, so its gain is its advantage."""
    found, _ = token_logprobs(make_model(tokenizer, seed=1), torch.tensor([prompt + sampled]))
    return row(prompt, sampled, found[0, len(prompt) - 1 :].tolist(), advantage)


def test_by_tokens_whoever_says_more_counts_for_more(tokenizer: WordTokenizer) -> None:
    rows = [sampled_now(tokenizer, [3], [6, 7, 8], 1.0), sampled_now(tokenizer, [3], [6], -1.0)]
    assert loss(tokenizer, rows, Settings(entropy=0.0, average="tokens")) == pytest.approx(-(3 * 1.0 - 1.0) / 4)
    rows[0].weight = 0.125
    assert loss(tokenizer, rows, Settings(entropy=0.0, average="tokens")) == pytest.approx(-(3 * 1.0 - 1.0) / 4)


def test_by_units_each_seat_in_an_episode_counts_once(tokenizer: WordTokenizer) -> None:
    """Long rollouts and rollouts of many rows outweighed short ones (rllm issue 512)."""
    settings = Settings(entropy=0.0, average="units")
    rows = [sampled_now(tokenizer, [3], [6, 7, 8], 1.0), sampled_now(tokenizer, [3], [6], -1.0)]
    assert loss(tokenizer, rows, settings) == pytest.approx(0.0, abs=1e-6)
    many = [sampled_now(tokenizer, [3], [6, 7], 0.5) for _ in range(4)]
    for one in many:
        one.weight = 0.25
    assert loss(tokenizer, [*many, rows[1]], settings) == pytest.approx(-(0.5 - 1.0) / 2)


def test_by_units_the_entropy_bonus_counts_each_seat_once_too(tokenizer: WordTokenizer) -> None:
    long, short = sampled_now(tokenizer, [3], [6, 7, 8], 0.0), sampled_now(tokenizer, [4], [6], 0.0)
    settings = Settings(entropy=1.0, average="units")
    alone = [loss(tokenizer, [one], settings) for one in (long, short)]
    assert loss(tokenizer, [long, short], settings) == pytest.approx(sum(alone) / 2, rel=1e-5)
    assert abs(alone[0] - alone[1]) > 1e-3


def test_by_units_it_does_not_matter_where_a_conversation_was_cut(tokenizer: WordTokenizer) -> None:
    settings = Settings(entropy=0.3, average="units", clip_norm=1e9)
    whole = sampled_now(tokenizer, [3], [6, 7, 8], 1.0)
    first, second = copy.deepcopy(whole), copy.deepcopy(whole)
    first.loss_mask, first.weight = [0, 1, 1, 0], 2 / 3
    second.loss_mask, second.weight = [0, 0, 0, 1], 1 / 3
    other = sampled_now(tokenizer, [3], [8], -1.0)
    models = [make_model(tokenizer, seed=1), make_model(tokenizer, seed=1)]
    for model, rows in zip(models, ([whole, other], [first, second, other]), strict=True):
        train_step(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, settings)
    for left, right in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-4)


def test_the_entropy_bonus_alone_spreads_the_policy(tokenizer: WordTokenizer) -> None:
    model = make_model(tokenizer, seed=1)
    warm_start(model, tokenizer, lambda: ("boat", "zip"), steps=20, batch=8)
    policy = Policy("A", model, tokenizer)
    prompt = tokenizer.render([{"role": "user", "content": "boat"}])
    zip_row = row(prompt, tokenizer.encode("zip"), [logprob(policy, prompt, tokenizer.encode("zip"))], 0.0)
    optimizer, settings = torch.optim.Adam(model.parameters(), lr=3e-3), Settings(entropy=1.0, epochs=3)
    entropies = [train_step(model, optimizer, [zip_row], settings) for _ in range(10)]
    assert entropies[0] is not None and entropies[-1] is not None
    assert entropies[-1].entropy > entropies[0].entropy


def test_a_warm_start_teaches_the_form_and_as_much_of_a_habit_as_it_is_shown(tokenizer: WordTokenizer) -> None:
    model = make_model(tokenizer, seed=1)
    turn = [0]

    def example() -> tuple[str, str]:
        turn[0] += 1
        return "boat", "zip" if turn[0] % 4 else "zap"

    loss = warm_start(model, tokenizer, example, steps=60, batch=32)
    policy = Policy("A", model, tokenizer, seed=2)
    prompt = Prompt(tokenizer.render([{"role": "user", "content": "boat"}]), 1.0, 3)
    said = [tokenizer.decode(c.token_ids) for c in policy.sample([prompt] * 400)]
    assert said.count("zip") / 400 == pytest.approx(0.75, abs=0.1)
    assert said.count("zip") + said.count("zap") > 380
    assert loss < 0.5


def test_sequences_are_padded_on_the_right_and_the_mask_belongs_to_the_predicted_token() -> None:
    tokens, mask = batch([[3, 4, 5], [6]], [[0, 1, 1], [0]])
    assert tokens.tolist() == [[3, 4, 5], [6, 0, 0]]
    assert mask.tolist() == [[1.0, 1.0], [0.0, 0.0]]


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_policy_that_has_solved_its_task_stays_there(seed: int) -> None:
    """Hundreds of updates in which all, or all but a few, get the same: neither momentum nor entropy leads away."""
    tokenizer = WordTokenizer(WORDS)
    policy = Policy("p", make_model(tokenizer, seed=seed), tokenizer, seed=seed)
    means: list[float] = []
    for update in range(400):
        rows, mean = rows_of(policy, update)
        # As `per_seat` compares: divided by the spread, so that one that fails among many weighs a lot.
        spread = max(math.sqrt(mean * (1 - mean)), 1e-6)
        for one in rows:
            one.advantage = one.advantage / spread if 0 < mean < 1 else 0.0
        policy.update(rows)
        means.append(mean)
    assert sum(mean == 1 for mean in means) > 100, "there were no flat stretches"
    assert sum(means[-100:]) / 100 >= 0.95 and min(means[100:]) >= 0.8
