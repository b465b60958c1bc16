"""Each rule says yes, no or unknown of a candidate, and why."""

from __future__ import annotations

from typing import Any

import pytest

from agent_env.errors import ConfigurationError
from agent_env.matchmaking import SPEAKS, Candidate, Degree, Explanation, Finding, Matchmaker
from agent_env_cards import Accepts, Auth, Criteria, EnvironmentCard, Need, Offer, SecurityScheme, Skill, ToolUse

TEXT = {"type": "string"}
SAYS = {"type": "object", "properties": {"message": TEXT}, "required": ["message"]}


def explained(need: Need, candidate: Any, **asking: Any) -> Explanation:
    return Matchmaker([]).explain(need, candidate, **asking)[0]


def found(rule: str, need: Need, candidate: Any, **asking: Any) -> Finding:
    explanation = explained(need, candidate, **asking)
    return next(finding for finding in explanation.findings if finding.rule == rule)


def test_nobody_is_their_own_peer_unless_they_ask_for_themselves_by_name(card: Any) -> None:
    caller = card("agent-a")
    assert found("another", Need("x"), card("agent-a", "2.0.0"), caller=caller).result == "no"
    assert found("another", Need("x", name="agent-a"), card("agent-a"), caller=caller).result == "yes"
    assert found("another", Need("x"), card("agent-b"), caller=caller).result == "yes"
    assert found("another", Need("x"), card("agent-a")).result == "yes"


def test_a_name_is_the_one_asked_for(card: Any) -> None:
    assert found("name", Need("x", name="agent-b"), card("agent-b")).result == "yes"
    finding = found("name", Need("x", name="agent-b"), card("agent-c"))
    assert (finding.result, finding.why) == ("no", "is 'agent-c', not 'agent-b'")


def newest_of(card: Any, version: str, *others: str, need: Need | None = None, yanked: str | None = None) -> Finding:
    candidates = [Candidate(card("agent-b", version), yanked=yanked), *(card("agent-b", other) for other in others)]
    explanation = Matchmaker(candidates).explain(need or Need("x"), f"agent-b@{version}")[0]
    return next(finding for finding in explanation.findings if finding.rule == "version")


@pytest.mark.parametrize(
    ("version", "others", "result"),
    [
        ("1.0.0", [], "yes"),
        ("1.0.0", ["0.9.0"], "yes"),
        ("1.0.0", ["2.0.0-rc.1", "0.0.0-dev"], "yes"),
        ("1.0.0", ["1.0.1"], "no"),
        ("2.0.0-rc.1", ["1.0.0"], "no"),
        ("0.0.0-dev", ["1.0.0"], "no"),
        ("0.0.0-dev", [], "yes"),
        ("2.0.0-rc.1", [], "yes"),
        ("soon", ["1.0.0"], "no"),
    ],
)
def test_without_a_range_a_name_stands_for_its_highest_release(
    card: Any, version: str, others: list[str], result: str
) -> None:
    assert newest_of(card, version, *others).result == result


@pytest.mark.parametrize(
    ("wanted", "result"), [("^1", "yes"), (">=1.2,<2", "no"), ("1.0.0", "yes"), ("^2||^1", "yes"), ("0.0.0-dev", "no")]
)
def test_a_range_takes_older_releases_too(card: Any, wanted: str, result: str) -> None:
    assert newest_of(card, "1.0.0", "1.1.0", need=Need("x", version=wanted)).result == result


def test_a_yanked_release_is_found_by_its_very_version_only(card: Any) -> None:
    finding = newest_of(card, "1.0.0", need=Need("x", version="^1"), yanked="leaks")
    assert (finding.result, finding.why) == ("no", "1.0.0 was yanked: leaks")
    assert newest_of(card, "1.0.0", need=Need("x", version="1.0.0"), yanked="leaks").result == "yes"
    assert newest_of(card, "1.0.0", "0.9.0", yanked="leaks").result == "no"
    older = Matchmaker([Candidate(card("agent-b", "2.0.0"), yanked="leaks"), card("agent-b", "1.0.0")])
    assert older.pair(Need("x")).require().ref == "agent-b@1.0.0"


def test_a_need_whose_version_is_no_range_is_refused_by_name(card: Any) -> None:
    for need in (Need("x", version="latest"), Need("x", prefers=Criteria(version="v1"))):
        with pytest.raises(ConfigurationError, match="the need 'x' asks for no version that there is"):
            Matchmaker([card()]).pair(need)


