"""What the gateway adds to a model call, against the same server called directly, in one run.

    python benchmarks/gateway.py [--calls 3000] [--concurrency 32] [--rounds 7] [--together] [--json]

The model server and the gateway are processes of their own. The server answers at once, or after 50 ms, or it streams:
the first token after 50 ms and each further one 20 ms later. It tells token ids and logprobs as a policy server does,
and every call through the gateway is on disk before it is answered. Callers begin one after another, spread over the
time of one call, or with --together all in one instant, which makes a queue that agents seldom do. The client is the
leanest there is, so that its own work hides nothing; both ways have the same.

Rounds alternate between the two ways; a figure is the median of its rounds, and a difference is the median of the
differences between neighbours. CPU is the gateway's own, by the kernel's count. Absolute times depend on the machine
and on what else it does; compare within one run.
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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
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
    direct_per_second: float
    gateway_per_second: float
    direct_ms: float
    gateway_ms: float
    slower: float
    later_ms: float
    cpu_us: float


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
    rows: list[Row] = []
    try:
        with tempfile.TemporaryDirectory() as folder, Progress(console=Console(stderr=True), disable=quiet) as progress:
            task = progress.add_task("measuring", total=len(KINDS) * rounds)
            async with launched(folder) as gateway:
                seats = {"seat": SeatPolicy("m", (f"{url}/v1",))}
                async with await RunHandle.open(gateway.url, gateway.admin_token, seats) as run:
                    ways = directly(url), through(run)
                    for way in ways:
                        await play(way, KINDS[0], calls // 4, concurrency, gateway.pid, together=together)
                    for kind in KINDS:
                        taken: tuple[list[Round], list[Round]] = ([], [])
                        for _ in range(rounds):
                            for way, found in zip(ways, taken, strict=True):
                                count = int(calls * kind.share)
                                found.append(await play(way, kind, count, concurrency, gateway.pid, together=together))
                            progress.advance(task)
                        rows.append(summed_up(kind.name, *taken))
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 20)
    return rows


def summed_up(kind: str, direct: Sequence[Round], gateway: Sequence[Round]) -> Row:
    """The medians of the rounds."""

    def median(rounds: Sequence[Round], figure: str) -> float:
        return statistics.median(getattr(round_, figure) for round_ in rounds)

    pairs = list(zip(direct, gateway, strict=True))
    return Row(
        kind,
        median(direct, "calls_per_second"),
        median(gateway, "calls_per_second"),
        median(direct, "first_byte_ms"),
        median(gateway, "first_byte_ms"),
        statistics.median(other.whole_ms / one.whole_ms - 1 for one, other in pairs),
        statistics.median(other.first_byte_ms - one.first_byte_ms for one, other in pairs),
        median(gateway, "cpu_us"),
    )


def main() -> None:
    """Prints the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = uvloop.run(
        measure(options.calls, options.concurrency, options.rounds, together=options.together, quiet=options.json)
    )
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = Table("server", "direct/s", "gateway/s", "first byte", "by gateway", "later", "slower", "CPU a call")
    for row in rows:
        table.add_row(
            row.server,
            f"{row.direct_per_second:,.0f}",
            f"{row.gateway_per_second:,.0f}",
            f"{row.direct_ms:.1f} ms",
            f"{row.gateway_ms:.1f} ms",
            f"{row.later_ms:.1f} ms",
            f"{row.slower:.1%}",
            f"{row.cpu_us:.0f} µs",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
