"""A pairing is ranked, counted and explained."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_env.errors import ConfigurationError, MatchError
from agent_env.hub import Hub
from agent_env.matchmaking import HEADER, Candidate, Matchmaker
from agent_env_cards import Criteria, EnvironmentCard, Need, ToolUse

TEXT = {"type": "string"}


def refs(matchmaker: Matchmaker, need: Need, **options: Any) -> list[str]:
    return [explanation.candidate.card.name for explanation in matchmaker.pair(need, **options).ranked]


def test_a_later_criterion_orders_only_what_all_earlier_ones_leave_equal(card: Any) -> None:
    words = {"examples": ["Solve this equation", "What is x?"]}
    candidates = [
        Candidate(card("a-free", skills=["math"]), liveness="up", free=9),
        Candidate(card("b-full", skills=["math"]), liveness="up", free=1),
        Candidate(card("c-launch", skills=["math"]), liveness="launchable"),
        Candidate(card("d-suspect", skills=["math"]), liveness="suspect"),
        Candidate(card("e-words", skills=["math"], **words), liveness="suspect", free=1),
        Candidate(card("f-wish", skills=["math"], tags=["fast"]), liveness="suspect", free=1),
        Candidate(card("g-part", skills=["math.algebra"], tags=["fast"], **words), liveness="up", free=99),
        Candidate(card("h-whole", skills=["science"], tags=["fast", "math"]), liveness="up"),
        Candidate(card("i-free", skills=["math"]), liveness="up", free=9),
        Candidate(card("j-boundless", skills=["math"]), liveness="up"),
    ]
    need = Need("solver", skills=["math"], prefers=Criteria(tags=["fast"], examples=["solve the equation for x"]))
    order = [
        "f-wish",
        "e-words",
        "j-boundless",
        "a-free",
        "i-free",
        "b-full",
        "d-suspect",
        "c-launch",
        "g-part",
        "h-whole",
    ]
    assert refs(Matchmaker(candidates), need) == order
    assert refs(Matchmaker(reversed(candidates)), need) == order
    assert refs(Matchmaker(candidates), need, limit=3) == order[:3]


def test_prose_does_not_lift_a_schema_that_does_not_fit(card: Any) -> None:
    eloquent = card(
        "eloquent",
        skills=["math"],
        examples=["Solve the equation", "Solve it again"],
        takes={"type": "object", "properties": {"message": TEXT, "id": TEXT}, "required": ["message", "id"]},
    )
    uncertain = card(
        "uncertain",
        skills=["math"],
        examples=["Solve the equation", "Solve it again"],
        takes={"type": "object", "properties": {"message": {"type": "string", "format": "uri"}}},
    )
    plain = card("plain", skills=["math"])
    says = {"type": "object", "properties": {"message": TEXT}, "required": ["message"]}
    need = Need("solver", skills=["math"], tool=ToolUse(arguments=says), examples=["Solve the equation"])
    report = Matchmaker([eloquent, uncertain, plain]).pair(need)
    assert [(one.ref, str(one.degree)) for one in report.ranked] == [
        ("plain@1.0.0", "fits"),
        ("uncertain@1.0.0", "unknown"),
    ]
    assert report.ranked[1].scores.text > report.ranked[0].scores.text == 0


@pytest.mark.parametrize(
    "prefers",
    [
        {"skills": ["law"]},
        {"tags": ["fast"]},
        {"name": "wished"},
        {"version": "^2"},
        {"input_modes": ["image/png"]},
        {"output_modes": ["image/png"]},
        {"tool": ToolUse(name="chat", arguments={"type": "object", "properties": {"picture": TEXT}})},
    ],
)
def test_each_preference_that_is_met_counts(card: Any, prefers: dict[str, Any]) -> None:
    wished = card(
        "wished",
        "2.0.0",
        skills=["law"],
        tags=["fast"],
        input_modes=["image/*"],
        output_modes=["image/png"],
        takes={"type": "object", "properties": {"picture": TEXT}},
    )
    need = Need("x", prefers=Criteria(**prefers))
    report = Matchmaker([card("a-other", "1.0.0", takes={"type": "array"}), wished]).pair(need)
    assert [one.scores.wishes for one in report.ranked] == [1, 0]
    assert report.require().candidate.card.name == "wished" and report.require().scores.wished == 1


def test_a_card_asks_with_its_own_need_and_is_the_caller(card: Any) -> None:
    asking = card("agent-a", needs=[Need("solver", skills=["math"])], skills=["math"])
    report = Matchmaker([asking, card("agent-b", skills=["math"])]).pair(asking)
    assert [one.ref for one in report.ranked] == ["agent-b@1.0.0"]
    assert report.fell == {"another": 1}
    assert report.summary == "1 of 2 fit the need 'solver': agent-b@1.0.0 (exact) first"


def test_a_card_with_no_need_or_several_is_told_what_to_do(card: Any) -> None:
    matchmaker = Matchmaker([card("agent-b", skills=["law"])])
    two = card("agent-a", needs=[Need("judge", skills=["law"]), Need("solver", skills=["math"])])
    with pytest.raises(MatchError, match=r"agent-a@1\.0\.0 needs nobody; pass a Need"):
        matchmaker.pair(card("agent-a"))
    with pytest.raises(MatchError, match="has the needs 'judge', 'solver'; say which"):
        matchmaker.pair(two)
    with pytest.raises(MatchError, match="has no need 'clerk'; it has 'judge', 'solver'"):
        matchmaker.pair(two, seat="clerk")
    assert matchmaker.pair(two, seat="judge").require().ref == "agent-b@1.0.0"


def test_a_need_that_nobody_meets_says_how_many_fell_where_and_who_came_nearest(card: Any) -> None:
    says = {"type": "object", "properties": {"message": TEXT}, "required": ["message"]}
    picky = {"type": "object", "properties": {"message": {"type": "integer"}}, "required": ["message"]}
    candidates = [card(f"code-{number}", skills=["code"]) for number in range(9)]
    candidates += [card(f"old-{number}", "0.1.0", skills=["review"]) for number in range(3)]
    candidates += [card("wrong-code", "0.1.0", skills=["code"]), card("near", skills=["review"], takes=picky)]
    need = Need("reviewer", skills=["review"], version="^1", tool=ToolUse(arguments=says))
    report = Matchmaker(candidates).pair(need)
    assert (report.best, report.fitting, report.considered) == (None, 0, 14)
    assert dict(report.fell) == {"version": 4, "skills": 9, "tool": 1}
    assert report.summary.startswith(
        "0 of 14 fit the need 'reviewer': 4 fell at version (have another version), 9 fell at skills (lack a skill), "
        "1 fell at tool (have no tool that takes the call); nearest is "
    )
    # One change would admit the nearest; the one with two faults is not among them.
    assert all(len(one.failed) == 1 for one in report.nearest)
    assert "wrong-code@0.1.0" not in {one.ref for one in report.nearest}
    with pytest.raises(MatchError) as caught:
        report.require()
    assert caught.value.data["fell"] == {"version": 4, "skills": 9, "tool": 1}
    assert caught.value.data["nearest"][0]["candidate"] == report.nearest[0].ref


def test_the_nearest_miss_is_the_one_that_the_fewest_rules_reject(card: Any) -> None:
    two_faults = card("two-faults", "0.1.0", tags=["slow"], skills=["law"])
    one_fault = card("one-fault", "1.5.0", tags=["slow"], skills=["math"])
    report = Matchmaker([two_faults, one_fault]).pair(Need("x", skills=["math"], tags=["fast"], version="^1"))
    assert [one.ref for one in report.nearest] == ["one-fault@1.5.0"]
    assert report.summary.endswith(
        "nearest is one-fault@1.5.0, which would fit after: tags: offer 'fast', or ask for fewer tags"
    )


def test_every_rejected_candidate_has_all_its_failed_rules(card: Any) -> None:
    bad = card("bad", "0.1.0", skills=["law"])
    report = Matchmaker([bad, card("good", skills=["math"])]).pair(Need("x", skills=["math"], version="^1", tags=[]))
    (rejected,) = report.rejected
    assert [finding.rule for finding in rejected.failed] == ["version", "skills"]
    assert rejected.summary == (
        "bad@0.1.0 does not fit the need 'x' (fail): version: 0.1.0 is not in ^1; "
        "skills: does not offer math; it offers law"
    )


def test_with_no_candidates_it_says_so() -> None:
    report = Matchmaker([]).pair(Need("x"))
    assert report.summary == "nobody fits the need 'x': there are no candidates"
    assert report.rows() == [] and report.rejected == []


def test_a_report_is_data_and_rows(card: Any) -> None:
    matchmaker = Matchmaker([Candidate(card("agent-b", skills=["math"]), liveness="up", free=3), card("agent-c")])
    report = matchmaker.pair(Need("solver", skills=["math"]))
    told = json.loads(json.dumps(report.to_json()))
    assert (told["seat"], told["fitting"], told["considered"], told["fell"]) == ("solver", 1, 2, {"skills": 1})
    (first,) = told["ranked"]
    assert first["degree"] == "exact" and first["digest"].startswith("sha256:")
    assert {rule["rule"]: rule["result"] for rule in first["rules"]}["skills"] == "yes"
    assert first["scores"] == {
        "skills": 1.0,
        "wishes": 0,
        "wished": 0,
        "text": first["scores"]["text"],
        "live": "up",
        "free": 3,
    }
    (row,) = report.rows()
    assert len(row) == len(HEADER) and row[:3] == ("agent-b@1.0.0", "exact", "1.00") and row[5:7] == ("up", "3")
    nobody = matchmaker.pair(Need("judge", skills=["law"]))
    assert (
        len(nobody.rows()) == 2
        and nobody.to_json()["nearest"][0]["rules"][3]["change"] == "offer 'law', or ask for fewer skills"
    )


def test_any_pair_of_cards_can_be_explained(card: Any) -> None:
    two = card("agent-a", needs=[Need("judge", skills=["law"]), Need("solver", skills=["math"])])
    matchmaker = Matchmaker([card("agent-b", skills=["law"])])
    judge, solver = matchmaker.explain(two, "agent-b")
    assert judge.fits and judge.summary == "agent-b@1.0.0 fits the need 'judge' (exact): offers law"
    assert not solver.fits and [finding.rule for finding in solver.failed] == ["skills"]
    (nothing,) = matchmaker.explain(card("agent-c"), card("agent-d"))
    assert nothing.fits and nothing.why == "nothing speaks against it"
    (maybe,) = matchmaker.explain(Need("x", skills=["law"]), card("agent-d", tags=["law"]))
    assert maybe.summary == (
        "agent-d@1.0.0 may fit the need 'x' (unknown): skills: has the tag 'law', and does not offer law"
    )
    with pytest.raises(MatchError, match=r"'agent-z' is not among the candidates; they are agent-b@1\.0\.0"):
        matchmaker.explain(two, "agent-z")


def test_an_agent_that_is_listed_twice_is_one_candidate(card: Any) -> None:
    by_hand, found = card("agent-b"), Candidate(card("agent-b"), liveness="up", free=2)
    for order in ([by_hand, found], [found, by_hand]):
        assert [candidate.liveness for candidate in Matchmaker(order).candidates] == ["up"]


def test_a_hub_is_not_a_list_of_candidates(tmp_path: Any) -> None:
    from agent_env.hub import locate
    from agent_env.hub.local import LocalHub

    hub: Any = LocalHub(locate(tmp_path / "hub.db"))
    assert isinstance(hub, Hub)
    with pytest.raises(ConfigurationError, match=r"await Matchmaker\.of\(hub\)"):
        Matchmaker(hub)


def test_cards_of_strangers_do_not_stop_the_matchmaker(card: Any) -> None:
    odd = EnvironmentCard(name="odd", version="v1", description="(" * 5000)
    stuffed = card("stuffed", skills=["math"], description="equation " * 50_000)
    plain = card("plain", skills=["math"], examples=["Solve an equation", "What is x"])
    report = Matchmaker([odd, stuffed, plain]).pair(Need("x", skills=["math"], examples=["equation"]))
    assert [one.candidate.card.name for one in report.ranked] == ["plain", "stuffed"]
    assert report.fell == {"version": 1}
