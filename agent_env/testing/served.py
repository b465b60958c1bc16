"""What an environment serves at its address: its cards, what they lead to, its health, and who may come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from agent_env.client.resolution import reach
from agent_env.errors import AgentEnvError
from agent_env.net.credentials import bearer_headers
from agent_env.net.http import get_json, post_json
from agent_env.testing.subject import Skip, Subject, Way, expect
from agent_env_cards import (
    AGENT_CARD_PATH,
    AGENT_CARD_PATH_V03,
    CARD_PATH,
    EXTENSION_URI,
    environment_card_url,
    resolve_url,
    validate_card,
)

HEALTHY = {"status": "healthy", "success": True, "data": {"status": "healthy"}}


async def serves_its_card_with_a_right_digest(subject: Subject) -> None:
    """EC-50."""
    stated = subject.served_card.get("digest")
    expect(isinstance(stated, str), "the card that is served has no digest")
    expect(stated == subject.card.digest(), f"the card says {stated}; its release facts have {subject.card.digest()}")


async def serves_agent_cards_that_lead_to_its_card(subject: Subject) -> None:
    """EC-51."""
    base = _base(subject)
    for path in (AGENT_CARD_PATH, AGENT_CARD_PATH_V03):
        card = await _get(subject, base + path)
        declared = environment_card_url(card)
        expect(declared is not None, f"{path} does not declare the extension {EXTENSION_URI}")
        expect(
            declared is not None and resolve_url(base + CARD_PATH, declared) == base + CARD_PATH,
            f"{path} has the Environment Card at {declared}; it is at {base}{CARD_PATH}",
        )
    there = subject.card.agent_card
    expect(there is not None, "the card has no agentCard")
    card = await _get(subject, resolve_url(base + CARD_PATH, str(there)))
    expect(environment_card_url(card) is not None, f"agentCard leads to {there}, which is no Agent Card of this one")


async def can_be_reached_at_every_url_on_its_card(subject: Subject) -> None:
    """EC-52."""
    base = _base(subject)
    for lane in subject.lanes:
        if lane != "inprocess":
            async with subject.way(lane) as way:
                await way.call("list_tools")
    address = resolve_url(base + CARD_PATH, subject.card.url)
    headers = bearer_headers(subject.token)
    if urlsplit(address).scheme in ("http", "https") and subject.card.preferred_transport == "JSONRPC":
        asked = {"jsonrpc": "2.0", "id": 1, "method": "no/such/method"}
        answer = await post_json(address, asked, headers=headers, timeout=subject.seconds)
        code = answer.get("error", {}).get("code") if isinstance(answer, Mapping) else None
        expect(code == -32601, f"{address} answered {answer!r:.200} to a method that nobody has, not -32601")


async def asks_for_the_credentials_on_its_card(subject: Subject) -> None:
    """EC-75."""
    auth = subject.card.auth
    if auth is None or not auth.security or {} in auth.security:
        raise Skip("its card asks for no credentials")
    for lane in subject.lanes:
        if lane == "inprocess":
            continue
        reached = await reach(_base(subject), lane=lane, token=None, hub=None, seconds=subject.seconds)
        try:
            await Way(subject, reached.lane).refused(
                "unauthenticated", verb="call_tool", name="chat", arguments={"message": subject.message}
            )
        finally:
            await reached.aclose()


async def says_that_it_is_healthy(subject: Subject) -> None:
    """EC-77."""
    answer = await _get(subject, f"{_base(subject)}/health")
    expect(answer == HEALTHY, f"/health answered {answer!r:.200}")


def broken_clauses(subject: Subject) -> Mapping[str, str]:
    """The clauses about cards that this one breaks, each with where and why."""
    found: dict[str, list[str]] = {}
    for problem in validate_card(subject.served_card):
        found.setdefault(problem.clause, []).append(f"{problem.pointer or '(card)'}: {problem.message}")
    return {clause: "; ".join(messages) for clause, messages in sorted(found.items())}


def _base(subject: Subject) -> str:
    if subject.base is None:
        raise Skip("it is not served anywhere that is known")
    return subject.base


async def _get(subject: Subject, url: str) -> Any:
    try:
        return await get_json(url, headers=bearer_headers(subject.token), timeout=subject.seconds)
    except AgentEnvError as error:
        expect(False, f"{url} answered {error.code}: {error.message}")
