"""An agent of each kind, as a user would write it, and the words that make it show what it can."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from model_server import ModelServer
from openai import OpenAI

from agent_env_wrappers.conformance import Subject
from agent_env_wrappers.contract import BuildContext, Event, Interrupt, ModelRoute, ToolCall, ToolReturn
from agent_env_wrappers.factory import agent_factory
from agent_env_wrappers.openai_endpoint import OpenAIEndpoint

# ── callables ───────────────────────────────────────────────────────────────────────────────────────────────────


def sync_function(models: ModelServer) -> Subject:
    """A sync function with everything that one can take."""
    started = threading.Event()

    def agent(
        message: str, history: list[Any], peers: Mapping[str, Any], model: ModelRoute | None, answers: Mapping[str, Any]
    ) -> Any:
        """Answers with what it has seen."""
        seen = sum(entry["role"] == "user" for entry in history) + 1
        if "fail" in message:
            raise ValueError("secret")
        if "hang" in message:
            started.set()
            threading.Event().wait(30)
        if "ask caller" in message:
            return Interrupt("q1", "question", "Which colour?")
        if answers:
            return f"you said {answers['q1']} seen={seen}"
        if "ask peer" in message:
            return f"{peers['solver'](message)} seen={seen}"
        return f"{model.base_url if model else 'own'} seen={seen}"

    return Subject(
        make=lambda: agent,
        ask_peer="ask peer",
        ask_caller="ask caller",
        answer="red",
        hang="hang",
        hanging=lambda: asyncio.to_thread(started.wait, 10),
        fail="fail",
        route=models.route,
    )


def async_generator(models: ModelServer) -> Subject:
    """An async generator that streams, tells of a tool, calls peers and asks a model through a client of its own."""
    started, client = asyncio.Event(), models.client()

    async def agent(prompt: str, history: list[Any], peers: Mapping[str, Any]) -> AsyncIterator[str | Event]:
        if "fail" in prompt:
            raise ValueError("secret")
        if "hang" in prompt:
            started.set()
            await asyncio.Event().wait()
        if "tool" in prompt:
            yield ToolCall("1", "clock", {})
            yield ToolReturn("1", "noon")
        if "peer" in prompt:
            yield await peers["solver"](prompt)
        yield "I have "
        made = await client.chat.completions.create(
            model="own-model", messages=[*history, {"role": "user", "content": prompt}]
        )
        yield str(made.choices[0].message.content)

    return Subject(
        make=lambda: agent,
        use_tool="tool",
        ask_peer="peer",
        hang="hang",
        hanging=started.wait,
        fail="fail",
        route=models.route,
    )


def sync_generator(models: ModelServer) -> Subject:
    """A sync generator with no memory at all, which asks a model through a client of its own."""
    started = threading.Event()

    def agent(text: str) -> Iterator[str | Event]:
        if "fail" in text:
            raise ValueError("secret")
        if "tool" in text:
            yield ToolCall("1", "clock", {})
            yield ToolReturn("1", "noon")
        yield "you "
        if "hang" in text:
            started.set()
            threading.Event().wait(30)
        yield "said "
        with OpenAI(base_url=models.url, api_key="own-key") as client:
            made = client.chat.completions.create(model="own-model", messages=[{"role": "user", "content": text}])
        yield f"{text}, {made.choices[0].message.content}"

    def hanging() -> Any:
        return asyncio.to_thread(started.wait, 10)

    return Subject(
        make=lambda: agent,
        use_tool="tool",
        hang="hang",
        hanging=hanging,
        fail="fail",
        route=models.route,
    )


# ── frameworks ──────────────────────────────────────────────────────────────────────────────────────────────────


def of_model(models: ModelServer, make: Callable[[], object], **more: Any) -> Subject:
    """A subject whose model is the server."""
    words: dict[str, Any] = {
        "use_tool": "call clock",
        "ask_peer": "call ask_solver",
        "hang": "hang",
        "hanging": models.hanging.wait,
        "fail": "boom 400",
        "route": models.route,
    }
    return Subject(make=make, **{**words, **more})


def openai_endpoint(models: ModelServer) -> Subject:
    endpoint = OpenAIEndpoint(models.url, "own-model", api_key="own-key", system="You count.")
    return of_model(models, lambda: endpoint, use_tool=None)


def openai_agents(models: ModelServer) -> Subject:
    from agents import Agent, OpenAIChatCompletionsModel, function_tool

    @function_tool
    def clock(place: str) -> str:
        """Tells the time."""
        return f"noon in {place}"

    @function_tool(needs_approval=True)
    def launch(what: str) -> str:
        """Launches something."""
        return f"launched {what}"

    model = OpenAIChatCompletionsModel("own-model", models.client())
    agent = Agent(
        name="Counter", handoff_description="Counts.", instructions="Count.", tools=[clock, launch], model=model
    )
    return of_model(models, lambda: agent, ask_caller="call launch")


def pydantic_ai(models: ModelServer) -> Subject:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("own-model", provider=OpenAIProvider(openai_client=models.client()))
    agent = Agent(model, name="counter", instructions="Count.")

    @agent.tool_plain
    def clock(place: str) -> str:
        """Tells the time."""
        return f"noon in {place}"

    @agent.tool_plain(requires_approval=True)
    def launch(what: str) -> str:
        """Launches something."""
        return f"launched {what}"

    return of_model(models, lambda: agent, ask_caller="call launch")


def chat_model(models: ModelServer, route: ModelRoute | None = None) -> Any:
    """LangChain's model with a client of the test's own, since by itself it shares one between event loops."""
    from langchain_openai import ChatOpenAI

    client = models.client(route)
    name = route.model if route else "own-model"
    return ChatOpenAI(
        model=name, api_key="own-key", stream_usage=True, async_client=client.chat.completions, root_async_client=client
    )


def graph_tools() -> list[Any]:
    from langchain_core.tools import tool
    from langgraph.types import interrupt

    @tool
    def clock(place: str) -> str:
        """Tells the time."""
        return f"noon in {place}"

    @tool
    def launch(what: str) -> str:
        """Launches something."""
        return f"launched {interrupt({'question': f'Launch {what}?'})}"

    return [clock, launch]


def langgraph(models: ModelServer) -> Subject:
    """An agent without a checkpointer: its state is a value."""
    from langchain.agents import create_agent

    graph = create_agent(chat_model(models), graph_tools(), system_prompt="Count.", name="counter")
    return of_model(models, lambda: graph)


def langgraph_with_checkpointer(models: ModelServer) -> Subject:
    """An agent with a checkpointer: its state is a handle."""
    from langchain.agents import create_agent
    from langgraph.checkpoint.memory import InMemorySaver

    graph = create_agent(chat_model(models), graph_tools(), checkpointer=InMemorySaver(), name="counter")
    return of_model(models, lambda: graph, ask_caller="call launch", answer="the rocket")


def factory_of_graphs(models: ModelServer) -> Subject:
    """A factory of graphs: the way in which a graph gets peers."""
    from langchain.agents import create_agent
    from langgraph.checkpoint.memory import InMemorySaver

    from agent_env_wrappers.langgraph import as_tool

    saver = InMemorySaver()

    @agent_factory
    def build(build: BuildContext) -> Any:
        """Builds a graph that counts."""
        return create_agent(
            chat_model(models, build.model),
            [*graph_tools(), *map(as_tool, build.tools)],
            checkpointer=saver,
            name="counter",
        )

    return of_model(models, lambda: build, ask_caller="call launch", answer="the rocket")


SUBJECTS: tuple[Callable[[ModelServer], Subject], ...] = (
    sync_function,
    async_generator,
    sync_generator,
    openai_endpoint,
    openai_agents,
    pydantic_ai,
    langgraph,
    langgraph_with_checkpointer,
    factory_of_graphs,
)
