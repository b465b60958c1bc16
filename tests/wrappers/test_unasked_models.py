"""Turns that are answered without a model: by choice, which is fine, or past the route, which is not."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from urllib.request import urlopen

import anyio
import openai
import pytest
from driving import done, events
from graphs import graph
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessage
from model_server import ModelServer
from openai import OpenAI

from agent_env_wrappers.contract import Done, ModelCall, Usage, WrapError
from agent_env_wrappers.model_clients import shows_client
from agent_env_wrappers.registry import wrap

pytestmark = pytest.mark.anyio

NOT_ASKED = "it replied without asking one through the openai or the anthropic client"
STRAYED = "a model was asked meanwhile from a thread or task that belongs to no turn"


def ask(client: OpenAI, text: str) -> str:
    made = client.chat.completions.create(model="own-model", messages=[{"role": "user", "content": text}])
    return str(made.choices[0].message.content)


def by_global(message: str) -> str:
    return "no" if message == "hello" else ask(OpenAI(), message)


def by_module(message: str) -> str:
    return "no" if message == "hello" else str(openai.OpenAI())


def by_import(message: str) -> str:
    from anthropic import Anthropic

    return "no" if message == "hello" else str(Anthropic())


def by_helper(message: str) -> str:
    return by_global(message)


async def by_inner_function(message: str) -> str:
    def inner() -> str:
        return by_helper(message)

    return await asyncio.to_thread(inner)


def by_decorator(message: str) -> str:
    return decorated(message)


def counted(function: Callable[[str], str]) -> Callable[[str], str]:
    @functools.wraps(function)
    def inner(message: str) -> str:
        return function(message)

    return inner


decorated = counted(by_module)


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = {"held": [held]}

    def __call__(self, message: str) -> str:
        return "no"

    def answer(self, message: str) -> str:
        return "no"


class Asker:
    @staticmethod
    def asked(message: str) -> str:
        return by_global(message)

    @property
    def client(self) -> OpenAI:
        raise AssertionError("nothing is run")

    def __call__(self, message: str) -> str:
        return "no"


class Proxy:
    """Answers every question about itself by failing."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"nothing is run, and {name!r} was asked for")


def by_rule(message: str) -> str:
    return json.dumps(message)


def by_rule_of_an_object(message: str, holder: Any = Holder(3)) -> str:  # noqa: B008 - that it is a default is the point
    return holder(message)


def by_another_way(message: str) -> str:
    return "" if message == "hello" else urlopen(message).read().decode()


@contextmanager
def client() -> Iterator[OpenAI]:
    with OpenAI(base_url="http://own.invalid/v1", api_key="own") as made:
        yield made


async def test_an_agent_whose_code_shows_a_client_may_answer_without_asking_it(models: ModelServer) -> None:
    with client() as held:
        closed_over: Any = lambda message: "no" if message == "hello" else ask(held, message)
        agents = [by_global, by_module, by_import, by_helper, by_inner_function, by_decorator, closed_over]
        agents += [Holder(held), Holder(held).answer, Asker(), functools.partial(by_global), Holder(OpenAI)]
        agents += [functools.partial(Holder(3).answer), Holder(held.chat.completions.create)]
        for agent in agents[:-2] + agents[-1:]:
            assert shows_client(agent), agent
            assert (await done(wrap(agent), model=models.route("red"))).text == "no"
        assert not shows_client(agents[-2])
    assert models.asked == []


@pytest.mark.parametrize("agent", [by_rule, by_rule_of_an_object, by_another_way, Holder(3), Holder(Proxy())])
async def test_an_agent_whose_model_cannot_be_seen_is_refused(models: ModelServer, agent: Any) -> None:
    assert not shows_client(agent)
    with pytest.raises(WrapError, match=NOT_ASKED + r".*return Done\(text, usage=Usage\(\)\)"):
        await done(wrap(agent), model=models.route("red"))


class Equal(type):
    """Classes that are asked nothing, not even whether they are another one."""

    def __eq__(cls, other: object) -> bool:
        raise AssertionError("nothing is run")

    __hash__ = type.__hash__


class Lazy(type):
    """Classes that make up what they are."""

    def __getattribute__(cls, name: str) -> Any:
        if name in ("__module__", "__mro__", "__dict__"):
            raise AssertionError(f"nothing is run, and {name!r} was asked for")
        return type.__getattribute__(cls, name)


class OfEqual(metaclass=Equal):
    pass


class OfLazy(metaclass=Lazy):
    pass


