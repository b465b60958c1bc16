"""What a running environment does in episodes, forks and questions, the same on every interface, clause by clause of `cards/README.md`, over real sockets on every lane."""

from __future__ import annotations

import json
from typing import Any

import pytest
from behaving import LANES, Agent, Once, Place, make, on_every_lane

from agent_env.client.lanes.websocket import close_sockets
from agent_env.client.resolution import LaneName
from agent_env.errors import AgentEnvError

pytestmark = pytest.mark.anyio


# ── episodes ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("EC-63")
@on_every_lane
async def test_reset_puts_a_session_back_and_a_seed_starts_the_same_episode(place: Place, lane: LaneName) -> None:
    assert place.server.card.episode.seedable
    opened = await place.call(lane, "reset", seed=3)
    session_id = opened["session_id"]
    await place.say(lane, "a", session_id)
    await place.call(lane, "call_tool", name="remember", arguments={"word": "x"}, session_id=session_id)
    again = await place.call(lane, "reset", session_id=session_id, seed=3, options={"level": 2})
    assert again.keys() == {"session_id", "observation", "info"}
    assert (again["session_id"], again["observation"]) == (session_id, opened["observation"])
    other = await place.call(lane, "reset", session_id=session_id, seed=4)
    assert other["observation"] != opened["observation"]
    state = await place.call(lane, "state", session_id=session_id)
    assert (state["turns"], state["messages"]) == (0, [])
    assert (await place.say(lane, "b", session_id))["text"] == "1: b"
    words = await place.call(lane, "call_tool", name="remember", arguments={"word": "y"}, session_id=session_id)
    assert words["text"] == "y"
    # At its start nothing is asked, and nothing has ended.
    await place.say(lane, "ask", session_id)
    await place.call(lane, "reset", session_id=session_id)
    assert (await place.call(lane, "state", session_id=session_id))["interrupt"] is None
    await place.say(lane, "last", session_id)
    await place.call(lane, "reset", session_id=session_id)
    assert (await place.say(lane, "c", session_id))["text"] == "1: c"


@pytest.mark.clause("EC-64")
@on_every_lane
async def test_steps_lead_to_the_turn_limit_or_to_an_end(place: Place, lane: LaneName) -> None:
    limit = place.server.card.episode.turn_limit
    assert limit == 8
    step = await place.call(lane, "step", action="good")
    assert {"observation", "reward", "terminated", "truncated", "info"} <= step.keys()
    assert (step["observation"], step["reward"], step["terminated"], step["truncated"]) == (
        "1: good",
        1.0,
        False,
        False,
    )
    session_id = step["session_id"]
    ends = [
        (await place.call(lane, "step", action=f"{turn}", session_id=session_id))["truncated"]
        for turn in range(2, limit + 1)
    ]
    assert ends == [False] * (limit - 2) + [True]
    over = await place.refused(lane, "invalid_arguments", "step", action="more", session_id=session_id)
    assert "reset it" in over.message
    last = await place.call(lane, "step", action="last")
    assert (last["reward"], last["terminated"], last["truncated"]) == (0.5, True, False)
    tool = await place.call(lane, "step", action={"tool": "shout", "arguments": {"text": "a"}})
    assert (tool["observation"], tool["reward"]) == ({"said": "A"}, None)


@pytest.mark.clause("EC-65")
@on_every_lane
async def test_state_tells_the_turns_and_changes_nothing(place: Place, lane: LaneName) -> None:
    session_id = (await place.say(lane, "a"))["session_id"]
    states = [await place.call(lane, "state", session_id=session_id) for _ in range(3)]
    assert states[0] == states[1] == states[2]
    assert states[0]["turns"] == 1
    assert [message["content"] for message in states[0]["messages"]] == ["a", "1: a"]
    assert (await place.say(lane, "b", session_id))["text"] == "2: b"


@pytest.mark.clause("EC-66")
@on_every_lane
async def test_a_fork_goes_on_from_the_same_past_apart(place: Place, lane: LaneName) -> None:
    assert place.server.card.session is not None and place.server.card.session.fork
    session_id = (await place.say(lane, "a"))["session_id"]
    await place.call(lane, "call_tool", name="remember", arguments={"word": "x"}, session_id=session_id)
    fork = (await place.call(lane, "fork", session_id=session_id))["session_id"]
    assert fork != session_id
    for one, said in ((fork, "b"), (session_id, "c")):
        assert (await place.say(lane, said, one))["text"] == f"2: {said}"
        words = await place.call(lane, "call_tool", name="remember", arguments={"word": said}, session_id=one)
        assert words["text"] == f"x {said}"
        state = await place.call(lane, "state", session_id=one)
        assert [message["content"] for message in state["messages"]] == ["a", "1: a", said, f"2: {said}"]


