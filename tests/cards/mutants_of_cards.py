"""The mutants of the clauses about cards: EC-01 to EC-48."""

from __future__ import annotations

from mutants import Mutant

MUTANTS = (
    Mutant(
        "EC-01",
        "takes any JSON value",
        "agent_env_cards.environment_card:_read",
        "if not isinstance(value, Mapping):",
        "if False:",
    ),
    Mutant(
        "EC-01",
        "takes no text",
        "agent_env_cards.shape:read_json",
        "if not isinstance(card, str | bytes | bytearray):",
        "if True:",
    ),
    Mutant(
        "EC-02", "drops unknown members", "agent_env_cards.fact:Fact._null_is_absent", "return members", "members = {}"
    ),
    Mutant(
        "EC-03",
        "tells the first problem only",
        "agent_env_cards.shape:shape_problems",
        "include_context=False)",
        "include_context=False)[:1]",
    ),
    Mutant("EC-03", "tells no places", "agent_env_cards.shape:shape_problems", 'pointer(*detail["loc"])', '""'),
    Mutant("EC-04", "takes any depth", "agent_env_cards.rules.bounds:excesses", "depth == MAX_DEPTH", "False"),
    Mutant("EC-04", "takes any length", "agent_env_cards.rules.bounds:excesses", "size > MAX_SIZE", "False"),
    Mutant("EC-04", "takes big integers", "agent_env_cards.rules.bounds:_fault", "abs(value) > MAX_INTEGER", "False"),
    Mutant(
        "EC-04", "takes half surrogate pairs", "agent_env_cards.rules.bounds:_fault", "not value.isascii()", "False"
    ),
    Mutant(
        "EC-05",
        "writes anything",
        "agent_env_cards.environment_card:EnvironmentCard.to_dict",
        "if problems:",
        "if False:",
    ),
    Mutant(
        "EC-05",
        "checks only the form",
        "agent_env_cards.environment_card:validate_card",
        "reading=False",
        "reading=True",
    ),
    Mutant(
        "EC-06",
        "keeps null",
        "agent_env_cards.fact:Fact._null_is_absent",
        "member is not None or name not in known",
        "True",
    ),
    Mutant(
        "EC-06",
        "writes less",
        "agent_env_cards.environment_card:_completed",
        "for name in _ALWAYS_WRITTEN",
        "for name in ()",
    ),
    Mutant(
        "EC-07",
        "writes none for absent",
        "agent_env_cards.environment_card:_completed",
        '{"tools": [], **',
        '{"operations": [], "tools": [], **',
    ),
    Mutant(
        "EC-08",
        "passes children over",
        "agent_env_cards.rules:_broken",
        '"children_environments", "*"',
        '"children", "*"',
    ),
    Mutant(
        "EC-10",
        "folds capitals",
        "agent_env_cards.names:name_fault",
        "_LABEL.fullmatch(label)",
        "_LABEL.fullmatch(label.lower())",
    ),
    Mutant("EC-10", "gives no remedy", "agent_env_cards.names:name_fault", "slug(label)", "label"),
    Mutant("EC-11", "takes build metadata", "agent_env_cards.versions:parse_version", 'if "+" in text:', "if False:"),
    Mutant(
        "EC-11",
        "takes a newline",
        "agent_env_cards.versions:_is_version",
        "if not text.isascii() or any(",
        "if False and any(",
    ),
    Mutant("EC-12", "knows no drafts", "agent_env_cards.versions:is_draft", "version == DRAFT_VERSION", "False"),
    Mutant(
        "EC-13",
        "takes blanks",
        "agent_env_cards.rules.identity:descriptions_are_given",
        "not description.strip()",
        "not description",
    ),
    Mutant(
        "EC-14", "takes turned text", "agent_env_cards.rules.identity:_text_fault", "_FORBIDDEN.search(text)", "None"
    ),
    Mutant(
        "EC-14", "takes any length", "agent_env_cards.rules.identity:_text_fault", "len(text) > LONGEST_TEXT", "False"
    ),
    Mutant(
        "EC-15", "takes equal names", "agent_env_cards.rules.tools:names_are_unique", "if name in seen:", "if False:"
    ),
    Mutant(
        "EC-16",
        "takes any reference",
        "agent_env_cards.rules.tools:_described",
        "target, Mapping) and",
        "target, Mapping) or",
    ),
    Mutant(
        "EC-17",
        "follows all references",
        "agent_env_cards.rules.tools:_resolves",
        "_target(target, root) is not None",
        "True",
    ),
    Mutant(
        "EC-17",
        "looks on the surface",
        "agent_env_cards.rules.tools:_subschemas",
        "yield from _subschemas(",
        "yield from list(",
    ),
    Mutant(
        "EC-18", "takes an optional message", "agent_env_cards.rules.tools:agents_chat", '"message" not in', '"" in'
    ),
    Mutant("EC-20", "climbs up", "agent_env_cards.rules.addresses:_is_path", '".." not in segments', "True"),
    Mutant(
        "EC-20",
        "takes any scheme",
        "agent_env_cards.rules.addresses:_is_absolute",
        "parts.scheme in _SCHEMES",
        "parts.scheme",
    ),
    Mutant(
        "EC-21",
        "resolves as RFC 3986",
        "agent_env_cards.interfaces:resolve_url",
        "f\"{base_url(card_address)}/{url.lstrip('/')}\"",
        '__import__("urllib.parse").parse.urljoin(card_address, url)',
    ),
    Mutant(
        "EC-22", "takes 0.0.0.0", "agent_env_cards.rules.addresses:_is_unspecified", ".is_unspecified", ".is_multicast"
    ),
    Mutant(
        "EC-23",
        "ignores older lists",
        "agent_env_cards.environment_card:EnvironmentCard.model_post_init",
        "self.interfaces.extend(more)",
        "pass",
    ),
    Mutant(
        "EC-23",
        "writes no older list",
        "agent_env_cards.environment_card:_completed",
        'objects(card, "interfaces", "*")',
        "()",
    ),
    Mutant("EC-25", "takes equal seats", "agent_env_cards.rules.pairing:_unique", "if text in seen:", "if False:"),
    Mutant(
        "EC-25", "overwrites what is required", "agent_env_cards.needs:Need.__init__", "{**stated, **given}", "given"
    ),
    Mutant(
        "EC-26", "takes any taxonomy", "agent_env_cards.names:taxonomy_fault", "_TAXONOMY_ID.fullmatch(entry)", "True"
    ),
    Mutant(
        "EC-26", "takes many tags", "agent_env_cards.rules.pairing:skills_are_unique", "len(found) > MOST_TAGS", "False"
    ),
    Mutant(
        "EC-27",
        "takes one sample",
        "agent_env_cards.rules.pairing:samples_are_few",
        "not FEWEST_SAMPLES <= len",
        "not 0 <= len",
    ),
    Mutant(
        "EC-27",
        "takes six",
        "agent_env_cards.rules.pairing:samples_are_few",
        "len(samples) <= MOST_SAMPLES",
        "len(samples) < 99",
    ),
    Mutant(
        "EC-28", "takes no modes", "agent_env_cards.rules.pairing:modes_are_media_types", "if modes == []:", "if False:"
    ),
    Mutant(
        "EC-29",
        "reads no ranges",
        "agent_env_cards.rules.pairing:ranges_are_readable",
        "VersionRange(text)",
        "str(text)",
    ),
    Mutant(
        "EC-30", "knows no namespaces", "agent_env_cards.rules.pairing:callers_are_names", '.removesuffix("/*")', ""
    ),
    Mutant("EC-30", "admits everybody", "agent_env_cards.offers:Accepts.admits", "return named and", "return"),
    Mutant(
        "EC-31",
        "takes a range downwards",
        "agent_env_cards.rules.conduct:rewards_are_bounded",
        "bounds[0] > bounds[1]",
        "False",
    ),
    Mutant("EC-32", "takes no turns", "agent_env_cards.rules.conduct:turns_are_counted", "limit < 1", "limit < 0"),
    Mutant("EC-33", "takes no time", "agent_env_cards.rules.conduct:sessions_have_room", "seconds <= 0", "seconds < 0"),
    Mutant(
        "EC-34",
        "takes undeclared schemes",
        "agent_env_cards.rules.conduct:schemes_are_complete",
        "not in declared",
        "in ()",
    ),
    Mutant(
        "EC-35",
        "hashes other JSON",
        "agent_env_cards.digest:digest_of",
        "rfc8785.dumps(release_facts(card))",
        '__import__("json").dumps(release_facts(card)).encode()',
    ),
    Mutant(
        "EC-35", "forgets the tools", "agent_env_cards.digest:release_facts", "if capabilities.get(name)", "if False"
    ),
    Mutant(
        "EC-36",
        "hashes all",
        "agent_env_cards.digest:release_facts",
        "{name: card[name] for name in RELEASE_FACTS if name in card}",
        "dict(card)",
    ),
    Mutant("EC-37", "hashes the order", "agent_env_cards.digest:_ordered", "if name in _IDENTITY", "if False"),
    Mutant(
        "EC-38",
        "believes the digest",
        "agent_env_cards.environment_card:validate_card",
        "parsed is not None and",
        "False and",
    ),
    Mutant(
        "EC-39",
        "verifies nothing",
        "agent_env_cards.signing:_verified",
        "algorithms=[algorithm])",
        'algorithms=[algorithm], options={"verify_signature": False})',
    ),
    Mutant(
        "EC-39",
        "lets the signature choose",
        "agent_env_cards.signing:_check_algorithm",
        "algorithm not in allowed or",
        "False or",
    ),
    Mutant(
        "EC-39",
        "believes the digest",
        "agent_env_cards.signing:verify_card",
        "digest = card.digest()",
        "digest = card.stated_digest or card.digest()",
    ),
    Mutant(
        "EC-40",
        "takes any name",
        "agent_env_cards.reference:Reference.__post_init__",
        "if fault := name_fault(self.name):",
        "if fault := None:",
    ),
    Mutant(
        "EC-41",
        "respells",
        "agent_env_cards.reference:parse_ref",
        "version if at_sign",
        'version.lstrip("=") if at_sign',
    ),
    Mutant(
        "EC-42",
        "reads one bound",
        "agent_env_cards.versions:VersionRange._alternatives",
        'alternative.split(",")',
        'alternative.split(",")[:1]',
    ),
    Mutant(
        "EC-42",
        "widens the caret",
        "agent_env_cards.versions:_comparators",
        "if number), len(given) - 1)",
        "if True), 0)",
    ),
    Mutant(
        "EC-42",
        "gives no remedy",
        "agent_env_cards.versions:VersionRange.__post_init__",
        'self.text.lower() == "latest"',
        "False",
    ),
    Mutant(
        "EC-43",
        "takes prereleases unasked",
        "agent_env_cards.versions:VersionRange.accepts",
        "not candidate.prerelease or",
        "True or",
    ),
    Mutant(
        "EC-43", "takes drafts", "agent_env_cards.versions:VersionRange.accepts", "if is_draft(version):", "if False:"
    ),
    Mutant(
        "EC-44",
        "takes any digest",
        "agent_env_cards.reference:Reference.__post_init__",
        "not _DIGEST.fullmatch(self.digest)",
        "False",
    ),
    Mutant("EC-45", "hides the samples", "agent_env_cards.agent_card:_skill", "if examples:", "if False:"),
    Mutant(
        "EC-46",
        "speaks one version",
        "agent_env_cards.agent_card:agent_card",
        "for version in versions",
        "for version in versions[:1]",
    ),
    Mutant(
        "EC-46",
        "writes paths",
        "agent_env_cards.agent_card:_addresses",
        "jsonrpc = resolve_url(base_url, interface.url if interface else _A2A_PATH)",
        "jsonrpc = interface.url if interface else _A2A_PATH",
    ),
    Mutant("EC-47", "says another version", "agent_env_cards.agent_card:agent_card_v03", '"0.3.0"', '"1.0"'),
    Mutant(
        "EC-48",
        "leads nowhere",
        "agent_env_cards.agent_card:_extension",
        "resolve_url(base_url, CARD_PATH)",
        "CARD_PATH",
    ),
)


def silent_rules() -> tuple[Mutant, ...]:
    """One more mutant a rule: the rule finds nothing."""
    from agent_env_cards.rules import RULES

    made: list[Mutant] = []
    for rule in RULES:
        first = f'"""{rule.check.__doc__}"""'
        target = f"{rule.check.__module__}:{rule.check.__name__}"  # type: ignore[attr-defined]
        made.append(Mutant(rule.clause, "finds nothing", target, first, "if True: return"))
    return tuple(made)


def every_mutant() -> tuple[Mutant, ...]:
    """The mutants above and those of the rules."""
    return (*MUTANTS, *silent_rules())
