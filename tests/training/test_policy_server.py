"""The policy endpoint: OpenAI's dialect, batches, token ids, and what it refuses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio
import pytest
from openai import AsyncOpenAI, BadRequestError, UnprocessableEntityError

from agent_env.errors import AgentFailed, InvalidArguments, MessageTooLarge, UnknownTool
from agent_env.gateway import running
from agent_env.net import get_json, post_json, shared_http
from agent_env.training.place import policies_served
from agent_env.training.policy import Policy
from agent_env.training.policy_server import PolicyServer
from agent_env.training.sampling import Completion, Prompt
from agent_env.training.tiny import END, WordTokenizer, make_model

pytestmark = pytest.mark.anyio

BOAT = [{"role": "user", "content": "boat"}]


@pytest.fixture
async def url(policy: Policy) -> AsyncGenerator[str, None]:
    async with running(PolicyServer([policy])) as served:
        yield f"{served}/v1"


@pytest.fixture
async def client(url: str) -> AsyncGenerator[AsyncOpenAI, None]:
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as opened:
        yield opened


async def ask(url: str, **body: Any) -> Any:
    return await post_json(f"{url}/chat/completions", {"model": "A", "messages": BOAT, **body}, timeout=20)


async def test_the_stock_client_gets_a_completion_with_token_ids_and_logprobs(
    client: AsyncOpenAI, policy: Policy
) -> None:
    policy.version = 4
    answer = await client.chat.completions.create(model="A", messages=BOAT, logprobs=True, max_tokens=3)  # type: ignore[arg-type]
    (choice,) = answer.choices
    extra: Any = choice.model_extra
    assert choice.message.content == policy.tokenizer.decode(extra["token_ids"])
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert [entry.token for entry in choice.logprobs.content] == [
        policy.tokenizer.tokens[i] for i in extra["token_ids"]
    ]
    assert all(entry.logprob < 0 for entry in choice.logprobs.content)
    whole: Any = answer.model_extra
    assert whole["prompt_token_ids"] == policy.tokenizer.render(BOAT) and whole["policy_version"] == 4
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, len(extra["token_ids"]))
    assert choice.finish_reason == ("stop" if extra["token_ids"][-1] == END else "length")


async def test_a_streamed_completion_is_the_same_in_pieces(client: AsyncOpenAI, url: str, policy: Policy) -> None:
    whole = await ask(url, temperature=0, logprobs=True)
    pieces = [
        chunk
        async for chunk in await client.chat.completions.create(
            model="A",
            messages=BOAT,
            temperature=0,
            logprobs=True,
            stream=True,
            stream_options={"include_usage": True},  # type: ignore[arg-type]
        )
    ]
    choices = [chunk.choices[0] for chunk in pieces if chunk.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    ids = [token for choice in choices for token in (choice.model_extra or {}).get("token_ids", ())]
    assert text == whole["choices"][0]["message"]["content"] and ids == whole["choices"][0]["token_ids"]
    assert choices[-1].finish_reason == whole["choices"][0]["finish_reason"]
    assert (pieces[0].model_extra or {})["prompt_token_ids"] == whole["prompt_token_ids"]
    assert pieces[-1].usage is not None and pieces[-1].usage.total_tokens == whole["usage"]["total_tokens"]


async def test_logprobs_are_told_to_who_asks(url: str) -> None:
    assert (await ask(url))["choices"][0]["logprobs"] is None


async def test_requests_that_come_together_are_sampled_together(policy: Policy) -> None:
    sizes: list[int] = []
    sample = policy.sample

    def counting(prompts: Any) -> list[Completion]:
        sizes.append(len(prompts))
        return sample(prompts)

    policy.sample = counting  # type: ignore[method-assign]
    async with running(PolicyServer([policy], pause=0.05, wait=0.5, batch=16)) as served:
        answers = await asyncio.gather(*(ask(f"{served}/v1") for _ in range(40)))
    assert len(answers) == sum(sizes) == 40
    assert max(sizes) <= 16 and len(sizes) <= 8


async def test_a_request_is_not_kept_longer_than_the_bound(policy: Policy) -> None:
    server = PolicyServer([policy], pause=0.02, wait=0.1, batch=10_000)
    async with running(server) as served:
        with anyio.fail_after(20):
            first = asyncio.ensure_future(ask(f"{served}/v1"))
            others: list[asyncio.Future[Any]] = []
            while not first.done():
                others.append(asyncio.ensure_future(ask(f"{served}/v1")))
                await asyncio.wait({first}, timeout=0.005)
            await asyncio.gather(*others)


async def test_each_request_has_its_own_temperature_and_length(url: str) -> None:
    greedy = [(await ask(url, temperature=0, max_tokens=5))["choices"][0]["token_ids"] for _ in range(3)]
    assert greedy[0] == greedy[1] == greedy[2]
    answers = await asyncio.gather(
        *(ask(url, temperature=0, max_tokens=5) for _ in range(4)),
        *(ask(url, max_completion_tokens=1) for _ in range(4)),
    )
    assert [answer["choices"][0]["token_ids"] for answer in answers[:4]] == [greedy[0]] * 4
    assert all(len(answer["choices"][0]["token_ids"]) == 1 for answer in answers[4:])


async def test_a_policy_is_served_in_place_of_an_earlier_one_of_its_name(
    tokenizer: WordTokenizer, policy: Policy
) -> None:
    server = PolicyServer([policy])
    async with running(server) as served:
        newer = Policy("A", make_model(tokenizer, seed=9), tokenizer)
        newer.version = 77
        server.serve(newer)
        server.serve(Policy("B", make_model(tokenizer, seed=9), tokenizer))
        assert (await ask(f"{served}/v1"))["policy_version"] == 77
        models = await get_json(f"{served}/v1/models", timeout=10)
        assert [model["id"] for model in models["data"]] == ["A", "B"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": "B"}, "no policy 'B' is served here; there are: A"),
        ({"messages": "boat"}, "needs `messages`"),
        ({"messages": ["boat"]}, "needs `messages`"),
        ({"messages": [{"role": "user", "content": "ship"}]}, "the word 'ship' is not in the vocabulary"),
        ({"messages": [{"role": "user", "content": "boat " * 70}]}, "the chat has 72 tokens; the model 'A' sees 64"),
        ({"n": 2}, "one completion a request, not n=2"),
        ({"tools": [{}]}, "no 'tools'"),
        ({"temperature": 3}, "from 0 to 2, not 3"),
        ({"temperature": "hot"}, "from 0 to 2, not 'hot'"),
        ({"max_tokens": -1}, "above 0, not -1"),
        ({"max_tokens": 1.5}, "above 0, not 1.5"),
        ({"top_p": 0.9}, "takes no 'top_p', not 0.9"),
        ({"stop": ["boat"]}, "takes no 'stop'"),
        ({"frequency_penalty": 1}, "takes no 'frequency_penalty'"),
    ],
)
async def test_what_it_cannot_do_is_refused_with_the_value(url: str, body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArguments, match=message):
        await ask(url, **body)


async def test_what_changes_nothing_may_be_asked_for(url: str) -> None:
    neutral = {"top_p": 1, "top_k": -1, "stop": None, "presence_penalty": 0, "logit_bias": {}, "n": None, "seed": 7}
    assert (await ask(url, **neutral))["choices"]


async def test_a_completion_that_says_nothing_of_its_length_has_the_policys(url: str, policy: Policy) -> None:
    policy.max_tokens = 2
    answers = [await ask(url) for _ in range(20)]
    assert max(answer["usage"]["completion_tokens"] for answer in answers) == 2


async def test_a_character_of_several_tokens_is_streamed_whole(policy: Policy) -> None:
    """A tokenizer of bytes gives half of a character a sign of its own until the other half is there."""
    tokenizer: Any = policy.tokenizer

    class Bytes(type(tokenizer)):  # type: ignore[misc]
        def decode(self, ids: Any) -> str:
            return bytes({6: 0xC3, 7: 0xA9}.get(index, 0x61) for index in ids).decode(errors="replace")

    tokenizer.__class__ = Bytes
    policy.sample = lambda prompts: [Completion([8, 6, 7, 6], [-1.0] * 4, "length") for _ in prompts]  # type: ignore[method-assign]
    async with running(PolicyServer([policy])) as served:
        async with AsyncOpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0, timeout=20) as client:
            stream: Any = await client.chat.completions.create(model="A", messages=BOAT, stream=True)  # type: ignore[call-overload]
            texts = [chunk.choices[0].delta.content async for chunk in stream]
    assert texts == ["", "a", "", "é", "\N{REPLACEMENT CHARACTER}"]


async def test_the_stock_client_raises_a_refusal_as_its_own_error(client: AsyncOpenAI) -> None:
    with pytest.raises((BadRequestError, UnprocessableEntityError), match="no policy 'B'"):
        await client.chat.completions.create(model="B", messages=BOAT)  # type: ignore[arg-type]


async def test_other_paths_and_bodies_are_refused(url: str) -> None:
    with pytest.raises(UnknownTool, match="a policy server has no GET"):
        await get_json(f"{url}/nothing", timeout=10)
    for body in (b"{", b"[]"):
        async with shared_http().post(f"{url}/chat/completions", data=body) as response:
            assert response.status == 422
    with pytest.raises(MessageTooLarge):
        await ask(url, padding="x" * 2_000_000)


async def test_a_policy_that_breaks_fails_who_waits_and_not_the_server(url: str, policy: Policy) -> None:
    sample = policy.sample

    def broken(prompts: Any) -> list[Completion]:
        raise RuntimeError("out of memory at 0xdeadbeef")

    policy.sample = broken  # type: ignore[method-assign]
    with pytest.raises(AgentFailed, match=r"'A' could not be sampled: RuntimeError$"):
        await ask(url)
    policy.sample = sample  # type: ignore[method-assign]
    assert (await ask(url))["choices"]


async def test_a_caller_that_goes_away_is_not_sampled_for(policy: Policy) -> None:
    server = PolicyServer([policy], pause=0.05)
    queue = server._queues["A"]
    left = queue.complete(Prompt([3], 1.0, 1))
    left.cancel()
    queue._sample()
    stayed = queue.complete(Prompt([3], 1.0, 1))
    with anyio.fail_after(10):
        completion, version = await stayed
    assert len(completion.token_ids) == 1 and version == 0


async def test_at_the_end_nobody_is_kept_waiting_and_nothing_is_logged_as_a_failure_of_the_app(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    sample, begun, go_on = policy.sample, threading.Event(), threading.Event()

    def slowly(prompts: Sequence[Prompt]) -> list[Completion]:
        begun.set()
        assert go_on.wait(20)
        return sample(prompts)

    policy.threaded = True
    policy.sample = slowly  # type: ignore[method-assign]
    try:
        with anyio.fail_after(20):
            async with policies_served() as place:
                place.serve({"A": policy})
                sampled = asyncio.ensure_future(ask(place.endpoint))
                await asyncio.to_thread(begun.wait, 10)
                queue, came = place.server._queues["A"], asyncio.Event()
                complete = queue.complete

                def counted(prompt: Prompt) -> Any:
                    came.set()
                    return complete(prompt)

                queue.complete = counted  # type: ignore[method-assign]
                waits = asyncio.ensure_future(ask(place.endpoint))  # for the next batch
                await came.wait()
            for asked in (sampled, waits):
                with pytest.raises(AgentFailed, match="'A' is served no longer"):
                    await asked
            # Who comes when it has ended is told so as well.
            with pytest.raises(AgentFailed, match="served no longer"):
                complete(Prompt([3], 1.0, 1))
    finally:
        go_on.set()
    assert "ASGI" not in caplog.text and "CancelledError" not in caplog.text
