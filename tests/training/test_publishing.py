"""Publishing: one version answers at a time, and what fails leaves the one before."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from openai import AsyncOpenAI

from agent_env.errors import (
    ConfigurationError,
    DeadlineExceeded,
    InvalidArguments,
    PublishFailed,
    Refusal,
    from_wire,
)
from agent_env.gateway import Gateway, PolicyState, RunHandle, SeatPolicy, running
from agent_env.net import shared_http
from agent_env.training import InMemory, Policy, PolicyServer, PublishedPolicy
from agent_env.training.sampling import Prompt
from agent_env.training.tiny import WordTokenizer, make_model

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

ADMIN = "admin"
BOAT: Any = [{"role": "user", "content": "boat"}]
WORDS = 6


class Crowd:
    """Holds calls back until so many are under way at once."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.gather()

    def gather(self) -> None:
        """Holds back those that come from now on."""
        self.waiting = 0
        self.there, self.go = asyncio.Event(), asyncio.Event()

    async def join(self) -> None:
        go = self.go
        self.waiting += 1
        if self.waiting >= self.wanted:
            self.there.set()
        await go.wait()


class Switched:
    """A server whose weights are a number, which it says with every word; a call that began with one goes on with what
    is there, as one of whole new weights would. It tells no version itself."""

    def __init__(self, crowd: Crowd | None = None) -> None:
        self.weights = 0
        self.crowd = crowd

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body")
        streamed = json.loads(body).get("stream")
        kind = b"text/event-stream" if streamed else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        words: list[str] = []
        if self.crowd is not None:
            await self.crowd.join()
        for _ in range(WORDS):
            await anyio.sleep(0.002)
            words.append(str(self.weights))
            if streamed:
                choice = {"index": 0, "delta": {"content": words[-1] + " "}, "finish_reason": None}
                event = b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode()
                await send({"type": "http.response.body", "body": event + b"\n\n", "more_body": True})
        message = {"role": "assistant", "content": " ".join(words)}
        whole = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n" if streamed else whole})


class Switch:
    """Publishes numbers to `Switched` servers."""

    seconds = 10.0
    version = None

    def __init__(self, *servers: Switched) -> None:
        self.servers = servers
        self.seen: list[PolicyState] = []

    @asynccontextmanager
    async def loading(self, weights: int, state: PolicyState, version: int) -> AsyncGenerator[str, None]:
        self.seen.append(state)
        before = [server.weights for server in self.servers]
        try:
            for server in self.servers:
                # Half of the servers have new weights while the others do not.
                server.weights = weights
                await anyio.sleep(0.002)
            if weights < 0:
                raise PublishFailed("the second server broke", failures=[])
            yield state.model
        except BaseException:
            for server, was in zip(self.servers, before, strict=True):
                server.weights = was
            raise


@asynccontextmanager
async def opened(tmp_path: Path, *apps: Any, **options: Any) -> AsyncGenerator[RunHandle, None]:
    """A run with a seat `a`, played by the apps."""
    gateway = Gateway(tmp_path, admin_token=ADMIN)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(running(gateway))
        urls = [await stack.enter_async_context(running(app)) for app in apps]
        seats = {"a": SeatPolicy("A", tuple(f"{one}/v1" for one in urls), **options)}
        yield await stack.enter_async_context(await RunHandle.open(url, ADMIN, seats))
    gateway.close()


async def call(run: RunHandle, episode: str, *, stream: bool) -> int:
    """Makes a call, again as often as it is refused; gives how often it was."""
    seen = run.episode(episode, "a")
    assert seen.route is not None
    headers = {"Authorization": f"Bearer {seen.route.token}"}
    body = {"messages": BOAT, "stream": stream, "max_tokens": 2}
    for refused in itertools.count():
        async with shared_http().post(seen.model_url("c1") + "/chat/completions", json=body, headers=headers) as answer:
            text = await answer.text()
            if answer.status == 200:
                return refused
            assert answer.status == 429 and answer.headers["Retry-After"] == "1", text
        await anyio.sleep(0.005)
    raise AssertionError


