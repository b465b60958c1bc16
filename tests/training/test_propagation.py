"""Propagation: what each agent of a tree is rewarded with, in numbers worked out by hand."""

from __future__ import annotations

from functools import partial

import pytest

from agent_env.episodes import CallRecord, EdgeRecord, Episode, RewardRecord, TurnRecord
from agent_env.training.propagation import discounted, judge, own, team, without
from agent_env.training.units import Instance, instances_of


def tree() -> Episode:
    """A manager that called two workers side by side; the second one called a helper."""
    made = Episode("ep")
    made.add(
        [
            TurnRecord("t1", "manager@1.0.0", "m", seat="manager", started=1.0),
            TurnRecord("t3", "worker@1.0.0", "w2", seat="worker", parent_call_id="t1", started=2.0, reward=0.25),
            TurnRecord("t2", "worker@1.0.0", "w1", seat="worker", parent_call_id="t1", started=3.0, reward=0.5),
            TurnRecord("t4", "helper@1.0.0", "h", seat="helper", parent_call_id="t3", started=4.0),
            TurnRecord("t5", "worker@1.0.0", "w1", seat="worker", parent_call_id="t1", started=5.0, reward=1.0),
        ]
    )
    return made


def found(episode: Episode) -> dict[str, Instance]:
    return {instance.key: instance for instance in instances_of(episode)}


def test_each_instance_has_its_place_in_the_tree() -> None:
    agents = found(tree())
    assert {key: (agent.depth, agent.parent_call, agent.root.key) for key, agent in agents.items()} == {
        "m": (0, None, "m"),
        "w1": (1, "t1", "m"),
        "w2": (1, "t1", "m"),
        "h": (2, "t3", "m"),
    }


def test_edges_tell_the_place_where_the_callee_did_not() -> None:
    made = Episode("ep")
    made.add([TurnRecord("t1", "m@1.0.0", "m", seat="m"), TurnRecord("t2", "w@1.0.0", "w", seat="w")])
    made.add([EdgeRecord("e1", "w@1.0.0", caller_call_id="t1", callee_call_id="t2")])
    made.add([EdgeRecord("e2", "x", caller_call_id="t2", callee_call_id="t3"), CallRecord("k", "t3", "x", "p")])
    agents = found(made)
    assert (agents["w"].depth, agents["w"].parent_call, agents["w"].root.key) == (1, "t1", "m")
    # Nobody told the turn t3; its model call is there all the same.
    assert (agents["t3"].seat, agents["t3"].depth, agents["t3"].root.key) == ("x", 2, "m")


def test_what_a_turn_tells_of_its_caller_goes_before_what_an_edge_leaves_out() -> None:
    made = tree()
    made.add([EdgeRecord("e1", "worker@1.0.0", callee_call_id="t2"), EdgeRecord("e2", "x@1.0.0")])
    assert (found(made)["w1"].depth, found(made)["w1"].parent_call) == (1, "t1")


def test_a_manager_that_is_called_back_stays_where_it_began() -> None:
    made = tree()
    made.add([TurnRecord("t6", "manager@1.0.0", "m", seat="manager", parent_call_id="t4", started=6.0)])
    assert (found(made)["m"].depth, found(made)["m"].parent_call) == (0, None)


def test_records_that_go_round_in_a_circle_are_placed_all_the_same() -> None:
    made = Episode("ep")
    made.add([TurnRecord("t1", "a@1.0.0", "s1", seat="a", parent_call_id="t2")])
    made.add([TurnRecord("t2", "a@1.0.0", "s2", seat="a", parent_call_id="t1")])
    assert {agent.depth for agent in instances_of(made)} == {0, 1}


def test_the_teams_reward_is_shared_and_a_seats_own_comes_on_top() -> None:
    made = tree()
    made.score("right", 1.0)
    made.score("brief", 0.5, seat="worker", weight=0.2)
    assert {key: team(agent) for key, agent in found(made).items()} == {"m": 1.0, "w1": 1.1, "w2": 1.1, "h": 1.0}


def test_the_team_gets_what_the_episode_tells_for_each_seat() -> None:
    made = tree()
    made.score("right", 1.0)
    made.score("lost", -1.0, seat="worker")
    made.score("unknown", None, seat="helper")
    assert {agent.seat: team(agent) for agent in instances_of(made)} == {s: made.reward(s) for s in made.seats()}


def test_nothing_scored_is_none_and_not_nought() -> None:
    agents = found(tree())
    for propagate in (team, discounted, judge):
        assert {propagate(agent) for agent in agents.values()} == {None}
    assert own(agents["m"]) is None and own(agents["w1"]) == 1.5


def test_the_discount_follows_the_path_of_calls_and_not_the_order_in_time() -> None:
    """Discounting by the order of creation punishes whichever of two parallel workers began later (AReaL)."""
    made = tree()
    made.score("right", 1.0)
    made.score("polite", 0.5, seat="helper")
    agents = found(made)
    assert [discounted(agents[key]) for key in ("m", "w1", "w2", "h")] == pytest.approx([1.0, 0.9, 0.9, 0.81 + 0.5])
    half = partial(discounted, gamma=0.5)
    assert [half(agents[key]) for key in ("m", "w1", "w2", "h")] == [1.0, 0.5, 0.5, 0.25 + 0.5]


def test_own_is_what_an_agents_environment_gave_its_turns_and_what_it_was_given_by_name() -> None:
    made = tree()
    made.score("right", 1.0)
    made.add([RewardRecord("neat", 0.1, target="trace", target_id="w1"), RewardRecord("odd", 3.0, target="trace")])
    made.add([RewardRecord("quick", 0.2, 0.5, target="call", target_id="t3")])
    made.add([CallRecord("k1", "t4", "helper", "p"), RewardRecord("terse", 0.7, target="call", target_id="k1")])
    agents = found(made)
    assert own(agents["w1"]) == pytest.approx(0.5 + 1.0 + 0.1) and own(agents["w2"]) == pytest.approx(0.25 + 0.1)
    assert own(agents["h"]) == 0.7 and own(agents["m"]) is None


def test_judge_is_what_judges_said() -> None:
    made = tree()
    made.score("right", 1.0)
    made.score("rubric", 0.8, seat="worker", source="judge")
    assert {key: judge(agent) for key, agent in found(made).items()} == {"m": None, "w1": 0.8, "w2": 0.8, "h": None}
    made.score("whole", 0.1, source="judge")
    assert judge(found(made)["h"]) == 0.1


def test_what_the_team_would_have_got_without_someone_is_nobodys_reward() -> None:
    made = tree()
    made.score("right", 1.0)
    made.score("without", 0.4, seat="worker", weight=0.0, source="difference")
    made.score("without again", 0.2, seat="worker", weight=0.0, source="difference")
    agents = found(made)
    assert without(agents["w1"]) == pytest.approx(0.3) and without(agents["m"]) is None
    assert team(agents["w1"]) == 1.0 and own(agents["h"]) is None and made.reward("worker") == 1.0
    made.score("without", 0.7, source="difference")
    made.score("without", 0.7, seat="worker", source="difference")
    assert team(agents["w1"]) == discounted(agents["m"]) == 1.0 and own(agents["w1"]) == 1.5
