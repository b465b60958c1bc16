"""Control flow between agents: each a team of served agents, played in this process and over sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from stages import LANES, Stage, staged

from agent_env.client.resolution import LaneName
from agent_env.episodes import Episode, Node
from agent_env.errors import AgentEnvError
from agent_env.net import post_json
from agent_env.training import Policy, PolicyServer, Scenario, Seat, Team, WordTokenizer, learn, make_model
from agent_env_wrappers.contract import ModelRoute

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("lane", LANES)]

Peers: TypeAlias = Mapping[str, Callable[[str], Awaitable[str]]]
Seats: TypeAlias = "list[tuple[str | None, Seats]]"


def seats_of(episode: Episode) -> Seats:
    """The tree of calls, nested, by the seats that were called."""

    def below(node: Node) -> Seats:
        return [(None if child.edge is None else child.edge.callee_seat, below(child)) for child in node.children]

    return below(episode.tree())


async def check(stage: Stage, episode: Episode) -> None:
    """Every call has its edge and its turn, and no conversation is left open."""
    assert episode.ok, episode.failures
    assert not any((await stage.sessions()).values())
    assert {edge.protocol for edge in episode.edges} == {stage.lane}
    turns = {turn.call_id for trace in episode.traces for turn in trace.turns}
    assert turns == {edge.callee_call_id for edge in episode.edges if edge.status == "ok"} | {
        turn.call_id for trace in episode.traces for turn in trace.turns if turn.status != "ok"
    }


async def test_one_agent_calls_another(tmp_path: Path, lane: LaneName) -> None:
    async def a(message: str, peers: Peers) -> str:
        return "a:" + await peers["b"](message + "!")

    async def b(message: str) -> str:
        return f"b:{message}"

    async def play(team: Team, task: str) -> str:
        return (await team["a"].chat(task)).text

    with anyio.fail_after(30):
        async with staged(tmp_path, lane, {"a": a, "b": b}, {"a": ["b"]}) as stage:
            (episode,) = await stage.play(play, ["hi"])
            await check(stage, episode)
    assert episode.ok and episode.info["result"] == "a:b:hi!"
    assert seats_of(episode) == [("a", [("b", [])])]
    assert {trace.agent for trace in episode.traces} == {"a@1.0.0", "b@1.0.0"}
    (inner,) = [edge for edge in episode.edges if edge.caller is not None]
    assert (inner.caller, inner.callee, inner.request, inner.reply) == ("a@1.0.0", "b@1.0.0", "hi!", "b:hi!")


async def test_a_manager_calls_workers_at_once_and_one_that_fails_leaves_the_others_alone(
    tmp_path: Path, lane: LaneName
) -> None:
    names = ["left", "middle", "right"]
    together, failed = asyncio.Barrier(3), asyncio.Event()

    async def manager(message: str, peers: Peers) -> str:
        async def ask(name: str) -> str:
            try:
                return await peers[name](message)
            except AgentEnvError as error:
                failed.set()
                return error.code

        return json.dumps(await asyncio.gather(*map(ask, names)))

    def worker(name: str) -> Callable[[str], Awaitable[str]]:
        async def work(message: str) -> str:
            await together.wait()  # which all three must do at the same time
            if name == "middle":
                raise RuntimeError("the one in the middle breaks")
            await failed.wait()
            return f"{name}:{message}"

        return work

    async def play(team: Team, task: str) -> Any:
        return json.loads((await team["manager"].chat(task)).text)

    agents: dict[str, Callable[..., Any]] = {"manager": manager, **{name: worker(name) for name in names}}
    with anyio.fail_after(30):
        async with staged(tmp_path, lane, agents, {"manager": names}) as stage:
            (episode,) = await stage.play(play)
            await check(stage, episode)
    assert episode.ok and episode.info["result"] == ["left:go", "agent_failed", "right:go"]
    ended = {edge.callee_seat: edge.status for edge in episode.edges if edge.caller is not None}
    assert ended == {"left": "ok", "middle": "agent_failed", "right": "ok"}
    ((root, below),) = seats_of(episode)
    assert root == "manager" and sorted(str(seat) for seat, _ in below if seat) == names


async def test_seats_that_the_program_calls_at_once_do_not_end_each_other_either(
    tmp_path: Path, lane: LaneName
) -> None:
    failed = asyncio.Event()

    async def bad(message: str) -> str:
        raise RuntimeError("broken")

    async def good(message: str) -> str:
        await failed.wait()
        return message

    async def play(team: Team, task: str) -> list[str]:
        async def ask(seat: str) -> str:
            try:
                return (await team[seat].chat(task)).text
            except AgentEnvError as error:
                failed.set()
                return error.code

        return list(await asyncio.gather(ask("bad"), ask("good")))

    with anyio.fail_after(30):
        async with staged(tmp_path, lane, {"bad": bad, "good": good}) as stage:
            (episode,) = await stage.play(play)
            await check(stage, episode)
    assert episode.ok and episode.info["result"] == ["agent_failed", "go"]


async def test_a_worker_calls_back_to_the_managers_environment(tmp_path: Path, lane: LaneName) -> None:
    async def manager(message: str, peers: Peers) -> str:
        if message.startswith("what about "):
            return message.removeprefix("what about ").upper()
        return f"manager({await peers['worker'](message)})"

    async def worker(message: str, peers: Peers) -> str:
        return f"worker({await peers['manager'](f'what about {message}')})"

    async def play(team: Team, task: str) -> str:
        return (await team["manager"].chat(task)).text

    with anyio.fail_after(30):
        async with staged(
            tmp_path, lane, {"manager": manager, "worker": worker}, {"manager": ["worker"], "worker": ["manager"]}
        ) as stage:
            # One place for episodes, and the manager's own environment waits for the worker that calls it.
            episodes = await stage.play(play, ["it", "that"], concurrency=1)
            for episode in episodes:
                await check(stage, episode)
    assert [episode.info["result"] for episode in episodes] == ["manager(worker(IT))", "manager(worker(THAT))"]
    for episode in episodes:
        assert seats_of(episode) == [("manager", [("worker", [("manager", [])])])]
        managers = [trace for trace in episode.traces if trace.seat == "manager"]
        assert len(managers) == 2 and len({trace.session for trace in managers}) == 2


async def test_three_levels_play_in_a_single_place(tmp_path: Path, lane: LaneName) -> None:
    async def top(message: str, peers: Peers) -> str:
        return "top " + await peers["middle"](message)

    async def middle(message: str, peers: Peers) -> str:
        # Two of them at once below a caller that waits itself.
        return "+".join(await asyncio.gather(peers["leaf"](message), peers["other"](message)))

    async def leaf(message: str) -> str:
        return f"leaf {message}"

    async def play(team: Team, task: str) -> str:
        return (await team["top"].chat(task)).text

    agents: dict[str, Callable[..., Any]] = {"top": top, "middle": middle, "leaf": leaf, "other": leaf}
    with anyio.fail_after(30):
        async with staged(tmp_path, lane, agents, {"top": ["middle"], "middle": ["leaf", "other"]}) as stage:
            episodes = await stage.play(play, list("abcd"), concurrency=1)
            for episode in episodes:
                await check(stage, episode)
    assert [episode.info["result"] for episode in episodes] == [f"top leaf {x}+leaf {x}" for x in "abcd"]
    for episode in episodes:
        ((root, ((below, leaves),)),) = seats_of(episode)
        assert (root, below, sorted(str(seat) for seat, _ in leaves)) == ("top", "middle", ["leaf", "other"])


async def test_two_debate_in_turns_before_a_judge(tmp_path: Path, lane: LaneName) -> None:
    def debater(side: str) -> Callable[[str], Awaitable[str]]:
        async def argue(message: str) -> str:
            return f"{message.count('|')}{side}"

        return argue

    async def judge(message: str) -> str:
        return "pro" if message.count("pro") >= message.count("con") else "con"

    async def play(team: Team, task: str) -> dict[str, Any]:
        said = [task]
        for _ in range(3):
            for side in ("pro", "con"):
                said.append((await team[side].chat("|".join(said))).text)
        return {"said": said[1:], "won": (await team["judge"].chat("|".join(said))).text}

    def score(episode: Episode) -> dict[str, dict[str, float]]:
        won = episode.info["result"]["won"]
        return {side: {"won": 1.0 if side == won else -1.0} for side in ("pro", "con")}

    with anyio.fail_after(30):
        async with staged(tmp_path, lane, {"pro": debater("pro"), "con": debater("con"), "judge": judge}) as stage:
            seats = {name: stage.seat(name, trainable=name != "judge") for name in ("pro", "con", "judge")}
            (episode,) = await stage.play(play, ["tea?"], score=score, seats=seats)
            await check(stage, episode)
    assert episode.info["result"] == {"said": ["0pro", "1con", "2pro", "3con", "4pro", "5con"], "won": "pro"}
    assert [seat for seat, _ in seats_of(episode)] == ["pro", "con"] * 3 + ["judge"]
    # Each has one conversation throughout, and the judge is told from those that learn.
    traces = {trace.seat: trace for trace in episode.traces}
    assert {seat: len(trace.turns) for seat, trace in traces.items()} == {"pro": 3, "con": 3, "judge": 1}
    assert {seat: trace.trainable for seat, trace in traces.items()} == {"pro": True, "con": True, "judge": False}
    assert (episode.reward("pro"), episode.reward("con"), episode.reward("judge")) == (1.0, -1.0, None)


async def test_two_move_at_the_same_time(tmp_path: Path, lane: LaneName) -> None:
    together = asyncio.Barrier(2)

    def mover(move: str) -> Callable[[str], Awaitable[str]]:
        async def choose(message: str) -> str:
            await together.wait()  # neither answers before the other was asked
            return move

        return choose

    async def play(team: Team, task: str) -> list[str]:
        first, second = await asyncio.gather(team["first"].chat(task), team["second"].chat(task))
        return [first.text, second.text]

    async def score(episode: Episode) -> dict[str | None, dict[str, Any]]:
        await asyncio.sleep(0)
        paper_wins = episode.info["result"] == ["paper", "stone"]
        return {"first": {"won": float(paper_wins)}, "second": {"won": -float(paper_wins)}, None: {"draw": (1.0, 0.0)}}

    with anyio.fail_after(30):
        async with staged(tmp_path, lane, {"first": mover("paper"), "second": mover("stone")}) as stage:
            episodes = await stage.play(play, ["1", "2"], score=score, concurrency=1)
            for episode in episodes:
                await check(stage, episode)
    for episode in episodes:
        assert episode.ok and (episode.reward("first"), episode.reward("second")) == (1.0, -1.0)
        assert sorted(str(seat) for seat, _ in seats_of(episode)) == ["first", "second"]


async def ask(model: ModelRoute, text: str) -> str:
    answer = await post_json(
        f"{model.base_url}/chat/completions",
        {"model": model.model, "messages": [{"role": "user", "content": text}], "max_tokens": 2},
        headers={"Authorization": f"Bearer {model.api_key}"},
        timeout=20,
    )
    return str(answer["choices"][0]["message"]["content"])


async def test_one_policy_plays_itself_in_two_seats_before_a_frozen_judge(tmp_path: Path, lane: LaneName) -> None:
    tokenizer = WordTokenizer(["stone", "paper", "go"])
    shared = Policy("shared", make_model(tokenizer, seed=1), tokenizer, seed=1)
    frozen = Policy("frozen", make_model(tokenizer, seed=2), tokenizer, seed=2)
    before = [weight.clone() for weight in frozen.model.parameters()]

    async def player(message: str, model: ModelRoute) -> str:
        return await ask(model, message)

    async def play(team: Team, task: str) -> dict[str, str]:
        moves = await asyncio.gather(team["first"].chat(task), team["second"].chat(task))
        judged = await team["judge"].chat("stone" if "stone" in moves[0].text else "paper")
        return {"first": moves[0].text, "second": moves[1].text, "judge": judged.text}

    def score(episode: Episode) -> dict[str, dict[str, float]]:
        value = float(len(episode.info["result"]["judge"]) % 2) + episode.info["sample"]
        return {"first": {"won": value}, "second": {"won": -value}}

    agents = {"first": player, "second": player, "judge": player}
    policies = {"first": "shared", "second": "shared", "judge": "frozen"}
    models = PolicyServer([shared, frozen])
    with anyio.fail_after(60):
        async with staged(tmp_path, lane, agents, models=models, policies=policies) as stage:
            seats = {
                # Both play against the same environment, in a conversation each.
                "first": Seat(stage.seat("first").env, "shared"),
                "second": Seat(stage.seat("first").env, "shared"),
                "judge": stage.seat("judge", policy="frozen", trainable=False),
            }
            scenario = Scenario(play, score, seats)
            episodes = await stage.play(play, ["go", "go"], score=score, seats=seats, group_size=4)
            for episode in episodes:
                await check(stage, episode)
            assert all(episode.ok for episode in episodes), episodes[0].failures
            for episode in episodes:
                traces = {trace.seat: trace for trace in episode.traces}
                assert {seat: trace.agent for seat, trace in traces.items()} == {
                    **dict.fromkeys(("first", "second"), "first@1.0.0"),
                    "judge": "judge@1.0.0",
                }
                assert traces["first"].session != traces["second"].session
                for seat, trace in traces.items():
                    ((call,), (turn,)) = trace.calls, trace.turns
                    assert (call.seat, call.model, call.parent_call_id) == (seat, policies[str(seat)], turn.call_id)
                assert {seat: trace.trainable for seat, trace in traces.items()} == {
                    **dict.fromkeys(("first", "second"), True),
                    "judge": False,
                }
            learners = scenario.seated({"shared": shared, "frozen": frozen}, trainable=True)
            assert learners == {"first": shared, "second": shared}
            lessons = learn(learners, episodes)
    # One update of one policy, from the rows of both its seats and of no other.
    assert set(lessons.policies) == {"shared"} and lessons.policies["shared"].rows == 2 * len(episodes)
    assert (shared.version, frozen.version) == (1, 0)
    assert all((old == new).all() for old, new in zip(before, frozen.model.parameters(), strict=True))
