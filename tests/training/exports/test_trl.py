"""TRL's `rollout_func`: rows in its form, and a seat that the trainer's model plays, asked at a server of chat completions.

The trainer itself is run in `tests/peers/test_trl.py`; here stands for it what a rollout reads of one with vLLM.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import torch
from anyio import to_thread
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agent_env import AgentEnvironment, Environment
from agent_env.episodes import Episode, EpisodeStore
from agent_env.errors import AgentFailed, ConfigurationError, ProtocolError
from agent_env.gateway import SeatPolicy, running
from agent_env.net import post_json
from agent_env.training import Policy, PolicyServer, Row, Scenario, Seat, Team, WordTokenizer, make_model, warm_start
from agent_env.training.exports.labels import label_of
from agent_env.training.exports.trl import (
    Rollouts,
    episode_reward,
    from_trl,
    prompt_text,
    to_trl,
    trl_prompts,
    trl_rollout_func,
)
from agent_env.training.exports.trl_model import model_served
from agent_env_wrappers.contract import ModelRoute

pytestmark = pytest.mark.anyio

WORDS = ["boat", "car", "zip", "zap"]
NOWHERE: Any = None


# ── rows ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_go_to_trl_and_come_back(golden_rows: list[Row]) -> None:
    batch = to_trl(golden_rows)
    for row, prompt, completion, mask in zip(
        golden_rows, batch["prompt_ids"], batch["completion_ids"], batch["env_mask"], strict=True
    ):
        assert prompt + completion == row.token_ids
        assert mask[0] == 1 and sum(mask) == row.sampled and len(mask) == len(completion)
    assert batch["reward"] == [row.reward for row in golden_rows]
    assert from_trl(batch, map(label_of, golden_rows)) == golden_rows


def test_a_batch_without_a_mask_was_sampled_throughout(golden_rows: list[Row]) -> None:
    rows = [row for row in golden_rows if sum(row.loss_mask[row.prompt_len :]) == len(row.loss_mask) - row.prompt_len]
    assert len(rows) == 4
    batch = to_trl(rows)
    del batch["env_mask"]
    assert from_trl(batch, map(label_of, rows)) == rows


def test_what_does_not_belong_together_is_refused(golden_rows: list[Row]) -> None:
    batch = to_trl(golden_rows)
    with pytest.raises(ProtocolError, match="a label a row"):
        from_trl(batch, [label_of(golden_rows[0])])
    with pytest.raises(ProtocolError, match="logprobs"):
        from_trl({name: batch[name] for name in ("prompt_ids", "completion_ids")}, [])


def test_prompts_are_the_names_of_tasks() -> None:
    assert trl_prompts(["boat", {"b": 1, "a": "é"}]) == [
        {"prompt": [{"role": "user", "content": "boat"}]},
        {"prompt": [{"role": "user", "content": '{"a": "é", "b": 1}'}]},
    ]


def test_the_reward_of_an_episode_is_that_of_its_completion_and_failures_are_counted() -> None:
    metrics: dict[str, float] = {}
    given = [1.0, None, 0.0, None]
    assert episode_reward(reward=given, completions=[], log_metric=metrics.__setitem__) == given
    assert metrics == {"episodes/without_reward": 0.5}
    assert episode_reward(reward=given) == given


# ── a seat that a model plays ──────────────────────────────────────────────────────────────────────────────────


async def ask(model: ModelRoute, messages: list[dict[str, str]], **fields: Any) -> str:
    answer = await post_json(
        f"{model.base_url}/chat/completions",
        {"model": model.model, "messages": messages, "max_tokens": 2, **fields},
        headers={"Authorization": f"Bearer {model.api_key}"},
    )
    return answer["choices"][0]["message"]["content"] or ""


async def echo(message: str) -> str:
    """Says `zap` to whatever it hears."""
    return "zap"


async def manager(message: str, peers: Mapping[str, Callable[[str], Any]], model: ModelRoute) -> str:
    """Lets its model say something, shows it to the worker, and lets it answer."""
    chat = [{"role": "user", "content": message}]
    said = await ask(model, chat)
    if message == "zip":
        raise RuntimeError("it never gets beyond this")
    reply = await peers["worker"](said or "nothing")
    chat += [{"role": "assistant", "content": said}, {"role": "user", "content": reply}]
    return await ask(model, chat)


async def forgetful(message: str, model: ModelRoute) -> str:
    """Asks twice, and the second time has forgotten what it had said."""
    await ask(model, [{"role": "user", "content": message}], max_tokens=1)
    return await ask(model, [{"role": "user", "content": "zip zap"}], max_tokens=5)


async def play(team: Team, task: Any) -> str:
    return (await team["manager"].chat(task if isinstance(task, str) else task["word"])).text


def score(episode: Episode) -> dict[str, dict[str, float]] | None:
    return None if episode.task == "zap" else {"manager": {"said": 0.25 + len(str(episode.info["result"])) / 100}}


class Trainer(SimpleNamespace):
    """What a rollout reads of a trainer that keeps a vLLM server."""


def trainer_of(url: str, **changed: Any) -> Trainer:
    args = SimpleNamespace(
        vllm_server_base_url=url, vllm_server_host="127.0.0.1", vllm_server_port=1, generation_kwargs=None
    )
    given: dict[str, Any] = {
        "args": args,
        "use_vllm": True,
        "vllm_mode": "server",
        "chat_template_kwargs": {},
        "temperature": 0.7,
        "num_generations": 2,
        "num_generations_eval": 1,
        "model": SimpleNamespace(training=True),
        "state": SimpleNamespace(global_step=7),
        "accelerator": SimpleNamespace(
            process_index=0, num_processes=1, state=SimpleNamespace(), unwrap_model=lambda model: model
        ),
        "is_fsdp_enabled": False,
        "eos_token_ids": [3],
    }
    return Trainer(**{**given, **changed})


@cache
def speaking() -> Policy:
    """A policy that answers any chat with one word."""
    tokenizer, rng = WordTokenizer(WORDS), random.Random(0)
    model = make_model(tokenizer, seed=1)

    def example() -> tuple[list[dict[str, str]], str]:
        roles = rng.choice((["user"], ["user", "assistant", "user"]))
        said = [{"role": role, "content": " ".join(rng.choices(WORDS, k=rng.choice((1, 1, 2))))} for role in roles]
        return said, rng.choice(WORDS)

    warm_start(model, tokenizer, example, steps=60, batch=24)
    return Policy("tiny", model, tokenizer, seed=1)


@asynccontextmanager
async def served(agent: Callable[..., Any], other: Callable[..., Any] = echo) -> AsyncGenerator[tuple[Scenario, str]]:
    """The agent and a worker, each served, and a server of the policy; gives the scenario and where that is."""
    server = PolicyServer([speaking()])
    worker = AgentEnvironment(other, name="worker", version="1.0.0", hub=False)
    async with running(server) as models, worker.serving() as echoing:
        peers = {"worker": echoing.url} if agent is manager else {}
        env = AgentEnvironment(agent, name="manager", version="1.0.0", hub=False, peers=peers)
        async with env.serving() as managing:
            seats = {"manager": Seat(Environment(managing.url), "boss"), "worker": Seat()}
            with anyio.fail_after(60):
                yield Scenario(play, score, seats, "pair"), models


def prompts(*words: str) -> list[Any]:
    return [row["prompt"] for row in trl_prompts(words)]


async def call(rollouts: Rollouts, given: list[Any], trainer: Any) -> dict[str, list[Any]]:
    """Calls it as a trainer does, from a thread that has no event loop."""
    return await to_thread.run_sync(rollouts, given, trainer)


async def test_each_prompt_gets_the_row_of_an_episode_in_which_others_are_masked(tmp_path: Path) -> None:
    seen: list[Episode] = []
    async with served(manager) as (scenario, models):
        rollouts = trl_rollout_func(
            scenario, seat="manager", episodes=tmp_path / "kept.db", on_episode=seen.append, concurrency=4
        )
        with rollouts:
            batch = await call(rollouts, prompts("boat", "boat", "car", "car"), trainer_of(models))
            again = await call(rollouts, prompts("car"), trainer_of(models, model=SimpleNamespace(training=False)))
    assert {name: len(values) for name, values in batch.items()} == dict.fromkeys(
        ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward", "episode"), 4
    )
    tokenizer = WordTokenizer(WORDS)
    boat, car = (tokenizer.render([{"role": "user", "content": word}]) for word in ("boat", "car"))
    assert batch["prompt_ids"] == [boat, boat, car, car]
    assert again["prompt_ids"] == [car]
    for ids, mask, logprobs in zip(batch["completion_ids"], batch["env_mask"], batch["logprobs"], strict=True):
        others = tokenizer.decode([token for token, own in zip(ids, mask, strict=True) if not own])
        assert "zap" in others.split()
        assert all((logprob < 0) == bool(own) for logprob, own in zip(logprobs, mask, strict=True))
    with EpisodeStore(tmp_path / "kept.db") as store:
        kept = [store.get(id_) for id_ in batch["episode"]]
    assert len(seen) == 5
    for episode, reward in zip(kept, batch["reward"], strict=True):
        assert episode is not None and episode.reward("manager") == reward
        assert episode.info["step"] == 7
        # The worker plays with no model of the run, and what it was asked is told all the same.
        assert [edge.callee_seat for edge in episode.edges if edge.caller_seat == "manager"] == ["worker"]
        (trace,) = (trace for trace in episode.traces if trace.seat == "manager")
        assert trace.trainable and [found.temperature for found in trace.calls] == [0.7, 0.7]
        assert [found.policy_version for found in trace.calls] == [0, 0]
        assert all(trace.trainable is False for trace in episode.traces if trace.seat != "manager")
    groups = [str(episode.group).partition(".") for episode in kept if episode is not None]
    assert [number.partition("-")[0] for _, _, number in groups] == ["0", "0", "1", "1"]
    assert len({batch for batch, _, _ in groups}) == 1
    assert [episode.info["sample"] for episode in kept if episode is not None] == [0, 1, 0, 1]


async def test_the_episodes_of_a_batch_are_played_at_once() -> None:
    together = asyncio.Barrier(4)

    async def patient(message: str) -> str:
        """Answers when four have asked."""
        await together.wait()
        return "zap"

    async with served(manager, patient) as (scenario, models):
        with trl_rollout_func(scenario, seat="manager", concurrency=4, seconds=12) as rollouts:
            batch = await call(rollouts, prompts("boat", "boat", "car", "car"), trainer_of(models))
    assert len(batch["reward"]) == 4 and None not in batch["reward"]


async def test_what_fails_or_is_not_scored_moves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with served(manager) as (scenario, models):
        with trl_rollout_func(scenario, seat="manager") as rollouts:
            batch = await call(rollouts, prompts("boat", "zip", "zap"), trainer_of(models))
            assert batch["reward"][0] is not None and sum(batch["env_mask"][0]) >= 2
            assert batch["reward"][1:] == [None, None]
            assert batch["env_mask"][1:] == [[0], [0]] and batch["completion_ids"][1:] == [[3], [3]]
            assert "2 of 3 episodes give no row to train on" in caplog.text and "not scored (1)" in caplog.text
            assert rollouts.failures.total() == 2 and any("agent_failed" in why for why in rollouts.failures)
            with pytest.raises(AgentFailed, match=r"none of the 2 episodes gives 'manager' a row.*not scored \(1\)"):
                await call(rollouts, prompts("zip", "zap"), trainer_of(models))
    assert rollouts.failures.total() == 4 and rollouts.report.rows == 1
    assert sum(why["not scored"] for why in (rollouts.report.dropped, *rollouts.report.dropped_of.values())) == 4 + 4


async def test_the_longest_row_stands_for_a_conversation_that_forked(caplog: pytest.LogCaptureFixture) -> None:
    async with served(forgetful) as (scenario, models):
        with trl_rollout_func(scenario, seat="manager") as rollouts:
            batch = await call(rollouts, prompts(*["boat"] * 8), trainer_of(models))
    tokenizer = WordTokenizer(WORDS)
    boat, zips = (tokenizer.render([{"role": "user", "content": text}]) for text in ("boat", "zip zap"))
    assert batch["prompt_ids"] == [zips] * 8 and boat not in batch["prompt_ids"]
    assert "forked 8 times in 8 episodes" in caplog.text
    assert rollouts.report.forked == 8 and rollouts.report.rows == 16


async def test_tasks_that_are_no_texts_are_found_by_their_prompts() -> None:
    tasks = [{"word": "boat", "n": 1}, {"word": "car", "n": 2}]
    async with served(manager) as (scenario, models):
        rollouts = trl_rollout_func(scenario, seat="manager", tasks=tasks)
        told: list[Any] = [prompt_text(tasks[1]), [{"role": "user", "content": [{"text": prompt_text(tasks[0])}]}]]
        batch = await call(rollouts, told, trainer_of(models))
        assert [len(ids) > 0 for ids in batch["prompt_ids"]] == [True, True]
        assert batch["prompt_ids"][0] != batch["prompt_ids"][1]
        with pytest.raises(ConfigurationError, match="'boat' stands for none of the tasks"):
            await call(rollouts, prompts("boat"), trainer_of(models))
        with pytest.raises(ConfigurationError, match="must end with a text, not None"):
            await call(rollouts, [[{"role": "user", "content": None}]], trainer_of(models))
        rollouts.close()
        # What was closed begins anew.
        assert len((await call(rollouts, told, trainer_of(models)))["prompt_ids"]) == 2
        rollouts.close()


async def test_the_settings_of_the_trainer_go_to_its_server() -> None:
    async with served(manager) as (scenario, models):
        trainer = trainer_of(models, chat_template_kwargs={"thinking": False})
        trainer.args.top_p = 0.5
        with trl_rollout_func(scenario, seat="manager") as rollouts, pytest.raises(AgentFailed, match="'top_p'"):
            # The tiny server takes no top_p, and says so.
            await call(rollouts, prompts("boat"), trainer)


def llama() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """A fresh model of Hugging Face, and a tokenizer whose template ends no prompt otherwise than the next begins."""
    words = ["<pad>", "<unk>", "<e>", "<u>", "<a>", *WORDS]
    inner = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", eos_token="<e>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<a> ' if m.role == 'assistant' else '<u> ' }}{{ m.content }} <e> {% endfor %}<a>"
    )
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=2,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config), tokenizer


async def test_the_model_in_the_trainers_process_is_what_is_sampled_and_keeps_its_mode() -> None:
    model, tokenizer = llama()
    model.train()
    async with served(manager) as (scenario, _):
        trainer = trainer_of(
            "", model=model, use_vllm=False, processing_class=tokenizer, eos_token_ids=[2], max_completion_length=4
        )
        trainer.args.per_device_train_batch_size = 8
        with trl_rollout_func(scenario, seat="manager", propagation="own") as rollouts:
            batch = await call(rollouts, prompts(*["boat"] * 6), trainer)
            assert model.training
            model.eval()
            await call(rollouts, prompts("boat"), trainer)
            assert not model.training
    for prompt, ids, mask, logprobs in zip(
        *(batch[name] for name in ("prompt_ids", "completion_ids", "env_mask", "logprobs")), strict=True
    ):
        assert prompt == tokenizer("<u> boat <e> <a>")["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1] / 0.7
        expected = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(ids)[:, None])[:, 0] * torch.tensor(mask)
        assert expected.tolist() == pytest.approx(logprobs, abs=1e-4)


async def test_a_server_that_tells_no_model_is_refused() -> None:
    async def empty(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b'{"data": []}'})

    async with served(manager) as (scenario, _), running(empty) as url:
        with trl_rollout_func(scenario, seat="manager") as rollouts:
            with pytest.raises(ProtocolError, match="which model is served"):
                await call(rollouts, prompts("boat"), trainer_of(url))


def test_a_seat_that_cannot_be_trained_is_refused() -> None:
    scenario = Scenario(play, score, {"manager": Seat(echo, "boss"), "worker": Seat(policy="hand"), "mute": Seat()})
    with pytest.raises(ConfigurationError, match="'boss' is not of 'manager'"):
        trl_rollout_func(scenario, seat="boss")
    with pytest.raises(ConfigurationError, match="'mute' is not of 'manager'"):
        trl_rollout_func(scenario, seat="mute")
    with pytest.raises(ConfigurationError, match=r"nobody plays 'hand', since TRL trains 'boss' alone"):
        trl_rollout_func(scenario, seat="manager")
    hand = SeatPolicy("hand", ("http://127.0.0.1:9/v1",))
    trl_rollout_func(scenario, seat="manager", policies={"hand": hand}).close()
    trl_rollout_func(scenario, seat="manager", seats={"worker": Seat(echo)}).close()


SHARDED = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=SimpleNamespace(zero_stage=3)))


@pytest.mark.parametrize(
    ("changed", "settings", "why"),
    [
        ({"vllm_mode": "colocate"}, {}, "vllm_mode='colocate'"),
        ({"use_vllm": False, "is_fsdp_enabled": True}, {}, "FSDP"),
        ({"use_vllm": False, "accelerator": SHARDED}, {}, "ZeRO-3"),
        ({"use_vllm": False}, {"top_k": 5}, "top_k=5"),
        ({"use_vllm": False}, {"generation_kwargs": {"seed": 1}}, "generation_kwargs"),
        ({"use_vllm": False}, {"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
    ],
)
def test_a_model_that_cannot_be_asked_as_the_trainer_says_is_refused(
    changed: dict[str, Any], settings: dict[str, Any], why: str
) -> None:
    trainer = trainer_of("http://127.0.0.1:9", **changed)
    vars(trainer.args).update(settings)
    with pytest.raises(ConfigurationError, match=why), model_served(trainer, "boss", NOWHERE, seed=0):
        pass
