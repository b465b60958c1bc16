"""vLLM, which needs a GPU: what we ask of its server and read of its answers is held against a schema made of its source.

The requests are those that arrive at a real server here: of a publisher that loads adapters, and of a gateway that is
asked in each dialect.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from agent_env.errors import PublishFailed
from agent_env.gateway import Gateway, PolicyState, RunHandle, SeatPolicy, running
from agent_env.gateway.dialects import DIALECTS
from agent_env.net import shared_http
from agent_env.training import VllmLora

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

CONTRACT = Draft202012Validator(json.loads(Path(__file__).with_name("vllm.json").read_text("utf-8")))
STATE = PolicyState("solver", "org/base", ())

ASKED: dict[str, dict[str, Any]] = {
    "chat": {"model": "x", "messages": [{"role": "user", "content": "boat"}]},
    "completions": {"model": "x", "prompt": "boat"},
    "responses": {"model": "x", "input": "boat"},
}
OWN_WISHES: dict[str, list[dict[str, Any]]] = {
    "chat": [{}, {"logprobs": False}, {"logprobs": True, "top_logprobs": 2}, {"return_token_ids": False}],
    "completions": [{}, {"logprobs": 0}, {"logprobs": 3}, {"return_token_ids": False}],
    "responses": [{}, {"include": ["reasoning.encrypted_content"]}, {"include": ["message.output_text.logprobs"]}],
}
"""What agents ask for themselves; their own wish must not put out ours."""

TOKENS = [{"token": "zip", "logprob": -1.0}, {"token": "", "logprob": -0.25}]
CHOICE = {"index": 0, "finish_reason": "stop", "token_ids": [8, 1]}
PART = {"type": "output_text", "text": "zip", "annotations": [], "logprobs": TOKENS}
ANSWERS: dict[str, dict[str, Any]] = {
    "chat": {
        "prompt_token_ids": [5, 6],
        "choices": [{**CHOICE, "message": {"role": "assistant", "content": "zip"}, "logprobs": {"content": TOKENS}}],
    },
    "completions": {
        "choices": [
            {**CHOICE, "text": "zip", "prompt_token_ids": [5, 6], "logprobs": {"token_logprobs": [-1.0, -0.25]}}
        ],
    },
    "responses": {
        "id": "r",
        "status": "completed",
        "output": [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [PART]}],
        "input_messages": [{"type": "raw_message_tokens", "message": "boat", "tokens": [5, 6]}],
        "output_messages": [{"type": "raw_message_tokens", "message": "zip", "tokens": [8, 1]}],
        "usage": {"input_tokens": 2, "output_tokens": 2, "total_tokens": 4},
    },
}


def raw(message: str, *tokens: int) -> str:
    """A raw message as a stream has it."""
    return json.dumps({"message": message, "tokens": tokens, "type": "raw_message_tokens"})


CHUNKS: dict[str, list[dict[str, Any]]] = {
    # The prompt comes with the first chunk, and each chunk has the tokens of its own.
    "chat": [
        {"prompt_token_ids": [5, 6], "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{**CHOICE, "delta": {"content": "zip"}, "token_ids": [8], "logprobs": {"content": TOKENS[:1]}}]},
        {"choices": [{**CHOICE, "delta": {}, "token_ids": [1], "logprobs": {"content": TOKENS[1:]}}]},
    ],
    "completions": [
        {"choices": [{"index": 0, "text": "zip", "prompt_token_ids": [5, 6], "token_ids": [8],
                      "logprobs": {"token_logprobs": [-1.0]}}]},
        {"choices": [{**CHOICE, "text": "", "token_ids": [1], "logprobs": {"token_logprobs": [-0.25]}}]},
    ],
    # The last event has the messages as texts, and what was sampled chunk by chunk.
    "responses": [
        {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
        {
            "type": "response.completed",
            "response": ANSWERS["responses"]
            | {"input_messages": [raw("boat", 5, 6)], "output_messages": [raw("zip", 8), raw("", 1)]},
        },
    ],
}  # fmt: skip
USAGE: dict[str, Any] = {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
OF_USAGE: dict[str, dict[str, Any]] = {name: {"choices": [], "usage": USAGE} for name in ("chat", "completions")}
"""The chunk before the last, for those who ask for it."""
BY_PATH = {f"/v1/{DIALECTS[name].path}": name for name in ASKED}


class Server:
    """Notes how it is asked, and answers as the contract says."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.refusal: dict[str, Any] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        path: str = scope["path"]
        asked: dict[str, Any] = json.loads(body)
        name = BY_PATH.get(path, path.removeprefix("/v1/"))
        request = {"method": scope["method"], "path": path, "content_type": headers["content-type"], "body": asked}
        self.asked.append((name, request))
        status, kind, content = 200, "application/json", b"Success: done."
        if self.refusal is not None:
            status, content = self.refusal["error"]["code"], json.dumps(self.refusal).encode()
        elif name in ASKED and asked.get("stream"):
            counts = (asked.get("stream_options") or {}).get("include_usage") and name in OF_USAGE
            chunks = [*CHUNKS[name], OF_USAGE[name]] if counts else CHUNKS[name]
            events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
            kind, content = "text/event-stream", "".join([*events, "data: [DONE]\n\n"]).encode()
        elif name in ASKED:
            content = json.dumps(ANSWERS[name]).encode()
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]})
        await send({"type": "http.response.body", "body": content})


