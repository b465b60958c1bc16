"""Episodes: that reset starts one, and step plays it to its end."""

from __future__ import annotations

from agent_env.testing.subject import Skip, Way, expect

RESET_ANSWER = frozenset({"session_id", "observation", "info"})
STEP_ANSWER = frozenset({"observation", "reward", "terminated", "truncated", "info", "session_id"})
SEED = 7
MANY_TURNS = 8
"""Episodes that may be longer than this are not played to their end."""


async def starts_an_episode(way: Way) -> None:
    """EC-63."""
    opened = await way.call("reset", seed=SEED)
    missing = sorted(RESET_ANSWER - opened.keys())
    expect(not missing, f"reset answered no {', '.join(missing)}")
    session_id = str(opened["session_id"])
    await way.say(session_id)
    again = await way.call("reset", session_id=session_id, seed=SEED)
    expect(again["session_id"] == session_id, "reset went to another session")
    state = await way.state(session_id)
    expect(state["turns"] == 0 and not state["messages"], "the session still has turns after its reset")
    if way.subject.card.episode.seedable:
        expect(again["observation"] == opened["observation"], f"the seed {SEED} started two different episodes")


async def plays_an_episode_step_by_step(way: Way) -> None:
    """EC-64."""
    session_id = str((await way.call("reset"))["session_id"])
    limit = way.subject.card.episode.turn_limit
    for turn in range(1, (limit if limit is not None and limit <= MANY_TURNS else 1) + 1):
        step = await way.call("step", action=way.subject.message, session_id=session_id)
        missing = sorted(STEP_ANSWER - step.keys())
        expect(not missing, f"step answered no {', '.join(missing)}")
        expect(isinstance(step["terminated"], bool), f"terminated is {step['terminated']!r:.100}")
        expect(step["truncated"] is (turn == limit), f"at turn {turn} of {limit} truncated is {step['truncated']!r}")
        if step["terminated"] or step["info"].get("stop") == "input_required":
            return
    if limit is not None and limit > MANY_TURNS:
        raise Skip(f"an episode of {limit} turns was not played to its end")
