"""Trains the manager by TRL's `GRPOTrainer`, against the served specialists: `python train.py`.

Both ways, one after the other: `rollout_func`, where the manager is a served agent whose model is the trainer's, and
`environment_factory`, where TRL is the manager and the specialists are its tools. Stop it with Ctrl-C, and go on with
`python train.py --resume`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from model import DELEGATION, HINT, SPECIALISTS, WORDS, make_model, make_tokenizer, warm_up
from scenario import is_right, make_scenario
from transformers import (
    AutoTokenizer,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import GRPOConfig, GRPOTrainer

from agent_env.gateway import RunHandle
from agent_env.net.serving import STDIN_VARIABLE
from agent_env.training import Policy, Run, collect, plot_curves, rollout
from agent_env.training.exports.trl import episode_reward, trl_prompts, trl_rollout_func
from agent_env.training.exports.trl_environment import PeerEnvironment, trl_environment
from agent_env.training.place import policies_served
from agent_env.training.pretrained import PretrainedLM, PretrainedTokenizer
from agent_env.training.study import add_run_options, begin_run, play_run

WAYS = ("rollout_func", "environment_factory")
PROMPTS, GROUP = 16, 8


# The manager alone learns here, so the specialists know their facts by themselves.
scenario = make_scenario(informed=True)


def answered(
    completions: Sequence[Sequence[Mapping[str, Any]]],
    task: Sequence[str],
    environments: Sequence[PeerEnvironment],
    **_: Any,
) -> list[float | None]:
    """The reward where TRL is the manager: the last thing that it says is the answer. Where a specialist did not reply
    there is none."""
    return [
        None if environment.failed else is_right(said[-1].get("content"), word)
        for said, word, environment in zip(completions, task, environments, strict=True)
    ]


def explained(row: Mapping[str, Any]) -> str:
    """What a model that reads English is told after the word of a row."""
    return "\n\nWhich word belongs to it? Ask one of your tools about the word, then say only the answer."


@dataclass
class Result:
    """What one way came to: its curve, and the mean rewards of fresh episodes, (sampled, greedy)."""

    way: str
    before: tuple[float, float]
    after: tuple[float, float] = (0.0, 0.0)
    curve: list[float] = field(default_factory=list[float])
    steps: int = 0
    seconds: float = 0.0
    cpu: float = 0.0


class Told(TrainerCallback):
    """Says what a step came to."""

    def __init__(self, way: str) -> None:
        self.way = way

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Prints the reward of a step."""
        if logs and "reward" in logs:
            print(f"{self.way} step {state.global_step}: reward {float(logs['reward']):.3f}", flush=True)


