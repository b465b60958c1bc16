"""Policies at the gateway: paused, drained, changed, shared by name, and told in records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from agent_env.errors import (
    DeadlineExceeded,
    InvalidArguments,
    ProtocolError,
    Refusal,
    Unauthenticated,
    UnknownTool,
)
from agent_env.gateway import PolicyHandle, RunHandle, SeatPolicy
from agent_env.net import post_json, request_json, shared_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

ADMIN = "admin-token"
Upstream = Any
"""The model server of the fixture `upstream`."""
Chat = Callable[..., Awaitable[Any]]

MESSAGES: Any = [{"role": "user", "content": "boat"}]


async def ask(run: RunHandle, path: str, body: Any, episode: str = "e1") -> tuple[int, dict[str, str], Any]:
    """Asks the model of the seat `a` in any dialect, with the headers that come back."""
    seen = run.episode(episode, "a")
    assert seen.route is not None
    headers = {"Authorization": f"Bearer {seen.route.token}"}
    async with shared_http().post(f"{seen.model_url('c1')}/{path}", json=body, headers=headers) as response:
        lowered = {key.lower(): value for key, value in response.headers.items()}
        return response.status, lowered, json.loads(await response.read())


async def records(run: RunHandle, episode: str = "e1") -> list[dict[str, Any]]:
    return (await run.collect([episode]))[episode]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("chat/completions", lambda body: (body["error"]["type"], body["error"]["code"])),
        ("completions", lambda body: (body["error"]["type"], body["error"]["code"])),
        ("responses", lambda body: (body["error"]["type"], body["error"]["code"])),
    ],
)
async def test_a_paused_policy_refuses_calls_in_the_dialects_own_words_and_nothing_is_written(
    run: RunHandle, upstream: Upstream, path: str, told: Callable[[Any], Any]
) -> None:
    policy = run.policy("A")
    await policy.pause(retry_after=2.5)
    status, headers, body = await ask(run, path, {"model": "x", "messages": MESSAGES, "input": "boat", "prompt": "b"})
    assert status == 429 and headers["retry-after"] == "3"
    assert told(body) == ("at_capacity", "at_capacity") and "'A' is paused" in body["error"]["message"]
    assert upstream.asked == [] and await records(run) == []
    assert await run.policy("B").state() != await policy.state()
    assert (await ask(run, path, {"messages": MESSAGES}))[0] == 429
    await policy.resume()
    assert (await ask(run, "chat/completions", {"messages": MESSAGES}))[0] == 200


async def test_a_paused_policy_refuses_messages_as_anthropic_does(run: RunHandle, upstream: Upstream) -> None:
    await run.policy("A").pause()
    status, headers, body = await ask(run, "messages", {"model": "x", "max_tokens": 5, "messages": MESSAGES})
    assert (status, headers["retry-after"]) == (429, "1")
    assert body["type"] == "error" and body["error"]["type"] == "rate_limit_error"
    assert upstream.asked == []


class Refusals:
    """Counts the refusals that an SDK's client was given, and tells of the first."""

    def __init__(self) -> None:
        self.seen = asyncio.Event()
        self.statuses: list[int] = []

    async def __call__(self, response: Any) -> None:
        self.statuses.append(response.status_code)
        if response.status_code == 429:
            self.seen.set()


async def test_openais_client_comes_back_by_itself_until_the_policy_goes_on(run: RunHandle, upstream: Upstream) -> None:
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    policy, refusals, seen = run.policy("A"), Refusals(), run.episode("e1", "a")
    assert seen.route is not None
    await policy.pause(retry_after=1)
    http = DefaultAsyncHttpxClient(event_hooks={"response": [refusals]})
    async with AsyncOpenAI(base_url=seen.model_url("c1"), api_key=seen.route.token, http_client=http) as client:
        asking = asyncio.ensure_future(client.chat.completions.create(model="x", messages=MESSAGES))
        await refusals.seen.wait()
        await policy.resume()
        assert (await asking).choices[0].message.content == "zip zap"
    assert refusals.statuses == [429, 200] and len(upstream.asked) == 1
    (record,) = await records(run)
    assert record["status"] == "ok" and "retry_of" not in record


