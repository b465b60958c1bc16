"""Runs: opened, collected, closed; the records that agents post."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from agent_env.context import Run
from agent_env.episodes import EdgeRecord, Episode, TurnRecord
from agent_env.errors import (
    AgentEnvError,
    ConfigurationError,
    Forbidden,
    InvalidArguments,
    ProtocolError,
    TransportError,
    Unauthenticated,
    UnknownTool,
)
from agent_env.gateway import Gateway, RunHandle, RunRecorder, SeatPolicy, mint_token
from agent_env.gateway.tokens import checked_name, opens
from agent_env.net import OutwardGuard, get_json, post_json, request_json, shared_http

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
Upstream = Any
"""The model server of the fixture `upstream`."""
Chat = Callable[..., Awaitable[Any]]
Serve = Callable[..., AbstractAsyncContextManager[str]]

TURN = TurnRecord("c1", "a@1.0.0", "s1", "e1", seat="a", reply="ja").to_json()
EDGE = EdgeRecord("x1", "b@1.0.0", "e1", caller="a@1.0.0", caller_seat="a", caller_call_id="c1").to_json()


def nested(depth: int) -> Any:
    return {"in": [nested(depth - 2)]} if depth > 0 else []


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def post(url: str, body: Any, token: str = ADMIN) -> Any:
    return await post_json(url, body, headers={"Authorization": f"Bearer {token}"}, timeout=10)


async def test_records_and_model_calls_of_an_episode_are_collected_in_order(run: RunHandle, chat: Chat) -> None:
    seen = run.episode("e1", "a")
    await chat(seen, call_id="c1")
    await RunRecorder(seen).record([TURN, EDGE])
    await RunRecorder(run.episode("e2", "b")).record([{**TURN, "episode": "e2", "seat": "b"}])
    await RunRecorder(seen).record([])
    found = await run.collect(["e1", "e2", "e3"])
    assert [record["kind"] for record in found["e1"]] == ["model", "turn", "edge"]
    assert found["e1"][1:] == [TURN, EDGE]
    assert found["e2"] == [{**TURN, "episode": "e2", "seat": "b"}] and found["e3"] == []
    assert await run.collect(["e1", "e2", "e3"]) == found
    episode = Episode("e1")
    episode.add(found["e1"])
    (trace,) = episode.traces
    assert len(trace.turns) == len(trace.calls) == 1


async def test_collecting_more_episodes_than_one_request_takes_is_several_requests(
    run: RunHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_env.gateway.client._BATCH", 3)
    for number in range(7):
        recorder = RunRecorder(run.episode(f"e{number}", "a"))
        await recorder.record([{**TURN, "episode": f"e{number}"}])
    found = await run.collect(f"e{number}" for number in range(7))
    assert [len(records) for records in found.values()] == [1] * 7


async def test_a_seat_without_a_policy_posts_with_the_episodes_other_tokens(run: RunHandle) -> None:
    await RunRecorder(run.episode("e1", "a").at("judge")).record([TURN])
    assert (await run.collect(["e1"]))["e1"] == [TURN]
    with pytest.raises(ConfigurationError, match="gives no token"):
        RunRecorder(Run(run.gateway, run.run, "e1", "judge"))


@pytest.mark.parametrize(
    "body",
    [
        TURN,
        ["text"],
        [TURN, {**TURN, "episode": "e2"}],
        [TURN, {key: value for key, value in TURN.items() if key != "episode"}],
        [TURN, {"kind": "model", "call_id": "k", "parent_call_id": "c1", "seat": "a", "model": "A", "episode": "e1"}],
        [TURN, {"kind": "turn", "episode": "e1"}],
        [TURN, {**TURN, "call_id": [1]}],
        [TURN, {**TURN, "reply": nested(600)}],
        [TURN, {**TURN, "started": "x"}],
        [TURN, {**EDGE, "callee_call_id": {}}],
        [TURN, {"kind": "reward", "name": "x", "value": 1.0, "episode": "e1"}],
    ],
)
async def test_records_that_are_none_of_the_episodes_are_refused_all_together(run: RunHandle, body: Any) -> None:
    seen = run.episode("e1", "a")
    with pytest.raises(InvalidArguments):
        await post(seen.collector_url(), body, seen.routes["a"].token)
    assert (await run.collect(["e1"]))["e1"] == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400])
@pytest.mark.parametrize(
    ("record", "field"), [(TURN, "reward"), (TURN, "started"), (TURN, "seconds"), (EDGE, "started"), (EDGE, "seconds")]
)
async def test_numbers_that_are_not_finite_are_refused_by_the_name_of_their_field_and_nothing_is_written(
    run: RunHandle, record: dict[str, Any], field: str, number: str
) -> None:
    seen = run.episode("e1", "a")
    body = json.dumps([TURN, {**record, field: "HERE"}, EDGE]).replace('"HERE"', number).encode()
    headers = {"Authorization": f"Bearer {seen.routes['a'].token}"}
    async with shared_http().post(seen.collector_url(), data=body, headers=headers) as response:
        error = (await response.json())["error"]
    assert response.status == 422 and f"the field {field!r} of a {record['kind']!r} record" in error["message"]
    assert (await run.collect(["e1"]))["e1"] == []


async def test_records_that_are_nested_and_long_but_not_deep_are_kept(run: RunHandle) -> None:
    turn = {**TURN, "request": nested(400), "reply": [{"text": "{[" * 100}] * 600}
    await RunRecorder(run.episode("e1", "a")).record([turn])
    assert (await run.collect(["e1"]))["e1"] == [turn]


async def test_a_token_of_another_episode_or_run_writes_no_records(
    gateway: str, run: RunHandle, upstream: Upstream
) -> None:
    seen = run.episode("e1", "a")
    async with await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy("A", (upstream.url,))}) as other:
        for token in (run.episode("e2", "a").routes["a"].token, other.episode("e1", "a").routes["a"].token, ADMIN):
            with pytest.raises(Unauthenticated, match="this run, episode and seat"):
                await post(seen.collector_url(), [TURN], token)
    assert (await run.collect(["e1"]))["e1"] == []


async def test_turns_that_end_together_share_a_request_and_each_has_its_own_outcome(
    run: RunHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[int] = []
    keep = Gateway._keep_several

    async def counting(self: Gateway, name: str, items: Any, send: Any) -> None:
        requests.append(len(items))
        await keep(self, name, items, send)

    monkeypatch.setattr(Gateway, "_keep_several", counting)

    async def post_turn(number: int) -> None:
        # Every fifth one tells of another episode than its token is for.
        episode = f"e{number}" if number % 5 else "elsewhere"
        await RunRecorder(run.episode(f"e{number}", "a")).record([{**TURN, "episode": episode}])

    outcomes = await asyncio.gather(*(post_turn(number) for number in range(20)), return_exceptions=True)
    assert [isinstance(outcome, InvalidArguments) for outcome in outcomes] == [not number % 5 for number in range(20)]
    found = await run.collect(f"e{number}" for number in range(20))
    assert [len(records) for records in found.values()] == [int(bool(number % 5)) for number in range(20)]
    assert sum(requests) == 20 and len(requests) <= 2


async def test_more_than_a_request_takes_goes_in_several(run: RunHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_env.gateway.collector_client._MOST_BYTES", 500)

    async def post_turn(number: int) -> None:
        turn = {**TURN, "episode": f"e{number}", "reply": "x" * (1000 if number == 3 else 1)}
        await RunRecorder(run.episode(f"e{number}", "a")).record([turn])

    await asyncio.gather(*(post_turn(number) for number in range(8)))
    found = await run.collect(f"e{number}" for number in range(8))
    assert [len(records) for records in found.values()] == [1] * 8


async def test_a_turn_that_is_given_up_harms_no_other_in_its_request(run: RunHandle) -> None:
    given_up = asyncio.ensure_future(RunRecorder(run.episode("e1", "a")).record([TURN]))
    stays = asyncio.ensure_future(RunRecorder(run.episode("e2", "a")).record([{**TURN, "episode": "e2"}]))
    await asyncio.sleep(0)
    given_up.cancel()
    await stays
    assert len((await run.collect(["e2"]))["e2"]) == 1


async def test_what_no_text_can_hold_is_kept_all_the_same(run: RunHandle) -> None:
    turn = {**TURN, "reply": "half a pair \ud800 of surrogates"}
    await RunRecorder(run.episode("e1", "a")).record([turn])
    assert (await run.collect(["e1"]))["e1"] == [turn]


async def test_a_server_that_is_no_collector_is_told_from_one(run: RunHandle, upstream: Upstream) -> None:
    seen = run.episode("e1", "a")
    odd = Run(upstream.url.removesuffix("/v1"), seen.run, seen.episode, seen.seat, seen.routes)
    with pytest.raises(ProtocolError, match="did not answer as a collector does"):
        await RunRecorder(odd).record([TURN])


async def test_a_guard_decides_whether_the_collector_may_be_called(run: RunHandle) -> None:
    seen = run.episode("e1", "a")
    with pytest.raises(Forbidden, match=r"does not call '127\.0\.0\.1'"):
        await RunRecorder(seen, guard=OutwardGuard()).record([TURN])
    await RunRecorder(seen, guard=OutwardGuard(local=True)).record([TURN])
    assert (await run.collect(["e1"]))["e1"] == [TURN]


@pytest.mark.parametrize("body", [{}, [3]])
async def test_records_of_several_episodes_are_a_list_of_objects(run: RunHandle, body: Any) -> None:
    with pytest.raises(InvalidArguments, match="several episodes are posted as"):
        await post(f"{run.gateway}/runs/{run.run}/records", body)


async def test_more_items_than_a_request_may_have_are_refused_and_posted_in_parts(
    run: RunHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidArguments, match="at most 4096 items are posted at once, not 4097"):
        await post(f"{run.gateway}/runs/{run.run}/records", [{}] * 4097)
    sent = len((await post(f"{run.gateway}/runs/{run.run}/records", [{}] * 4096))["results"])
    assert sent == 4096
    monkeypatch.setattr("agent_env.gateway.app.MOST_POSTED", 3)
    monkeypatch.setattr("agent_env.gateway.collector_client.MOST_POSTED", 3)
    await asyncio.gather(*(RunRecorder(run.episode("e1", "a")).record([TURN]) for _ in range(8)))
    assert len((await run.collect(["e1"]))["e1"]) == 8


async def test_a_collector_that_is_gone_is_a_transport_error(run: RunHandle) -> None:
    seen = run.episode("e1", "a")
    gone = Run("http://127.0.0.1:9", seen.run, seen.episode, seen.seat, seen.routes)
    with pytest.raises(TransportError):
        await RunRecorder(gone).record([TURN])


async def test_only_the_admin_opens_collects_and_closes(gateway: str, run: RunHandle) -> None:
    token = run.episode("e1", "a").routes["a"].token
    for method, path in (("POST", "/runs"), ("POST", "/runs/r1/collect"), ("DELETE", "/runs/r1")):
        for headers in ({}, {"Authorization": f"Bearer {token}"}, {"Authorization": "Basic x"}):
            with pytest.raises(Unauthenticated, match="admin token"):
                await request_json(method, gateway + path, {}, headers=headers, timeout=10)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "a run is opened with"),
        ({"seats": {}}, "a run is opened with"),
        ({"seats": {"a": 3}}, "the seat 'a' must be"),
        ({"seats": {"a": {"endpoints": ["http://h/v1"]}}}, "needs the name of a model"),
        ({"seats": {"a": {"model": "A", "endpoints": []}}}, "needs a list of http URLs"),
        ({"seats": {"a": {"model": "A", "endpoints": ["file:///etc/passwd"]}}}, "needs a list of http URLs"),
        ({"seats": {"a": {"model": "A", "endpoints": ["http://[oops"]}}}, "needs a list of http URLs"),
        ({"seats": {"a": {"model": "A", "endpoints": [3]}}}, "needs a list of http URLs"),
        ({"seats": {"a": {"model": "A", "endpoints": ["http://h/v1"], "api_key": 3}}}, "api_key"),
        ({"seats": {"a": {"model": "A", "endpoints": ["http://h/v1"], "settings": 3}}}, "settings"),
        ({"seats": {"a": {"model": "A", "endpoints": ["http://h:99999999/v1"]}}}, "needs a list of http URLs"),
        ({"seats": {"a": {"model": "A", "endpoints": ["http://h:0/v1"]}}}, "needs a list of http URLs"),
        ({"seats": {"a": {"model": "A", "endpoints": ["http://xn--\u00e9/v1"]}}}, "needs a list of http URLs"),
        ({"seats": {"a": {"model": "A", "endpoints": ["http://h/v1"], "api_key": "x\r\nY: z"}}}, "api_key"),
        ({"seats": {"a": {"model": "A", "endpoints": ["http://h/v1"]}}, "secret": [1]}, "the secret of a run"),
        ({"seats": {"a/b": {"model": "A", "endpoints": ["http://h/v1"]}}}, "the seat 'a/b' must be"),
        ({"run": "../x", "seats": {"a": {"model": "A", "endpoints": ["http://h/v1"]}}}, "the run '../x' must be"),
    ],
)
async def test_a_run_that_is_opened_wrongly_says_what_is_wrong(gateway: str, body: Any, message: str) -> None:
    with pytest.raises(InvalidArguments, match=message):
        await post(f"{gateway}/runs", body)


async def test_bodies_that_are_not_json_are_refused(gateway: str, run: RunHandle) -> None:
    headers = {"Authorization": f"Bearer {ADMIN}"}
    seats = json.dumps({"a": SeatPolicy("A", ("http://h/v1",)).to_json()})
    half = b'{"secret": "\\ud800", "seats": ' + seats.encode() + b"}"
    for path, body in (("/runs", b"{"), ("/runs", half), ("/runs/r1/collect", b"{")):
        async with shared_http().post(gateway + path, data=body, headers=headers) as response:
            assert response.status == 422, await response.text()
    with pytest.raises(InvalidArguments, match="collected with"):
        await post(f"{gateway}/runs/r1/collect", {"episodes": "e1"})
    seen = run.episode("e1", "a")
    own = {"Authorization": f"Bearer {seen.routes['a'].token}"}
    async with shared_http().post(seen.collector_url(), data=b"{", headers=own) as response:
        assert response.status == 422


async def test_a_run_opened_again_with_its_secret_is_the_same_run_and_with_another_it_is_refused(
    gateway: str, run: RunHandle, upstream: Upstream, chat: Chat
) -> None:
    await RunRecorder(run.episode("e1", "a")).record([TURN])
    seats = {"c": SeatPolicy("C", (upstream.url,))}
    again = await RunHandle.open(gateway, ADMIN, seats, run="r1", secret=run.secret)
    assert (await again.collect(["e1"]))["e1"] == [TURN]
    assert (await chat(again.episode("e1", "c"))).status == 200
    assert (await chat(run.episode("e1", "a"))).status == 401
    with pytest.raises(Forbidden, match="open with another secret"):
        await RunHandle.open(gateway, ADMIN, seats, run="r1")


BAD_SEATS: list[dict[str, Any]] = [
    {"b": {"model": "B", "endpoints": ["http://127.0.0.1:99999999/v1"]}},
    {"../b": {"model": "B", "endpoints": ["http://127.0.0.1:9/v1"]}},
    {"b": {"model": "B", "endpoints": ["http://127.0.0.1:9/v1"], "api_key": "\n"}},
]


@pytest.mark.parametrize("bad", BAD_SEATS)
async def test_a_run_that_could_not_be_opened_leaves_its_name_free(
    tmp_path: Path, upstream: Upstream, serve: Serve, bad: dict[str, Any]
) -> None:
    good = SeatPolicy("A", (upstream.url,))
    async with serve(tmp_path) as gateway:
        with pytest.raises(InvalidArguments):
            await post(f"{gateway}/runs", {"run": "r9", "seats": {"a": good.to_json(), **bad}})
        assert names_in(tmp_path) == []
        async with await RunHandle.open(gateway, ADMIN, {"a": good}, run="r9"):
            pass


@pytest.mark.parametrize("bad", BAD_SEATS)
async def test_a_seating_that_is_refused_leaves_the_one_before(
    run: RunHandle, gateway: str, upstream: Upstream, chat: Chat, bad: dict[str, Any]
) -> None:
    seats = {"c": SeatPolicy("C", (upstream.url,)).to_json(), **bad}
    with pytest.raises(InvalidArguments):
        await post(f"{gateway}/runs", {"run": "r1", "secret": run.secret, "seats": seats})
    assert (await chat(run.episode("e1", "a"))).status == 200
    assert (await chat(run.episode("e1", "b"))).status == 200
    assert (await chat(run.episode("e1", "a").at("c"), token=mint_token(run.secret, "e1", "c"))).status == 401


async def test_a_later_gateway_has_all_that_was_acknowledged(
    tmp_path: Path, upstream: Upstream, chat: Chat, serve: Serve
) -> None:
    seats = {"a": SeatPolicy("A", (upstream.url,))}
    async with serve(tmp_path) as gateway:
        run = await RunHandle.open(gateway, ADMIN, seats, run="r1")
        await RunRecorder(run.episode("e1", "a")).record([TURN])
        await chat(run.episode("e2", "a"))
        before = await run.collect(["e1", "e2"])
    async with serve(tmp_path) as gateway:
        with pytest.raises(UnknownTool, match="no open run 'r1'"):
            await post(f"{gateway}/runs/r1/collect", {"episodes": []})
        with pytest.raises(Forbidden, match="opened with another secret"):
            await RunHandle.open(gateway, ADMIN, seats, run="r1")
        again = await RunHandle.open(gateway, ADMIN, seats, run="r1", secret=run.secret)
        assert await again.collect(["e1", "e2"]) == before
        await RunRecorder(again.episode("e2", "a")).record([{**TURN, "episode": "e2"}])
        assert [len(records) for records in (await again.collect(["e1", "e2"])).values()] == [1, 2]
    text = (tmp_path / "r1.jsonl").read_text()
    assert run.secret not in text and (tmp_path / "r1.jsonl").stat().st_mode & 0o077 == 0


async def test_a_journal_with_a_line_that_is_no_record_is_not_opened(tmp_path: Path, serve: Serve) -> None:
    seats = {"a": SeatPolicy("A", ("http://h/v1",))}
    async with serve(tmp_path) as gateway:
        async with await RunHandle.open(gateway, ADMIN, seats, run="r1") as run:
            await RunRecorder(run.episode("e1", "a")).record([TURN])
        for line, why in ((b"[1]\n", "not a JSON object"), (b"{}\n", "no record of an episode")):
            journal = tmp_path / "r1.jsonl"
            whole = journal.read_bytes()
            journal.write_bytes(whole + line)
            with pytest.raises(ProtocolError, match=rf"line 3 of .*r1\.jsonl' is {why}"):
                await RunHandle.open(gateway, ADMIN, seats, run="r1", secret=run.secret)
            journal.write_bytes(whole)
        async with await RunHandle.open(gateway, ADMIN, seats, run="r1", secret=run.secret) as again:
            assert (await again.collect(["e1"]))["e1"] == [TURN]


async def test_a_closed_run_takes_nothing_and_its_journal_stays_unless_it_is_dropped(
    tmp_path: Path, upstream: Upstream, chat: Chat, serve: Serve
) -> None:
    seats = {"a": SeatPolicy("A", (upstream.url,))}
    async with serve(tmp_path) as gateway:
        async with await RunHandle.open(gateway, ADMIN, seats, run="kept") as kept:
            await RunRecorder(kept.episode("e1", "a")).record([TURN])
        async with await RunHandle.open(gateway, ADMIN, seats, run="dropped", keep_journal=False) as dropped:
            await RunRecorder(dropped.episode("e1", "a")).record([TURN])
        assert (await chat(kept.episode("e1", "a"))).status == 401
        assert names_in(tmp_path) == ["kept.jsonl"]
        assert json.loads((tmp_path / "kept.jsonl").read_text().splitlines()[1]) == TURN


async def test_health_and_unknown_paths(gateway: str, run: RunHandle) -> None:
    health = await get_json(f"{gateway}/health", timeout=10)
    assert health == {"status": "healthy", "success": True, "data": {"status": "healthy", "runs": 1}}
    with pytest.raises(UnknownTool, match="the gateway has no GET '/runs'"):
        await get_json(f"{gateway}/runs", timeout=10)


async def test_a_gateway_behind_a_prefix_answers_there(tmp_path: Path) -> None:
    app = Gateway(tmp_path)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/gw/health", "root_path": "/gw", "headers": []}
    await app(scope, receive, send)
    assert sent[0]["status"] == 200
    with pytest.raises(ProtocolError, match="speaks http"):
        await app({"type": "websocket"}, receive, send)


async def test_a_server_that_is_no_gateway_is_told_from_one(upstream: Upstream) -> None:
    with pytest.raises(AgentEnvError, match="did not answer as a gateway does"):
        await RunHandle.open(upstream.url.removesuffix("/v1"), ADMIN, {"a": SeatPolicy("A", ("http://h/v1",))})


async def test_a_collection_that_is_refused_raises_the_refusal(run: RunHandle, gateway: str) -> None:
    stranger = RunHandle(gateway, "r1", run.secret, run.seats, "not-the-admin")
    with pytest.raises(Unauthenticated):
        await stranger.collect(["e1"])


def test_a_token_is_the_hmac_of_episode_and_seat() -> None:
    token = mint_token("secret", "e1", "solver")
    assert token == "xagwBFb__Rj58Ohtfoezc1ubHLcYNPFP0V-vdUElnQM"
    assert opens("secret", "e1", "solver", token)
    assert not opens("secret", "e1", "judge", token)
    assert not opens("secret", "e1", "solver", "\udcff")


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "-x", "a b", "é", "x" * 129, "a\n"])
def test_a_name_that_could_not_stand_in_a_path_is_refused(name: str) -> None:
    with pytest.raises(InvalidArguments, match="the episode"):
        checked_name("episode", name)
    assert checked_name("episode", "x.1~a_b-C") == "x.1~a_b-C"
