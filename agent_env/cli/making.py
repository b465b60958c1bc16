"""What a run of `agent-env train` is made of: its options, checked before there is a run, and kept in it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    import typer

    from agent_env.training.checkpoints import Checkpoint, Run
    from agent_env.training.credit import Credit
    from agent_env.training.propagation import Propagation
    from agent_env.training.scenario import Scenario


Average: TypeAlias = Literal["units", "tokens"]
"""What counts the same in the loss, see `Settings`."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is made of: kept in it, and the same when it is gone on with."""

    scenario: str
    folder: str
    policies: dict[str, str]
    tasks: str | None
    tiny: bool
    lora: bool
    group_size: int
    tasks_per_update: int
    credit: str
    propagation: str
    lr: float | None
    seed: int
    average: Average = "units"
    # A start may change these; runs of earlier versions do not say them.
    concurrency: int = 64
    seconds: float = 300.0
    checkpoint_every: int = 10

    def changed(self, **given: float | None) -> Options:
        """The options with those in place that were given, which is not None."""
        said: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return replace(self, **said)


def read_tasks(path: Path) -> Sequence[Any]:
    """The tasks of a file of JSON lines; raises `ConfigurationError` with the number of a line that is none."""
    from agent_env.errors import ConfigurationError

    def refused(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    tasks: list[Any] = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if line.strip():
            try:
                tasks.append(json.loads(line.decode("utf-8"), parse_constant=refused))
            except UnicodeDecodeError as error:
                raise ConfigurationError(f"line {number} of {str(path)!r} is no UTF-8 text: {error.reason}") from None
            except (ValueError, RecursionError) as error:
                raise ConfigurationError(f"line {number} of {str(path)!r} is no JSON: {error}") from None
    return tasks


def check_numbers(**options: float | None) -> None:
    """Raises `ConfigurationError` for an option that must be a number above 0 and is not."""
    from agent_env.errors import ConfigurationError

    for name, value in options.items():
        if value is not None and not 0 < value < float("inf"):
            raise ConfigurationError(f"--{name.replace('_', '-')} must be a number above 0, not {value!r}")


def checked_average(average: str) -> Average:
    """What counts the same in the loss; raises `ConfigurationError` for what is none of both."""
    from agent_env.errors import ConfigurationError

    found: Average | None = next((known for known in get_args(Average) if known == average), None)
    if found is None:
        raise ConfigurationError(f"--average must be 'units' or 'tokens', not {average!r}")
    return found


def credit_named(name: str) -> Credit:
    """What `--credit` means, a role baseline made for this start included; raises `ConfigurationError` with the choices."""
    from agent_env.errors import ConfigurationError
    from agent_env.training.credit import CREDITS, RoleBaseline

    if name == "role_baseline":
        return RoleBaseline()
    if name not in CREDITS:
        raise ConfigurationError(f"--credit takes {', '.join(CREDITS)} or role_baseline, not {name!r}")
    return CREDITS[name]


def propagation_named(name: str) -> Propagation:
    """What `--propagation` means; raises `ConfigurationError` with the choices."""
    from agent_env.errors import ConfigurationError
    from agent_env.training.propagation import PROPAGATIONS

    if name not in PROPAGATIONS:
        raise ConfigurationError(f"--propagation takes {', '.join(PROPAGATIONS)}, not {name!r}")
    return PROPAGATIONS[name]


def check_device(device: str | None) -> None:
    """Raises `ConfigurationError` for a device that is not here."""
    if device is None:
        return
    import torch

    from agent_env.errors import ConfigurationError

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
        raise ConfigurationError(
            f"there is no device {device!r} here: {why:.200}; leave --device out, or say cpu"
        ) from None


def folders_of(pairs: Sequence[str]) -> dict[str, str]:
    """The folders of models by seat, of SEAT=DIR; raises `ConfigurationError`."""
    from agent_env.errors import ConfigurationError

    found: dict[str, str] = {}
    for pair in pairs:
        seat, _, folder = pair.partition("=")
        if not seat or not folder or seat in found:
            raise ConfigurationError(f"--policy must be SEAT=DIR, once a seat, not {pair!r}")
        found[seat] = str(Path(folder).resolve())
    return found


def refuse_changes(context: typer.Context) -> None:
    """A run that changes what it is made of is another run."""
    from agent_env.errors import ConfigurationError

    free = {"scenario", "updates", "concurrency", "seconds", "device", "checkpoint_every", "runs", "resume"}
    free |= {"debug", "as_json"}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name not in free and source is not None and source.name == "COMMANDLINE":
            raise ConfigurationError(
                f"a run goes on with its own {parameter.opts[0]}; leave it out, or begin another run"
            )


def begin(runs: Path, scenario: str, updates: int, options: Options, *, name: str | None) -> Run:
    """Begins a run; one that came to no update gives its name and its folder, with the episodes that are in it.

    Raises `ConfigurationError` where the name is that of another run.
    """
    from agent_env.training.checkpoints import Run

    about = {"scenario": scenario, "updates": updates, "options": asdict(options)}
    again = None if name is None else Run.open_unmade(runs, name)
    if again is not None and isinstance(again.about.get("options"), Mapping):
        again.tell(created=time.time(), **about)
        return again
    if again is not None:
        again.close()  # what some other program keeps in its folder is for that to know
    return Run.create(runs, about, name=name)


def check_known(scenario: Scenario, checkpoint: Checkpoint) -> None:
    """Raises `ConfigurationError` for a policy that a checkpoint has not: with another in its place, what was learned
    would be lost without a word."""
    from agent_env.errors import ConfigurationError

    for seat, given in scenario.seats.items():
        if given.policy is not None and given.policy not in checkpoint.policies:
            known = ", ".join(map(repr, checkpoint.policies))
            raise ConfigurationError(
                f"the seat {seat!r} is played by the policy {given.policy!r}, which the checkpoint "
                f"{str(checkpoint.folder)!r} has not; it has {known}. Give the policy its name back, or begin another run"
            )


def kept_options(run: Run) -> tuple[Options, int]:
    """What a run is made of, and how many updates it is to make."""
    from pydantic import TypeAdapter, ValidationError

    from agent_env.errors import ConfigurationError

    kept: Any = run.about.get("options")
    if not isinstance(kept, Mapping):
        raise ConfigurationError(
            f"the run {run.id!r} was not begun by `agent-env train`; resume it with its own program"
        )
    try:
        updates = TypeAdapter(int).validate_python(run.about.get("updates"), strict=True)
        return TypeAdapter(Options).validate_python(dict(kept)), updates
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(["options", *map(str, first["loc"])]) if first["loc"] else "updates"
        raise ConfigurationError(
            f"the run {run.id!r} cannot be gone on with: `{where}` in {str(run.folder / 'run.json')!r} is "
            f"{first['input']!r:.100} ({first['msg']}); put it right, or begin another run"
        ) from None
