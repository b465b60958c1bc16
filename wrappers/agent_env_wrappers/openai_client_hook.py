"""Re-points the openai SDK's model requests, for agents whose model cannot be set once they are built.

While a route is current, every chat completion, completion and response of every openai client goes to the route
instead: its URL, its key, its model name. Nothing of the client's own credentials goes along. The route is a context
variable, so turns that run at the same time keep theirs apart, also in threads that copy the context.

This uses one private method of the SDK, since no public one is asked at request time; `install` proves it first
and says clearly when a new version of the SDK has moved it.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from threading import Lock
from typing import Any

from agent_env_wrappers.contract import ModelRoute, WrapError

SDKS = ("openai", "anthropic")
"""What a model may be asked through to take a route."""

CHAT = "/chat/completions"
PATHS = (CHAT, "/completions", "/responses")
"""Where a model is asked, each below a route's `base_url`."""

KEPT = frozenset(
    {
        *("accept", "accept-encoding", "connection", "content-length", "content-type", "user-agent"),
        # They mark a retry, which is not told from a second call without them.
        *("idempotency-key", "x-stainless-retry-count"),
        # The SDK reads in its own request whether its caller wants the response itself.
        "x-stainless-raw-response",
    }
)
"""Headers that go to a route: no other one, since any may hold a credential of the agent's owner."""


@dataclass(slots=True)
class Routed:
    """The route of one turn and how many requests took it; `strays` are those that no turn is known of, until it began."""

    route: ModelRoute
    requests: int = 0
    strays: int = 0

    @property
    def strayed(self) -> bool:
        """Whether a model was asked meanwhile by code outside of all turns, as threads of an agent's own are."""
        return BuildRequest.strays != self.strays


_installing = Lock()
"""Held while hooks are put in, since turns of several threads may be the first ones."""

_current: ContextVar[Routed | None] = ContextVar("agent_env_wrappers_route", default=None)

_OUTSIDE: Any = object()
"""Stands for the route where no turn has said whether there is one."""


@contextmanager
def routed(route: ModelRoute | None) -> Generator[Routed | None]:
    """Sends the model requests of the block to `route`; with None, to where each client sends them itself.

    A turn that is played inside another one's (a peer in the same process) must not inherit its route, so every
    wrapper that may reach a model's SDK enters this, with its own route or with None. The anthropic SDK takes the
    route as well. Raises `WrapError` when neither SDK is installed, or one of them cannot be re-pointed.
    """
    if route is not None:
        install_hooks()
    mine = None if route is None else Routed(route, strays=BuildRequest.strays)
    token = _current.set(mine)
    try:
        yield mine
    finally:
        # A turn that was dropped is closed in another context, where there is nothing to put back.
        with suppress(ValueError):
            _current.reset(token)


def current_route() -> Routed | None:
    """The route of the running code, None where there is none."""
    return _current.get()


def hold(route: Routed | None) -> None:
    """Raises `WrapError` when the turn goes on in another context, where the model calls would pass by the route."""
    if current_route() is not route:
        raise WrapError("one task must drive a turn from its first event to its end, and another one went on with it")


def can_repoint() -> bool:
    """Whether one of the SDKs is installed that take a route; imports neither."""
    return any(find_spec(sdk) is not None for sdk in SDKS)


def install_hooks() -> list[str]:
    """Puts the hooks into those of the SDKs that are installed, and returns their names and versions.

    They are imported here, since an agent may import its own in the middle of a turn. Raises `WrapError` when neither
    is there, or as `install` does.
    """
    from agent_env_wrappers import anthropic_client_hook

    with _installing:
        found = list(zip(SDKS, (install(), anthropic_client_hook.install()), strict=True))
    hooked = [f"{sdk} {version}" for sdk, version in found if version is not None]
    if not hooked:
        raise WrapError(
            "the model of this agent can be re-pointed only where it is asked through the openai or the anthropic SDK, "
            "and neither is installed: install openai>=2 or anthropic, or hand over a function with a parameter "
            "`model` or a factory that uses build.model"
        )
    return hooked


