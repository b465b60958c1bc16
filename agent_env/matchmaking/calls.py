"""Whether a candidate's tool takes the calls that a need says will be made, and answers as it expects."""

from __future__ import annotations

from agent_env.matchmaking.candidate import Candidate
from agent_env.matchmaking.findings import Finding, Result
from agent_env.matchmaking.query import Query
from agent_env.matchmaking.verdicts import Named, Verdicts
from agent_env_cards import ToolCard, ToolUse
from agent_env_cards.compatibility import Verdict


def takes_of(tool: ToolCard, verdicts: Verdicts) -> Named:
    """What a tool takes."""
    return verdicts.named(tool.input_schema)


def gives_of(tool: ToolCard, verdicts: Verdicts) -> Named | None:
    """What a tool gives, None where its card does not promise anything."""
    return None if tool.output_schema is None else verdicts.named(tool.output_schema)


def tool_rule(query: Query, candidate: Candidate, verdicts: Verdicts) -> Finding:
    """Its tool takes everything that the caller will send, and returns nothing that the caller does not expect.

    Substitution is contravariant: the caller's arguments are inside the tool's parameters, the tool's result is
    inside the expected one.
    """
    use = query.criteria.tool
    if use is None:
        return Finding("yes", "no call is described")
    tool = candidate.card.tool(use.name)
    if tool is None:
        names = ", ".join(repr(found.name) for found in candidate.card.capabilities.tools) or "none"
        return Finding("no", f"has no tool {use.name!r}; its tools are {names}", f"add a tool {use.name!r}")
    sends, expects = sides(use, verdicts)
    takes, gives = takes_of(tool, verdicts), gives_of(tool, verdicts)
    result, exact = judged(sends, expects, takes, gives, verdicts, query.need.allow_partial)
    whys: list[str] = []
    pointer = change = ""
    if sends is not None:
        verdict = verdicts.verdict(sends, takes)
        whys.append(_told(verdict, f"{use.name!r} takes what is sent", f"what is sent does not fit {use.name!r}"))
        if verdict.answer == "no":
            pointer, change = verdict.pointer, f"send what {use.name!r} takes, or widen what it takes"
    if expects is not None:
        verdict = (
            Verdict("unknown", why="its card promises no result") if gives is None else verdicts.verdict(gives, expects)
        )
        whys.append(_told(verdict, "answers as expected", "its answer is not what is expected"))
        if verdict.answer == "no" and not change:
            pointer, change = verdict.pointer, f"expect what {use.name!r} answers, or narrow what it answers"
    why = "; ".join(whys) or f"has the tool {use.name!r}"
    if result == "partial":
        why = f"some calls fit: {why}"
    elif result == "no" and partly(sends, expects, takes, gives, verdicts):
        change += "; or let the need allow_partial, since some calls fit"
    return Finding(result, why, change if result == "no" else "", pointer, exact)


def sides(use: ToolUse, verdicts: Verdicts) -> tuple[Named | None, Named | None]:
    """What a need sends and what it expects, None where it does not say."""
    sends = None if use.arguments is None else verdicts.named(use.arguments)
    expects = None if use.result is None else verdicts.named(use.result)
    return sends, expects


def judged(
    sends: Named | None,
    expects: Named | None,
    takes: Named,
    gives: Named | None,
    verdicts: Verdicts,
    allow_partial: bool,
) -> tuple[Result, bool]:
    """The result for one tool, and whether the schemas are the same on both sides."""
    answers = [
        "yes" if sends is None else verdicts.answer(sends, takes),
        "yes" if expects is None else "unknown" if gives is None else verdicts.answer(gives, expects),
    ]
    if "no" in answers:
        partial = allow_partial and partly(sends, expects, takes, gives, verdicts)
        return "partial" if partial else "no", False
    same = (sends is None or sends[0] == takes[0]) and (
        expects is None or (gives is not None and gives[0] == expects[0])
    )
    return ("unknown" if "unknown" in answers else "yes"), same


def partly(sends: Named | None, expects: Named | None, takes: Named, gives: Named | None, verdicts: Verdicts) -> bool:
    """Whether some calls may fit, and do so for sure where a schema refuses others."""
    if sends is not None and verdicts.answer(sends, takes) == "no" and not verdicts.meet(sends, takes):
        return False
    if expects is None or gives is None:
        return True
    return verdicts.answer(gives, expects) != "no" or verdicts.meet(gives, expects)


def _told(verdict: Verdict, yes: str, no: str) -> str:
    if verdict.answer == "yes":
        return yes
    place = f" at {verdict.pointer}" if verdict.pointer else ""
    return (
        f"{no}{place}: {verdict.why}" if verdict.answer == "no" else f"whether {yes} is not known{place}: {verdict.why}"
    )
