"""Learning: each policy from its own turns, with the credit that was asked for, from episodes that are fresh enough."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from agent_env.episodes import CallRecord, Episode, TurnRecord
from agent_env.errors import ConfigurationError
from agent_env.training.credit import Credited, GroupReport, RoleBaseline
from agent_env.training.learning import credit_rows, learn
from agent_env.training.policy import Policy
from agent_env.training.rows import Row
from agent_env.training.sampling import Prompt
from agent_env.training.tiny import WordTokenizer, make_model
from agent_env.training.units import Unit
from agent_env.training.update import UpdateStats


class Pupil:
    """A learner that only remembers its lessons."""

    def __init__(self, name: str, *, trainable: bool = True, version: int = 0) -> None:
        self.name = name
        self.trainable = trainable
        self.version = version
        self.lessons: list[list[Row]] = []

    def update(self, rows: list[Row]) -> UpdateStats | None:  # type: ignore[override]
        self.lessons.append(list(rows))
        return UpdateStats(len(rows), sum(row.sampled for row in rows), 0.0, 0.0, 0.0, 0.0) if rows else None

    @property
    def advantages(self) -> list[float]:
        """Of the last lesson."""
        return [row.advantage for row in self.lessons[-1]]


def episode(name: str, reward: float | None, *, workers: int = 1, version: int = 0, **fields: Any) -> Episode:
    """A manager that asks workers; everyone makes one call."""
    made = Episode(name, **{"group": "0", **fields})
    made.add([TurnRecord("t0", "manager@1.0.0", "m", seat="manager")])
    made.add(
        TurnRecord(f"t{n}", "worker@1.0.0", f"w{n}", seat="worker", parent_call_id="t0") for n in range(1, workers + 1)
    )
    made.add(
        CallRecord(
            *(f"k{n}", f"t{n}", "worker" if n else "manager", "p"),
            prompt_token_ids=[n + 3],
            token_ids=[6],
            logprobs=[-1.0],
            policy_version=version,
        )
        for n in range(workers + 1)
    )
    made.score("right", reward)
    return made


def test_two_policies_of_one_episode_each_learn_from_their_own_rows() -> None:
    """Two models at once in one system, which a trainer of one model cannot do (agent-lightning issue 110)."""
    manager, worker = Pupil("manager"), Pupil("worker")
    batch = [episode("e1", 1.0, workers=2), episode("e2", 0.0, workers=1)]
    lessons = learn({"manager": manager, "worker": worker}, batch)
    assert [row.seat for row in manager.lessons[0]] == ["manager"] * 2
    assert [row.seat for row in worker.lessons[0]] == ["worker"] * 3
    assert manager.advantages == pytest.approx([1.0, -1.0], rel=1e-3)
    assert worker.advantages == pytest.approx([1.0, 1.0, -1.0], rel=1e-3)
    assert {name: lesson.rows for name, lesson in lessons.policies.items()} == {"manager": 2, "worker": 3}
    assert lessons.policies["worker"].groups == GroupReport(1, 0, 0)
    assert [row.weight for row in worker.lessons[0]] == [0.5, 0.5, 1.0]


def test_one_policy_in_two_seats_learns_from_both_in_one_update() -> None:
    player = Pupil("player")
    learn({"manager": player, "worker": player}, [episode("e1", 1.0), episode("e2", 0.0)])
    (rows,) = player.lessons
    assert {row.seat for row in rows} == {"manager", "worker"} and len(rows) == 4


def test_a_frozen_policy_has_no_lesson_and_its_root_still_gives_the_tree_its_direction() -> None:
    manager, worker = Pupil("manager", trainable=False), Pupil("worker")
    batch = [episode("e1", 1.0), episode("e2", 0.0), episode("e3", 0.0, workers=0)]
    lessons = learn({"manager": manager, "worker": worker}, batch, credit="broadcast")
    assert manager.lessons == [] and list(lessons.policies) == ["worker"]
    # The third episode called no worker, and counts among the attempts all the same: [1, 0, 0].
    assert worker.advantages == pytest.approx([2**0.5, -(2**-0.5)], rel=1e-3)


def test_uneven_numbers_of_calls_are_no_trouble() -> None:
    """A variable number of samples broke the reshape into groups (slime issue 904, SkyRL issue 1501)."""
    worker = Pupil("worker")
    batch = [episode("e1", 1.0, workers=5), episode("e2", 0.0, workers=0), episode("e3", 0.0, workers=2)]
    learn({"worker": worker}, batch)
    assert worker.advantages == pytest.approx([1.0] * 5 + [-1.0] * 2, rel=1e-3)


def test_each_row_keeps_its_own_mask_whoever_shares_its_advantage() -> None:
    """Advantages spread by one row's mask left most samples without any (SkyRL issues 1492 and 1507)."""
    made = episode("e1", 1.0)
    made.add(
        [CallRecord("k9", "t1", "worker", "p", prompt_token_ids=[1, 2, 3], token_ids=[4, 5], logprobs=[-1.0, -2.0])]
    )
    rows, _, _ = credit_rows([made, episode("e2", 0.0)], seats=["worker"])
    assert {row.calls[0]: (row.loss_mask, row.advantage > 0) for row in rows if row.episode == "e1"} == {
        "k1": ([0, 1], True),
        "k9": ([0, 0, 0, 1, 1], True),
    }


