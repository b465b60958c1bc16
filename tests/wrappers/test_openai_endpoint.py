"""A chat-completions endpoint as an agent, against a server on a socket."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import anyio
import pytest
from driving import done, events, peer
from model_server import ModelServer

from agent_env_wrappers.contract import (
    AgentError,
    DataPart,
    FilePart,
    Limits,
    Message,
    ModelCall,
    TextDelta,
    TextPart,
    ToolCall,
    ToolReturn,
    Usage,
    WrapError,
)
from agent_env_wrappers.openai_endpoint import OpenAIEndpoint, OpenAIEndpointWrapper
from agent_env_wrappers.registry import wrap

pytestmark = pytest.mark.anyio


@pytest.fixture
async def wrapper(models: ModelServer) -> Any:
    endpoint = OpenAIEndpoint(
        models.url,
        "own-model",
        api_key="own-key",
        system="Count.",
        headers={"X-Own": "secret"},
        options={"temperature": 0.5},
        max_steps=3,
    )
    wrapper = wrap(endpoint)
    yield wrapper
    await wrapper.aclose()


async def solve(message: str) -> str:
    return f"solved {message}"


async def test_a_text_names_an_endpoint(models: ModelServer) -> None:
    wrapper = wrap(f"openai:{models.url}#my-model")
    assert (await done(wrapper)).text == "seen=1"
    assert models.asked[0].body["model"] == "my-model"
    assert "Authorization" not in models.asked[0].headers
    assert (await wrapper.describe()).name == "my-model"
    await wrapper.aclose()


@pytest.mark.parametrize("text", ["openai:http://there/v1", "openai:there#m", "openai:http://there/v1#", "openai:"])
def test_a_text_that_names_no_endpoint_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(WrapError, match="write 'openai:http://host:port/v1#model'"):
        wrap(text)


async def test_the_request_has_what_the_endpoint_was_made_with(wrapper: Any, models: ModelServer) -> None:
    await done(wrapper, Message((TextPart("look"), DataPart([1]))))
    (asked,) = models.asked
    assert asked.key == "own-key"
    assert asked.headers["X-Own"] == "secret"
    assert asked.body == {
        "temperature": 0.5,
        "model": "own-model",
        "messages": [{"role": "system", "content": "Count."}, {"role": "user", "content": "look\n[1]"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_a_route_gets_its_own_key_and_nothing_of_the_owners(wrapper: Any, models: ModelServer) -> None:
    route = dataclasses.replace(models.route("blue"), headers={"X-Route": "1"})
    await done(wrapper, model=route)
    (asked,) = models.asked
    assert (asked.word, asked.key, asked.body["model"]) == ("blue", "key-of-blue", "blue-model")
    assert asked.headers["X-Route"] == "1"
    assert "own-key" not in str(asked.headers)
    assert "secret" not in str(asked.headers)


async def test_a_key_is_not_shown() -> None:
    shown = repr(OpenAIEndpoint("http://there/v1", "m", api_key="s3cret", headers={"X": "s3cret"}))
    assert "s3cret" not in shown


async def test_a_reply_that_comes_whole_is_read_as_well(models: ModelServer) -> None:
    wrapper = wrap(OpenAIEndpoint(models.url, "m", stream=False))
    told = await events(wrapper, "call ask_solver", tools=[peer(solve)])
    assert [type(event) for event in told[:3]] == [ModelCall, ToolCall, ToolReturn]
    assert told[-1].text == "ask_solver said [solved hi] seen=1"
    assert not (await wrapper.describe()).caps.streaming
    assert "stream" not in models.asked[0].body
    await wrapper.aclose()


async def test_calls_of_one_reply_are_made_at_once_and_told_in_order(wrapper: Any) -> None:
    both = asyncio.Barrier(2)

    async def together(message: str) -> str:
        await both.wait()
        return message

    with anyio.fail_after(10):
        told = await events(wrapper, "twice ask_solver", tools=[peer(together)])
    calls = [event for event in told if isinstance(event, ToolCall | ToolReturn)]
    assert [type(call) for call in calls] == [ToolCall, ToolCall, ToolReturn, ToolReturn]
    assert [call.id for call in calls[:2]] == [call.id for call in calls[2:]]
    assert told[-1].usage == Usage(20, 14, 2)


async def test_a_failing_peer_is_told_to_the_model(wrapper: Any) -> None:
    async def fail(message: str) -> str:
        raise AgentError("out to lunch")

    told = await events(wrapper, "call ask_solver", tools=[peer(fail)])
    (returned,) = [event for event in told if isinstance(event, ToolReturn)]
    assert returned.is_error
    assert told[-1].text == "ask_solver said [solver failed: out to lunch] seen=1"


async def test_arguments_that_do_not_fit_are_told_to_the_model(wrapper: Any) -> None:
    tool = peer(solve)
    strange = dataclasses.replace(tool, parameters={"type": "object", "properties": {}, "required": ["number"]})
    told = await done(wrapper, "call ask_solver", tools=[strange])
    assert "'number' is unknown" in told.text


async def test_a_model_that_never_answers_is_stopped_at_the_limit(wrapper: Any) -> None:
    with pytest.raises(AgentError, match="asked its model 1 times in one turn") as stopped:
        await done(wrapper, "call ask_solver", tools=[peer(solve)], limits=Limits(steps=1))
    assert stopped.value.kind == "limit"


async def test_a_cut_reply_and_reasoning_are_told_as_such(wrapper: Any) -> None:
    assert (await done(wrapper, "cut")).stop == "max_tokens"
    told = await events(wrapper, "think")
    thought = [event.text for event in told if isinstance(event, TextDelta) and event.channel == "thought"]
    assert thought == ["let me ", "see"]
    assert told[-1].text == "seen=1"


@pytest.mark.parametrize(
    ("said", "stream", "words", "retryable"),
    [
        ("boom 400", True, "HTTP 400", False),
        ("boom 429", False, "HTTP 429", True),
        ("boom 503", True, "HTTP 503", True),
        ("break", True, "cannot be reached", True),
        ("garbage", True, "no chat completion", False),
        ("garbage", False, "no chat completion", False),
    ],
)
async def test_a_failing_model_is_an_error_of_the_model(
    models: ModelServer, said: str, stream: bool, words: str, retryable: bool
) -> None:
    wrapper = wrap(OpenAIEndpoint(models.url, "m", stream=stream, max_retries=0))
    with pytest.raises(AgentError, match=words) as failed:
        await done(wrapper, said)
    assert (failed.value.kind, failed.value.retryable) == ("model", retryable)
    assert "secret" not in str(failed.value)
    assert models.url not in str(failed.value)
    await wrapper.aclose()


async def test_a_model_that_is_not_there_is_an_error_of_the_model() -> None:
    wrapper = wrap(OpenAIEndpoint("http://127.0.0.1:9/v1", "m", max_retries=0))
    with pytest.raises(AgentError, match="cannot be reached") as failed:
        await done(wrapper)
    assert failed.value.retryable
    await wrapper.aclose()


async def test_a_stream_that_ends_early_or_with_an_error_is_no_reply() -> None:
    chunk = {"choices": [{"delta": {"content": "half"}}]}
    for ending, words in ((b"", "broke off in the middle"), (b'data: {"error": {"message": "x"}}\n\n', "an error")):

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ending: bytes = ending) -> None:
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
            writer.write(head + b": comment\n\ndata: " + json.dumps(chunk).encode() + b"\n\n" + ending)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            wrapper = wrap(f"openai:http://127.0.0.1:{port}/v1#m")
            with pytest.raises(AgentError, match=words):
                await done(wrapper)
            await wrapper.aclose()


async def test_files_are_refused(wrapper: Any) -> None:
    with pytest.raises(WrapError, match="the message has a file"):
        await done(wrapper, Message((FilePart("image/png", b""),)))


def test_one_wrapper_serves_event_loops_one_after_the_other() -> None:
    async def once(wrapper: Any) -> str:
        async with ModelServer() as models:
            object.__setattr__(endpoint, "url", models.url)
            text = (await done(wrapper)).text
            await wrapper.aclose()
            return text

    endpoint = OpenAIEndpoint("", "m")
    wrapper = OpenAIEndpointWrapper(endpoint)
    assert [asyncio.run(once(wrapper)) for _ in range(2)] == ["seen=1", "seen=1"]
