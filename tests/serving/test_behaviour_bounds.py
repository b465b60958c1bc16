"""What a running environment refuses, clause by clause of `cards/README.md`, over real sockets on every lane."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import anyio
import pytest
from behaving import TOKENS, Agent, Once, Place, make, on_every_lane, serving

from agent_env import AgentEnvironment, Limits, Need
from agent_env.client.lanes.websocket import close_sockets
from agent_env.client.resolution import LaneName
from agent_env.context import CallContext, Link, inject
from agent_env.errors import AtCapacity, ReleaseConflict
from agent_env.hub import Hub

pytestmark = pytest.mark.anyio


# ── bounds ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("EC-71")
@on_every_lane
async def test_a_full_environment_refuses_new_sessions_and_lends_out_no_other(lane: LaneName) -> None:
    async with serving(auth=TOKENS, limits=Limits(max_sessions=1, queue_seconds=0.02)) as place:
        held = (await place.say(lane, "mine", token="bob"))["session_id"]
        for verb, fields in (("call_tool", {"name": "chat", "arguments": {"message": "x"}}), ("reset", {})):
            full = await place.refused(lane, "at_capacity", verb, token="alice", **fields)
            assert type(full) is AtCapacity and full.retryable and full.retry_after == 1.0
        fork = await place.refused(lane, "at_capacity", "fork", session_id=held, token="bob")
        assert fork.retry_after == 1.0
        assert (await place.say(lane, "still", held, token="bob"))["text"] == "2: still"
        await place.call(lane, "release", session_id=held, token="bob")
        assert (await place.say(lane, "now", token="alice"))["text"] == "1: now"


@pytest.mark.clause("EC-72")
@on_every_lane
async def test_a_session_with_a_call_in_flight_is_never_dropped_as_idle(lane: LaneName) -> None:
    async with serving(limits=Limits(idle_seconds=0.1)) as place:
        sessions = place.server.runtime.sessions
        with anyio.fail_after(20):
            idle = (await place.say(lane, "a"))["session_id"]
            turn = asyncio.create_task(place.say(lane, "wait"))
            await place.agent.started.acquire()
            while idle in [session.id for session in sessions]:  # noqa: ASYNC110 - nothing tells when it is reaped
                await anyio.sleep(0.02)
            await place.refused(lane, "unknown_session", "state", session_id=idle)
            await anyio.sleep(0.3)  # three times what an idle session has
            assert len(sessions) == 1
            place.agent.go_on.release()
            assert (await turn)["text"] == "waited"


@pytest.mark.clause("EC-73")
@on_every_lane
async def test_a_call_that_must_not_begin_is_refused_before_the_agent_runs(place: Place, lane: LaneName) -> None:
    session_id = (await place.say(lane, "a"))["session_id"]
    session = place.session(session_id)
    heard = list(place.agent.heard)
    me, others = Link("agent@1.0.0", "another"), [Link(f"e{number}@1.0.0", "s") for number in range(8)]
    chat = {"name": "chat", "arguments": {"message": "b"}}
    for code, context, fields in (
        ("too_deep", CallContext(chain=tuple(others)), {}),
        ("call_cycle", CallContext(chain=(me, others[0], me)), {}),
        ("reentrant_call", CallContext(chain=(Link("agent@1.0.0", session.hash),)), {"session_id": session_id}),
        ("budget_exhausted", CallContext(calls=-1), {}),
        ("deadline_exceeded", CallContext().within(0), {}),
    ):
        await place.refused(lane, code, "call_tool", context=context, **chat, **fields)
    assert place.agent.heard == heard
    assert (await place.say(lane, "c", session_id))["text"] == "2: c"


@pytest.mark.clause("EC-73")
async def test_a_call_that_comes_too_late_is_refused_before_the_agent_runs(place: Place) -> None:
    # Our own lanes would not even send it.
    heard = list(place.agent.heard)
    late = inject(CallContext().within(0))
    assert "agent-env.ms=0" in late["baggage"]
    chat = {"name": "chat", "arguments": {"message": "b"}}
    async with aiohttp.ClientSession(headers=late) as http:
        async with http.post(f"{place.url}/v1/call_tool", json=chat) as response:
            error = (await response.json())["error"]
        assert error["code"] == "deadline_exceeded" and "before 'agent@1.0.0' started" in error["message"]
    assert place.agent.heard == heard


@pytest.mark.clause("EC-74")
@on_every_lane
async def test_where_only_text_is_read_there_is_no_argument_for_parts(lane: LaneName) -> None:
    async with make(Once(parts=frozenset({"text"}))).serving(register=False) as server:
        place = Place(server, Agent())
        chat = server.card.to_dict()["capabilities"]["tools"][0]
        assert chat["name"] == "chat" and "parts" not in chat["inputSchema"]["properties"]
        arguments = {"message": "see", "parts": [{"type": "text", "text": "a"}]}
        await place.refused(lane, "invalid_arguments", "call_tool", name="chat", arguments=arguments)
        await close_sockets()


@pytest.mark.clause("EC-74")
@on_every_lane
async def test_a_message_that_is_too_large_or_cannot_be_read_is_refused(place: Place, lane: LaneName) -> None:
    session_id = (await place.say(lane, "a"))["session_id"]
    long = {"name": "chat", "arguments": {"message": "é" * 1001}, "session_id": session_id}
    too_large = await place.refused(lane, "message_too_large", "call_tool", **long)
    assert too_large.data["limit"] == 2000 and "2002 bytes" in too_large.message
    assert (await place.say(lane, "é" * 990, session_id))["text"].startswith("2: é")
    async with make(Once(parts=frozenset({"text", "data"}))).serving(register=False) as server:
        reader = Place(server, Agent())
        for part, read in (
            ({"type": "data", "data": [1]}, True),
            ({"type": "file", "mediaType": "image/png", "data": "AA=="}, False),
        ):
            call = {"name": "chat", "arguments": {"message": "see", "parts": [part]}}
            if read:
                assert (await reader.call(lane, "call_tool", **call))["text"] == "once"
            else:
                unread = await reader.refused(lane, "unsupported_content", "call_tool", **call)
                assert "data, text" in unread.message and "file" in unread.message
        await close_sockets()


@pytest.mark.clause("EC-75")
@on_every_lane
async def test_credentials_are_asked_for_as_the_card_says(lane: LaneName) -> None:
    async with serving(auth=TOKENS) as place:
        auth = place.server.card.auth
        assert auth is not None and auth.security
        for token in (None, "mallory"):
            await place.refused(
                lane, "unauthenticated", "call_tool", name="chat", arguments={"message": "x"}, token=token
            )
        refused = await place.refused(lane, "forbidden", "reset", token="carol")
        assert refused.data["scope"] == "orchestrate"
        assert place.agent.heard == [] and len(place.server.runtime.sessions) == 0
        assert (await place.say(lane, "a", token="carol"))["text"] == "1: a"


# ── with a hub ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("EC-76")
@on_every_lane
async def test_a_need_that_nobody_meets_is_refused_with_what_each_candidate_lacks(lane: LaneName) -> None:
    async def poet(message: str) -> str:
        return "roses"

    async def manager(message: str, peers: Mapping[str, Any]) -> str:
        return str(await peers["solver"](message))

    needing = AgentEnvironment(manager, name="manager", needs=[Need("solver", skills=["math"])])
    writing = AgentEnvironment(poet, name="poet", version="1.0.0", skills=["prose"])
    async with writing.serving(), needing.serving() as server:
        place = Place(server, Agent())
        unmet = await place.refused(lane, "need_unmet", "call_tool", name="chat", arguments={"message": "2 + 2"})
        assert "poet@1.0.0 fails at skills" in unmet.message
        candidates = {one["candidate"]: one["failed"] for one in unmet.data["candidates"]}
        assert [failed["rule"] for failed in candidates["poet@1.0.0"]] == ["skills"]
        assert len(server.runtime.sessions) == 0
        # Before a first turn nobody is needed.
        assert (await place.call(lane, "reset"))["session_id"]
        await close_sockets()


@pytest.mark.clause("EC-78")
async def test_a_release_is_published_once() -> None:
    async def agent(message: str) -> str:
        return message

    def made(**options: Any) -> AgentEnvironment:
        return AgentEnvironment(agent, name="agent", version="1.0.0", **options)

    async with Hub.open() as hub:
        first = await hub.publish(await made().card())
        assert await hub.publish(await made(license="MIT").card()) == first
        with pytest.raises(ReleaseConflict, match="bump the version") as refused:
            await hub.publish(await made(description="Another.", skills=["math"]).card())
        assert {"/description", "/offers/skills"} <= {one["pointer"] for one in refused.value.data["diff"]} or (
            "description" in json.dumps(refused.value.data["diff"])
        )
        with pytest.raises(ReleaseConflict):
            async with made(description="Another.").serving():
                raise AssertionError("it must not be served")
        assert (await hub.resolve("agent@1.0.0")).release == first
