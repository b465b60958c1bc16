"""How the records of many episodes are asked of a gateway at once: whoever asks is told, whatever it answers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_env.errors import ProtocolError
from agent_env.gateway import RunHandle, running
from agent_env.training import Scenario, Team, collect, rollout
from agent_env.training.playing import Collector, Records

pytestmark = pytest.mark.anyio


def line(episode: object) -> str:
    return json.dumps({"kind": "reward", "name": "x", "value": 1.0, "episode": episode}) + "\n"


class Answers:
    """A gateway that answers each question for records as it is told to."""

    def __init__(self, answer: Callable[[list[str]], str]) -> None:
        self.answer = answer
        self.asked: list[list[str]] = []
        self.hold = anyio.Event()
        self.hold.set()

    async def respond(self, request: Request) -> Response:
        episodes = (await request.json())["episodes"]
        self.asked.append(episodes)
        await self.hold.wait()
        return Response(self.answer(episodes))

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[RunHandle, None]:
        app = Starlette(routes=[Route("/runs/r/collect", self.respond, methods=["POST"])])
        async with running(app) as url:
            yield RunHandle(url, "r", "secret", {"a": None}, "admin")


async def everybody(collector: Collector, episodes: list[str]) -> list[Records | Exception | None]:
    """What each of those who ask at once is told."""
    told: list[Records | Exception | None] = [None] * len(episodes)

    async def ask(place: int) -> None:
        try:
            told[place] = await collector.records(episodes[place])
        except Exception as error:  # noqa: BLE001 - which is what the test looks at
            told[place] = error

    async with anyio.create_task_group() as group:
        for place in range(len(episodes)):
            group.start_soon(ask, place)
    return told


async def test_one_episode_may_be_asked_for_by_several_at_once_and_again() -> None:
    answers = Answers(lambda episodes: "".join(map(line, episodes)))
    with anyio.fail_after(20):
        async with answers.run() as run:
            collector = Collector(run)
            for _ in range(2):
                told = await everybody(collector, ["e1", "e2", "e1", "e1"])
                assert [records[0]["episode"] for records in told if isinstance(records, list)] == [
                    "e1",
                    "e2",
                    "e1",
                    "e1",
                ]
            await collector.aclose()
    assert sorted(name for asked in answers.asked for name in asked).count("e1") < 8


@pytest.mark.parametrize(
    "answer", [line("other"), line(None), line([1]), "{}\n", "[]\n", "5\n", "not JSON\n", '{"episode": "e1"']
)
async def test_an_answer_that_is_no_records_of_what_was_asked_is_an_error_for_each_who_asked(answer: str) -> None:
    answers = Answers(lambda episodes: answer)
    with anyio.fail_after(20):
        async with answers.run() as run:
            collector = Collector(run)
            told = await everybody(collector, ["e1", "e2"])
            assert all(isinstance(error, ProtocolError) and "which is none of them" in error.message for error in told)
            answers.answer = lambda episodes: ""
            assert await everybody(collector, ["e1", "e2"]) == [[], []]
            await collector.aclose()


async def test_a_run_that_forgets_an_episode_is_told_of_in_that_episode_alone() -> None:
    class Forgetful(RunHandle):
        async def collect(self, episodes: object) -> dict[str, Records]:
            return {"e1": []}

    told = await everybody(Collector(Forgetful("http://127.0.0.1:9", "r", "s", {"a": None}, "admin")), ["e1", "e2"])
    assert told[0] == [] and isinstance(told[1], ProtocolError) and "the episode 'e2'" in told[1].message


async def test_nobody_waits_for_a_question_that_was_given_up() -> None:
    answers = Answers(lambda episodes: "")
    answers.hold = anyio.Event()
    ended: list[str] = []
    with anyio.fail_after(20):
        async with answers.run() as run, anyio.create_task_group() as group:
            collector = Collector(run)

            async def ask(episode: str) -> None:
                try:
                    await collector.records(episode)
                finally:
                    ended.append(episode)

            group.start_soon(ask, "e1")
            while not answers.asked:
                await anyio.lowlevel.checkpoint()
            group.start_soon(ask, "e2")  # waits for the next question
            await anyio.lowlevel.checkpoint()
            await collector.aclose()
            while len(ended) < 2:
                await anyio.lowlevel.checkpoint()
            answers.hold.set()
            assert await collector.records("e3") == []
            await collector.aclose()
    assert sorted(ended) == ["e1", "e2"]


async def test_a_gateway_that_answers_nonsense_ends_a_rollout_with_what_it_answered() -> None:
    async def play(team: Team, task: str) -> str:
        return task

    answers = Answers(lambda episodes: "nonsense\n")
    with anyio.fail_after(20):
        async with answers.run() as run:
            with pytest.raises(ProtocolError, match="answered b'nonsense'"):
                await collect(rollout(Scenario(play), ["a", "b"], run=run))
