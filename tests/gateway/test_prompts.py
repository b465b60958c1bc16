"""Servers that tell token ids as llama.cpp does: in the logprobs, and those of the prompt only when asked for them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent_env.gateway import RunHandle, SeatPolicy, running
from agent_env.gateway.http import reply_json

pytestmark = pytest.mark.anyio

ADMIN = "admin-token"
BODY = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 8}
TEXT = "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n"
SAMPLED = [(26843, "Hi", -1.25), (30, ".", -0.5), (2, "", -0.75)]
PROMPT = [1, 4093, 198, 36218, 15876, 2, 198, 1, 520, 9531, 198]


def entry(token: int, text: str, logprob: float) -> dict[str, Any]:
    return {"id": token, "token": text, "bytes": [*text.encode()], "logprob": logprob, "top_logprobs": []}


def usage(prompt: int, sampled: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


@dataclass
class Llama:
    """A server with the paths and fields of llama.cpp's."""

    url: str = ""
    answer: dict[str, Any] = field(
        default_factory=lambda: {
            "object": "chat.completion",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": "Hi."},
                    "logprobs": {"content": [entry(*token) for token in SAMPLED]},
                }
            ],
            "usage": usage(len(PROMPT), len(SAMPLED)),
        }
    )
    pieces: list[dict[str, Any]] = field(default_factory=list)
    paths: dict[str, Any] = field(
        default_factory=lambda: {"/apply-template": {"prompt": TEXT}, "/tokenize": {"tokens": PROMPT}}
    )
    asked: list[tuple[str, dict[str, Any], str | None]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        key = dict(scope["headers"]).get(b"authorization")
        self.asked.append((scope["path"], body, None if key is None else key.decode()))
        if scope["path"] != "/llama/v1/chat/completions":
            answer = self.paths.get(scope["path"].removeprefix("/llama"))
            await reply_json(send, 404 if answer is None else 200, answer)
        elif self.pieces:
            head = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            events = [*map(json.dumps, self.pieces), "[DONE]"]
            text = "".join(f"data: {event}\n\n" for event in events)
            await send({"type": "http.response.body", "body": text.encode()})
        else:
            await reply_json(send, 200, self.answer)


@pytest.fixture
async def llama() -> AsyncGenerator[Llama, None]:
    server = Llama()
    async with running(server) as url:
        server.url = f"{url}/llama/v1"
        yield server


@pytest.fixture
async def run(gateway: str, llama: Llama) -> AsyncGenerator[RunHandle, None]:
    async with await RunHandle.open(gateway, ADMIN, {"a": SeatPolicy("smol", (llama.url,), "its-key")}) as opened:
        yield opened


async def record_of(run: RunHandle, chat: Any) -> dict[str, Any]:
    assert (await chat(run.episode("e1", "a"), BODY)).status == 200
    (record,) = (await run.collect(["e1"]))["e1"]
    return record


async def test_ids_are_read_out_of_the_logprobs_and_the_prompts_are_asked_for_which_the_record_says(
    run: RunHandle, llama: Llama, chat: Any
) -> None:
    record = await record_of(run, chat)
    assert record["token_ids"] == [token for token, _, _ in SAMPLED]
    assert record["logprobs"] == [logprob for _, _, logprob in SAMPLED]
    assert record["prompt_token_ids"] == PROMPT and record["missing"] == {"prompt_token_ids": "asked_apart"}
    (called, rendered, tokenized) = llama.asked
    assert (rendered[0], tokenized[0]) == ("/llama/apply-template", "/llama/tokenize")
    # What is rendered is what was answered, tools and all; the server's key goes where the call went.
    assert rendered[1] == called[1] and rendered[2] == tokenized[2] == called[2] == "Bearer its-key"
    assert tokenized[1] == {"content": TEXT, "add_special": True, "parse_special": True}


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/apply-template", None),
        ("/apply-template", {}),
        ("/apply-template", "no object"),
        ("/tokenize", None),
        ("/tokenize", {"tokens": PROMPT[1:]}),
        ("/tokenize", {"tokens": [*PROMPT[1:], "1"]}),
        ("/tokenize", {"tokens": None}),
    ],
)
async def test_a_prompt_that_the_server_does_not_tell_for_certain_stays_unknown(
    run: RunHandle, llama: Llama, chat: Any, path: str, answer: Any
) -> None:
    llama.paths[path] = answer
    record = await record_of(run, chat)
    assert "prompt_token_ids" not in record and record["missing"] == {"prompt_token_ids": "not_given"}
    assert record["token_ids"] and record["logprobs"] and record["status"] == "ok"


@pytest.mark.parametrize("counted", [None, usage(len(PROMPT), len(SAMPLED))])
async def test_a_stream_without_its_last_token_has_no_tokens_rather_than_some(
    run: RunHandle, llama: Llama, chat: Any, counted: Any
) -> None:
    def chunk(delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
        return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, **choice}]}

    # As llama.cpp streams: the mark that ends the message is counted and not told.
    llama.pieces = [chunk({"role": "assistant", "content": None})]
    for token in SAMPLED[:-1]:
        llama.pieces.append(chunk({"content": token[1]}, logprobs={"content": [entry(*token)]}))
    llama.pieces.append(chunk({}, finish_reason="stop"))
    llama.pieces.append({"object": "chat.completion.chunk", "choices": [], "usage": counted})
    record = await record_of(run, chat)
    assert not {"token_ids", "logprobs", "prompt_token_ids"} & record.keys()
    assert record["missing"] == {"token_ids": "incomplete", "logprobs": "incomplete", "prompt_token_ids": "not_given"}
    assert record["response"]["choices"][0]["message"]["content"] == "Hi." and len(llama.asked) == 1


async def test_a_server_that_tells_the_prompt_is_not_asked_again(run: RunHandle, llama: Llama, chat: Any) -> None:
    llama.answer["prompt_token_ids"] = PROMPT
    record = await record_of(run, chat)
    assert record["prompt_token_ids"] == PROMPT and "missing" not in record and len(llama.asked) == 1