async def test_anthropics_client_comes_back_by_itself_too(run: RunHandle, upstream: Upstream) -> None:
    from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

    policy, refusals, seen = run.policy("A"), Refusals(), run.episode("e1", "a")
    assert seen.route is not None
    await policy.pause(retry_after=1)
    url = seen.model_url("c1").removesuffix("/v1")
    http = DefaultAsyncHttpxClient(event_hooks={"response": [refusals]})
    async with AsyncAnthropic(base_url=url, api_key=seen.route.token, http_client=http) as client:
        asking = asyncio.ensure_future(client.messages.create(model="x", max_tokens=9, messages=MESSAGES))
        await refusals.seen.wait()
        await policy.resume()
        assert (await asking).content
    assert refusals.statuses == [429, 200] and len(upstream.asked) == 1


async def tried(run: RunHandle, attempt: int) -> int:
    seen = run.episode("e1", "a")
    assert seen.route is not None
    headers = {"Authorization": f"Bearer {seen.route.token}", "X-Stainless-Retry-Count": str(attempt)}
    url = seen.model_url("c1") + "/chat/completions"
    async with shared_http().post(url, json={"messages": MESSAGES}, headers=headers) as response:
        await response.read()
        return response.status


async def test_a_retry_names_the_call_that_it_repeats_also_when_a_try_between_was_refused(
    run: RunHandle, upstream: Upstream
) -> None:
    statuses = [await tried(run, 0)]
    await run.policy("A").pause()
    statuses += [await tried(run, 1), await tried(run, 2)]
    await run.policy("A").resume()
    statuses.append(await tried(run, 3))
    first, second = await records(run)
    assert statuses == [200, 429, 429, 200]
    assert (second["retry_of"], second["attempt"]) == (first["call_id"], 3)


async def test_the_retry_of_a_refused_call_is_none_of_an_equal_call_that_was_answered(
    run: RunHandle, upstream: Upstream
) -> None:
    statuses = [await tried(run, 0)]
    await run.policy("A").pause()
    statuses.append(await tried(run, 0))
    await run.policy("A").resume()
    statuses.append(await tried(run, 1))
    assert statuses == [200, 429, 200]
    assert ["retry_of" in record for record in await records(run)] == [False, False]


