"""One task played by one team: what each agent did, who called whom, and what it was worth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

from agent_env.episodes.boundaries import Boundary, boundary_of
from agent_env.episodes.records import (
    AnyRecord,
    CallRecord,
    EdgeRecord,
    Json,
    RewardRecord,
    TurnRecord,
    check_fields,
    items,
    read,
    record_from_json,
    record_id,
    shown,
    written,
)
from agent_env.errors import AgentEnvError, ProtocolError


@dataclass(slots=True)
class Failure:
    """Why an episode is not ok: the boundary that failed, the error's code, its message, and the call it ended."""

    kind: ClassVar[str] = "failure"

    boundary: Boundary
    code: str
    message: str
    call_id: str | None = None

    @classmethod
    def of(cls, error: BaseException, *, boundary: Boundary | None = None, call_id: str | None = None) -> Failure:
        """Attributes an error; one that is none of agent-env's own belongs to the program."""
        boundary = boundary or boundary_of(error)
        if isinstance(error, AgentEnvError):
            return cls(boundary, error.code, error.message, call_id)
        return cls(boundary, type(error).__name__, str(error), call_id)

    def to_json(self) -> dict[str, Json]:
        """The failure as JSON: an error as verifiers v1 writes it, `type` and `message`, and whose it is."""
        value: dict[str, Json] = {"boundary": self.boundary, "type": self.code, "message": self.message}
        return value if self.call_id is None else {**value, "call_id": self.call_id}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Failure:
        """Reads what `to_json` wrote, or an earlier release (`code` for `type`); raises `ProtocolError`."""
        if isinstance(value, Mapping) and "type" in value:  # pyright: ignore[reportUnnecessaryIsInstance]
            value = {**value, "code": value["type"]}
        return read(cls, value)


