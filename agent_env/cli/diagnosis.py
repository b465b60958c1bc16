"""`agent-env doctor`: what is installed, which wrappers work, what is wrong, and the fix."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Literal

import typer
from rich.text import Text

from agent_env.cli.output import Json, console, print_json, print_table, reported

REQUIRED = (("mcp", 2, 3), ("a2a-sdk", 1, 3))
"""Packages whose older generations install beside ours and then fail at run time."""

RIVALS = {
    "agentenv-framework": "it installs the import package `agent_env` and the command `agent-env` too, so one of the "
    "two overwrites the other; keep it in a virtual environment of its own and reach its servers over HTTP",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: "ok", "absent" (optional, not there) or "wrong" (and `note` has the fix)."""

    subject: str
    state: Literal["ok", "absent", "wrong"]
    note: str


def doctor(as_json: Json = False) -> None:
    """Tells what is installed, which wrappers work, and what is wrong; ends with status 1 if something is."""
    with reported(as_json=as_json):
        findings = [*packages(), *wrappers(), *training(), *hub()]
        if as_json:
            print_json([asdict(finding) for finding in findings])
        else:
            colours = {"ok": "green", "absent": "dim", "wrong": "red"}
            rows = [(f.subject, Text(f.state, colours[f.state]), f.note) for f in findings]
            print_table(("what", "state", "note"), rows)
            wrong = sum(finding.state == "wrong" for finding in findings)
            console.print("everything works" if not wrong else f"[red]{wrong} to fix[/red]")
        if any(finding.state == "wrong" for finding in findings):
            raise typer.Exit(1)


def packages() -> list[Finding]:
    """Looks at Python, this package, what it needs in a certain release, and what must not be beside it."""
    findings = [Finding("python", "ok", platform.python_version())]
    findings.append(Finding("agent-env", "ok", _installed("agent-env") or "running from a checkout"))
    for name, *least in REQUIRED:
        found = _installed(name)
        wanted = ".".join(map(str, least))
        if found is None:
            findings.append(Finding(name, "wrong", f"not installed; run: pip install '{name}>={wanted}'"))
        elif [int(part) for part in found.split(".")[:2] if part.isdigit()] < least:
            findings.append(
                Finding(
                    name,
                    "wrong",
                    f"{found} is older than {wanted}: another package holds it back. Install that one in a virtual "
                    f"environment of its own, then run: pip install --upgrade '{name}>={wanted}'",
                )
            )
        else:
            findings.append(Finding(name, "ok", found))
    for name, reason in RIVALS.items():
        found = _installed(name)
        if found is not None:
            findings.append(Finding(name, "wrong", f"{found} is in this environment: {reason}"))
    return findings


def wrappers() -> list[Finding]:
    """Looks at every wrapper of this interpreter."""
    from agent_env_wrappers.registry import available

    findings: list[Finding] = []
    for wrapper in available():
        state: Literal["ok", "absent", "wrong"] = "ok" if wrapper.ok else "wrong"
        if not wrapper.ok and "not installed" in wrapper.note:
            state = "absent"
        findings.append(Finding(f"wrapper {wrapper.name}", state, wrapper.note))
    return findings


EXTRAS = {
    "training": ("train", ("torch",)),
    "models of Hugging Face": ("hf", ("torch", "transformers", "peft")),
    "views of PettingZoo": ("pettingzoo", ("pettingzoo", "gymnasium")),
}
"""What else there is: the extra that brings it, and the packages that it needs."""


def training() -> list[Finding]:
    """Looks at what training, its models and its views need."""
    findings: list[Finding] = []
    for subject, (extra, needed) in EXTRAS.items():
        found = {name: _installed(name) for name in needed}
        missing = ", ".join(name for name, version in found.items() if version is None)
        if missing:
            findings.append(
                Finding(subject, "absent", f"{missing} not installed; run: pip install 'agent-env[{extra}]'")
            )
        else:
            findings.append(Finding(subject, "ok", ", ".join(f"{name} {version}" for name, version in found.items())))
    return findings


def hub() -> list[Finding]:
    """Looks at where the hub is, and whether it can be read."""
    import asyncio

    from agent_env.errors import AgentEnvError
    from agent_env.hub import locate, shared_hub

    async def count() -> int:
        return len(await shared_hub().list())

    try:
        location = locate()
        return [Finding("hub", "ok", f"{location}, {asyncio.run(count())} releases")]
    except AgentEnvError as error:
        return [Finding("hub", "wrong", error.message)]


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