def newest_checkpoint(folder: Path) -> Path | None:
    """What TRL goes on from. Its state is written last: a checkpoint without one was stopped in its midst, and goes."""
    for found in folder.glob("checkpoint-*"):
        try:
            json.loads((found / "trainer_state.json").read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            shutil.rmtree(found)
    return max(folder.glob("checkpoint-*"), key=lambda found: int(found.name.rpartition("-")[2]), default=None)


def train(
    way: str, options: argparse.Namespace, folder: Path, model: Any, tokenizer: Any, result: Result
) -> GRPOTrainer:
    """Trains a model one of the two ways, from the newest checkpoint on if there is one, and gives the trainer."""
    output = folder / way
    checkpoint = newest_checkpoint(output)
    reached = 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
    rows = [{**row, "task": word} for word, row in zip(WORDS, trl_prompts(WORDS), strict=True)]
    tiny = options.model is None
    config = GRPOConfig(
        output_dir=str(output),
        max_steps=options.steps,
        per_device_train_batch_size=PROMPTS * GROUP if tiny else GROUP,
        gradient_accumulation_steps=1 if tiny else PROMPTS,
        num_generations=GROUP,
        max_completion_length=16 if tiny else 256,
        max_tool_calling_iterations=1 if way == "environment_factory" else None,
        learning_rate=1e-3 if tiny else 1e-6,
        lr_scheduler_type="constant",
        beta=0.0,
        logging_steps=1,
        save_strategy="steps",
        save_steps=options.save_steps,
        save_total_limit=2,
        report_to=[],
        seed=options.seed,
        use_cpu=tiny,
        bf16=not tiny,
        gradient_checkpointing=not tiny,
        disable_tqdm=True,
        use_vllm=options.vllm is not None,
        vllm_mode="server",
        vllm_server_base_url=options.vllm,
    )
    with ExitStack() as stack:
        if way == "rollout_func":
            rollouts = trl_rollout_func(
                scenario, seat="manager", tasks=WORDS, concurrency=PROMPTS * GROUP, episodes=options.episodes
            )
            played: dict[str, Any] = {
                "rollout_func": stack.enter_context(rollouts),
                "reward_funcs": episode_reward,
            }
        else:
            specialists = {name: f"specialist-{name}@1.0.0" for name in SPECIALISTS}
            desk = trl_environment(specialists, observe=None if tiny else explained)
            played = {"environment_factory": stack.enter_context(desk), "reward_funcs": answered}
        trainer = GRPOTrainer(
            model=model,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[Told(way)],
            **played,
        )
        trainer.remove_callback(PrinterCallback)
        began, cpu = time.monotonic(), time.process_time()
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        result.seconds, result.cpu = time.monotonic() - began, time.process_time() - cpu
    # TRL keeps its log in its checkpoints, so it is that of all starts.
    result.curve = [float(logged["reward"]) for logged in trainer.state.log_history if "reward" in logged]
    result.steps = trainer.state.global_step - reached
    return trainer


async def evaluate(model: Any, tokenizer: Any, sampled: int) -> tuple[float, float]:
    """The mean reward of fresh episodes of the served manager, of so many sampled ones, and greedy, of each word."""
    policy = Policy(
        "manager",
        PretrainedLM(model, ends=[tokenizer.eos_token_id]),
        PretrainedTokenizer(tokenizer),
        trainable=False,
    )
    means: list[float] = []
    async with policies_served() as place:
        for temperature, count in ((1.0, sampled), (0.0, len(WORDS))):
            seats = place.serve({"manager": policy}, {"temperature": temperature})
            given = {**seats, **dict.fromkeys(SPECIALISTS)}
            tasks = [WORDS[index % len(WORDS)] for index in range(count)]
            async with await RunHandle.open(
                place.gateway.url, place.gateway.admin_token, given, keep_journal=False
            ) as run:
                episodes = await collect(rollout(scenario, tasks, run=run, concurrency=128))
            rewards = [reward for episode in episodes if (reward := episode.reward()) is not None]
            if len(rewards) < len(episodes):
                failed = next(episode for episode in episodes if not episode.ok)
                raise SystemExit(f"{len(episodes) - len(rewards)} episodes failed; one says: {failed.failures}")
            means.append(sum(rewards) / len(rewards))
    return means[0], means[1]


@contextmanager
def agents(*flags: str) -> Generator[None]:
    """Runs the four agents, each in a process of its own, until the block ends; they also end when this process dies.
    The flags are the manager's.

    Of a training in several processes the first runs them for all.
    """
    state = PartialState()
    program = str(DELEGATION / "agents.py")
    processes = [
        subprocess.Popen(
            [sys.executable, program, *arguments],
            env={**os.environ, STDIN_VARIABLE: "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for arguments in (*([name, "--informed"] for name in SPECIALISTS), ["manager", *flags])
        if state.is_main_process
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            # A served agent says where it is as soon as it can be called.
            if not process.stdout.readline():
                raise SystemExit("an agent did not start; its error is above")
        state.wait_for_everyone()
        yield
        state.wait_for_everyone()
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def run_tiny(way: str, options: argparse.Namespace, run: Run, model: Any, tokenizer: Any) -> Result:
    """One way with the tiny model: evaluated, trained, evaluated. What an earlier start did is read."""
    if way in run.about:
        return Result(**run.about[way])
    begun = f"{way} before"
    if begun not in run.about:
        run.tell(**{begun: asyncio.run(evaluate(model, tokenizer, options.evaluated))})
    result = Result(way, run.about[begun])
    trainer = train(way, options, run.folder, model, tokenizer, result)
    result.after = asyncio.run(evaluate(trainer.model, tokenizer, options.evaluated))
    run.tell(**{way: asdict(result)})
    return result


def report(results: Sequence[Result], folder: Path) -> None:
    """Prints what each way reached, and draws its curve."""
    print(f"\nIn {HINT:.0%} of the examples of the warm start the right one is asked, in the others anyone.")
    print("Mean reward of fresh episodes of the served manager; seconds of this process in training:")
    print(f"{'':22}{'sampled before':>15}{'after':>8}{'greedy before':>15}{'after':>8}{'CPU s':>8}{'s a step':>10}")
    for result in results:
        figures = (result.before[0], result.after[0], result.before[1], result.after[1])
        sampled_before, sampled_after, greedy_before, greedy_after = figures
        print(
            f"{result.way:22}{sampled_before:>15.3f}{sampled_after:>8.3f}{greedy_before:>15.3f}{greedy_after:>8.3f}"
            f"{result.cpu:>8.1f}{result.seconds / max(1, result.steps):>10.2f}"
        )
    curves = {result.way: [result.curve] for result in results}
    plot_curves(folder / "curve.png", curves, title="The manager, trained by TRL", x_label="step")


def run_model(options: argparse.Namespace, folder: Path) -> None:
    """Each way with a real model."""
    with agents("--explain"):
        for way in options.ways:
            tokenizer = AutoTokenizer.from_pretrained(options.model)
            train(way, options, folder, options.model, tokenizer, Result(way, (0.0, 0.0))).save_model()


def main(options: argparse.Namespace, run: Run) -> None:
    """Does what the command line asks for and reports it."""
    if options.model is not None:
        run_model(options, run.folder)
    else:
        torch.set_num_threads(1)
        tokenizer = make_tokenizer()
        fresh = make_model(tokenizer, seed=options.seed)
        warm_up(fresh, tokenizer, seed=options.seed)
        with agents():
            results = [run_tiny(way, options, run, deepcopy(fresh), tokenizer) for way in options.ways]
        report(results, run.folder)
    run.finish()


def begin(options: argparse.Namespace) -> tuple[argparse.Namespace, Path, Run | None]:
    """The run and how it was begun; of a training in several processes the first has it open for all."""
    run = None
    if PartialState().is_main_process:
        options, run = begin_run(options, "trl")
    told: list[Any] = [None if run is None else (vars(options), str(run.folder))]
    broadcast_object_list(told)
    given, folder = told[0]
    # The agents of this run are found in a hub of its own, in which nobody else's have these names.
    os.environ["AGENT_ENV_HUB"] = str(Path(folder).resolve() / "hub.db")
    return argparse.Namespace(**given), Path(folder), run


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="how TRL is given the scenario")
    parser.add_argument("--steps", type=int, default=80, help=f"optimizer steps, of {PROMPTS * GROUP} episodes each")
    parser.add_argument("--evaluated", type=int, default=960, help="fresh episodes a sampled figure")
    parser.add_argument("--save-steps", type=int, default=1, help="steps from one checkpoint to the next")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of what is sampled")
    parser.add_argument("--episodes", help="a file in which the episodes of rollout_func are kept")
    parser.add_argument("--model", help="train this one, a name or a folder, on GPUs, instead of the tiny one")
    parser.add_argument("--vllm", metavar="URL", help="the `vllm serve` that samples it")
    add_run_options(parser, runs="runs/trl")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    given, folder, outer = begin(parse())
    if outer is None:
        run_model(given, folder)
    else:
        play_run(outer, partial(main, given, outer))