@pytest.mark.parametrize(
    ("wanted", "offered", "tags", "result", "why"),
    [
        ("math.algebra", ["math.algebra"], [], "yes", "offers math.algebra"),
        ("math.algebra", ["math"], [], "yes", "offers math, which math.algebra is a part of"),
        ("math", ["math.algebra"], [], "yes", "offers math.algebra, a part of math"),
        ("math.algebra", ["code"], ["algebra"], "unknown", "has the tag 'algebra', and does not offer math.algebra"),
        ("math", ["mathematics"], [], "no", "does not offer math; it offers mathematics"),
        ("math", [], [], "no", "does not offer math; it offers nothing"),
        ("oasf@1.0/reasoning/math", ["sums"], [], "yes", "offers oasf@1.0/reasoning/math"),
        ("oasf@1.0/reasoning/math/algebra", ["sums"], [], "yes", None),
        ("oasf@1.0/reasoning", ["sums"], [], "yes", None),
        ("oasf@2.0/reasoning/math", ["sums"], [], "no", None),
        ("oasf@1.0", ["sums"], [], "no", None),
    ],
)
def test_skills_are_covered_exactly_as_a_part_by_a_part_or_hinted_at(
    card: Any, wanted: str, offered: list[str], tags: list[str], result: str, why: str | None
) -> None:
    taxonomy = ["oasf@1.0/reasoning/math"] if offered == ["sums"] else []
    skills = [Skill(id=skill, taxonomy=taxonomy) for skill in offered]
    finding = found("skills", Need("x", skills=[wanted]), card(skills=skills, tags=tags))
    assert finding.result == result
    if why is not None:
        assert finding.why == why


def test_an_unknown_skill_on_a_card_harms_nobody(card: Any) -> None:
    assert found("skills", Need("x", skills=["math"]), card(skills=["zorbing.sideways", "math"])).result == "yes"


def test_tags_may_stand_on_the_offer_or_on_a_skill(card: Any) -> None:
    offering = card(tags=["fast"], skills=[Skill(id="math", tags=["exact"])])
    assert found("tags", Need("x", tags=["fast", "exact"]), offering).result == "yes"
    finding = found("tags", Need("x", tags=["fast", "cheap"]), offering)
    assert (finding.result, finding.why) == ("no", "lacks 'cheap'")
    assert finding.change == "offer 'cheap', or ask for fewer tags"


@pytest.mark.parametrize(
    ("wanted", "offered", "result"),
    [
        ([], ["text/plain"], "yes"),
        (["text/plain"], ["text/plain; charset=utf-8"], "yes"),
        (["image/*"], ["text/plain", "image/png"], "yes"),
        (["image/png"], ["image/*"], "yes"),
        (["image/png", "text/plain"], ["text/plain"], "yes"),
        (["image/png"], ["text/plain"], "no"),
    ],
)
def test_one_media_type_each_way_is_enough(card: Any, wanted: list[str], offered: list[str], result: str) -> None:
    assert found("modes", Need("x", input_modes=wanted), card(input_modes=offered)).result == result
    assert found("modes", Need("x", output_modes=wanted), card(output_modes=offered)).result == result


def test_a_match_has_two_sides(card: Any) -> None:
    choosy = card(accepts=Accepts(names=["team/*", "agent-a"], tags=["vip"]))
    vip = {"offers": Offer(tags=["vip"])}

    def asked(**caller: Any) -> str:
        return found("accepts", Need("x"), choosy, caller=EnvironmentCard(version="1.0.0", **caller)).result

    assert asked(name="agent-a", **vip) == "yes"
    assert asked(name="team/agent-z", **vip) == "yes"
    assert asked(name="agent-z", **vip) == "no"
    assert asked(name="agent-a") == "no"
    assert found("accepts", Need("x"), choosy).result == "unknown"
    assert explained(Need("x"), choosy).degree is Degree.EXACT
    assert explained(Need("x", strict=True), choosy).degree is Degree.FAIL
    assert found("accepts", Need("x"), card()).result == "yes"


@pytest.mark.parametrize(
    ("ways", "result"),
    [
        ({"websocket": ["1"]}, "yes"),
        ({"a2a": []}, "yes"),
        ({"smoke": ["1"], "mcp": ["1999-01-01", "2026-07-28"]}, "yes"),
        ({"mcp": ["2099-01-01"], "a2a": ["7.0"]}, "no"),
        ({"smoke": ["1"]}, "no"),
        ({}, "unknown"),
    ],
)
def test_a_protocol_and_a_version_of_it_are_in_common(card: Any, ways: dict[str, list[str]], result: str) -> None:
    assert found("interface", Need("x"), card(ways=ways)).result == result


