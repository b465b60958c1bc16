"""Finds an instance of a release that answers, and has one launched where there is none."""

from __future__ import annotations

import logging
import time

import anyio

from agent_env.errors import Forbidden, HubError, LaunchFailed, Unauthenticated
from agent_env.hub import Hub, Instance, Resolution
from agent_env.launch.launcher import LAUNCH_SECONDS, launch, log_directory
from agent_env.launch.probe import PROBE_SECONDS, answers
from agent_env_cards import Reference

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


async def find_or_launch(
    ref: str | Reference | Resolution, hub: Hub, *, key: str | None = None, seconds: float = LAUNCH_SECONDS
) -> Instance:
    """An instance that answers, of the release that `ref` stands for; without one, it is launched.

    Instances that do not answer are reported to the hub and passed over. Of several callers, in any process, one
    launches and the others wait for it. `key` keeps a caller at the instance it had. Raises what `Hub.resolve` and
    `launch` raise.
    """
    give_up = time.monotonic() + seconds
    resolution = ref if isinstance(ref, Resolution) else await hub.resolve(ref)
    release = resolution.release
    # From here on it is this release, whatever is published meanwhile.
    pinned = Reference(release.name, release.version, None if release.draft else release.digest)
    after: str | None = None
    while True:
        instance = await _answering(resolution, hub, key)
        if instance is not None:
            return instance
        if release.launch is None:
            raise LaunchFailed(
                f"{release.name}@{release.version} has no instance that answers, and the hub {hub.location} does not "
                f"know how to launch one: serve it, or push it with `agent-env push`"
            )
        claim = await hub.claim_launch(release.name, release.version, seconds=seconds + 10, after=after)
        if claim.granted:
            return await _launch_once(claim.id, pinned, hub, key, seconds)
        if claim.error is not None:
            raise LaunchFailed(claim.error)
        if time.monotonic() > give_up:
            raise LaunchFailed(
                f"{release.name}@{release.version} is being launched by another process and was not healthy within "
                f"{seconds:g} s; its log is in {log_directory(hub)}"
            )
        after = claim.id
        await anyio.sleep(_POLL_SECONDS)
        resolution = await hub.resolve(pinned)


async def _answering(resolution: Resolution, hub: Hub, key: str | None) -> Instance | None:
    left = list(resolution.instances)
    while (chosen := hub.choose(left, key)) is not None:
        if await answers(chosen.url):
            return chosen
        await _doubt(chosen, hub)
        left = [instance for instance in left if instance.id != chosen.id]
    return None


async def _doubt(instance: Instance, hub: Hub) -> None:
    try:
        await hub.doubt(instance)
    except (Unauthenticated, Forbidden) as error:
        # A hub that asks for tokens may not listen to everybody; its lease will tell soon enough.
        _log.info("%s does not answer, and the hub %s was not told: %s", instance.url, hub.location, error)


async def _launch_once(claim: str, ref: Reference, hub: Hub, key: str | None, seconds: float) -> Instance:
    """Launches under a claim, unless somebody did between the look at the hub and the claim."""
    failure: str | None = None
    try:
        resolution = await hub.resolve(ref)
        instance = await _answering(resolution, hub, key)
        return instance or await launch(resolution.release, hub, seconds=seconds, launch_id=claim)
    except HubError as error:
        failure = error.message
        raise
    finally:
        # One that was cancelled leaves no error, and whoever waits for it launches instead.
        with anyio.move_on_after(PROBE_SECONDS, shield=True):
            await hub.end_launch(claim, failure)