def test_propagation_says_what_is_compared() -> None:
    """Where the reward of the whole team is set, and what an agent's own adds, is one word (PettingLLMs issue 14)."""
    batch = [episode("e1", 1.0), episode("e2", 0.0)]
    for number, made in enumerate(batch):
        made.score("neat", number, seat="worker", source="judge")
    worker = Pupil("worker")
    learn({"worker": worker}, batch, propagation="judge")
    assert worker.advantages == pytest.approx([-1.0, 1.0], rel=1e-3)
    rows, _, _ = credit_rows(batch, seats=["worker"], propagation=lambda instance: float(instance.depth))
    assert [(row.advantage, row.reward) for row in rows] == [(0.0, 1.0), (0.0, 1.0)]


def test_a_stale_tree_is_dropped_whole_or_kept_and_counted() -> None:
    manager, worker = Pupil("manager", version=5), Pupil("worker", version=2)
    batch = [episode("e1", 1.0, version=2), episode("e2", 0.0, version=4), episode("e3", 1.0, version=4)]
    policies = {"manager": manager, "worker": worker}
    lessons = learn(policies, batch, max_staleness=2)
    # The manager's call of the first is three updates old, and its worker's call goes with it.
    assert {row.episode for row in (*manager.lessons[-1], *worker.lessons[-1])} == {"e2", "e3"}
    assert lessons.report.dropped == {"stale": 2} and lessons.staleness.stale == 1
    lessons = learn(policies, batch, max_staleness=2, stale="keep")
    assert len(worker.lessons[-1]) == 3 and lessons.staleness.stale == 1 and not lessons.report.dropped
    lessons = learn(policies, batch)
    assert len(worker.lessons[-1]) == 3 and lessons.staleness.ages == {3: 1, 2: 2}


def test_a_failed_rollout_does_not_end_the_step() -> None:
    """One failing rollout killed the step for all (SkyRL issue 1613)."""
    failed = episode("e0", 5.0)
    failed.fail(RuntimeError("gone"))
    worker = Pupil("worker")
    lessons = learn({"worker": worker}, [failed, episode("e1", 1.0), episode("e2", 0.0), episode("e3", None)])
    assert worker.advantages == pytest.approx([1.0, -1.0], rel=1e-3)
    assert lessons.report.dropped == {"episode not ok": 1, "not scored": 1}


def test_a_role_baseline_goes_on_from_update_to_update() -> None:
    worker, baseline = Pupil("worker"), RoleBaseline(decay=0.5)
    learn({"worker": worker}, [episode("e1", 1.0, env="nim")], credit=baseline)
    learn({"worker": worker}, [episode("e2", 1.0, env="nim"), episode("e3", 1.0, env="chess")], credit=baseline)
    assert worker.advantages == [0.5, 1.0]
    with pytest.raises(ConfigurationError, match="role baseline"):
        learn({"worker": worker}, [], credit="role_baseline")


def test_what_a_seat_got_that_does_not_learn_moves_no_role_baseline() -> None:
    made = episode("e1", 1.0)
    for trace in made.traces:
        trace.trainable = trace.seat == "worker"
    for asked in ({"worker": Pupil("worker")}, {"worker": Pupil("worker"), "manager": Pupil("manager")}):
        baseline = RoleBaseline(decay=0.5)
        learn(asked, [made], credit=baseline)
        assert baseline.values == {"worker": 0.5}


def test_any_function_of_units_is_a_strategy() -> None:
    def by_place(units: Any) -> Credited:
        assert all(isinstance(unit, Unit) for unit in units)
        return Credited([float(index) for index in range(len(units))], [None] * len(units))

    worker = Pupil("worker")
    learn({"worker": worker}, [episode("e1", 1.0, workers=3)], credit=by_place)
    assert worker.advantages == [0.0, 1.0, 2.0]


