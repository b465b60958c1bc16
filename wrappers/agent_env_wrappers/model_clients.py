"""Whether the code of a callable shows that it asks its model through an SDK that takes a route."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from agent_env_wrappers.openai_client_hook import SDKS

_HOLDERS = (functools.partial, MethodType, property, classmethod, staticmethod, list, tuple, set, frozenset, dict)

_MOST = 2000
"""How many objects are looked at: an agent may hold all that its program has."""


def shows_client(agent: object) -> bool:
    """Whether something of such an SDK is among what a callable's code names, closes over, has as a default, or holds
    as an attribute, and so on through the functions and objects of its own package.

    Nothing is imported and nothing is run. What other packages do inside is not looked at.
    """
    home = _home(agent)
    seen: dict[int, object] = {}  # with the object, so that no other one gets its id meanwhile
    left = [agent]
    while left and len(seen) < _MOST:
        item = left.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        roots = _roots(item)
        if not roots.isdisjoint(SDKS):
            return True
        if home in roots or issubclass(type(item), _HOLDERS):
            # What threads of the agent change meanwhile is looked at as far as it is there.
            with suppress(RuntimeError):
                left.extend(islice(_within(item), _MOST))
    return False


def _home(agent: object) -> str:
    """The package that an agent's own code is of."""
    while isinstance(agent, functools.partial):
        agent = agent.func
    return _root(agent if inspect.isfunction(agent) or inspect.ismethod(agent) else type(agent))


def _root(item: Any) -> str:
    if type(item) is ModuleType:
        name = vars(item).get("__name__")
    elif issubclass(type(item), type):
        name = _plain(item, "__module__")
    else:
        name = item.__module__
    return name.partition(".")[0] if isinstance(name, str) else ""


def _plain(kind: type[Any], name: str) -> Any:
    """What a class says of itself, whatever its metaclass would say."""
    return type.__dict__[name].__get__(kind)


def _roots(item: Any) -> set[str]:
    """The packages that an object is of, with those of all classes that it is an instance of."""
    if type(item) is ModuleType or type(item) is FunctionType:
        return {_root(item)}
    # By its type alone: what an object says of itself may be made up by code of its own, as that of a proxy is.
    return {_root(kind) for kind in _plain(item if issubclass(type(item), type) else type(item), "__mro__")}


def _within(item: Any) -> Iterator[object]:
    """What an object has in it."""
    kind = type(item)
    if issubclass(kind, functools.partial):
        yield from (item.func, item.args, item.keywords)
    elif kind is MethodType:
        yield from (item.__func__, item.__self__)
    elif kind is FunctionType:
        yield from _used(item)
    elif issubclass(kind, dict):
        yield from dict.values(item)
    elif issubclass(kind, list | tuple | set | frozenset):
        yield from _items(item)
    elif kind is property:
        yield item.fget
    elif kind is classmethod or kind is staticmethod:
        yield item.__func__
    elif issubclass(kind, type):
        yield from _plain(item, "__dict__").values()
        yield from _plain(item, "__mro__")
    elif kind is not ModuleType:  # of a module, code uses what it names
        yield kind
        with suppress(AttributeError):
            yield from object.__getattribute__(item, "__dict__").values()
        for owner in _plain(kind, "__mro__"):
            for member in _plain(owner, "__dict__").values():
                if type(member) is MemberDescriptorType:  # a slot
                    with suppress(AttributeError):
                        yield member.__get__(item)


def _items(item: Any) -> Iterator[object]:
    """What a collection has in it, by its own type's ways and none of a class that was made of it."""
    return next(plain for plain in (list, tuple, set, frozenset) if issubclass(type(item), plain)).__iter__(item)


def _used(function: FunctionType) -> Iterator[object]:
    """What the code of a function uses, also what it imports when it runs, if that is there already."""
    names = set(_names(function.__code__))
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    found += [sys.modules[name] for name in names if name in sys.modules]
    for module in [one for one in found if type(one) is ModuleType]:
        found += [vars(module)[name] for name in names if name in vars(module)]
    yield from found
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield getattr(function, "__wrapped__", None)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # nothing has been put into it yet


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
