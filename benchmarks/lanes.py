"""What a call costs on each lane: ratios in one run, with the CPU of both ends.

    python benchmarks/lanes.py [--calls 1000] [--json]

The server is a process of its own; the agent returns what it hears. "bare HTTP" is the floor that the network lanes
stand on: the same client against a route that does nothing but parse and dump JSON. Ratios are against the fastest
network lane at the same concurrency. Absolute times depend on the machine; compare within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

SERVER = """
import asyncio, json, sys
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from agent_env import AgentEnvironment
from agent_env.gateway.server import running
async def agent(message: str) -> str:
    return message
async def bare(request: Request) -> Response:
    said = json.loads(await request.body())["message"]
    return Response(json.dumps({"reply": said}), media_type="application/json")
async def main():
    from starlette.applications import Starlette
    async with (
        AgentEnvironment(agent, name="echo").serving(register=False) as server,
        running(Starlette(routes=[Route("/bare", bare, methods=["POST"])])) as url,
    ):
        print(json.dumps([server.url, url]), flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


@dataclass(frozen=True)
class Row:
    """One lane at one concurrency: calls a second, and microseconds of CPU a call on each end."""

    lane: str
    concurrency: int
    calls_per_second: float
    client_us: float
    server_us: float

    @property
    def total_us(self) -> float:
        """CPU of both ends."""
        return self.client_us + self.server_us


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(
    lane: str, make: Callable[[], Awaitable[Callable[[], Awaitable[object]]]], concurrency: int, calls: int, pid: int
) -> Row:
    """Runs `calls` calls at a concurrency, each worker in a conversation of its own."""
    workers = [await make() for _ in range(concurrency)]
    for worker in workers:
        await worker()
    each = max(1, calls // concurrency)

    async def work(call: Callable[[], Awaitable[object]]) -> None:
        for _ in range(each):
            await call()

    client, server, clock = time.process_time(), cpu_of(pid), time.perf_counter()
    await asyncio.gather(*(work(worker) for worker in workers))
    seconds, done = time.perf_counter() - clock, each * concurrency
    client_us = (time.process_time() - client) / done * 1e6
    server_us = 0.0 if lane == "inprocess" else (cpu_of(pid) - server) / done * 1e6
    return Row(lane, concurrency, done / seconds, client_us, server_us)


async def run(calls: int, folder: str, quiet: bool) -> list[Row]:
    """Measures every lane; the hub of the processes is in a folder."""
    from agent_env import AgentEnvironment, Environment
    from agent_env.net.http import post_json

    os.environ["AGENT_ENV_HUB"] = str(Path(folder) / "hub.db")
    # Started once, before anything is measured.
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    url, bare_url = json.loads(process.stdout.readline())

    async def agent(message: str) -> str:
        return message

    here = AgentEnvironment(agent, name="echo")

    def lane_maker(lane: str) -> Callable[[], Awaitable[Callable[[], Awaitable[object]]]]:
        async def make() -> Callable[[], Awaitable[object]]:
            environment = Environment(here) if lane == "inprocess" else Environment(url, lane=lane)  # type: ignore[arg-type]
            await environment.initialize()
            return lambda: environment.chat("hello")

        return make

    async def bare() -> Callable[[], Awaitable[object]]:
        return lambda: post_json(bare_url + "/bare", {"message": "hello"})

    plan = [("inprocess", 4), ("bare HTTP", 1), ("websocket", 2), ("http", 1), ("mcp", 0.3), ("a2a", 0.3)]
    rows: list[Row] = []
    try:
        with Progress(console=Console(stderr=True), disable=quiet) as progress:
            task = progress.add_task("measuring", total=2 * len(plan))
            for lane, share in plan:
                for concurrency in (1, 32):
                    maker = bare if lane == "bare HTTP" else lane_maker(lane)
                    rows.append(await measure(lane, maker, concurrency, int(calls * share), process.pid))
                    progress.advance(task)
    finally:
        process.stdin.close()
        process.wait(20)
    return rows


def main() -> None:
    """Prints the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(run(options.calls, folder, options.json))
    base = {row.concurrency: row.total_us for row in rows if row.lane == "websocket"}
    ratios = [row.total_us / base[row.concurrency] for row in rows]
    if options.json:
        found = [
            asdict(row) | {"total_us": row.total_us, "ratio": ratio} for row, ratio in zip(rows, ratios, strict=True)
        ]
        print(json.dumps(found, indent=2))
        return
    table = Table("lane", "concurrency", "calls/s", "client CPU µs", "server CPU µs", "both", "ratio")
    for row, ratio in zip(rows, ratios, strict=True):
        figures = (row.calls_per_second, row.client_us, row.server_us, row.total_us)
        table.add_row(
            row.lane,
            str(row.concurrency),
            *(f"{figure:,.0f}" for figure in figures),
            f"{ratio:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
