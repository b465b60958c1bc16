"""What a caller answers to an `Interrupt`, as wrappers read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from agent_env_wrappers.contract import AgentError, Json, Turn

APPROVAL_SCHEMA: Mapping[str, Json] = {"type": "boolean", "description": "true to approve, false to reject"}

YES = frozenset({"yes", "y", "true", "approve", "approved", "ok", "allow"})
NO = frozenset({"no", "n", "false", "reject", "rejected", "deny", "denied"})


class Approval(NamedTuple):
    """A yes or no, and for a no perhaps why."""

    approved: bool
    reason: str | None = None


def answer_of(turn: Turn, asked: str) -> Json:
    """The answer to the open question `asked`: the one with its id, else the message's data or text.

    Raises `AgentError` of kind "refused" when the turn answers only other questions.
    """
    for answer in turn.answers:
        if answer.interrupt_id == asked:
            return answer.value
    if turn.answers:
        raise AgentError(f"the question {turn.answers[0].interrupt_id!r} is not open; answer {asked!r}", kind="refused")
    return turn.message.text if turn.message.data is None else turn.message.data


def refuse_answers(turn: Turn) -> None:
    """Raises `AgentError` of kind "refused" when the turn answers although nothing was asked."""
    if turn.answers:
        raise AgentError(
            f"no question is open, so {turn.answers[0].interrupt_id!r} cannot be answered; send a message",
            kind="refused",
        )


def approval(value: Json) -> Approval:
    """Reads a yes or no: a boolean, `{"approved": bool, "reason": str}`, or a plain word such as "yes" or "no".

    Raises `AgentError` of kind "refused" for anything else: an unclear answer must never approve.
    """
    if isinstance(value, Mapping) and isinstance(value.get("approved"), bool):
        reason = value.get("reason")
        return Approval(value["approved"], reason if isinstance(reason, str) else None)
    word = value.strip().strip(".!").lower() if isinstance(value, str) else None
    if value is True or word in YES:
        return Approval(True)
    if value is False or word in NO:
        return Approval(False)
    raise AgentError(f"the answer {value!r} is neither yes nor no; answer true or false", kind="refused")