@pytest.mark.clause("EC-66")
@on_every_lane
async def test_a_fork_that_the_card_does_not_offer_is_refused(lane: LaneName) -> None:
    async with make(Once(state="handle", fork=False)).serving(register=False) as server:
        place = Place(server, Agent())
        assert server.card.session is not None and not server.card.session.fork
        session_id = (await place.say(lane, "a"))["session_id"]
        await place.refused(lane, "not_supported", "fork", session_id=session_id)
        await close_sockets()


# ── the same everywhere ────────────────────────────────────────────────────────────────────────────────────────────


async def script(place: Place, lane: LaneName) -> list[Any]:
    """Calls every verb, also wrongly; what came of it, without what is minted for each call."""
    session_id = (await place.call(lane, "reset", seed=1))["session_id"]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("list_tools", {}),
        ("call_tool", {"name": "chat", "arguments": {"message": "good"}}),
        ("call_tool", {"name": "chat", "arguments": {"message": "data"}}),
        ("call_tool", {"name": "chat", "arguments": {"message": "fail"}}),
        ("call_tool", {"name": "chat", "arguments": {"message": ["no"]}}),
        ("call_tool", {"name": "shout", "arguments": {"text": "é\n😀", "times": 2}}),
        ("call_tool", {"name": "shout", "arguments": {"text": 1}}),
        ("call_tool", {"name": "sing", "arguments": {}}),
        ("step", {"action": "good"}),
        ("step", {"action": {"tool": "remember", "arguments": {"word": "w"}}}),
        ("step", {"action": 7}),
        ("state", {}),
        ("call_function", {"name": "count"}),
        ("call_function", {"name": "nothing"}),
        ("call_reward", {"name": "worth"}),
        ("call_tool", {"name": "chat", "arguments": {"message": "ask"}}),
        ("state", {}),
        ("call_tool", {"name": "chat", "arguments": {"message": "", "answer": True}}),
        ("reset", {"seed": "seven"}),
        ("fork", {"depth": 1}),
        ("release", {}),
        ("state", {}),
    ]
    outcomes: list[Any] = []
    for verb, fields in calls:
        # Every verb but the first takes the session.
        held = {} if verb == "list_tools" else {"session_id": session_id}
        try:
            answer: Any = await place.call(lane, verb, **held, **fields)
        except AgentEnvError as error:
            answer = error.to_wire()
        outcomes.append(json.loads(json.dumps(answer).replace(session_id, "the session")))
    return [without_ids(outcome) for outcome in outcomes]


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "an id" if key == "call_id" else without_ids(item) for key, item in value.items()}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


@pytest.mark.clause("EC-69")
async def test_every_verb_gives_the_same_result_reward_and_error_on_every_interface(place: Place) -> None:
    first = await script(place, LANES[0])
    for lane in LANES[1:]:
        for mine, other in zip(first, await script(place, lane), strict=True):
            assert mine == other, lane


@pytest.mark.clause("EC-70")
@on_every_lane
async def test_a_question_is_answered_by_the_next_message(place: Place, lane: LaneName) -> None:
    asked = await place.say(lane, "ask")
    session_id = asked["session_id"]
    assert asked["stop"] == "input_required" and asked["text"] == "Really?"
    question = {"id": "q1", "kind": "approval", "prompt": "Really?", "schema": {"type": "boolean"}}
    assert asked["interrupt"] == question
    state = await place.call(lane, "state", session_id=session_id)
    assert (state["interrupt"], state["turns"]) == (question, 0)
    answer = {"message": "", "answer": True}
    answered = await place.call(lane, "call_tool", name="chat", arguments=answer, session_id=session_id)
    assert (answered["text"], answered["stop"]) == ('answered {"q1": true}', "end_turn")
    assert (await place.call(lane, "state", session_id=session_id))["interrupt"] is None
    # A plain client has only words; they are read by the question's schema.
    await place.say(lane, "ask", session_id)
    assert (await place.say(lane, "false", session_id))["text"] == 'answered {"q1": false}'
