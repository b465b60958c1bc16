"""agent-lightning v1: rows as rollouts with the events that its gateway records, `model_request` and `reward`.

Checked against the source, not run: `agentlightning/schemas.py` and `server/routes/{rollouts,events}.py`, as
`tests/contracts/agent_lightning.json` names them. A rollout there has one policy and one reward, and what it records is
merged in the order of arrival: so each row is a rollout of its own, and agents that run at once do not tear each
other's conversations apart. Two requests with one prompt count as a retry there; in one row no two prompts are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Unpack

from agent_env.episodes import Episode
from agent_env.errors import ConfigurationError, ProtocolError
from agent_env.training.exports.files import Chosen, Written, read_rows, write_rows
from agent_env.training.exports.labels import Label, label_of, row_of
from agent_env.training.rows import Row, Span

SOURCE = "agent-env"


def to_agent_lightning(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """A `RolloutCreate` a row, with its `events` (`EventCreate`) beside it; the label is in the rollout's metadata.

    The input's `data_id`, by which rollouts are told to be of one problem there, is the row's group. Rows of agent
    instances that were cut in two get the same reward, each in its own rollout. Raises `ConfigurationError` for a row
    that nobody scored, whose reward would be filled in there.
    """
    return [
        {
            "rollout": {
                "rollout_id": rollout_id(row),
                "input": {"data_id": row.group, "seat": row.seat, "episode": row.episode},
                "is_train": True,
                "metadata": {"row": label_of(row)},
            },
            "events": [*(_request(row, span) for span in row.spans), _reward(row)],
        }
        for row in rows
    ]


def from_agent_lightning(rollouts: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The rows of rollouts that `to_agent_lightning` made; raises `ProtocolError` for others."""
    return [_row(rollout["rollout"]["metadata"]["row"], rollout["events"]) for rollout in rollouts]


def rollout_id(row: Row) -> str:
    """An id that fits in a path, the same for the same row; posting a rollout twice makes one."""
    return blake2b(row.row_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def write(episodes: Iterable[Episode], path: Path, **chosen: Unpack[Chosen]) -> Written:
    """Writes a line a row, `{"posted": {"rollout": ..., "events": [...]}}`."""
    return write_rows(episodes, path, "posted", to_agent_lightning, labels=False, **chosen)


def read(path: str | Path) -> list[Row]:
    """The rows of a file that `write` wrote."""
    return from_agent_lightning([rollout for rollout, _ in read_rows(Path(path), "posted")])


def _request(row: Row, span: Span) -> dict[str, Any]:
    choice = {
        "index": 0,
        "finish_reason": span.finish_reason,
        "token_ids": row.token_ids[span.start : span.end],
        "logprobs": {"content": [{"logprob": one} for one in row.logprobs[span.start : span.end]]},
    }
    data = {
        "model": row.policy,
        "model_version": span.version,
        "request": {} if span.temperature is None else {"temperature": span.temperature},
        "response": {"prompt_token_ids": row.token_ids[: span.start], "choices": [choice]},
        "server": {"model": row.policy, "endpoint": "", "version": span.version},
        "http_status": 200,
        "status": "ok",
        "retry_count": 0,
        "finish_reason": span.finish_reason,
    }
    return {"event_type": "model_request", "data": data}


def _reward(row: Row) -> dict[str, Any]:
    if row.reward is None:
        raise ConfigurationError(f"nobody scored the row {row.row_id!r}, and agent-lightning would fill a reward in")
    return {"event_type": "reward", "data": {"value": row.reward, "source": SOURCE}}


def _row(label: Label, events: Sequence[Mapping[str, Any]]) -> Row:
    tokens: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for event in events:
        if event["event_type"] != "model_request":
            continue
        response = event["data"]["response"]
        prompt, choice = response["prompt_token_ids"], response["choices"][0]
        if prompt[: len(tokens)] != tokens:
            raise ProtocolError(
                f"the requests of the rollout of row {label.get('row_id')!r} do not continue each other"
            )
        sampled = choice["token_ids"]
        mask += [0] * (len(prompt) - len(tokens)) + [1] * len(sampled)
        logprobs += [0.0] * (len(prompt) - len(tokens)) + [one["logprob"] for one in choice["logprobs"]["content"]]
        tokens = [*prompt, *sampled]
    return row_of(label, tokens, mask, logprobs)
