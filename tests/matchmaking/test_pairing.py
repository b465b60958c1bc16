"""The needs of a served agent are filled from what the hub lists."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env.errors import NeedUnmet
from agent_env.hub import Hub
from agent_env.matchmaking import Candidate, Matchmaker, candidate_of, choose, matchmaker_of
from agent_env_cards import Criteria, Need

pytestmark = pytest.mark.anyio

SOLVER = Need("solver", skills=["math"], prefers=Criteria(tags=["fast"]))


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def hub(tmp_path: Path, clock: Clock) -> AsyncGenerator[Hub]:
    with anyio.fail_after(30):
        async with Hub.open(tmp_path / "hub.db", clock=clock) as opened:
            yield opened


async def test_the_next_pairing_takes_a_better_peer_that_came_to_the_hub(hub: Hub, card: Any) -> None:
    asking = card("agent-a", needs=[SOLVER])
    await hub.register(asking, "http://127.0.0.1:1")
    await hub.register(card("agent-b", skills=["math"]), "http://127.0.0.1:2", capacity=8, load=3)
    first = choose(asking, asking.needs, await matchmaker_of(hub))["solver"]
    assert (first.candidate.ref, first.candidate.liveness, first.candidate.free) == ("agent-b@1.0.0", "up", 5)
    assert first.candidate.source.instances[0].url == "http://127.0.0.1:2"
    reasons = first.reasons
    assert (reasons["seat"], reasons["peer"], reasons["degree"]) == ("solver", "agent-b@1.0.0", "exact")
    assert (reasons["fitting"], reasons["considered"]) == (1, 2)
    assert {rule["rule"]: rule["result"] for rule in reasons["rules"]}["reachable"] == "yes"

    await hub.register(card("agent-c", skills=["math"], tags=["fast"]), "http://127.0.0.1:3")
    second = choose(asking, asking.needs, await matchmaker_of(hub))["solver"]
    assert second.candidate.ref == "agent-c@1.0.0" and second.explanation.scores.wishes == 1


async def test_the_index_outlives_renewals_and_sees_what_they_say(hub: Hub, card: Any) -> None:
    lease = await hub.register(card("agent-b", skills=["math"]), "http://127.0.0.1:2", capacity=8)
    matchmaker = await matchmaker_of(hub)
    index = matchmaker._index
    assert matchmaker.candidates[0].free == 8
    await hub.renew(lease, 8)
    assert await matchmaker_of(hub) is matchmaker and matchmaker._index is index
    assert matchmaker.pair(SOLVER).fell == {"capacity": 1}
    await hub.register(card("agent-c", skills=["math"]), "http://127.0.0.1:3")
    assert (await matchmaker_of(hub)).pair(SOLVER).require().ref == "agent-c@1.0.0"
    assert matchmaker._index is not index


async def test_who_is_gone_and_cannot_be_launched_is_not_chosen(hub: Hub, card: Any, clock: Clock) -> None:
    lease = await hub.register(card("agent-b", skills=["math"]), "http://127.0.0.1:2")
    await hub.publish(card("agent-c", skills=["math"]), {"module": "m:agent"})
    assert (await Matchmaker.of(hub)).pair(SOLVER).require().ref == "agent-b@1.0.0"
    await hub.release(lease)
    report = (await matchmaker_of(hub)).pair(SOLVER)
    assert report.require().ref == "agent-c@1.0.0" and report.require().candidate.liveness == "launchable"
    assert [one.failed[0].rule for one in report.rejected] == ["reachable"]


async def test_a_need_that_cannot_be_filled_lists_the_failed_rule_of_each_candidate(hub: Hub, card: Any) -> None:
    asking = card("agent-a", needs=[SOLVER])
    await hub.register(asking, "http://127.0.0.1:1")
    await hub.register(card("agent-b", skills=["law"]), "http://127.0.0.1:2")
    await hub.publish(card("agent-c", skills=["math"]))
    with pytest.raises(NeedUnmet) as caught:
        choose(asking, asking.needs, await matchmaker_of(hub))
    message = str(caught.value)
    assert message.startswith("agent-a@1.0.0: 0 of 3 fit the need 'solver': 1 fell at another")
    assert "agent-b@1.0.0 fails at skills (does not offer math; it offers law)" in message
    assert "agent-c@1.0.0 fails at reachable (no instance is up, and it cannot be launched)" in message
    assert caught.value.data["seat"] == "solver"
    failed = {
        entry["candidate"]: [rule["rule"] for rule in entry["failed"]] for entry in caught.value.data["candidates"]
    }
    assert failed["agent-a@1.0.0"] == ["another", "skills"] and failed["agent-c@1.0.0"] == ["reachable"]


async def test_long_lists_of_candidates_are_cut(card: Any) -> None:
    crowd = [card(f"agent-{number}") for number in range(60)]
    with pytest.raises(NeedUnmet, match="; and 55 more") as caught:
        choose(card("agent-a"), [SOLVER], crowd)
    assert len(caught.value.data["candidates"]) == 50
    with pytest.raises(NeedUnmet, match="there are no candidates; serve an agent"):
        choose(card("agent-a"), [SOLVER], [])


async def test_needs_that_compete_for_one_agent_are_named(card: Any) -> None:
    needs = [SOLVER, Need("checker", skills=["math"])]
    with pytest.raises(
        NeedUnmet, match="cannot be given its peers: the seats 'solver' and 'checker' compete"
    ) as caught:
        choose(card("agent-a"), needs, [card("agent-b", skills=["math"])])
    assert caught.value.data["seats"] == ["solver", "checker"]
    both = choose(card("agent-a"), needs, [card("agent-b", skills=["math"]), card("agent-c", skills=["math"])])
    assert {pairing.candidate.ref for pairing in both.values()} == {"agent-b@1.0.0", "agent-c@1.0.0"}


async def test_free_sessions_are_those_of_all_instances_that_are_up(hub: Hub, card: Any) -> None:
    made = card("agent-b", skills=["math"])
    await hub.register(made, "http://127.0.0.1:2", capacity=8, load=6)
    second = await hub.register(made, "http://127.0.0.1:3", capacity=4, load=4)

    async def free() -> int | None:
        (entry,) = await hub.list()
        return candidate_of(entry).free

    assert await free() == 2
    await hub.doubt(second.instance_id)
    assert await free() == 2
    await hub.register(made, "http://127.0.0.1:4")
    assert await free() is None


def test_candidates_are_taken_as_they_are(card: Any) -> None:
    candidate = Candidate(card("agent-b", skills=["math"]), liveness="up")
    assert candidate_of(candidate) is candidate
    assert choose(card("agent-a"), [SOLVER], [candidate])["solver"].candidate.ref == "agent-b@1.0.0"