def test_what_the_caller_speaks_can_be_said(card: Any) -> None:
    only_mcp = {"mcp": frozenset({"2025-06-18"})}
    finding = found("interface", Need("x"), card(ways={"websocket": ["1"]}), speaks=only_mcp)
    assert (finding.result, finding.why) == ("no", "speaks websocket 1, and the caller mcp 2025-06-18")


def test_the_protocol_versions_are_those_that_the_sdks_speak() -> None:
    from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

    assert SPEAKS["mcp"] == frozenset(KNOWN_PROTOCOL_VERSIONS)


KEY = SecurityScheme(type="apiKey", name="k", location="header")
BASIC = SecurityScheme(type="http", scheme="Basic")


@pytest.mark.parametrize(
    ("asked", "held", "result"),
    [
        (None, (), "yes"),
        (Auth(), (), "yes"),
        (Auth(security=[{}]), (), "yes"),
        (Auth.bearer(), (), "no"),
        (Auth.bearer(["chat"]), ["bearer"], "yes"),
        (Auth.bearer(["chat"]), {"bearer": ["chat", "orchestrate"]}, "yes"),
        (Auth.bearer(["chat"]), {"bearer": ["orchestrate"]}, "no"),
        (Auth.bearer(["chat"]), {"bearer": None}, "yes"),
        (Auth(schemes={"key": KEY, "user": BASIC}, security=[{"key": [], "user": []}]), ["apiKey"], "no"),
        (Auth(schemes={"key": KEY, "user": BASIC}, security=[{"key": [], "user": []}]), ["apiKey", "basic"], "yes"),
        (Auth(schemes={"key": KEY, "user": BASIC}, security=[{"key": []}, {"user": []}]), ["user"], "yes"),
        (Auth(security=[{"mystery": []}]), ["bearer"], "no"),
        (Auth(security=[{"mystery": []}]), ["mystery"], "yes"),
    ],
)
def test_the_caller_has_the_credentials_of_one_alternative(
    card: Any, asked: Auth | None, held: Any, result: str
) -> None:
    assert found("auth", Need("x"), card(auth=asked), auth=held).result == result


def test_what_is_missing_of_the_credentials_is_said(card: Any) -> None:
    assert found("auth", Need("x"), card(name="worker", auth=Auth.bearer())).change == (
        "get credentials for 'bearer' (bearer); its token goes into peer_auth={'worker': …} of the caller, "
        "or `agent-env serve --peer-auth worker=VARIABLE`"
    )
    key = Auth(schemes={"key": KEY}, security=[{"key": []}])
    assert found("auth", Need("x"), card(auth=key)).change == "get credentials for 'key' (apiKey)"
    finding = found("auth", Need("x"), card(auth=Auth.bearer(["chat"])), auth={"bearer": []})
    assert finding.change == "get the scope 'chat' for 'bearer'"


@pytest.mark.parametrize(
    ("liveness", "free", "failed"),
    [
        ("up", 1, []),
        ("suspect", None, []),
        ("launchable", None, []),
        (None, None, []),
        ("unreachable", None, ["reachable"]),
        ("up", 0, ["capacity"]),
    ],
)
def test_a_candidate_must_be_within_reach_and_have_room(card: Any, liveness: Any, free: Any, failed: list[str]) -> None:
    for need in (Need("x"), Need("x", strict=True)):
        explanation = explained(need, Candidate(card(), liveness=liveness, free=free))
        assert [finding.rule for finding in explanation.failed] == failed


def use(arguments: Any = None, result: Any = None, name: str = "chat") -> ToolUse:
    return ToolUse(name=name, arguments=arguments, result=result)


def props(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or list(properties)}


TALKS = props(["message"], message=TEXT, session_id={"type": ["string", "null"]})


@pytest.mark.parametrize(
    ("tool", "facts", "degree", "why"),
    [
        (use(TALKS), {"takes": TALKS}, Degree.EXACT, "'chat' takes what is sent"),
        (use(SAYS), {"takes": TALKS}, Degree.FITS, "'chat' takes what is sent"),
        (
            use(TALKS),
            {"takes": props(message=TEXT, id=TEXT)},
            Degree.FAIL,
            "the property 'id' is required and may be absent",
        ),
        (
            use(props(n={"type": "number"})),
            {"takes": props(n={"type": "integer"})},
            Degree.FAIL,
            "does not fit 'chat' at /n:",
        ),
        (use(), {}, Degree.EXACT, "has the tool 'chat'"),
        (use(name="grade"), {}, Degree.FAIL, "has no tool 'grade'; its tools are 'chat'"),
        (
            use(SAYS),
            {"takes": props(message={"type": "string", "format": "uri"})},
            Degree.UNKNOWN,
            "is not known at /message",
        ),
        (use(SAYS), {"takes": {"type": "nonsense"}}, Degree.UNKNOWN, "not a usable schema"),
        (use(result=props(text=TEXT)), {"gives": None}, Degree.UNKNOWN, "its card promises no result"),
        (use(result=props(text=TEXT)), {"gives": props(text=TEXT)}, Degree.EXACT, "answers as expected"),
        (use(result=props(text=TEXT)), {"gives": props(text=TEXT, more=TEXT)}, Degree.FITS, "answers as expected"),
        (
            use(result=props(text=TEXT)),
            {"gives": props(number=TEXT)},
            Degree.FAIL,
            "its answer is not what is expected",
        ),
    ],
)
def test_a_tool_takes_what_is_sent_and_gives_what_is_expected(
    card: Any, tool: ToolUse, facts: dict[str, Any], degree: Degree, why: str
) -> None:
    explanation = explained(Need("x", tool=tool), card(**facts))
    assert explanation.degree is degree
    assert why in next(finding.why for finding in explanation.findings if finding.rule == "tool")


