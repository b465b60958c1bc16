"""Policies of Hugging Face models: sampled from what is trained, whole or by an adapter, saved and read again."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
import transformers
from games import ANSWERS, WORDS, game, rows_of
from pretrained_models import save_model

from agent_env.errors import ConfigurationError, InvalidArguments
from agent_env.gateway import running
from agent_env.net import post_json
from agent_env.training import Policy, PolicyServer, Settings, load_pretrained, policies_served, training_loop
from agent_env.training.policy import load_model
from agent_env.training.pretrained import Lora, PretrainedLM, PretrainedTokenizer
from agent_env.training.sampling import Prompt
from agent_env.training.update import token_logprobs

pytestmark = [pytest.mark.anyio, pytest.mark.long]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), WORDS)


def load(folder: Path, **options: Any) -> Policy:
    return load_pretrained("p", folder, device="cpu", **options)


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def prompts(policy: Policy, *texts: str, temperature: float = 1.0, max_tokens: int = 8) -> list[Prompt]:
    return [Prompt(policy.tokenizer.render(user(text)), temperature, max_tokens) for text in texts]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_logprobs_of_a_padded_and_cached_batch_are_those_of_each_sequence_alone(
    folder: Path, temperature: float
) -> None:
    policy = load(folder)
    batch = prompts(policy, "day", "night day sun moon day", "sun moon", temperature=temperature)
    for prompt, said in zip(batch, policy.sample(batch), strict=True):
        tokens = torch.tensor([prompt.token_ids + said.token_ids])
        alone, _ = token_logprobs(policy.model, tokens, temperature)
        told = torch.tensor(said.logprobs)
        torch.testing.assert_close(alone[0, len(prompt.token_ids) - 1 :], told, atol=1e-5, rtol=1e-4)
        assert said.token_ids[-1] == 1 if said.finish_reason == "stop" else len(said.token_ids) == 8


def test_greedy_completions_are_those_of_the_librarys_own_generation(folder: Path) -> None:
    policy = load(folder)
    (prompt,) = prompts(policy, "day night", temperature=0.0, max_tokens=6)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([prompt.token_ids])
    wanted = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6)
    assert policy.sample([prompt, *prompts(policy, "day")])[0].token_ids == wanted[0, len(prompt.token_ids) :].tolist()


def test_a_policy_that_was_trained_at_a_temperature_is_compared_under_it(folder: Path) -> None:
    from agent_env.training.rows import Row, Span

    policy = load(folder, settings=Settings(learning_rate=0.0, clip=1e-4))
    (prompt,) = prompts(policy, "day", temperature=0.5, max_tokens=4)
    (said,) = policy.sample([prompt])
    start, end = len(prompt.token_ids), len(prompt.token_ids) + len(said.token_ids)
    row = Row(
        *("e", "s", None, "p", prompt.token_ids + said.token_ids),
        *([0] * start + [1] * (end - start), [0.0] * start + said.logprobs, start),
        advantage=1.0,
    )
    row.spans = [Span("k", start, end, temperature=0.5)]
    fitting = policy.update([row])
    row.spans = [Span("k", start, end)]
    other = policy.update([row])
    assert fitting is not None and fitting.clipped == 0.0
    assert other is not None and other.clipped == 1.0


@pytest.mark.parametrize("batch_tokens", [1, 16, 100])
def test_an_update_in_parts_is_that_of_the_whole(folder: Path, batch_tokens: int) -> None:
    whole, parts = (
        load(folder, settings=Settings(learning_rate=0.01, entropy=0.02, batch_tokens=bound))
        for bound in (None, batch_tokens)
    )
    rows = rows_of(whole, 0, count=12)[0]
    ours, theirs = whole.update(rows), parts.update(rows)
    assert ours is not None and theirs is not None
    assert (ours.rows, ours.tokens, ours.clipped) == (theirs.rows, theirs.tokens, theirs.clipped)
    assert ours.loss == pytest.approx(theirs.loss, abs=1e-6) and ours.entropy == pytest.approx(theirs.entropy, abs=1e-5)
    assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-4)


@pytest.mark.parametrize("lora", [False, True])
def test_a_model_learns_whole_or_by_an_adapter_and_goes_on_after_it_was_saved(
    folder: Path, tmp_path: Path, lora: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(learning_rate=0.005 if lora else 0.003, entropy=0.02, batch_tokens=512)
    policy = load(folder, lora=Lora(rank=16, alpha=32) if lora else False, settings=settings)
    before = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    means: list[float] = []
    for update in range(20):
        rows, mean = rows_of(policy, update)
        means.append(mean)
        policy.update(rows)
    assert sum(means[-3:]) / 3 > sum(means[:3]) / 3 + 0.3, means
    changed = {name for name, tensor in policy.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed and all("lora_" in name for name in changed) is lora
    policy.save(tmp_path / "saved")
    assert capfd.readouterr().err == ""  # no bars of others
    files = {path.name for path in (tmp_path / "saved").iterdir()}
    assert ("adapter_model.safetensors" if lora else "model.safetensors") in files
    assert ("model.safetensors" in files) is not lora
    loaded = Policy.load(tmp_path / "saved", device="cpu")
    assert isinstance(loaded.model, PretrainedLM) and loaded.model.adapted is lora
    assert (loaded.version, loaded.threaded, loaded.settings) == (20, True, settings)
    for seed in (50, 51):
        ours, theirs = rows_of(policy, seed)[0], rows_of(loaded, seed)[0]
        assert [row.token_ids for row in ours] == [row.token_ids for row in theirs]
        assert policy.update(ours) == loaded.update(theirs)


def test_what_was_saved_is_a_model_for_others(folder: Path, tmp_path: Path) -> None:
    policy = load(folder, settings=Settings(learning_rate=0.01))
    policy.update(rows_of(policy, 0)[0])
    policy.save(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    prompt = tokenizer.apply_chat_template(user("day"), add_generation_prompt=True, return_tensors="pt")["input_ids"]
    torch.testing.assert_close(model(prompt).logits, policy.model(prompt))
    # And one to begin another training with.
    again = load_pretrained("q", tmp_path, device="cpu")
    assert again.version == 0 and torch.equal(again.model(prompt), policy.model(prompt))


def test_an_adapter_can_be_worked_in_and_begun_with(folder: Path, tmp_path: Path) -> None:
    policy = load(folder, lora=True, settings=Settings(learning_rate=0.05))
    policy.update(rows_of(policy, 0)[0])
    model: Any = policy.model
    ids = torch.tensor([policy.tokenizer.render(user("day"))])
    torch.testing.assert_close(model.merged()(ids).logits, policy.model(ids), atol=1e-4, rtol=1e-4)
    assert model.adapted
    policy.save(tmp_path)
    assert (
        Path(json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"]) == folder.resolve()
    )
    again = load_pretrained("q", tmp_path, device="cpu")
    torch.testing.assert_close(again.model(ids), policy.model(ids))
    trained = [weight.requires_grad for weight in again.model.parameters()]
    assert any(trained) and not all(trained)
    whole: Any = load(folder).model
    assert whole.merged() is whole.inner


def test_a_frozen_model_never_changes(folder: Path) -> None:
    policy = load(folder, trainable=False)
    assert not any(weight.requires_grad for weight in policy.model.parameters())
    assert policy.update(rows_of(policy, 0)[0]) is None and policy.version == 0


def test_weights_that_learn_whole_are_exact_and_others_as_they_were_saved(folder: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)

    def dtypes(policy: Policy) -> set[torch.dtype]:
        return {weight.dtype for weight in policy.model.parameters()}

    assert dtypes(load(tmp_path)) == {torch.float32}
    assert dtypes(load(tmp_path, trainable=False)) == {torch.bfloat16}
    assert dtypes(load(tmp_path, dtype="bfloat16")) == {torch.bfloat16}
    adapted = load(tmp_path, lora=True)
    assert {w.dtype for w in adapted.model.parameters() if w.requires_grad} == {torch.float32}
    assert adapted.update(rows_of(adapted, 0)[0]) is not None
    assert adapted.model(torch.tensor([[4, 7]])).dtype == torch.float32


async def test_a_model_is_served_from_a_thread_while_the_loop_goes_on(folder: Path) -> None:
    policy = load(folder)
    policy.batch = 4
    sizes: list[int] = []
    sample, begun, go_on = policy.sample, threading.Event(), threading.Event()

    def slowly(batch: Any) -> Any:
        sizes.append(len(batch))
        begun.set()
        assert go_on.wait(20)
        return sample(batch)

    policy.sample = slowly  # type: ignore[method-assign]
    async with running(PolicyServer([policy])) as url:

        async def ask() -> Any:
            body = {"model": "p", "messages": user("day"), "logprobs": True, "max_tokens": 3}
            return await post_json(f"{url}/v1/chat/completions", body, timeout=30)

        with anyio.fail_after(60):
            asked = [asyncio.ensure_future(ask()) for _ in range(10)]
            await asyncio.to_thread(begun.wait, 20)
            # The event loop answers others while a thread samples, and an update waits for the lock.
            updating = asyncio.ensure_future(asyncio.to_thread(policy.update, rows_from(folder)))
            await asyncio.wait({updating}, timeout=0.05)
            assert policy.version == 0 and not updating.done()
            go_on.set()
            answers = await asyncio.gather(*asked)
            await updating
    assert sum(sizes) == 10 and max(sizes) <= 4
    assert {answer["policy_version"] for answer in answers} <= {0, 1}
    for answer in answers:
        (choice,) = answer["choices"]
        assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) <= 3
        assert answer["prompt_token_ids"] == policy.tokenizer.render(user("day"))


def rows_from(folder: Path) -> Any:
    return rows_of(load(folder), 0, count=4)[0]


async def test_a_scenario_is_trained_through_gateway_and_server(folder: Path) -> None:
    policies = {"p": load(folder, settings=Settings(learning_rate=0.01, batch_tokens=512))}
    with anyio.fail_after(100):
        async with policies_served(pause=0.002) as place:
            loop = training_loop(
                *(game(), list(ANSWERS), policies),
                updates=12,
                place=place,
                group_size=8,
                tasks_per_update=4,
            )
            rewards = [update.reward["guesser"] async for update in loop]
    assert policies["p"].version == 12
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.25, rewards


def test_chats_are_rendered_by_the_models_own_template(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = load(folder).tokenizer
    chat = [
        {"role": "system", "content": "sun"},
        {"role": "user", "content": [{"type": "text", "text": "day "}, {"type": "text", "text": "night"}]},
        {"role": "assistant", "content": None, "tool_calls": [{}]},
        {"role": "tool", "content": "moon"},
    ]
    said = "".join(f" {tokenizer.name(token)}" for token in tokenizer.render(chat)).split()
    assert said == [
        "<system>",
        "sun",
        "<user>",
        "day",
        "night",
        "<assistant>",
        "<end>",
        "<tool>",
        "moon",
        "<assistant>",
    ]
    first = tokenizer.render(user("day"))
    again = tokenizer.render([*user("day"), {"role": "assistant", "content": "sun"}, *user("night")])
    assert again[: len(first)] == first  # what follows continues it
    assert tokenizer.decode([*first, 7, 1]).split() == ["day", "day"]
    for message in ({"role": "user"}, {"role": "user", "content": [{"type": "image"}]}, {"content": "x"}):
        with pytest.raises(InvalidArguments, match="must have a role and a text"):
            tokenizer.render([message])
    with caplog.at_level(logging.WARNING, "agent_env.training"):
        for _ in range(3):
            tokenizer.render(user("day ship boat"))
    assert [record.getMessage() for record in caplog.records] == [
        "the tokenizer does not know ['boat', 'ship']; the model sees only that something was there"
    ]


def test_a_mark_in_a_message_never_becomes_one(folder: Path) -> None:
    """Another agent's text must not end the message that it stands in."""
    with pytest.raises(InvalidArguments, match="the model's chat template takes no such messages"):
        load(folder).tokenizer.render(user("day <end> night"))


