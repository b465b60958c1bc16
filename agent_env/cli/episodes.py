"""`agent-env episodes`: what teams of agents did."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.text import Text

from agent_env.cli.formats import FORMATS, format_of, listed, row_writer_of, writer_of
from agent_env.cli.help import Application
from agent_env.cli.lessons import kind_told
from agent_env.cli.logs import told_briefly
from agent_env.cli.output import Json, console, errors, print_json, print_table, reported, say

if TYPE_CHECKING:
    from agent_env.episodes import Choice, Episode, EpisodeFile, EpisodeStore, EpisodeSummary
    from agent_env.training.exports.files import Written

T = TypeVar("T")

_WIDTH = 60

_NAMED = 8
"""How many episodes are named of those that a beginning may mean."""

_MOST = 2**63 - 1
"""The largest number that SQLite counts to."""

app = Application(help="List episodes, show their call trees, and export them.")

Source = Annotated[Path, typer.Argument(help="A database or JSONL file of episodes, or the folder of a run.")]
RunOption = Annotated[str | None, typer.Option("--run", help="Only those of this run.")]
GroupOption = Annotated[str | None, typer.Option("--group", help="Only those of this group.")]
SeatOption = Annotated[str | None, typer.Option("--seat", help="Only those in which this seat played.")]
Outcome = Annotated[bool | None, typer.Option("--ok/--failed", help="Only those that ended so.")]


@app.command("list")
def list_(
    source: Source,
    run: RunOption = None,
    group: GroupOption = None,
    ok: Outcome = None,
    seat: SeatOption = None,
    limit: Annotated[int, typer.Option(min=0, max=_MOST, help="How many, the newest last; 0 for all.")] = 20,
    as_json: Json = False,
) -> None:
    """Lists episodes, the newest last."""
    asked: Choice = {"run": run, "group": group, "ok": ok, "seat": seat}
    choice: Choice = {**asked, "limit": limit or None, "newest_first": True}
    with reported(as_json=as_json), _opened(source) as episodes:
        newest = list(episodes.summaries(**choice))
        if as_json:
            print_json([summary.to_json() for summary in reversed(newest)])
        elif newest:
            columns = ("episode", "state", "task", "seats", "calls", "tokens", "rewards", "time")
            print_table(columns, map(_row, reversed(newest)))
            if len(newest) == limit and (there := episodes.count(**asked)) > limit:
                say(f"{limit} of {_counted(there)}; --limit 0 for all")
        else:
            say(_nothing(episodes, source, asked))


@app.command()
def show(
    source: Source,
    episode: Annotated[
        str | None, typer.Argument(help="Its id, or a beginning that only it has; default: the last one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Shows the call tree of an episode with timings, tokens and rewards."""
    with reported(as_json=as_json), _opened(source) as episodes:
        from agent_env.episodes import render_tree

        found = _last(episodes, source) if episode is None else _named(episodes, source, episode)
        if as_json:
            print_json(found.to_json())
        else:
            console.print(render_tree(found))
            if any(trace.calls for trace in found.traces):
                console.print("tokens are prompt+sampled; a policy's version comes after its name, as v3", style="dim")


