"""`agent-env match`: who meets a need, and why the others do not."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def offers(cli: Any) -> None:
    cli("push", "agents:echo", "--name", "solver", "--version", "1.0.0", "--skill", "math.algebra")
    cli("push", "agents:echo", "--name", "poet", "--version", "2.0.0", "--skill", "poems")
    (cli.folder / "team.py").write_text(
        "from agent_env import AgentEnvironment, Need\n"
        "async def lead(message, peers):\n    return message\n"
        "env = AgentEnvironment(lead, needs=[Need('first', skills=['math']), Need('second', skills=['poems'])])\n",
        "utf-8",
    )
    cli("push", "team:env")


def test_the_candidate_that_meets_the_need_comes_first_with_the_reason(cli: Any) -> None:
    report = cli.json("match", "--skill", "math")
    assert report["ranked"][0]["candidate"] == "solver@1.0.0"
    assert "solver@1.0.0" in cli("match", "--skill", "math")


def test_a_need_that_nobody_meets_ends_with_status_1_and_says_who_came_nearest(cli: Any) -> None:
    printed = " ".join(cli("match", "--skill", "cooking", code=1).split())
    assert "cooking" in printed


def test_a_card_is_matched_as_a_team(cli: Any) -> None:
    team = cli.json("match", "lead")
    seats = {seat: pairing["peer"] for seat, pairing in team.items()}
    assert seats == {"first": "solver@1.0.0", "second": "poet@2.0.0"}
    assert cli.json("match", "lead", "--seat", "second")["ranked"][0]["candidate"] == "poet@2.0.0"


def test_one_candidate_is_explained_rule_by_rule(cli: Any) -> None:
    (explained,) = cli.json("match", "--skill", "math", "--explain", "poet")
    assert {rule["rule"]: rule["result"] for rule in explained["rules"]}["skills"] == "no"
    assert "skills" in cli("match", "--skill", "math", "--explain", "poet")


def test_a_match_without_a_need_says_how_to_ask(cli: Any) -> None:
    assert "--skill" in " ".join(cli("match", code=2).split())
