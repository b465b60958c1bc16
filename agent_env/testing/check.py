"""Runs the contract: every clause about behaviour, on every lane that an environment offers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from agent_env.client.resolution import LaneName
from agent_env.errors import AgentEnvError, NotSupported
from agent_env.testing import conversations, episodes, likeness, refusals, served
from agent_env.testing.report import Check, ContractBroken, Outcome, Report
from agent_env.testing.subject import Broken, Skip, Subject, Way, found

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Probe(Generic[T]):
    """A clause, and what holds an environment against it."""

    clause: str
    run: Callable[[T], Awaitable[None]]

    @property
    def name(self) -> str:
        """What the clause asks, in words."""
        return self.run.__name__.replace("_", " ")


ONCE: Final[tuple[Probe[Subject], ...]] = (
    Probe("EC-50", served.serves_its_card_with_a_right_digest),
    Probe("EC-51", served.serves_agent_cards_that_lead_to_its_card),
    Probe("EC-52", served.can_be_reached_at_every_url_on_its_card),
    Probe("EC-69", likeness.gives_the_same_on_every_lane),
    Probe("EC-75", served.asks_for_the_credentials_on_its_card),
    Probe("EC-77", served.says_that_it_is_healthy),
)
"""What is checked once."""

ON_EVERY_LANE: Final[tuple[Probe[Way], ...]] = (
    Probe("EC-53", conversations.lists_the_tools_on_its_card),
    Probe("EC-54", conversations.opens_a_session_for_a_first_message),
    Probe("EC-55", conversations.goes_on_in_a_session_in_the_order_of_arrival),
    Probe("EC-56", conversations.keeps_sessions_apart),
    Probe("EC-57", conversations.refuses_sessions_that_are_not_there),
    Probe("EC-58", refusals.refuses_a_tool_that_it_does_not_have),
    Probe("EC-59", refusals.refuses_arguments_that_do_not_fit),
    Probe("EC-60", conversations.leaves_a_session_as_it_was_when_it_refuses),
    Probe("EC-61", conversations.answers_with_every_member),
    Probe("EC-62", refusals.tells_what_to_do_and_nothing_of_its_insides),
    Probe("EC-63", episodes.starts_an_episode),
    Probe("EC-64", episodes.plays_an_episode_step_by_step),
    Probe("EC-65", conversations.tells_the_state_and_changes_nothing),
    Probe("EC-66", conversations.copies_a_session_where_its_card_says_so),
    Probe("EC-67", conversations.ends_a_session_that_is_released),
    Probe("EC-68", refusals.calls_what_is_declared_and_nothing_else),
    Probe("EC-70", conversations.takes_the_answer_to_what_it_asks),
    Probe("EC-73", refusals.refuses_calls_that_must_not_begin),
    Probe("EC-74", refusals.refuses_parts_that_it_cannot_read),
)
"""What is checked on each lane."""

UNSEEN: Final = (
    ("EC-71", "refuses sessions beyond its capacity", "filling an environment would turn its other callers away"),
    ("EC-72", "keeps sessions with a call in flight", "only a turn longer than its idle timeout would show it"),
    ("EC-76", "refuses turns whose needs nobody meets", "which peers there are is not the caller's to choose"),
    ("EC-78", "publishes a release once", "it is about hubs, not about a running environment"),
)
"""What a caller cannot see of an environment that is in use; the tests of agent-env itself show it."""


async def check_environment(
    env: object,
    *,
    auth: str | None = None,
    lanes: Collection[LaneName] | None = None,
    message: str | None = None,
    timeout: float = 60.0,
    hub: str | Path | None = None,
    raise_on_failure: bool = False,
) -> Report:
    """Holds an environment against the contract in `cards/README.md`, and tells clause by clause what came of it.

    `env` is a URL, a reference to the hub, a card, an `Environment`, an `AgentEnvironment` or an agent. An agent is
    served on loopback while it is checked, so that all its lanes can be; so is an `AgentEnvironment`, whose sessions
    end with the check. The same calls are made on every lane that the environment offers, or on those of `lanes`.

    The agent is really spoken to, some twenty turns a lane: `message` is what it is told, by default the first sample
    request on its card. `timeout` is in seconds, for one call. With `raise_on_failure` it raises `ContractBroken` when
    a clause does not hold. Raises the errors of `agent_env.errors` when there is no environment to check.

        report = await check_environment("http://127.0.0.1:8000")
        print(report.summary())
        await check_environment(my_agent, raise_on_failure=True)     # in a test of your own
    """
    async with found(env, auth=auth, hub=hub, message=message, seconds=timeout) as subject:
        unknown = sorted(set(lanes or ()) - set(subject.lanes))
        if unknown:
            raise NotSupported(
                f"{subject.card.ref} has no lane {', '.join(unknown)}; it has {', '.join(subject.lanes)}"
            )
        checks = _card_checks(subject)
        for once in ONCE:
            checks.append(await _checked(once, subject, "", timeout))
        for lane in subject.lanes:
            if lanes is None or lane in lanes:
                checks += await _lane_checks(subject, lane, timeout)
        checks += [Check(clause, name, "skipped", why) for clause, name, why in UNSEEN]
        report = Report(subject.card.ref, tuple(checks))
    if raise_on_failure and not report.ok:
        raise ContractBroken(report)
    return report


def _card_checks(subject: Subject) -> list[Check]:
    broken = served.broken_clauses(subject)
    if not broken:
        return [Check("EC-05", "has a card that breaks no clause", "ok")]
    return [Check(clause, "has a card that keeps this clause", "failed", why) for clause, why in broken.items()]


async def _lane_checks(subject: Subject, lane: LaneName, seconds: float) -> list[Check]:
    checks: list[Check] = []
    for probe in ON_EVERY_LANE:

        async def run(subject: Subject, probe: Probe[Way] = probe) -> None:
            async with subject.way(lane) as way:
                await probe.run(way)

        checks.append(await _verdict(probe.clause, probe.name, run(subject), lane, seconds))
    return checks


async def _checked(probe: Probe[Subject], subject: Subject, lane: str, seconds: float) -> Check:
    return await _verdict(probe.clause, probe.name, probe.run(subject), lane, seconds)


async def _verdict(clause: str, name: str, work: Awaitable[None], lane: str, seconds: float) -> Check:
    outcome: Outcome
    outcome, why = "ok", ""
    try:
        # A check makes a few calls, each of which has `seconds` of its own.
        async with asyncio.timeout(10 * seconds):
            await work
    except Skip as reason:
        outcome, why = "skipped", str(reason)
    except Broken as seen:
        outcome, why = "failed", str(seen)
    except AgentEnvError as error:
        outcome, why = "failed", f"{error.code}: {error.message}"
    except TimeoutError:
        outcome, why = "failed", f"it did not end within {10 * seconds:g} s"
    except (KeyError, TypeError, AttributeError) as error:
        outcome, why = "failed", f"an answer has not the form that the protocol says ({type(error).__name__}: {error})"
    return Check(clause, name, outcome, why, lane)
