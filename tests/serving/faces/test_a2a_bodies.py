"""Bodies that no JSON reader should take: refused by the A2A face in its own words, never in a library's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest

from agent_env.serving.environment import AgentEnvironment

pytestmark = pytest.mark.anyio

LIBRARY_WORDS = ("codec", "decode", "set_int_max", "pydantic", "protobuf", "exception", "surrogates not allowed")


@asynccontextmanager
async def serving() -> AsyncGenerator[str]:
    async def echo(message: str) -> str:
        return message

    with anyio.fail_after(60):
        async with AgentEnvironment(echo).serving(register=False) as server:
            yield server.url


def request(part: str, method: str | None) -> str:
    message = f'{{"messageId":"1","role":"ROLE_USER","parts":[{part}]}}'
    if method is None:
        return f'{{"message":{message}}}'
    return f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"message":{message}}}}}'


@pytest.mark.parametrize(
    ("part", "encoding", "said"),
    [
        ('{"text":"\xe9"}', "latin-1", "UTF-8"),
        ('{"text":"hi"}', "utf-16", "UTF-8"),
        ('{"data":{"x":NaN}}', "utf-8", "NaN"),
        ('{"data":{"x":-Infinity}}', "utf-8", "Infinity"),
        ('{"data":{"x":' + "9" * 5000 + "}}", "utf-8", "5000 digits"),
        ('{"text":"\\ud800"}', "utf-8", "surrogate"),
    ],
    ids=["latin-1", "utf-16", "NaN", "Infinity", "digits", "surrogate"],
)
async def test_a_body_that_is_no_proper_json_is_the_callers_error(part: str, encoding: str, said: str) -> None:
    async with serving() as url, httpx.AsyncClient(timeout=20) as http:
        for version in ("1.0", "0.3"):
            headers = {"A2A-Version": version, "Content-Type": "application/json"}
            for path, method in (("/a2a", "SendMessage"), ("/a2a", "message/send"), ("/a2a/rest/message:send", None)):
                body = request(part, method).encode(encoding)
                answer = await http.post(url + path, content=body, headers=headers)
                assert answer.status_code == 422, (path, version, answer.text)
                assert "error" in answer.json(), answer.text
                assert said in answer.text, (path, version, answer.text)
                assert not [word for word in LIBRARY_WORDS if word in answer.text.lower()], answer.text


async def test_whole_pairs_and_ordinary_numbers_pass() -> None:
    async with serving() as url, httpx.AsyncClient(timeout=20) as http:
        body = request('{"text":"\\ud83d\\ude00 12345678901234567890"}', "SendMessage")
        headers = {"A2A-Version": "1.0", "Content-Type": "application/json"}
        answer = await http.post(url + "/a2a", content=body, headers=headers)
        assert answer.json()["result"]["message"]["parts"][0]["text"] == "\U0001f600 12345678901234567890"
