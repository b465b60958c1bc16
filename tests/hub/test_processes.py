"""Many processes over one database at the same time."""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
import pytest

from agent_env.hub import Hub

pytestmark = pytest.mark.anyio

_WORKER = """
import asyncio, json, sys
from agent_env.errors import ReleaseConflict
from agent_env.hub import Hub
from agent_env_cards import EnvironmentCard

async def main(target, me):
    won = []
    async with Hub.open(target) as hub:
        shared = EnvironmentCard(name="shared", version="1.0.0", description="The same everywhere.")
        lease = await hub.register(shared, f"http://127.0.0.1:{me + 1}")
        for number in range(25):
            card = EnvironmentCard(name="agent-b", version=f"1.{number}.0", description=f"By {me}.")
            try:
                await hub.publish(card)
                won.append(card.version)
            except ReleaseConflict:
                pass
            await hub.renew(lease, number)
        claim = await hub.claim_launch("agent-b", "1.0.0", seconds=60)
        print(json.dumps({"won": won, "claimed": claim.granted}))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def test_processes_that_publish_and_renew_at_once_agree(target: str) -> None:
    # The database does not exist before, so they also race to make it and to bring it up to date.
    answers: list[dict[str, Any]] = [{} for _ in range(4)]

    async def work(number: int) -> None:
        finished = await anyio.run_process([sys.executable, "-c", _WORKER, target, str(number)])
        answers[number] = json.loads(finished.stdout)

    with anyio.fail_after(50):
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(work, number)
    won = [version for answer in answers for version in answer["won"]]
    assert sorted(won) == sorted(f"1.{number}.0" for number in range(25))
    assert [answer["claimed"] for answer in answers].count(True) == 1
    async with Hub.open(target) as hub:
        changes = await hub.changes()
        assert changes.sequence == 26 and len(changes.releases) == 26
        for number, answer in enumerate(answers):
            for version in answer["won"]:
                assert (await hub.resolve(f"agent-b@{version}")).card.description == f"By {number}."
        instances = await hub.instances("shared")
        assert sorted(instance.url for instance in instances) == [f"http://127.0.0.1:{port}" for port in (1, 2, 3, 4)]
        assert {instance.load for instance in instances} == {24}
