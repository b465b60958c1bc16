"""A hub that somebody serves, over HTTP."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

from agent_env.errors import DeadlineExceeded, Forbidden, ProtocolError, TransportError, Unauthenticated
from agent_env.hub.facts import Facts
from agent_env.hub.hub import Hub
from agent_env.hub.location import TOKEN_VARIABLE, Location
from agent_env.hub.records import Changes, Entry, Instance, LaunchClaim, Lease, Pruned, Release, Resolution, id_of
from agent_env.net import bearer_headers, request_json
from agent_env_cards import EnvironmentCard, Reference

_SECONDS = 15.0


class RemoteHub(Hub):
    """A hub at an http(s) URL; `hub_app` is the other end."""

    def __init__(self, location: Location, *, token: str | None = None, rng: random.Random | None = None) -> None:
        super().__init__(location, rng)
        self._headers = bearer_headers(token or os.environ.get(TOKEN_VARIABLE))

    async def start(self) -> None:
        await self._get("/health")

    async def aclose(self) -> None:
        return None

    async def publish(self, card: EnvironmentCard, launch: Mapping[str, Any] | None = None) -> Release:
        return Release.from_json(await self._post("publish", card=Facts.of(card).card, launch=_plain(launch)))

    async def yank(self, name: str, version: str, reason: str) -> Release:
        return Release.from_json(await self._post("yank", name=name, version=version, reason=reason))

    async def unyank(self, name: str, version: str) -> Release:
        return Release.from_json(await self._post("unyank", name=name, version=version))

    async def deprecate(self, name: str, version: str, reason: str) -> Release:
        return Release.from_json(await self._post("deprecate", name=name, version=version, reason=reason))

    async def prune(self, *, drafts_older_than: float | None = None, dry_run: bool = False) -> Pruned:
        answer = await self._post("prune", drafts_older_than=drafts_older_than, dry_run=dry_run)
        return Pruned.from_json(answer)

    async def register(
        self,
        card: EnvironmentCard,
        url: str,
        *,
        capacity: int | None = None,
        load: int = 0,
        source: str | None = None,
        launch: Mapping[str, Any] | None = None,
        launch_id: str | None = None,
    ) -> Lease:
        answer = await self._post(
            "register",
            card=Facts.of(card).card,
            url=url,
            capacity=capacity,
            load=load,
            source=source,
            launch=_plain(launch),
            launch_id=launch_id,
        )
        return Lease(**answer)

    async def renew(self, lease: Lease | str, load: int | None = None) -> None:
        await self._post("renew", lease=id_of(lease), load=load)

    async def release(self, lease: Lease | str) -> None:
        await self._post("release", lease=id_of(lease))

    async def doubt(self, instance: Instance | str) -> None:
        await self._post("doubt", instance=id_of(instance))

    async def resolve(self, ref: str | Reference) -> Resolution:
        return Resolution.from_json(await self._get("/v1/resolve", ref=str(ref)))

    async def list(self, name: str | None = None) -> Sequence[Entry]:
        answer = await self._get("/v1/list", name=name)
        return [Entry.from_json(entry) for entry in answer["entries"]]

    async def instances(self, name: str | None = None, *, launch_id: str | None = None) -> Sequence[Instance]:
        answer = await self._get("/v1/instances", name=name, launch_id=launch_id)
        return [Instance.from_json(instance) for instance in answer["instances"]]

    async def changes(self, since: int = 0) -> Changes:
        answer = await self._get("/v1/changes", since=str(since))
        return Changes(answer["sequence"], tuple(Release.from_json(release) for release in answer["releases"]))

    async def claim_launch(self, name: str, version: str, *, seconds: float, after: str | None = None) -> LaunchClaim:
        answer = await self._post("claim_launch", name=name, version=version, seconds=float(seconds), after=after)
        return LaunchClaim(**answer)

    async def end_launch(self, claim_id: str, error: str | None = None) -> None:
        await self._post("end_launch", claim=claim_id, error=error)

    async def _get(self, path: str, **query: str | None) -> Any:
        return await self._call("GET", path, params={key: value for key, value in query.items() if value is not None})

    async def _post(self, operation: str, **body: Any) -> Any:
        return await self._call("POST", f"/v1/{operation}", body=body)

    async def _call(self, method: str, path: str, body: Any = None, params: Mapping[str, str] | None = None) -> Any:
        try:
            return await request_json(
                method, self.location.url + path, body, headers=self._headers, params=params, timeout=_SECONDS
            )
        except (TransportError, DeadlineExceeded) as error:
            raise TransportError(
                f"the hub {self.location} cannot be reached ({error.message}); start it with `agent-env hub serve`, "
                f"or set AGENT_ENV_HUB to another"
            ) from error
        except (Unauthenticated, Forbidden) as error:
            # Whoever reads this may have given tokens of agents too, and has to know which of them this is about.
            remedy = f"; set {TOKEN_VARIABLE} to such a token" if _of_tokens(error) else ""
            refused = type(error)(f"the hub {self.location} refused: {error.message}{remedy}")
            refused.data = error.data
            raise refused from error
        except ProtocolError as error:
            raise ProtocolError(
                f"{self.location} does not answer as a hub does ({error.message}); "
                f"set AGENT_ENV_HUB to the URL that `agent-env hub serve` printed"
            ) from error


def _of_tokens(error: Unauthenticated | Forbidden) -> bool:
    """Tells whether another token would do; a name that belongs to somebody else is no matter of tokens."""
    return isinstance(error, Unauthenticated) or "scope" in error.data


def _plain(launch: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if launch is None else dict(launch)
