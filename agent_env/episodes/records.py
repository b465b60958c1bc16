"""The records that an episode is made of, one a line in a journal.

| kind | what it tells | written by |
|---|---|---|
| `turn` | one turn of one agent | the environment that serves the agent |
| `edge` | one call of an agent by an agent, or by the root | the caller |
| `model` | one call of a model | the gateway |
| `reward` | one named, weighted score | whoever scores |

`to_json` leaves out what is None and `from_json` puts it back, so the two are exact inverses. A field that a newer
release added is passed over. A value that nobody gave is None, never 0.0 and never "".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

from agent_env.errors import InvalidArguments, ProtocolError

Json: TypeAlias = Any
"""A value that `json.dumps` accepts."""

R = TypeVar("R")


@dataclass(slots=True)
class TurnRecord:
    """One turn: what an agent was told in one session and what it said.

    `call_id` is the turn's own, `parent_call_id` that of the turn that asked (empty or None at the root). `session` is
    a hash: session ids are secrets. `reward` is what the environment's own `rewards` add up to, `pairings` says how
    the session's peers were chosen. `status` is "ok" or the code of an error, `error` its wire form. `started` is in
    seconds since the epoch, `seconds` the duration.
    """

    kind: ClassVar[str] = "turn"

    call_id: str
    agent: str
    session: str
    episode: str | None = None
    parent_call_id: str | None = None
    trace_id: str | None = None
    seat: str | None = None
    tool: str | None = None
    request: Json = None
    reply: Json = None
    stop: str | None = None
    reward: float | None = None
    rewards: dict[str, Json] | None = None
    pairings: dict[str, Json] | None = None
    status: str = "ok"
    error: Json = None
    started: float | None = None
    seconds: float | None = None
    usage: dict[str, Json] | None = None

    def to_json(self) -> dict[str, Json]:
        """The record as JSON, its kind first."""
        return written(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> TurnRecord:
        """Reads what `to_json` wrote; raises `ProtocolError`."""
        return read(cls, value)


@dataclass(slots=True)
class EdgeRecord:
    """One call between agents, seen from the caller: whom it asked, over which lane, and what came back.

    `caller` is None at the root of an episode. `callee_call_id` is None when the callee never told it. `pairing` says
    how the callee was chosen, when a matchmaker chose it.
    """

    kind: ClassVar[str] = "edge"

    edge_id: str
    callee: str
    episode: str | None = None
    trace_id: str | None = None
    caller: str | None = None
    caller_seat: str | None = None
    caller_call_id: str | None = None
    callee_seat: str | None = None
    callee_call_id: str | None = None
    protocol: str | None = None
    request: Json = None
    reply: Json = None
    status: str = "ok"
    error: Json = None
    started: float | None = None
    seconds: float | None = None
    pairing: Json = None

    def to_json(self) -> dict[str, Json]:
        """The record as JSON, its kind first."""
        return written(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> EdgeRecord:
        """Reads what `to_json` wrote; raises `ProtocolError`."""
        return read(cls, value)


@dataclass(slots=True)
class CallRecord:
    """One call of a model through the gateway, the source of training rows.

    `parent_call_id` is the turn that made it. `request` is the body as the agent sent it; `response` is the answer in
    its non-streaming form, without what the record has a field for: `usage`, `policy_version`, `prompt_token_ids`,
    `token_ids` and `logprobs` (one a sampled token). These are None where the upstream gives none. An answer of several
    choices (`n`) makes a record of each; those after the first name it in `choice_of`, and leave to it what they share:
    the request and the usage.

    `policy` names the policy that answered, `policy_version` its version when the call began and `policy_version_end`
    that of its last token, when a call may span versions. `retries` counts the attempts before this one that the
    gateway made by itself; `retry_of` is the call that this one repeats, as its caller marked it: never a guess. Where
    the mark fits several, `retry_among` are these, oldest first, unless they are very many; it is empty where every try
    before this one was refused, which leaves no record. `attempt` is the caller's own count, of a call that it marked as
    a retry. `temperature` is what the model was asked for, the seat's own before the agent's; None leaves it to the
    model's server.

    `api` is the dialect that the agent spoke, `upstream_api` the one that the model's server was asked in where that is
    another. `usage` and `finish_reason` are in the words of chat completions, whatever the dialect. Where one of the
    three token fields is None in a call that succeeded, `missing` has its name and why; "asked_apart" there says of the
    prompt's tokens that the answer did not tell them and that its server was asked for them by themselves.
    """

    kind: ClassVar[str] = "model"

    call_id: str
    parent_call_id: str
    seat: str
    model: str
    episode: str | None = None
    run: str | None = None
    api: str = "chat"
    stream: bool = False
    request: Json = None
    response: Json = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    policy_version: Json = None
    finish_reason: str | None = None
    usage: dict[str, Json] | None = None
    status: str = "ok"
    http_status: int | None = None
    error: Json = None
    started: float | None = None
    seconds: float | None = None
    policy: str | None = None
    policy_version_end: Json = None
    retries: int | None = None
    retry_of: str | None = None
    attempt: int | None = None
    upstream_api: str | None = None
    missing: dict[str, Json] | None = None
    temperature: float | None = None
    retry_among: list[str] | None = None
    choice_of: str | None = None

    def to_json(self) -> dict[str, Json]:
        """The record as JSON, its kind first."""
        return written(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> CallRecord:
        """Reads what `to_json` wrote; raises `ProtocolError`."""
        return read(cls, value)


Target: TypeAlias = Literal["episode", "seat", "trace", "call"]


@dataclass(slots=True)
class RewardRecord:
    """One score: of the episode, a seat, a trace (by its session) or a call; `value` None says scoring did not run.

    Raises `InvalidArguments` for a value or a weight that is not finite.
    """

    kind: ClassVar[str] = "reward"

    name: str
    value: float | None = None
    weight: float = 1.0
    source: str = "env"
    target: Target = "episode"
    target_id: str | None = None
    episode: str | None = None
    detail: Json = None

    def __post_init__(self) -> None:
        for name, number in (("value", self.value), ("weight", self.weight)):
            if isinstance(number, int | float) and not finite(number):
                raise InvalidArguments(
                    f"the {name} of the reward {self.name!r} must be a finite number, not {shown(number)}; a reward "
                    f"that nobody can tell is None"
                )

    def to_json(self) -> dict[str, Json]:
        """The record as JSON, its kind first."""
        return written(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> RewardRecord:
        """Reads what `to_json` wrote; raises `ProtocolError`."""
        return read(cls, value)


AnyRecord: TypeAlias = TurnRecord | EdgeRecord | CallRecord | RewardRecord

RECORD_KINDS: Mapping[str, type[TurnRecord | EdgeRecord | CallRecord | RewardRecord]] = {
    kind.kind: kind for kind in (TurnRecord, EdgeRecord, CallRecord, RewardRecord)
}


def record_from_json(value: Mapping[str, Json]) -> AnyRecord:
    """Reads a record of any kind by its `kind`; raises `ProtocolError` for one that is unknown, incomplete or of fields
    that are not of their types."""
    if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ProtocolError(f"a record is a JSON object, not {shown(value)}")
    said = value.get("kind")
    kind = RECORD_KINDS.get(said) if isinstance(said, str) else None
    if kind is None:
        raise ProtocolError(f"a record has the kind {shown(said)}; the kinds are {', '.join(RECORD_KINDS)}")
    return read(kind, value)


def record_id(record: AnyRecord) -> str | None:
    """What names the record among those of its kind; None for a reward."""
    if isinstance(record, EdgeRecord):
        return record.edge_id
    return None if isinstance(record, RewardRecord) else record.call_id


def written(record: Any) -> dict[str, Json]:
    """The fields of a record that are not None, after its `kind`."""
    value: dict[str, Json] = {"kind": record.kind}
    for name in record.__match_args__:
        field = getattr(record, name)
        if field is not None:
            value[name] = field
    return value


def read(kind: type[R], value: Mapping[str, Json]) -> R:
    """Makes a record of the fields that are there; raises `ProtocolError` when one that it needs is not, or when one
    is not of its type."""
    if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ProtocolError(f"a {_name(kind)!r} record is a JSON object, not {shown(value)}")
    given: dict[str, Json] = {}
    for name, check in _checks(cast(Any, kind)).items():
        if name in value:
            given[name] = field = value[name]
            if check is not None and not _passes(field, check):
                raise _misfit(kind, name, check, field)
    try:
        return kind(**given)
    except TypeError:
        needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]  # type: ignore[arg-type]
        missing = [name for name in needed if name not in value]
        raise ProtocolError(f"a {_name(kind)!r} record lacks {', '.join(missing)}", missing=missing) from None


def check_fields(record: Any, *names: str) -> None:
    """Raises `ProtocolError` when a field, of those named if any are, is not of the type that its annotation tells: JSON
    of others is not trusted."""
    kind: Any = type(record)
    for name, check in _checks(kind).items():
        if check is not None and (not names or name in names) and not _passes(getattr(record, name), check):
            raise _misfit(kind, name, check, getattr(record, name))


def items(value: Mapping[str, Json], name: str, *, of: str) -> list[Json]:
    """The list in a field, empty where there is none; raises `ProtocolError` for anything else."""
    found = value.get(name, [])
    if not isinstance(found, list | tuple):
        raise ProtocolError(f"the field {name!r} of a {of!r} record must be list, not {shown(found)}")
    return list(cast(list[Json], found))


def finite(value: float) -> bool:
    """Whether a number is one that a float holds, neither infinite nor none at all."""
    try:
        return isfinite(value)
    except OverflowError:
        return False


def shown(value: Json) -> str:
    """The beginning of a value, for a message about it."""
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that is too large to show"


_Fits: TypeAlias = Callable[[Any], bool]


class _Check(NamedTuple):
    """Classes whose values fit a field, if they are finite; a test for the rest; and what is wanted."""

    plain: frozenset[Any]
    fits: _Fits
    wanted: str


def _passes(value: Any, check: _Check) -> bool:
    kind = type(value)
    return (isfinite(value) if kind is float else True) if kind in check.plain else check.fits(value)


def _misfit(kind: type[Any], name: str, check: _Check, value: Any) -> ProtocolError:
    wanted = check.wanted
    if isinstance(value, int | float) and not finite(value) and "float" in wanted:
        wanted = f"finite ({wanted})"
    return ProtocolError(f"the field {name!r} of a {_name(kind)!r} record must be {wanted}, not {shown(value)}")


@cache
def _checks(kind: type[Any]) -> Mapping[str, _Check | None]:
    """The check of each field; None of one that may be anything."""
    hints, wanted = get_type_hints(kind), kind.__annotations__
    return {
        name: None if hints[name] is Any else _Check(_plain(hints[name]), _fitting(hints[name]), wanted[name])
        for name in kind.__match_args__
    }


def _plain(hint: Any) -> frozenset[Any]:
    if get_origin(hint) is UnionType:
        return frozenset[Any]().union(*map(_plain, get_args(hint)))
    if get_origin(hint) is dict:
        return frozenset({dict})
    # A whole number may be too large for a float, and is looked at.
    return frozenset({hint} if isinstance(hint, type) else ())


def _fitting(hint: Any) -> _Fits:
    """A test of values against an annotation, as deep as the readers of records rely on it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        parts = [_fitting(part) for part in arguments]
        return lambda value: any(fits(value) for fits in parts)
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in arguments
    if origin is list and arguments[0] is int:
        return lambda value: isinstance(value, list) and set(map(type, value)) <= {int}
    if origin is list and arguments[0] is float:
        return are_floats
    if origin is list and arguments[0] is str:
        return lambda value: isinstance(value, list) and _all_of(str, value)
    if hint is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and finite(value)
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    return lambda value: isinstance(value, origin or hint)


def _all_of(kind: type[Any], values: list[Any]) -> bool:
    return all(isinstance(one, kind) for one in values)


def are_floats(values: Any) -> bool:
    """Numbers, of which logprobs may be infinite: rows leave those out, and say so."""
    if not isinstance(values, list):
        return False
    found: list[Any] = values
    kinds = set(map(type, found))
    return kinds <= {int, float} and (int not in kinds or all(finite(one) for one in found if type(one) is int))


def _name(kind: type[Any]) -> str:
    return str(kind.kind)
