"""Needs and offers: clauses EC-25 to EC-30."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_env_cards import Accepts, Criteria, EnvironmentCard, Need, Offer, SampleRequest, Skill, ToolUse

Found = Callable[..., list[tuple[str, str]]]
Refused = Callable[[object], list[tuple[str, str]]]


@pytest.mark.clause("EC-25")
@pytest.mark.parametrize("seat", ["", "Solver", "2nd", "the solver", "a" * 64, "a/b", "sölver", "solver\n"])
def test_a_seat_is_one_lower_case_word(seat: str, found: Found) -> None:
    assert found(needs=[{"seat": "solver_2-b"}, {"seat": seat}]) == [("/needs/1/seat", "EC-25")]


@pytest.mark.clause("EC-25")
def test_two_needs_have_two_seats(found: Found) -> None:
    assert found(needs=[{"seat": "a"}, {"seat": "b"}, {"seat": "a"}]) == [("/needs/2/seat", "EC-25")]


@pytest.mark.clause("EC-25")
def test_a_need_names_its_seat_first_and_what_it_requires_as_keywords() -> None:
    tool = ToolUse(name="solve", arguments={"type": "object"}, result={"type": "number"})
    need = Need(
        "solver",
        description="Does the sums.",
        skills=["math"],
        tags=["school"],
        name="lab/solver",
        version="^1",
        input_modes=["text/plain"],
        output_modes=["application/json"],
        tool=tool,
        examples=["Solve 2x = 6."],
        prefers=Criteria(tags=["quick"]),
        allow_partial=True,
        strict=True,
    )
    requires = Criteria(
        skills=["math"],
        tags=["school"],
        name="lab/solver",
        version="^1",
        input_modes=["text/plain"],
        output_modes=["application/json"],
        tool=tool,
        examples=[SampleRequest(request="Solve 2x = 6.")],
    )
    assert need.requires == requires
    assert need == Need(
        "solver",
        description="Does the sums.",
        requires=requires,
        prefers=Criteria(tags=["quick"]),
        allow_partial=True,
        strict=True,
    )
    assert need.to_dict() == {
        "seat": "solver",
        "description": "Does the sums.",
        "requires": {
            "skills": ["math"],
            "tags": ["school"],
            "name": "lab/solver",
            "version": "^1",
            "inputModes": ["text/plain"],
            "outputModes": ["application/json"],
            "tool": {"name": "solve", "arguments": {"type": "object"}, "result": {"type": "number"}},
            "examples": [{"request": "Solve 2x = 6."}],
        },
        "prefers": {"tags": ["quick"]},
        "allowPartial": True,
        "strict": True,
    }
    assert Need.model_validate(need.to_dict()) == need


@pytest.mark.clause("EC-25")
def test_keywords_go_on_top_of_what_is_required_anyway(good: dict[str, Any]) -> None:
    expected = Need("s", requires=Criteria(skills=["math"], tags=["a"]))
    assert Need("s", skills=["math"], requires=Criteria(skills=["old"], tags=["a"])) == expected
    flat = {"seat": "s", "skills": ["math"], "requires": {"tags": ["a"]}}
    assert EnvironmentCard.parse({**good, "needs": [flat]}).needs == [expected]


@pytest.mark.clause("EC-25")
def test_a_need_without_a_seat_is_refused_where_it_stands(good: dict[str, Any], refused: Refused) -> None:
    assert refused({**good, "needs": [{"skills": ["a"]}, {"seat": "s", "requires": 5}]}) == [
        ("/needs/0/seat", "EC-03"),
        ("/needs/1/requires", "EC-03"),
    ]


@pytest.mark.clause("EC-26")
@pytest.mark.parametrize("skill", ["", "Math", "math.", ".math", "math..x", "word problems", "a" * 101, "math/algebra"])
def test_a_skill_id_is_labels_with_dots(skill: str, found: Found) -> None:
    assert found(offers={"skills": [{"id": "math.word_problems-2"}, {"id": skill}]}) == [
        ("/offers/skills/1/id", "EC-26")
    ]
    assert found(needs=[{"seat": "s", "prefers": {"skills": [skill]}}]) == [("/needs/0/prefers/skills/0", "EC-26")]


@pytest.mark.clause("EC-26")
def test_a_skill_is_offered_once(found: Found) -> None:
    assert found(offers={"skills": [{"id": "a"}, {"id": "a.b"}, {"id": "a"}]}) == [("/offers/skills/2/id", "EC-26")]
    assert found(offers={"skills": ["a", "b", "a"]}) == [("/offers/skills/2", "EC-26")]


@pytest.mark.clause("EC-26")
@pytest.mark.parametrize(
    "entry", ["oasf/math", "oasf@/math", "@1.0/math", "oasf@1.0", "oasf@1.0/", "oasf@1.0/a b", "x" * 201]
)
def test_a_taxonomy_id_says_of_which_taxonomy_and_version_it_is(entry: str, found: Found) -> None:
    skill = {"id": "a", "taxonomy": ["oasf@1.0/reasoning/math", "esco@v1.2.0/S1.2", entry]}
    assert found(offers={"skills": [skill]}) == [("/offers/skills/0/taxonomy/2", "EC-26")]


@pytest.mark.clause("EC-26")
def test_a_need_may_ask_for_a_taxonomy_id_that_nobody_knows(found: Found) -> None:
    assert found(needs=[{"seat": "s", "requires": {"skills": ["newest@9.9/never-heard-of"]}}]) == []
    assert found(needs=[{"seat": "s", "requires": {"skills": ["newest@/x"]}}]) == [
        ("/needs/0/requires/skills/0", "EC-26")
    ]


@pytest.mark.clause("EC-26")
@pytest.mark.parametrize("tags", [["x"] * 33, ["a", " b"], ["a", ""], ["a", "x" * 65]])
def test_tags_are_few_and_short(tags: list[str], found: Found) -> None:
    place = "" if len(tags) == 33 else "/1"
    assert found(offers={"tags": tags}) == [(f"/offers/tags{place}", "EC-26")]
    assert found(offers={"skills": [{"id": "a", "tags": tags}]}) == [(f"/offers/skills/0/tags{place}", "EC-26")]
    assert found(needs=[{"seat": "s", "requires": {"tags": tags}}]) == [(f"/needs/0/requires/tags{place}", "EC-26")]
    assert found(offers={"tags": [f"Tag {number}" for number in range(32)]}) == []


@pytest.mark.clause("EC-26")
def test_a_bare_string_is_a_skill(good: dict[str, Any]) -> None:
    card = EnvironmentCard.parse({**good, "offers": {"skills": ["math", {"id": "review"}]}})
    assert card.offers.skills == [Skill(id="math"), Skill(id="review")]
    assert card.to_dict()["offers"]["skills"] == [{"id": "math"}, {"id": "review"}]


@pytest.mark.clause("EC-27")
def test_an_offer_has_no_sample_requests_or_two_to_five(found: Found) -> None:
    for count in range(8):
        samples = [{"request": f"Question {number}?"} for number in range(count)]
        expected = [] if count in (0, 2, 3, 4, 5) else [("/offers/examples", "EC-27")]
        assert found(offers={"examples": samples}) == expected
        expected = [] if count <= 5 else [("/needs/0/requires/examples", "EC-27")]
        assert found(needs=[{"seat": "s", "requires": {"examples": samples}}]) == expected


@pytest.mark.clause("EC-27")
def test_sample_requests_say_something_about_a_skill_that_is_offered(found: Found) -> None:
    fine = [{"request": "One?", "skill": "a"}, {"request": "Two?", "skill": "b"}, {"request": "Three?"}]
    assert found(offers={"skills": ["a", {"id": "b"}], "examples": fine}) == []
    assert found(offers={"skills": ["a"], "examples": fine}) == [("/offers/examples/1/skill", "EC-27")]
    assert found(offers={"examples": ["One?", " "]}) == [("/offers/examples/1", "EC-27")]
    assert found(offers={"examples": ["One?", {"request": ""}]}) == [("/offers/examples/1/request", "EC-27")]


@pytest.mark.clause("EC-27")
def test_a_bare_string_is_a_sample_request(good: dict[str, Any]) -> None:
    card = EnvironmentCard.parse({**good, "offers": {"examples": ["One?", {"request": "Two?", "reply": "Yes."}]}})
    assert card.offers.examples == [SampleRequest(request="One?"), SampleRequest(request="Two?", reply="Yes.")]


@pytest.mark.clause("EC-28")
@pytest.mark.parametrize("mode", ["", "text", "Text/plain", "text/", "/plain", "text/plain ", "text plain", "a/b/c"])
def test_a_mode_is_a_media_type(mode: str, found: Found) -> None:
    fine = ["text/plain", "application/vnd.x+json", "image/*", "text/plain; charset=utf-8"]
    for member in ("inputModes", "outputModes"):
        assert found(offers={member: [*fine, mode]}) == [(f"/offers/{member}/4", "EC-28")]
        assert found(needs=[{"seat": "s", "requires": {member: [mode]}}]) == [
            (f"/needs/0/requires/{member}/0", "EC-28")
        ]


@pytest.mark.clause("EC-28")
def test_an_offer_reads_and_writes_text_unless_it_says_something_else(found: Found) -> None:
    assert (Offer().input_modes, Offer().output_modes) == (["text/plain"], ["text/plain"])
    assert found(offers={"inputModes": [], "outputModes": []}) == [
        ("/offers/inputModes", "EC-28"),
        ("/offers/outputModes", "EC-28"),
    ]


@pytest.mark.clause("EC-29")
@pytest.mark.parametrize("version", ["", "latest", "v1", ">=1 <2", "one", "1.0.0+b"])
def test_a_reader_refuses_a_need_whose_version_is_no_range(
    version: str, good: dict[str, Any], refused: Refused
) -> None:
    needs = [{"seat": "a", "requires": {"version": version}}, {"seat": "b", "prefers": {"version": version}}]
    assert refused({**good, "needs": needs}) == [
        ("/needs/0/requires/version", "EC-29"),
        ("/needs/1/prefers/version", "EC-29"),
    ]


@pytest.mark.clause("EC-30")
def test_peers_and_callers_are_named_as_they_name_themselves(found: Found) -> None:
    assert found(needs=[{"seat": "s", "requires": {"name": "Solver"}, "prefers": {"name": "a b"}}]) == [
        ("/needs/0/prefers/name", "EC-30"),
        ("/needs/0/requires/name", "EC-30"),
    ]
    names = ["solver", "lab/solver", "lab/*", "Lab/*", "*", "a/b/*"]
    assert found(offers={"accepts": {"names": names}}) == [
        ("/offers/accepts/names/3", "EC-30"),
        ("/offers/accepts/names/4", "EC-30"),
    ]


@pytest.mark.clause("EC-30")
@pytest.mark.parametrize(
    ("accepts", "name", "tags", "taken"),
    [
        (Accepts(), "anybody", [], True),
        (Accepts(names=["solver"]), "solver", [], True),
        (Accepts(names=["solver"]), "lab/solver", [], False),
        (Accepts(names=["lab/*"]), "lab/solver", [], True),
        (Accepts(names=["lab/*"]), "lab", [], False),
        (Accepts(names=["lab/*"]), "laboratory/solver", [], False),
        (Accepts(tags=["a", "b"]), "solver", ["a", "b", "c"], True),
        (Accepts(tags=["a", "b"]), "solver", ["a"], False),
        (Accepts(names=["x"], tags=["a"]), "solver", ["a"], False),
    ],
)
def test_an_offer_takes_the_callers_that_it_names(accepts: Accepts, name: str, tags: list[str], taken: bool) -> None:
    assert accepts.admits(name, tags) is taken
