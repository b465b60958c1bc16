"""Plays a handful of episodes on SmolLM2, served by llama.cpp, and cuts them into rows: `python evaluate.py`.

Five processes: both agents, the gateway, the model's server, and this one, which plays.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

from headlines import AGENTS, SEATS, THINGS, headlines, table
from model import NAME, SAMPLING, llama_served
from rich.console import Console

from agent_env.episodes import EpisodeStore
from agent_env.gateway import RunHandle, SeatPolicy, launched
from agent_env.launch import agents_served
from agent_env.training import collect, cut_rows, mean_rewards, rollout


async def main(options: argparse.Namespace) -> None:
    """Plays, and shows what was said, what it was worth, and the rows that it makes."""
    folder = Path(options.runs) / time.strftime("%Y-%m-%d_%H-%M-%S")
    folder.mkdir(parents=True)
    os.environ["AGENT_ENV_HUB"] = str(folder / "hub.db")
    console = Console()
    tasks = [THINGS[index % len(THINGS)] for index in range(options.episodes)]
    began = time.monotonic()
    with EpisodeStore(folder / "episodes.db") as store:
        async with (
            launched(folder / "gateway") as gateway,
            llama_served(options.concurrency) as endpoint,
            agents_served(AGENTS, *([seat] for seat in SEATS)),
        ):
            seats = dict.fromkeys(SEATS, SeatPolicy(NAME, (endpoint,), settings=SAMPLING, version=0))
            async with await RunHandle.open(gateway.url, gateway.admin_token, seats, keep_journal=False) as run:
                stream = rollout(headlines, tasks, run=run, store=store, concurrency=options.concurrency, progress=True)
                episodes = await collect(stream)
    seconds = time.monotonic() - began
    rows, report = cut_rows(episodes)
    console.print(table(f"headlines of {NAME}", episodes))
    rewards = ", ".join(f"{seat} {reward:.2f}" for seat, reward in mean_rewards(episodes).items())
    console.print(f"mean rewards: {rewards}")
    console.print(
        f"{len(rows)} rows of {report.calls} model calls: {report.delivered_tokens} of {report.captured_tokens} sampled "
        f"tokens; dropped: {dict(report.dropped) or 'none'}"
    )
    console.print(f"{len(episodes)} episodes in {seconds:.0f} s, all in {folder}")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=len(THINGS), help="how many are played")
    parser.add_argument("--concurrency", type=int, default=4, help="episodes at a time")
    parser.add_argument("--runs", default="runs", help="where the results go")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        asyncio.run(main(parse()))
    except KeyboardInterrupt:
        raise SystemExit("stopped; what was played is on disk") from None
