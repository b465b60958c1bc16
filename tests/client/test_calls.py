"""What a call takes from its caller's budget, and what it gives back."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from agent_env import AgentEnvironment, Environment, recording
from agent_env.context import current_frame
from agent_env.errors import BudgetExhausted

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
