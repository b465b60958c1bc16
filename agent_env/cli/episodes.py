"""`agent-env episodes`: what teams of agents did."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from agent_env.cli.help import Application
from agent_env.cli.output import Json, console, errors, print_json, print_table, reported, say

app = Application(help="List episodes and show their call trees.")

File = Annotated[Path, typer.Argument(help="A file of episodes (JSON lines).", exists=True, dir_okay=False)]


@app.command("list")
def list_(
    file: File,
    limit: Annotated[int, typer.Option(help="How many, newest last; 0 for all.")] = 20,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that failed.")] = False,
    as_json: Json = False,
) -> None:
    """Lists the episodes of a file, the newest last."""
    with reported(as_json=as_json):
        from collections import deque

        from agent_env.episodes import EpisodeReader

        reader = EpisodeReader(file)
        chosen = (episode for episode in reader if not (failed and episode.ok))
        episodes = deque(chosen, maxlen=limit or None)
        if as_json:
            print_json([episode.to_json() for episode in episodes])
        elif not episodes:
            say(f"{file} has no {'failed episodes' if failed else 'episodes'}")
        else:
            rows = [
                (
                    episode.id,
                    Text("ok", "green") if episode.ok else Text("failed", "red"),
                    str(episode.task),
                    str(len(episode.traces)),
                    str(len(episode.edges)),
                    " ".join(f"{reward.name}={reward.value}" for reward in islice(episode.rewards, 4)),
                    f"{episode.seconds * 1000:.0f} ms" if episode.seconds is not None else "",
                )
                for episode in episodes
            ]
            print_table(("episode", "state", "task", "traces", "edges", "rewards", "time"), rows)
        if reader.torn:
            errors.print(f"[yellow]the last line is unfinished ({reader.torn} bytes): its writer was stopped[/yellow]")


@app.command()
def show(
    file: File,
    episode: Annotated[str | None, typer.Argument(help="Its id; default: the last one.")] = None,
    as_json: Json = False,
) -> None:
    """Shows the call tree of an episode with timings and rewards."""
    with reported(as_json=as_json):
        from collections import deque

        from agent_env.episodes import EpisodeReader, find_episode, render_tree
        from agent_env.errors import InvalidArguments

        if episode is None:
            last = deque(EpisodeReader(file), maxlen=1)
            found = last[0] if last else None
        else:
            found = find_episode(file, episode)
        if found is None:
            raise InvalidArguments(f"{file} has no episode {episode!r}" if episode else f"{file} has no episodes")
        if as_json:
            print_json(found.to_json())
        else:
            console.print(render_tree(found))
