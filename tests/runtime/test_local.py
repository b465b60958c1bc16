"""The environments of this process: agents wrapped on the spot, and those that are served here."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from scripted_agents import ANYBODY, counting

from agent_env.errors import ConfigurationError
from agent_env.runtime.card import environment_card
from agent_env.runtime.definition import SessionView
from agent_env.runtime.local import announce, name_of, served_here, withdraw, wrap_here, wrapped
from agent_env_cards import DRAFT_VERSION, Interface, Offer, Skill, validate_card
from agent_env_wrappers.contract import AgentInfo, Caps

pytestmark = pytest.mark.anyio


async def test_an_agent_is_wrapped_on_the_spot_as_a_draft_of_its_own_name() -> None:
    runtime = await wrap_here(counting)
    assert runtime.definition.identity == f"counting@{DRAFT_VERSION}"
    result = await runtime.call_tool("chat", {"message": "a"}, caller=ANYBODY)
    assert result.text == "1: a"
    await runtime.aclose()


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Agent B", "agent-b"),
        ("my_agent", "my-agent"),
        ("--X--", "x"),
        ("A" * 80, "a" * 63),
        ("a" * 62 + " b", "a" * 62),
    ],
)
def test_a_name_becomes_one_that_hubs_take(name: str, slug: str) -> None:
    assert name_of(object(), AgentInfo("x", Caps(), name=name)) == slug


@pytest.mark.parametrize("name", [None, "", "<lambda>", "???"])
def test_a_nameless_agent_must_be_named(name: str | None) -> None:
    with pytest.raises(ConfigurationError, match="give one: name='my-agent'"):
        name_of(object(), AgentInfo("x", Caps(), name=name))


def test_what_nothing_can_wrap_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError):
        wrapped(object())


async def test_what_is_served_here_is_found_until_it_stops(runtime_of: Any) -> None:
    runtime = await runtime_of(counting)
    assert served_here("http://127.0.0.1:1") is None
    announce("http://127.0.0.1:1", runtime)
    assert served_here("http://127.0.0.1:1/") is runtime
    runtime.closing = True
    assert served_here("http://127.0.0.1:1") is None
    runtime.closing = False
    withdraw("http://127.0.0.1:1")
    assert served_here("http://127.0.0.1:1") is None
    withdraw("http://127.0.0.1:1")


async def test_being_served_keeps_nothing_alive() -> None:
    runtime = await wrap_here(counting)
    announce("http://127.0.0.1:2", runtime)
    await runtime.aclose()
    del runtime
    await asyncio.sleep(0)
    gc.collect()
    assert served_here("http://127.0.0.1:2") is None


async def test_the_card_says_what_runs(runtime_of: Any) -> None:
    def look(up: str) -> str:
        """Looks it up.

        Args:
            up: What.
        """
        return up

    def size(box: dict[str, int]) -> dict[str, int]:
        """Measures.

        Args:
            box: What is measured.
        """
        return box

    def right(session: SessionView) -> float:
        """One for a right answer."""
        return 1.0

    def start(session: SessionView) -> str:
        return "go"

    runtime = await runtime_of(
        counting,
        tools=[look],
        functions=[size],
        rewards=[right],
        on_reset=start,
        description="Counts turns.",
        offers=Offer(skills=[Skill(id="counting")]),
    )
    card = environment_card(runtime, interfaces=[Interface(transport="http", url="/v1")], license="MIT")
    assert validate_card(card.to_dict()) == []
    assert card.ref == "agent@1.0.0"
    assert [tool.name for tool in card.capabilities.tools] == ["chat", "look"]
    assert [function.name for function in card.capabilities.functions] == ["size"]
    assert [(reward.name, reward.description) for reward in card.rewards] == [("right", "One for a right answer.")]
    assert card.episode.seedable
    assert card.session is not None
    assert card.session.fork
    assert card.caps is not None
    assert card.caps.state == "value"
    bare = await runtime_of(counting)
    assert environment_card(bare).episode.seedable is False
    assert environment_card(bare).description
