"""What a running environment serves, and how it converses, clause by clause of `cards/README.md`, over real sockets on every lane."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any

import aiohttp
import anyio
import pytest
from behaving import LANES, TOKENS, Place, on_every_lane, serving

from agent_env import Environment
from agent_env.client.resolution import LaneName
from agent_env.context import CallContext, Record
from agent_env.errors import AgentFailed, UnknownSession
from agent_env.testing import check_environment
from agent_env_cards import CARD_PATH, EnvironmentCard, agent_card_v03, environment_card_url, resolve_url
from agent_env_cards import agent_card as agent_card_v1

pytestmark = pytest.mark.anyio


# ── what is served ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("EC-50", "EC-51", "EC-52", "EC-77")
async def test_cards_health_and_every_url_are_there(place: Place) -> None:
    async with aiohttp.ClientSession() as http:

        async def get(url: str) -> Any:
            async with http.get(url) as response:
                assert (response.status, response.content_type) == (200, "application/json")
                return await response.json()

        address = place.url + CARD_PATH
        written = await get(address)
        card = EnvironmentCard.parse(written)
        assert written["digest"] == card.digest()
        agent_card = await get(place.url + "/.well-known/agent-card.json")
        old = await get(place.url + "/.well-known/agent.json")
        assert old == agent_card_v03(card, base_url=place.url)
        # Clients of both look at the first path, so the members of the old form stand there too.
        assert agent_card["supportedInterfaces"] == agent_card_v1(card, base_url=place.url)["supportedInterfaces"]
        assert environment_card_url(agent_card) == environment_card_url(old) == address
        assert await get(resolve_url(address, str(card.agent_card))) == agent_card
        assert await get(place.url + "/health") == {"status": "healthy", "success": True, "data": {"status": "healthy"}}
        async with http.post(resolve_url(address, card.url), json={"jsonrpc": "2.0", "id": 1, "method": "no"}) as plane:
            assert (await plane.json())["error"]["code"] == -32601
        for interface in card.interfaces:
            assert interface.transport in LANES
            await place.call(interface.transport, "list_tools")


@pytest.mark.clause("EC-53")
@on_every_lane
async def test_the_tools_listed_are_those_on_the_card(place: Place, lane: LaneName) -> None:
    listed = (await place.call(lane, "list_tools"))["tools"]
    on_card = place.server.card.to_dict()["capabilities"]["tools"]
    assert [tool["name"] for tool in listed] == ["chat", "shout", "remember"]
    assert listed == on_card


@pytest.mark.clause(
    "EC-50", "EC-51", "EC-52", "EC-53", "EC-54", "EC-55", "EC-56", "EC-57", "EC-58", "EC-59", "EC-60", "EC-61"
)
@pytest.mark.clause("EC-62", "EC-63", "EC-64", "EC-65", "EC-66", "EC-67", "EC-68", "EC-69", "EC-73", "EC-77")
async def test_the_check_that_anybody_may_run_finds_nothing(place: Place) -> None:
    report = await check_environment(place.url, lanes=LANES, raise_on_failure=True)
    assert {check.clause for check in report.checks if check.outcome == "skipped"} == {
        *("EC-70", "EC-74", "EC-75"),  # of this one there is nothing of the kind to see
        *("EC-71", "EC-72", "EC-76", "EC-78"),  # these are not for callers to see
    }


# ── sessions ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("EC-54")
@on_every_lane
async def test_a_first_message_opens_a_session_whose_id_is_a_secret(place: Place, lane: LaneName) -> None:
    ids = [(await place.say(lane, "a"))["session_id"] for _ in range(5)]
    secrets = [base64.urlsafe_b64decode(id.removeprefix("s-") + "==") for id in ids]
    assert all(len(secret) >= 16 for secret in secrets)
    # No byte of them is the same in all.
    assert all(len({secret[at] for secret in secrets}) > 1 for at in range(16))


@pytest.mark.clause("EC-55")
@on_every_lane
async def test_turns_of_one_session_run_one_after_the_other_in_the_order_of_arrival(
    place: Place, lane: LaneName
) -> None:
    session_id = (await place.say(lane, "a"))["session_id"]
    session = place.session(session_id)
    with anyio.fail_after(20):
        async with asyncio.TaskGroup() as tasks:
            turns = [tasks.create_task(place.say(lane, "wait", session_id))]
            await place.agent.started.acquire()
            for number in range(3):
                turns.append(tasks.create_task(place.say(lane, f"m{number}", session_id)))
                while session.using < 2 + number:
                    assert not any(turn.done() for turn in turns), "a turn did not wait for the one before it"
                    await anyio.sleep(0.005)
            place.agent.go_on.release()
    assert [turn.result()["text"] for turn in turns] == ["waited", "3: m0", "4: m1", "5: m2"]


@pytest.mark.clause("EC-56")
@on_every_lane
async def test_what_is_said_in_one_session_cannot_be_seen_in_another(place: Place, lane: LaneName) -> None:
    one = (await place.say(lane, "the word is xyzzy"))["session_id"]
    assert (await place.say(lane, "and xyzzy again", one))["text"].startswith("2: ")
    other = (await place.say(lane, "hello"))["session_id"]
    await place.call(lane, "call_tool", name="remember", arguments={"word": "xyzzy"}, session_id=one)
    again = await place.call(lane, "call_tool", name="remember", arguments={"word": "b"}, session_id=other)
    assert again["text"] == "b"
    assert (await place.say(lane, "c", other))["text"] == "2: c"
    assert "xyzzy" not in json.dumps(await place.call(lane, "state", session_id=other))


VERBS_IN_A_SESSION: Sequence[tuple[str, dict[str, Any]]] = (
    ("call_tool", {"name": "chat", "arguments": {"message": "x"}}),
    ("call_tool", {"name": "remember", "arguments": {"word": "x"}}),
    ("reset", {}),
    ("step", {"action": "x"}),
    ("state", {}),
    ("call_function", {"name": "count"}),
    ("call_reward", {"name": "worth"}),
    ("fork", {}),
    ("release", {}),
)


@pytest.mark.clause("EC-57", "EC-67")
@on_every_lane
async def test_a_session_that_is_not_the_callers_is_unknown_to_every_verb(lane: LaneName) -> None:
    async with serving(auth=TOKENS) as place:
        of_bob = (await place.say(lane, "mine", token="bob"))["session_id"]
        released = (await place.say(lane, "short", token="alice"))["session_id"]
        assert (await place.call(lane, "release", session_id=released, token="alice"))["released"] is True
        for session_id in ("s-nobody-ever-had-this", released, of_bob):
            for verb, fields in VERBS_IN_A_SESSION:
                await place.refused(lane, "unknown_session", verb, session_id=session_id, token="alice", **fields)
        # Nothing was opened in their place, and what there is was not touched.
        assert [session.principal for session in place.server.runtime.sessions] == ["bob"]
        assert place.session(of_bob, "bob").turns == 1


@pytest.mark.clause("EC-58", "EC-68")
@on_every_lane
async def test_what_is_not_declared_is_unknown_and_what_there_is_is_listed(place: Place, lane: LaneName) -> None:
    session_id = (await place.say(lane, "a"))["session_id"]
    tool = await place.refused(lane, "unknown_tool", "call_tool", name="sing", arguments={})
    assert "it has chat, remember, shout" in tool.message
    function = await place.refused(lane, "unknown_tool", "call_function", name="worth", session_id=session_id)
    assert "it has count" in function.message
    reward = await place.refused(lane, "unknown_tool", "call_reward", name="count", session_id=session_id)
    assert "it has worth" in reward.message
    # What orchestrators call is no tool for agents.
    await place.refused(lane, "unknown_tool", "call_tool", name="count", arguments={}, session_id=session_id)
    assert (await place.call(lane, "call_function", name="count", session_id=session_id))["result"] == 1
    assert (await place.call(lane, "call_reward", name="worth", session_id=session_id))["value"] is None


@pytest.mark.clause("EC-59")
@on_every_lane
@pytest.mark.parametrize(
    ("name", "arguments", "pointer"),
    [
        ("chat", {"message": 7}, "/message"),
        ("chat", {}, "/message"),
        ("chat", {"message": "a", "colour": "red"}, None),
        ("shout", {"text": "a", "times": "many"}, "/times"),
        ("shout", {"text": "a", "volume": 11}, "/volume"),
        ("remember", {}, "/word"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_by_their_place(
    place: Place, lane: LaneName, name: str, arguments: dict[str, Any], pointer: str | None
) -> None:
    before = len(place.server.runtime.sessions)
    error = await place.refused(lane, "invalid_arguments", "call_tool", name=name, arguments=arguments)
    if pointer is not None:
        assert pointer in [problem["pointer"] for problem in error.data["problems"]]
    assert len(place.server.runtime.sessions) == before


@pytest.mark.clause("EC-60")
@on_every_lane
async def test_a_call_that_is_refused_fails_or_is_cancelled_leaves_its_session_as_it_was(
    place: Place, lane: LaneName
) -> None:
    session_id = (await place.say(lane, "a"))["session_id"]
    await place.call(lane, "call_tool", name="remember", arguments={"word": "x"}, session_id=session_id)
    before = await place.call(lane, "state", session_id=session_id)

    await place.refused(lane, "unknown_tool", "call_tool", name="sing", arguments={}, session_id=session_id)
    for name, arguments in (("chat", {"message": "fail"}), ("remember", {"word": "fail"})):
        await place.refused(lane, "agent_failed", "call_tool", name=name, arguments=arguments, session_id=session_id)
    with anyio.fail_after(20):
        turn = asyncio.create_task(place.say(lane, "wait", session_id))
        await place.agent.started.acquire()
        turn.cancel()
        await place.agent.cancelled.acquire()
    short = CallContext().within(0.5)
    wait = {"name": "chat", "arguments": {"message": "wait"}, "session_id": session_id}
    with anyio.fail_after(20):
        await place.refused(lane, "deadline_exceeded", "call_tool", context=short, **wait)
        await place.agent.started.acquire()
        await place.agent.cancelled.acquire()

    words = await place.call(lane, "call_tool", name="remember", arguments={"word": "y"}, session_id=session_id)
    assert words["text"] == "x y"
    assert await place.call(lane, "state", session_id=session_id) == before
    assert (await place.say(lane, "b", session_id))["text"] == "2: b"


# ── answers and errors ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("EC-61")
@on_every_lane
async def test_an_answer_has_every_member_and_a_reward_that_was_not_given_is_null(place: Place, lane: LaneName) -> None:
    said = await place.say(lane, "good")
    members = {"content", "text", "data", "is_error", "session_id", "usage", "reward", "stop", "call_id"}
    assert members <= said.keys()
    assert (said["text"], said["reward"], said["is_error"], said["stop"]) == ("1: good", 1.0, False, "end_turn")
    assert said["content"] == [{"type": "text", "text": "1: good"}]
    plain = await place.say(lane, "plain", said["session_id"])
    assert plain["reward"] is None and plain["call_id"] != said["call_id"]
    assert (await place.say(lane, "data"))["data"] == {"n": [1, 2.5, None, "é"]}
    assert (await place.call(lane, "call_tool", name="shout", arguments={"text": "a"}))["data"] == {"said": "A"}


@pytest.mark.clause("EC-62")
@on_every_lane
async def test_an_error_has_a_code_and_what_to_do_and_nothing_of_the_insides(place: Place, lane: LaneName) -> None:
    for name, arguments in (("chat", {"message": "fail"}), ("remember", {"word": "fail"})):
        error = await place.refused(lane, "agent_failed", "call_tool", name=name, arguments=arguments)
        assert type(error) is AgentFailed
        wire = error.to_wire()
        assert wire.keys() == {"code", "message", "retryable", "data"}
        assert "ValueError" in wire["message"] and "log" in wire["message"]
        assert not any(inside in json.dumps(wire) for inside in ("secret", "Traceback", ".py"))


class FullDisk:
    """A recorder that cannot keep anything, and says so in words of its own."""

    async def record(self, records: Sequence[Record]) -> None:
        raise OSError("a secret of the disk")


@pytest.mark.clause("EC-62")
@on_every_lane
async def test_a_failure_of_the_server_itself_tells_nothing_of_the_insides(lane: LaneName) -> None:
    async with serving(recorder=FullDisk()) as place:
        failed = await place.refused(lane, "internal", "call_tool", name="chat", arguments={"message": "a"})
        assert "log" in failed.message and not failed.retryable
        assert not any(inside in json.dumps(failed.to_wire()) for inside in ("secret", "OSError", "Traceback", ".py"))


@pytest.mark.clause("EC-57")
async def test_the_client_never_goes_on_in_a_fresh_session() -> None:
    async with serving() as place, Environment(place.url, lane="http") as env:
        await env.chat("a")
        await place.call("http", "release", session_id=env.session_id)
        for _ in range(2):
            with pytest.raises(UnknownSession):
                await env.chat("b")