@dataclass(slots=True)
class Trace:
    """What one agent instance did: its turns and the model calls that it made in them.

    An instance is one session of one agent. A trace without an agent holds model calls of a seat whose turns nobody
    told. `trainable` is False for one that is frozen, such as a judge, and None where nobody said.
    """

    kind: ClassVar[str] = "trace"

    agent: str | None
    seat: str | None
    session: str | None
    turns: list[TurnRecord] = field(default_factory=list[TurnRecord])
    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    trainable: bool | None = None

    @property
    def stop_condition(self) -> str | None:
        """Why the last turn ended, None when nobody told: the error's code of one that failed."""
        if not self.turns:
            return None
        last = max(self.turns, key=lambda turn: turn.started or 0.0)
        return last.stop if last.status == "ok" else last.status

    def to_json(self) -> dict[str, Json]:
        """The trace as JSON, with the names of verifiers v1: its session is its `id`, the seat its agent's `name`.

        Raises `ProtocolError` for a call with a logprob that no float holds: nobody could read the whole.
        """
        for call in self.calls:
            try:
                check_fields(call, "logprobs")
            except ProtocolError as error:
                raise ProtocolError(f"the call {call.call_id!r} cannot be written: {error.message}") from error
        agent = {"name": self.seat, "release": self.agent, "trainable": self.trainable}
        return {
            **({} if self.session is None else {"id": self.session}),
            "agent": {name: field for name, field in agent.items() if field is not None},
            "turns": [turn.to_json() for turn in self.turns],
            "calls": [call.to_json() for call in self.calls],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Trace:
        """Reads what `to_json` wrote, or an earlier release (`agent`, `seat` and `session` as text); raises
        `ProtocolError`."""
        if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ProtocolError(f"a trace is a JSON object, not {shown(value)}")
        known: dict[str, Json] = {"agent": None, "seat": None, "session": None, **value}
        agent = known["agent"]
        if isinstance(agent, Mapping):
            said = cast(Mapping[str, Json], agent)
            known |= {"agent": said.get("release"), "seat": said.get("name"), "trainable": said.get("trainable")}
            known["session"] = value.get("id")
        trace = read(cls, known)
        trace.turns = [TurnRecord.from_json(turn) for turn in items(value, "turns", of=cls.kind)]
        trace.calls = [CallRecord.from_json(call) for call in items(value, "calls", of=cls.kind)]
        return trace


@dataclass(slots=True)
class Node:
    """One call in the tree: the edge that led to it, the turn that answered it, and what that turn did in its course.

    `turn` is None for a callee that told nothing; `edge` is None for a turn whose caller told nothing.
    """

    call_id: str | None
    edge: EdgeRecord | None = None
    turn: TurnRecord | None = None
    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    children: list[Node] = field(default_factory=list["Node"])

    @property
    def started(self) -> float:
        """When the call began, for ordering; infinite when nobody told."""
        record = self.edge or self.turn
        return record.started if record is not None and record.started is not None else float("inf")

    def walk(self) -> Iterator[Node]:
        """This node and all below it, callers before callees."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(slots=True)
class Episode:
    """One task played by one team.

    Records are taken by `add` in any order and more than once; `traces` has one entry an agent instance, `edges` who
    called whom. `ok` is False when the task could not be played to its end, and `failures` says why: that is data,
    not a reward of 0. `env` names the scenario, and `seed` is what its chance came from.

        episode.tree()               # the calls, nested
        episode.reward("solver")     # what counts for the seat, None if nobody scored it
    """

    kind: ClassVar[str] = "episode"

    id: str
    task: Json = None
    group: str | None = None
    run: str | None = None
    started: float | None = None
    seconds: float | None = None
    ok: bool = True
    failures: list[Failure] = field(default_factory=list[Failure])
    traces: list[Trace] = field(default_factory=list[Trace])
    edges: list[EdgeRecord] = field(default_factory=list[EdgeRecord])
    rewards: list[RewardRecord] = field(default_factory=list[RewardRecord])
    info: dict[str, Json] = field(default_factory=dict[str, Json])
    env: str | None = None
    seed: int | None = None

    def add(self, records: Iterable[AnyRecord | Mapping[str, Json]]) -> None:
        """Takes records, in JSON or not, each once; raises `ProtocolError` for one of another episode."""
        calls: list[CallRecord] = []
        # Gone through at every turn of an episode that is being recorded: comprehensions are the fastest way.
        known: dict[str, set[str]] = {
            TurnRecord.kind: {turn.call_id for trace in self.traces for turn in trace.turns},
            EdgeRecord.kind: {edge.edge_id for edge in self.edges},
            CallRecord.kind: {call.call_id for trace in self.traces for call in trace.calls},
        }
        turned = False
        for given in records:
            record = record_from_json(given) if isinstance(given, Mapping) else given
            if record.episode is not None and record.episode != self.id:
                raise ProtocolError(f"a {record.kind!r} record of episode {record.episode!r} came to {self.id!r}")
            name = record_id(record)
            if name is not None:
                if name in known[record.kind]:
                    continue
                known[record.kind].add(name)
            if isinstance(record, TurnRecord):
                self._trace(record.agent, record.seat, record.session).turns.append(record)
                turned = True
            elif isinstance(record, EdgeRecord):
                self.edges.append(record)
            elif isinstance(record, CallRecord):
                calls.append(record)
            else:
                self.rewards.append(record)
        if turned:
            calls = self._homeless() + calls
        if calls:
            homes = {turn.call_id: trace for trace in self.traces for turn in trace.turns}
            for call in calls:
                home = homes.get(call.parent_call_id) or self._trace(None, call.seat, None)
                home.calls.append(call)

    def records(self) -> Iterator[AnyRecord]:
        """All records of the episode."""
        for trace in self.traces:
            yield from trace.turns
            yield from trace.calls
        yield from self.edges
        yield from self.rewards

    def seats(self) -> list[str]:
        """The names of the seats that played, sorted."""
        played = {trace.seat for trace in self.traces} | {edge.callee_seat for edge in self.edges}
        return sorted(seat for seat in played if seat is not None)

    def score(
        self, name: str, value: float | None, *, seat: str | None = None, weight: float = 1.0, source: str = "env"
    ) -> None:
        """Adds a named reward, for one seat or (by default) for the whole team; raises `InvalidArguments` for one
        that is not finite."""
        target: Literal["seat", "episode"] = "episode" if seat is None else "seat"
        self.rewards.append(RewardRecord(name, value, weight, source, target, seat, self.id))

    def reward(self, seat: str | None = None) -> float | None:
        """The weighted sum of what counts for the team and, if given, for the seat; None if nothing was scored."""
        values = [
            reward.value * reward.weight
            for reward in self.rewards
            if reward.value is not None
            and (reward.target == "episode" or (reward.target == "seat" and reward.target_id == seat))
        ]
        return sum(values) if values else None

    def fail(self, error: BaseException, *, boundary: Boundary | None = None, call_id: str | None = None) -> None:
        """Marks the episode as not played to its end."""
        self.ok = False
        self.failures.append(Failure.of(error, boundary=boundary, call_id=call_id))

    def tree(self) -> Node:
        """The tree of calls under the root, which is the program that played the episode; siblings by time."""
        root = Node(None)
        nodes: dict[str, Node] = {}
        for trace in self.traces:
            for turn in trace.turns:
                nodes[turn.call_id] = Node(turn.call_id, turn=turn)
        parents: list[tuple[Node, str | None]] = []
        placed: set[str] = set()
        for edge in self.edges:
            node = nodes.get(edge.callee_call_id or "")
            if node is None or node.edge is not None:
                node = Node(edge.callee_call_id)
            else:
                placed.add(node.call_id or "")
            node.edge = edge
            parents.append((node, edge.caller_call_id))
        for name, node in nodes.items():
            if name not in placed and node.turn is not None:
                parents.append((node, node.turn.parent_call_id))
        for node, parent in parents:
            nodes.get(parent or "", root).children.append(node)
        for trace in self.traces:
            for call in trace.calls:
                nodes.get(call.parent_call_id, root).calls.append(call)
        for node in (root, *nodes.values()):
            node.children.sort(key=lambda child: child.started)
            node.calls.sort(key=lambda call: call.started or 0.0)
        return root

    def to_json(self) -> dict[str, Json]:
        """The episode as JSON, with the names of verifiers v1 where it means the same; `from_json` is its exact
        inverse."""
        value = written(self)
        del value["failures"]
        value["errors"] = [failure.to_json() for failure in self.failures]
        value["traces"] = [trace.to_json() for trace in self.traces]
        value["edges"] = [edge.to_json() for edge in self.edges]
        value["rewards"] = [reward.to_json() for reward in self.rewards]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Episode:
        """Reads what `to_json` wrote, or an earlier release (`failures` for `errors`); raises `ProtocolError`."""
        if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ProtocolError(f"an episode is a JSON object, not {shown(value)}")
        if value.get("kind") != cls.kind:
            raise ProtocolError(f"an episode has the kind {cls.kind!r}, not {shown(value.get('kind'))}")
        episode = read(cls, value)
        errors = "errors" if "errors" in value else "failures"
        episode.failures = [Failure.from_json(failure) for failure in items(value, errors, of=cls.kind)]
        episode.traces = [Trace.from_json(trace) for trace in items(value, "traces", of=cls.kind)]
        episode.edges = [EdgeRecord.from_json(edge) for edge in items(value, "edges", of=cls.kind)]
        episode.rewards = [RewardRecord.from_json(reward) for reward in items(value, "rewards", of=cls.kind)]
        return episode

    def _trace(self, agent: str | None, seat: str | None, session: str | None) -> Trace:
        for trace in self.traces:
            if trace.agent == agent and trace.session == session and (session is not None or trace.seat == seat):
                return trace
        trace = Trace(agent, seat, session)
        self.traces.append(trace)
        return trace

    def _homeless(self) -> list[CallRecord]:
        """Takes out the model calls that found no turn, since a turn that came later may be theirs."""
        homeless = [call for trace in self.traces if trace.session is None for call in trace.calls]
        self.traces = [trace for trace in self.traces if trace.session is not None]
        return homeless
