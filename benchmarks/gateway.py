"""What the gateway adds to a model call, against the same server called directly, in one run.

    python benchmarks/gateway.py [--calls 2000] [--concurrency 32] [--rounds 11] [--together] [--json]
    python benchmarks/gateway.py --check [--bars cpu_us=400 slower=0.05 later_ms=2]     exits 1 over a bar

The model server and the gateway are processes of their own. The server answers at once, or after 50 ms, or it streams:
the first token after 50 ms and each further one 20 ms later. It tells token ids and logprobs as a policy server does,
and every call through the gateway is on disk before it is answered. Callers begin one after another, spread over the
time of one call, or with --together all in one instant, which makes a queue that agents seldom do. The client is the
leanest there is, so that its own work hides nothing; both ways have the same.

In each round every kind of server is called both ways, one right after the other, and which is first changes from round
to round, so that whatever else the machine does harms both alike. A figure is the median of its rounds, and a
difference is the median of the differences between neighbours; the middle half of the rounds says how far they spread.
CPU is the gateway's own, by the kernel's count. Absolute times depend on the machine; compare within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent_env.gateway import RunHandle, SeatPolicy, launched
from agent_env.gateway.upstream import Endpoint, post

SERVER = r"""
import asyncio, json, sys
import uvloop
from agent_env.gateway import running
CHUNK = {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [
    {"index": 0, "delta": {"content": "word "}, "finish_reason": None, "token_ids": [7],
     "logprobs": {"content": [{"token": "word", "logprob": -0.5}]}}]}
WHOLE = {"id": "x", "object": "chat.completion", "model": "m", "prompt_token_ids": list(range(40)), "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "word " * 20}, "finish_reason": "stop",
     "token_ids": list(range(20)), "logprobs": {"content": [{"token": "word", "logprob": -0.5}] * 20}}],
    "usage": {"prompt_tokens": 40, "completion_tokens": 20, "total_tokens": 60}}
ANSWER, PIECE = json.dumps(WHOLE).encode(), b"data: " + json.dumps(CHUNK).encode() + b"\n\n"
HEAD = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
async def app(scope, receive, send):
    request = json.loads((await receive())["body"])
    if request["stream"]:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    if request["seconds"]:
        await asyncio.sleep(request["seconds"])
    if request["stream"]:
        for number in range(request["tokens"]):
            if number:
                await asyncio.sleep(request["gap"])
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": HEAD})
    await send({"type": "http.response.body", "body": ANSWER})
async def main():
    async with running(app) as url:
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
uvloop.run(main())
"""

MESSAGES = [{"role": "user", "content": "What is the word for a thing that carries people over water?"}]


@dataclass(frozen=True)
class Kind:
    """One kind of server: when its answer comes, and in how many tokens if it streams; `share` of the calls go there."""

    name: str
    share: float
    seconds: float
    tokens: int = 0
    gap: float = 0.02

    @property
    def took(self) -> float:
        """How long a call takes at least, in seconds."""
        return self.seconds + self.tokens * self.gap


KINDS = (Kind("0 ms", 1, 0.0), Kind("50 ms", 0.5, 0.05), Kind("50 ms, streamed", 0.15, 0.05, tokens=10))


@dataclass(frozen=True)
class Bar:
    """The most that a figure of one kind of server may be, and how both are written."""

    figure: str
    server: str
    most: float
    what: str
    form: str


BARS = (
    Bar("cpu_us", "0 ms", 400, "the gateway's CPU a call, of a server that answers at once", "{:.0f} µs"),
    Bar("slower", "50 ms", 0.05, "longer than called directly, of a server that takes 50 ms", "{:.1%}"),
    Bar("later_ms", "50 ms, streamed", 2, "how much later the first streamed token comes", "{:.2f} ms"),
)


@dataclass(frozen=True)
class Figure:
    """The median of some rounds, and between what the middle half of them lies."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure:
        """Sums values up."""
        found = sorted(values)
        outside = len(found) // 4
        return cls(statistics.median(found), found[outside], found[-1 - outside])

    def shown(self, form: str) -> str:
        """In a cell of the table, with the spread below."""
        return f"{form.format(self.median)}\n[dim]{form.format(self.low)}…{form.format(self.high)}[/]"