def test_who_is_frozen_is_said_of_the_seat_that_sampled_and_not_of_the_turn_it_was_asked_in() -> None:
    made = episode("e1", 1.0)
    made.add([CallRecord("k9", "t0", "worker", "p", prompt_token_ids=[9], token_ids=[6], logprobs=[-1.0])])
    for trace in made.traces:
        trace.trainable = trace.seat != "manager"
    rows, _, _ = credit_rows([made], seats=["worker"])
    assert sorted(call for row in rows for call in row.calls) == ["k1", "k9"]
    for trace in made.traces:
        trace.trainable = trace.seat != "worker"
    rows, _, _ = credit_rows([made])
    assert [call for row in rows for call in row.calls] == ["k0"]


def test_a_batch_of_which_no_row_is_made_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """As where `score` forgot to return what it found."""
    with caplog.at_level(logging.WARNING, "agent_env.training"):
        learn({"worker": Pupil("worker")}, [episode("e1", None), episode("e2", None)])
    (record,) = caplog.records
    assert record.getMessage() == (
        "nobody learns from these 2 episodes, which make no row of the seats 'worker' (they have model calls of 'manager', "
        "'worker'): not scored (2 calls); let `score` give a reward to the seat, or to \"team\""
    )


def test_a_batch_that_teaches_nothing_says_so(caplog: pytest.LogCaptureFixture) -> None:
    worker = Pupil("worker")
    with caplog.at_level(logging.WARNING, "agent_env.training"):
        learn({"worker": worker}, [episode("e1", 1.0), episode("e2", 0.0)])
        assert not caplog.records
        learn({"worker": worker}, [episode("e1", 1.0), episode("e2", 0.0, group="1")])
    (record,) = caplog.records
    assert record.getMessage() == (
        "policy 'worker' learns nothing: of the 2 groups of its 2 rows all have one attempt alone; play each task several "
        "times (group_size), or compare by other groups (credit)"
    )


def failed(name: str, *, calls: bool = True, **fields: Any) -> Episode:
    """An attempt that failed, before or after the agents were called."""
    made = episode(name, None, **fields)
    if not calls:
        made.traces.clear()
    made.fail(ValueError("the dice fell off the table"), boundary="program")
    return made


def test_attempts_that_failures_of_the_others_left_alone_are_told_so(caplog: pytest.LogCaptureFixture) -> None:
    batch = [episode("e1", 1.0), failed("e2"), episode("e3", 0.0, group="1"), failed("e4", group="1")]
    with caplog.at_level(logging.WARNING, "agent_env.training"):
        learn({"worker": Pupil("worker")}, batch)
        # Where each task was played once, nobody else would have been there.
        learn({"worker": Pupil("worker")}, [episode("e1", 1.0), failed("e2", group="1")])
    grouped, once = (record.getMessage() for record in caplog.records)
    assert grouped == (
        "policy 'worker' learns nothing: of the 2 groups of its 2 rows all have one attempt alone: 2 of 4 episodes failed, "
        "and leave others alone in their group; see their `failures`, or play each task more often (group_size)"
    )
    assert once.endswith("; play each task several times (group_size), or compare by other groups (credit)")


def test_failed_episodes_are_counted_where_no_row_is_made(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "agent_env.training"):
        learn({"worker": Pupil("worker")}, [episode("e1", None), failed("e2", calls=False)])
        learn({"worker": Pupil("worker")}, [failed("e1", calls=False), failed("e2", calls=False)])
    some, each = (record.getMessage() for record in caplog.records)
    assert some.startswith("nobody learns from these 2 episodes (1 failed), which make no row of the seats 'worker'")
    assert "not scored (1 call); let" in some
    assert each == (
        "nobody learns from these 2 episodes (2 failed), which make no row of the seats 'worker' (they have model calls of "
        "none): no model call of these seats was recorded; see the `failures` of the episodes"
    )


def test_a_policy_without_a_row_is_told_though_another_learns(caplog: pytest.LogCaptureFixture) -> None:
    """As a manager is whose seat has no reward of its own."""
    made = [episode("e1", 1.0), episode("e2", 0.0)]
    for one in made:
        one.rewards[0].target, one.rewards[0].target_id = "seat", "worker"
    manager, worker = Pupil("manager"), Pupil("worker")
    policies = {"manager": manager, "worker": worker}
    told: set[str] = set()
    with caplog.at_level(logging.WARNING, "agent_env.training"):
        lessons = learn(policies, made, propagation="own", told=told)
        learn(policies, [*made[:1], episode("e3", 0.5), *made[1:]], propagation="own", told=told)
    assert worker.lessons[0] and not manager.lessons[0]
    (record,) = caplog.records
    why = (
        "of the 2 episodes none makes a row of the seats 'manager': not scored (2 calls); let `score` give the seat a "
        'reward, or share the team\'s (propagation="team")'
    )
    assert record.getMessage().startswith(f"policy 'manager' learns nothing: {why}")
    idle = lessons.policies["manager"].idle
    assert idle is not None and idle.startswith(why) and lessons.policies["worker"].idle is None


