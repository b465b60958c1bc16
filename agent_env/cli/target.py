"""`module:attribute` on the command line, loaded from the working directory as `python -m` would."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from agent_env.errors import ConfigurationError


def load(target: str) -> object:
    """Loads the agent that `module:attribute` (or `path/to/file.py:attribute`) names.

    Raises `ConfigurationError` that says which part is missing; an error inside the module is the module's own.
    """
    module_name, separator, attribute = target.partition(":")
    if not separator or not module_name or not attribute:
        raise ConfigurationError(f"{target!r} names no agent; write module:attribute, such as agents:my_agent")
    path = Path(module_name)
    if path.suffix == ".py":
        if not path.is_file():
            raise ConfigurationError(f"there is no file {module_name!r} in {Path.cwd()}")
        sys.path.insert(0, str(path.resolve().parent))
        module_name = path.stem
    elif str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise
        raise ConfigurationError(
            f"there is no module {module_name!r}; run the command in the folder that has it, or install it"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = sorted(name for name in vars(found) if not name.startswith("_"))[:20]
            raise ConfigurationError(f"{module_name!r} has no {attribute!r}; it has {', '.join(names) or 'nothing'}")
        found = getattr(found, part)
    return found