def test_schemas_are_the_same_when_they_mean_the_same(card: Any) -> None:
    described = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Arguments",
        "required": ["message"],
        "properties": {"message": {"description": "What to say.", "type": "string"}},
        "type": "object",
    }
    assert explained(Need("x", tool=use(SAYS)), card(takes=described)).degree is Degree.EXACT
    outside = {"$ref": "schemas.json#/said"}
    assert explained(Need("x", tool=use(outside)), card(takes=dict(outside))).degree is Degree.EXACT
    assert explained(Need("x", tool=use(outside)), card(takes={"title": "x", **outside})).degree is Degree.UNKNOWN


def test_a_schema_that_breaks_leads_to_the_place(card: Any) -> None:
    need = Need("x", tool=use(props(where=props(lat=TEXT))))
    finding = found("tool", need, card(takes=props(where=props(lat={"type": "number"}))))
    assert (finding.result, finding.pointer) == ("no", "/where/lat")
    assert finding.change.startswith("send what 'chat' takes, or widen what it takes")


def test_a_partial_fit_is_taken_only_by_a_need_that_allows_it(card: Any) -> None:
    some = card(takes=props(message={"type": "string", "maxLength": 5}))
    none = card(takes=props(message={"type": "integer"}))
    tool = use(SAYS)
    refused = found("tool", Need("x", tool=tool), some)
    assert refused.result == "no" and "allow_partial, since some calls fit" in refused.change
    assert explained(Need("x", tool=tool, allow_partial=True), some).degree is Degree.PARTIAL
    assert explained(Need("x", tool=tool, allow_partial=True), none).degree is Degree.FAIL
    assert "allow_partial" not in found("tool", Need("x", tool=tool), none).change
    wordy = card(gives=props(text={"anyOf": [TEXT, {"type": "null"}]}))
    assert explained(Need("x", tool=use(result=props(text=TEXT)), allow_partial=True), wordy).degree is Degree.PARTIAL
    numeric = card(gives=props(text={"type": "number"}))
    assert explained(Need("x", tool=use(result=props(text=TEXT)), allow_partial=True), numeric).degree is Degree.FAIL


def test_a_strict_need_refuses_what_the_card_does_not_tell(card: Any) -> None:
    need = Need("x", tool=use(result=props(text=TEXT)), strict=True)
    explanation = explained(need, card(gives=None))
    assert explanation.degree is Degree.FAIL
    assert explanation.failed[0].why == "its card promises no result, and the need is strict" or (
        "the need is strict" in explanation.failed[0].why
    )
    assert explanation.failed[0].change == "drop `strict` from the need"
    assert explained(Need("x", skills=["math"], strict=True), card(tags=["math"])).degree is Degree.FAIL
    assert explained(Need("x", strict=True), card(ways={})).failed[0].rule == "interface"


def test_the_degree_is_the_lowest_that_a_rule_of_fitness_leaves(card: Any) -> None:
    need = Need("x", skills=["math.algebra"], tool=use(SAYS))
    assert explained(need, card(skills=["math.algebra"], takes=SAYS)).degree is Degree.EXACT
    assert explained(need, card(skills=["math"], takes=SAYS)).degree is Degree.FITS
    assert explained(need, card(skills=["math.algebra"])).degree is Degree.FITS
    assert explained(need, card(skills=["math.algebra.linear"], takes=SAYS)).degree is Degree.FITS
    assert explained(need, card(tags=["algebra"], takes=SAYS)).degree is Degree.UNKNOWN
    assert explained(need, card(skills=["law"], takes=SAYS)).degree is Degree.FAIL
    assert [str(degree) for degree in Degree] == ["fail", "unknown", "partial", "fits", "exact"]