def install() -> str | None:
    """Puts the hook into the openai SDK, once in a process, and returns the SDK's version; None where it is not
    installed.

    Raises `WrapError` when a request that is built for the test does not take the route.
    """
    try:
        import openai
    except ImportError:
        return None
    try:
        from openai._base_client import BaseClient
    except ImportError as error:
        raise WrapError(_moved(openai.__version__)) from error
    client: Any = BaseClient
    if not isinstance(getattr(client, "_build_request", None), _BuildOpenAI):
        original = getattr(client, "_build_request", None)
        if original is None:
            raise WrapError(_moved(openai.__version__))
        client._build_request = _BuildOpenAI(original)
        try:
            _prove()
        except Exception as error:
            client._build_request = original
            raise WrapError(_moved(openai.__version__)) from error
    return openai.__version__


class BuildRequest:
    """Stands in for `BaseClient._build_request(self, options, *, retries_taken=0)` of an SDK that is made as the openai
    SDK is: requests that ask a model go to the current route."""

    kept = KEPT
    strays = 0
    """How many requests of this process asked a model outside of all turns."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __get__(self, client: Any, owner: Any = None) -> Any:
        return self if client is None else partial(self, client)

    def path(self, url: str) -> str | None:
        """Where a request goes below a route's `base_url`; None for one that asks no model."""
        raise NotImplementedError

    def __call__(self, client: Any, options: Any, **kwargs: Any) -> Any:
        turn = _current.get()
        path = self.path(options.url)
        if turn is None or path is None:
            if path is not None and _current.get(_OUTSIDE) is _OUTSIDE:
                with _installing:
                    BuildRequest.strays += 1
            return self._original(client, options, **kwargs)
        _refuse(client)
        route = turn.route
        body = {**(options.json_data or {}), **(options.extra_json or {}), "model": route.model}
        options = options.model_copy(update={"json_data": body, "extra_json": None})
        request = self._original(client, options, **kwargs)
        request.url = type(request.url)(route.base_url.rstrip("/") + path)
        headers = {name: value for name, value in request.headers.items() if name.lower() in self.kept}
        headers["host"] = request.url.netloc.decode("ascii")
        if route.api_key:
            headers["authorization"] = f"Bearer {route.api_key}"
        request.headers = type(request.headers)({**headers, **route.headers})
        turn.requests += 1
        return request


class _BuildOpenAI(BuildRequest):
    def path(self, url: str) -> str | None:
        return next((path for path in PATHS if url.endswith(path)), None)


def proven(client: Any, options: Any) -> Any:
    """A request that a client builds for a route of `http://route.invalid/v1`; raises `RuntimeError`, or what the SDK
    raises, unless the route's key and model are in it."""
    token = _current.set(Routed(ModelRoute("http://route.invalid/v1", "routed", "key")))
    try:
        request = client._build_request(options)
    finally:
        _current.reset(token)
    sent = json.loads(request.content)["model"], request.headers["authorization"]
    if sent != ("routed", "Bearer key"):
        raise RuntimeError(f"the request went out as {sent!r}")
    return request


def _refuse(client: Any) -> None:
    """Raises `WrapError` for clients whose requests cannot take a route, instead of letting them pass by it."""
    signs = client.custom_auth is not None or getattr(client, "_provider_runtime", None) is not None
    if signs or client._client.auth is not None:
        raise WrapError(
            f"the agent's {type(client).__name__} client signs its requests itself, and its credentials must not go "
            "to a route; make it with a plain api_key"
        )


def _prove() -> None:
    """Raises `RuntimeError`, or what the SDK raises, unless a request is built for the route and for it alone."""
    from openai import OpenAI
    from openai._models import FinalRequestOptions

    with OpenAI(api_key="own", base_url="http://own.invalid/v1") as client:
        options = FinalRequestOptions(method="post", url=CHAT, json_data={"model": "own", "messages": []})
        request = proven(client, options)
    if str(request.url) != f"http://route.invalid/v1{CHAT}":
        raise RuntimeError(f"the request went out to {request.url}")


def _moved(version: str) -> str:
    return (
        f"openai {version} no longer builds its requests in BaseClient._build_request as the versions 2 and 3 do, so "
        "the model of this agent cannot be re-pointed; install an earlier openai, or hand over a factory that uses "
        "build.model"
    )
