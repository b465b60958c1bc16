"""A run from its owner's side: opened once, its tokens minted offline, its episodes collected."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from types import TracebackType
from typing import Any, Self

import aiohttp

from agent_env.context import Route, Run
from agent_env.errors import ProtocolError
from agent_env.gateway.policy_client import PolicyHandle
from agent_env.gateway.runs import SeatPolicy
from agent_env.gateway.tokens import checked_name, mint_token
from agent_env.net import bearer_headers, error_of, post_json, request_json, shared_http, transport_errors

_SECONDS = 60.0
_BATCH = 500


class RunHandle:
    """A run that is open at a gateway.

        async with await RunHandle.open(url, token, {"sender": SeatPolicy("A", (policy_url,))}) as run:
            seat = run.episode("e1", "sender")          # a context.Run with its tokens, made offline
            ...
            records = await run.collect(["e1"])         # {"e1": [record, …]} in JSON form

    A seat with None instead of a policy keeps the agent's own model and tells what it did. Leaving the block closes the
    run. Its journal stays where the gateway keeps it, unless `keep_journal` is False because what was collected is kept
    elsewhere.
    """

    def __init__(
        self,
        gateway: str,
        run: str,
        secret: str,
        seats: Mapping[str, SeatPolicy | None],
        admin_token: str,
        *,
        keep_journal: bool = True,
    ) -> None:
        self.gateway = gateway.rstrip("/")
        self.run = run
        self.secret = secret
        self.seats = dict(seats)
        self.keep_journal = keep_journal
        self._admin_token = admin_token
        self._headers = bearer_headers(admin_token)

    @classmethod
    async def open(
        cls,
        gateway: str,
        admin_token: str,
        seats: Mapping[str, SeatPolicy | None],
        *,
        run: str | None = None,
        secret: str | None = None,
        keep_journal: bool = True,
    ) -> RunHandle:
        """Opens a run, or opens it again when `run` and `secret` are those of an earlier one."""
        body: dict[str, Any] = {"seats": {seat: policy and policy.to_json() for seat, policy in seats.items()}}
        if run is not None:
            body["run"] = run
        if secret is not None:
            body["secret"] = secret
        url = gateway.rstrip("/") + "/runs"
        opened = await post_json(url, body, headers=bearer_headers(admin_token), timeout=_SECONDS)
        try:
            return cls(
                gateway, str(opened["run"]), str(opened["secret"]), seats, admin_token, keep_journal=keep_journal
            )
        except (KeyError, TypeError):
            raise ProtocolError(f"{url} did not answer as a gateway does") from None

    def episode(self, episode: str, seat: str) -> Run:
        """One episode of the run as the agent in `seat` is to see it, with the tokens of all seats."""
        checked_name("episode", episode)
        routes = {
            name: Route(mint_token(self.secret, episode, name), "" if policy is None else policy.model)
            for name, policy in self.seats.items()
        }
        return Run(self.gateway, self.run, episode, seat, routes)

    def policy(self, name: str) -> PolicyHandle:
        """A policy of the run's seats, to be paused and changed: by `SeatPolicy.policy`, or by its model where that is
        None."""
        return PolicyHandle(self.gateway, self._admin_token, name, run=self.run)

    async def collect(self, episodes: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """The records of episodes so far, in JSON form and the order of their arrival; every id has an entry.

        Raises `ProtocolError` for an answer that is no records of these episodes.
        """
        wanted = list(episodes)
        found: dict[str, list[dict[str, Any]]] = {episode: [] for episode in wanted}
        left = iter(wanted)
        while batch := list(islice(left, _BATCH)):
            for line in (await self._fetch(batch)).splitlines():
                try:
                    record = json.loads(line)
                    found[record["episode"]].append(record)
                except (ValueError, KeyError, TypeError) as error:
                    raise ProtocolError(
                        f"the gateway at {self.gateway} was asked for records of {len(batch)} episodes of the run "
                        f"{self.run!r} and answered {line!r:.100}, which is none of them"
                    ) from error
        return found

    async def aclose(self) -> None:
        """Closes the run at the gateway."""
        params = None if self.keep_journal else {"journal": "drop"}
        url = f"{self.gateway}/runs/{self.run}"
        await request_json("DELETE", url, headers=self._headers, params=params, timeout=_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _fetch(self, episodes: list[str]) -> bytes:
        url = f"{self.gateway}/runs/{self.run}/collect"
        with transport_errors(url):
            async with shared_http().post(
                url,
                json={"episodes": episodes},
                headers=self._headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=_SECONDS),
            ) as response:
                if response.status != 200:
                    raise await error_of(response)
                return await response.read()
