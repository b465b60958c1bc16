"""TRL `GRPOTrainer` by `rollout_func`: a seat of a scenario is played by the trainer's own model, the others as served.

TRL trains one policy, and takes one token sequence a prompt: the row of the trained seat. `trl_environment` is the
other way, in which TRL itself is the agent.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from anyio.from_thread import BlockingPortal, start_blocking_portal

from agent_env.episodes import Episode, EpisodeStore
from agent_env.errors import AgentFailed, ConfigurationError, ProtocolError
from agent_env.gateway import RunHandle, SeatPolicy
from agent_env.training.exports.labels import Label, row_of
from agent_env.training.exports.trl_model import model_served, vllm_policy
from agent_env.training.place import Place, policies_served
from agent_env.training.propagation import Propagation
from agent_env.training.rollouts import collect, rollout
from agent_env.training.rows import Row, RowReport, cut
from agent_env.training.scenario import Json, Scenario, Seat

log = logging.getLogger("agent_env.training")

Prompt: TypeAlias = "str | Sequence[Mapping[str, Any]]"
"""A prompt as a data set of TRL has it: a text, or messages."""


# ── rows ───────────────────────────────────────────────────────────────────────────────────────────────────────


def to_trl(rows: Iterable[Row]) -> dict[str, list[Any]]:
    """What a `rollout_func` returns, of one row a prompt: `prompt_ids`, `completion_ids`, `logprobs`, `env_mask` and,
    for reward functions, `reward`.

    The completion begins with the first token that the policy sampled; in it `env_mask` is 1 on what it sampled, and 0
    (with a logprob of 0.0) on what others said.
    """
    given = list(rows)
    return {
        "prompt_ids": [row.token_ids[: row.prompt_len] for row in given],
        "completion_ids": [row.token_ids[row.prompt_len :] for row in given],
        "logprobs": [row.logprobs[row.prompt_len :] for row in given],
        "env_mask": [row.loss_mask[row.prompt_len :] for row in given],
        "reward": [row.reward for row in given],
    }


def from_trl(batch: Mapping[str, Sequence[Any]], labels: Iterable[Label]) -> list[Row]:
    """The rows of what a `rollout_func` returned, and of the labels beside them, for which TRL has no field.

    Without an `env_mask` all of a completion was sampled. Raises `ProtocolError` for what does not belong together.
    """
    rows: list[Row] = []
    try:
        columns = [batch[name] for name in ("prompt_ids", "completion_ids", "logprobs")]
        masks = batch.get("env_mask") or [[1] * len(ids) for ids in columns[1]]
        for prompt, completion, logprobs, mask, label in zip(*columns, masks, labels, strict=True):
            before = len(prompt)
            rows.append(row_of(label, [*prompt, *completion], [0] * before + [*mask], [0.0] * before + [*logprobs]))
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"this is no batch of a rollout_func with a label a row: {error}") from error
    return rows


# ── prompts ────────────────────────────────────────────────────────────────────────────────────────────────────


def trl_prompts(tasks: Iterable[Json]) -> list[dict[str, Any]]:
    """Rows of a data set for TRL, a prompt a task: `Dataset.from_list(trl_prompts(tasks))`.

    The prompt is the name of the task for `trl_rollout_func`, which is given the same tasks. What the model reads is up
    to the agent in the trained seat.
    """
    return [{"prompt": [{"role": "user", "content": prompt_text(task)}]} for task in tasks]


def prompt_text(task: Json) -> str:
    """What stands for a task in a prompt: a text itself, and otherwise its JSON."""
    return task if isinstance(task, str) else json.dumps(task, sort_keys=True, ensure_ascii=False)


def episode_reward(*, reward: list[float | None], **columns: Any) -> list[float | None]:
    """The reward function for `GRPOTrainer(reward_funcs=…)` that gives each completion the reward of its episode; None
    for one that failed, which TRL leaves out."""
    log_metric: Callable[[str, float], None] | None = columns.get("log_metric")
    if log_metric is not None:
        log_metric("episodes/without_reward", sum(value is None for value in reward) / len(reward))
    return reward


# ── rollouts ───────────────────────────────────────────────────────────────────────────────────────────────────


def trl_rollout_func(
    scenario: object,
    *,
    seat: str,
    tasks: Iterable[Json] | None = None,
    policies: Mapping[str, SeatPolicy] | None = None,
    seats: Mapping[str, Seat] | None = None,
    propagation: str | Propagation = "team",
    concurrency: int = 64,
    seconds: float | None = 120.0,
    budget: int | None = None,
    episodes: str | Path | None = None,
    on_episode: Callable[[Episode], None] | None = None,
) -> Rollouts:
    """Makes a `rollout_func` that plays one episode of a scenario a prompt, at most `concurrency` at a time.

        with trl_rollout_func(delegation, seat="manager") as rollouts:
            GRPOTrainer(
                model, reward_funcs=episode_reward, rollout_func=rollouts,
                train_dataset=Dataset.from_list(trl_prompts(tasks)), args=config, processing_class=tokenizer,
            ).train()

    | argument | meaning |
    |---|---|
    | `seat` | the seat that the trainer's model plays; its agent is asked as always, and asks the gateway for its model |
    | `tasks` | the tasks that prompts stand for (`trl_prompts`); without them the text of a prompt is the task |
    | `policies` | what plays the other seats that have a policy, by the policy's name |
    | `seats` | seats to put in place of the scenario's |
    | `propagation` | which reward the row of the seat gets: "team", "discounted", "own" or "judge" |
    | `seconds`, `budget` | bounds of each episode: time, and calls |
    | `episodes` | a file (`EpisodeStore`) in which every episode is kept |
    | `on_episode` | is told about each episode, in the thread that plays |

    Each process of a distributed training plays its own prompts. Raises `ConfigurationError` for a seat that there is
    not, or that has no environment.
    """
    given = Scenario.of(scenario)
    given = replace(given, seats={**given.seats, **(seats or {})})
    trained = given.seats.get(seat)
    if trained is None or trained.env is None:
        known = ", ".join(repr(name) for name, one in given.seats.items() if one.env is not None) or "none"
        raise ConfigurationError(
            f"the trained seat must have an environment to be asked in; {seat!r} is not of {known}"
        )
    policy = trained.policy or seat
    placed = {
        name: replace(one, policy=policy, trainable=True) if name == seat else replace(one, trainable=False)
        for name, one in given.seats.items()
    }
    asked = {one.policy for one in placed.values() if one.policy is not None} - {policy, *(policies or {})}
    if asked:
        raise ConfigurationError(
            f"nobody plays {', '.join(map(repr, sorted(asked)))}, since TRL trains {policy!r} alone; give policies={{…}}"
        )
    return Rollouts(
        _Plan(
            replace(given, seats=placed),
            seat,
            policy,
            dict(policies or {}),
            None if tasks is None else {prompt_text(task): task for task in tasks},
            propagation,
            {"concurrency": concurrency, "seconds": seconds, "budget": budget, "on_episode": on_episode},
            None if episodes is None else Path(episodes),
        )
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    scenario: Scenario
    seat: str
    policy: str
    policies: Mapping[str, SeatPolicy]
    tasks: Mapping[str, Json] | None
    propagation: str | Propagation
    options: Mapping[str, Any]
    episodes: Path | None


class Rollouts:
    """A `rollout_func` of TRL: `rollouts(prompts, trainer)` plays, and returns what `to_trl` does.

    It has an event loop in a thread of its own, a policy server there, and a gateway in another process, from the first
    call on or within `with`; `close` ends them. An episode that failed, or in which the seat did not speak, stands
    there with nothing under its mask and no reward, so that it moves nothing; where the seat's conversation forked, its
    longest row stands for it. `report` and `failures` tell how often that was, of all calls so far.
    """

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._stack = ExitStack()
        self._open: tuple[BlockingPortal, Place, EpisodeStore | None] | None = None
        self.report = RowReport()
        self.failures: Counter[str] = Counter()

    def __call__(self, prompts: Sequence[Prompt], trainer: Any) -> dict[str, list[Any]]:
        """Plays an episode a prompt with the trainer's weights as they are.

        Raises `AgentFailed` when none of them gives a row, and `ConfigurationError` for a trainer whose model cannot be
        asked or a prompt that stands for no task.
        """
        tasks, size = self._tasks(prompts, trainer)
        portal, place, store = self._opened()
        rank, ranks = trainer.accelerator.process_index, trainer.accelerator.num_processes
        seed = trainer.state.global_step * ranks + rank
        with model_served(trainer, self._plan.policy, place, seed=seed) as served:
            playing = portal.start_task_soon(self._play, tasks, size, trainer, served, seed, place, store)
            try:
                played = playing.result()
            except BaseException:
                playing.cancel()
                raise
        return self._batch(played, int(trainer.eos_token_ids[0]))

    def close(self) -> None:
        """Ends the policy server, the gateway and their thread; a later call begins anew."""
        self._open = None
        self._stack.close()

    def __enter__(self) -> Self:
        self._opened()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _opened(self) -> tuple[BlockingPortal, Place, EpisodeStore | None]:
        if self._open is None:
            with ExitStack() as stack:
                portal = stack.enter_context(start_blocking_portal(name="agent-env-rollouts"))
                place, store = stack.enter_context(portal.wrap_async_context_manager(_places(self._plan.episodes)))
                self._stack = stack.pop_all()
            self._open = portal, place, store
        return self._open

    def _tasks(self, prompts: Sequence[Prompt], trainer: Any) -> tuple[list[Json], int]:
        """The tasks to play, and how often each: TRL repeats a prompt once a generation."""
        texts = [_told(prompt) for prompt in prompts]
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        blocks = [texts[start : start + size] for start in range(0, len(texts), size)]
        if any(len(block) != size or len(set(block)) != 1 for block in blocks):
            # One process of several may have a part of a group.
            blocks, size = [[text] for text in texts], 1
        known = self._plan.tasks
        unknown = [block[0] for block in blocks if known is not None and block[0] not in known]
        if unknown:
            raise ConfigurationError(
                f"the prompt {unknown[0]!r:.200} stands for none of the tasks; make the data set of trl_prompts(tasks)"
            )
        return [block[0] if known is None else known[block[0]] for block in blocks], size

    async def _play(
        self,
        tasks: list[Json],
        size: int,
        trainer: Any,
        served: SeatPolicy | None,
        seed: int,
        place: Place,
        store: EpisodeStore | None,
    ) -> list[Episode]:
        plan = self._plan
        policies = {**plan.policies, plan.policy: served or await vllm_policy(trainer)}
        # Seats without a policy keep their own model and tell what they did.
        seats = {
            name: None if seat.policy is None else policies[seat.policy] for name, seat in plan.scenario.seats.items()
        }
        gateway = place.gateway
        async with await RunHandle.open(gateway.url, gateway.admin_token, seats, keep_journal=False) as run:
            return await collect(
                rollout(
                    plan.scenario,
                    tasks,
                    run=run,
                    store=store,
                    group_size=size,
                    seed=seed,
                    info={"step": trainer.state.global_step},
                    **plan.options,
                )
            )

    def _batch(self, played: Sequence[Episode], end: int) -> dict[str, list[Any]]:
        rows, _, report = cut(played, seats=[self._plan.seat], propagation=self._plan.propagation)
        longest: dict[str, Row] = {}
        for row in rows:
            before = longest.get(row.episode)
            if before is None or row.sampled > before.sampled:
                longest[row.episode] = row
        seat = self._plan.seat
        failures = Counter(_failure(episode, seat) for episode in played if episode.id not in longest)
        self.report.add(report)
        self.failures += failures
        why = ", ".join(f"{reason} ({count})" for reason, count in failures.most_common())
        if not longest:
            raise AgentFailed(f"none of the {len(played)} episodes gives {seat!r} a row to train on: {why}")
        if failures:
            log.warning("%d of %d episodes give no row to train on: %s", failures.total(), len(played), why)
        if len(rows) > len(longest):
            log.warning(
                "the conversation of %r forked %d times in %d episodes, and TRL takes the longest row of each",
                *(seat, len(rows) - len(longest), len(played)),
            )
        batch = to_trl([longest.get(episode.id) or _silent(episode, seat, end) for episode in played])
        return {**batch, "episode": [episode.id for episode in played]}


@asynccontextmanager
async def _places(episodes: Path | None) -> AsyncGenerator[tuple[Place, EpisodeStore | None]]:
    async with AsyncExitStack() as stack:
        # Here, since a database is used in the thread that opened it.
        store = None if episodes is None else stack.enter_context(EpisodeStore(episodes))
        yield await stack.enter_async_context(policies_served()), store


def _told(prompt: Prompt) -> str:
    """The text of a prompt, or of its last message."""
    said: Any = prompt if isinstance(prompt, str) else prompt[-1].get("content")
    if isinstance(said, list):
        said = "".join(str(part.get("text", "")) for part in said)
    if not isinstance(said, str):
        raise ConfigurationError(f"a prompt must end with a text, not {said!r:.200}")
    return said


def _failure(episode: Episode, seat: str) -> str:
    if not episode.ok:
        first = episode.failures[0] if episode.failures else None
        return "not ok" if first is None else f"{first.code}: {first.message:.200}"
    if episode.reward(seat) is None:
        return "not scored"
    return f"no model call of {seat!r} came with its tokens"


def _silent(episode: Episode, seat: str, end: int) -> Row:
    """What stands for an episode without a row, since TRL must have one: nothing in it is trained."""
    return Row(episode.id, seat, None, "", [end, end], [0, 0], [0.0, 0.0], 1)