def test_a_seat_that_is_never_called_is_told(caplog: pytest.LogCaptureFixture) -> None:
    policies = {"worker": Pupil("worker"), "critic": Pupil("critic")}
    with caplog.at_level(logging.WARNING, "agent_env.training"):
        learn(policies, [episode("e1", 1.0), episode("e2", 0.0)])
    (record,) = caplog.records
    said = "policy 'critic' learns nothing: of the 2 episodes none makes a row of the seats 'critic': no model call of these seats was"
    assert record.getMessage().startswith(said)
    assert record.getMessage().endswith("; see that it is called, and that its agent asks the model that it is given")


def test_rows_that_are_compared_with_nothing_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """As by broadcast, where only the worker below has a reward."""
    made = [episode("e1", 1.0), episode("e2", 0.0)]
    for one in made:
        one.rewards[0].target, one.rewards[0].target_id = "seat", "worker"
    with caplog.at_level(logging.WARNING, "agent_env.training"):
        learn({"worker": Pupil("worker")}, made, propagation="own", credit="broadcast")
        learn({"worker": Pupil("worker")}, made[1:], propagation="own", credit=RoleBaseline())
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "policy 'worker' learns nothing: its 2 rows were compared with nothing, so that all have the advantage 0; broadcast"
    )


def test_prompts_that_stand_alone_and_were_all_answered_rightly_are_no_mistake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`per_prompt` compares them with each other, and a strategy of one's own with whatever it likes."""

    def zeros(units: Sequence[Unit]) -> Credited:
        return Credited([0.0] * len(units), [None] * len(units))

    batch = [prompted("e1", 1.0, 5), prompted("e2", 1.0, 6)]
    with caplog.at_level(logging.WARNING, "agent_env.training"):
        for credit in ("per_prompt", zeros):
            lessons = learn({"worker": Pupil("worker")}, batch, credit=credit)
            assert lessons.policies["worker"].idle is None
        assert not caplog.records
        learn({"worker": Pupil("worker")}, batch[:1], credit="per_prompt")
    assert "have one attempt alone" in caplog.text


def prompted(name: str, reward: float, token: int) -> Episode:
    """An attempt whose prompts begin with a token of their own."""
    made = episode(name, reward)
    for trace in made.traces:
        for call in trace.calls:
            call.prompt_token_ids = [token, *(call.prompt_token_ids or ())]
    return made


def test_a_policy_is_not_changed_by_a_batch_in_which_all_did_equally_well(
    tokenizer: WordTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Policy("worker", make_model(tokenizer, seed=1), tokenizer, seed=1)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    with caplog.at_level(logging.WARNING, "agent_env.training"):
        lessons = learn({"worker": policy}, [episode("e1", 1.0), episode("e2", 1.0)])
    assert lessons.policies["worker"].groups.flat == 1
    assert all(value.equal(before[name]) for name, value in policy.model.state_dict().items())
    assert not caplog.records, "equal rewards are what success looks like"


def test_a_real_policy_learns_which_word_is_rewarded(tokenizer: WordTokenizer) -> None:
    """What the worker says decides the team's reward; the manager, frozen, always says the same."""
    policy = Policy("worker", make_model(tokenizer, seed=1), tokenizer, seed=1)
    good = tokenizer.encode("zip")
    means: list[float] = []
    for update in range(30):
        batch: list[Episode] = []
        for number in range(32):
            made = episode(f"{update}/{number}", 0.0, workers=1)
            (said,) = policy.sample([prompt(made)])
            call = made.traces[1].calls[0]
            call.token_ids, call.logprobs, call.policy_version = said.token_ids, said.logprobs, policy.version
            made.rewards[0].value = float(said.token_ids[:1] == good)
            batch.append(made)
        means.append(sum(made.reward() or 0.0 for made in batch) / len(batch))
        lessons = learn({"worker": policy}, batch, max_staleness=0)
        assert lessons.report.rows == 32 and not lessons.report.dropped
    assert policy.version == 30 and sum(means[-5:]) / 5 > sum(means[:5]) / 5 + 0.4


def prompt(made: Episode) -> Prompt:
    return Prompt(made.traces[1].calls[0].prompt_token_ids or [], 1.0, 1)
