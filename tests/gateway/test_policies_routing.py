"""Which endpoint a call goes to: the conversation's own, as long as it can be reached."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.gateway import RunHandle, SeatPolicy, running
from agent_env.gateway.policies import OpenPolicy, Served, ranked_for

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

ADMIN = "admin-token"
COMPLETION: dict[str, Any] = json.loads((Path(__file__).parent / "completion.json").read_text())
Chat = Callable[..., Awaitable[Any]]
Serve = Callable[..., AbstractAsyncContextManager[str]]

names = st.text(st.characters(codec="utf-8"), max_size=12)
endpoints = st.lists(st.integers(1, 60000).map("http://10.0.0.1:{}/v1".format), min_size=1, max_size=8, unique=True)


class Server:
    """A model server that answers with its own name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.asked += 1
        answer = json.dumps(COMPLETION | {"model": self.name}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": answer})


@asynccontextmanager
async def servers(count: int) -> AsyncGenerator[dict[str, str], None]:
    """So many servers: their names, by URL."""
    async with AsyncExitStack() as stack:
        yield {
            f"{await stack.enter_async_context(running(Server(f's{number}')))}/v1": f"s{number}"
            for number in range(count)
        }


async def answered_by(chat: Chat, run: RunHandle, episodes: range) -> list[str]:
    answers = await asyncio.gather(*(chat(run.episode(f"e{number}", "a")) for number in episodes))
    return [answer.body["model"] for answer in answers]


@given(names, endpoints, st.integers(60001, 65535).map("http://10.0.0.2:{}/v1".format))
def test_an_endpoint_that_is_added_takes_conversations_and_moves_no_other(
    conversation: str, present: list[str], added: str
) -> None:
    before = [present[index] for index in ranked_for(conversation, present)]
    more = [*present, added]
    after = [more[index] for index in ranked_for(conversation, more)]
    assert [endpoint for endpoint in after if endpoint != added] == before
    assert sorted(before) == sorted(present)


@given(names, endpoints, st.randoms())
def test_the_order_in_which_endpoints_are_listed_does_not_matter(
    conversation: str, present: list[str], chance: Any
) -> None:
    shuffled = [*present]
    chance.shuffle(shuffled)
    ranked = [present[index] for index in ranked_for(conversation, present)]
    assert [shuffled[index] for index in ranked_for(conversation, shuffled)] == ranked


def test_conversations_are_spread_evenly_and_an_endpoint_more_takes_its_share() -> None:
    four = [f"http://10.0.0.{number}:8000/v1" for number in range(4)]
    five = [*four, "http://10.0.0.9:8000/v1"]
    conversations = [f"episode-{number}/solver" for number in range(4000)]
    before = [ranked_for(conversation, four)[0] for conversation in conversations]
    after = [ranked_for(conversation, five)[0] for conversation in conversations]
    assert all(850 < count < 1150 for count in Counter(before).values())
    moved = [now for was, now in zip(before, after, strict=True) if was != now]
    assert set(moved) == {4} and 650 < len(moved) < 950


async def test_calls_of_a_seat_in_an_episode_go_to_one_server_and_a_server_more_takes_its_share(
    gateway: str, chat: Chat
) -> None:
    async with servers(3) as urls:
        first, second, third = urls
        async with await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy("A", (first, second))}) as run:
            before = await answered_by(chat, run, range(60))
            assert await answered_by(chat, run, range(60)) == before
            assert set(before) == {"s0", "s1"}
            await run.policy("A").change(endpoints=[third, second, first])
            after = await answered_by(chat, run, range(60))
            moved = [now for was, now in zip(before, after, strict=True) if was != now]
            assert set(moved) == {"s2"} and 5 < len(moved) < 40


async def test_a_server_that_refuses_connections_is_passed_over_until_it_is_back(
    tmp_path: Path, chat: Chat, serve: Serve
) -> None:
    async with servers(1) as urls, serve(tmp_path, rest_seconds=0.3) as gateway:
        (stays,) = urls
        async with running(Server("goes")) as url:
            port = int(url.rsplit(":", 1)[1])
            seats = {"a": SeatPolicy("A", (stays, f"{url}/v1"))}
            run = await RunHandle.open(gateway, ADMIN, seats)
            before = await answered_by(chat, run, range(20))
            assert set(before) == {"s0", "goes"}
        moved = [number for number, server in enumerate(before) if server == "goes"]
        assert set(await answered_by(chat, run, range(20))) == {"s0"}
        (state, records) = await run.policy("A").state(), await run.collect([f"e{moved[0]}"])
        assert state.resting == (f"{url}/v1",)
        assert [record.get("retries") for record in records[f"e{moved[0]}"]] == [None, 1]
        async with running(Server("goes"), port=port):
            with anyio.fail_after(20):
                # Until it has rested.
                while (await answered_by(chat, run, range(moved[0], moved[0] + 1))) != ["goes"]:
                    await anyio.lowlevel.checkpoint()
            assert (await run.policy("A").state()).resting == ()
            assert await answered_by(chat, run, range(20)) == before


def test_after_its_rest_one_call_tries_an_endpoint_and_the_others_follow_when_it_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("agent_env.gateway.policies.time", SimpleNamespace(monotonic=lambda: clock.now))
    urls = ("http://10.0.0.1:1/v1", "http://10.0.0.2:2/v1")
    policy = OpenPolicy("A", Served("A", urls), rest_seconds=5.0)

    def route() -> list[str]:
        return [place.origin[0] for place in policy.route(policy.served, "chat", "e1/a")]

    best, other = route()
    at = next(place for place in policy.served.places["chat"] if place.origin[0] == best)
    policy.rest(at)
    assert route() == [other, best] and policy.state()["resting"] == [urls[policy.served.places["chat"].index(at)]]
    clock.now += 5.1
    assert [route(), route()] == [[best, other], [other, best]]
    policy.wake(at)
    assert route() == [best, other]
    for place in policy.served.places["chat"]:
        policy.rest(place)
    assert route() == [best, other]
