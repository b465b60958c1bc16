"""`check_environment` on environments that keep the contract: whatever they are, and however they are reached."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent_env import AgentEnvironment, Environment, Limits, Reward, SessionView
from agent_env.context import Principal
from agent_env.errors import NameNotFound, NotSupported, TransportError
from agent_env.net import Tokens
from agent_env.net.keyring import Keyring
from agent_env.testing import Check, ContractBroken, Report, check_environment
from agent_env_wrappers.contract import Done, Interrupt

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

LANES = {"inprocess", "websocket", "mcp", "a2a", "http"}


async def counting(message: str, history: list[dict[str, str]]) -> str:
    """Counts its turns."""
    return f"{len(history) // 2 + 1}: {message}"


def outcomes(report: Report, clause: str) -> set[str]:
    return {check.outcome for check in report.checks if check.clause == clause}


async def test_an_agent_is_checked_on_all_five_lanes() -> None:
    report = await check_environment(counting, raise_on_failure=True)
    assert report.environment == "counting@0.0.0-dev"
    assert {check.lane for check in report.checks} == {"", *LANES}
    assert report.ok
    assert report.failed == []
    assert outcomes(report, "EC-55") == {"ok"}
    assert outcomes(report, "EC-66") == {"ok"}
    assert outcomes(report, "EC-71") == {"skipped"}
    assert "0 failed" in report.summary()
    assert json.loads(json.dumps(report.to_json()))["checks"][0] == {
        "clause": "EC-05",
        "name": "has a card that breaks no clause",
        "outcome": "ok",
        "why": "",
        "lane": "",
    }


async def test_every_clause_about_behaviour_is_in_the_report() -> None:
    report = await check_environment(counting, lanes=["inprocess"])
    assert {f"EC-{number}" for number in range(50, 79)} <= {check.clause for check in report.checks}
    assert {check.lane for check in report.checks} == {"", "inprocess"}


async def test_an_environment_with_everything_in_it_keeps_the_contract() -> None:
    def start(session: SessionView) -> dict[str, Any]:
        return {"number": (session.seed or 0) * 2}

    def long(session: SessionView) -> Reward:
        return Reward(float(len(session.reply)))

    def look(up: str) -> str:
        """Looks something up.

        Args:
            up: What.
        """
        return up

    env = AgentEnvironment(
        counting,
        version="1.0.0",
        tools=[look],
        functions=[look],
        rewards=[long],
        skills=["counting"],
        examples=["one", "two"],
        limits=Limits(turn_limit=4),
    )
    env.on_reset(start)
    report = await check_environment(env, raise_on_failure=True)
    assert outcomes(report, "EC-63") == {"ok"}
    assert outcomes(report, "EC-64") == {"ok"}
    # It can be used again afterwards.
    async with Environment(env) as after:
        assert (await after.chat("x")).text == "1: x"


async def test_an_agent_that_asks_is_answered() -> None:
    async def asking(message: str, answers: dict[str, Any]) -> AsyncIterator[Any]:
        if answers:
            yield Done(f"so it is {answers['q']}")
        else:
            yield Interrupt("q", "question", "Which one?")

    report = await check_environment(asking, lanes=["inprocess", "websocket"])
    assert outcomes(report, "EC-70") == {"ok"}
    assert report.failed == []


async def test_an_agent_without_memory_refuses_to_fork_and_short_episodes_are_not_overrun() -> None:
    async def echo(message: str) -> str:
        return message

    env = AgentEnvironment(echo, limits=Limits(turn_limit=1))
    report = await check_environment(env, lanes=["inprocess"], raise_on_failure=True)
    assert outcomes(report, "EC-55") == {"skipped"}
    assert outcomes(report, "EC-66") == {"ok"}


async def test_a_long_episode_is_not_played_to_its_end() -> None:
    env = AgentEnvironment(counting, limits=Limits(turn_limit=1000))
    report = await check_environment(env, lanes=["inprocess"], raise_on_failure=True)
    assert outcomes(report, "EC-64") == {"skipped"}


async def test_credentials_are_asked_for_and_a_narrow_token_sees_less() -> None:
    tokens = Tokens({"full": Principal("full"), "narrow": Principal("narrow", frozenset({"chat"}))})
    async with AgentEnvironment(counting, auth=tokens).serving(register=False) as server:
        report = await check_environment(server.url, auth="full", lanes=["websocket", "http"], raise_on_failure=True)
        assert outcomes(report, "EC-75") == {"ok"}
        narrow = await check_environment(server.url, auth="narrow", lanes=["http"])
        assert outcomes(narrow, "EC-63") == {"skipped"}
        why = next(check.why for check in narrow.checks if check.clause == "EC-63")
        assert why == "the token has no scope 'orchestrate'"
        assert outcomes(narrow, "EC-54") == {"ok"}
        assert narrow.failed == []


async def test_an_environment_is_found_by_url_by_reference_by_card_and_by_client() -> None:
    env = AgentEnvironment(counting, version="1.0.0")
    async with env.serving() as server:
        for ref in (server.url, f"{server.url}/.well-known/agent-env.json", "counting@^1"):
            report = await check_environment(ref, lanes=["http"], raise_on_failure=True)
            assert outcomes(report, "EC-54") == {"ok"}
            assert outcomes(report, "EC-77") == {"ok"}
        async with Environment(server.url, lane="websocket") as client:
            await client.chat("x")
            report = await check_environment(client, lanes=["websocket"], raise_on_failure=True)
            assert (await client.chat("y")).text == "2: y"  # its conversation went on
        report = await check_environment(await env.runtime(), raise_on_failure=True)
        assert {check.lane for check in report.checks} == {"", "inprocess"}
        assert outcomes(report, "EC-77") == {"skipped"}
        card = await env.card()
        absolute = card.model_copy(
            update={
                "interfaces": [
                    one.model_copy(update={"url": server.url + one.url})
                    for one in card.interfaces
                    if one.transport == "http"
                ],
                "additional_interfaces": [],
            }
        )
        report = await check_environment(absolute)
        assert {check.lane for check in report.checks} == {"", "http"}
        assert outcomes(report, "EC-54") == {"ok"}
        assert outcomes(report, "EC-51") == {"skipped"}


async def test_nothing_to_check_is_an_error_and_no_report() -> None:
    with pytest.raises(TransportError):
        await check_environment("http://127.0.0.1:9")
    with pytest.raises(NameNotFound):
        await check_environment("nobody")
    with pytest.raises(NotSupported, match="no lane pigeon; it has inprocess"):
        await check_environment(counting, lanes=["pigeon"])  # type: ignore[list-item]


def test_a_report_says_in_a_line_what_failed() -> None:
    checks = (
        Check("EC-54", "opens", "ok", lane="http"),
        Check("EC-55", "goes on", "failed", "it went on in another session", "http"),
        Check("EC-71", "fills", "skipped", "not asked"),
    )
    report = Report("a@1.0.0", checks)
    assert not report.ok
    assert report.summary() == "a@1.0.0: 1 checks passed, 1 failed (EC-55), 1 were skipped"
    error = ContractBroken(report)
    assert str(error).splitlines()[1] == "  EC-55 goes on over http: failed, it went on in another session"
    assert error.report is report


async def test_an_environment_is_checked_with_the_token_that_a_keyring_has_for_it() -> None:
    tokens = Tokens({"s3cret": Principal("tester", frozenset({"chat", "orchestrate"}))})
    async with AgentEnvironment(counting, auth=tokens, hub=False).serving(register=False) as server:
        held = Environment(server.url, auth=Keyring({server.url: "s3cret"}))
        report = await check_environment(held, lanes=["http"])
        assert report.ok and report.failed == []
        other = Environment(server.url, auth=Keyring({"https://elsewhere.example": "s3cret"}))
        assert not (await check_environment(other, lanes=["http"])).ok