@dataclass(frozen=True)
class Round:
    """Calls of one way: their rate, how long one took to its first byte, and the gateway's CPU for one."""

    calls_per_second: float
    first_byte_ms: float
    whole_ms: float
    cpu_us: float


@dataclass(frozen=True)
class Row:
    """One kind of server: the two ways side by side.

    `slower` is by which part of the direct time a call took longer; `later_ms` is how much later its first byte came.
    """

    server: str
    calls: int
    direct_per_second: Figure
    gateway_per_second: Figure
    direct_ms: Figure
    gateway_ms: Figure
    slower: Figure
    later_ms: Figure
    cpu_us: Figure


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def play(
    ways: Iterator[tuple[str, dict[str, str]]], kind: Kind, calls: int, concurrency: int, pid: int, *, together: bool
) -> Round:
    """Makes `calls` calls at a concurrency, the next one as soon as one is answered."""
    firsts: list[float] = []
    wholes: list[float] = []
    left = iter(range(calls))
    wanted = {"seconds": kind.seconds, "stream": kind.tokens > 0, "tokens": kind.tokens, "gap": kind.gap}
    body = json.dumps({"model": "any", "messages": MESSAGES, **wanted}).encode()

    async def work(number: int) -> None:
        if not together:
            await asyncio.sleep(kind.took * number / concurrency)
        for _ in left:
            url, headers = next(ways)
            endpoint = Endpoint.of(url, headers)
            begun = time.perf_counter()
            reply = await post(endpoint, body)
            await reply.next()
            firsts.append(time.perf_counter() - begun)
            await reply.read(10**6)
            wholes.append(time.perf_counter() - begun)
            if reply.status != 200:
                raise SystemExit(f"{url} answered {reply.status}")

    cpu, clock = cpu_of(pid), time.perf_counter()
    await asyncio.gather(*(work(number) for number in range(concurrency)))
    took = time.perf_counter() - clock
    first, whole = statistics.median(firsts) * 1e3, statistics.mean(wholes) * 1e3
    return Round(calls / took, first, whole, (cpu_of(pid) - cpu) / calls * 1e6)


