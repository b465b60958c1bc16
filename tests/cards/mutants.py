"""The mutants: for each clause that one card can break, edits of the code after which a test of the clause must fail.

A mutant names a function and replaces one piece of its source. It is applied by exchanging the function's code object,
so whoever holds the function already runs the mutant.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """An edit: in the function `target`, `old` (found exactly once) becomes `new`."""

    clause: str
    name: str
    target: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.clause} {self.name}"


MUTANTS = (
    Mutant(
        "EC-01", "takes any JSON value", "environment_card:_read", "if not isinstance(value, Mapping):", "if False:"
    ),
    Mutant(
        "EC-01", "takes no text", "shape:read_json", "if not isinstance(card, str | bytes | bytearray):", "if True:"
    ),
    Mutant("EC-02", "drops unknown members", "fact:Fact._null_is_absent", "return members", "members = {}"),
    Mutant(
        "EC-03",
        "tells the first problem only",
        "shape:shape_problems",
        "include_context=False)",
        "include_context=False)[:1]",
    ),
    Mutant("EC-03", "tells no places", "shape:shape_problems", 'pointer(*detail["loc"])', '""'),
    Mutant("EC-04", "takes any depth", "rules.bounds:excesses", "depth == MAX_DEPTH", "False"),
    Mutant("EC-04", "takes any length", "rules.bounds:excesses", "size > MAX_SIZE", "False"),
    Mutant("EC-04", "takes big integers", "rules.bounds:_fault", "abs(value) > MAX_INTEGER", "False"),
    Mutant("EC-04", "takes half surrogate pairs", "rules.bounds:_fault", "not value.isascii()", "False"),
    Mutant("EC-05", "writes anything", "environment_card:EnvironmentCard.to_dict", "if problems:", "if False:"),
    Mutant("EC-05", "checks only the form", "environment_card:validate_card", "reading=False", "reading=True"),
    Mutant("EC-06", "keeps null", "fact:Fact._null_is_absent", "member is not None or name not in known", "True"),
    Mutant("EC-06", "writes less", "environment_card:_completed", "for name in _ALWAYS_WRITTEN", "for name in ()"),
    Mutant(
        "EC-07",
        "writes none for absent",
        "environment_card:_completed",
        '{"tools": [], **',
        '{"operations": [], "tools": [], **',
    ),
    Mutant("EC-08", "passes children over", "rules:_broken", '"children_environments", "*"', '"children", "*"'),
    Mutant("EC-10", "folds capitals", "names:name_fault", "_LABEL.fullmatch(label)", "_LABEL.fullmatch(label.lower())"),
    Mutant("EC-10", "gives no remedy", "names:name_fault", "slug(label)", "label"),
    Mutant("EC-11", "takes build metadata", "versions:parse_version", 'if "+" in text:', "if False:"),
    Mutant("EC-11", "takes a newline", "versions:_is_version", "if not text.isascii() or any(", "if False and any("),
    Mutant("EC-12", "knows no drafts", "versions:is_draft", "version == DRAFT_VERSION", "False"),
    Mutant(
        "EC-13", "takes blanks", "rules.identity:descriptions_are_given", "not description.strip()", "not description"
    ),
    Mutant("EC-14", "takes turned text", "rules.identity:_text_fault", "_FORBIDDEN.search(text)", "None"),
    Mutant("EC-14", "takes any length", "rules.identity:_text_fault", "len(text) > LONGEST_TEXT", "False"),
    Mutant("EC-15", "takes equal names", "rules.tools:names_are_unique", "if name in seen:", "if False:"),
    Mutant("EC-16", "takes any reference", "rules.tools:_described", "target, Mapping) and", "target, Mapping) or"),
    Mutant("EC-17", "follows all references", "rules.tools:_resolves", "_target(target, root) is not None", "True"),
    Mutant("EC-17", "looks on the surface", "rules.tools:_subschemas", "yield from _subschemas(", "yield from list("),
    Mutant("EC-18", "takes an optional message", "rules.tools:agents_chat", '"message" not in', '"" in'),
    Mutant("EC-20", "climbs up", "rules.addresses:_is_path", '".." not in segments', "True"),
    Mutant("EC-20", "takes any scheme", "rules.addresses:_is_absolute", "parts.scheme in _SCHEMES", "parts.scheme"),
    Mutant(
        "EC-21",
        "resolves as RFC 3986",
        "interfaces:resolve_url",
        "f\"{base_url(card_address)}/{url.lstrip('/')}\"",
        '__import__("urllib.parse").parse.urljoin(card_address, url)',
    ),
    Mutant("EC-22", "takes 0.0.0.0", "rules.addresses:_is_unspecified", ".is_unspecified", ".is_multicast"),
    Mutant(
        "EC-23",
        "ignores older lists",
        "environment_card:EnvironmentCard.model_post_init",
        "self.interfaces.extend(more)",
        "pass",
    ),
    Mutant("EC-23", "writes no older list", "environment_card:_completed", 'objects(card, "interfaces", "*")', "()"),
    Mutant("EC-25", "takes equal seats", "rules.pairing:_unique", "if text in seen:", "if False:"),
    Mutant("EC-25", "overwrites what is required", "needs:Need.__init__", "{**stated, **given}", "given"),
    Mutant("EC-26", "takes any taxonomy", "names:taxonomy_fault", "_TAXONOMY_ID.fullmatch(entry)", "True"),
    Mutant("EC-26", "takes many tags", "rules.pairing:skills_are_unique", "len(found) > MOST_TAGS", "False"),
    Mutant("EC-27", "takes one sample", "rules.pairing:samples_are_few", "not FEWEST_SAMPLES <= len", "not 0 <= len"),
    Mutant("EC-27", "takes six", "rules.pairing:samples_are_few", "len(samples) <= MOST_SAMPLES", "len(samples) < 99"),
    Mutant("EC-28", "takes no modes", "rules.pairing:modes_are_media_types", "if modes == []:", "if False:"),
    Mutant("EC-29", "reads no ranges", "rules.pairing:ranges_are_readable", "VersionRange(text)", "str(text)"),
    Mutant("EC-30", "knows no namespaces", "rules.pairing:callers_are_names", '.removesuffix("/*")', ""),
    Mutant("EC-30", "admits everybody", "offers:Accepts.admits", "return named and", "return"),
    Mutant("EC-31", "takes a range downwards", "rules.conduct:rewards_are_bounded", "bounds[0] > bounds[1]", "False"),
    Mutant("EC-32", "takes no turns", "rules.conduct:turns_are_counted", "limit < 1", "limit < 0"),
    Mutant("EC-33", "takes no time", "rules.conduct:sessions_have_room", "seconds <= 0", "seconds < 0"),
    Mutant("EC-34", "takes undeclared schemes", "rules.conduct:schemes_are_complete", "not in declared", "in ()"),
    Mutant(
        "EC-35",
        "hashes other JSON",
        "digest:digest_of",
        "rfc8785.dumps(release_facts(card))",
        '__import__("json").dumps(release_facts(card)).encode()',
    ),
    Mutant("EC-35", "forgets the tools", "digest:release_facts", "if capabilities.get(name)", "if False"),
    Mutant(
        "EC-36",
        "hashes all",
        "digest:release_facts",
        "{name: card[name] for name in RELEASE_FACTS if name in card}",
        "dict(card)",
    ),
    Mutant("EC-37", "hashes the order", "digest:_ordered", "if name in _IDENTITY", "if False"),
    Mutant("EC-38", "believes the digest", "environment_card:validate_card", "parsed is not None and", "False and"),
    Mutant(
        "EC-39",
        "verifies nothing",
        "signing:_verified",
        "algorithms=[algorithm])",
        'algorithms=[algorithm], options={"verify_signature": False})',
    ),
    Mutant("EC-39", "lets the signature choose", "signing:_check_algorithm", "algorithm not in allowed or", "False or"),
    Mutant(
        "EC-39",
        "believes the digest",
        "signing:verify_card",
        "digest = card.digest()",
        "digest = card.stated_digest or card.digest()",
    ),
    Mutant(
        "EC-40",
        "takes any name",
        "reference:Reference.__post_init__",
        "if fault := name_fault(self.name):",
        "if fault := None:",
    ),
    Mutant("EC-41", "respells", "reference:parse_ref", "version if at_sign", 'version.lstrip("=") if at_sign'),
    Mutant(
        "EC-42",
        "reads one bound",
        "versions:VersionRange._alternatives",
        'alternative.split(",")',
        'alternative.split(",")[:1]',
    ),
    Mutant("EC-42", "widens the caret", "versions:_comparators", "if number), len(given) - 1)", "if True), 0)"),
    Mutant("EC-42", "gives no remedy", "versions:VersionRange.__post_init__", 'self.text.lower() == "latest"', "False"),
    Mutant(
        "EC-43", "takes prereleases unasked", "versions:VersionRange.accepts", "not candidate.prerelease or", "True or"
    ),
    Mutant("EC-43", "takes drafts", "versions:VersionRange.accepts", "if is_draft(version):", "if False:"),
    Mutant(
        "EC-44", "takes any digest", "reference:Reference.__post_init__", "not _DIGEST.fullmatch(self.digest)", "False"
    ),
    Mutant("EC-45", "hides the samples", "agent_card:_skill", "if examples:", "if False:"),
    Mutant(
        "EC-46", "speaks one version", "agent_card:agent_card", "for version in versions", "for version in versions[:1]"
    ),
    Mutant(
        "EC-46",
        "writes paths",
        "agent_card:_addresses",
        "jsonrpc = resolve_url(base_url, interface.url if interface else _A2A_PATH)",
        "jsonrpc = interface.url if interface else _A2A_PATH",
    ),
    Mutant("EC-47", "says another version", "agent_card:agent_card_v03", '"0.3.0"', '"1.0"'),
    Mutant("EC-48", "leads nowhere", "agent_card:_extension", "resolve_url(base_url, CARD_PATH)", "CARD_PATH"),
)


def silent_rules() -> tuple[Mutant, ...]:
    """One more mutant a rule: the rule finds nothing."""
    from agent_env_cards.rules import RULES

    made: list[Mutant] = []
    for rule in RULES:
        module = rule.check.__module__.removeprefix("agent_env_cards.")
        first = f'"""{rule.check.__doc__}"""'
        target = f"{module}:{rule.check.__name__}"  # type: ignore[attr-defined]
        made.append(Mutant(rule.clause, "finds nothing", target, first, "if True: return"))
    return tuple(made)


def every_mutant() -> tuple[Mutant, ...]:
    """The mutants above and those of the rules, by clause."""
    return tuple(sorted([*MUTANTS, *silent_rules()], key=lambda mutant: mutant.clause))


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Runs the code inside with the mutant in place of the function."""
    function = _function(mutant.target)
    original = function.__code__
    function.__code__ = _mutated(function, mutant).__code__
    try:
        yield
    finally:
        function.__code__ = original


def _function(target: str) -> FunctionType:
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(f"agent_env_cards.{module}")
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
    if isinstance(found, cached_property):
        found = found.func
    found = getattr(found, "__func__", found)
    if not isinstance(found, FunctionType):
        raise TypeError(f"{target} is {found!r}, not a function")
    return found


def _mutated(function: FunctionType, mutant: Mutant) -> FunctionType:
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(mutant.old) != 1:
        raise ValueError(f"the mutant {str(mutant)!r} is stale: {mutant.old!r} is not once in\n{source}")
    edited = source[source.index("def ") :].replace(mutant.old, mutant.new)
    flags, namespace = __future__.annotations.compiler_flag, dict[str, Any]()
    free = function.__code__.co_freevars
    if free:
        # Inside another function, so that what the original takes from around it (`__class__`) stays free.
        edited = f"def outer({', '.join(free)}):\n{textwrap.indent(edited, '    ')}\n    return {function.__name__}"
    compiled = compile(edited, f"<mutant {mutant}>", "exec", flags=flags, dont_inherit=True)
    exec(compiled, function.__globals__, namespace)  # noqa: S102
    made: FunctionType = namespace["outer"](*free) if free else namespace[function.__name__]
    return made
