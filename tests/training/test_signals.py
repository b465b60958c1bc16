"""The example `signals`: run shortened, as a user runs it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import anyio
import pytest

from agent_env import AgentEnvironment, Environment, Need, recording
from agent_env.episodes import Episode, open_episodes
from agent_env.gateway import Gateway, RunHandle, SeatPolicy, running
from agent_env.training import Policy, PolicyServer, WordTokenizer, make_model

pytestmark = [pytest.mark.anyio, pytest.mark.long]

EXAMPLE = Path(__file__).parents[2] / "examples" / "multiagent" / "signals"


def run_example(*flags: str, runs: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE / "train.py", *flags, "--runs", runs],
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )


def figures(shown: str, arm: str) -> list[float]:
    line = next(line for line in shown.splitlines() if line.startswith(f"│ {arm}"))
    return [float(cell) for cell in line.split("│")[3:] if cell.strip()]


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the example's agents."""
    spec = importlib.util.spec_from_file_location("signals_agents", EXAMPLE / "agents.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(160)
def test_two_served_agents_learn_together_and_every_episode_is_on_disk(tmp_path: Path) -> None:
    ran = run_example("--arms", "both", "--seeds", "1", "--updates", "8", "--evaluated", "128", runs=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    before, after, worst, *greedy = figures(ran.stdout, "both learn")
    assert before < 0.35 and after > before + 0.12 and worst == after and len(greedy) == 2
    assert "chance 0.125" in ran.stdout and "not a new language" in ran.stdout
    (folder,) = tmp_path.iterdir()
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    count = 8 * 256 + 4 * 128
    assert f"{count} episodes (0 failed)" in ran.stdout
    with open_episodes(folder) as kept:
        episodes = list(kept.find())
    assert len({episode.id for episode in episodes}) == count
    for episode in episodes[:: count // 50]:
        check(episode)
    trained = [episode for episode in episodes if episode.info["phase"] == "training"]
    assert {episode.info["update"] for episode in trained} == set(range(1, 9))
    versions = {(e.info["update"], call.policy_version) for e in trained for trace in e.traces for call in trace.calls}
    assert versions == {(update, update - 1) for update in range(1, 9)}


def check(episode: Episode) -> None:
    """Both traces and the edge between them, each agent with its own model call."""
    traces = {trace.seat: trace for trace in episode.traces}
    assert episode.ok and set(traces) == {"sender", "receiver"}
    assert {seat: trace.agent for seat, trace in traces.items()} == {
        "sender": "signal-sender@1.0.0",
        "receiver": "signal-receiver@1.0.0",
    }
    for seat, trace in traces.items():
        (turn,), (call,) = trace.turns, trace.calls
        assert (call.seat, call.model, call.parent_call_id) == (seat, seat, turn.call_id)
        assert call.token_ids and call.logprobs and len(call.token_ids) == len(call.logprobs)
    edge = next(edge for edge in episode.edges if edge.caller is not None)
    assert (edge.caller_call_id, edge.callee_call_id) == tuple(
        traces[seat].turns[0].call_id for seat in ("sender", "receiver")
    )
    (pairing,) = (traces["sender"].turns[0].pairings or {}).values()
    assert pairing["peer"] == "signal-receiver@1.0.0"
    assert episode.reward() == float(episode.info["result"] == episode.task)


@pytest.mark.timeout(160)
async def test_any_openai_compatible_server_is_evaluated_without_an_update(tmp_path: Path, agents: ModuleType) -> None:
    words = " ".join([agents.SENDER_TASK, agents.RECEIVER_TASK, *agents.OBJECTS, *agents.CODES]).split()
    # Whatever the first agent says goes to the second as the example writes it: a word in small letters.
    tokenizer = WordTokenizer([*words, *(word.lower().strip(".,!") for word in words)])
    policy = Policy("my-model", make_model(tokenizer, seed=1, context=128), tokenizer)
    async with running(PolicyServer([policy])) as url:
        ran = await anyio.to_thread.run_sync(
            lambda: run_example(*("--endpoint", f"{url}/v1", "--model", "my-model", "--evaluated", "32"), runs=tmp_path)
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "my-model" in ran.stdout and policy.version == 0
    (folder,) = list(tmp_path.iterdir())  # noqa: ASYNC240
    with open_episodes(folder) as kept:
        episodes = list(kept.find())
    assert len(episodes) == 64
    assert all(episode.ok for episode in episodes), [one.failures for one in episodes if not one.ok][:1]
    call = episodes[0].traces[0].calls[0]
    assert call.token_ids is not None and call.request["messages"][0]["role"] == "system"


def test_an_endpoint_without_a_model_is_refused(tmp_path: Path) -> None:
    ran = run_example("--endpoint", "http://127.0.0.1:9/v1", runs=tmp_path)
    assert ran.returncode == 2 and "--endpoint needs --model" in ran.stderr


@asynccontextmanager
async def played(tmp_path: Path, agents: ModuleType) -> AsyncGenerator[RunHandle, None]:
    tokenizer = WordTokenizer([*agents.OBJECTS, *agents.CODES])
    policies = [Policy(seat, make_model(tokenizer, seed=1), tokenizer) for seat in ("sender", "receiver")]
    gateway = Gateway(tmp_path / "gateway", admin_token="admin")
    async with running(PolicyServer(policies)) as models, running(gateway) as url:
        seats = {policy.name: SeatPolicy(policy.name, (f"{models}/v1",)) for policy in policies}
        async with await RunHandle.open(url, "admin", seats) as run:
            yield run
    gateway.close()


async def test_a_better_receiver_in_the_hub_is_called_by_the_next_session(
    tmp_path: Path, agents: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_ENV_HUB", str(tmp_path / "hub.db"))
    need = Need("receiver", skills=["naming"], prefers={"tags": ["patient"]})
    first = AgentEnvironment(agents.sender, name="signal-sender", version="1.0.0", needs=[need])
    receiver = AgentEnvironment(agents.receiver, name="signal-receiver", version="1.0.0", skills=["naming"])
    better = AgentEnvironment(
        agents.receiver, name="patient-receiver", version="1.0.0", skills=["naming"], tags=["patient"]
    )

    async def partner(run: RunHandle, name: str) -> str | None:
        async with recording(run=run.episode(name, "sender")) as episode:
            async with Environment("signal-sender@1.0.0", seat="sender") as sender:
                await sender.chat("boat")
        episode.add((await run.collect([name]))[name])
        return next(edge.callee for edge in episode.edges if edge.caller_seat == "sender")

    with anyio.fail_after(150):
        async with played(tmp_path, agents) as run, receiver.serving(), first.serving():
            assert await partner(run, "e1") == "signal-receiver@1.0.0"
            async with Environment("signal-sender@1.0.0", seat="sender") as begun:
                async with recording(run=run.episode("e2", "sender")):
                    await begun.chat("boat")
                async with better.serving():
                    # A session that has begun keeps its partner; the next one gets the better one.
                    async with recording(run=run.episode("e3", "sender")) as kept:
                        await begun.chat("car")
                    kept.add((await run.collect(["e3"]))["e3"])
                    assert "signal-receiver@1.0.0" in {edge.callee for edge in kept.edges}
                    name = 4
                    while await partner(run, f"e{name}") != "patient-receiver@1.0.0":
                        name += 1