def directly(url: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The server itself."""
    while True:
        yield f"{url}/v1/chat/completions", {}


def through(run: RunHandle) -> Iterator[tuple[str, dict[str, str]]]:
    """The gateway, in an episode of its own each time."""
    number = 0
    while True:
        number += 1
        seen = run.episode(f"e{number}", "seat")
        token = seen.routes["seat"].token
        yield f"{seen.model_url('c1')}/chat/completions", {"Authorization": f"Bearer {token}"}


async def measure(calls: int, concurrency: int, rounds: int, *, together: bool, quiet: bool) -> list[Row]:
    """Measures every kind of server, both ways, alternately."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    url = (await process.stdout.readline()).decode().strip()
    taken: dict[Kind, tuple[list[Round], list[Round]]] = {kind: ([], []) for kind in KINDS}
    try:
        with tempfile.TemporaryDirectory() as folder, Progress(console=Console(stderr=True), disable=quiet) as progress:
            task = progress.add_task("measuring", total=len(KINDS) * rounds)
            async with launched(folder) as gateway:
                seats = {"seat": SeatPolicy("m", (f"{url}/v1",))}
                async with await RunHandle.open(gateway.url, gateway.admin_token, seats) as run:
                    ways = directly(url), through(run)
                    for way in ways:
                        await play(way, KINDS[0], max(1, calls // 4), concurrency, gateway.pid, together=together)
                    for number in range(rounds):
                        for kind in KINDS:
                            count = max(1, int(calls * kind.share))
                            for which in (0, 1) if number % 2 == 0 else (1, 0):
                                found = await play(
                                    ways[which], kind, count, concurrency, gateway.pid, together=together
                                )
                                taken[kind][which].append(found)
                            progress.advance(task)
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 20)
    return [summed_up(kind, max(1, int(calls * kind.share)), *found) for kind, found in taken.items()]


def summed_up(kind: Kind, calls: int, direct: Sequence[Round], gateway: Sequence[Round]) -> Row:
    """The medians of the rounds, with their spread."""
    pairs = list(zip(direct, gateway, strict=True))
    return Row(
        kind.name,
        calls,
        Figure.of(round_.calls_per_second for round_ in direct),
        Figure.of(round_.calls_per_second for round_ in gateway),
        Figure.of(round_.first_byte_ms for round_ in direct),
        Figure.of(round_.first_byte_ms for round_ in gateway),
        Figure.of(other.whole_ms / one.whole_ms - 1 for one, other in pairs),
        Figure.of(other.first_byte_ms - one.first_byte_ms for one, other in pairs),
        Figure.of(round_.cpu_us for round_ in gateway),
    )


@dataclass(frozen=True)
class Verdict:
    """What was measured against one bar."""

    figure: str
    server: str
    measured: float
    bar: float
    ok: bool
    line: str


def verdicts(rows: Sequence[Row], other: dict[str, float]) -> list[Verdict]:
    """Holds the rows against the bars, or against `other` ones by name."""
    found: list[Verdict] = []
    by_server = {row.server: row for row in rows}
    for bar in BARS:
        most = other.get(bar.figure, bar.most)
        measured: float = getattr(by_server[bar.server], bar.figure).median
        ok = measured <= most
        form = bar.form.format
        line = f"{bar.figure}: {form(measured)}, bar {form(most)}: {'ok' if ok else 'over'} - {bar.what}"
        found.append(Verdict(bar.figure, bar.server, measured, most, ok, line))
    return found


def bar_of(text: str) -> tuple[str, float]:
    """Reads NAME=VALUE."""
    name, _, value = text.partition("=")
    if name not in {bar.figure for bar in BARS}:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(bar.figure for bar in BARS)}")
    return name, float(value)


def table_of(rows: Sequence[Row], title: str) -> Table:
    """The rows side by side."""
    table = Table(title=title, box=None, pad_edge=False)
    table.add_column("server", width=8)
    for name in ("calls a second", "first byte, ms", "later, ms", "slower, %", "CPU, µs"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(
            row.server,
            f"{row.direct_per_second.median:,.0f} → {row.gateway_per_second.median:,.0f}",
            f"{row.direct_ms.median:.1f} → {row.gateway_ms.median:.1f}",
            row.later_ms.shown("{:.2f}"),
            replace(row.slower, **{name: value * 100 for name, value in asdict(row.slower).items()}).shown("{:.1f}"),
            row.cpu_us.shown("{:.0f}"),
        )
    return table


def main() -> None:
    """Prints the table or JSON, and the bars if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="a round, on a server that answers at once")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="print a line a bar, and exit 1 over one")
    parser.add_argument("--bars", type=bar_of, nargs="+", default=[], metavar="NAME=VALUE", help="other bars")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows = uvloop.run(
        measure(options.calls, options.concurrency, options.rounds, together=options.together, quiet=options.json)
    )
    found = verdicts(rows, dict(options.bars))
    if options.json:
        how = {"rounds": options.rounds, "concurrency": options.concurrency, "together": options.together}
        how |= {"cores": os.cpu_count(), "load_before": load}
        bars = [asdict(verdict) for verdict in found]
        print(json.dumps({"how": how, "rows": [asdict(row) for row in rows], "bars": bars}, indent=2))
    else:
        title = (
            f"direct → by the gateway, at concurrency {options.concurrency}: medians of {options.rounds} rounds of "
            f"{options.calls} calls (below: their middle half), both ways in each; "
            f"{os.cpu_count()} cores, load {load:.1f} before"
        )
        Console().print(table_of(rows, title))
    if options.check:
        if not options.json:
            print(*(verdict.line for verdict in found), sep="\n")
        sys.exit(0 if all(verdict.ok for verdict in found) else 1)


if __name__ == "__main__":
    main()
