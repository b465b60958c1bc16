"""Who is credited: agent instances with their place in the tree of calls, and the units that are compared."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from agent_env.episodes import CallRecord, Episode, RewardRecord, Trace, TurnRecord


@dataclass(slots=True)
class Instance:
    """One agent instance in one episode: a session of an agent in a seat.

    `key` names it within the episode: the (hashed) session, or the turn where no session is known. `parent_call` is
    the turn that first called it, None for one that the playing program called. `depth` is the number of agents above
    it on the path of calls, and `root` the topmost instance on that path (`above`, or itself). `rewards` are those given
    by name to its seat, to it, or to one of its turns or model calls, `shared` those of the whole team. One that
    is `frozen` never learns.
    """

    episode: Episode
    trace: Trace
    seat: str
    key: str
    turns: list[TurnRecord] = field(default_factory=list[TurnRecord])
    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    parent_call: str | None = None
    depth: int = 0
    above: Instance | None = None
    rewards: list[RewardRecord] = field(default_factory=list[RewardRecord])
    shared: list[RewardRecord] = field(default_factory=list[RewardRecord])
    frozen: bool = False

    @property
    def root(self) -> Instance:
        """The topmost instance on the path of calls that led here."""
        return self.above or self


@dataclass(frozen=True, slots=True)
class Unit:
    """One answer to one prompt by one agent instance, as credit sees it: whose it is, what it got, where it stands.

    `origin` is the problem that the episode is an attempt at. `root_seat`, `root_instance` and `root_reward` are those
    of the instance at the top of its path. `prompt` is None where no tokens were captured. `without` is what the team
    would have got without it, where somebody found that out. `env` is the scenario, None where it has no name. `learns`
    is False for one that is only there to be compared with: of a frozen seat, or of one that nobody asked rows of.
    """

    episode: str
    seat: str
    reward: float
    origin: str = ""
    instance: str = ""
    parent_call: str | None = None
    root_seat: str | None = None
    root_instance: str = ""
    root_reward: float | None = None
    prompt: tuple[int, ...] | None = None
    without: float | None = None
    env: str | None = None
    learns: bool = True

    @property
    def role(self) -> str:
        """The seat, within its scenario: the same seat of another game is another role."""
        return self.seat if self.env is None else f"{self.env}/{self.seat}"


def origin_of(episode: Episode) -> str:
    """What an episode is an attempt at, the same for all attempts: its run, scenario and group, or its task where it
    has no group."""
    group = episode.group
    if group is None:
        task = json.dumps(episode.task, sort_keys=True, ensure_ascii=False, default=repr)
        group = f"task-{blake2b(task.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
    return "/".join((episode.run or "", episode.env or "", group))


def instances_of(episode: Episode) -> list[Instance]:
    """The agent instances of an episode, with their place in the tree of calls.

    The path of calls is the one that turns and edges tell, not the order in time: workers that run side by side are
    equally deep. A trace that nobody told the turns of is one instance a turn.
    """
    instances: list[Instance] = []
    home: dict[str, Instance] = {}
    frozen = {trace.seat for trace in episode.traces if trace.trainable is False}
    for trace in episode.traces:
        for instance in _parted(episode, trace):
            instances.append(instance)
            # By the seat that sampled: an agent may make a call of one seat in the turn of another.
            instance.frozen = instance.seat in frozen or (trace.seat is None and trace.trainable is False)
            for turn in instance.turns:
                home.setdefault(turn.call_id, instance)
            if trace.session is None:
                home.setdefault(instance.key, instance)
    parents = _parents(episode)
    places = _Places(parents, home)
    for instance in instances:
        first = min(instance.turns, key=lambda turn: turn.started or 0.0).call_id if instance.turns else instance.key
        instance.parent_call = parents.get(first)
        instance.depth, root = places.find(first)
        instance.above = home[root] if root is not None and instance.depth else None
    _deal(episode, instances, home)
    return instances


def _deal(episode: Episode, instances: list[Instance], home: dict[str, Instance]) -> None:
    """Gives each instance the rewards that are its own and those of the team, in one pass over them."""
    found: dict[tuple[str, str | None], list[Instance]] = {}
    for instance in instances:
        found.setdefault(("seat", instance.seat), []).append(instance)
        found.setdefault(("trace", instance.key), []).append(instance)
        for call in instance.calls:
            found["call", call.call_id] = [instance]
    for turn, instance in home.items():
        found.setdefault(("call", turn), []).append(instance)
    shared = [reward for reward in episode.rewards if reward.target == "episode"]
    for instance in instances:
        instance.shared = shared
    for reward in episode.rewards:
        for instance in found.get((reward.target, reward.target_id), ()):
            instance.rewards.append(reward)


def _parted(episode: Episode, trace: Trace) -> Iterable[Instance]:
    """The instances of a trace: one a seat, and where no session is known, one a turn."""
    found: dict[tuple[str, str], Instance] = {}

    def of(seat: str, key: str) -> Instance:
        if (seat, key) not in found:
            found[seat, key] = Instance(episode, trace, seat, key, trace.turns)
        return found[seat, key]

    if trace.session is not None and trace.seat is not None:
        of(trace.seat, trace.session)
    for call in trace.calls:
        of(call.seat, trace.session or call.parent_call_id).calls.append(call)
    return found.values()


def _parents(episode: Episode) -> dict[str, str | None]:
    """The turn above each turn that is known of, None for those that the program called."""
    parents: dict[str, str | None] = {
        edge.callee_call_id: edge.caller_call_id or None for edge in episode.edges if edge.callee_call_id
    }
    for trace in episode.traces:
        for turn in trace.turns:
            if turn.parent_call_id or turn.call_id not in parents:
                parents[turn.call_id] = turn.parent_call_id or None
    return parents


class _Places:
    """How deep turns are, and the topmost turn above each that is some instance's; each turn is looked at once."""

    def __init__(self, parents: dict[str, str | None], home: dict[str, Instance]) -> None:
        self._parents = parents
        self._home = home
        self._known: dict[str, tuple[int, str | None]] = {}

    def find(self, name: str) -> tuple[int, str | None]:
        path: list[str] = []
        passed: set[str] = set()
        above: str | None = name
        while above is not None and above not in self._known and above not in passed:
            path.append(above)
            passed.add(above)
            above = self._parents.get(above)
        depth, root = self._known.get(above, (-1, None)) if above is not None else (-1, None)
        for turn in reversed(path):
            depth += 1
            root = root or (turn if turn in self._home else None)
            self._known[turn] = depth, root
        return self._known[name]
