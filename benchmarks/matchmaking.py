"""What a pairing costs among many cards.

    python benchmarks/matchmaking.py [--cards 10000] [--schemas 500] [--needs 60] [--json]

Cards are as an agent framework would make them: a tool with one of the distinct input schemas, skills, tags, sample
requests. About one candidate in ten passes the rules. A need is "new" the first time that it is asked: its schema has
to be compared with those of all candidates that the other rules let through. After that it is "known". Every report
explains the ten best. Times are of this thread (CPU), in milliseconds. The population is kept away from the garbage
collector, as in any server with a large heap: its full passes would be most of what the p99 shows.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from agent_env.matchmaking import Candidate, Matchmaker, PairingReport
from agent_env_cards import Capabilities, EnvironmentCard, Need, Offer, SampleRequest, Skill, ToolCard, ToolUse
from agent_env_cards.interfaces import Interface

SKILLS = ["math", "law", "code.review", "code.python", "travel", "cooking", "music", "search", "writing", "data.sql"]
WORDS = [
    f"{stem}{ending}" for stem in ("solv", "plan", "draft", "check", "book", "rank") for ending in ("e", "ing", "er")
]
KINDS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "integer"},
    {"type": "number", "minimum": 0},
    {"enum": ["low", "high"]},
    {"type": ["string", "null"]},
    {"type": "array", "items": {"type": "string"}},
    {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}, "required": ["lat"]},
]

T = TypeVar("T")


def schema(rng: random.Random, number: int) -> dict[str, Any]:
    """One of the distinct schemas; about half of them take what `sent` sends."""
    properties: dict[str, Any] = {"task": {"type": "string", "description": f"What to do ({number})."}}
    for name in rng.sample(["size", "unit", "where", "budget", "names", "depth"], rng.randint(1, 5)):
        properties[name] = rng.choice(KINDS)
    required = ["task", *(rng.sample(sorted(properties), 1) if rng.random() < 0.4 else [])]
    return {"type": "object", "properties": properties, "required": sorted(set(required))}


def sent(rng: random.Random) -> dict[str, Any]:
    """What a need says will be sent: the task, and now and then something more."""
    properties: dict[str, Any] = {"task": {"type": "string", "minLength": 1, "maxLength": rng.randint(100, 10_000)}}
    if rng.random() < 0.5:
        properties["size"] = rng.choice(KINDS[:3])
    return {"type": "object", "properties": properties, "required": ["task"]}


def text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=8))


def population(rng: random.Random, cards: int, schemas: int) -> list[Candidate]:
    """Candidates of which about one in five has a given skill, and half of those a tool that takes the call."""
    known = [schema(rng, number) for number in range(schemas)]
    found: list[Candidate] = []
    for number in range(cards):
        skills = [Skill(id=skill, tags=rng.sample(WORDS, 2)) for skill in rng.sample(SKILLS, 2)]
        card = EnvironmentCard(
            name=f"agent-{number}",
            version=f"{rng.randint(1, 3)}.{rng.randint(0, 9)}.0",
            description=text(rng),
            offers=Offer(
                skills=skills,
                tags=rng.sample(WORDS, 3),
                examples=[SampleRequest(request=text(rng)) for _ in range(2)],
            ),
            capabilities=Capabilities(
                tools=[ToolCard(name="work", description="Works.", input_schema=rng.choice(known))]
            ),
            interfaces=[Interface(transport="websocket", url="/v1/ws", protocol_versions=["1"])],
        )
        found.append(Candidate(card, liveness=rng.choice(["up", "up", "launchable"]), free=rng.randint(1, 64)))
    return found


def needs(rng: random.Random, count: int) -> list[Need]:
    return [
        Need(
            "worker",
            skills=[rng.choice(SKILLS)],
            tool=ToolUse(name="work", arguments=sent(rng)),
            examples=[text(rng)],
            prefers={"tags": rng.sample(WORDS, 2)},
        )
        for _ in range(count)
    ]


def timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.thread_time()
    result = work()
    return result, (time.thread_time() - started) * 1000


def measured(cards: int, schemas: int, count: int, seed: int) -> dict[str, Any]:
    """Indexes, asks each need twice, and says what it took."""
    rng = random.Random(seed)
    candidates = population(rng, cards, schemas)
    matchmaker, indexing = timed(lambda: Matchmaker(candidates))
    _, observing = timed(lambda: matchmaker.observe(candidates))
    gc.collect()
    gc.freeze()
    asked = needs(rng, count)
    reports: list[PairingReport] = []
    new: list[float] = []
    for need in asked:
        report, took = timed(lambda need=need: matchmaker.pair(need))
        reports.append(report)
        new.append(took)
    known = [timed(lambda need=need: matchmaker.pair(need))[1] for need in asked]
    team, seating = timed(lambda: matchmaker.team({f"seat{at}": need for at, need in enumerate(asked[:4])}))
    return {
        "cards": cards,
        "schemas": schemas,
        "fitting": statistics.mean(report.fitting for report in reports) / cards,
        "comparisons": matchmaker.verdicts.comparisons,
        "proofs": matchmaker.verdicts.proofs,
        "index_ms": indexing,
        "observe_ms": observing,
        "new_median_ms": statistics.median(new),
        "new_p99_ms": quantile(new),
        "known_median_ms": statistics.median(known),
        "known_p99_ms": quantile(known),
        "team_of_4_ms": seating,
        "team": team.summary,
    }


def quantile(times: list[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * 0.99))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", type=int, default=10_000)
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--needs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    result = measured(options.cards, options.schemas, options.needs, options.seed)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    table = Table(
        "what",
        "ms (CPU)",
        title=f"{options.cards} cards, {options.schemas} schemas, "
        f"{result['fitting']:.0%} fitting, {result['comparisons']} comparisons, {result['proofs']} proofs",
    )
    for name, label in (
        ("index_ms", "index all cards"),
        ("observe_ms", "take over liveness and load"),
        ("new_median_ms", "pair, a new need (median)"),
        ("new_p99_ms", "pair, a new need (p99)"),
        ("known_median_ms", "pair, a known need (median)"),
        ("known_p99_ms", "pair, a known need (p99)"),
        ("team_of_4_ms", "team of 4 seats, known needs"),
    ):
        table.add_row(label, f"{result[name]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