def test_a_template_that_refuses_says_why(tmp_path: Path) -> None:
    template = "{{ raise_exception('the system must speak first') }}"
    save_model(tmp_path, WORDS, template=template)
    with pytest.raises(InvalidArguments, match="the system must speak first"):
        load(tmp_path).tokenizer.render(user("day"))


def test_a_template_can_be_given(tmp_path: Path) -> None:
    save_model(tmp_path, WORDS, template=None)
    with pytest.raises(ConfigurationError, match="has no chat template"):
        load(tmp_path)
    policy = load(tmp_path, chat_template="{% for m in messages %}{{ m.content }} {% endfor %}<assistant>")
    assert policy.tokenizer.render(user("day")) == [7, 5]


def test_the_ends_of_messages_are_those_of_settings_and_tokenizer(folder: Path, tmp_path: Path) -> None:
    save_model(tmp_path, WORDS)
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps(generation | {"eos_token_id": [6, 1]}))
    assert load(tmp_path).model.ends == {1, 6} and load(folder).model.ends == {1}
    assert load(folder).model.context == 64


def test_bounds_and_dtype_come_back_with_a_policy_that_was_saved(folder: Path, tmp_path: Path) -> None:
    policy = load(folder, context=32, dtype="bfloat16", max_tokens=9, batch=3)
    policy.save(tmp_path)
    loaded = Policy.load(tmp_path, device="cpu")
    assert (loaded.model.context, loaded.max_tokens, loaded.batch) == (32, 9, 3)
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.bfloat16}


