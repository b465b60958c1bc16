"""One golden call tree goes to every trainer and comes back as the same rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from make_golden import GOLDEN, golden
from typer.testing import CliRunner

from agent_env.cli import formats
from agent_env.cli.application import app
from agent_env.episodes import CallRecord, Episode, EpisodeReader, TurnRecord
from agent_env.errors import ConfigurationError, ProtocolError
from agent_env.training.exports import agent_lightning, areal, prime_rl, trl_async, verifiers, verl
from agent_env.training.exports.files import Written
from agent_env.training.exports.labels import label_of
from agent_env.training.learning import credit_rows
from agent_env.training.rows import Row

POLICIES = ("boss", "hand", "player")


def all_policies(write: Callable[..., Written]) -> Callable[[Iterable[Episode], Path], int]:
    """A writer of rows, asked for those of every policy; gives of how many episodes they are."""
    return lambda episodes, path: write(episodes, path, policies=POLICIES).episodes


TO_ROWS: dict[str, tuple[Callable[[Iterable[Episode], Path], int], Callable[[Path], list[Row]]]] = {
    "verifiers": (verifiers.write, lambda path: credit_rows(verifiers.read(path))[0]),
    "verl": (all_policies(verl.write), verl.read),
    "trl-async": (all_policies(trl_async.write), trl_async.read),
    "prime-rl": (all_policies(prime_rl.write), prime_rl.read),
    "areal": (all_policies(areal.write), areal.read),
    "agent-lightning": (all_policies(agent_lightning.write), agent_lightning.read),
}


def test_the_file_is_what_the_script_makes() -> None:
    assert [json.loads(line) for line in GOLDEN.read_text("utf-8").splitlines()] == [
        json.loads(json.dumps(episode.to_json())) for episode in golden()
    ]


def test_the_rows_of_the_golden_tree_are_these(golden_rows: list[Row]) -> None:
    told = [
        (row.row_id, row.policy, "".join(map(str, row.loss_mask)), row.reward, round(row.advantage, 3), row.versions)
        for row in golden_rows
    ]
    assert told == [
        # Asked both workers, heard them, went on: the answer that the fork shares is trained here alone.
        ("e-fan/manager/m1-a", "boss", "0000111000001110001", 1.0, 1.0, (3, 4)),
        ("e-fan/manager/m1-c", "boss", "000000000011", 1.0, 1.0, (4, 4)),
        # 1.0 of the team, 0.5 at the weight 0.2, and for the first 0.25 of the judge.
        ("e-fan/worker/w1-a", "hand", "00011", 1.35, 1.226, (3, 3)),
        # The retry, not what it repeated.
        ("e-fan/worker/w2-b", "hand", "00011", 1.1, 0.745, (3, 3)),
        ("e-fail/manager/f-m1-a", "boss", "00001110000011", 0.0, -1.0, (3, 3)),
        # Its sibling failed, and made no row; the judge is frozen, and made none either.
        ("e-fail/worker/f-w1-a", "hand", "00011", 0.2, -0.985, (3, 3)),
        ("e-duel-0/left/d0-left-0-a", "player", "00001110000111", 1.0, 1.0, (3, 4)),
        ("e-duel-0/right/d0-right-0-a", "player", "00001110000111", -1.0, -1.0, (3, 4)),
        ("e-duel-1/left/d1-left-0-a", "player", "00001110000111", -1.0, -1.0, (3, 4)),
        ("e-duel-1/right/d1-right-0-a", "player", "00001110000111", 1.0, 1.0, (3, 4)),
    ]


@pytest.mark.parametrize("name", TO_ROWS)
def test_a_trainers_file_of_the_golden_tree_holds_the_same_rows(
    name: str, golden: list[Episode], golden_rows: list[Row], tmp_path: Path
) -> None:
    write, read = TO_ROWS[name]
    path = tmp_path / "out.jsonl"
    assert write(iter(golden), path) == (5 if name == "verifiers" else 4)
    assert read(path) == golden_rows
    for line in path.read_text("utf-8").splitlines():
        assert "NaN" not in line and json.loads(line)


@pytest.mark.parametrize("name", TO_ROWS)
def test_the_command_writes_the_same_file(name: str, golden: list[Episode], tmp_path: Path) -> None:
    TO_ROWS[name][0](golden, tmp_path / "called.jsonl")
    out = tmp_path / "commanded.jsonl"
    chosen = [] if name == "verifiers" else [word for policy in POLICIES for word in ("--policy", policy)]
    ran = CliRunner().invoke(app, ["episodes", "export", str(GOLDEN), str(out), "--to", name, *chosen])
    assert ran.exit_code == 0, ran.output
    assert out.read_bytes() == (tmp_path / "called.jsonl").read_bytes()


def test_the_command_knows_each_trainer_and_each_writer_is_there() -> None:
    assert {*TO_ROWS, "jsonl", "db"} == formats.FORMATS.keys()
    assert formats.writer_of("verifiers") is verifiers.write
    modules = {"trl-async": trl_async, "prime-rl": prime_rl, "agent-lightning": agent_lightning, "verl": verl}
    for name, module in {**modules, "areal": areal}.items():
        assert formats.row_writer_of(name) is module.write and formats.FORMATS[name].rows


@pytest.mark.parametrize("name", [name for name in TO_ROWS if name != "verifiers"])
def test_what_has_nothing_to_train_on_is_refused_and_leaves_the_file_as_it_was(
    name: str, golden: list[Episode], tmp_path: Path
) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("before")
    with pytest.raises(ConfigurationError, match=r"none of the 1 episodes makes a row.*episode not ok \(1 call\)"):
        TO_ROWS[name][0](golden[2:3], path)
    with pytest.raises(ConfigurationError, match="no model call of a seat to train was recorded"):
        TO_ROWS[name][0]([Episode("e")], path)
    assert path.read_text() == "before"


def test_what_makes_no_row_is_told(golden: list[Episode], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prime_rl.write(golden, tmp_path / "out.jsonl", policies=POLICIES)
    told = "3 of 20 model calls make no row: "
    assert told in caplog.text
    assert sorted(caplog.text.partition(told)[2].strip().split(", ")) == [
        *("call failed (1)", "episode not ok (1)", "retried (1)")
    ]


def test_a_file_says_what_it_holds_of_each_policy(
    golden: list[Episode], golden_rows: list[Row], tmp_path: Path
) -> None:
    written = verl.write(golden, tmp_path / "out.jsonl", policies=POLICIES)
    assert (written.episodes, written.rows) == (4, len(golden_rows))
    assert written.to_json()["policies"] == {
        "boss": {"rows": 3, "tokens": 14, "seats": {"manager": 3}, "dropped": {"episode not ok": 1}},
        "hand": {"rows": 3, "tokens": 6, "seats": {"worker": 3}, "dropped": {"retried": 1, "call failed": 1}},
        "player": {"rows": 4, "tokens": 24, "seats": {"left": 2, "right": 2}, "dropped": {}},
    }
    for name, told in written.policies.items():
        of_policy = [row for row in golden_rows if row.policy == name]
        assert told.rows == len(of_policy) and told.tokens == sum(row.sampled for row in of_policy)


@pytest.mark.parametrize("name", [name for name in TO_ROWS if name != "verifiers"])
def test_policies_are_not_mixed_in_a_file_unless_each_is_named(
    name: str, golden: list[Episode], tmp_path: Path
) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("before")
    write = formats.row_writer_of(name)
    with pytest.raises(ConfigurationError, match=r"rows of 3 policies, and a trainer has one: 'boss', 3 as manager"):
        write(golden, path)
    with pytest.raises(ConfigurationError, match="no row of a policy 'chief'; there are rows of 'boss'"):
        write(golden, path, policies=["boss", "chief"])
    assert path.read_text() == "before"


def test_credit_is_given_before_rows_are_chosen(golden: list[Episode], golden_rows: list[Row], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for chosen, kept in (
        ({"policies": ["hand"]}, [row for row in golden_rows if row.policy == "hand"]),
        ({"seat": "left"}, [row for row in golden_rows if row.seat == "left"]),
        ({"policies": ["player"], "seat": "right"}, [row for row in golden_rows if row.seat == "right"]),
    ):
        written = formats.row_writer_of("prime-rl")(golden, path, **chosen)
        assert prime_rl.read(path) == kept and written.rows == len(kept)


def test_a_policy_whose_calls_make_no_row_is_told_with_the_reasons(tmp_path: Path) -> None:
    episode = Episode("e")
    episode.add(
        [
            TurnRecord("t", "a@1.0.0", "s", "e", seat="a"),
            CallRecord("c", "t", "a", "m", "e", prompt_token_ids=[1], token_ids=[2], logprobs=[-0.5]),
            TurnRecord("u", "b@1.0.0", "r", "e", seat="b"),
            CallRecord("d", "u", "b", "gpt", "e"),
        ]
    )
    episode.score("x", 1.0)
    # One policy has rows, so there is nothing to choose.
    written = verl.write([episode], tmp_path / "out.jsonl")
    assert written.rows == 1 and written.policies["gpt"].dropped == {"no token ids": 1}
    with pytest.raises(ConfigurationError, match=r"no model call of the policy 'gpt' makes a row: no token ids \(1\)"):
        verl.write([episode], tmp_path / "out.jsonl", policies=["gpt"])


@pytest.mark.parametrize("name", [name for name in TO_ROWS if name != "verifiers"])
def test_a_file_of_another_trainer_and_a_torn_one_are_refused(name: str, golden: list[Episode], tmp_path: Path) -> None:
    write, read = TO_ROWS[name]
    path = tmp_path / "out.jsonl"
    path.write_text('{"other": 1}\n')
    with pytest.raises(ProtocolError, match="was not written for this trainer"):
        read(path)
    write(golden, path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ProtocolError, match="ends within a line"):
        read(path)


def test_a_label_of_another_row_is_refused(golden_rows: list[Row]) -> None:
    samples = prime_rl.to_prime_rl(golden_rows)
    labels: list[dict[str, Any]] = [label_of(row) for row in golden_rows]
    with pytest.raises(ProtocolError, match="is not of this row: it tells of 2 sampled tokens, not 7"):
        prime_rl.from_prime_rl(samples[:1], labels[1:2])
    with pytest.raises(ProtocolError, match="is not whole: KeyError 'seat'"):
        prime_rl.from_prime_rl(samples[:1], [{name: labels[0][name] for name in labels[0] if name != "seat"}])
    with pytest.raises(ProtocolError, match="one mask and one logprob a token"):
        prime_rl.from_prime_rl([samples[0] | {"mask": [True]}], labels[:1])
    with pytest.raises(ProtocolError, match="has no token under its mask"):
        prime_rl.from_prime_rl([samples[0] | {"mask": [False] * len(samples[0]["mask"])}], labels[:1])


def test_the_golden_file_has_what_trainers_trip_over(golden: list[Episode]) -> None:
    calls = [call for episode in golden for trace in episode.traces for call in trace.calls]
    assert any(call.retry_of for call in calls)
    assert any(call.status != "ok" for call in calls)
    assert {call.api for call in calls} == {"chat", "responses", "messages"}
    assert any(trace.trainable is False for episode in golden for trace in episode.traces)
    assert {episode.ok for episode in golden} == {True, False}
    assert len({call.policy for call in calls if call.seat in ("left", "right")}) == 1
    assert list(EpisodeReader(GOLDEN)) == golden


@pytest.mark.parametrize(
    ("rewards", "told"),
    [
        ([(0, 1.0), (1, 0.0)], "all advantages are 0"),
        ([(0, 1.0), (1, 0.0)], "one attempt alone and 0 got the same throughout; play each task several times"),
        ([(0, 1.0), (0, 1.0)], "of their 1 groups 0 have one attempt alone and 1 got the same throughout; what all"),
        ([(0, 1.0), (0, 0.0), (1, 1.0)], "of their 2 groups 1 have one attempt alone and 0 got the same"),
        ([(0, 1.0), (0, 0.0)], ""),
    ],
)
def test_groups_that_teach_nothing_are_told(
    rewards: list[tuple[int, float]], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    episodes: list[Episode] = []
    for number, (task, reward) in enumerate(rewards):
        episode = Episode(f"e{number}", group=f"g{task}", task=task)
        turn = TurnRecord(f"t{number}", "a@1.0.0", f"s{number}", seat="a")
        model = CallRecord(f"c{number}", turn.call_id, "a", "m", prompt_token_ids=[1], token_ids=[2], logprobs=[-0.5])
        episode.add([turn, model])
        episode.score("x", reward, seat="a")
        episodes.append(episode)
    assert prime_rl.write(episodes, tmp_path / "rows.jsonl").episodes == len(rewards)
    assert told in caplog.text and bool(caplog.text) == bool(told)
