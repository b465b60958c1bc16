"""Conversations: that sessions are opened, go on, stay apart, are copied and end."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_env.testing.subject import Skip, Way, expect

RANDOM_BITS = 128
CALL_ANSWER = frozenset({"content", "text", "data", "is_error", "session_id", "usage", "reward", "stop", "call_id"})


async def lists_the_tools_on_its_card(way: Way) -> None:
    """EC-53."""
    listed = {tool["name"]: tool for tool in (await way.call("list_tools"))["tools"]}
    on_card = {tool.name: tool for tool in way.subject.card.capabilities.tools}
    expect(
        listed.keys() == on_card.keys(),
        f"it lists {', '.join(sorted(listed))}; its card has {', '.join(sorted(on_card))}",
    )
    for name, tool in on_card.items():
        expect(listed[name]["inputSchema"] == tool.input_schema, f"the card has another inputSchema of {name!r}")
        expect(listed[name].get("outputSchema") == tool.output_schema, f"the card has another outputSchema of {name!r}")


async def opens_a_session_for_a_first_message(way: Way) -> None:
    """EC-54."""
    first, second = await asyncio.gather(way.say(), way.say())
    ids = [answer.get("session_id") for answer in (first, second)]
    expect(all(isinstance(id, str) and id for id in ids), f"it answered the session ids {ids!r}")
    expect(ids[0] != ids[1], "two conversations got the same session id")
    # base64 has 6 bits a character; a shorter id cannot hold the bits that make it a secret.
    expect(all(len(str(id)) * 6 >= RANDOM_BITS for id in ids), f"{ids[0]!r} is too short for {RANDOM_BITS} random bits")


async def goes_on_in_a_session_in_the_order_of_arrival(way: Way) -> None:
    """EC-55."""
    way.turns(3)
    first = await way.say()
    session_id = str(first["session_id"])
    said = [f"{way.subject.message} ({number})" for number in (2, 3)]
    answers = await asyncio.gather(*(way.say(session_id, message) for message in said))
    expect(all(answer["session_id"] == session_id for answer in answers), "it went on in another session")
    state = await way.state(session_id)
    played = sum(answer["stop"] != "input_required" for answer in (first, *answers))
    expect(state["turns"] == played, f"{played} turns were played, and state tells {state['turns']}")
    heard = [message["content"] for message in state["messages"] if message["role"] == "user"]
    expect(heard == [way.subject.message, *said], f"its messages came in the order {heard!r:.200}")


async def keeps_sessions_apart(way: Way) -> None:
    """EC-56."""
    secret = f"{way.subject.message} (for this session alone)"
    one, other = await asyncio.gather(way.say(message=secret), way.say())
    state = await way.state(str(other["session_id"]))
    heard = [message["content"] for message in state["messages"]]
    expect(not any(secret in content for content in heard), "what was said in one session stands in another")
    expect(one["session_id"] != other["session_id"], "two conversations got the same session")


async def refuses_sessions_that_are_not_there(way: Way) -> None:
    """EC-57."""
    released = str((await way.call("reset"))["session_id"])
    await way.call("release", session_id=released)
    verbs: dict[str, dict[str, Any]] = {
        "call_tool": {"name": "chat", "arguments": {"message": way.subject.message}},
        "reset": {},
        "step": {"action": way.subject.message},
        "state": {},
        "release": {},
    }
    if _forks(way):
        verbs["fork"] = {}
    if way.subject.card.rewards:
        verbs["call_reward"] = {"name": way.subject.card.rewards[0].name}
    for session_id in ("s-" + "0" * 22, released):
        for verb, more in verbs.items():
            await way.refused("unknown_session", verb=verb, session_id=session_id, **more)


async def leaves_a_session_as_it_was_when_it_refuses(way: Way) -> None:
    """EC-60."""
    session_id = str((await way.say())["session_id"])
    before = await way.state(session_id)
    await way.refused("unknown_tool", verb="call_tool", name="no-such-tool", arguments={}, session_id=session_id)
    await way.refused(
        "invalid_arguments", verb="call_tool", name="chat", arguments={"message": 7}, session_id=session_id
    )
    await way.refused("invalid_arguments", verb="step", action=7, session_id=session_id)
    after = await way.state(session_id)
    expect(after == before, f"its state was {dict(before)!r:.200} and is {dict(after)!r:.200}")


async def answers_with_every_member(way: Way) -> None:
    """EC-61."""
    answer = await way.say()
    missing = sorted(CALL_ANSWER - answer.keys())
    expect(not missing, f"the answer has no {', '.join(missing)}")
    expect(isinstance(answer["content"], list) and answer["content"], "the answer's content is no list of parts")
    expect(isinstance(answer["text"], str), f"the answer's text is {answer['text']!r:.100}")
    reward = answer["reward"]
    expect(reward is None or isinstance(reward, int | float), f"the reward is {reward!r:.100}")
    if not way.subject.card.rewards:
        expect(reward is None, f"its card has no rewards, and it gave {reward!r}")


async def tells_the_state_and_changes_nothing(way: Way) -> None:
    """EC-65."""
    session_id = str((await way.call("reset"))["session_id"])
    first, second = await way.state(session_id), await way.state(session_id)
    expect(first == second, "asking for the state changed it")
    expect(first.get("turns") == 0, f"a session without a turn has {first.get('turns')!r} turns")


async def copies_a_session_where_its_card_says_so(way: Way) -> None:
    """EC-66."""
    session_id = str((await way.say())["session_id"])
    if not _forks(way):
        await way.refused("not_supported", verb="fork", session_id=session_id)
        return
    way.turns(2)
    before = await way.state(session_id)
    fork = str((await way.call("fork", session_id=session_id))["session_id"])
    expect(fork != session_id, "the copy has the id of the session that it was made of")
    copied = await way.state(fork)
    expect(copied["messages"] == before["messages"], "the copy has another past")
    await way.say(fork)
    expect(await way.state(session_id) == before, "a turn of the copy changed the session that it was made of")


async def ends_a_session_that_is_released(way: Way) -> None:
    """EC-67."""
    session_id = str((await way.call("reset"))["session_id"])
    answer = await way.call("release", session_id=session_id)
    expect(answer.get("released") is True, f"release answered {dict(answer)!r:.100}")
    await way.refused("unknown_session", verb="state", session_id=session_id)


async def takes_the_answer_to_what_it_asks(way: Way) -> None:
    """EC-70."""
    if way.subject.card.caps is not None and not way.subject.card.caps.interrupts:
        raise Skip("its card says that it asks its callers nothing")
    asked = await way.say()
    if asked["stop"] != "input_required":
        raise Skip(f"it asked nothing when it was told {way.subject.message!r:.100}")
    question = asked.get("interrupt") or {}
    expect({"id", "kind", "prompt"} <= question.keys(), f"its question is {question!r:.200}")
    session_id = str(asked["session_id"])
    expect((await way.state(session_id))["interrupt"] is not None, "its state does not tell that it waits")
    answered = await way.say(session_id)
    expect(answered["session_id"] == session_id, "the answer went to another session")


def _forks(way: Way) -> bool:
    session = way.subject.card.session
    return session is not None and bool(session.fork)
