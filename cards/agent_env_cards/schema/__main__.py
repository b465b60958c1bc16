"""Checks or writes the schema files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from agent_env_cards.schema import MODELS, made_text


def main(arguments: Sequence[str] | None = None, folder: Path = Path(__file__).parent) -> int:
    """Runs the command; returns 1 if `--check` finds a file that is not what the models say."""
    parser = argparse.ArgumentParser(prog="python -m agent_env_cards.schema", description=__doc__)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--check", action="store_true", help="exit 1 if a file is not what the models say")
    choice.add_argument("--write", action="store_true", help="write the files")
    options = parser.parse_args(arguments)
    stale: list[Path] = []
    for name in MODELS:
        file = folder / f"{name}.schema.json"
        if options.write:
            file.write_text(made_text(name), encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != made_text(name):
            stale.append(file)
    for file in stale:
        print(f"{file.name} is not what the models say; run: python -m agent_env_cards.schema --write", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
