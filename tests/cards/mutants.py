"""Mutants: for each clause of the protocol, edits of the code after which a test that cites the clause must fail.

A mutant names a function and replaces one piece of its source. It is applied by exchanging the function's code object,
so whoever holds the function already runs the mutant. Each table is a module of its own; `mutation_run.py` runs it.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from types import CodeType, FunctionType
from typing import Any

TABLES = ("cards", "conversations", "episodes", "bounds", "faces")
"""The tables; that of `cards` is the module `mutants_of_cards`."""


@dataclass(frozen=True)
class Mutant:
    """An edit: in the function `target` ("module:name"), `old` (found exactly once) becomes `new`.

    Methods, properties, coroutines, generators and what decorators wrap are functions too. The source is that of the
    function alone, from its `def` on, with no indent.
    """

    clause: str
    name: str
    target: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.clause} {self.name}"


def mutants(table: str) -> tuple[Mutant, ...]:
    """The mutants of one table, by clause."""
    found: tuple[Mutant, ...] = importlib.import_module(f"mutants_of_{table}").every_mutant()
    names = [str(mutant) for mutant in found]
    if len(names) != len(set(names)):
        raise ValueError(f"two mutants of {table} have the same name")
    return tuple(sorted(found, key=lambda mutant: mutant.clause))


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Runs the code inside with the mutant in place of the function."""
    function, code = edit(mutant)
    original = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = original


@cache
def edit(mutant: Mutant) -> tuple[FunctionType, CodeType]:
    """The function that a mutant is about, and the mutant's code; raises `ValueError` for a mutant that is stale."""
    function = _function(mutant.target)
    return function, _mutated(function, mutant).__code__


def _function(target: str) -> FunctionType:
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
    if isinstance(found, cached_property):
        found = found.func
    if isinstance(found, property):
        found = found.fget
    found = inspect.unwrap(getattr(found, "__func__", found))
    if not isinstance(found, FunctionType):
        raise TypeError(f"{target} is {found!r}, not a function")
    return found


def _mutated(function: FunctionType, mutant: Mutant) -> FunctionType:
    whole = textwrap.dedent(inspect.getsource(function))
    # Without its decorators, which would wrap it once more.
    source = "\n".join(whole.splitlines()[ast.parse(whole).body[0].lineno - 1 :])
    if source.count(mutant.old) != 1:
        raise ValueError(f"the mutant {str(mutant)!r} is stale: {mutant.old!r} is not once in\n{source}")
    edited = source.replace(mutant.old, mutant.new)
    flags, namespace = __future__.annotations.compiler_flag, dict[str, Any]()
    free = function.__code__.co_freevars
    if free:
        # Inside another function, so that what the original takes from around it (`__class__`) stays free.
        edited = f"def outer({', '.join(free)}):\n{textwrap.indent(edited, '    ')}\n    return {function.__name__}"
    compiled = compile(edited, f"<mutant {mutant}>", "exec", flags=flags, dont_inherit=True)
    exec(compiled, function.__globals__, namespace)  # noqa: S102
    made: FunctionType = namespace["outer"](*free) if free else namespace[function.__name__]
    if made.__code__.co_freevars != free:
        raise ValueError(f"the mutant {str(mutant)!r} must use what {mutant.target} takes from around it: {free}")
    return made