async def test_draining_waits_for_every_call_under_way_streams_included(
    run: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    policy = run.policy("A")
    upstream.hold = asyncio.Event()
    calls = [asyncio.ensure_future(chat(run.episode("e1", "a")))]
    await upstream.arrived.wait()
    upstream.arrived.clear()
    upstream.pieces = [b'data: {"choices": [{"index": 0, "delta": {"content": "z"}}]}\n\n']
    calls.append(asyncio.ensure_future(chat(run.episode("e2", "a"), {"messages": MESSAGES, "stream": True})))
    await upstream.arrived.wait()
    await policy.pause()
    state = await policy.state()
    assert (state.in_flight, state.paused, state.retry_after) == (2, True, 1.0)
    with pytest.raises(DeadlineExceeded, match=r"2 calls of the policy 'A' are still under way after 0\.05 s") as late:
        await policy.drain(0.05)
    assert late.value.data["in_flight"] == 2
    draining = asyncio.ensure_future(policy.drain())
    upstream.hold.set()
    assert (await draining).in_flight == 0
    await asyncio.gather(*calls)
    assert [record["status"] for record in [*await records(run), *await records(run, "e2")]] == [
        "ok",
        "transport_error",
    ]


async def test_a_call_that_is_refused_given_up_or_malformed_is_under_way_no_more(
    run: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    policy, seen = run.policy("A"), run.episode("e1", "a")
    assert (await chat(seen, b"{")).status == 400
    upstream.hold = asyncio.Event()
    leaving = asyncio.ensure_future(chat(seen))
    await upstream.arrived.wait()
    assert (await policy.state()).in_flight == 1
    leaving.cancel()
    await upstream.gone.wait()
    assert (await policy.drain(10)).in_flight == 0


async def test_a_changed_policy_answers_under_its_new_model_and_records_tell_the_version(
    run: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    upstream.answer = {key: value for key, value in upstream.answer.items() if key != "policy_version"}
    policy, seen = run.policy("A"), run.episode("e1", "a")
    await chat(seen)
    state = await policy.change(model="A-v1", version=1)
    assert (state.policy, state.model, state.version, state.endpoints) == ("A", "A-v1", 1, (upstream.url,))
    await chat(seen)
    await policy.change(version=2, replaces=1)
    await chat(seen)
    assert [asked["model"] for asked in upstream.asked] == ["A", "A-v1", "A-v1"]
    found = await records(run)
    assert [record.get("policy_version") for record in found] == [None, 1, 2]
    assert {record["policy"] for record in found} == {"A"}
    assert [record["model"] for record in found] == ["A", "A-v1", "A-v1"]
    assert seen.route is not None
    headers = {"Authorization": f"Bearer {seen.route.token}"}
    models = await request_json("GET", seen.model_url("c1") + "/models", headers=headers, timeout=10)
    assert [model["id"] for model in models["data"]] == ["A-v1"]


async def test_a_version_that_the_server_tells_is_recorded_and_not_the_gateways(
    run: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    await run.policy("A").change(version=99)
    await chat(run.episode("e1", "a"))
    assert [record["policy_version"] for record in await records(run)] == [upstream.answer["policy_version"]]


async def test_a_seat_may_tell_the_version_that_it_is_opened_with(gateway: str, upstream: Upstream, chat: Chat) -> None:
    upstream.answer = {key: value for key, value in upstream.answer.items() if key != "policy_version"}
    seats = {"a": SeatPolicy("A", (upstream.url,), version="2026-05")}
    async with await RunHandle.open(gateway, ADMIN, seats) as run:
        await chat(run.episode("e1", "a"))
        assert [record["policy_version"] for record in await records(run)] == ["2026-05"]


async def test_what_would_mix_two_versions_is_refused_and_more_endpoints_are_not(
    run: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    policy = run.policy("A")
    upstream.hold = asyncio.Event()
    asking = asyncio.ensure_future(chat(run.episode("e1", "a")))
    await upstream.arrived.wait()
    for wanted in ({"version": 1}, {"model": "A-v1"}):
        with pytest.raises(Refusal, match=r"1 calls of the policy 'A' are under way, .* pause and drain it first"):
            await policy.change(**wanted)  # type: ignore[arg-type]
    state = await policy.change(endpoints=[upstream.url, "http://127.0.0.1:9/v1", upstream.url])
    assert state.endpoints == (upstream.url, "http://127.0.0.1:9/v1") and state.version is None
    upstream.hold.set()
    await asking
    with pytest.raises(Refusal, match="at version None and not at 7: somebody else published") as refused:
        await policy.change(version=8, replaces=7)
    assert refused.value.code == "refused" and (await policy.state()).version is None


async def test_each_pause_is_ended_by_who_made_it_and_all_end_together(run: RunHandle) -> None:
    policy = run.policy("A")
    mine, theirs = await policy.pause(retry_after=1), await policy.pause(retry_after=7, pause="by hand")
    assert theirs == "by hand" and (await policy.state()).retry_after == 7
    await policy.resume(mine)
    await policy.resume(mine)
    assert (await policy.state()).paused
    await policy.resume(theirs)
    assert not (await policy.state()).paused
    await policy.pause()
    await policy.pause()
    assert not (await policy.resume()).paused


async def test_a_pause_ends_by_itself_when_who_made_it_never_comes_back(run: RunHandle, chat: Chat) -> None:
    policy = run.policy("A")
    await policy.pause(seconds=0.2)
    while (status := (await chat(run.episode("e1", "a"))).status) == 429:
        await anyio.lowlevel.checkpoint()
    assert status == 200 and not (await policy.state()).paused


async def test_a_call_may_be_held_back_and_goes_on_with_the_policy_or_is_refused_after_all(
    run: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    policy = run.policy("A")
    pause = await policy.pause(hold=30)
    asking = asyncio.ensure_future(chat(run.episode("e1", "a")))
    # Another policy's call that comes later is answered, so this one has come.
    assert (await chat(run.episode("e1", "b"))).status == 200
    assert (await policy.drain()).in_flight == 0 and not asking.done()
    await policy.change(model="A-v1", version=1)
    other = await policy.pause(hold=30)
    await policy.resume(pause)
    assert (await chat(run.episode("e1", "b"))).status == 200 and not asking.done()
    await policy.resume(other)
    assert (await asking).status == 200 and upstream.asked[-1]["model"] == "A-v1"
    await policy.pause(hold=0.05, retry_after=4)
    answer = await chat(run.episode("e1", "a"))
    assert (answer.status, answer.headers["retry-after"]) == (429, "4")
    await policy.resume()
    await policy.pause(hold=30, seconds=0.05)
    assert (await chat(run.episode("e1", "a"))).status == 200


async def test_a_call_that_is_held_leaves_with_its_caller(run: RunHandle, upstream: Upstream, chat: Chat) -> None:
    policy = run.policy("A")
    pause = await policy.pause(hold=60)
    leaving, staying = (asyncio.ensure_future(chat(run.episode(episode, "a"))) for episode in ("e1", "e2"))
    await until_held(policy, 2)
    leaving.cancel()
    await until_held(policy, 1)
    await policy.resume(pause)
    assert (await staying).status == 200 and len(upstream.asked) == 1
    assert (await policy.drain(10)).held == 0


async def until_held(policy: PolicyHandle, count: int) -> None:
    with anyio.fail_after(10):
        while (await policy.state()).held != count:
            await anyio.lowlevel.checkpoint()


async def test_a_quiet_policy_goes_on_however_the_block_ends(run: RunHandle, upstream: Upstream, chat: Chat) -> None:
    policy = run.policy("A")
    async with policy.quiet() as state:
        assert state.paused and (await chat(run.episode("e1", "a"))).status == 429
    assert not (await policy.state()).paused
    with pytest.raises(ZeroDivisionError):
        async with policy.quiet():
            raise ZeroDivisionError
    assert not (await policy.state()).paused
    with anyio.CancelScope() as scope:
        async with policy.quiet():
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught and not (await policy.state()).paused
    upstream.hold = asyncio.Event()
    asking = asyncio.ensure_future(chat(run.episode("e1", "a")))
    await upstream.arrived.wait()
    with pytest.raises(DeadlineExceeded):
        async with policy.quiet(drain_seconds=0.05):
            pytest.fail("a call was under way")
    assert not (await policy.state()).paused
    upstream.hold.set()
    assert (await asking).status == 200


async def test_runs_that_name_a_policy_share_it_as_it_is_by_then(gateway: str, upstream: Upstream, chat: Chat) -> None:
    seats = {"a": SeatPolicy("base", (upstream.url,), policy="solver")}
    shared = PolicyHandle(gateway, ADMIN, "solver")
    with pytest.raises(UnknownTool, match="no open run names the policy 'solver'; those that runs name are none"):
        await shared.state()
    async with await RunHandle.open(gateway, ADMIN, seats) as one:
        await shared.change(model="base-v1", version=1)
        async with await RunHandle.open(gateway, ADMIN, seats) as two:
            assert await two.policy("solver").state() == await one.policy("solver").state()
            await two.policy("solver").pause()
            assert (await chat(one.episode("e1", "a"))).status == 429
            await shared.resume()
            assert (await chat(two.episode("e1", "a"))).status == 200
            assert upstream.asked[-1]["model"] == "base-v1"
            # Named as it is now, it is the same one too; as something else, it is refused.
            present = {"b": SeatPolicy("base-v1", (upstream.url,), policy="solver")}
            async with await RunHandle.open(gateway, ADMIN, present) as three:
                assert (await three.policy("solver").state()).version == 1
            other = {"a": SeatPolicy("another", (upstream.url,), policy="solver")}
            with pytest.raises(InvalidArguments, match=r"the policy 'solver' is 'base-v1' at .* give this one another"):
                await RunHandle.open(gateway, ADMIN, other)
        assert (await shared.state()).version == 1
        # The only run that plays with it may mean something else by it.
        again = await RunHandle.open(gateway, ADMIN, other, run=one.run, secret=one.secret)
        assert (await again.policy("solver").state()).model == "another"
    with pytest.raises(UnknownTool):
        await shared.state()


async def test_policies_that_nobody_named_are_each_runs_own(gateway: str, run: RunHandle, upstream: Upstream) -> None:
    async with await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy("A", ("http://127.0.0.1:9/v1",))}) as other:
        await other.policy("A").pause()
        assert not (await run.policy("A").state()).paused
        assert (await run.policy("A").state()).endpoints == (upstream.url,)
    with pytest.raises(UnknownTool, match="no open run names the policy 'A'"):
        await PolicyHandle(gateway, ADMIN, "A").state()


async def test_a_run_that_is_opened_again_keeps_its_policies_as_they_are(gateway: str, run: RunHandle) -> None:
    await run.policy("A").change(version=5)
    pause = await run.policy("A").pause()
    again = await RunHandle.open(gateway, ADMIN, run.seats, run="r1", secret=run.secret)
    state = await again.policy("A").state()
    assert (state.version, state.paused) == (5, True)
    await again.policy("A").resume(pause)


async def test_seats_with_one_policy_are_paused_together_and_names_must_tell_policies_apart(
    gateway: str, upstream: Upstream
) -> None:
    same = SeatPolicy("org/model", (upstream.url,))
    async with await RunHandle.open(gateway, ADMIN, {"a": same, "b": same}) as run:
        await run.policy("org/model").pause()
        assert (await ask(run, "chat/completions", {"messages": MESSAGES}))[0] == 429
        assert (await run.policy("org/model").change(version=1)).policy == "org/model"
    twins = {"a": same, "b": SeatPolicy("org/model", ("http://127.0.0.1:9/v1",))}
    async with await RunHandle.open(gateway, ADMIN, twins) as run:
        with pytest.raises(InvalidArguments, match="2 policies of the run are named 'org/model'"):
            await run.policy("org/model").state()
        with pytest.raises(UnknownTool, match=r"no seat of the run is played by the policy 'B'; .* are 'org/model'"):
            await run.policy("B").state()
    named = {seat: SeatPolicy(seat, (upstream.url,), policy="one") for seat in ("a", "b")}
    with pytest.raises(InvalidArguments, match="the seat 'b' means another model"):
        await RunHandle.open(gateway, ADMIN, named)
    with pytest.raises(InvalidArguments, match="the policy of the seat 'a' must be a name, not ''"):
        await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy("a", (upstream.url,), policy="")})


@pytest.mark.parametrize("name", ["org/model:free", "a b?c#d%2Fé", "x/pause", "pause"])
async def test_a_policy_may_be_named_as_any_model_is(gateway: str, upstream: Upstream, name: str) -> None:
    async with await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy(name, (upstream.url,))}) as run:
        policy = run.policy(name)
        await policy.pause()
        assert (await policy.change(version=1)).paused
        assert (await policy.resume()).policy == name


