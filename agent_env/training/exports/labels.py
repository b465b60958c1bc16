"""What a trainer's token sequence does not tell of a row: who played it, in which episode, and how it was cut.

A label goes beside the sequence wherever a format has room for it, so that the row can be made again. It is plain JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeAlias

from agent_env.errors import ProtocolError
from agent_env.training.rows import Row, Span

Label: TypeAlias = dict[str, Any]

_TOLD_BY_TOKENS = frozenset({"token_ids", "loss_mask", "logprobs", "prompt_len"})
_FIELDS = tuple(field.name for field in fields(Row) if field.name not in _TOLD_BY_TOKENS)


def label_of(row: Row) -> Label:
    """The label of a row: its fields but for the tokens, mask and logprobs."""
    label: Label = {name: getattr(row, name) for name in _FIELDS}
    label["spans"] = [asdict(span) for span in row.spans]
    label["versions"] = None if row.versions is None else list(row.versions)
    return label


def row_of(
    label: Mapping[str, Any], token_ids: Sequence[int], loss_mask: Iterable[int], logprobs: Iterable[float]
) -> Row:
    """The row of a label and a token sequence; raises `ProtocolError` when the two do not belong together."""
    tokens, mask, sampled = list(token_ids), [int(one) for one in loss_mask], [float(one) for one in logprobs]
    if not len(tokens) == len(mask) == len(sampled):
        raise ProtocolError(
            f"a row has one mask and one logprob a token, not {len(tokens)} tokens, {len(mask)} and {len(sampled)}"
        )
    if 1 not in mask:
        raise ProtocolError(f"the row {label.get('row_id')!r} has no token under its mask")
    try:
        told = {name: label[name] for name in _FIELDS}
        told["spans"] = [Span(**span) for span in told["spans"]]
        told["versions"] = None if told["versions"] is None else (told["versions"][0], told["versions"][1])
    except (KeyError, TypeError, IndexError) as error:
        raise ProtocolError(f"the label of a row is not whole: {type(error).__name__} {error}") from error
    covered = sum(span.end - span.start for span in told["spans"])
    if told["spans"] and covered != sum(mask):
        raise ProtocolError(
            f"the label {label['row_id']!r} is not of this row: it tells of {covered} sampled tokens, not {sum(mask)}"
        )
    return Row(token_ids=tokens, loss_mask=mask, logprobs=sampled, prompt_len=mask.index(1), **told)
