"""Names, versions and text: clauses EC-10 to EC-14."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env_cards import (
    DRAFT_VERSION,
    EnvironmentCard,
    Reference,
    VersionRange,
    is_draft,
    name_fault,
    parse_version,
    slug,
    validate_card,
)

Found = Callable[..., list[tuple[str, str]]]

LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)


@pytest.mark.clause("EC-10")
@given(LABELS, st.none() | LABELS)
def test_labels_make_names_with_and_without_a_namespace(label: str, namespace: str | None) -> None:
    name = label if namespace is None else f"{namespace}/{label}"
    assert name_fault(name) is None
    assert EnvironmentCard(name=name, description="D.").to_dict()["name"] == name


@pytest.mark.clause("EC-10")
@pytest.mark.parametrize(
    ("name", "corrected"),
    [
        ("Agent-B", "agent-b"),
        ("agent_b", "agent-b"),
        ("MyAgent", "my-agent"),
        ("HTTP", "http"),
        ("Lab/Agent B", "lab/agent-b"),
        ("a/b/c", "b/c"),
        ("-a-", "a"),
        ("agent-b\n", "agent-b"),
        ("Ägent", "agent"),
        ("ａgent", "agent"),
        ("a" * 64, "a" * 63),
        ("агент", "agent-b"),
        ("", "agent-b"),
        ("/", "agent-b"),
    ],
)
def test_another_spelling_is_refused_with_the_corrected_one(name: str, corrected: str, found: Found) -> None:
    fault = name_fault(name)
    assert fault is not None and repr(name) in fault and f"'{corrected}'" in fault
    assert name_fault(corrected) is None
    assert found(name=name) == [("/name", "EC-10")]


@pytest.mark.clause("EC-10")
@given(st.text(max_size=80))
def test_a_slug_is_a_name_or_nothing_and_a_slug_again(text: str) -> None:
    name = slug(text)
    assert name == "" or name_fault(name) is None
    assert slug(name) == name


@pytest.mark.clause("EC-10")
def test_a_reader_takes_a_foreign_name_as_it_is() -> None:
    assert EnvironmentCard.parse({"name": "CounterEnv"}).name == "CounterEnv"


NUMBERS = st.integers(0, 10**9).map(str)
PRERELEASES = st.from_regex(r"(0|[1-9][0-9]{0,5}|[0-9]*[a-zA-Z-][0-9a-zA-Z-]{0,5})", fullmatch=True)


@pytest.mark.clause("EC-11")
@given(NUMBERS, NUMBERS, NUMBERS, st.lists(PRERELEASES, max_size=3))
def test_semantic_versions_are_taken_as_they_are(major: str, minor: str, patch: str, prerelease: list[str]) -> None:
    text = f"{major}.{minor}.{patch}" + ("-" + ".".join(prerelease) if prerelease else "")
    assert str(parse_version(text)) == text


@pytest.mark.clause("EC-11")
@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        ("", "leave it out for a draft"),
        ("latest", "leave it out for a draft"),
        ("1", "MAJOR.MINOR.PATCH"),
        ("1.0", "MAJOR.MINOR.PATCH"),
        ("1.0.0.0", "MAJOR.MINOR.PATCH"),
        ("01.0.0", "MAJOR.MINOR.PATCH"),
        ("1.0.0-", "MAJOR.MINOR.PATCH"),
        ("1.0.0-01", "MAJOR.MINOR.PATCH"),
        ("1.0.0\n", "MAJOR.MINOR.PATCH"),
        ("1.0.٣", "MAJOR.MINOR.PATCH"),
        ("^1.0.0", "MAJOR.MINOR.PATCH"),
        ("v1.0.0", "write '1.0.0'"),
        ("1.0.0+build.7", "write '1.0.0'"),
        ("1.0." + "9" * 5000, "at most 100"),
    ],
)
def test_other_versions_are_refused_with_the_remedy(version: str, remedy: str, good: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=remedy):
        parse_version(version)
    [problem] = validate_card({**good, "version": version})
    assert (problem.pointer, problem.clause) == ("/version", "EC-11")
    assert remedy in problem.message


@pytest.mark.clause("EC-12")
def test_a_card_without_a_version_is_a_draft_and_one_with_a_version_is_not() -> None:
    draft, release = EnvironmentCard(name="a"), EnvironmentCard(name="a", version="1.0.0-dev")
    assert (draft.version, draft.is_draft, draft.ref) == (DRAFT_VERSION, True, "a@0.0.0-dev")
    assert not release.is_draft


@pytest.mark.clause("EC-12", "EC-43")
@pytest.mark.parametrize("text", ["*", "^0", "0.0.0", ">=0.0.0-alpha", "0.0.0-dev||*", "~0.0.0-dev"])
def test_no_range_takes_a_draft(text: str) -> None:
    assert not VersionRange(text).accepts(DRAFT_VERSION)


@pytest.mark.clause("EC-12")
def test_a_draft_is_meant_only_by_its_own_version() -> None:
    assert is_draft("0.0.0-dev")
    assert Reference("a", DRAFT_VERSION).accepts(DRAFT_VERSION)
    assert not Reference("a").accepts(DRAFT_VERSION)


@pytest.mark.clause("EC-13")
@pytest.mark.parametrize("description", ["", " \n", None])
def test_a_card_without_a_description_is_not_written(description: str | None, found: Found) -> None:
    assert found(description=description) == [("/description", "EC-13")]


@pytest.mark.clause("EC-14")
@pytest.mark.parametrize("character", ["\x00", "\x1b", "\x7f", "\x85", "\u202e", "\u2066"])
def test_text_that_plays_tricks_is_not_written(character: str, found: Found) -> None:
    assert found(description=f"Good{character}") == [("/description", "EC-14")]
    assert found(x={"y": [character]}) == [("/x/y/0", "EC-14")]
    assert found(**{character: 1}) == [(f"/{character}", "EC-14")]


@pytest.mark.clause("EC-14")
def test_text_may_have_layout_and_every_script(found: Found) -> None:
    assert found(description="Zeile\n\tنص 文字 🎲\r\n") == []


@pytest.mark.clause("EC-14")
def test_text_has_an_end(found: Found) -> None:
    assert found(description="x" * 20_000) == []
    assert found(description="x" * 20_001) == [("/description", "EC-14")]