@pytest.mark.parametrize("hold", [0.0, 30.0])
async def test_no_call_mixes_two_versions_and_each_record_tells_the_one_that_answered(
    tmp_path: Path, hold: float
) -> None:
    crowd = Crowd(64)
    servers = Switched(crowd), Switched(crowd)
    async with opened(tmp_path, *servers) as run:
        policy = PublishedPolicy(run.policy("A"), Switch(*servers), retry_after=0.5, hold=hold)
        ids = (f"e{number}" for number in itertools.count())
        played: list[str] = []
        refused = 0
        busy = True

        async def work(number: int) -> None:
            nonlocal refused
            while busy:
                played.append(next(ids))
                refused += await call(run, played[-1], stream=bool(number % 2))

        async with anyio.create_task_group() as group:
            for number in range(64):
                group.start_soon(work, number)
            for wanted in range(1, 7):
                await crowd.there.wait()
                publishing = asyncio.ensure_future(policy.publish(wanted))
                # All of them are under way, and go on, when it begins.
                crowd.go.set()
                crowd.gather()
                assert await publishing == wanted
            await crowd.there.wait()
            busy = False
            crowd.go.set()
        found = await run.collect(played)
    told: set[int] = set()
    for (record,) in found.values():
        words = record["response"]["choices"][0]["message"]["content"].split()
        version = record.get("policy_version") or 0
        assert words == [str(version)] * WORDS, record
        told.add(version)
    assert told == set(range(7)) and (refused == 0) == (hold > 0)
    assert {record["stream"] for (record,) in found.values()} == {True, False}


async def test_a_publication_that_fails_leaves_the_version_before_and_the_policy_goes_on(tmp_path: Path) -> None:
    server = Switched()
    async with opened(tmp_path, server) as run:
        policy = PublishedPolicy(run.policy("A"), Switch(server))
        assert await policy.publish(7) == 1
        with pytest.raises(PublishFailed, match="the second server broke"):
            await policy.publish(-1)
        state = await policy.policy.state()
        assert (state.version, state.paused, server.weights) == (1, False, 7)
        with pytest.raises(InvalidArguments, match="must be above 1, not 1"):
            await policy.publish(8, version=1)
        assert await policy.publish(8, version=20) == 20
        await policy.policy.change(version="by hand")
        with pytest.raises(ConfigurationError, match="is 'by hand'; those that are published are whole numbers"):
            await policy.publish(9)
        assert not (await policy.policy.state()).paused and server.weights == 8


async def test_versions_go_on_where_the_gateway_has_forgotten_them(tmp_path: Path) -> None:
    server = Switched()
    async with opened(tmp_path, server) as run:
        policy = PublishedPolicy(run.policy("A"), Switch(server))
        assert [await policy.publish(4), await policy.publish(5)] == [1, 2]
        await policy.policy.change(version=None)
        assert await policy.publish(6) == 3


async def test_calls_that_do_not_end_in_time_stop_the_publication_and_not_the_policy(tmp_path: Path) -> None:
    crowd = Crowd(1)
    server = Switched(crowd)
    async with opened(tmp_path, server) as run, anyio.create_task_group() as group:
        policy = PublishedPolicy(run.policy("A"), Switch(server), drain_seconds=0.001)
        group.start_soon(lambda: call(run, "e1", stream=True))
        await crowd.there.wait()
        with pytest.raises(DeadlineExceeded, match="1 calls of the policy 'A'"):
            await policy.publish(1)
        assert server.weights == 0 and not (await policy.policy.state()).paused
        crowd.go.set()


async def test_a_publication_that_is_given_up_leaves_nothing_half_done(tmp_path: Path) -> None:
    server = Switched()
    async with opened(tmp_path, server) as run:
        policy = PublishedPolicy(run.policy("A"), Switch(server))
        with anyio.CancelScope() as scope:
            loading = policy.publisher.loading

            def interrupted(weights: int, state: PolicyState, version: int) -> Any:
                scope.cancel()
                return loading(weights, state, version)

            policy.publisher.loading = interrupted  # type: ignore[method-assign]
            await policy.publish(5)
        assert scope.cancelled_caught
        state = await policy.policy.state()
        assert (state.version, state.paused, server.weights) == (None, False, 0)


async def test_a_policy_in_memory_may_have_further_addresses(tmp_path: Path, tokenizer: WordTokenizer) -> None:
    served = Policy("A", make_model(tokenizer, seed=1), tokenizer)
    server = PolicyServer([served])
    async with opened(tmp_path, server) as run, running(server) as second:
        policy = PublishedPolicy(run.policy("A"), InMemory(served))
        await policy.publish(served.model.state_dict())
        state = await policy.serve_from([*(await policy.policy.state()).endpoints, f"{second}/v1"])
        assert len(state.endpoints) == 2 and state.version == 1
        for number in range(8):
            await call(run, f"e{number}", stream=False)


