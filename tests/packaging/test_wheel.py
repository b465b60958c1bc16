"""What is in the wheel, and that it works without the checkout."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(500)


def test_the_wheel_has_the_three_packages_and_nothing_else_at_the_top(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "agent_env",
        "agent_env_cards",
        "agent_env_wrappers",
    }
    for package in ("agent_env", "agent_env_cards", "agent_env_wrappers"):
        assert f"{package}/py.typed" in names
    assert any(name.startswith("agent_env_cards/schema/") for name in names)
    assert any(name.startswith("agent_env_cards/conformance/") for name in names)


@pytest.mark.long
def test_the_installed_wheel_runs_the_readme(clean_python: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [clean_python, ROOT / "scripts" / "run_page.py", ROOT / "README.md"],
        cwd=tmp_path,
        check=False,
        env={key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "blocks ran" in ran.stdout


CONSUMER = """
from agent_env import AgentEnvironment, Environment, Hub, Limits, Matchmaker, Need, Reward, SessionView, ToolResult
from agent_env import Episode, EnvironmentCard, StepResult, recording, serve_agent_as_env
from agent_env_cards import parse_ref
from agent_env_wrappers.contract import TextDelta


def agent(message: str, history: list[dict[str, str]]) -> str:
    return message


env = AgentEnvironment(agent, name="agent", limits=Limits(turn_limit=3), needs=[Need("solver", skills=["math"])])


@env.tool
def double(number: int) -> int:
    return 2 * number


@env.reward(weight=0.5)
def fits(session: SessionView) -> Reward:
    return Reward(1.0 if session.reply == "x" else None, done=session.turns > 2)


async def main() -> None:
    async with Environment("agent@^1", lane="websocket") as other, recording() as episode:
        result: ToolResult = await other.call_tool("chat", {"message": "hi"})
        step: StepResult = await other.step("hi")
        reward: float | None = step.reward
        card: EnvironmentCard = other.card
        print(result.text.upper(), reward, card.name, double(3) + 1)
        async for event in other.stream("hi"):
            if isinstance(event, TextDelta):
                print(event.text)
        recorded: Episode = episode
        print(recorded.id, parse_ref("a@1.0.0").name, Hub, Matchmaker)


if __name__ == "__main__":
    serve_agent_as_env(env)
"""


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_consumer_is_checked_strictly_through_the_lazy_names(
    checker: str, clean_python: Path, tmp_path: Path
) -> None:
    (tmp_path / "consumer.py").write_text(CONSUMER, "utf-8")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}', "utf-8")
    commands = {
        "mypy": ["mypy", "--strict", "--python-executable", str(clean_python), "consumer.py"],
        "pyright": ["pyright", "--pythonpath", str(clean_python), "consumer.py"],
    }
    checked = subprocess.run(commands[checker], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300)
    assert checked.returncode == 0, checked.stdout + checked.stderr
