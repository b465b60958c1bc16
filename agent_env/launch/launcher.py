"""Starts a release as a process of its own, and checks that it is what was published."""

from __future__ import annotations

import os
import platform
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.to_thread
from platformdirs import user_log_path

from agent_env.errors import (
    AgentEnvError,
    ConfigurationError,
    LaunchFailed,
    ProtocolError,
)
from agent_env.hub import HUB_VARIABLE, LAUNCH_VARIABLE, TOKEN_VARIABLE, Hub, Instance, Release
from agent_env.launch.probe import PROBE_SECONDS, answers
from agent_env.launch.process import Detached, forget_old_logs
from agent_env.launch.source import source_hash
from agent_env.launch.spec import CommandLaunch, PythonLaunch, UrlLaunch, parse_launch
from agent_env.net import get_json
from agent_env_cards import CARD_PATH, CardError, EnvironmentCard

LAUNCH_SECONDS = 60.0
"""How long an instance may take from its start until it is registered and healthy."""

LINGER_SECONDS = 60.0
"""How long a launched instance stays without a user before it ends itself."""

TRUST_VARIABLE = "AGENT_ENV_LAUNCH_FROM"
"""The environment variable with the hubs, separated by spaces, whose releases of others may start processes here.

Each is the hub's URL, or its path where the hub is a file that is served to others too."""

# What programs need from their surroundings to run at all. Everything else is named in the specification, so that a
# launched agent does not get at secrets that it never asked for.
# fmt: off
_INHERITED = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT",
    "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
})
# fmt: on
_INHERITED_FAMILIES = ("LC_", "XDG_")


async def launch(
    release: Release, hub: Hub, *, seconds: float = LAUNCH_SECONDS, launch_id: str | None = None
) -> Instance:
    """Starts one instance of a release and waits until it is registered, healthy and what it should be.

    The process gets `launch_id`, or a random one, and registers under it. Raises `LaunchFailed`, whose message ends
    with the last lines of the process's log, when it ends, is not healthy within `seconds`, or serves another card or
    other source code than the release; it is killed then.
    """
    launch_id = launch_id or secrets.token_hex(16)
    ref = f"{release.name}@{release.version}"
    if release.launch is None:
        raise LaunchFailed(f"the hub {hub.location} does not know how to launch {ref}; push it with `agent-env push`")
    spec = parse_launch(release.launch)
    if isinstance(spec, UrlLaunch):
        return await _elsewhere(spec, release)
    _check_trust(spec, hub, release)
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
        served = _digest(await get_json(instance.url + CARD_PATH, timeout=PROBE_SECONDS), instance.url)
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
        card = await get_json(url + CARD_PATH, timeout=PROBE_SECONDS * 2)
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


def _check_trust(spec: PythonLaunch | CommandLaunch, hub: Hub, release: Release) -> None:
    """Whoever may write to a hub chooses the commands that are run here, so only this machine's own users may.

    A release with an owner came over the network, even where the hub is a file of this machine.
    """
    location, here = hub.location, platform.node()
    if location.file is not None and release.owner is None:
        return
    ref = f"{release.name}@{release.version}"
    near = location.local and release.owner is None and spec.machine == here
    if not near and location.target not in os.environ.get(TRUST_VARIABLE, "").split():
        origin = "is not of this machine" if release.owner is None else f"was published by {release.owner!r}"
        raise LaunchFailed(
            f"{ref} in the hub {location} {origin} and may not be started here; to run whatever that hub says, set "
            f"{TRUST_VARIABLE} to {location}"
        )
    if spec.machine not in (None, here):
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
