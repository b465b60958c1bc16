"""verl: rows as what an agent loop returns (`AgentLoopOutput`), and as the padded batch of a trainer (`DataProto`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from agent_env.episodes import Episode
from agent_env.errors import ConfigurationError
from agent_env.training.exports.files import Chosen, Written, package, read_rows, write_rows
from agent_env.training.exports.labels import label_of, row_of
from agent_env.training.rows import Row

INSTALL = "pip install 'verl>=0.9,<0.10'"


def to_agent_loop(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The keyword arguments of an `AgentLoopOutput` a row.

    The prompt is what comes before the first sampled token; what the agent was told later is in the response, under
    a mask of 0. `extra_fields` tells the oldest and newest policy version as verl's loops do, and the label of the row.
    verl scores a list of outputs of one loop by the last of them: return rows of one seat, and give it one group each
    (`uid`), or make a `DataProto`, which takes the credit that we gave.

        return [AgentLoopOutput(**output) for output in to_agent_loop(rows)]
    """
    return [
        {
            "prompt_ids": row.token_ids[: row.prompt_len],
            "response_ids": row.token_ids[row.prompt_len :],
            "response_mask": row.loss_mask[row.prompt_len :],
            "response_logprobs": row.logprobs[row.prompt_len :],
            "reward_score": row.reward,
            "num_turns": 2 * len(row.calls),
            "metrics": {},
            "extra_fields": {
                "min_global_steps": None if row.versions is None else row.versions[0],
                "max_global_steps": None if row.versions is None else row.versions[1],
                "row": label_of(row),
            },
        }
        for row in rows
    ]


def from_agent_loop(outputs: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The rows of outputs that `to_agent_loop` made (`output.model_dump()` of verl's own); raises `ProtocolError`."""
    rows: list[Row] = []
    for output in outputs:
        context = len(output["prompt_ids"])
        rows.append(
            row_of(
                output["extra_fields"]["row"],
                [*output["prompt_ids"], *output["response_ids"]],
                [0] * context + list(output["response_mask"]),
                [0.0] * context + list(output["response_logprobs"]),
            )
        )
    return rows


def to_verl(
    rows: Sequence[Row], *, pad_token_id: int = 0, prompt_length: int | None = None, response_length: int | None = None
) -> dict[str, dict[str, Any]]:
    """The batch of a `DataProto` as nested lists: `batch` of numbers, `non_tensor_batch` of one value a row.

    Prompts are padded on the left and responses on the right, to the lengths given or to the longest. The score is on
    the last token of the response; `advantages` and `returns` have the row's advantage on its sampled tokens, so the
    trainer's own estimator is to be left out. `uid` is the row's group, which a trainer that does estimate must compare
    by. Raises `ConfigurationError` for a row that is longer than the lengths given, or that nobody scored.
    """
    contexts = [row.prompt_len for row in rows]
    answers = [len(row.token_ids) - row.prompt_len for row in rows]
    left = max(contexts, default=0) if prompt_length is None else prompt_length
    right = max(answers, default=0) if response_length is None else response_length
    batch: dict[str, list[list[float]]] = {name: [] for name in _TENSORS}
    for row, context, answer in zip(rows, contexts, answers, strict=True):
        if context > left or answer > right:
            raise ConfigurationError(
                f"the row {row.row_id!r} has {context} + {answer} tokens, more than the {left} + {right} there is room "
                "for; give more room, or leave the row out"
            )
        if row.reward is None:
            raise ConfigurationError(f"nobody scored the row {row.row_id!r}, and verl needs a score for each")
        for name, values in _padded(row, left - context, right - answer, pad_token_id).items():
            batch[name].append(values)
    return {
        "batch": batch,
        "non_tensor_batch": {"uid": [row.group for row in rows], "row": [label_of(row) for row in rows]},
    }


def from_verl(data: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The rows of a batch that `to_verl` made; raises `ProtocolError`. Of a `DataProto` give `plain(data)`."""
    batch = data["batch"]
    rows: list[Row] = []
    for index, label in enumerate(data["non_tensor_batch"]["row"]):
        width = len(batch["prompts"][index])
        seen = [at for at, one in enumerate(batch["attention_mask"][index]) if one]
        responses = [at - width for at in seen if at >= width]
        context = len(seen) - len(responses)
        rows.append(
            row_of(
                label,
                [batch["input_ids"][index][at] for at in seen],
                [0] * context + [batch["response_mask"][index][at] for at in responses],
                [0.0] * context + [batch["rollout_log_probs"][index][at] for at in responses],
            )
        )
    return rows


def data_proto(rows: Sequence[Row], **lengths: Any) -> Any:
    """A `verl.DataProto` of rows, int64 ids and masks and float32 numbers; `lengths` as for `to_verl`. Needs verl.

    batch = data_proto(rows, pad_token_id=tokenizer.pad_token_id, prompt_length=1024, response_length=4096)
    """
    torch = package("torch", INSTALL)
    proto = package("verl.protocol", INSTALL).DataProto
    plain_data = to_verl(rows, **lengths)
    tensors = {
        name: torch.tensor(values, dtype=torch.float32 if name in _FLOATS else torch.int64)
        for name, values in plain_data["batch"].items()
    }
    return proto.from_dict(tensors=tensors, non_tensors=plain_data["non_tensor_batch"])


def plain(data: Any) -> dict[str, dict[str, Any]]:
    """A `DataProto` as nested lists, for `from_verl`."""
    return {
        "batch": {name: tensor.tolist() for name, tensor in data.batch.items()},
        "non_tensor_batch": {name: values.tolist() for name, values in data.non_tensor_batch.items()},
    }


def write(episodes: Iterable[Episode], path: Path, **chosen: Unpack[Chosen]) -> Written:
    """Writes a line a row, `{"output": ...}`; the output is what `to_agent_loop` gives."""
    return write_rows(episodes, path, "output", to_agent_loop, labels=False, **chosen)


def read(path: str | Path) -> list[Row]:
    """The rows of a file that `write` wrote."""
    return from_agent_loop([output for output, _ in read_rows(Path(path), "output")])


_FLOATS = frozenset({"rollout_log_probs", "token_level_scores", "token_level_rewards", "advantages", "returns"})
_TENSORS = (
    *("prompts", "responses", "input_ids", "attention_mask", "position_ids", "response_mask"),
    *sorted(_FLOATS),
)


def _padded(row: Row, before: int, after: int, pad: int) -> dict[str, list[Any]]:
    prompt = [pad] * before + row.token_ids[: row.prompt_len]
    response = row.token_ids[row.prompt_len :] + [pad] * after
    mask = row.loss_mask[row.prompt_len :] + [0] * after
    length = len(row.token_ids)
    scores = [0.0] * len(response)
    scores[length - row.prompt_len - 1] = row.reward or 0.0
    advantages = [row.advantage if one else 0.0 for one in mask]
    return {
        "prompts": prompt,
        "responses": response,
        "input_ids": prompt + response,
        "attention_mask": [0] * before + [1] * length + [0] * after,
        # As verl counts them: from 0 at the first token, and on through what is padded behind it.
        "position_ids": [0] * before + list(range(length)) + [length - 1] * after,
        "response_mask": mask,
        "rollout_log_probs": row.logprobs[row.prompt_len :] + [0.0] * after,
        "token_level_scores": scores,
        "token_level_rewards": scores,
        "advantages": advantages,
        "returns": advantages,
    }