async def test_keys_in_the_addresses_of_endpoints_are_not_told(gateway: str) -> None:
    seats = {"a": SeatPolicy("m", ("http://user:s3cret@127.0.0.1:9/v1",), policy="p")}
    async with await RunHandle.open(gateway, ADMIN, seats):
        with pytest.raises(InvalidArguments) as refused:
            await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy("n", ("http://127.0.0.1:9/v1",), policy="p")})
    assert "127.0.0.1:9" in refused.value.message and "s3cret" not in refused.value.message


async def test_only_the_admin_steers_policies(gateway: str, run: RunHandle) -> None:
    token = run.episode("e1", "a").routes["a"].token
    for place in ("policies/A", "runs/r1/policies/A"):
        for method, verb in (("GET", ""), ("PUT", ""), ("POST", "/pause"), ("POST", "/drain"), ("POST", "/resume")):
            with pytest.raises(Unauthenticated, match="admin token"):
                headers = {"Authorization": f"Bearer {token}"}
                await request_json(method, f"{gateway}/{place}{verb}", headers=headers, timeout=10)
    assert not (await run.policy("A").state()).paused


@pytest.mark.parametrize(
    ("method", "verb", "body", "message"),
    [
        ("POST", "/pause", [], "must be a JSON object"),
        ("POST", "/pause", {"retry_after": 0}, r"retry_after must be a number of seconds, from 0\.001 to 86400, not 0"),
        ("POST", "/pause", {"hold": -1}, "hold must be a number of seconds, from 0 to"),
        ("POST", "/pause", {"retry_after": True}, "retry_after must be a number"),
        ("POST", "/pause", {"seconds": "long"}, "seconds must be a number"),
        ("POST", "/pause", {"pause": 3}, "a pause has a name"),
        ("POST", "/drain", {"seconds": 1e9}, "from 0.001 to 86400, not 1000000000.0"),
        ("POST", "/resume", {"pause": "x" * 129}, "a pause has a name"),
        ("PUT", "", {"model": ""}, "needs the name of a model"),
        ("PUT", "", {"endpoints": []}, "needs a list of http URLs"),
        ("PUT", "", {"endpoints": ["http://xn--\u00e9/v1"]}, "needs a list of http URLs"),
        ("PUT", "", {"weights": "w"}, "has no 'weights' to change"),
        ("POST", "/pause", {"secs": 1}, "has no 'secs' to pause; it has retry_after, seconds, hold, pause"),
        ("POST", "/drain", {"hold": 1}, "has no 'hold' to drain; it has seconds"),
        ("POST", "/resume", {"name": "mine"}, "has no 'name' to resume; it has pause"),
    ],
)
async def test_what_a_policy_is_asked_wrongly_is_refused_with_the_value(
    gateway: str, run: RunHandle, method: str, verb: str, body: Any, message: str
) -> None:
    before = await run.policy("A").state()
    headers = {"Authorization": f"Bearer {ADMIN}"}
    with pytest.raises(InvalidArguments, match=message):
        await request_json(method, f"{gateway}/runs/r1/policies/A{verb}", body, headers=headers, timeout=10)
    assert await run.policy("A").state() == before


async def test_other_verbs_and_servers_are_told(gateway: str, run: RunHandle, upstream: Upstream) -> None:
    headers = {"Authorization": f"Bearer {ADMIN}"}
    for method, place in (("POST", "A/publish"), ("DELETE", "A"), ("POST", "pause")):
        with pytest.raises(UnknownTool, match="a policy has no"):
            await request_json(method, f"{gateway}/runs/r1/policies/{place}", {}, headers=headers, timeout=10)
    with pytest.raises(UnknownTool, match="no open run 'r7'"):
        await post_json(f"{gateway}/runs/r7/policies/A/pause", {}, headers=headers, timeout=10)
    with pytest.raises(ProtocolError, match="did not answer as a gateway does"):
        await PolicyHandle(upstream.url, ADMIN, "A").pause()
