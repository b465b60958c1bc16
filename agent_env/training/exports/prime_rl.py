"""prime-rl: rows as `TrainingSample`s, which its orchestrator hands to the trainer.

Checked against the source, not run: `prime_rl/transport/types.py`, as `tests/contracts/prime_rl.json` names it. The
fields are given by name, since the encoding is by position and positions have changed from version to version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Unpack

from agent_env.episodes import Episode
from agent_env.training.exports.files import Chosen, Written, read_rows, write_rows
from agent_env.training.exports.labels import Label, row_of
from agent_env.training.rows import Row


def to_prime_rl(rows: Iterable[Row], *, env_name: str | None = None) -> list[dict[str, Any]]:
    """The keyword arguments of a `TrainingSample` a row: everything is aligned with its tokens. prime-rl divides the
    logits by `temperatures`, of which none is 0.

    `advantages` has the row's own on its sampled tokens, so that prime-rl's grouping is not needed; `reward` is the
    row's, None where nobody scored it. `env_name` is what its metrics and weights go by; default: the row's seat.

        samples = [TrainingSample(**sample) for sample in to_prime_rl(rows)]
    """
    return [
        {
            "token_ids": list(row.token_ids),
            "mask": [one == 1 for one in row.loss_mask],
            "logprobs": list(row.logprobs),
            "temperatures": row.temperatures,
            "env_name": row.seat if env_name is None else env_name,
            "reward": row.reward,
            "advantages": [row.advantage if one else 0.0 for one in row.loss_mask],
        }
        for row in rows
    ]


def from_prime_rl(samples: Iterable[Mapping[str, Any]], labels: Iterable[Label]) -> list[Row]:
    """The rows of samples and of the labels beside them, which prime-rl has no field for; raises `ProtocolError`."""
    rows: list[Row] = []
    for sample, label in zip(samples, labels, strict=True):
        row = row_of(label, sample["token_ids"], sample["mask"], sample["logprobs"])
        if sample.get("advantages") is not None:
            row.advantage = sample["advantages"][row.prompt_len]
        rows.append(row)
    return rows


def write(episodes: Iterable[Episode], path: Path, **chosen: Unpack[Chosen]) -> Written:
    """Writes a line a row, `{"sample": ..., "row": ...}`; the sample is what `to_prime_rl` gives."""
    return write_rows(episodes, path, "sample", to_prime_rl, **chosen)


def read(path: str | Path) -> list[Row]:
    """The rows of a file that `write` wrote."""
    pairs = list(read_rows(Path(path), "sample"))
    return from_prime_rl([sample for sample, _ in pairs], [label for _, label in pairs])
