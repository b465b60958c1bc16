"""Finds an instance of a release that answers, or launches one."""

from __future__ import annotations

import logging
import os
import platform
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.to_thread
from platformdirs import user_log_path

from agent_env.errors import (
    AgentEnvError,
    ConfigurationError,
    DeadlineExceeded,
    Forbidden,
    HubError,
    LaunchFailed,
    ProtocolError,
    TransportError,
    Unauthenticated,
)
from agent_env.hub import HUB_VARIABLE, LAUNCH_VARIABLE, TOKEN_VARIABLE, Hub, Instance, Release, Resolution
from agent_env.launch.process import Detached, forget_old_logs
from agent_env.launch.source import source_hash
from agent_env.launch.spec import CommandLaunch, PythonLaunch, UrlLaunch, parse_launch
from agent_env.net import get_json
from agent_env_cards import CARD_PATH, CardError, EnvironmentCard, Reference

_log = logging.getLogger(__name__)

LAUNCH_SECONDS = 60.0
"""How long an instance may take from its start until it is registered and healthy."""

LINGER_SECONDS = 60.0
"""How long a launched instance stays without a user before it ends itself."""

TRUST_VARIABLE = "AGENT_ENV_LAUNCH_FROM"
"""The environment variable with the URLs, separated by spaces, of those served hubs that may start processes here."""

_PROBE_SECONDS = 2.0
_POLL_SECONDS = 0.1

# What programs need from their surroundings to run at all. Everything else is named in the specification, so that a
# launched agent does not get at secrets that it never asked for.
_INHERITED = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"]
_INHERITED_FAMILIES = ("LC_", "XDG_")


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


async def launch(release: Release, hub: Hub, *, seconds: float = LAUNCH_SECONDS) -> Instance:
    """Starts one instance of a release and waits until it is registered, healthy and what it should be.

    Raises `LaunchFailed`, whose message ends with the last lines of the process's log, when it ends, is not healthy
    within `seconds`, or serves another card or other source code than the release; it is killed then.
    """
    return await _launch(release, hub, seconds, secrets.token_hex(16))


async def answers(url: str, seconds: float = _PROBE_SECONDS) -> bool:
    """Tells whether something serves at a base URL; one that asks for a token does."""
    try:
        await get_json(f"{url}/health", timeout=seconds)
    except (TransportError, DeadlineExceeded):
        return False
    except AgentEnvError:
        return True
    return True


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
        return instance or await _launch(resolution.release, hub, seconds, claim)
    except HubError as error:
        failure = error.message
        raise
    finally:
        # One that was cancelled leaves no error, and whoever waits for it launches instead.
        with anyio.move_on_after(_PROBE_SECONDS, shield=True):
            await hub.end_launch(claim, failure)


async def _launch(release: Release, hub: Hub, seconds: float, launch_id: str) -> Instance:
    ref = f"{release.name}@{release.version}"
    if release.launch is None:
        raise LaunchFailed(f"the hub {hub.location} does not know how to launch {ref}; push it with `agent-env push`")
    spec = parse_launch(release.launch)
    if isinstance(spec, UrlLaunch):
        return await _elsewhere(spec, release)
    _check_trust(spec, hub, ref)
    if isinstance(spec, PythonLaunch) and not release.draft:
        await anyio.to_thread.run_sync(_check_source, spec, ref)
    environment = _environment(spec, hub, launch_id, ref)
    logs = log_directory(hub)
    forget_old_logs(logs)
    log = logs / f"{release.name.replace('/', '+')}@{release.version}-{launch_id[:8]}.log"
    process = Detached(spec.argv(LINGER_SECONDS), directory=spec.directory, env=environment, log=log)
    healthy = False
    try:
        with anyio.fail_after(seconds):
            instance = await _registered(process, hub, release, launch_id, ref)
            if not release.draft:
                await _check_same(instance, release, spec.source, process)
        healthy = True
        return instance
    except TimeoutError:
        raise LaunchFailed(_with_log(f"{ref} was not healthy within {seconds:g} s", process)) from None
    finally:
        if not healthy:
            await process.kill()


