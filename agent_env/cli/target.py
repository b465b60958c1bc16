"""`module:attribute` on the command line, loaded from the working directory as `python -m` would."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Literal

from agent_env.errors import ConfigurationError

_EXAMPLES = {"agent": "agents:my_agent", "scenario": "team:scenario"}


def located(target: str, *, of: Literal["agent", "scenario"] = "agent") -> tuple[Path, str]:
    """The folder that a target is imported from, and its `module:attribute`.

    `path/to/file.py:attribute` is the module `file` of the folder `path/to`; anything else is of the working
    directory. Raises `ConfigurationError` for what is neither, which says what it should be a target `of`.
    """
    module, separator, attribute = target.rpartition(":")
    path = Path(module)
    dotted = path.suffix == ".py" or all(part.isidentifier() for part in module.split("."))
    if not separator or not attribute or not dotted:
        raise ConfigurationError(f"{target!r} names no {of}; write module:attribute, such as {_EXAMPLES[of]}")
    if path.suffix != ".py":
        return Path.cwd(), target
    if not path.is_file():
        raise ConfigurationError(f"there is no file {module!r} in {Path.cwd()}")
    return path.resolve().parent, f"{path.stem}:{attribute}"


def load(target: str) -> object:
    """Loads the agent that a target names.

    Raises `ConfigurationError` that says which part is missing; an error inside the module is the module's own.
    """
    folder, located_target = located(target)
    module, _, attribute = located_target.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    from agent_env.serving.run import importing

    try:
        with importing():
            found: object = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(
            f"there is no module {error.name!r} in {folder} or installed; run the command in the folder that has it"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = sorted(name for name in dir(found) if not name.startswith("_"))[:20]
            raise ConfigurationError(f"{module!r} has no {attribute!r}; it has {', '.join(names) or 'nothing'}")
        found = getattr(found, part)
    return found
