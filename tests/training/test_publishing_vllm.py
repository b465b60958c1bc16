"""Publishing to vLLM: adapters are loaded by its documented request, everywhere or nowhere.

The server here is none of vLLM's, which needs a GPU. It takes exactly the requests that vLLM documents ("LoRA Adapters",
docs.vllm.ai) and answers as its sources do, which tests/contracts/vllm.json names.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env.errors import InvalidArguments, PublishFailed
from agent_env.gateway import Gateway, RunHandle, SeatPolicy, running
from agent_env.net import bound_url, listen, shared_http
from agent_env.training import PublishedPolicy, VllmLora

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

ADMIN = "admin"
BASE = "org/base"


class Refused(Exception):
    """What the server says no with."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body: Any = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class Vllm:
    """A server with runtime LoRA updating; an adapter answers with what the file `words` of its directory has."""

    def __init__(self, *, api_key: str | None = None, updating: bool = True) -> None:
        self.api_key = api_key
        self.updating = updating
        self.adapters: dict[str, str] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.broken: dict[str, str] = {}
        self.hold: asyncio.Event | None = None
        self.arrived = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body")
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        kind = "application/json"
        try:
            status, answer = 200, await self._answer(scope["method"], scope["path"], headers, body)
            if isinstance(answer, str):
                kind, content = "text/plain", answer.encode()
            elif isinstance(answer, list):
                kind, content = "text/event-stream", b"".join(answer)
            else:
                content = json.dumps(answer).encode()
        except Refused as refused:
            status, content = refused.status, json.dumps(refused.body).encode()
        fields = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": content})

    async def _answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        if self.api_key is not None and headers.get("authorization") != f"Bearer {self.api_key}":
            refused = Refused(401, "", "")
            refused.body = {"error": "Unauthorized"}
            raise refused
        if path == "/v1/chat/completions":
            return await self._complete(json.loads(body))
        verb = path.removeprefix("/v1/")
        if method != "POST" or verb not in ("load_lora_adapter", "unload_lora_adapter") or not self.updating:
            refused = Refused(404, "", "")
            refused.body = {"detail": "Not Found"}
            raise refused
        if headers.get("content-type", "").split(";")[0] != "application/json":
            raise Refused(400, "Bad Request", "Unsupported Media Type: Only 'application/json' is allowed")
        asked = json.loads(body)
        self.asked.append((verb, asked))
        if verb in self.broken:
            raise Refused(500, "InternalServerError", self.broken[verb])
        if self.hold is not None:
            self.arrived.set()
            await self.hold.wait()
        return self._load(**asked) if verb == "load_lora_adapter" else self._unload(**asked)

    def _load(self, *, lora_name: str, lora_path: str) -> str:
        if not lora_name or not lora_path:
            raise Refused(400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided.")
        if lora_name in self.adapters:
            raise Refused(
                400,
                "InvalidUserInput",
                f"The lora adapter '{lora_name}' has already been loaded. If you want to load the adapter in place, "
                "set 'load_inplace' to True.",
            )
        if not Path(lora_path, "adapter_config.json").is_file():
            raise Refused(404, "NotFoundError", f"Loading lora {lora_name} failed: No adapter found for {lora_path}")
        self.adapters[lora_name] = lora_path
        return f"Success: LoRA adapter '{lora_name}' added successfully."

    def _unload(self, *, lora_name: str) -> str:
        if lora_name not in self.adapters:
            raise Refused(404, "NotFoundError", f"The lora adapter '{lora_name}' cannot be found.")
        del self.adapters[lora_name]
        return f"Success: LoRA adapter '{lora_name}' removed successfully."

    async def _complete(self, asked: dict[str, Any]) -> Any:
        model = asked["model"]
        if model != BASE and model not in self.adapters:
            raise Refused(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
        # Read piece by piece: an adapter that is taken away meanwhile breaks the answer.
        words = []
        for _ in range(4):
            words.append("base" if model == BASE else words_of(self.adapters[model]))
            await anyio.sleep(0.002)
        content = " ".join(words)
        if asked.get("stream"):
            chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": content}}]}
            return [b"data: " + json.dumps(chunk).encode() + b"\n\n", b"data: [DONE]\n\n"]
        return {"model": model, "choices": [{"index": 0, "message": {"content": content}, "finish_reason": "stop"}]}

    def verbs(self) -> list[str]:
        return [verb.removesuffix("_lora_adapter") for verb, _ in self.asked]


def words_of(directory: str) -> str:
    return Path(directory, "words").read_text()


@asynccontextmanager
async def opened(tmp_path: Path, *servers: Vllm, dead: int = 0, key: str | None = None) -> AsyncGenerator[Any, None]:
    """A run whose seat `a` is played by the servers."""
    gateway = Gateway(tmp_path / "journals", admin_token=ADMIN)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(running(gateway))
        urls = [await stack.enter_async_context(running(server)) for server in servers]
        for _ in range(dead):
            with listen("127.0.0.1", 0) as listener:
                urls.append(bound_url(listener))
        seats = {"a": SeatPolicy(BASE, tuple(f"{one}/v1" for one in urls), key, policy="solver")}
        yield await stack.enter_async_context(await RunHandle.open(url, ADMIN, seats))
    gateway.close()


def adapter(tmp_path: Path, words: str) -> Path:
    """The directory of an adapter, as PEFT saves one."""
    directory = tmp_path / f"adapter-{words}"
    directory.mkdir()
    (directory / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (directory / "words").write_text(words)
    return directory


async def said(run: RunHandle, episode: str, *, stream: bool = False) -> int:
    """Makes a call until it is not refused."""
    seen = run.episode(episode, "a")
    assert seen.route is not None
    headers = {"Authorization": f"Bearer {seen.route.token}"}
    body = {"model": "x", "messages": [], "stream": stream}
    while True:
        async with shared_http().post(seen.model_url("c1") + "/chat/completions", json=body, headers=headers) as answer:
            await answer.read()
            if answer.status != 429:
                return answer.status
        await anyio.sleep(0.005)


async def answers(run: RunHandle, count: int = 6) -> set[tuple[Any, str]]:
    """What the policy says in some conversations, with the version that the records tell."""
    ids = [f"{asyncio.get_running_loop().time()}-{number}" for number in range(count)]
    assert await asyncio.gather(*(said(run, episode) for episode in ids)) == [200] * count
    found = (record for records in (await run.collect(ids)).values() for record in records)
    return {
        (record.get("policy_version"), record["response"]["choices"][0]["message"]["content"].split()[0])
        for record in found
    }


async def test_each_version_is_an_adapter_of_a_new_name_on_all_servers_and_the_one_before_is_let_go(
    tmp_path: Path,
) -> None:
    servers = Vllm(), Vllm()
    async with opened(tmp_path, *servers) as run:
        policy = PublishedPolicy(run.policy("solver"), VllmLora())
        assert await answers(run) == {(None, "base")}
        first, second = adapter(tmp_path, "one"), adapter(tmp_path, "two")
        assert await policy.publish(first) == 1
        assert await answers(run) == {(1, "one")}
        state = await policy.policy.state()
        assert state.model.startswith("solver-v1-") and state.policy == "solver"
        assert await policy.publish(str(second)) == 2
        assert await answers(run) == {(2, "two")}
        for server in servers:
            assert server.verbs() == ["load", "load", "unload"]
            (_, one), (_, two), (_, gone) = server.asked
            assert one == {"lora_name": state.model, "lora_path": str(first)}
            assert two == {"lora_name": (await policy.policy.state()).model, "lora_path": str(second)}
            assert gone == {"lora_name": one["lora_name"]} and list(server.adapters) == [two["lora_name"]]


async def test_earlier_versions_stay_for_who_plays_against_them(tmp_path: Path) -> None:
    server = Vllm()
    async with opened(tmp_path, server) as run:
        policy = PublishedPolicy(run.policy("solver"), VllmLora(keep=2))
        for words in ("one", "two", "three", "four"):
            await policy.publish(adapter(tmp_path, words))
        assert [Path(path).name for path in server.adapters.values()] == [
            "adapter-two",
            "adapter-three",
            "adapter-four",
        ]


@pytest.mark.parametrize(
    ("breaks", "status", "words"),
    [
        (lambda server: server.broken.update(load_lora_adapter="CUDA out of memory"), 500, "CUDA out of memory"),
        (lambda server: setattr(server, "updating", False), 404, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        (lambda server: setattr(server, "api_key", "changed"), 401, "Unauthorized"),
    ],
)
async def test_one_server_that_refuses_leaves_the_version_before_on_all(
    tmp_path: Path, breaks: Any, status: int, words: str
) -> None:
    servers = Vllm(), Vllm(), Vllm()
    async with opened(tmp_path, *servers) as run:
        policy = PublishedPolicy(run.policy("solver"), VllmLora())
        await policy.publish(adapter(tmp_path, "one"))
        before = [dict(server.adapters) for server in servers]
        breaks(servers[1])
        with pytest.raises(PublishFailed, match="the policy 'solver' stays at version 1, on all of its 3") as failed:
            await policy.publish(adapter(tmp_path, "two"))
        state = await policy.policy.state()
        (failure,) = failed.value.data["failures"]
        assert (failure["endpoint"], failure["status"]) == (state.endpoints[1], status) and words in failure["said"]
        assert state.endpoints[1] in failed.value.message and words in failed.value.message
        assert [server.adapters for server in servers] == before
        assert (state.version, state.paused, state.in_flight) == (1, False, 0)
        servers[1].broken.clear()
        servers[1].updating, servers[1].api_key = True, None
        assert await answers(run) == {(1, "one")}
        assert await policy.publish(adapter(tmp_path, "three")) == 2
        assert await answers(run) == {(2, "three")}


async def test_an_adapter_that_is_nowhere_to_be_found_is_told_by_every_server(tmp_path: Path) -> None:
    servers = Vllm(), Vllm()
    async with opened(tmp_path, *servers) as run:
        policy = PublishedPolicy(run.policy("solver"), VllmLora())
        with pytest.raises(PublishFailed) as failed:
            await policy.publish("/nowhere")
        assert [failure["status"] for failure in failed.value.data["failures"]] == [404, 404]
        assert failed.value.message.count("No adapter found for /nowhere") == 2
        assert await answers(run) == {(None, "base")}


async def test_a_server_that_does_not_answer_is_told_and_the_others_let_the_adapter_go(tmp_path: Path) -> None:
    alive, stuck = Vllm(), Vllm()
    async with opened(tmp_path, alive, stuck, dead=1) as run:
        policy = PublishedPolicy(run.policy("solver"), VllmLora(seconds=0.5))
        stuck.hold = asyncio.Event()
        publishing = asyncio.ensure_future(policy.publish(adapter(tmp_path, "one")))
        await stuck.arrived.wait()
        with pytest.raises(PublishFailed) as failed:
            # It lets the adapter go when it comes to, in the order in which it was asked.
            await asyncio.wait({publishing}, timeout=1.0)
            stuck.hold.set()
            await publishing
        late, dead = failed.value.data["failures"]
        assert (late["status"], dead["status"]) == (None, None)
        assert "did not answer" in late["said"] and "cannot be reached" in dead["said"]
        assert alive.verbs() == ["load", "unload"] and alive.adapters == stuck.adapters == {}


async def test_a_server_more_has_the_adapter_before_a_call_goes_there(tmp_path: Path) -> None:
    first, second, third = Vllm(), Vllm(), Vllm()
    async with opened(tmp_path, first) as run, running(second) as url, running(third) as broken:
        policy = PublishedPolicy(run.policy("solver"), VllmLora())
        (present,) = (await policy.policy.state()).endpoints
        assert (await policy.serve_from([present, f"{url}/v1"])).endpoints == (present, f"{url}/v1")
        assert second.asked == []  # the base model is there already
        await policy.serve_from([present])
        await policy.publish(adapter(tmp_path, "one"))
        state = await policy.serve_from([present, f"{url}/v1"])
        assert second.adapters == first.adapters == {state.model: str(tmp_path / "adapter-one")}
        assert await answers(run, 20) == {(1, "one")} and not state.paused
        third.broken["load_lora_adapter"] = "CUDA out of memory"
        with pytest.raises(PublishFailed, match="CUDA out of memory"):
            await policy.serve_from([present, f"{broken}/v1"])
        assert (await policy.policy.state()).endpoints == state.endpoints and third.adapters == {}


async def test_a_server_that_had_the_adapters_has_them_after_a_change_that_failed(tmp_path: Path) -> None:
    first, second, third = Vllm(), Vllm(), Vllm()
    async with opened(tmp_path, first) as run, running(second) as url, running(third) as broken:
        policy = PublishedPolicy(run.policy("solver"), VllmLora(keep=1))
        (present,) = (await policy.policy.state()).endpoints
        await policy.publish(adapter(tmp_path, "one"))
        await policy.publish(adapter(tmp_path, "two"))
        await policy.serve_from([present, f"{url}/v1"])
        await policy.serve_from([present])
        had = dict(first.adapters)
        assert second.adapters == had and len(had) == 2
        third.broken["load_lora_adapter"] = "CUDA out of memory"
        with pytest.raises(PublishFailed, match="CUDA out of memory"):
            await policy.serve_from([present, f"{url}/v1", f"{broken}/v1"])
        assert second.adapters == had and third.adapters == {}
        del third.broken["load_lora_adapter"]
        await policy.serve_from([present, f"{url}/v1", f"{broken}/v1"])
        assert first.adapters == second.adapters == third.adapters == had


async def test_an_endpoint_that_is_named_twice_is_one(tmp_path: Path) -> None:
    first, second = Vllm(), Vllm()
    async with opened(tmp_path, first) as run, running(second) as url:
        policy = PublishedPolicy(run.policy("solver"), VllmLora())
        (present,) = (await policy.policy.state()).endpoints
        await policy.publish(adapter(tmp_path, "one"))
        state = await policy.serve_from([present, f"{present}/", *[f"{url}/v1"] * 2, f"{url}/v1/"])
        assert set(state.endpoints) >= {present, f"{url}/v1"}
        assert first.verbs() == second.verbs() == ["load"] and second.adapters == first.adapters


@pytest.mark.parametrize("wrong", ["nonsense", "", "ftp://there/v1", 7])
async def test_an_endpoint_that_is_none_is_refused_with_its_value_and_nothing_is_asked(
    tmp_path: Path, wrong: Any
) -> None:
    first, second = Vllm(), Vllm()
    async with opened(tmp_path, first) as run, running(second) as url:
        policy = PublishedPolicy(run.policy("solver"), VllmLora())
        await policy.publish(adapter(tmp_path, "one"))
        before = await policy.policy.state()
        with pytest.raises(InvalidArguments, match=re.escape(repr(wrong))):
            await policy.serve_from([*before.endpoints, f"{url}/v1", wrong])
        with pytest.raises(InvalidArguments, match=re.escape("[]")):
            await policy.serve_from([])
        assert second.asked == [] and await policy.policy.state() == before


async def test_the_servers_key_is_shown_to_them(tmp_path: Path) -> None:
    server = Vllm(api_key="secret")
    async with opened(tmp_path, server, key="secret") as run:
        with pytest.raises(PublishFailed, match="said 401: Unauthorized"):
            await PublishedPolicy(run.policy("solver"), VllmLora()).publish(adapter(tmp_path, "zero"))
        policy = PublishedPolicy(run.policy("solver"), VllmLora(api_key="secret"))
        assert await policy.publish(adapter(tmp_path, "one")) == 1
        assert await answers(run) == {(1, "one")}


async def test_a_server_that_keeps_an_adapter_is_logged_and_the_new_version_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Vllm()
    async with opened(tmp_path, server) as run:
        policy = PublishedPolicy(run.policy("solver"), VllmLora())
        await policy.publish(adapter(tmp_path, "one"))
        server.broken["unload_lora_adapter"] = "the engine is busy"
        with caplog.at_level(logging.WARNING, logger="agent_env.training"):
            assert await policy.publish(adapter(tmp_path, "two")) == 2
        assert "keeps the adapter 'solver-v1-" in caplog.text and "the engine is busy" in caplog.text
        assert await answers(run) == {(2, "two")}


async def test_calls_that_go_on_meanwhile_are_each_answered_by_one_adapter(tmp_path: Path) -> None:
    servers = Vllm(), Vllm()
    async with opened(tmp_path, *servers) as run:
        policy = PublishedPolicy(run.policy("solver"), VllmLora(), retry_after=0.1)
        played: list[str] = []
        busy = True

        async def work(number: int) -> None:
            while busy:
                played.append(f"e{len(played)}")
                assert await said(run, played[-1], stream=bool(number % 2)) == 200

        async with anyio.create_task_group() as group:
            for number in range(24):
                group.start_soon(work, number)
            for version in range(1, 5):
                assert await policy.publish(adapter(tmp_path, str(version))) == version
            busy = False
        found = await run.collect(played)
    for (record,) in found.values():
        words = record["response"]["choices"][0]["message"]["content"].split()
        assert words == [str(record.get("policy_version", "base"))] * 4, record
        assert record["policy"] == "solver"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('{"object": "error", "message": "no"}', 400),
        ("<html>no</html>", 502),
        ('{"error": {"message": 3}}', 400),
        ("[]", 400),
    ],
)
async def test_whatever_a_server_says_is_passed_on(tmp_path: Path, text: str, status: int) -> None:
    server = Vllm()
    answer = server._answer

    async def odd(method: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        if path == "/v1/load_lora_adapter":
            refused = Refused(status, "", "")
            refused.body = None
            raise refused
        return await answer(method, path, headers, body)

    server._answer = odd  # type: ignore[method-assign]

    class Raw(Vllm):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def sent(message: Any) -> None:
                if message.get("body") == b"null":
                    message = {**message, "body": text.encode()}
                await send(message)

            await server(scope, receive, sent)

    async with opened(tmp_path, Raw()) as run:
        with pytest.raises(PublishFailed) as failed:
            await PublishedPolicy(run.policy("solver"), VllmLora()).publish("/x")
    (failure,) = failed.value.data["failures"]
    assert failure["status"] == status and failure["said"] == ("no" if "object" in text else text)
