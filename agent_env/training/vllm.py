"""Publishing to vLLM servers: LoRA adapters that are loaded while the servers run."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
from yarl import URL

from agent_env.errors import AgentEnvError, InvalidArguments
from agent_env.gateway import PolicyState
from agent_env.gateway.policy_client import UNCHANGED
from agent_env.net import bearer_headers, shared_http, transport_errors
from agent_env.training.publishing import failure, publish_failed

log = logging.getLogger("agent_env.training")

_UNDO_SECONDS = 30.0
_SHOWN = 500
_BAD_REQUEST = 400


class VllmLora:
    """Puts LoRA adapters in place at vLLM servers, while they run.

        solver = PublishedPolicy(run.policy("solver"), VllmLora())
        learner.save("/shared/solver-3")                  # a directory that every server sees under this path
        await solver.publish("/shared/solver-3")

    Each version is an adapter of a name of its own, which the policy's model becomes: no server can answer with
    another one's weights, and none finds the cache of an earlier adapter of its name. `keep` says how many earlier
    versions stay loaded, for opponents and judges of the past. `seconds` bounds the loading, `api_key` is that of the
    servers' `--api-key`; servers that come later (`serve_from`) are given their own.

    Servers run with `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`. What is asked of them is
    `POST …/v1/load_lora_adapter {lora_name, lora_path}` and `POST …/v1/unload_lora_adapter {lora_name}`
    (docs.vllm.ai, "LoRA Adapters": dynamically serving). Checked against the source, not run: the files that
    `tests/contracts/vllm.json` names.
    """

    version = None

    def __init__(self, *, api_key: str | None = None, keep: int = 0, seconds: float = 120.0) -> None:
        self.seconds = seconds
        self.keep = keep
        self._key = api_key
        self._keys: dict[URL, str | None] = {}
        self._loaded: dict[str, dict[str, str]] = {}

    @asynccontextmanager
    async def loading(
        self, weights: str | os.PathLike[str], state: PolicyState, version: int
    ) -> AsyncGenerator[str, None]:
        """Loads the adapter of a directory; see `Publisher`. A text is passed on as it is, a path as an absolute one."""
        # A name that was never there before: one that failed to unload, or an earlier trainer's, is not in the way.
        name = f"{_prefix(state)}{version}-{secrets.token_hex(3)}"
        path = _path(weights)
        self._know_servers(state)
        self._check_keys(state.endpoints)
        async with self._undone(state.endpoints, name):
            await self._load(state.endpoints, name, path, state)
            yield name
        loaded = self._loaded[state.policy]
        loaded[name] = path
        while len(loaded) > self.keep + 1:
            oldest = next(iter(loaded))
            del loaded[oldest]
            await self._unload(state.endpoints, oldest)

    @asynccontextmanager
    async def joining(
        self, endpoints: Sequence[str], state: PolicyState, *, api_key: str | None = UNCHANGED
    ) -> AsyncGenerator[None, None]:
        """Loads the adapters that are in place at further endpoints; see `Publisher`.

        Endpoints at other servers than those of the policy need `api_key`, if there is a key: else `InvalidArguments`.
        """
        present = set(map(_place, state.endpoints))
        further = list({_place(one): one for one in endpoints if _place(one) not in present}.values())
        self._know_servers(state)
        before = dict(self._keys)
        if api_key is UNCHANGED:
            self._check_keys(further)
        else:
            self._keys.update((_server(endpoint), api_key) for endpoint in endpoints)
        adapter = re.fullmatch(rf"{re.escape(_prefix(state))}\d+-[0-9a-f]{{6}}", state.model)
        if further and adapter and state.model not in self._loaded[state.policy]:
            said = (
                f"nobody knows here where the adapter {state.model!r} is from; publish, and it serves what you publish"
            )
            raise publish_failed(state, [failure(one, None, said) for one in further])
        try:
            async with AsyncExitStack() as stack:
                for name, path in self._loaded.get(state.policy, {}).items():
                    fresh = list(further)
                    await stack.enter_async_context(self._undone(fresh, name))
                    asked = [self._join(endpoint, name, path, fresh) for endpoint in further]
                    if failures := [one for one in await asyncio.gather(*asked) if one is not None]:
                        raise publish_failed(state, failures)
                yield
        except BaseException:
            self._keys = before
            raise

    async def _join(self, endpoint: str, name: str, path: str, fresh: list[str]) -> dict[str, Any] | None:
        """Loads an adapter at an endpoint that may have it still, having been served from before; that one is no longer
        among the `fresh`, which let it go when this fails."""
        wanted = {"lora_name": name, "lora_path": path}
        refused = await self._ask(endpoint, "load_lora_adapter", wanted, self.seconds)
        if refused is None or refused["status"] != _BAD_REQUEST:
            return refused
        # Why it refuses is told in words alone; one that can let the adapter go had it.
        if await self._ask(endpoint, "unload_lora_adapter", {"lora_name": name}, _UNDO_SECONDS) is not None:
            return refused
        fresh.remove(endpoint)
        return await self._ask(endpoint, "load_lora_adapter", wanted, self.seconds)

    def _know_servers(self, state: PolicyState) -> None:
        """Takes the servers that a policy has at first for those of the key."""
        if state.policy not in self._loaded:
            self._loaded[state.policy] = {}
            for endpoint in state.endpoints:
                self._keys.setdefault(_server(endpoint), self._key)

    def _check_keys(self, endpoints: Iterable[str]) -> None:
        """Raises `InvalidArguments` for a server that no key was given for, nor that it takes none."""
        for server in map(_server, endpoints):
            if self._key is not None and server not in self._keys:
                raise InvalidArguments(
                    f"the api_key of this VllmLora was not given for {server}; give `api_key` with the endpoints "
                    "(`PublishedPolicy.serve_from`), None if they take none"
                )

    @asynccontextmanager
    async def _undone(self, endpoints: Sequence[str], name: str) -> AsyncGenerator[None, None]:
        """Lets an adapter go again when the block raises."""
        try:
            yield
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._unload(endpoints, name)
            raise

    async def _load(self, endpoints: Sequence[str], name: str, path: str, state: PolicyState) -> None:
        wanted = {"lora_name": name, "lora_path": path}
        if failures := await self._everywhere(endpoints, "load_lora_adapter", wanted, self.seconds):
            raise publish_failed(state, failures)

    async def _unload(self, endpoints: Iterable[str], name: str) -> None:
        """Lets an adapter go; a server that keeps it only has less room, which vLLM makes by itself when it needs some."""
        failures = await self._everywhere(endpoints, "unload_lora_adapter", {"lora_name": name}, _UNDO_SECONDS)
        for refused in failures:
            if refused["status"] != 404:  # 404: it was not loaded there
                log.warning("%s keeps the adapter %r: %s", refused["endpoint"], name, refused["said"])

    async def _everywhere(
        self, endpoints: Iterable[str], verb: str, body: Mapping[str, str], seconds: float
    ) -> list[dict[str, Any]]:
        """Asks all endpoints at once; gives who did not do it, and why."""
        asked = [self._ask(endpoint, verb, body, seconds) for endpoint in endpoints]
        return [refused for refused in await asyncio.gather(*asked) if refused is not None]

    async def _ask(self, endpoint: str, verb: str, body: Mapping[str, str], seconds: float) -> dict[str, Any] | None:
        url = f"{_place(endpoint)}/{verb}"
        key = self._keys.get(_server(endpoint))
        try:
            with transport_errors(url):
                async with shared_http().post(
                    url,
                    json=body,
                    headers={} if key is None else bearer_headers(key),
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=seconds),
                ) as response:
                    if response.status == 200:
                        return None
                    text = (await response.content.read(64 * 1024)).decode("utf-8", "replace")
        except AgentEnvError as error:
            return failure(endpoint, None, error.message)
        said = _said(text)
        if response.status == 404 and said == "Not Found":
            said += " (start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True)"
        return failure(endpoint, response.status, said)


def _place(endpoint: str) -> str:
    """What two spellings of an endpoint have in common."""
    return endpoint.rstrip("/")


def _server(endpoint: str) -> URL:
    return URL(endpoint).origin()


def _prefix(state: PolicyState) -> str:
    """What the names of a policy's adapters begin with."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", state.policy) + "-v"


def _path(weights: str | os.PathLike[str]) -> str:
    return weights if isinstance(weights, str) else str(Path(weights).resolve())


def _said(text: str) -> str:
    """What an error of a vLLM server says, in any of the forms that its versions have."""
    try:
        value = json.loads(text)
        error = value.get("error", value.get("detail", value.get("message")))
        said = error["message"] if isinstance(error, dict) else error
    except (ValueError, AttributeError, KeyError):
        said = text
    return (said if isinstance(said, str) else text)[:_SHOWN]