@app.command()
def export(
    source: Source,
    out: Annotated[Path | None, typer.Argument(help="The file to write; default: lines on standard output.")] = None,
    to: Annotated[str | None, typer.Option("--to", help=f"The format ({listed()}); default: by the name.")] = None,
    run: RunOption = None,
    group: GroupOption = None,
    ok: Outcome = None,
    seat: Annotated[
        str | None,
        typer.Option("--seat", help="Only those in which this seat played; of rows, only those of this seat."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help="Only the rows of this policy; may be given again."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="How many, the oldest first; default: all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Exports episodes to a file, in the order of their arrival; for most trainers as rows, of one policy a file."""
    choice: Choice = {"run": run, "group": group, "ok": ok, "seat": seat, "limit": limit}
    with reported(as_json=as_json), told_briefly(), _opened(source) as episodes:
        from agent_env.episodes.sources import is_database
        from agent_env.errors import InvalidArguments

        form = format_of(to, out)
        if policy and not FORMATS[form].rows:
            of_rows = ", ".join(name for name, one in FORMATS.items() if one.rows)
            raise InvalidArguments(f"{form} holds whole episodes, and --policy chooses rows; write them --to {of_rows}")
        if out is None:
            if to not in (None, "jsonl") or as_json:
                raise InvalidArguments("only lines go to standard output; name a file to write")
            written = 0
            for line in episodes.lines(**choice):
                sys.stdout.write(line + "\n")
                written += 1
            sys.stdout.flush()
            errors.print(_wrote(written, "on standard output"), highlight=False)
            return
        if out.exists() and episodes.path.samefile(out):
            raise InvalidArguments(f"{str(out)!r} is what is exported; name another file")
        if form != "db" and out.exists() and is_database(out):
            raise InvalidArguments(f"{str(out)!r} is a database, which {form} would replace; name another file")
        if FORMATS[form].rows:
            asked: Choice = {"run": run, "group": group, "ok": ok, "seat": seat}
            first: Choice = {**asked, "limit": 1}
            if next(episodes.summaries(**first), None) is None:
                raise InvalidArguments(_nothing(episodes, source, asked))
            write_rows, named = row_writer_of(form), policy or ()
            rows = _with_progress(episodes, choice, lambda chosen: write_rows(chosen, out, policies=named, seat=seat))
            if as_json:
                print_json({**rows.to_json(), "format": form, "path": str(out)})
            else:
                _tell_rows(rows, out)
            return
        write = writer_of(form)
        written = _with_progress(episodes, choice, lambda chosen: write(chosen, out))
        if as_json:
            print_json({"episodes": written, "format": form, "path": str(out)})
        else:
            say(_wrote(written, f"in {out}"))


@contextmanager
def _opened(source: Path) -> Generator[EpisodeStore | EpisodeFile]:
    """Opens episodes; at the end it tells of what a killed writer left."""
    from agent_env.episodes import open_episodes
    from agent_env.errors import ConfigurationError, ProtocolError

    try:
        with open_episodes(source) as episodes:
            yield episodes
            _tell_torn(episodes)
    except (TypeError, AttributeError, UnicodeError) as error:
        # What stands where a text belongs, such as a BLOB.
        said = f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"{str(source)!r} holds what is no episode ({said:.200}); name another file"
        ) from error
    except ProtocolError as error:
        raise ConfigurationError(f"{error.message}; put it right, or name another file than {str(source)!r}") from error


def _last(episodes: EpisodeStore | EpisodeFile, source: Path) -> Episode:
    from agent_env.errors import InvalidArguments

    found = next(episodes.find(limit=1, newest_first=True), None)
    if found is None:
        raise InvalidArguments(f"{str(source)!r} has no episodes")
    return found


def _named(episodes: EpisodeStore | EpisodeFile, source: Path, name: str) -> Episode:
    """The episode with this id, or else the one whose id begins so."""
    from agent_env.errors import InvalidArguments

    found = episodes.get(name)
    if found is not None:
        return found
    ids = list(dict.fromkeys(summary.id for summary in episodes.summaries() if summary.id.startswith(name)))
    if len(ids) > 1:
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        raise InvalidArguments(
            f"the ids of {len(ids)} episodes begin with {name!r}: {', '.join(ids[:_NAMED])}{more}; say more of the one "
            "that you mean"
        )
    found = episodes.get(ids[0]) if ids else None
    if found is None:
        raise InvalidArguments(
            f"{str(source)!r} has no episode {name!r}; `agent-env episodes list {source}` shows what it has"
        )
    return found


def _tell_torn(episodes: EpisodeStore | EpisodeFile) -> None:
    if episodes.torn:
        errors.print(f"[yellow]the last line is unfinished ({episodes.torn} bytes): its writer was stopped[/yellow]")


def _with_progress(episodes: EpisodeStore | EpisodeFile, choice: Choice, work: Callable[[Iterable[Episode]], T]) -> T:
    """Does the work on the episodes that are chosen, while a bar shows how many it has taken."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from agent_env.episodes import EpisodeStore

    columns = (TextColumn("exporting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, disable=not errors.is_terminal, transient=True) as progress:
        # A file would have to be read once more to know.
        bar = progress.add_task("", total=episodes.count(**choice) if isinstance(episodes, EpisodeStore) else None)

        def counted() -> Iterator[Episode]:
            for episode in episodes.find(**choice):
                yield episode
                progress.advance(bar)

        return work(counted())


def _row(summary: EpisodeSummary) -> tuple[str | Text, ...]:
    failed = "failed"
    if summary.failures:
        first, *others = summary.failures
        more = f", and {len(others)} more" if others else ""
        said = f": {first.message}" if first.message else ""
        failed = _short(f"failed: {kind_told(first.boundary, first.code)}{said}", _WIDTH - len(more)) + more
    tokens = "" if summary.sampled_tokens is None else f"{summary.prompt_tokens}+{summary.sampled_tokens}"
    return (
        summary.id,
        Text("ok", "green") if summary.ok else Text(failed, "red"),
        _short("" if summary.task is None else str(summary.task)),
        " ".join(summary.seats),
        str(summary.edges),
        tokens,
        " ".join(
            f"{reward.name if reward.target == 'episode' else f'{reward.target_id}.{reward.name}'}="
            f"{'—' if reward.value is None else f'{reward.value:g}'}"
            for reward in summary.rewards
        ),
        "" if summary.seconds is None else f"{summary.seconds * 1000:.0f} ms",
    )


def _wrote(count: int, where: str) -> str:
    return f"{_counted(count)} {'is' if count == 1 else 'are'} {where}"


def _tell_rows(written: Written, out: Path) -> None:
    from agent_env.training.exports.files import counted

    rows = [
        (name, counted(policy.seats), str(policy.rows), str(policy.tokens), counted(policy.dropped))
        for name, policy in written.policies.items()
    ]
    print_table(("policy", "rows by seat", "rows", "sampled tokens", "model calls in no row"), rows)
    count = "1 row" if written.rows == 1 else f"{written.rows} rows"
    say(f"{count} of {_counted(written.episodes)} {'is' if written.rows == 1 else 'are'} in {out}")


def _counted(episodes: int) -> str:
    return "1 episode" if episodes == 1 else f"{episodes} episodes"


def _short(text: str, width: int = _WIDTH) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _nothing(episodes: EpisodeStore | EpisodeFile, source: Path, asked: Choice) -> str:
    """That there is none with all that was asked; of a seat, also which ones there are."""
    state = {None: "", True: "ok ", False: "failed "}[asked.get("ok")]
    named = ", ".join(f"{name} {value!r}" for name, value in asked.items() if name != "ok" and value is not None)
    said = f"{source} has no {state}episodes" + (f" with {named}" if named else "")
    if asked.get("seat") is None:
        return said
    others: Choice = {**asked, "seat": None}
    seats = sorted({seat for summary in episodes.summaries(**others) for seat in summary.seats})
    return f"{said}; the seats that played: {', '.join(map(repr, seats))}" if seats else said
