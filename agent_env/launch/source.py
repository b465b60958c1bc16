"""The hash of an agent's source: what must not change behind a published version."""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent_env.errors import ConfigurationError


def source_hash(target: str, directory: str | Path = ".", *, installed: bool = True) -> str:
    """Hashes the source of `module:attribute` and of everything of the same project that it imports.

    The project is what lies in the working directory; for a module that is installed elsewhere, its own top-level
    package. Imports are read from the source, none is executed. Data files and installed dependencies are not part of
    it. The result is "sha256:" and 64 hexadecimal digits, the same on every machine with the same files. Raises
    `ConfigurationError` when the module is not found (with `installed=False`: not in the directory) or does not parse.
    """
    module = target.partition(":")[0]
    project = _project(module, Path(directory).absolute(), installed)
    digest = hashlib.sha256()
    for name, file in sorted(_reachable(project, module).items()):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{name} {content}\n".encode())
    return f"sha256:{digest.hexdigest()}"


@dataclass(frozen=True, slots=True)
class _Project:
    """Where modules are looked up; `package` bounds the look-up to one top-level package."""

    root: Path
    package: str | None = None

    def find(self, module: str) -> Path | None:
        """The file of a module, None for one that does not belong to the project."""
        names = module.split(".")
        if not all(name.isidentifier() for name in names) or self.package not in (None, names[0]):
            return None
        place = self.root.joinpath(*names)
        for suffix in importlib.machinery.SOURCE_SUFFIXES + importlib.machinery.EXTENSION_SUFFIXES:
            for file in (place / f"__init__{suffix}", place.with_name(place.name + suffix)):
                if file.is_file():
                    return file
        return None


def _project(module: str, directory: Path, installed: bool) -> _Project:
    here = _Project(directory)
    if here.find(module) is not None:
        return here
    package = module.partition(".")[0]
    for entry in sys.path if installed else ():
        elsewhere = _Project(Path(entry), package)
        if elsewhere.find(module) is not None:
            return elsewhere
    raise ConfigurationError(
        f"the module {module!r} is found neither in {str(directory)!r} nor among the installed packages; "
        f"give it as package.module:attribute, seen from the working directory"
    )


def _reachable(project: _Project, module: str) -> dict[str, Path]:
    """The project's modules that a module imports, directly or not, itself and all their packages included."""
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = project.find(name)
        if file is None or name in found:
            continue
        found[name] = file
        parent = name.rpartition(".")[0]
        waiting += [parent] if parent else []
        if file.suffix == ".py":
            waiting += _imports(file, name)
    return found


def _imports(file: Path, module: str) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(f"the module {module!r} does not parse: {error}") from error
    package = module if file.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                levels = package.split(".")
                above = ".".join(levels[: len(levels) - node.level + 1])
                base = f"{above}.{base}" if base else above
            yield base
            # `from package import name` imports a module where the package has one of this name.
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
