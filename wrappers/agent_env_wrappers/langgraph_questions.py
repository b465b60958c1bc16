"""Interrupts of a graph, asked one after the other: a graph may stop at several at once, a turn ends with one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agent_env_wrappers.answers import APPROVAL_SCHEMA, answer_of, approval
from agent_env_wrappers.contract import AgentError, Interrupt, Turn, Usage

PROMPTS = ("prompt", "question", "message", "description", "query", "q")


def questions(interrupts: Sequence[Any], checkpoint: str) -> dict[str, Any]:
    """The open questions as a part of the conversation's state; without interrupts the graph is at a breakpoint."""
    if not interrupts:
        prompt = "The graph has stopped at a breakpoint. May it go on?"
        asked = [{"id": f"breakpoint-{checkpoint}", "kind": "breakpoint", "prompt": prompt}]
    else:
        asked = [_question(interrupt) for interrupt in interrupts]
    return {"questions": asked, "answers": {}}


def ask_next(memory: Mapping[str, Any], usage: Usage | None = None) -> Interrupt | None:
    """Asks the first question without an answer; None when all have one."""
    for question in memory["questions"]:
        if question["id"] not in memory["answers"]:
            kind: Literal["question", "approval"] = "question" if question["kind"] == "question" else "approval"
            schema = question.get("schema") or (APPROVAL_SCHEMA if kind == "approval" else None)
            return Interrupt(question["id"], kind, question["prompt"], schema, dict(memory), usage)
    return None


def take_answer(turn: Turn, memory: Mapping[str, Any]) -> dict[str, Any]:
    """The memory with the turn's answer to the open question; raises `AgentError` when it answers another one."""
    question = next(question for question in memory["questions"] if question["id"] not in memory["answers"])
    value = answer_of(turn, question["id"])
    if question["kind"] == "breakpoint" and not approval(value).approved:
        raise AgentError("the graph may not go on, so there is no reply; reset the conversation", kind="refused")
    if question["kind"] == "review" and not (isinstance(value, Mapping) and "decisions" in value):
        verdict = approval(value)
        decision = {"type": "approve"} if verdict.approved else {"type": "reject", "message": verdict.reason or "no"}
        value = {"decisions": [decision] * question["actions"]}
    return {**memory, "answers": {**memory["answers"], question["id"]: value}}


def resumption(memory: Mapping[str, Any]) -> Any:
    """The input that makes the graph go on with all answers."""
    from langgraph.types import Command

    if memory["questions"][0]["kind"] == "breakpoint":
        return None
    return Command(resume=dict(memory["answers"]))


def _question(interrupt: Any) -> dict[str, Any]:
    value = interrupt.value
    schema = getattr(interrupt, "response_schema", None)
    question: dict[str, Any] = {"id": interrupt.id, "kind": "question", "prompt": _prompt(value)}
    if isinstance(schema, Mapping):
        question["schema"] = dict(schema)
    elif isinstance(value, Mapping) and isinstance(value.get("action_requests"), Sequence):
        # The form of LangChain's human-in-the-loop middleware: it wants one decision for each action.
        actions = value["action_requests"]
        made = "; ".join(f"{action['name']} with {_json(action['args'])}" for action in actions)
        question |= {"kind": "review", "prompt": f"May the agent call {made}?", "actions": len(actions)}
    return question


def _prompt(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        named = [value[name] for name in PROMPTS if isinstance(value.get(name), str)]
        if named:
            return str(named[0])
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=lambda other: f"<{type(other).__name__}>")
