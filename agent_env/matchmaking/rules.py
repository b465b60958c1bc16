"""The rules of a match: small pure functions that say yes, no, partly or unknown, and why.

Each looks at one question about one candidate. All of them are asked in the order of `RULES`; a "no" anywhere ends
the candidacy. A rule that the card does not answer says "unknown", which a strict need takes for a "no".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from agent_env.matchmaking.calls import tool_rule
from agent_env.matchmaking.candidate import Candidate
from agent_env.matchmaking.findings import Finding
from agent_env.matchmaking.query import Query
from agent_env.matchmaking.skills import skills_rule
from agent_env.matchmaking.verdicts import Verdicts
from agent_env_cards import VersionRange, is_draft, parse_version

Judge: TypeAlias = Callable[[Query, Candidate, Verdicts], Finding]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule by its name; `fault` says in words what the candidates that it rejects have in common.

    `fit` is False where the rule speaks of how a candidate is reached: what is unknown there does not lower the
    degree. `told` is False where the answer is not on the card: a strict need does not ask cards for it.
    """

    name: str
    judge: Judge
    fault: str
    fit: bool = True
    told: bool = True

    def apply(self, query: Query, candidate: Candidate, verdicts: Verdicts) -> Finding:
        """Asks the rule; what is unknown is a "no" for a strict need."""
        found = self.judge(query, candidate, verdicts)
        if found.result == "unknown" and self.told and query.need.strict:
            change = found.change or "drop `strict` from the need"
            found = replace(found, result="no", why=f"{found.why}, and the need is strict", change=change)
        return replace(found, rule=self.name, fit=self.fit)


def another(query: Query, candidate: Candidate, verdicts: Verdicts) -> Finding:
    """Nobody is their own peer, unless the need says so by its name."""
    caller = query.caller.card
    if caller is None or caller.name != candidate.card.name or query.criteria.name == caller.name:
        return Finding("yes", "is not the caller itself")
    change = f"name {caller.name!r} in the need, to call itself"
    return Finding("no", "is the caller itself", change)


def name(query: Query, candidate: Candidate, verdicts: Verdicts) -> Finding:
    """Its name is the one asked for."""
    wanted, found = query.criteria.name, candidate.card.name
    if wanted is None:
        return Finding("yes", "no name is asked for")
    if wanted == found:
        return Finding("yes", f"is {found!r}")
    return Finding("no", f"is {found!r}, not {wanted!r}", f"ask for {found!r}, or for no name")


def version(query: Query, candidate: Candidate, verdicts: Verdicts) -> Finding:
    """Its version is in the range asked for; without a range it is the one that its name stands for."""
    wanted, found = query.criteria.version, candidate.card.version
    if candidate.yanked is not None and wanted != found:
        why = f"{found} was yanked: {candidate.yanked or 'no reason given'}"
        return Finding("no", why, f"ask for the version {found!r}")
    if not _is_version(found):
        return Finding("no", f"{found!r} is not a version", "give it a version such as 1.0.0")
    if wanted is not None:
        if VersionRange(wanted).accepts(found):
            return Finding("yes", f"{found} is in {wanted}")
        return Finding("no", f"{found} is not in {wanted}", f"ask for a range that has {found}")
    newest = candidate.newest
    if newest is None or newest == found or (is_draft(found) and is_draft(newest)):
        return Finding("yes", f"{found} is the version that its name stands for")
    why = "a draft, and there is a release" if is_draft(found) else "a prerelease" if _early(found) else "an older one"
    return Finding("no", f"{found} is {why}: its name stands for {newest}", f"ask for the version {found!r}")


def _is_version(text: str) -> bool:
    try:
        parse_version(text)
    except ValueError:
        return False
    return True


def _early(text: str) -> bool:
    return bool(parse_version(text).prerelease)


def tags(query: Query, candidate: Candidate, verdicts: Verdicts) -> Finding:
    """It offers all tags asked for, on itself or on one of its skills."""
    wanted, found = query.criteria.tags, tags_of(candidate)
    missing = [tag for tag in wanted if tag not in found]
    if missing:
        return Finding("no", f"lacks {_quoted(missing)}", f"offer {_quoted(missing)}, or ask for fewer tags")
    return Finding("yes", f"has {_quoted(wanted)}" if wanted else "no tags are asked for")


def tags_of(candidate: Candidate) -> set[str]:
    """All tags that a candidate offers."""
    offer = candidate.card.offers
    return {*offer.tags, *(tag for skill in offer.skills for tag in skill.tags)}


def modes(query: Query, candidate: Candidate, verdicts: Verdicts) -> Finding:
    """It reads at least one of the media types asked for, and writes at least one."""
    offer = candidate.card.offers
    for verb, wanted, found in (
        ("reads", query.criteria.input_modes, offer.input_modes),
        ("writes", query.criteria.output_modes, offer.output_modes),
    ):
        if wanted and not any(_same_mode(one, other) for one in wanted for other in found):
            why = f"{verb} {_listed(found)}, and {_listed(wanted)} is asked for"
            return Finding("no", why, f"ask for one of {_listed(found)}")
    return Finding("yes", f"reads {_listed(offer.input_modes)} and writes {_listed(offer.output_modes)}")


def _same_mode(one: str, other: str) -> bool:
    (kind, _, form), (kind_too, _, form_too) = (mode.partition(";")[0].strip().partition("/") for mode in (one, other))
    return kind == kind_too and (form == form_too or "*" in (form, form_too))