async def test_of_two_who_publish_at_once_from_elsewhere_one_is_refused(tmp_path: Path) -> None:
    server = Switched()
    async with opened(tmp_path, server) as run:
        one, two = (PublishedPolicy(run.policy("A"), Switch(server)) for _ in range(2))
        outcomes = await asyncio.gather(one.publish(1), two.publish(2), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
        made = [outcome for outcome in outcomes if isinstance(outcome, int)]
        # One after the other is as good.
        assert (len(made), len(refused)) in ((1, 1), (2, 0)) and sorted(made) == [*range(1, len(made) + 1)]
        state = await run.policy("A").state()
        assert (state.version, state.paused) == (len(made), False)
        assert await asyncio.gather(one.publish(3), one.publish(4)) == [len(made) + 1, len(made) + 2]


def weights_of(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


async def test_weights_are_copied_into_a_policy_that_is_served_in_memory(
    tmp_path: Path, tokenizer: WordTokenizer
) -> None:
    served = Policy("A", make_model(tokenizer, seed=1), tokenizer, trainable=False)
    learner = Policy("A", make_model(tokenizer, seed=2), tokenizer)
    learner.version = 3
    async with opened(tmp_path, PolicyServer([served])) as run:
        policy = PublishedPolicy(run.policy("A"), InMemory(served))
        await call(run, "e0", stream=False)
        assert await policy.publish(learner.model.state_dict(), version=learner.version) == 3
        assert same(weights_of(served), weights_of(learner))
        with torch.no_grad():
            for tensor in learner.model.parameters():
                tensor.add_(1.0)
        assert not same(weights_of(served), weights_of(learner))
        await call(run, "e1", stream=True)
        assert await policy.publish(learner.model.state_dict()) == 4
        found = await run.collect(["e0", "e1"])
        assert [record["policy_version"] for (record,) in found.values()] == [0, 3]
        seen = run.episode("e2", "a")
        assert seen.route is not None
        async with AsyncOpenAI(base_url=seen.model_url("c1"), api_key=seen.route.token, timeout=20) as client:
            answer: Any = await client.chat.completions.create(model="x", messages=BOAT)
        assert answer.policy_version == 4


@pytest.mark.parametrize("threaded", [False, True])
async def test_weights_that_are_published_while_calls_go_on_are_those_that_the_record_tells(
    tmp_path: Path, tokenizer: WordTokenizer, threaded: bool
) -> None:
    versions = [Policy("A", make_model(tokenizer, seed=seed), tokenizer) for seed in range(4)]
    served = Policy("A", make_model(tokenizer, seed=0), tokenizer, trainable=False, threaded=threaded)
    prompt = Prompt(tokenizer.render(BOAT), 0.0, 2)
    expected = [version.sample([prompt])[0] for version in versions]
    assert len({tuple(completion.logprobs) for completion in expected}) == len(versions)
    async with opened(tmp_path, PolicyServer([served]), settings={"temperature": 0.0}) as run:
        policy = PublishedPolicy(run.policy("A"), InMemory(served))
        played: list[str] = []
        busy = True

        async def work(number: int) -> None:
            while busy:
                played.append(f"e{len(played)}")
                await call(run, played[-1], stream=bool(number % 2))

        async with anyio.create_task_group() as group:
            for number in range(64):
                group.start_soon(work, number)
            for number, version in enumerate(versions[1:], start=1):
                assert await policy.publish(version.model.state_dict(), version=number) == number
            busy = False
        await call(run, "last", stream=True)
        found = await run.collect([*played, "last"])
    for (record,) in found.values():
        completion = expected[record["policy_version"]]
        assert record["token_ids"] == completion.token_ids
        assert record["logprobs"] == pytest.approx(completion.logprobs, abs=1e-4)
    assert found["last"][0]["policy_version"] == 3


async def test_weights_that_do_not_fit_leave_those_before_untouched(tmp_path: Path, tokenizer: WordTokenizer) -> None:
    served = Policy("A", make_model(tokenizer, seed=1), tokenizer)
    served.version = 6
    before = weights_of(served)
    async with opened(tmp_path, PolicyServer([served])) as run:
        policy = PublishedPolicy(run.policy("A"), InMemory(served))
        half = {name: tensor + 1 for name, tensor in before.items()}
        half[list(half)[-1]] = torch.zeros(3, 1, 4)
        for weights in (half, {}, {"wrong": torch.zeros(1)}):
            with pytest.raises(PublishFailed, match="the policy 'A' stays at version None") as failed:
                await policy.publish(weights)
            (failure,) = failed.value.data["failures"]
            assert failure["said"].startswith("RuntimeError") and failure["endpoint"].endswith("/v1")
            assert isinstance(from_wire(failed.value.to_wire()), PublishFailed)
            assert same(weights_of(served), before) and served.version == 6
        assert await policy.publish({name: tensor + 1 for name, tensor in before.items()}) == 7
        assert not (await run.policy("A").state()).paused