@pytest.fixture
async def server() -> AsyncGenerator[tuple[Server, str]]:
    app = Server()
    async with running(app) as url:
        yield app, url


async def published(url: str, tmp_path: Path) -> None:
    """Publishes two adapters, of which the second takes the place of the first."""
    publisher = VllmLora()
    for version in (1, 2):
        state = PolicyState("solver", "org/base", (f"{url}/v1",))
        async with publisher.loading(tmp_path / str(version), state, version):
            pass


async def called(url: str, name: str, body: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Asks a gateway in a dialect, in front of the server; gives the record of it."""
    gateway = Gateway(tmp_path / "journals", admin_token="admin")
    seats = {"a": SeatPolicy("org/base", (f"{url}/v1",), dialects=tuple(ASKED))}
    async with running(gateway) as at, await RunHandle.open(at, "admin", seats) as run:
        seen = run.episode("e", "a")
        assert seen.route is not None
        asked, key = f"{seen.model_url('c1')}/{DIALECTS[name].path}", {"Authorization": f"Bearer {seen.route.token}"}
        async with shared_http().post(asked, json=body, headers=key) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
        (record,) = (await run.collect(["e"]))["e"]
    gateway.close()
    return record


async def test_adapters_are_loaded_and_unloaded_as_vllm_takes_it(server: tuple[Server, str], tmp_path: Path) -> None:
    app, url = server
    await published(url, tmp_path)
    assert [name for name, _ in app.asked] == ["load_lora_adapter", "load_lora_adapter", "unload_lora_adapter"]
    for name, request in app.asked:
        CONTRACT.validate({name: request})


async def test_a_refusal_of_an_adapter_is_told_in_vllms_own_words(server: tuple[Server, str], tmp_path: Path) -> None:
    app, url = server
    app.refusal = {"error": {"message": "no rank 512", "type": "InternalServerError", "param": None, "code": 500}}
    CONTRACT.validate({"refusal": app.refusal})
    with pytest.raises(PublishFailed, match="no rank 512"):
        await published(url, tmp_path)


@pytest.mark.parametrize(
    ("name", "own", "streamed"),
    [
        (name, own, streamed)
        for name, wishes in OWN_WISHES.items()
        for own in wishes
        for streamed in (False, True)
        if not streamed or (name in CHUNKS and not own)
    ],
)
async def test_tokens_are_asked_for_as_vllm_takes_it_and_read_as_it_tells_them(
    name: str, own: dict[str, Any], streamed: bool, server: tuple[Server, str], tmp_path: Path
) -> None:
    app, url = server
    record = await called(url, name, ASKED[name] | own | ({"stream": True} if streamed else {}), tmp_path)
    ((asked, request),) = app.asked
    assert asked == name
    CONTRACT.validate({name: request})
    told = [*CHUNKS[name], *([OF_USAGE[name]] if name in OF_USAGE else [])] if streamed else [ANSWERS[name]]
    for one in told:
        CONTRACT.validate({f"{name}_{'chunk' if streamed else 'answer'}": one})
    assert record["prompt_token_ids"] == [5, 6]
    assert (record["token_ids"], record["logprobs"]) == ([8, 1], [-1.0, -0.25])
    assert record["usage"] == USAGE and "missing" not in record


@pytest.mark.parametrize("name", OWN_WISHES)
def test_each_dialect_asks_for_all_that_the_contract_has_of_tokens(name: str) -> None:
    for own in OWN_WISHES[name]:
        body = ASKED[name] | copy.deepcopy(own)
        DIALECTS[name].ask_for_tokens(body)
        path = f"/v1/{DIALECTS[name].path}"
        request = {"method": "POST", "path": path, "content_type": "application/json", "body": body}
        CONTRACT.validate({name: request})


def test_every_dialect_that_can_tell_tokens_is_in_the_contract() -> None:
    assert {name for name, dialect in DIALECTS.items() if dialect.tells} == ASKED.keys()


def without(*path: str | int) -> Callable[[Any], None]:
    def mutate(value: Any) -> None:
        for name in path[:-1]:
            value = value[name]
        del value[path[-1]]

    return mutate


def with_(new: Any, *path: str | int) -> Callable[[Any], None]:
    def mutate(value: Any) -> None:
        for name in path[:-1]:
            value = value[name]
        value[path[-1]] = new

    return mutate


BROKEN: list[tuple[str, Callable[[Any], None]]] = [
    ("load_lora_adapter", without("body", "lora_path")),
    ("load_lora_adapter", with_("v1", "body", "name")),
    ("load_lora_adapter", with_("", "body", "lora_name")),
    ("load_lora_adapter", with_("/v1/load_lora", "path")),
    ("load_lora_adapter", with_("text/plain", "content_type")),
    ("unload_lora_adapter", without("body", "lora_name")),
    ("unload_lora_adapter", with_("/adapters/1", "body", "lora_path")),
    ("chat", without("body", "return_token_ids")),
    ("chat", with_(True, "body", "return_tokens_ids")),
    ("chat", with_(False, "body", "logprobs")),
    ("chat", with_(True, "body", "stream")),
    ("chat", with_({"include_usage": True}, "body", "stream_options")),
    ("completions", with_(0, "body", "logprobs")),
    ("completions", with_(True, "body", "logprobs")),
    ("completions", without("body", "return_token_ids")),
    ("completions", with_(True, "body", "stream")),
    ("responses", without("body", "enable_response_messages")),
    ("responses", with_(["message.output_text.logprob"], "body", "include")),
    ("responses", with_([], "body", "include")),
    ("responses", with_(True, "body", "return_token_ids")),
    ("chat_answer", without("prompt_token_ids")),
    ("chat_answer", without("choices", 0, "token_ids")),
    ("chat_answer", without("choices", 0, "logprobs", "content", 0, "logprob")),
    ("completions_answer", without("choices", 0, "prompt_token_ids")),
    ("completions_answer", with_([0.5], "choices", 0, "token_ids")),
    ("responses_answer", without("input_messages")),
    ("responses_answer", with_("text", "output_messages", 0, "type")),
    ("responses_answer", without("output_messages", 0, "tokens")),
]


@pytest.mark.parametrize(("name", "mutate"), BROKEN, ids=lambda value: value if isinstance(value, str) else "")
async def test_the_contract_refuses_what_vllm_would_not_take_or_would_pass_over(
    name: str, mutate: Callable[[Any], None], server: tuple[Server, str], tmp_path: Path
) -> None:
    app, url = server
    if name.endswith("_adapter"):
        await published(url, tmp_path)
    elif name in ASKED:
        await called(url, name, ASKED[name], tmp_path)
    requests = dict(app.asked)
    told = requests[name] if name in requests else ANSWERS[name.removesuffix("_answer")]
    CONTRACT.validate({name: told})
    broken = copy.deepcopy(told)
    mutate(broken)
    assert not CONTRACT.is_valid({name: broken})
