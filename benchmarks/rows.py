"""What cutting episodes into rows costs, against reading the same episodes from JSON, in one run.

    python benchmarks/rows.py [--turns 500] [--episodes 2000] [--repeats 5] [--json]

A turn of a conversation brings 20 tokens and samples 20, and its prompt is all that came before, so the tokens of the
prompts grow with the square of the turns. In the forked conversation every third prompt differs from what was said
and begins a row of its own. The many episodes are of a manager and two workers, and get their credit as well. Reading is
what `json.loads` and `Episode.from_json` take for the same lines: each of the repeats reads them and then cuts what was
read, and a figure is the median. Times are of this thread (CPU).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from agent_env.episodes import CallRecord, Episode, TurnRecord
from agent_env.training import credit_rows, cut_rows
from agent_env.training.rows import Row

EACH = 20
"""How many tokens a turn brings, and how many it samples."""

T = TypeVar("T")


@dataclass(frozen=True)
class Measured:
    """One kind of episodes: how much there is of it, and the median CPU time of reading and of cutting."""

    what: str
    prompt_tokens: int
    longest_row: int
    rows: int
    cut_ms: float
    read_ms: float

    @property
    def of_reading(self) -> float:
        """By how much cutting adds to reading."""
        return self.cut_ms / self.read_ms

    @property
    def ns_a_token(self) -> float:
        """Cutting, by the tokens of the prompts."""
        return self.cut_ms * 1e6 / self.prompt_tokens


def conversation(turns: int, fork_every: int = 0) -> Episode:
    """One agent's conversation, in which every `fork_every`-th prompt says the last turn otherwise."""
    episode = Episode("conversation")
    episode.add([TurnRecord("t", "agent@1.0.0", "session", seat="agent")])
    said: list[int] = []
    for turn in range(turns):
        at = 1000 + 2 * EACH * turn
        if fork_every and turn and turn % fork_every == 0:
            said[-1] += 1
        prompt = [*said, *range(at, at + EACH)]
        sampled = list(range(at + EACH, at + 2 * EACH))
        episode.add([call(f"k{turn}", "t", "agent", prompt, sampled, started=float(turn))])
        said = [*prompt, *sampled]
    episode.score("right", 1.0)
    return episode


def team(number: int) -> Episode:
    """A manager that asks two workers."""
    episode = Episode(f"team-{number}", group=f"problem-{number // 8}")
    episode.add([TurnRecord("t0", "manager@1.0.0", "s0", seat="manager")])
    for worker in ("t1", "t2"):
        episode.add([TurnRecord(worker, "worker@1.0.0", f"s{worker}", seat="worker", parent_call_id="t0")])
        episode.add([call(f"k{worker}", worker, "worker", list(range(200)), list(range(EACH)))])
    episode.add([call("k0", "t0", "manager", list(range(300)), list(range(EACH)))])
    episode.score("right", float(number % 2))
    return episode


def call(name: str, turn: str, seat: str, prompt: list[int], sampled: list[int], started: float = 0.0) -> CallRecord:
    """A model call that its server told all of."""
    return CallRecord(
        *(name, turn, seat, "model"),
        started=started,
        prompt_token_ids=prompt,
        token_ids=sampled,
        logprobs=[-0.5] * len(sampled),
    )


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What some work gives, and the milliseconds of CPU that it took."""
    begun = time.thread_time()
    found = work()
    return found, (time.thread_time() - begun) * 1e3


def read(lines: Sequence[str]) -> list[Episode]:
    """The episodes of lines."""
    return [Episode.from_json(json.loads(line)) for line in lines]


def cut(episodes: list[Episode]) -> list[Row]:
    """The rows of one conversation."""
    return cut_rows(episodes)[0]


def credited(episodes: list[Episode]) -> list[Row]:
    """The rows of many episodes, with their credit."""
    return credit_rows(episodes)[0]


def measure(what: str, episodes: list[Episode], work: Callable[[list[Episode]], list[Row]], repeats: int) -> Measured:
    """Reads and cuts by turns."""
    lines = [json.dumps(episode.to_json()) for episode in episodes]
    prompts = sum(
        len(call.prompt_token_ids or ()) for episode in episodes for trace in episode.traces for call in trace.calls
    )
    reading: list[float] = []
    cutting: list[float] = []
    rows: list[Row] = []
    for _ in range(repeats):
        # Read anew, because tokens that are the same objects are compared faster than any that come from elsewhere.
        fresh, took = timed(partial(read, lines))
        reading.append(took)
        rows, took = timed(partial(work, fresh))
        cutting.append(took)
    longest = max(len(row.token_ids) for row in rows)
    return Measured(what, prompts, longest, len(rows), statistics.median(cutting), statistics.median(reading))


def main() -> None:
    """Prints the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=500)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    turns, teams = max(4, options.turns), max(1, options.episodes)
    found = [
        *(
            measure(f"{count} turns", [conversation(count)], cut, options.repeats)
            for count in (turns // 4, turns // 2, turns)
        ),
        measure(f"{turns} turns, forked", [conversation(turns, 3)], cut, options.repeats),
        measure(f"{teams} episodes", [team(number) for number in range(teams)], credited, options.repeats),
    ]
    if options.json:
        rows = [asdict(each) | {"of_reading": each.of_reading, "ns_a_token": each.ns_a_token} for each in found]
        print(json.dumps({"how": {"repeats": options.repeats}, "rows": rows}, indent=2))
        return
    table = Table("what", "prompts", "rows", "longest", "cut, ms", "ns a token", "of reading", box=None, pad_edge=False)
    table.title = f"CPU time of cutting rows, medians of {options.repeats}; sizes in tokens"
    for each in found:
        table.add_row(
            *(each.what, f"{each.prompt_tokens:,}", f"{each.rows:,}", f"{each.longest_row:,}"),
            *(f"{each.cut_ms:.1f}", f"{each.ns_a_token:.0f}", f"{each.of_reading:.2f}"),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
