"""What a hub said last, believed until something is written to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent_env.errors import NameNotFound
from agent_env.hub import Hub
from agent_env.hub import snapshot as snapshots
from agent_env_cards import EnvironmentCard, parse_ref

pytestmark = pytest.mark.anyio

MakeCard = Callable[..., EnvironmentCard]


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A belief that does not grow old, so that only a write makes a difference."""
    monkeypatch.setattr(snapshots, "BELIEVE_SECONDS", 1e9)


@pytest.mark.usefixtures("still")
async def test_a_hub_is_asked_once_until_somebody_writes(hub: Hub, make_card: MakeCard, file: object) -> None:
    known = snapshots.snapshot(hub)
    assert snapshots.snapshot(hub) is known
    await hub.publish(make_card())
    for _ in range(3):
        assert (await known.resolve(parse_ref("agent-b"))).release.version == "1.0.0"
        assert [entry.release.version for entry in await known.entries()] == ["1.0.0"]
    assert known.reads == 2
    version = known.version
    await hub.publish(make_card(version="1.1.0"))
    if hub.location.file is None:
        known.forget()
    assert (await known.resolve(parse_ref("agent-b"))).release.version == "1.1.0"
    assert len(await known.entries()) == 2
    assert known.reads == 4
    assert hub.location.file is None or known.version != version


async def test_answers_grow_old_without_a_write(hub: Hub, make_card: MakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "BELIEVE_SECONDS", 1e-6)
    known = snapshots.snapshot(hub)
    await known.entries()
    await known.entries()
    assert known.reads == 2


@pytest.mark.usefixtures("still")
async def test_an_error_is_not_kept(hub: Hub, make_card: MakeCard) -> None:
    known = snapshots.snapshot(hub)
    with pytest.raises(NameNotFound):
        await known.resolve(parse_ref("agent-b"))
    await hub.publish(make_card())
    assert (await known.resolve(parse_ref("agent-b"))).release.name == "agent-b"
