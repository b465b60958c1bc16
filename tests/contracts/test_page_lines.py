"""The page about trainers: the lines that a reader of each section copies, as far as they can run without the trainer.

The blocks of the trainers that have no package to install here run with real episodes. In place of the trainer stands
what its contract says: what it would be handed is held against it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from collections.abc import AsyncGenerator
from dataclasses import MISSING, asdict, field, make_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator

from agent_env import AgentEnvironment, Seat
from agent_env.episodes import EpisodeReader
from agent_env.gateway import Gateway, SeatPolicy, running
from agent_env.net import post_json
from agent_env.training import Policy, PolicyServer, Scenario, WordTokenizer, make_model
from agent_env.training.exports import prime_rl

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOLDEN = ROOT / "tests" / "training" / "exports" / "golden.jsonl"
PAGE = (ROOT / "docs" / "trainers.md").read_text("utf-8")
PYTHON = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(heading: str) -> list[str]:
    """The Python blocks of a section."""
    (section,) = (part for part in PAGE.split("\n## ") if part.partition("\n")[0].lower() == heading.lower())
    return PYTHON.findall(section)


def execute(block: str, names: dict[str, Any]) -> None:
    """Runs a block in a namespace."""
    exec(compile(block, "docs/trainers.md", "exec"), names)  # noqa: S102


def contract(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((HERE / f"{name}.json").read_text("utf-8")))


@pytest.fixture
def stands_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a module of a trainer in place, with what is given of it."""

    def put(name: str, **values: Any) -> None:
        parts = name.split(".")
        for path in (".".join(parts[: count + 1]) for count in range(len(parts))):
            if path not in sys.modules:
                monkeypatch.setitem(sys.modules, path, ModuleType(path))
        vars(sys.modules[name]).update(values)

    return put


async def guesser(message: str, model: Any) -> str:
    url, key = f"{model.base_url}/chat/completions", {"Authorization": f"Bearer {model.api_key}"}
    body = {"messages": [{"role": "user", "content": message}], "max_tokens": 1}
    content: str = (await post_json(url, body, headers=key))["choices"][0]["message"]["content"]
    return content


@pytest.fixture
async def names(tmp_path: Path) -> AsyncGenerator[dict[str, Any]]:
    """The names that the page says its sections have: a `scenario`, whose seat `manager` is trained, and the gateway
    and the servers that it is played by."""

    async def guess(team: Any, task: Any) -> str:
        text: str = (await team["manager"].chat(task)).text
        return text

    def rate(episode: Any) -> dict[str, dict[str, float]]:
        return {"manager": {"right": float(len(episode.info["result"]))}}

    seat = Seat(AgentEnvironment(guesser, name="guesser"), policy="manager")
    scenario = Scenario(guess, rate, {"manager": seat})
    tokenizer = WordTokenizer(["day", "night", "sun", "moon"])
    policy = Policy("manager", make_model(tokenizer, seed=0), tokenizer)
    gateway = Gateway(tmp_path / "journal", admin_token="admin")
    async with running(PolicyServer([policy])) as models, running(gateway) as url:
        seats = scenario.seated({"manager": SeatPolicy("manager", (f"{models}/v1",))})
        yield {"__name__": "__page__", "scenario": scenario, "gateway": url, "admin_token": "admin", "seats": seats}
    gateway.close()


def concat_padded_tensors(trajectories: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Rows of one batch, as wide as the widest."""
    width = max(one["input_ids"].shape[1] for one in trajectories)
    return {
        name: torch.cat(
            [
                one[name]
                if one[name].ndim == 1
                else torch.nn.functional.pad(one[name], (0, width - one[name].shape[1]))
                for one in trajectories
            ]
        )
        for name in trajectories[0]
    }


async def test_the_workflow_for_areal_returns_trajectories_of_the_contract(
    names: dict[str, Any], stands_in: Any
) -> None:
    stands_in("areal.api.workflow_api", RolloutWorkflow=object)
    stands_in("areal.utils.data", concat_padded_tensors=concat_padded_tensors)
    (block,) = blocks("AReaL")
    execute(block, names)
    batch = await names["Played"]().arun_episode(None, {"task": "day"})
    assert batch["input_ids"].shape[0] == batch["rewards"].shape[0] == 8
    for index in range(8):
        seen = batch["attention_mask"][index]
        one = {name: [values[index].tolist() if values.ndim == 1 else values[index][seen].tolist()]
               for name, values in batch.items()}  # fmt: skip
        contract("areal").validate(one)
    # Our credit stands in place of the reward, so that its mean over the attempts at one task is 0.
    assert abs(float(batch["rewards"].mean())) < 1e-4


class EventServer:
    """Takes the events of an attempt, as agent-lightning's server does."""

    def __init__(self) -> None:
        self.posted: list[Any] = []
        self.keys: set[str] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        self.keys |= {value.decode() for name, value in scope["headers"] if name.lower() == b"authorization"}
        self.posted.append(json.loads(body))
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})