async def _registered(process: Detached, hub: Hub, release: Release, launch_id: str, ref: str) -> Instance:
    pause = 0.02
    while True:
        for instance in await hub.instances(release.name, launch_id=launch_id):
            if instance.version == release.version and await answers(instance.url):
                return instance
        if process.exit_code is not None:
            raise LaunchFailed(_with_log(f"{ref} ended with exit code {process.exit_code} before it was up", process))
        await anyio.sleep(pause)
        pause = min(0.25, pause * 1.5)


def _check_source(spec: PythonLaunch, ref: str) -> None:
    """Refuses changed code before it runs, where its files can be found from here; `_check_same` refuses it anyway."""
    try:
        found = source_hash(spec.target, spec.directory, installed=spec.interpreter == sys.executable)
    except ConfigurationError:
        return
    if spec.source not in (None, found):
        raise LaunchFailed(_changed(ref, "source", found, spec.source))


def _changed(ref: str, what: str, found: str | None, expected: str | None) -> str:
    return (
        f"{ref} has another {what} now than when it was published ({found} instead of {expected}); "
        f"bump the version and push it again"
    )


async def _check_same(instance: Instance, release: Release, source: str | None, process: Detached) -> None:
    ref = f"{release.name}@{release.version}"
    try:
        served = _digest(await get_json(instance.url + CARD_PATH, timeout=_PROBE_SECONDS), instance.url)
    except AgentEnvError as error:
        raise LaunchFailed(
            _with_log(f"{ref} is registered and its card is not there: {error.message}", process)
        ) from error
    for what, expected, found in (("card", release.digest, served), ("source", source, instance.source)):
        if expected is not None and expected != found:
            raise LaunchFailed(_changed(ref, what, found, expected))


def _digest(card: object, url: str) -> str:
    try:
        return EnvironmentCard.parse(card).digest()
    except CardError as error:
        raise ProtocolError(f"{url}{CARD_PATH} has no valid card: {error.message}") from error


async def _elsewhere(spec: UrlLaunch, release: Release) -> Instance:
    url = spec.url.rstrip("/")
    ref = f"{release.name}@{release.version}"
    try:
        card = await get_json(url + CARD_PATH, timeout=_PROBE_SECONDS * 2)
    except AgentEnvError as error:
        raise LaunchFailed(f"{ref} is kept at {url} by somebody else and cannot be reached: {error.message}") from error
    instance = Instance(
        id=f"url-{release.digest[-32:]}",
        name=release.name,
        version=release.version,
        digest=release.digest,
        url=url,
        state="up",
        card_json=card,
    )
    if not release.draft and _digest(card, url) != release.digest:
        raise LaunchFailed(f"{ref} is kept at {url}, which serves another card now; publish that one as a new version")
    return instance


def _check_trust(spec: PythonLaunch | CommandLaunch, hub: Hub, ref: str) -> None:
    """Whoever may write to a hub chooses the commands that are run here, so only hubs of this machine may."""
    if hub.location.file is not None:
        return
    if not hub.location.local and hub.location.url not in os.environ.get(TRUST_VARIABLE, "").split():
        raise LaunchFailed(
            f"the hub {hub.location} is not of this machine and may not start {ref} here; to allow it, set "
            f"{TRUST_VARIABLE} to its URL"
        )
    if spec.machine not in (None, platform.node()):
        raise LaunchFailed(
            f"{ref} was pushed from the machine {spec.machine!r}, whose paths are not here; serve it there"
        )


def _environment(spec: PythonLaunch | CommandLaunch, hub: Hub, launch_id: str, ref: str) -> Mapping[str, str]:
    missing = [name for name in spec.env if name not in os.environ]
    if missing:
        raise LaunchFailed(f"{ref} needs the environment variables {', '.join(missing)}; set them and try again")
    wanted = {*_INHERITED, *spec.env, TOKEN_VARIABLE}
    chosen = {
        name: value for name, value in os.environ.items() if name in wanted or name.startswith(_INHERITED_FAMILIES)
    }
    return {**chosen, HUB_VARIABLE: hub.location.target, LAUNCH_VARIABLE: launch_id, "PYTHONUNBUFFERED": "1"}


def _with_log(message: str, process: Detached) -> str:
    tail = process.tail()
    return f"{message}; its log ({process.log}) ends with:\n{tail}" if tail else f"{message}; its log is empty"


def log_directory(hub: Hub) -> Path:
    """Where the logs of launched processes are."""
    file = hub.location.file
    return file.parent / "logs" if file is not None else user_log_path("agent-env", appauthor=False)
