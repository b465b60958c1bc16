"""Which release a reference stands for, and what is said when there is none."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from agent_env.errors import NameNotFound, VersionNotFound
from agent_env.hub.records import Release
from agent_env_cards import Reference, format_ref, parse_version

_MOST_LISTED = 12


def pick(reference: Reference, releases: Sequence[Release], hub: str) -> Release:
    """The release that a reference stands for, among all releases and drafts of its name.

    An exact version or a digest finds whatever has it; a range takes the highest release in it that is not yanked; no
    range takes the highest that is neither yanked nor a pre-release, and a draft only where nothing is published.
    Raises `VersionNotFound`, whose message lists what exists.
    """
    candidates = _meant(reference, releases)
    if not candidates:
        raise _no_version(reference, releases, hub)
    found = max(candidates, key=precedence)
    if reference.digest is not None and found.digest != reference.digest:
        raise VersionNotFound(
            f"{found.name}@{found.version} is published in the hub {hub} with the digest {found.digest}, and the "
            f"reference pins {reference.digest}: this is not the release that was meant",
            digest=found.digest,
        )
    return found


def _meant(reference: Reference, releases: Sequence[Release]) -> list[Release]:
    exact = reference.version
    if exact is not None:
        return [release for release in releases if release.version == exact]
    if reference.digest is not None:
        return [
            release
            for release in releases
            if release.digest == reference.digest and (reference.range is None or reference.accepts(release.version))
        ]
    if reference.range is None and all(release.draft for release in releases):
        return list(releases)
    return [release for release in releases if release.yanked is None and reference.accepts(release.version)]


def precedence(release: Release) -> tuple[bool, object]:
    """A sort key: the order of versions (Semantic Versioning 2.0.0 §11), drafts first."""
    return not release.draft, parse_version(release.version)


def unknown_name(name: str, known: Iterable[str], hub: str) -> NameNotFound:
    """The error for a name that the hub does not have."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        hint = "did you mean " + " or ".join(repr(match) for match in close) + "?"
    elif names:
        hint = f"it has {_listed([repr(known_name) for known_name in names])}"
    else:
        hint = f"it is empty; publish with `agent-env push module:agent --name {name} --version 1.0.0`, or serve one"
    return NameNotFound(f"the hub {hub} has no environment {name!r}; {hint}", close=close)


def _no_version(reference: Reference, releases: Sequence[Release], hub: str) -> VersionNotFound:
    ordered = sorted(releases, key=precedence, reverse=True)
    hint = ""
    if reference.range is None and reference.digest is None:
        hint = f"; name a version, as in {ordered[0].name}@{ordered[0].version}"
    return VersionNotFound(
        f"the hub {hub} has nothing that {format_ref(reference)!r} stands for; "
        f"it has {_listed([_described(release) for release in ordered])}{hint}",
        versions=[release.version for release in ordered],
    )


def _described(release: Release) -> str:
    if release.draft:
        return f"{release.version} (a draft)"
    if release.yanked is not None:
        return f"{release.version} (yanked: {release.yanked or 'no reason given'})"
    return f"{release.version} (a pre-release)" if "-" in release.version else release.version


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - _MOST_LISTED} more" if len(items) > _MOST_LISTED else ""
    return ", ".join(items[:_MOST_LISTED]) + more