async def test_the_agent_for_agent_lightning_posts_events_of_the_contract(
    names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EventServer()
    (block,) = blocks("agent-lightning")
    execute(block, names)
    async with running(server) as url:
        monkeypatch.setenv("TASK", "day")
        monkeypatch.setenv("AGL_KEY", "key")
        monkeypatch.setenv("AGL_EVENT_URL", f"{url}/rollouts/r/attempt/0/events")
        await names["Played"]().run()
    assert server.keys == {"Bearer key"}
    contract("agent_lightning").validate({"rollout": {"input": "day", "rollout_id": "r"}, "events": server.posted})
    assert [event["event_type"] for event in server.posted] == ["model_request", "reward"]


def test_the_samples_for_prime_rl_have_the_fields_of_the_contract(
    stands_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.loads((HERE / "prime_rl.json").read_text("utf-8"))
    fields = [(name, Any, field(default=MISSING if name in told["required"] else None)) for name in told["properties"]]
    sample_of = make_dataclass("TrainingSample", fields)
    batch_of = make_dataclass("TrainingBatch", ["examples", "step"])
    sent: list[tuple[Path, Any]] = []

    class Sender:
        def __init__(self, output_dir: Path) -> None:
            self.output_dir = output_dir

        def send(self, batch: Any) -> None:
            sent.append((self.output_dir, batch))

    stands_in("prime_rl.transport.types", TrainingSample=sample_of, TrainingBatch=batch_of)
    stands_in("prime_rl.transport", FileSystemTrainingBatchSender=Sender)
    monkeypatch.chdir(tmp_path)
    written = prime_rl.write(EpisodeReader(GOLDEN), tmp_path / "rows.jsonl", policies=["boss", "hand", "player"])
    (block,) = blocks("prime-rl")
    execute(block, {})
    ((folder, batch),) = sent
    assert written.episodes == 4 and len(batch.examples) == 10 and batch.step == 0
    assert folder.name.startswith("run_")
    for sample in batch.examples:
        contract("prime_rl").validate({name: value for name, value in asdict(sample).items() if value is not None})


def ours(tree: ast.AST) -> dict[str, Any]:
    """What a block imports of us, by the name that it has there."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "agent_env":
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
                found[alias.asname or alias.name] = getattr(module, alias.name)
    return found


def called(call: ast.Call, names: dict[str, Any]) -> Any:
    """What of ours a call calls; None where it is not ours."""
    match call.func:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in names:
            return getattr(names[name], attribute)
        case _:
            return None


@pytest.mark.parametrize("number", range(len(PYTHON.findall(PAGE))))
def test_every_name_of_ours_that_the_page_has_is_there_and_takes_what_it_is_given(number: int) -> None:
    tree = ast.parse(PYTHON.findall(PAGE)[number])
    names = ours(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or (target := called(node, names)) is None:
            continue
        if any(isinstance(one, ast.Starred) for one in node.args) or any(one.arg is None for one in node.keywords):
            continue
        given = {str(one.arg): None for one in node.keywords}
        inspect.signature(target).bind(*node.args, **given)


def test_every_block_that_the_page_does_not_run_says_why() -> None:
    marks = re.findall(r"<!-- not run: ([^>]*) -->\n```", PAGE)
    assert len(marks) == PAGE.count("<!-- not run:") and all(marks)


def test_the_page_says_of_each_trainer_how_often_a_fork_counts() -> None:
    (section,) = (part for part in PAGE.split("\n## ") if part.startswith("What to know of each\n"))
    table = re.findall(r"^\| ([^|]+?) \| (?:yes|no|one an output) \|", section, re.MULTILINE)
    lines = re.findall(r"^- \*\*(.+?)\*\*: (.+)$", section, re.MULTILINE)
    assert len(table) == 8 and [name for name, _ in lines] == table
    assert all(re.match(r"once|each sampled token once|`n` times", said) for _, said in lines)
