"""How a served agent gets its peers: paired by their cards, or named; one session each, let go with the caller's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env import AgentEnvironment, Environment, Limits, Need, recording
from agent_env.client.lanes.websocket import close_sockets
from agent_env.context import Run
from agent_env.errors import AtCapacity, ConfigurationError, NeedUnmet, PeerFailed
from agent_env.gateway import Gateway, RunHandle, SeatPolicy, running
from agent_env.hub import Hub, shared_hub
from agent_env.hub.snapshot import snapshot
from agent_env.net import bound_url, listen
from agent_env.serving.server import Server
from agent_env_cards import EnvironmentCard
from agent_env_wrappers.contract import AgentInfo, Caps, Done, Turn

pytestmark = pytest.mark.anyio


async def solver(message: str, history: list[dict[str, str]]) -> str:
    """Solves."""
    return f"{len(history) // 2 + 1}: {message}"


async def manager(message: str, peers: Mapping[str, Any]) -> str:
    """Asks whoever it got."""
    return " | ".join([await ask(message) for ask in peers.values()])


def needing(agent: Any = manager, **options: Any) -> AgentEnvironment:
    need = Need("solver", skills=["math"])
    return AgentEnvironment(agent, **{"name": "manager", "version": "1.0.0", "needs": [need], **options})


@asynccontextmanager
async def offering(name: str = "solver", agent: Any = solver, **options: Any) -> AsyncGenerator[Server]:
    env = AgentEnvironment(agent, **{"name": name, "version": "1.0.0", "skills": ["math"], **options})
    async with env.serving() as server:
        yield server


# ── paired ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_need_is_filled_by_who_offers_it_and_the_peer_remembers() -> None:
    async with offering() as solving, Environment(needing()) as env:
        assert [(await env.chat(word)).text for word in "ab"] == ["1: a", "2: b"]
        assert len(solving.runtime.sessions) == 1
    assert solving.runtime.closing


async def test_each_session_of_the_caller_has_a_session_of_its_own_with_the_peer() -> None:
    managing = needing()
    async with offering() as solving:
        async with Environment(managing) as one, Environment(managing) as other:
            await one.chat("a")
            assert (await other.chat("b")).text == "1: b"
            assert (await one.chat("c")).text == "2: c"
            assert len(solving.runtime.sessions) == 2
        # They are let go with the sessions that they were opened for.
        assert len(solving.runtime.sessions) == 0
        await managing.aclose()


async def test_closing_the_caller_lets_go_of_its_peers() -> None:
    managing = needing()
    async with offering() as solving:
        await managing.call("chat", {"message": "a"})
        assert len(solving.runtime.sessions) == 1
        await managing.aclose()
        assert len(solving.runtime.sessions) == 0


async def test_reset_opens_fresh_ones() -> None:
    async with offering() as solving, Environment(needing()) as env:
        await env.chat("a")
        (before,) = [session.id for session in solving.runtime.sessions]
        await env.reset()
        assert len(solving.runtime.sessions) == 0
        assert (await env.chat("b")).text == "1: b"
        assert [session.id for session in solving.runtime.sessions] != [before]


async def test_what_the_agent_gets_has_no_session_id_and_no_random_name() -> None:
    seen: list[Turn] = []

    class Watching:
        framework = "watching"

        @classmethod
        def match(cls, agent: object) -> int:
            return 0

        async def describe(self) -> AgentInfo:
            return AgentInfo(self.framework, Caps(tools="turn"), name="watching")

        async def run(self, turn: Turn) -> AsyncIterator[Any]:
            seen.append(turn)
            yield Done(await turn.tools[0].acall(message="hi"))

        async def aclose(self) -> None: ...

    async with offering(description="Solves anything."), Environment(needing(Watching())) as env:
        assert (await env.chat("x")).text == "1: hi"
    (tool,) = seen[0].tools
    assert (tool.name, tool.seat, tool.description) == ("ask_solver", "solver", "Solves anything.")
    assert list(tool.parameters["properties"]) == ["message"]
    assert tool.parameters["additionalProperties"] is False


async def test_a_synchronous_agent_has_synchronous_peers() -> None:
    def manager(message: str, peers: Mapping[str, Any]) -> str:
        return "sync " + peers["solver"](message)

    with anyio.fail_after(20):
        async with offering(), Environment(needing(manager)) as env:
            assert (await env.chat("a")).text == "sync 1: a"


async def test_a_peer_that_answers_with_data_alone_is_heard_as_json() -> None:
    async def structured(message: str) -> dict[str, int]:
        return {"answer": 42}

    async with offering(agent=structured), Environment(needing()) as env:
        assert json.loads((await env.chat("a")).text) == {"answer": 42}


async def test_the_episode_tells_who_was_chosen_and_why() -> None:
    async with offering(), recording() as episode, Environment(needing()) as env:
        await env.chat("a")
    (managing,) = [trace for trace in episode.traces if trace.agent == "manager@1.0.0"]
    pairing = (managing.turns[0].pairings or {})["solver"]
    assert (pairing["peer"], pairing["rules"]["skills"]) == ("solver@1.0.0", "yes")
    assert pairing["degree"] in ("exact", "fits")
    edges = {edge.callee: edge for edge in episode.edges}
    assert edges["solver@1.0.0"].callee_seat == "solver" and edges["solver@1.0.0"].caller == "manager@1.0.0"


async def test_a_better_offer_is_taken_by_the_next_session_and_not_by_this_one() -> None:
    async def better(message: str) -> str:
        return f"better: {message}"

    managing = needing(needs=[Need("solver", skills=["math.algebra"], allow_partial=True)])
    async with offering(skills=["math"]), Environment(managing) as env:
        assert (await env.chat("a")).text == "1: a"
        async with offering("expert", better, skills=["math.algebra"]):
            assert (await env.chat("b")).text == "2: b"
            async with Environment(managing) as new:
                assert (await new.chat("a")).text == "better: a"
        async with Environment(managing) as newest:
            assert (await newest.chat("a")).text == "1: a"


async def test_two_needs_are_filled_by_two_agents() -> None:
    async def checker(message: str) -> str:
        return f"checked {message}"

    needs = [Need("solver", skills=["math"]), Need("checker", skills=["math"])]
    async with offering("one"), offering("two", checker), Environment(needing(needs=needs)) as env:
        assert sorted((await env.chat("a")).text.split(" | ")) == ["1: a", "checked a"]


async def test_nobody_is_paired_with_itself() -> None:
    managing = needing(skills=["math"])
    async with managing.serving(), Environment(managing) as env:
        with pytest.raises(NeedUnmet, match="is the caller itself"):
            await env.chat("a")


async def test_an_unmet_need_lists_each_candidates_failed_rule_and_leaves_no_session() -> None:
    managing = needing()
    async with offering("poet", skills=["prose"]), Environment(managing) as env:
        with pytest.raises(NeedUnmet) as unmet:
            await env.chat("a")
        assert "poet@1.0.0 fails at skills" in unmet.value.message
        assert unmet.value.data["seat"] == "solver"
        (candidate,) = [one for one in unmet.value.data["candidates"] if one["candidate"] == "poet@1.0.0"]
        assert [failed["rule"] for failed in candidate["failed"]] == ["skills"]
        assert env.session_id is None and len((await managing.runtime()).sessions) == 0
        # As soon as somebody offers it, the same conversation begins.
        async with offering():
            assert (await env.chat("a")).text == "1: a"


async def test_without_a_hub_needs_must_be_named() -> None:
    async with Environment(needing(hub=False)) as env:
        with pytest.raises(NeedUnmet, match="name peers for them"):
            await env.chat("a")


async def test_a_dead_instance_is_passed_over_for_one_that_lives() -> None:
    listener = listen()
    dead = bound_url(listener)
    listener.close()
    async with offering() as solving, Hub.open() as hub:
        await hub.register(solving.card, dead)
        managing = needing()
        for _ in range(8):  # which of the two is asked first is chance
            async with Environment(managing) as env:
                assert (await env.chat("a")).text == "1: a"


async def test_a_peer_that_cannot_be_reached_is_an_unmet_need() -> None:
    listener = listen()
    dead = bound_url(listener)
    listener.close()
    async with Hub.open() as hub:
        card = EnvironmentCard(
            name="solver", version="1.0.0", description="Solves.", offers={"skills": ["math"]}, kind="environment"
        )
        await hub.register(card, dead)
        async with Environment(needing()) as env:
            with pytest.raises(NeedUnmet, match="the peer for 'solver' cannot be reached") as unmet:
                await env.chat("a")
            assert unmet.value.data["error"]["code"] == "launch_failed"


async def test_pairing_asks_the_hub_once_for_many_sessions() -> None:
    managing = needing()
    async with offering(), managing.serving() as server:
        known = snapshot(shared_hub())

        async def converse() -> None:
            async with Environment(server.url) as env:
                assert (await env.chat("a")).text == "1: a"

        await converse()
        before = known.reads
        with anyio.fail_after(20):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(100):
                    tasks.create_task(converse())
        # A heartbeat may write meanwhile, and an answer is believed for a second; never does each session ask.
        assert known.reads - before <= 20


# ── forks ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def lead(message: str, history: list[Any], peers: Mapping[str, Any]) -> str:
    """Has a conversation of its own, which can be copied, and asks whoever it got."""
    return await manager(message, peers)


def remembering(**options: Any) -> AgentEnvironment:
    return needing(lead, **options)


class Amnesic:
    """A solver whose conversations cannot be copied."""

    framework = "amnesic"

    @classmethod
    def match(cls, agent: object) -> int:
        return 0

    async def describe(self) -> AgentInfo:
        return AgentInfo(self.framework, Caps(state="value", fork=False), name="amnesic")

    async def run(self, turn: Turn) -> AsyncIterator[Any]:
        count = (turn.state or 0) + 1
        yield Done(f"{count}: {turn.message.text}", state=count)

    async def aclose(self) -> None: ...


@pytest.mark.parametrize("lane", [None, "http"])
async def test_the_peers_of_a_fork_remember_as_it_does_and_go_on_apart(lane: Any) -> None:
    async with offering() as solving:
        for options in ({"peers": {"solver": Environment(solving.url, lane=lane)}, "needs": []}, {}):
            async with Environment(remembering(**options)) as env:
                await env.chat("a")
                copy = await env.fork()
                assert copy.afresh == {}
                assert (await env.chat("b")).text == (await copy.chat("b")).text == "2: b"
                assert (await env.chat("c")).text == "3: c"
                await copy.release()
                assert (await env.chat("d")).text == "4: d"
                assert len(solving.runtime.sessions) == 1
            await env.release()
            await close_sockets()


async def test_the_peers_of_a_fork_outlive_those_of_its_source() -> None:
    async with Environment(remembering(peers={"solver": solver})) as env:
        await env.chat("a")
        copy = await env.fork()
        await env.release()
        assert (await copy.chat("b")).text == "2: b"
        await copy.release()


async def test_a_peer_that_cannot_copy_what_it_remembers_is_named() -> None:
    async with offering(agent=Amnesic()), Environment(remembering()) as env:
        assert (await env.chat("a")).text == "1: a"
        async with await env.fork() as copy:
            assert copy.afresh == {"solver": "solver@1.0.0 cannot copy a conversation"}
            assert (await copy.chat("b")).text == "1: b"
            assert (await env.chat("b")).text == "2: b"


async def test_a_peer_that_may_not_be_forked_is_named_with_the_reason() -> None:
    async with offering(auth={"s3cret": ["chat"]}) as solving:
        named = Environment(solving.url, lane="http", auth="s3cret")
        async with Environment(remembering(peers={"solver": named})) as env:
            await env.chat("a")
            async with await env.fork() as copy:
                assert "'orchestrate'" in copy.afresh["solver"]
                assert (await copy.chat("b")).text == "1: b"


async def test_a_peer_whose_own_peers_forget_says_so() -> None:
    middle = AgentEnvironment(lead, name="middle", peers={"worker": Amnesic()})
    async with Environment(remembering(peers={"solver": middle})) as env:
        assert (await env.chat("a")).text == "1: a"
        async with await env.fork() as copy:
            assert "its own peers 'worker' begin afresh" in copy.afresh["solver"]
            assert (await copy.chat("b")).text == "1: b"
    await middle.aclose()


async def test_a_peer_that_nobody_has_talked_to_has_nothing_to_copy() -> None:
    async def shy(message: str, history: list[Any], peers: Mapping[str, Any]) -> str:
        return str(await peers["solver"](message)) if history else "later"

    async with offering() as solving, Environment(needing(shy)) as env:
        await env.chat("a")
        async with await env.fork() as copy:
            assert copy.afresh == {} and len(solving.runtime.sessions) == 0
            assert (await copy.chat("b")).text == "1: b"


async def test_a_fork_that_finds_no_place_lets_go_of_the_peers_that_it_copied() -> None:
    managing = remembering(limits=Limits(max_sessions=1, queue_seconds=0.0))
    async with offering() as solving, Environment(managing) as env:
        await env.chat("a")
        with pytest.raises(AtCapacity):
            await env.fork()
        assert len(solving.runtime.sessions) == 1
        assert (await env.chat("b")).text == "2: b"


# ── named ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["reference", "url", "card", "agent", "environment", "client"])
async def test_a_peer_may_be_named_in_every_way_that_an_environment_can_be(how: str) -> None:
    async with offering(hub=None) as solving:
        card = solving.card.model_copy(
            update={
                "interfaces": [
                    face.model_copy(update={"url": solving.url + face.url}) for face in solving.card.interfaces
                ]
            }
        )
        named = {
            "reference": "solver@^1",
            "url": solving.url,
            "card": card,
            "agent": solver,
            "environment": AgentEnvironment(solver, name="solver"),
            "client": Environment(solving.url, lane="http"),
        }[how]
        managing = needing(needs=[], peers={"solver": named})
        async with Environment(managing) as one, Environment(managing) as other:
            assert (await one.chat("a")).text == "1: a"
            assert (await other.chat("b")).text == "1: b"
            assert (await one.chat("c")).text == "2: c"
        await close_sockets()


async def test_a_named_peer_fills_a_need_without_any_choice() -> None:
    async def named(message: str) -> str:
        return "named"

    async with offering(), recording() as episode, Environment(needing(peers={"solver": named})) as env:
        assert (await env.chat("a")).text == "named"
    managing = next(trace for trace in episode.traces if trace.agent == "manager@1.0.0")
    assert (managing.turns[0].pairings or {})["solver"] == {"seat": "solver", "named": True, "peer": "named@0.0.0-dev"}


async def test_a_named_peer_that_asks_for_a_token_gets_it() -> None:
    async with offering(auth={"s3cret": ["chat"]}) as solving:
        without = needing(peers={"solver": Environment(solving.url, lane="http")})
        async with Environment(without) as env:
            with pytest.raises(PeerFailed) as failed:
                await env.chat("a")
            assert failed.value.data["error"]["code"] == "unauthenticated"
        with_token = needing(peers={"solver": Environment(solving.url, lane="http", auth="s3cret")})
        async with Environment(with_token) as env:
            assert (await env.chat("a")).text == "1: a"


async def test_a_name_that_nobody_has_is_an_unmet_need() -> None:
    async with offering(), Environment(needing(peers={"solver": "sovler@1.0.0"})) as env:
        with pytest.raises(NeedUnmet, match="did you mean 'solver'"):
            await env.chat("a")


async def test_a_peers_failure_is_told_with_its_cause() -> None:
    async def broken(message: str) -> str:
        raise ValueError("a secret of the peer")

    async with Environment(needing(peers={"solver": broken})) as env:
        with pytest.raises(PeerFailed) as failed:
            await env.chat("a")
        assert failed.value.data["error"]["code"] == "agent_failed"
        assert "secret" not in json.dumps(failed.value.to_wire())


async def test_a_full_peer_is_asked_again_when_it_says_so() -> None:
    crowded = AgentEnvironment(solver, name="solver", limits=Limits(max_sessions=1, queue_seconds=0))
    held = await crowded.call("chat", {"message": "mine"})
    managing = needing(peers={"solver": crowded})
    with anyio.fail_after(20):
        async with Environment(managing) as env, asyncio.TaskGroup() as tasks:
            reply = tasks.create_task(env.chat("a"))
            async with Environment(crowded, session_id=held.session_id) as holder:
                holder._own_session = True
                await holder.chat("still mine")
            assert (await reply).text == "1: a"
    await crowded.aclose()


# ── the run ────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def open_run(directory: Path) -> AsyncGenerator[Run]:
    gateway = Gateway(directory, admin_token="admin")
    async with running(gateway) as url:
        seats = {seat: SeatPolicy(seat, ("http://127.0.0.1:9/v1",)) for seat in ("manager", "solver")}
        async with await RunHandle.open(url, "admin", seats) as run:
            yield run.episode("e1", "manager")
    gateway.close()


async def told(message: str, context: Mapping[str, Any], model: Any = None) -> str:
    """Tells in which episode and seat it plays; what its model is, its run decides."""
    return f"{context['episode']} {context['seat']}"


async def test_the_run_reaches_peers_by_the_hub_and_those_that_the_owner_named(tmp_path: Path) -> None:
    async with offering(agent=told) as solving, open_run(tmp_path / "journal") as run:

        async def manager(message: str, peers: Mapping[str, Any], model: Any = None) -> str:
            return str(await peers["solver"](message))

        for peers in ({}, {"solver": Environment(solving.url, lane="http")}):
            managing = needing(manager, peers=peers)
            async with managing.serving("127.0.0.1") as server:
                async with recording(run=run), Environment(server.url, lane="http", seat="manager") as env:
                    assert (await env.chat("x")).text == "e1 solver"


async def test_an_address_that_an_agent_calls_by_itself_gets_no_run(tmp_path: Path) -> None:
    async def talkative(message: str, model: Any = None) -> str:
        # An agent may be talked into calling anybody; it may even say a seat.
        async with Environment(message, lane="http", seat="solver") as env:
            return (await env.chat("x")).text

    managing = AgentEnvironment(talkative, name="manager", version="1.0.0")
    async with offering(agent=told) as solving, managing.serving() as server, open_run(tmp_path / "journal") as run:
        async with recording(run=run), Environment(server.url, lane="http", seat="manager") as env:
            assert (await env.chat(solving.url)).text == "e1 None"
            # The hub vouches for whom it lists.
            assert (await env.chat("solver@1.0.0")).text == "e1 solver"
        async with recording(run=run), Environment(solving.url, lane="http", seat="solver") as env:
            # The program that plays the episode knows whom it calls.
            assert (await env.chat("x")).text == "e1 solver"
        async with recording(run=run), Environment(solving.url, lane="http") as env:
            assert (await env.chat("x")).text == "e1 None"


async def test_a_seat_that_is_no_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'The Solver' must start with a lower-case letter"):
        needing(peers={"The Solver": solver})