class Slotted:
    """Holds what it is given where no `__dict__` tells it."""

    __slots__ = ("held", "never_set")

    def __init__(self, held: object) -> None:
        self.held = held

    def __call__(self, message: str) -> str:
        return "no"


class Several(list[object]):
    """A collection of a class of its own."""

    def __iter__(self) -> Iterator[object]:
        raise AssertionError("nothing is run")


@pytest.mark.parametrize("odd", [OfEqual(), OfEqual, OfLazy(), OfLazy, ModuleType("m"), Several([3]), range(3)])
def test_no_code_of_what_an_agent_holds_is_run_to_look_at_it(odd: Any) -> None:
    assert not shows_client(Holder(odd))
    with client() as held:
        assert shows_client(Holder([held, odd])) and shows_client(Holder([odd, held]))


def test_what_slots_and_collections_of_own_classes_hold_is_seen() -> None:
    with client() as held:
        assert shows_client(Slotted(held)) and shows_client(Holder(Several([held])))
    assert not shows_client(Slotted(3))


def test_a_look_bears_what_threads_change_and_what_is_long() -> None:
    class Shifting(dict[int, int]):
        pass

    held = Shifting({number: number for number in range(10)})
    ended = threading.Event()

    def change() -> None:
        while not ended.is_set():
            held.update({len(held): 0})
            if len(held) > 1500:
                held.clear()

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(200):
            assert not shows_client(Holder(held))
    finally:
        ended.set()
        changing.join()
    assert not shows_client(Holder(list(range(10**6))))


async def test_what_holds_itself_is_looked_at_once() -> None:
    holder = Holder(None)
    holder.held["held"].append(holder)
    assert not shows_client(holder)
    holder.held["held"].extend(object() for _ in range(10_000))
    assert not shows_client(holder)


async def test_an_agent_that_took_the_route_once_may_answer_without_later(models: ModelServer) -> None:
    called: list[Callable[[str], str]] = []

    def agent(message: str) -> str:
        return called[0](message) if called else "out of the cache"

    wrapper = wrap(agent)
    with pytest.raises(WrapError, match=NOT_ASKED):
        await done(wrapper, model=models.route("red"))
    with OpenAI(base_url=models.url, api_key="own", max_retries=0) as held:
        called.append(functools.partial(ask, held))
        assert (await done(wrapper, model=models.route("red"))).text == "red seen=1"
    called.clear()
    assert (await done(wrapper, model=models.route("red"))).text == "out of the cache"


async def test_an_agent_may_say_that_it_asked_no_model(models: ModelServer) -> None:
    def agent(message: str) -> Done:
        return Done("by rule", usage=Usage() if message == "hello" else Usage(requests=1))

    wrapper = wrap(agent)
    assert (await done(wrapper, model=models.route("red"))).text == "by rule"
    with pytest.raises(WrapError, match=NOT_ASKED):
        await done(wrapper, "ho", model=models.route("red"))


async def test_an_agent_that_asks_past_the_route_in_a_thread_of_its_own_is_refused(models: ModelServer) -> None:
    with OpenAI(base_url=models.url, api_key="own", max_retries=0) as held:

        def agent(message: str) -> str:
            said: list[str] = []
            asking = threading.Thread(target=lambda: said.append(ask(held, message)))
            asking.start()
            asking.join()
            return said[0]

        wrapper = wrap(agent)
        assert shows_client(agent)
        with anyio.fail_after(20):
            with pytest.raises(WrapError, match=STRAYED):
                await done(wrapper, model=models.route("red"))
            assert (await done(wrapper)).text == "seen=1"
    assert {asked.word for asked in models.asked} == {""}


async def test_a_graph_may_answer_without_a_model_and_out_of_langchains_cache(models: ModelServer) -> None:
    from langchain_openai import ChatOpenAI

    refusing = wrap(graph(lambda state: {"messages": [AIMessage("I had rather not")]}))
    assert (await done(refusing, model=models.route("red"))).text == "I had rather not"
    model = ChatOpenAI(model="own-model", base_url=models.url, api_key="own-key", cache=InMemoryCache())
    wrapper = wrap(graph(lambda state: {"messages": [model.invoke([("user", "hi")])]}))
    first, second = [await events(wrapper, model=models.route("red")) for _ in range(2)]
    assert [sum(isinstance(event, ModelCall) for event in turn) for turn in (first, second)] == [1, 0]
    assert [turn[-1].text for turn in (first, second) if isinstance(turn[-1], Done)] == ["red seen=1"] * 2
    assert len(models.asked) == 1
    model.root_client.close()
