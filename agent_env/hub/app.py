"""A hub as a web application: the calls of `Hub` over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent_env.context import Principal
from agent_env.errors import AgentEnvError, InvalidArguments, MessageTooLarge
from agent_env.hub import messages
from agent_env.hub.facts import parsed_card
from agent_env.hub.local import LocalHub
from agent_env.hub.records import Release
from agent_env.net import Limits, Tokens, bearer, is_loopback, require
from agent_env.net.refusals import error_headers
from agent_env.net.uploads import TimelyBodies

PUBLISH_SCOPE = "publish"
"""The scope that a token needs to change anything in a hub that asks for tokens."""

ANYBODY = "anybody"
"""The owner of what callers from elsewhere publish in a hub that asks for no tokens."""

_SEQUENCE_DIGITS = 18
"""How many digits a place in the change feed may have: every database counts so far."""

Handler: TypeAlias = Callable[[Request], Awaitable[Any]]
M = TypeVar("M", bound=messages.Request)


def hub_app(hub: LocalHub, tokens: Tokens | None = None, *, limits: Limits | None = None) -> Starlette:
    """Makes the ASGI application that serves a hub; it opens the hub when it starts and closes it when it stops.

    With tokens, also when there is none of them, reading is free without one (how a release is launched is then only
    told by its kind), changing needs the scope `publish`, and a name belongs to whoever published it first. A token
    that is not accepted is refused to readers too. Without tokens everybody who can reach it may do everything, except
    to change what this machine published; what comes from elsewhere is owned by `ANYBODY`, since an owner keeps a launch
    from being run here.

    Reads are GET `/v1/resolve?ref=`, `/v1/list?name=`, `/v1/instances?name=&launch_id=`, `/v1/changes?since=`; changes
    are POST `/v1/publish`, `yank`, `unyank`, `deprecate`, `prune`, `register`, `renew`, `release`, `doubt`,
    `claim_launch` and `end_launch`, each with a JSON body. Errors are `{"error": {code, message, retryable, data}}`.
    """
    limits = limits or Limits()
    api = _Api(hub, tokens, limits.max_message_bytes)
    reads: dict[str, Handler] = {
        "resolve": api.resolve,
        "list": api.list,
        "instances": api.instances,
        "changes": api.changes,
    }
    changes: dict[str, Handler] = {
        "publish": api.publish,
        "yank": api.yank,
        "unyank": api.unyank,
        "deprecate": api.deprecate,
        "prune": api.prune,
        "register": api.register,
        "renew": api.renew,
        "release": api.release,
        "doubt": api.doubt,
        "claim_launch": api.claim_launch,
        "end_launch": api.end_launch,
    }
    routes = [Route("/health", _answering(api.health), methods=["GET"])]
    routes += [Route(f"/v1/{name}", _answering(handler), methods=["GET"]) for name, handler in reads.items()]
    routes += [Route(f"/v1/{name}", _answering(handler), methods=["POST"]) for name, handler in changes.items()]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        async with hub:
            yield

    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(TimelyBodies, seconds=limits.body_seconds)],
        exception_handlers={Exception: _crashed, 404: _unknown},
    )


class _Api:
    """The handlers: read the request, call the hub, return JSON."""

    def __init__(self, hub: LocalHub, tokens: Tokens | None, max_bytes: int) -> None:
        self._hub = hub
        self._tokens = tokens
        self._max_bytes = max_bytes

    async def health(self, request: Request) -> Any:
        await self._hub.start()
        return {"status": "healthy"}

    async def resolve(self, request: Request) -> Any:
        show = self._shown(request)
        resolution = await self._hub.resolve(_query(request, "ref"))
        return replace(resolution, release=show(resolution.release)).to_json()

    async def list(self, request: Request) -> Any:
        show = self._shown(request)
        entries = await self._hub.list(request.query_params.get("name"))
        return {"entries": [replace(entry, release=show(entry.release)).to_json() for entry in entries]}

    async def instances(self, request: Request) -> Any:
        self._reader(request)
        query = request.query_params
        found = await self._hub.instances(query.get("name"), launch_id=query.get("launch_id"))
        return {"instances": [instance.to_json() for instance in found]}

    async def changes(self, request: Request) -> Any:
        show = self._shown(request)
        since = _query(request, "since")
        if not since.isdecimal() or len(since) > _SEQUENCE_DIGITS:
            raise InvalidArguments(f"since={since!r} must be a number that an earlier answer gave, or 0")
        changes = await self._hub.changes(int(since))
        return {"sequence": changes.sequence, "releases": [show(release).to_json() for release in changes.releases]}

    async def publish(self, request: Request) -> Any:
        hub, body = await self._change(request, messages.Publish)
        return (await hub.publish(parsed_card(body.card), body.launch)).to_json()

    async def yank(self, request: Request) -> Any:
        hub, body = await self._change(request, messages.Mark)
        return (await hub.yank(body.name, body.version, body.reason)).to_json()

    async def unyank(self, request: Request) -> Any:
        hub, body = await self._change(request, messages.Mark)
        return (await hub.unyank(body.name, body.version)).to_json()

    async def deprecate(self, request: Request) -> Any:
        hub, body = await self._change(request, messages.Mark)
        return (await hub.deprecate(body.name, body.version, body.reason)).to_json()

    async def prune(self, request: Request) -> Any:
        hub, body = await self._change(request, messages.Prune)
        return (await hub.prune(drafts_older_than=body.drafts_older_than, dry_run=body.dry_run)).to_json()

    async def register(self, request: Request) -> Any:
        hub, body = await self._change(request, messages.Register)
        lease = await hub.register(
            parsed_card(body.card),
            body.url,
            capacity=body.capacity,
            load=body.load,
            source=body.source,
            launch=body.launch,
            launch_id=body.launch_id,
        )
        return lease.to_json()

    async def renew(self, request: Request) -> Any:
        hub, body = await self._change(request, messages.Renew)
        await hub.renew(body.lease, body.load)

    async def release(self, request: Request) -> Any:
        hub, body = await self._change(request, messages.End)
        await hub.release(body.lease)

    async def doubt(self, request: Request) -> Any:
        # Callers that may only read must be able to say so too; a doubt is gone with the next renewal.
        hub, body = await self._change(request, messages.Doubt, scope=None)
        await hub.doubt(body.instance)

    async def claim_launch(self, request: Request) -> Any:
        hub, body = await self._change(request, messages.ClaimLaunch)
        claim = await hub.claim_launch(body.name, body.version, seconds=body.seconds, after=body.after)
        return {"id": claim.id, "granted": claim.granted, "error": claim.error}

    async def end_launch(self, request: Request) -> Any:
        hub, body = await self._change(request, messages.EndLaunch)
        await hub.end_launch(body.claim, body.error)

    def _reader(self, request: Request) -> Principal | None:
        """Who reads, None where nobody has to say; raises `Unauthenticated` for a token that is not accepted."""
        authorization = request.headers.get("authorization")
        if self._tokens is None or bearer(authorization) is None:
            return None
        return self._tokens.authenticate(authorization)

    def _shown(self, request: Request) -> Callable[[Release], Release]:
        """What of a release the reader is told: how it is launched only where they may claim a launch."""
        reader = self._reader(request)
        return _whole if self._tokens is None or (reader and PUBLISH_SCOPE in reader.scopes) else _without_places

    async def _change(self, request: Request, kind: type[M], scope: str | None = PUBLISH_SCOPE) -> tuple[LocalHub, M]:
        """The hub as the caller may use it, and the body; the caller is checked before the body is read."""
        hub = self._hub
        if self._tokens is not None:
            principal = self._tokens.authenticate(request.headers.get("authorization"))
            if scope is not None:
                require(principal, scope)
            hub = hub.on_behalf_of(principal.id)
        elif not _from_here(request):
            hub = hub.on_behalf_of(ANYBODY)
        try:
            return hub, kind.model_validate_json(await self._body(request))
        except ValidationError as error:
            problems = [
                {"pointer": "".join(f"/{step}" for step in found["loc"]), "message": found["msg"]}
                for found in error.errors(include_url=False, include_input=False, include_context=False)
            ]
            listed = "; ".join(f"{problem['pointer'] or '/'}: {problem['message']}" for problem in problems[:5])
            raise InvalidArguments(
                f"the body of {request.url.path} is not valid: {listed}", problems=problems
            ) from None

    async def _body(self, request: Request) -> bytes:
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > self._max_bytes:
                raise MessageTooLarge(f"a request to the hub may have at most {self._max_bytes} bytes")
        return bytes(content)


def _whole(release: Release) -> Release:
    return release


def _without_places(release: Release) -> Release:
    """The release without the folders, machines and names of variables of whoever published it.

    The kind of its launch stays: that it can be launched is a part of its liveness.
    """
    launch = release.launch
    return replace(release, launch=None if launch is None else {key: launch[key] for key in launch if key == "kind"})


def _from_here(request: Request) -> bool:
    """Tells whether a program of this machine asks by itself: not another machine, its proxy, or a page in a browser.

    Pages of any site may post to loopback; browsers say so in `Origin` (Fetch standard, "`Origin` header").
    """
    relayed = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "x-real-ip", "via", "origin"))
    return not relayed and request.client is not None and is_loopback(request.client.host)


def _query(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if value is None:
        raise InvalidArguments(f"{request.url.path} needs the query parameter {name!r}")
    return value


def _answering(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            result = await handler(request)
        except AgentEnvError as error:
            return _refusal(error)
        return Response(status_code=204) if result is None else JSONResponse(result)

    return endpoint


def _refusal(error: AgentEnvError) -> Response:
    return JSONResponse({"error": error.to_wire()}, error.http_status, error_headers(error))


async def _unknown(request: Request, error: Exception) -> Response:
    wire = InvalidArguments(f"a hub has nothing at {request.url.path}").to_wire()
    return JSONResponse({"error": wire}, status_code=404)


async def _crashed(request: Request, error: Exception) -> Response:
    # The server logs the exception; the caller gets none of it.
    return _refusal(AgentEnvError("the hub failed in a way it did not foresee; its log has the cause"))
