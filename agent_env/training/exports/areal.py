"""AReaL: rows as the tensors that `RolloutWorkflow.arun_episode` returns, one trajectory each.

Checked against the source, not run: `areal/workflow/rlvr.py` and `areal/workflow/multi_turn.py`, as
`tests/contracts/areal.json` names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

from agent_env.episodes import Episode
from agent_env.errors import ConfigurationError
from agent_env.training.exports.files import Chosen, Written, package, read_rows, write_rows
from agent_env.training.exports.labels import Label, row_of
from agent_env.training.rows import Row

if TYPE_CHECKING:
    from torch import Tensor

Scored: TypeAlias = Literal["reward", "advantage"]


def to_areal(rows: Iterable[Row], *, scored: Scored = "reward") -> list[dict[str, Any]]:
    """The trajectory of each row as nested lists: all of shape (1, tokens), `rewards` of shape (1,).

    `versions` has the policy version of each sampled token, and -1 elsewhere. AReaL takes no advantages: with
    `scored="reward"` it compares the rewards itself, of `group_size` trajectories that lie side by side; with
    `scored="advantage"` the credit is ours, and its normalisation must be off (`reward_norm` and `adv_norm` null).
    Raises `ConfigurationError` for a row that nobody scored, which AReaL would take for a reward of 0.
    """
    return [
        {
            "input_ids": [list(row.token_ids)],
            "loss_mask": [list(row.loss_mask)],
            "logprobs": [list(row.logprobs)],
            "versions": [row.version_ids],
            "attention_mask": [[True] * len(row.token_ids)],
            "rewards": [_score(row, scored)],
        }
        for row in rows
    ]


def from_areal(trajectories: Iterable[Mapping[str, Any]], labels: Iterable[Label]) -> list[Row]:
    """The rows of trajectories (nested lists) and of the labels beside them; raises `ProtocolError`."""
    return [
        row_of(label, told["input_ids"][0], told["loss_mask"][0], told["logprobs"][0])
        for told, label in zip(trajectories, labels, strict=True)
    ]


def tensors(trajectory: Mapping[str, Any]) -> dict[str, Tensor]:
    """A trajectory as AReaL's tensors: int32 ids, masks and versions, float32 logprobs and rewards, a bool
    attention mask. Needs torch."""
    torch = package("torch", "pip install 'agent-env[train]'")
    kinds = {"logprobs": torch.float32, "rewards": torch.float32, "attention_mask": torch.bool}
    return {name: torch.tensor(value, dtype=kinds.get(name, torch.int32)) for name, value in trajectory.items()}


def write(episodes: Iterable[Episode], path: Path, **chosen: Unpack[Chosen]) -> Written:
    """Writes a line a row, `{"trajectory": ..., "row": ...}`; the trajectory is what `to_areal` gives."""
    return write_rows(episodes, path, "trajectory", to_areal, **chosen)


def read(path: str | Path) -> list[Row]:
    """The rows of a file that `write` wrote."""
    pairs = list(read_rows(Path(path), "trajectory"))
    return from_areal([trajectory for trajectory, _ in pairs], [label for _, label in pairs])


def _score(row: Row, scored: Scored) -> float:
    if scored == "advantage":
        return row.advantage
    if row.reward is None:
        raise ConfigurationError(f"nobody scored the row {row.row_id!r}, and AReaL needs a reward for each")
    return row.reward
