"""References: clauses EC-40 to EC-44."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from semantic_version import NpmSpec, Version

from agent_env_cards import CardError, InvalidReference, Reference, VersionRange, format_ref, parse_ref

LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
NAMES = st.builds("/".join, st.lists(LABELS, min_size=1, max_size=2))
SMALL = st.integers(0, 3).map(str)
PRERELEASES = st.sampled_from(["alpha", "rc.1", "rc.2", "0", "x-y"])
VERSIONS = st.builds(
    lambda numbers, prerelease: ".".join(numbers) + prerelease,
    st.lists(SMALL, min_size=3, max_size=3),
    st.just("") | PRERELEASES.map("-{}".format),
)
PARTIALS = st.builds(
    lambda numbers, rest: ".".join([*numbers, *rest]),
    st.lists(SMALL, min_size=1, max_size=2),
    st.just([]) | st.just(["x"]) | st.just(["*"]),
)
BOUNDS = st.builds("{}{}".format, st.sampled_from(["", "^", "~", ">", ">=", "<", "<=", "="]), VERSIONS | PARTIALS)
RANGES = st.just("*") | st.builds(
    "||".join, st.lists(st.lists(BOUNDS, min_size=1, max_size=2).map(",".join), min_size=1, max_size=2)
)
DIGESTS = st.binary(min_size=32, max_size=32).map(lambda digest: f"sha256:{digest.hex()}")
REFERENCES = st.builds(Reference, NAMES, st.none() | RANGES, st.none() | DIGESTS)


@pytest.mark.clause("EC-41")
@given(REFERENCES)
def test_parsing_undoes_formatting(reference: Reference) -> None:
    assert parse_ref(format_ref(reference)) == reference
    assert parse_ref(str(reference)) == reference


@pytest.mark.clause("EC-41")
@given(NAMES, st.just("") | RANGES.map("@{}".format), st.just("") | DIGESTS.map("#{}".format))
def test_formatting_undoes_parsing(name: str, version: str, digest: str) -> None:
    assert format_ref(parse_ref(name + version + digest)) == name + version + digest


@pytest.mark.clause("EC-40", "EC-41")
@given(st.text(alphabet="abA0-/@#:^~<>=,|.*xv+ \nsh256") | st.text())
@example("a@1.0.0#sha256:" + "0" * 64)
def test_any_text_is_a_reference_or_refused_with_a_message(text: str) -> None:
    try:
        reference = parse_ref(text)
    except InvalidReference as error:
        assert repr(text) in str(error)
        assert error.problems
    else:
        assert format_ref(reference) == text
        if reference.range is not None:
            reference.accepts("1.0.0")


@pytest.mark.clause("EC-40")
def test_a_reference_has_a_name_and_perhaps_a_range_and_a_digest() -> None:
    digest = "sha256:" + "0f" * 32
    assert parse_ref("agent-b") == Reference("agent-b")
    assert parse_ref("lab/agent-b@^1") == Reference("lab/agent-b", "^1")
    assert parse_ref(f"agent-b@1.0.0#{digest}") == Reference("agent-b", "1.0.0", digest)
    assert parse_ref(f"agent-b#{digest}") == Reference("agent-b", None, digest)
    assert (parse_ref("lab/agent-b").namespace, parse_ref("agent-b").namespace) == ("lab", None)
    assert (parse_ref("a@1.0.0").version, parse_ref("a@=1.0.0-rc.1").version) == ("1.0.0", "1.0.0-rc.1")
    assert [parse_ref(text).version for text in ("a", "a@1", "a@^1.0.0", "a@1.0.0||2.0.0")] == [None] * 4


@pytest.mark.clause("EC-40", "EC-42", "EC-44")
@pytest.mark.parametrize(
    ("text", "remedy", "clause"),
    [
        ("", "write one such as 'agent-b'", "EC-40"),
        ("Agent-B@1.0.0", "write 'agent-b'", "EC-40"),
        ("agent b", "write 'agent-b'", "EC-40"),
        ("@1.0.0", "write one such as 'agent-b'", "EC-40"),
        ("a/b/c", "write 'b/c'", "EC-40"),
        ("http://h:8000/.well-known/agent-env.json", "write a name such as 'agent-b@1.0.0'", "EC-40"),
        ("a@", "write ranges such as", "EC-42"),
        ("a@latest", "leave it out for the highest release", "EC-42"),
        ("a@v1.2", "write '1.2'", "EC-42"),
        ("a@^v1.2", "write '1.2'", "EC-42"),
        ("a@1.0.0+b", "leave out what follows", "EC-42"),
        ("a@>=1 <2", "join bounds with a comma", "EC-42"),
        ("a@1 - 2", "join bounds with a comma", "EC-42"),
        ("a@>=1,", "write ranges such as", "EC-42"),
        ("a@^1||", "write ranges such as", "EC-42"),
        ("a@one", "write ranges such as", "EC-42"),
        ("a@1@2", "write ranges such as", "EC-42"),
        ("a@1.٢", "write ranges such as", "EC-42"),
        ("a@" + "1" * 101, "write at most 100", "EC-42"),
        ("a#", "64 lower-case hexadecimal digits", "EC-44"),
        ("a#sha256:" + "0" * 63, "64 lower-case hexadecimal digits", "EC-44"),
        ("a#sha256:" + "A" * 64, "64 lower-case hexadecimal digits", "EC-44"),
        ("a#md5:" + "0" * 64, "64 lower-case hexadecimal digits", "EC-44"),
    ],
)
def test_a_malformed_reference_is_refused_with_the_remedy(text: str, remedy: str, clause: str) -> None:
    with pytest.raises(InvalidReference) as caught:
        parse_ref(text)
    assert remedy in str(caught.value)
    assert [problem.clause for problem in caught.value.problems] == [clause]
    assert isinstance(caught.value, CardError)


@pytest.mark.clause("EC-40")
def test_all_that_is_wrong_with_a_reference_is_told_at_once() -> None:
    with pytest.raises(InvalidReference) as caught:
        Reference("A", "latest", "x")
    assert [problem.clause for problem in caught.value.problems] == ["EC-40", "EC-42", "EC-44"]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.problems) == (InvalidReference, caught.value.problems)


@pytest.mark.clause("EC-42")
@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("1.2.3", ["1.2.3"], ["1.2.4", "1.2.2"]),
        ("=1.2.3", ["1.2.3"], ["1.2.4"]),
        ("1", ["1.0.0", "1.9.9"], ["0.9.9", "2.0.0"]),
        ("1.x", ["1.0.0", "1.9.9"], ["2.0.0"]),
        ("1.2", ["1.2.0", "1.2.9"], ["1.3.0"]),
        ("1.2.*", ["1.2.0", "1.2.9"], ["1.3.0"]),
        ("*", ["0.0.0", "99.0.0"], []),
        ("^1", ["1.0.0", "1.9.9"], ["2.0.0", "0.9.9"]),
        ("^1.2.3", ["1.2.3", "1.10.0"], ["1.2.2", "2.0.0"]),
        ("^0.2.3", ["0.2.3", "0.2.9"], ["0.3.0"]),
        ("^0.0.3", ["0.0.3"], ["0.0.4"]),
        ("~1.2.3", ["1.2.3", "1.2.9"], ["1.3.0"]),
        ("~1", ["1.0.0", "1.9.9"], ["2.0.0"]),
        (">1", ["2.0.0"], ["1.5.0"]),
        ("<=1", ["1.5.0"], ["2.0.0"]),
        (">=1.2,<2", ["1.2.0", "1.9.9"], ["1.1.9", "2.0.0"]),
        ("^1||^3", ["1.5.0", "3.5.0"], ["2.0.0", "4.0.0"]),
        ("<1||>=2,<2.5", ["0.5.0", "2.4.0"], ["1.0.0", "2.5.0"]),
    ],
)
def test_ranges_mean_what_they_mean_to_npm(text: str, inside: list[str], outside: list[str]) -> None:
    reference = parse_ref(f"a@{text}")
    assert [version for version in inside + outside if reference.accepts(version)] == inside


@pytest.mark.clause("EC-42")
@given(RANGES.filter(lambda text: "-" not in text), VERSIONS.filter(lambda version: "-" not in version))
def test_ranges_of_releases_agree_with_another_reader_of_the_grammar(text: str, version: str) -> None:
    others = [NpmSpec(alternative.replace(",", " ")) for alternative in text.split("||")]
    assert VersionRange(text).accepts(version) == any(other.match(Version(version)) for other in others)


@pytest.mark.clause("EC-43")
@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("*", [], ["1.0.0-rc.1"]),
        ("^1", [], ["1.0.0-rc.1", "1.2.0-rc.1", "2.0.0-rc.1"]),
        ("<2.0.0", [], ["1.9.0-rc.1", "2.0.0-rc.1"]),
        ("1.0.0-rc.1", ["1.0.0-rc.1"], ["1.0.0-rc.2"]),
        ("^1.2.0-rc.1", ["1.2.0-rc.1", "1.2.0-rc.10", "1.2.0", "1.9.0"], ["1.2.0-alpha", "1.3.0-rc.1", "2.0.0-rc.1"]),
        (">=1.2.0-rc.1,<1.3.0-rc.1", ["1.2.0-rc.2", "1.3.0-alpha"], ["1.2.1-rc.1", "1.3.0-rc.1"]),
        ("^1.2.0-rc.2||^2", ["1.2.0-rc.3", "2.0.0"], ["2.1.0-rc.1", "1.2.0-rc.1"]),
        ("^2.0.0-rc.1||*", ["2.0.0-rc.1", "1.0.0"], ["1.0.0-rc.1"]),
    ],
)
def test_a_prerelease_is_in_a_range_only_when_it_is_asked_for(text: str, inside: list[str], outside: list[str]) -> None:
    reference = parse_ref(f"a@{text}")
    assert [version for version in inside + outside if reference.accepts(version)] == inside


@pytest.mark.clause("EC-43")
@given(RANGES, VERSIONS)
def test_no_range_takes_a_prerelease_whose_version_it_does_not_name(text: str, version: str) -> None:
    core, dash, _ = version.partition("-")
    if dash and f"{core}-" not in text:
        assert not VersionRange(text).accepts(version)


@pytest.mark.clause("EC-43")
def test_a_bare_name_takes_every_release_and_no_prerelease() -> None:
    reference = parse_ref("a")
    taken = [version for version in ("0.0.0-dev", "0.1.0", "1.0.0-rc.1", "7.0.0") if reference.accepts(version)]
    assert taken == ["0.1.0", "7.0.0"]
    assert parse_ref("a@0.0.0-dev").accepts("0.0.0-dev")


@pytest.mark.clause("EC-43")
@given(VERSIONS)
def test_an_exact_version_takes_itself_and_nothing_else(version: str) -> None:
    assert parse_ref(f"a@{version}").accepts(version)
    assert not parse_ref(f"a@{version}").accepts("9.9.9")
    assert parse_ref(f"a@{version}").accepts(version.partition("-")[0]) is ("-" not in version)


@pytest.mark.clause("EC-42")
def test_a_version_that_is_none_is_an_error_and_not_a_no() -> None:
    for reference in (parse_ref("a"), parse_ref("a@^1")):
        with pytest.raises(ValueError, match="MAJOR"):
            reference.accepts("1.0")


@pytest.mark.clause("EC-44")
@given(DIGESTS)
def test_a_digest_pins(digest: str) -> None:
    assert parse_ref(f"a@1.0.0#{digest}").digest == digest