def accepts(query: Query, candidate: Candidate, verdicts: Verdicts) -> Finding:
    """It takes this caller: a match has two sides."""
    rule, caller = candidate.card.offers.accepts, query.caller.card
    if not rule.names and not rule.tags:
        return Finding("yes", "takes every caller")
    if caller is None:
        return Finding("unknown", "takes certain callers, and the caller has no card")
    if rule.admits(caller.name, caller.offers.tags):
        return Finding("yes", f"takes {caller.name!r}")
    limits = [f"callers named {_listed(rule.names)}"] if rule.names else []
    limits += [f"callers with the tags {_quoted(rule.tags)}"] if rule.tags else []
    change = f"let its offer accept {caller.name!r}"
    return Finding("no", f"takes only {' and '.join(limits)}", change)


def interface(query: Query, candidate: Candidate, verdicts: Verdicts) -> Finding:
    """It speaks a protocol, in a version, that the caller speaks too."""
    speaks, found = query.caller.speaks, candidate.card.interfaces
    if not found:
        return Finding("unknown", "its card names no interface")
    for entry in found:
        versions = speaks.get(entry.transport)
        if versions is None:
            continue
        common = sorted(versions.intersection(entry.protocol_versions))
        if common or not entry.protocol_versions:
            spoken = f"{entry.transport} {common[-1]}" if common else entry.transport
            return Finding("yes", f"speaks {spoken}")
    spoken = "; ".join(f"{entry.transport} {_listed(entry.protocol_versions)}".strip() for entry in found)
    asked = "; ".join(f"{transport} {_listed(sorted(versions))}" for transport, versions in speaks.items())
    return Finding("no", f"speaks {spoken}, and the caller {asked}", "serve a protocol in common", fit=False)


def auth(query: Query, candidate: Candidate, verdicts: Verdicts) -> Finding:
    """The caller has the credentials that it asks for."""
    asked = candidate.card.auth
    if asked is None or not asked.security:
        return Finding("yes", "asks for no credentials")
    missing: list[str] = []
    for alternative in asked.security:
        lacking = [_lacking(query, candidate, scheme, scopes) for scheme, scopes in alternative.items()]
        lacking = [entry for entry in lacking if entry]
        if not lacking:
            return Finding("yes", f"asks for {' with '.join(alternative) or 'nothing'}")
        missing.append(" and ".join(lacking))
    options = " or ".join(missing)
    change = f"get {options}"
    if any(_lacks_token(query, candidate, scheme) for alternative in asked.security for scheme in alternative):
        name = candidate.card.name
        change += (
            f"; its token goes into peer_auth={{{name!r}: …}} of the caller, "
            f"or `agent-env serve --peer-auth {name}=VARIABLE`"
        )
    return Finding("no", f"asks for {options}, which the caller has not", change)


def _lacking(query: Query, candidate: Candidate, scheme: str, scopes: Sequence[str]) -> str:
    kind = _kind(candidate, scheme)
    held = query.caller.scopes(candidate, scheme, kind)
    if held is False:
        return f"credentials for {scheme!r} ({kind or 'of an unknown kind'})"
    if held is None or held is True:
        return ""
    wanted = [scope for scope in scopes if scope not in held]
    return f"the scope {_quoted(wanted)} for {scheme!r}" if wanted else ""


def _lacks_token(query: Query, candidate: Candidate, scheme: str) -> bool:
    """Tells whether the scheme asks for a bearer token of a caller who has none."""
    return _kind(candidate, scheme) == "bearer" and query.caller.scopes(candidate, scheme, "bearer") is False


def _kind(candidate: Candidate, scheme: str) -> str:
    """The kind of credentials that a scheme of the card stands for, as `Credentials` names it."""
    auth = candidate.card.auth
    known = auth.schemes.get(scheme) if auth is not None else None
    if known is None:
        return scheme
    return (known.scheme or "").lower() if known.type == "http" else known.type


def reachable(query: Query, candidate: Candidate, verdicts: Verdicts) -> Finding:
    """It runs, or can be started."""
    match candidate.liveness:
        case None:
            return Finding("unknown", "whether it runs was not said")
        case "unreachable":
            why = "no instance is up, and it cannot be launched"
            return Finding("no", why, f"serve it, or push {candidate.ref} with how to launch it", fit=False)
        case "launchable":
            return Finding("yes", "can be launched")
        case state:
            return Finding("yes", f"an instance is {state}")


def capacity(query: Query, candidate: Candidate, verdicts: Verdicts) -> Finding:
    """It has room for one more session."""
    if candidate.free is None:
        return Finding("yes", "no bound on its sessions is known")
    if candidate.free > 0:
        return Finding("yes", f"{candidate.free} sessions are free")
    return Finding("no", "all its sessions are in use", "wait, or serve another instance of it")


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(map(repr, words))


def _listed(words: Iterable[Any]) -> str:
    return ", ".join(map(str, words))


RULES: tuple[Rule, ...] = (
    Rule("another", another, "are the caller itself", fit=False),
    Rule("name", name, "have another name"),
    Rule("version", version, "have another version"),
    Rule("skills", skills_rule, "lack a skill"),
    Rule("tags", tags, "lack a tag"),
    Rule("modes", modes, "read or write other media types"),
    Rule("accepts", accepts, "do not take this caller", fit=False),
    Rule("interface", interface, "speak no protocol in common", fit=False),
    Rule("auth", auth, "ask for credentials that the caller has not", fit=False),
    Rule("reachable", reachable, "cannot be reached", fit=False, told=False),
    Rule("capacity", capacity, "are full", fit=False, told=False),
    Rule("tool", tool_rule, "have no tool that takes the call"),
)
"""All rules, the costly one last: candidates that fail several are counted at the first of them."""

RULE: Mapping[str, Rule] = {rule.name: rule for rule in RULES}
