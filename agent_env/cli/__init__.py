"""The command `agent-env`. Each command imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations


def main() -> None:
    """Runs the command line."""
    from agent_env.cli.application import run

    run()
