"""TRL `AsyncGRPOTrainer`: rows as its `RolloutSample`s, each with the advantage that we gave it.

`trl_worker` has the `rollout_worker` that plays episodes and feeds them to the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias, Unpack

from agent_env.episodes import Episode
from agent_env.errors import ConfigurationError
from agent_env.training.exports.files import Chosen, Written, package, read_rows, write_rows
from agent_env.training.exports.labels import Label, row_of
from agent_env.training.rows import Row

INSTALL = "pip install 'trl>=1.16,<1.17'"

Decode: TypeAlias = Callable[[list[int]], str]


def to_trl_async(
    rows: Iterable[Row], *, version: int | None = None, decode: Decode | None = None
) -> list[dict[str, Any]]:
    """The fields of a `RolloutSample` a row, as plain values; all tokens are in `input_ids`, prompt included.

    `model_version` is the oldest that sampled a token of the row, since the trainer bounds staleness by it; `version`
    stands in where the server told none, and without it such a row raises `ConfigurationError`. `group_id` is a number
    that is the same for the same group. The trainer does not look at `prompt` and `completion` but to show them: with
    `decode` they are the text of the two parts, and without it empty.
    """
    return [
        {
            "prompt": [] if decode is None else [_said("user", decode(row.token_ids[: row.prompt_len]))],
            "completion": [] if decode is None else [_said("assistant", decode(row.token_ids[row.prompt_len :]))],
            "input_ids": list(row.token_ids),
            "completion_mask": list(row.loss_mask),
            "old_log_probs": list(row.logprobs),
            "advantage": row.advantage,
            "model_version": _oldest(row, version),
            "group_id": group_number(row.group),
            "metrics": _metrics(row),
        }
        for row in rows
    ]


def from_trl_async(samples: Iterable[Mapping[str, Any]], labels: Iterable[Label]) -> list[Row]:
    """The rows of samples, plain or `dataclasses.asdict` of TRL's own, and of the labels beside them, which TRL has no
    field for; raises `ProtocolError`."""
    rows: list[Row] = []
    for sample, label in zip(samples, labels, strict=True):
        row = row_of(label, *(_plain(sample[name]) for name in ("input_ids", "completion_mask", "old_log_probs")))
        row.advantage = sample["advantage"]
        rows.append(row)
    return rows


def rollout_samples(
    rows: Sequence[Row], *, version: int | None = None, decode: Decode | None = None, enqueued_at: float | None = None
) -> list[Any]:
    """TRL's own `RolloutSample`s of rows: int64 ids and masks, float32 logprobs. Needs TRL."""
    numpy = package("numpy", INSTALL)
    sample_of = package("trl.experimental.async_grpo.async_rollout_worker", INSTALL).RolloutSample
    kinds = {"input_ids": numpy.int64, "completion_mask": numpy.int64, "old_log_probs": numpy.float32}
    samples: list[Any] = []
    for fields in to_trl_async(rows, version=version, decode=decode):
        arrays = {name: numpy.asarray(fields[name], dtype=kind) for name, kind in kinds.items()}
        samples.append(sample_of(**{**fields, **arrays}, enqueued_at=enqueued_at))
    return samples


def group_number(group: str) -> int:
    """A group's number, below 2 ** 63; equal for equal names, in every process."""
    return int.from_bytes(blake2b(group.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") >> 1


def write(episodes: Iterable[Episode], path: Path, **chosen: Unpack[Chosen]) -> Written:
    """Writes a line a row, `{"sample": ..., "row": ...}`; the sample is what `to_trl_async` gives."""
    return write_rows(episodes, path, "sample", to_trl_async, **chosen)


def read(path: str | Path) -> list[Row]:
    """The rows of a file that `write` wrote."""
    pairs = list(read_rows(Path(path), "sample"))
    return from_trl_async([sample for sample, _ in pairs], [label for _, label in pairs])


def _said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _oldest(row: Row, version: int | None) -> int:
    oldest = version if row.versions is None else row.versions[0]
    if oldest is None:
        raise ConfigurationError(
            f"no policy version is known of the row {row.row_id!r}, and TRL bounds staleness by it; "
            "give the version that was served"
        )
    return oldest


def _metrics(row: Row) -> dict[str, float]:
    # TRL averages each over the samples that have it, so a reward that nobody gave is left out.
    return {} if row.reward is None else {"reward": row.reward, f"rewards/{row.seat}": row.reward}


def _plain(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else values.tolist()
