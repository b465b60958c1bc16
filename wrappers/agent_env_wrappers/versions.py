"""Which version of a framework is there, and what to install where it is not."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from agent_env_wrappers.contract import WrapError


def installed(distribution: str, *, install: str, least: tuple[int, ...]) -> str:
    """Names a distribution with its version; raises `WrapError` when it is missing or older than `least`."""
    remedy = f"pip install '{install}'"
    try:
        found = version(distribution)
    except PackageNotFoundError as error:
        raise WrapError(f"{distribution} is not installed: {remedy}") from error
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[: len(least)])
    if numbers < least:
        wanted = ".".join(map(str, least))
        raise WrapError(f"{distribution} {found} is too old, {wanted} is the least: {remedy}")
    return f"{distribution} {found}"
