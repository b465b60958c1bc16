"""Publishing, marking and finding releases: one body over a file and over a URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_env.errors import InvalidArguments, InvalidCard, NameNotFound, ReleaseConflict, VersionNotFound
from agent_env.hub import Hub
from agent_env_cards import EnvironmentCard, parse_ref

pytestmark = pytest.mark.anyio

MakeCard = Callable[..., EnvironmentCard]


async def test_a_published_card_is_found_by_its_name(hub: Hub, make_card: MakeCard) -> None:
    card = make_card()
    published = await hub.publish(card)
    resolution = await hub.resolve("agent-b")
    assert resolution.release == published
    assert resolution.card == EnvironmentCard.parse(card.to_json())
    assert resolution.card.digest() == card.digest() == resolution.release.digest
    assert resolution.instances == () and not resolution.degraded
    assert resolution.release.ref == f"agent-b@1.0.0#{card.digest()}"


async def test_the_same_digest_again_changes_nothing(hub: Hub, make_card: MakeCard) -> None:
    first = await hub.publish(make_card())
    assert await hub.publish(make_card()) == first
    assert (await hub.changes()).sequence == first.sequence


async def test_another_digest_is_refused_with_what_differs(hub: Hub, make_card: MakeCard) -> None:
    await hub.publish(make_card())
    with pytest.raises(ReleaseConflict, match=r"agent-b@1\.0\.0 .* /description\); bump the version") as refused:
        await hub.publish(make_card(description="Solves everything."))
    assert refused.value.data["diff"] == [
        {"pointer": "/description", "published": "Solves things.", "offered": "Solves everything."}
    ]
    assert (await hub.resolve("agent-b")).card.description == "Solves things."


async def test_addresses_are_no_part_of_a_release(hub: Hub, make_card: MakeCard) -> None:
    first = await hub.publish(make_card())
    assert await hub.publish(make_card(url="/elsewhere")) == first


async def test_a_launch_is_added_to_a_release_and_may_move(hub: Hub, make_card: MakeCard) -> None:
    await hub.publish(make_card())
    spec: dict[str, Any] = {"kind": "python", "source": "sha256:aa", "directory": "/here"}
    await hub.publish(make_card(), spec)
    moved = await hub.publish(make_card(), {**spec, "directory": "/there"})
    assert moved.launch == {**spec, "directory": "/there"}
    assert (await hub.publish(make_card())).launch == moved.launch
    with pytest.raises(ReleaseConflict, match="other source code behind the same card; bump the version"):
        await hub.publish(make_card(), {**spec, "source": "sha256:bb"})


async def test_a_release_never_becomes_another_agent_of_the_same_file(hub: Hub, make_card: MakeCard) -> None:
    spec: dict[str, Any] = {"kind": "python", "target": "poets:poet", "source": "sha256:aa", "directory": "/here"}
    await hub.publish(make_card(), spec)
    with pytest.raises(ReleaseConflict, match=r"another agent behind the same card; bump the version") as refused:
        await hub.publish(make_card(), {**spec, "target": "poets:sleepy"})
    assert refused.value.data["diff"] == [
        {"pointer": "/launch/target", "published": "poets:poet", "offered": "poets:sleepy"}
    ]
    moved = await hub.publish(make_card(), {**spec, "directory": "/there"})
    assert (await hub.resolve("agent-b")).release == moved
    assert moved.launch == {**spec, "directory": "/there"}


async def test_a_release_never_changes_its_kind_of_launch(hub: Hub, make_card: MakeCard) -> None:
    await hub.publish(make_card(), {"kind": "python", "target": "a:b"})
    with pytest.raises(ReleaseConflict, match="another kind of launch"):
        await hub.publish(make_card(), {"kind": "command", "command": ["serve"]})
    assert (await hub.resolve("agent-b")).release.launch == {"kind": "python", "target": "a:b"}


async def test_a_draft_is_replaced_by_the_next_one(hub: Hub, make_card: MakeCard) -> None:
    await hub.publish(make_card(version="0.0.0-dev"), {"kind": "url"})
    newest = await hub.publish(make_card(version="0.0.0-dev", description="Edited."))
    assert (await hub.resolve("agent-b")).release == newest
    assert newest.draft and newest.launch is None


async def test_a_draft_published_again_keeps_its_launch(hub: Hub, make_card: MakeCard) -> None:
    first = await hub.publish(make_card(version="0.0.0-dev"), {"kind": "url"})
    assert await hub.publish(make_card(version="0.0.0-dev")) == first


async def test_a_draft_is_found_only_where_nothing_is_published(hub: Hub, make_card: MakeCard) -> None:
    await hub.publish(make_card(version="0.0.0-dev"))
    assert (await hub.resolve("agent-b")).release.draft
    with pytest.raises(VersionNotFound):
        await hub.resolve("agent-b@*")
    await hub.publish(make_card(version="0.1.0"))
    assert (await hub.resolve("agent-b")).release.version == "0.1.0"
    assert (await hub.resolve("agent-b@0.0.0-dev")).release.draft


async def test_no_range_means_the_highest_stable_release(hub: Hub, make_card: MakeCard) -> None:
    for version in ("1.2.0", "1.10.0", "1.9.0", "2.0.0-rc.1"):
        await hub.publish(make_card(version=version))
    assert (await hub.resolve("agent-b")).release.version == "1.10.0"
    assert (await hub.resolve("agent-b@^1.2")).release.version == "1.10.0"
    assert (await hub.resolve("agent-b@>=1.2,<1.10")).release.version == "1.9.0"
    assert (await hub.resolve("agent-b@2.0.0-rc.1")).release.version == "2.0.0-rc.1"


async def test_only_prereleases_are_named_in_the_refusal(hub: Hub, make_card: MakeCard) -> None:
    await hub.publish(make_card(version="2.0.0-rc.1"))
    await hub.publish(make_card(version="0.0.0-dev"))
    with pytest.raises(VersionNotFound, match=r"2\.0\.0-rc\.1 \(a pre-release\).*name a version, as in agent-b@2"):
        await hub.resolve("agent-b")


async def test_a_yanked_release_is_found_by_exact_version_and_digest_alone(hub: Hub, make_card: MakeCard) -> None:
    await hub.publish(make_card(version="1.0.0"))
    bad = await hub.publish(make_card(version="1.1.0"))
    yanked = await hub.yank("agent-b", "1.1.0", "answers in Latin")
    assert yanked.yanked == "answers in Latin"
    assert (await hub.resolve("agent-b")).release.version == "1.0.0"
    assert (await hub.resolve("agent-b@^1")).release.version == "1.0.0"
    assert (await hub.resolve("agent-b@1.1.0")).release == yanked
    assert (await hub.resolve(f"agent-b#{bad.digest}")).release == yanked
    with pytest.raises(VersionNotFound, match=r"1\.1\.0 \(yanked: answers in Latin\), 1\.0\.0"):
        await hub.resolve("agent-b@>1.0")
    assert (await hub.unyank("agent-b", "1.1.0")).yanked is None
    assert (await hub.resolve("agent-b")).release.version == "1.1.0"


async def test_a_deprecated_release_resolves_and_says_so(hub: Hub, make_card: MakeCard) -> None:
    await hub.publish(make_card())
    await hub.deprecate("agent-b", "1.0.0", "use agent-c")
    assert (await hub.resolve("agent-b")).release.deprecated == "use agent-c"


async def test_drafts_and_unknown_versions_cannot_be_marked(hub: Hub, make_card: MakeCard) -> None:
    await hub.publish(make_card(version="0.0.0-dev"))
    with pytest.raises(InvalidArguments, match="is a draft"):
        await hub.yank("agent-b", "0.0.0-dev", "no")
    with pytest.raises(VersionNotFound):
        await hub.yank("agent-b", "3.0.0", "no")
    with pytest.raises(NameNotFound):
        await hub.deprecate("agent-c", "1.0.0", "no")
    with pytest.raises(InvalidArguments, match="not a reference"):
        await hub.yank("Agent B", "1.0.0", "no")


async def test_a_digest_pin_is_checked(hub: Hub, make_card: MakeCard) -> None:
    release = await hub.publish(make_card())
    other = "sha256:" + "0" * 64
    assert (await hub.resolve(release.ref)).release == release
    assert (await hub.resolve(f"agent-b@^1#{release.digest}")).release == release
    with pytest.raises(VersionNotFound, match="this is not the release that was meant"):
        await hub.resolve(f"agent-b@1.0.0#{other}")
    with pytest.raises(VersionNotFound, match=r"it has 1\.0\.0"):
        await hub.resolve(f"agent-b#{other}")


async def test_an_unknown_name_gets_the_closest_ones(hub: Hub, make_card: MakeCard) -> None:
    with pytest.raises(NameNotFound, match="it is empty; publish with `agent-env push"):
        await hub.resolve("agent-b")
    for name in ("agent-b", "judge", "acme/solver"):
        await hub.publish(make_card(name=name))
    with pytest.raises(NameNotFound, match=r"no environment 'agnt-b'; did you mean 'agent-b'\?") as refused:
        await hub.resolve("agnt-b@1.0.0")
    assert refused.value.data["close"] == ["agent-b"]
    with pytest.raises(NameNotFound, match="it has 'acme/solver', 'agent-b', 'judge'"):
        await hub.resolve("zzzzzz")
    assert (await hub.resolve("acme/solver")).release.name == "acme/solver"


async def test_an_unknown_version_gets_those_that_exist(hub: Hub, make_card: MakeCard) -> None:
    for version in ("1.0.0", "1.2.0", "0.0.0-dev"):
        await hub.publish(make_card(version=version))
    with pytest.raises(
        VersionNotFound, match=r"'agent-b@2\.0\.0' .* 1\.2\.0, 1\.0\.0, 0\.0\.0-dev \(a draft\)"
    ) as refused:
        await hub.resolve("agent-b@2.0.0")
    assert refused.value.data["versions"] == ["1.2.0", "1.0.0", "0.0.0-dev"]


async def test_a_long_list_of_versions_is_cut(hub: Hub, make_card: MakeCard) -> None:
    for minor in range(15):
        await hub.publish(make_card(version=f"1.{minor}.0"))
    with pytest.raises(VersionNotFound, match="and 3 more"):
        await hub.resolve("agent-b@2.0.0")


async def test_what_is_no_reference_is_the_callers_fault(hub: Hub) -> None:
    with pytest.raises(InvalidArguments, match="write 'agent-b'"):
        await hub.resolve("Agent-B")


async def test_a_parsed_reference_resolves_too(hub: Hub, make_card: MakeCard) -> None:
    await hub.publish(make_card())
    assert (await hub.resolve(parse_ref("agent-b@^1"))).release.version == "1.0.0"


async def test_a_card_that_breaks_a_clause_is_not_published(hub: Hub, make_card: MakeCard) -> None:
    with pytest.raises(InvalidCard) as refused:
        await hub.publish(make_card(name="Agent B", version="one"))
    assert {problem["pointer"] for problem in refused.value.data["problems"]} >= {"/name", "/version"}
    assert await hub.list() == []


async def test_everything_is_listed_in_the_order_of_names_and_versions(hub: Hub, make_card: MakeCard) -> None:
    for name, version in (("b", "1.10.0"), ("b", "1.9.0"), ("a", "0.0.0-dev"), ("a", "1.0.0")):
        await hub.publish(make_card(name=name, version=version))
    await hub.publish(make_card(name="b", version="1.9.0"), {"kind": "command"})
    entries = await hub.list()
    assert [(entry.release.name, entry.release.version) for entry in entries] == [
        ("a", "0.0.0-dev"),
        ("a", "1.0.0"),
        ("b", "1.9.0"),
        ("b", "1.10.0"),
    ]
    assert [entry.liveness for entry in entries] == ["unreachable", "unreachable", "launchable", "unreachable"]
    assert [entry.release.version for entry in await hub.list("b")] == ["1.9.0", "1.10.0"]
    assert entries[0].card.name == "a"


async def test_the_change_feed_tells_each_change_once(hub: Hub, make_card: MakeCard) -> None:
    await hub.publish(make_card(version="1.0.0"))
    start = (await hub.changes()).sequence
    await hub.publish(make_card(version="1.1.0"))
    await hub.yank("agent-b", "1.0.0", "old")
    changes = await hub.changes(start)
    assert [(release.version, release.yanked) for release in changes.releases] == [("1.1.0", None), ("1.0.0", "old")]
    assert (await hub.changes(changes.sequence)).releases == ()
