"""A call from one environment to another: what it takes from its caller's budget, and what its failure tells."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from agent_env import AgentEnvironment, Environment, recording
from agent_env.context import Budget, Frame, Route, Run, current_frame, entered
from agent_env.errors import AgentEnvError, AgentFailed, BudgetExhausted, UnknownTool
from agent_env_wrappers.contract import AgentError, ModelRoute

pytestmark = pytest.mark.anyio


async def echo(message: str) -> str:
    return message


@pytest.mark.parametrize("verb", ["chat", "step"])
async def test_every_way_to_speak_costs_one_call_of_the_budget(verb: str) -> None:
    async with recording(budget=3), Environment(echo) as env:
        frame = current_frame()
        assert frame is not None
        for left in (2, 1, 0):
            await (env.chat("a") if verb == "chat" else env.step("a"))
            assert frame.budget.left == left
        with pytest.raises(BudgetExhausted):
            await (env.chat("a") if verb == "chat" else env.step("a"))


class Tree(BaseModel):
    """A value whose schema refers to itself."""

    name: str
    children: list[Tree] = []


async def test_a_tool_that_returns_a_recursive_model_promises_its_schema() -> None:
    env = AgentEnvironment(echo)

    @env.tool
    def grow() -> Tree:
        """Grows a tree."""
        return Tree(name="root", children=[Tree(name="leaf")])

    async with Environment(env) as agent:
        (_, tool) = await agent.list_tools()
        assert tool["outputSchema"]["type"] == "object"
        assert (await agent.call_tool("grow")).data["children"][0]["name"] == "leaf"


def in_a_run(agent: str | None = None) -> Frame:
    """A turn in an episode of a run, in which a policy plays the worker."""
    routes = {"boss": Route("t1", ""), "worker": Route("t2", "tiny")}
    run = Run("http://127.0.0.1:9", "r1", "e1", "boss", routes)
    return Frame("1" * 32, "1" * 16, agent, "boss", "e1", (), None, Budget(None), run)


async def worker(message: str, model: ModelRoute | None) -> str:
    if message == "refuse":
        raise AgentError("not on a Sunday", kind="refused")
    assert model is not None, "key-4711"
    return model.base_url


async def helper(message: str, peers: Any) -> str:
    return str(await peers["worker"](message))


WORKER = AgentEnvironment(worker, name="worker", hub=False)
HELPER = AgentEnvironment(helper, name="helper", peers={"worker": WORKER}, hub=False)


@pytest.mark.parametrize(
    ("env", "seat", "why"),
    [
        (WORKER, None, "worker@0.0.0-dev was called without a seat, so no policy plays it"),
        (HELPER, None, "helper@0.0.0-dev was called without a seat, so no policy plays it"),
        (WORKER, "wroker", "worker@0.0.0-dev was called in the seat 'wroker', which the run does not have"),
    ],
)
async def test_an_agent_that_misses_its_model_for_want_of_a_seat_is_told_so(
    env: AgentEnvironment, seat: str | None, why: str
) -> None:
    with entered(in_a_run()) as frame:
        async with Environment(env, seat=seat) as agent:
            with pytest.raises(AgentEnvError) as failed:
                await agent.chat("go")
    told = failed.value.message
    assert told.count("so no policy plays it: if it wants a model, give it a seat, and call it as a peer") == 1
    assert why in told and told == str(failed.value) == failed.value.to_wire()["message"]
    assert frame.outbox[-1]["error"]["message"] == told


async def test_an_agent_that_is_called_by_an_address_that_nobody_seated_is_told_so() -> None:
    async with WORKER.serving(port=0) as server:
        with entered(in_a_run("boss@1.0.0")):
            async with Environment(server.url, seat="worker", lane="http") as agent:
                with pytest.raises(AgentFailed, match=r"worker.* was called at an address that nobody seated"):
                    await agent.chat("go")


@pytest.mark.parametrize(
    ("message", "seat", "run"), [("refuse", None, True), ("refuse", "worker", True), ("go", None, False)]
)
async def test_a_failure_that_no_seat_would_mend_says_nothing_of_seats(
    message: str, seat: str | None, run: bool
) -> None:
    frame = in_a_run()
    frame.run = frame.run if run else None
    with entered(frame):
        async with Environment(WORKER, seat=seat) as agent:
            with pytest.raises(AgentFailed) as failed:
                await agent.chat(message)
    assert "seat" not in failed.value.message


async def test_an_agent_that_calls_itself_in_its_seat_has_its_model() -> None:
    async def again(message: str, model: ModelRoute) -> str:
        if message == "leaf":
            return model.base_url
        async with Environment(itself, seat="worker") as copy:
            return (await copy.chat("leaf")).text

    itself = AgentEnvironment(again, name="again", hub=False)
    with entered(in_a_run()):
        async with Environment(itself, seat="worker") as agent:
            assert "/runs/r1/e1/worker/" in (await agent.chat("root")).text


async def lead(message: str, peers: Any) -> str:
    return str(await peers["helper"](message))


async def fails(message: str) -> str:
    if message == "says":
        raise AgentError("out of ideas")
    if message == "calls":
        raise UnknownTool("there is no tool 'x' here")
    raise ValueError("key-4711")


@pytest.mark.parametrize("message", ["says", "calls", "raises"])
@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_a_failure_names_the_agent_that_failed_however_far_below(message: str, depth: int) -> None:
    env = AgentEnvironment(fails, name="worker", version="1.2.3", hub=False)
    for name, agent in [("helper", helper), ("lead", lead)][:depth]:
        env = AgentEnvironment(agent, name=name, peers={"worker" if agent is helper else "helper": env}, hub=False)
    async with recording(), Environment(env) as place:
        with pytest.raises(AgentEnvError) as failed:
            await place.chat(message)
    told = failed.value.message
    if depth or message != "says":
        assert "worker@1.2.3" in told
    assert all(f"{name}@0.0.0-dev" in told for name in ["helper", "lead"][:depth])
    assert failed.value.data["agent"] == ["worker@1.2.3", "helper@0.0.0-dev", "lead@0.0.0-dev"][depth]
    assert "key-4711" not in repr(failed.value.to_wire())
