"""Drafts: whoever started last is the one that is meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_env.hub import Hub
from agent_env_cards import EnvironmentCard

pytestmark = pytest.mark.anyio


async def test_of_two_drafts_with_one_card_only_the_newest_start_is_called(
    hub: Hub, make_card: Callable[..., EnvironmentCard], clock: Any
) -> None:
    draft = make_card(version="0.0.0-dev")
    await hub.register(draft, "http://127.0.0.1:7001")
    clock.advance(1)
    newer = await hub.register(draft, "http://127.0.0.1:7002")
    assert [instance.url for instance in (await hub.resolve("agent-b")).instances] == ["http://127.0.0.1:7002"]
    (entry,) = await hub.list("agent-b")
    assert len(entry.instances) == 2
    assert [instance.url for instance in entry.current] == ["http://127.0.0.1:7002"]
    await hub.release(newer)
    assert [instance.url for instance in (await hub.resolve("agent-b")).instances] == ["http://127.0.0.1:7001"]
