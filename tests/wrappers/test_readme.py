"""The wrappers' README: its blocks run, its 80 lines are 80 lines, and its table tells the truth."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from model_server import ModelServer
from subjects import SUBJECTS

from agent_env_wrappers.registry import wrap

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
README = ROOT / "wrappers" / "README.md"
ROWS = {
    "`callable`": "sync_function",
    "`openai-endpoint`": "openai_endpoint",
    "`openai-agents`": "openai_agents",
    "`pydantic-ai`": "pydantic_ai",
    "`langgraph`": "langgraph",
    "`langgraph`, with a checkpointer": "langgraph_with_checkpointer",
    "`factory` of such graphs": "factory_of_graphs",
}


def test_its_blocks_run(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "run_page.py"), str(README)]
    ran = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=50)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "5 blocks ran" in ran.stdout
    assert "wrapper 'tinybots'" in ran.stdout


def test_a_framework_is_wrapped_in_80_lines() -> None:
    (body,) = re.findall(r'```python title="tinybots_wrapper.py"\n(.*?)```', README.read_text("utf-8"), re.DOTALL)
    assert len(body.splitlines()) <= 80


async def test_its_table_says_what_the_caps_say(models: ModelServer) -> None:
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in README.read_text("utf-8").splitlines()
        if line.startswith("| `")
    ]
    assert [row[0] for row in table] == list(ROWS)
    subjects = {subject.__name__: subject for subject in SUBJECTS}
    for name, _, state, peers, model, *told in table:
        subject = subjects[ROWS[name]]
        caps = (await wrap(subject(models).make()).describe()).caps
        assert (state, peers, model) == (caps.state, caps.tools, caps.model), name
        flags = (caps.streaming, caps.tool_events, caps.usage, caps.interrupts)
        assert told == ["yes" if flag else "no" for flag in flags], name