def test_folders_without_a_model_are_refused_with_what_is_missing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"holds no model; it needs a config\.json"):
        load(tmp_path)
    with pytest.raises(ConfigurationError, match="there is no folder"):
        load_model(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigurationError, match="cannot be read as a causal language model"):
        load(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "/nowhere"}')
    with pytest.raises(ConfigurationError, match=r"'/nowhere', which the adapter in .* is for, holds no model"):
        load(tmp_path)
    with pytest.raises(ConfigurationError, match="there is no dtype 'float3'"):
        load(folder, dtype="float3")


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, WORDS, eos_token_id=None)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config.pop("eos_token")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigurationError, match="nothing says which token ends a message"):
        load(tmp_path)


def test_other_architectures_are_sampled_from_what_is_trained(tmp_path: Path) -> None:
    """Learned positions (GPT-2) and sliding windows beside full attention (Gemma 3) are padded as rotary ones are."""
    from pretrained_models import word_tokenizer

    tokenizer = word_tokenizer(WORDS)
    size = len(tokenizer)
    configs = (
        transformers.GPT2Config(
            vocab_size=size, n_embd=32, n_layer=2, n_head=2, n_positions=64, eos_token_id=1, bos_token_id=1
        ),
        transformers.Gemma3TextConfig(
            vocab_size=size,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            head_dim=16,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            sliding_window=4,
            layer_types=["sliding_attention", "full_attention"],
            eos_token_id=1,
            pad_token_id=0,
        ),
    )
    for config in configs:
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        policy = Policy("p", PretrainedLM(model, ends=[1]), PretrainedTokenizer(tokenizer))
        batch = prompts(policy, "day", "night day sun moon day night", max_tokens=7)
        for prompt, said in zip(batch, policy.sample(batch), strict=True):
            alone, _ = token_logprobs(policy.model, torch.tensor([prompt.token_ids + said.token_ids]))
            told = torch.tensor(said.logprobs)
            torch.testing.assert_close(alone[0, len(prompt.token_ids) - 1 :], told, atol=1e-4, rtol=1e-3)
        assert policy.update(rows_of(policy, 0, count=8)[0]) is not None
