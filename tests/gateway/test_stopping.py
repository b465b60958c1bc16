"""Gateways that are stopped: each call ends with a record and with word to its caller, who may ask the next one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env.episodes import TurnRecord
from agent_env.errors import AgentEnvError, AtCapacity, ConfigurationError, Stopping
from agent_env.gateway import Gateway, PolicyHandle, RunHandle, RunRecorder, SeatPolicy, launched, running
from agent_env.net import bound_url, listen, shared_http
from agent_env.net.serving import served

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

ADMIN = "admin-token"
Upstream = Any
"""The model server of the fixture `upstream`."""

MESSAGES: Any = [{"role": "user", "content": "boat"}]
WORD = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "zip"}}]}\n\n'
DIALECTS: dict[str, Any] = {
    "chat/completions": {"messages": MESSAGES},
    "completions": {"prompt": "boat"},
    "responses": {"input": "boat"},
    "messages": {"messages": MESSAGES, "max_tokens": 9},
}


async def ask(run: RunHandle, path: str = "chat/completions", **fields: Any) -> tuple[int, bytes]:
    """Asks the model of the seat `a` in a dialect; gives the status and the bytes of what comes back."""
    seen = run.episode("e1", "a")
    assert seen.route is not None
    headers = {"Authorization": f"Bearer {seen.route.token}"}
    body = {"model": "own", **DIALECTS[path], **fields}
    async with shared_http().post(f"{seen.model_url('c1')}/{path}", json=body, headers=headers) as response:
        return response.status, await response.read()


async def opened(gateway: str, upstream: Upstream, admin: str = ADMIN, **fields: Any) -> RunHandle:
    return await RunHandle.open(gateway, admin, {"a": SeatPolicy("A", (upstream.url,), **fields)}, run="r1")


def journal(directory: Path) -> list[dict[str, Any]]:
    """The records that are on disk."""
    return [json.loads(line) for line in (directory / "r1.jsonl").read_text().splitlines()[1:]]


@asynccontextmanager
async def bounded(app: Gateway) -> AsyncGenerator[str]:
    with anyio.fail_after(30):
        async with running(app) as gateway:
            yield gateway


@pytest.mark.parametrize("path", [*DIALECTS])
async def test_a_call_under_way_is_told_that_the_gateway_stops_in_its_dialect_and_its_record_says_so(
    tmp_path: Path, upstream: Upstream, path: str
) -> None:
    upstream.hold = asyncio.Event()
    async with bounded(Gateway(tmp_path, admin_token=ADMIN)) as gateway:
        asking = asyncio.ensure_future(ask(await opened(gateway, upstream), path))
        await upstream.arrived.wait()
    status, answer = await asking
    told = json.loads(answer)["error"]
    assert status == 503 and (told["code"], told["retryable"]) == ("stopping", True)
    assert "the gateway is closing; ask again" in told["message"] and "model_call" not in told["data"]
    assert path != "messages" or json.loads(answer)["type"] == "error"
    (record,) = journal(tmp_path)
    assert (record["status"], record["error"]) == ("stopping", {"code": "stopping", "message": told["message"]})
    with anyio.fail_after(10):
        await upstream.gone.wait()  # the server's work for it has ended


async def test_a_stream_under_way_ends_with_an_error_event_and_a_record_of_what_came(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.pieces, upstream.hold = [WORD], asyncio.Event()
    async with bounded(Gateway(tmp_path, admin_token=ADMIN)) as gateway:
        asking = asyncio.ensure_future(ask(await opened(gateway, upstream), stream=True))
        await upstream.arrived.wait()
    status, answer = await asking
    assert status == 200 and answer.startswith(WORD)
    assert json.loads(answer.removeprefix(WORD).removeprefix(b"data: "))["error"]["code"] == "stopping"
    (record,) = journal(tmp_path)
    assert record["status"] == "stopping" and record["response"]["choices"][0]["message"]["content"] == "zip"


async def test_a_call_that_ends_soon_has_its_answer_and_one_that_is_held_is_told_to_ask_again(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.hold = asyncio.Event()
    app = Gateway(tmp_path, admin_token=ADMIN)
    with anyio.fail_after(30):
        async with running(app) as gateway:
            run = await opened(gateway, upstream, policy="solver")
            asking = asyncio.ensure_future(ask(run))
            await upstream.arrived.wait()
            policy = PolicyHandle(gateway, ADMIN, "solver")
            await policy.pause(hold=3600)
            held = asyncio.ensure_future(ask(run))
            while (await policy.state()).held != 1:
                await anyio.lowlevel.checkpoint()
            stopping = asyncio.ensure_future(app.stop(20.0))
            status, answer = await held
            assert status == 503 and json.loads(answer)["error"]["code"] == "stopping"
            # What the turns under way have to tell is still taken.
            await RunRecorder(run.episode("e1", "a")).record([TurnRecord("c1", "a@1", "s", episode="e1").to_json()])
            with pytest.raises(Stopping):
                await RunHandle.open(gateway, ADMIN, {"a": None}, run="r2")
            upstream.hold.set()
            assert (await asking)[0] == 200
            await stopping
    assert [record.get("status") for record in journal(tmp_path)] == ["ok", "ok"]


async def test_a_gateway_that_has_stopped_says_so_to_all_that_is_asked_until_it_is_started_again(
    tmp_path: Path, upstream: Upstream
) -> None:
    app = Gateway(tmp_path, admin_token=ADMIN)
    async with bounded(app) as gateway:
        run = await opened(gateway, upstream)
        assert (await ask(run))[0] == 200
        await app.stop(0.0)
        status, answer = await ask(run)
        assert status == 503 and json.loads(answer)["error"]["code"] == "stopping"
        recorder = RunRecorder(run.episode("e1", "a"))
        turn = TurnRecord("c1", "a@1", "s", episode="e1").to_json()
        for asked in (run.collect(["e1"]), recorder.record([turn]), opened(gateway, upstream), run.aclose()):
            with pytest.raises(AgentEnvError) as raised:
                await asked
            assert (raised.value.code, raised.value.retryable) == ("stopping", True)
        app.start()
        again = await RunHandle.open(
            gateway, ADMIN, {"a": SeatPolicy("A", (upstream.url,))}, run="r1", secret=run.secret
        )
        assert len((await again.collect(["e1"]))["e1"]) == 1 and (await ask(again))[0] == 200


async def test_a_run_that_is_being_closed_as_the_gateway_stops_ends_as_it_would(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.hold = asyncio.Event()
    app = Gateway(tmp_path, admin_token=ADMIN, close_seconds=0.2)
    async with bounded(app) as gateway:
        run = await opened(gateway, upstream)
        asking = asyncio.ensure_future(ask(run))
        await upstream.arrived.wait()
        closing = asyncio.ensure_future(run.aclose())
        while not app._runs["r1"].closed:
            await anyio.lowlevel.checkpoint()
        await app.stop(20.0)
        await closing
        assert (await asking)[0] == 410
    assert [record["status"] for record in journal(tmp_path)] == ["run_closed"]


async def test_another_server_that_ends_a_call_is_told_from_a_caller_that_went_away(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.hold = asyncio.Event()
    app, listener = Gateway(tmp_path, admin_token=ADMIN), listen("127.0.0.1", 0)
    with anyio.fail_after(30):
        async with served(app, listener, lifespan=False, stop_seconds=1):
            asking = asyncio.ensure_future(ask(await opened(bound_url(listener), upstream)))
            await upstream.arrived.wait()
        app.close()
        assert (await asking)[0] == 500
    (record,) = journal(tmp_path)
    assert record["status"] == "cancelled" and record["error"]["message"] == "the server of the gateway ended the call"


async def test_a_gateway_in_a_process_of_its_own_stops_as_well(tmp_path: Path, upstream: Upstream) -> None:
    upstream.hold = asyncio.Event()
    with anyio.fail_after(50):
        async with launched(tmp_path) as gateway:
            run = await opened(gateway.url, upstream, gateway.admin_token)
            asking = asyncio.ensure_future(ask(run))
            await upstream.arrived.wait()
        status, answer = await asking
    assert status == 503 and json.loads(answer)["error"]["code"] == "stopping"
    assert [record["status"] for record in journal(tmp_path)] == ["stopping"]


async def test_a_stop_that_is_not_waited_for_loses_no_record_of_a_run_that_is_being_closed(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.hold = asyncio.Event()
    app = Gateway(tmp_path, admin_token=ADMIN, close_seconds=20.0)
    async with bounded(app) as gateway:
        run = await opened(gateway, upstream)
        asking = asyncio.ensure_future(ask(run))
        await upstream.arrived.wait()
        closing = asyncio.ensure_future(run.aclose())
        while not app._runs["r1"].closed:
            await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(0.05) as waiting:
            await app.stop(20.0)
        assert waiting.cancelled_caught and not closing.done()
        app.close()  # nor does this
        upstream.hold.set()
        assert (await asking)[0] == 200
        await closing
    assert [record["status"] for record in journal(tmp_path)] == ["ok"]


async def test_a_stop_that_is_not_waited_for_still_ends_the_calls_with_their_records(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.hold = asyncio.Event()
    app = Gateway(tmp_path, admin_token=ADMIN)
    async with bounded(app) as gateway:
        asking = asyncio.ensure_future(ask(await opened(gateway, upstream)))
        await upstream.arrived.wait()
        with anyio.move_on_after(0.05):
            await app.stop(20.0)
        assert not asking.done()
        upstream.hold.set()
        assert (await asking)[0] == 200
    assert [record["status"] for record in journal(tmp_path)] == ["ok"]


async def test_a_stop_waits_no_longer_for_a_run_that_is_being_closed_than_for_others(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.hold = asyncio.Event()
    app = Gateway(tmp_path, admin_token=ADMIN, close_seconds=3600.0)
    async with bounded(app) as gateway:
        run = await opened(gateway, upstream)
        asking = asyncio.ensure_future(ask(run))
        await upstream.arrived.wait()
        closing = asyncio.ensure_future(run.aclose())
        while not app._runs["r1"].closed:
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(10):
            await app.stop(0.05)
        await closing
        assert (await asking)[0] == 410
    assert [record["status"] for record in journal(tmp_path)] == ["run_closed"]


async def test_a_gateway_is_served_once_at_a_time(tmp_path: Path, upstream: Upstream) -> None:
    app = Gateway(tmp_path, admin_token=ADMIN)
    async with bounded(app) as gateway:
        run = await opened(gateway, upstream)
        with pytest.raises(ConfigurationError, match="served already"):
            async with running(app):
                pass
        assert (await ask(run))[0] == 200
    async with bounded(app) as gateway:
        assert (await ask(await RunHandle.open(gateway, ADMIN, run.seats, run="r1", secret=run.secret)))[0] == 200


async def test_a_gateway_waits_for_the_one_before_it_to_have_closed_the_run(tmp_path: Path, upstream: Upstream) -> None:
    upstream.hold = asyncio.Event()
    before = Gateway(tmp_path, admin_token=ADMIN)
    async with bounded(before) as old, bounded(Gateway(tmp_path, admin_token=ADMIN)) as new:
        run = await opened(old, upstream)
        asking = asyncio.ensure_future(ask(run))
        await upstream.arrived.wait()
        stopping = asyncio.ensure_future(before.stop(20.0))
        opening = asyncio.ensure_future(RunHandle.open(new, ADMIN, run.seats, run="r1", secret=run.secret))
        await asyncio.wait({opening}, timeout=0.3)
        assert not opening.done()
        upstream.hold.set()
        assert (await asking)[0] == 200
        await stopping
        again = await opening
        assert (await ask(again))[0] == 200
        assert [record["status"] for record in (await again.collect(["e1"]))["e1"]] == ["ok", "ok"]


async def test_a_run_that_another_gateway_keeps_open_is_refused_and_goes_on_there(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_env.gateway.app._OPEN_SECONDS", 0.2)
    async with (
        bounded(Gateway(tmp_path, admin_token=ADMIN)) as one,
        bounded(Gateway(tmp_path, admin_token=ADMIN)) as other,
    ):
        run = await opened(one, upstream)
        with pytest.raises(AtCapacity, match="another gateway has the run 'r1' open") as refused:
            await RunHandle.open(other, ADMIN, run.seats, run="r1", secret=run.secret)
        assert refused.value.retryable and refused.value.data["retry_after"] == 1.0
        assert (await ask(run))[0] == 200
        assert [record["status"] for record in (await run.collect(["e1"]))["e1"]] == ["ok"]


async def test_a_run_whose_journal_cannot_be_removed_keeps_nobody_waiting(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, **_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    upstream.hold = asyncio.Event()
    app = Gateway(tmp_path, admin_token=ADMIN, close_seconds=20.0)
    async with bounded(app) as gateway:
        run = await opened(gateway, upstream)
        asking = asyncio.ensure_future(ask(run))
        await upstream.arrived.wait()
        closing = asyncio.ensure_future(run.aclose())
        while not app._runs["r1"].closed:
            await anyio.lowlevel.checkpoint()
        opening = asyncio.ensure_future(RunHandle.open(gateway, ADMIN, run.seats, run="r1", secret=run.secret))
        await asyncio.wait({opening}, timeout=0.2)
        assert not opening.done()
        with monkeypatch.context() as broken:
            broken.setattr(Path, "unlink", fail)
            run.keep_journal = False
            told = await asyncio.gather(closing, run.aclose(), return_exceptions=True)
        assert all(isinstance(error, AgentEnvError) for error in told)
        assert (await asking)[0] == 410
        upstream.hold.set()
        assert (await ask(await opening))[0] == 200


async def test_a_process_is_not_killed_while_it_asks_for_the_tokens_of_its_last_answers(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def llama(scope: Any, receive: Any, send: Any) -> None:
        """Answers as llama.cpp does, and tells the prompt's text after longer than a process may take to end."""
        if not scope["path"].endswith("/v1/chat/completions"):
            asked.set()
            await anyio.sleep(6.0)
        entry = {"token": "zip", "id": 5, "logprob": -1.0}
        choice = {"index": 0, "message": {"role": "assistant", "content": "zip"}, "logprobs": {"content": [entry]}}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps({"choices": [choice], "usage": usage}).encode()})

    with anyio.fail_after(50):
        async with running(llama) as url:
            async with launched(tmp_path) as gateway:
                seats = {"a": SeatPolicy("A", (f"{url}/v1",))}
                run = await RunHandle.open(gateway.url, gateway.admin_token, seats, run="r1")
                asking = asyncio.ensure_future(ask(run))
                await asked.wait()
            assert (await asking)[0] == 200
    assert [(record["status"], record["token_ids"]) for record in journal(tmp_path)] == [("ok", [5])]
