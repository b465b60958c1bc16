"""The gateway: the model endpoint that agents are pointed at, and the collector of what they did."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_env.context import new_call_id
from agent_env.episodes import EdgeRecord, TurnRecord, record_from_json
from agent_env.errors import (
    AgentEnvError,
    AtCapacity,
    ConfigurationError,
    Forbidden,
    InvalidArguments,
    ProtocolError,
    Unauthenticated,
    UnknownTool,
)
from agent_env.gateway.collector_client import MOST_POSTED
from agent_env.gateway.dialects import BY_PATH, Dialect
from agent_env.gateway.http import (
    CallerGone,
    Receive,
    Scope,
    Send,
    dump,
    header,
    parse,
    read_body,
    reply,
    reply_error,
    reply_json,
)
from agent_env.gateway.journal import Journal, check_writable
from agent_env.gateway.policies import REST_SECONDS, OpenPolicy, Policies
from agent_env.gateway.presence import while_there
from agent_env.gateway.proxy import ModelCall, ModelRequest
from agent_env.gateway.retries import mark_of
from agent_env.gateway.runs import OpenRun, Seating, SeatPolicy, stopping
from agent_env.gateway.steering import asked_of, steer
from agent_env.gateway.tokens import checked_name, checked_secret, new_secret
from agent_env.net import bearer
from agent_env.net.uploads import BODY_SECONDS, timely

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_REPLY_BYTES = 64 * 1024 * 1024
MODEL_SECONDS = 600.0
CLOSE_SECONDS = 5.0

_OPEN_SECONDS = 25.0
"""How long a run is waited for that another gateway has open: longer than one takes to close it as it stops."""
_LOOK_SECONDS = 0.1


class Gateway:
    """An ASGI app that forwards the model calls of runs, records them, and collects turns and edges.

    | request | bearer | does |
    |---|---|---|
    | `POST /runs` `{seats, run?, secret?}` | admin | opens a run: `{run, secret}` |
    | `POST /runs/{run}/{episode}/{seat}/{call_id}/v1/chat/completions` | the seat's | one model call |
    | `POST …/v1/completions`, `…/v1/responses`, `…/v1/messages` | the seat's | the same in other dialects |
    | `GET …/v1/models` | the seat's | the seat's model |
    | `POST /runs/{run}/{episode}/records` | any seat's of the episode | keeps a JSON array of turns and edges |
    | `POST /runs/{run}/records` `[{episode, token, records}]` | in the body | the same for several: `{results}`, a null or an error each |
    | `POST /runs/{run}/collect` `{episodes: [id]}` | admin | the episodes' records, JSON lines in order of arrival |
    | `DELETE /runs/{run}` | admin | closes the run; its journal `{directory}/{run}.jsonl` stays |
    | `DELETE /runs/{run}?journal=drop` | admin | closes the run and deletes its journal |
    | `GET`, `PUT /runs/{run}/policies/{policy}` | admin | tells what a policy is, and changes it: `{model?, endpoints?, version?}` |
    | `POST /runs/{run}/policies/{policy}/{pause,drain,resume}` | admin | stops it taking calls, waits for those under way, goes on |
    | the same below `/policies/{policy}` | admin | of a policy that runs share by its name |
    | `GET /health` | none | `{"status": "healthy", …}` |

    A record that was acknowledged is on disk. A run that is opened again with its secret, by this process or a later
    one, has all of them; one that another gateway on the same directory still has open is waited for, and refused with
    `AtCapacity` where it stays so. The tokens of seats are minted from the secret by whoever opened the run (`RunHandle`).

    Closing a run refuses its further calls and those that are held. Calls under way have `close_seconds` to end, none
    where the journal is dropped; then they are ended. Either way the record of each is on disk before the run is closed.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        admin_token: str | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        model_seconds: float = MODEL_SECONDS,
        body_seconds: float = BODY_SECONDS,
        rest_seconds: float = REST_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        self.directory = Path(directory)
        self.admin_token = admin_token or secrets.token_urlsafe(32)
        self._max_body = max_body_bytes
        self._max_reply = max_reply_bytes
        self._model_seconds = model_seconds
        self._body_seconds = body_seconds
        self._close_seconds = close_seconds
        self._runs: dict[str, OpenRun] = {}
        self._policies = Policies(rest_seconds)
        self._started = self._stopping = False

    def start(self) -> None:
        """Takes calls, after `stop` again, as a gateway without runs.

        Raises `ConfigurationError` for one that was started and not stopped since, and where no journal can be written.
        """
        if self._started:
            raise ConfigurationError(
                "the gateway is served already, and whichever server ends first would stop it for the other; serve it once"
            )
        check_writable(self.directory)
        self._started, self._stopping = True, False

    async def stop(self, seconds: float) -> None:
        """Closes all runs as it is being stopped; their journals stay.

        Calls that are held, and whatever else is asked from now on, are told `Stopping`, with the status 503. Calls
        under way have `seconds` to end and are then told so too, or that their run was closed, where its owner closed
        it before; the record of each is on disk when this returns. Who does not wait for that stops it all the same.
        """
        self._started, self._stopping = False, True
        runs = tuple(self._runs.values())
        for run in runs:
            run.stopped = run.stopped or not run.closed
        if closing := [self._begin_to_close(run, drop=False, seconds=seconds) for run in runs]:
            await asyncio.wait(closing)
        for closed in closing:
            closed.result()

    def close(self) -> None:
        """Closes all runs at once, but those that are being closed already; the journals of all stay."""
        for name, run in tuple(self._runs.items()):
            if not run.closed:
                run.journal.close()
                del self._runs[name]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ProtocolError(f"the gateway speaks http, not {scope['type']!r}")
        try:
            await self._answer(scope, timely(receive, self._body_seconds), send)
        except AgentEnvError as error:
            await reply_error(send, error)
        except CallerGone:
            return

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        match scope["method"], path.split("/")[1:]:
            case "POST", ["runs", run, episode, seat, turn, "v1", *rest] if dialect := BY_PATH.get(tuple(rest)):
                await self._ask(dialect, (run, episode, seat, turn), scope, receive, send)
            case "GET", ["runs", run, episode, seat, _, "v1", "models"]:
                opened = self._admit(run, episode, seat, _token(dict(scope["headers"])))
                name = opened.seating.played[seat].served.model
                model = {"id": name, "object": "model", "created": 0, "owned_by": "agent-env"}
                await reply_json(send, 200, {"object": "list", "data": [model]})
            case "POST", ["runs", run, episode, "records"]:
                token = bearer(header(scope, b"authorization"))
                self._admit(run, episode, None, token)
                records = parse(await read_body(scope, receive, self._max_body))
                await self._keep(run, episode, token, records)
                await reply(send, 200, b"{}")
            case "POST", ["runs", run, "records"]:
                self._check_open(run)
                await self._keep_several(run, parse(await read_body(scope, receive, self._max_body)), send)
            case "POST", ["runs", run, "collect"]:
                opened = self._own(scope, run)
                await self._collect(opened, parse(await read_body(scope, receive, self._max_body)), send)
            case "POST", ["runs"]:
                self._check_admin(scope)
                await reply_json(send, 200, await self._open(parse(await read_body(scope, receive, self._max_body))))
            case method, ["runs", run, "policies", *rest]:
                name, verb = asked_of(method, rest)
                await self._steer(self._own(scope, run).seating.named(name), verb, scope, receive, send)
            case method, ["policies", *rest]:
                self._check_admin(scope)
                name, verb = asked_of(method, rest)
                await self._steer(self._policies.named(name), verb, scope, receive, send)
            case "DELETE", ["runs", run]:
                drop = scope["query_string"] == b"journal=drop"
                # What is dropped need not become whole.
                seconds = 0.0 if drop else self._close_seconds
                await asyncio.shield(self._begin_to_close(self._own(scope, run), drop=drop, seconds=seconds))
                await reply(send, 200, b"{}")
            case "GET", ["health"]:
                data = {"status": "healthy", "runs": len(self._runs)}
                await reply_json(send, 200, {"status": "healthy", "success": True, "data": data})
            case method, _:
                raise UnknownTool(
                    f"the gateway has no {method} {path!r}; see agent_env.gateway.Gateway for what it has"
                )

    async def _ask(
        self, dialect: Dialect, place: tuple[str, str, str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Plays a model call; what refuses it is told in the dialect."""
        run, episode, seat, turn = place
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            found = self._admit(run, episode, seat, _token(headers))
            body = await read_body(scope, receive, self._max_body)
            request = ModelRequest(dialect, body, headers)
            checked_name("call id", turn)
            try:
                while found.holds(seat):
                    await while_there(receive, found.hold(seat))
            except AtCapacity:
                found.recent.refuse((episode, seat, turn), mark_of(headers), body)
                raise
            with found.enter(seat) as admission:
                call = ModelCall(found, episode, seat, turn, request, admission, self._max_reply)
                with found.under_way(call):
                    await call.play(receive, send, self._model_seconds)
        except AgentEnvError as error:
            status = dialect.status(error)
            await reply_error(send, error, dialect.refusal(status, error.to_wire()), status=status)

    def _check_open(self, name: str) -> None:
        if name not in self._runs:
            self._check_going_on()
            raise _unauthenticated()

    async def _steer(self, policy: OpenPolicy, verb: str, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(scope, receive, self._max_body)
        await reply_json(send, 200, await steer(policy, verb, parse(body) if body else None))

    def _admit(self, name: str, episode: str, seat: str | None, token: str | None) -> OpenRun:
        """The run that the token opens; which of its parts did not fit is not told."""
        run = self._runs.get(name)
        if run is not None and token is not None and run.admits(episode, seat, token):
            return run
        if run is None:
            self._check_going_on()
        raise _unauthenticated()

    def _check_going_on(self) -> None:
        """Raises `Stopping` for what is asked of a run that is not, or no longer, open as the gateway is stopped."""
        if self._stopping:
            raise stopping()

    def _check_admin(self, scope: Scope) -> None:
        token = bearer(header(scope, b"authorization")) or ""
        if not hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self.admin_token.encode()):
            raise Unauthenticated("the gateway wants its admin token for this")

    def _own(self, scope: Scope, name: str) -> OpenRun:
        self._check_admin(scope)
        run = self._runs.get(name)
        if run is None:
            self._check_going_on()
            raise UnknownTool(f"the gateway has no open run {name!r}; open it with POST /runs")
        return run

    async def _open(self, wanted: Any) -> dict[str, str]:
        if not isinstance(wanted, Mapping) or not isinstance(wanted.get("seats"), Mapping) or not wanted["seats"]:
            raise InvalidArguments('a run is opened with {"seats": {seat: {"model": …, "endpoints": [url, …]}}}')
        seats = {
            str(seat): None if to is None else SeatPolicy.from_json(str(seat), to)
            for seat, to in wanted["seats"].items()
        }
        name = checked_name("run", str(wanted.get("run") or new_call_id()))
        secret = checked_secret(wanted.get("secret") or new_secret())
        until = asyncio.get_running_loop().time() + _OPEN_SECONDS
        while not self._try_to_open(name, secret, seats):
            if (run := self._runs.get(name)) is not None:
                await run.gone.wait()
            elif asyncio.get_running_loop().time() < until:
                await asyncio.sleep(_LOOK_SECONDS)
            else:
                raise AtCapacity(
                    f"another gateway has the run {name!r} open in {str(self.directory)!r}; close it there, and ask again",
                    retry_after=1.0,
                )
        return {"run": name, "secret": secret}

    def _try_to_open(self, name: str, secret: str, seats: Mapping[str, SeatPolicy | None]) -> bool:
        """Opens a run, or opens it again; says whether it could, and is not still being closed, here or elsewhere."""
        self._check_going_on()
        run = self._runs.get(name)
        if run is not None and run.closed:
            return False
        seating = Seating(name, seats, self._policies, None if run is None else run.seating)
        if run is None:
            # The journal is bound to the secret, so it is made last: what was refused must not keep the name.
            try:
                journal = Journal(self.directory / f"{name}.jsonl", name, secret)
            except BlockingIOError:
                return False
            self._runs[name] = OpenRun(name, secret, seating, journal)
        elif hmac.compare_digest(run.secret.encode(), secret.encode()):
            run.reseat(seating)
        else:
            raise Forbidden(f"the run {name!r} is open with another secret; choose another name")
        self._policies.hold(name, seating.shared())
        return True

    def _begin_to_close(self, run: OpenRun, *, drop: bool, seconds: float) -> asyncio.Future[None]:
        """Closes a run in a task of its own, which ends its calls with their records whoever goes on waiting for it."""
        run.dropped = run.dropped or drop
        if run.closing is None:
            run.closed = True
            run.closing = asyncio.ensure_future(self._close(run, seconds))
        else:
            run.hasten(seconds)
        return run.closing

    async def _close(self, run: OpenRun, seconds: float) -> None:
        try:
            await run.close(seconds)
        finally:
            run.gone.set()
            self._runs.pop(run.name, None)
            self._policies.hold(run.name, ())

    def _keep(self, name: str, episode: str, token: str | None, records: Any) -> asyncio.Future[None]:
        """Keeps the records of one episode, all or none."""
        run = self._admit(name, episode, None, token)
        if not isinstance(records, list):
            raise InvalidArguments("records are posted as a JSON array")
        lines: list[bytes] = []
        for value in records:
            try:
                record = record_from_json(value) if isinstance(value, Mapping) else None
            except ProtocolError as error:
                # Whoever reads it later could do no more about it than lose the episode: it is refused here.
                raise InvalidArguments(error.message) from None
            if not isinstance(record, TurnRecord | EdgeRecord) or record.episode != episode:
                raise InvalidArguments(f"the records posted here must be turns and edges of the episode {episode!r}")
            lines.append(dump(value) + b"\n")
        return run.journal.append(episode, lines)

    async def _keep_several(self, name: str, items: Any, send: Send) -> None:
        """Keeps the records of several episodes, each by its own token and with its own outcome."""
        if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
            raise InvalidArguments("records of several episodes are posted as [{episode, token, records}, …]")
        if len(items) > MOST_POSTED:
            raise InvalidArguments(
                f"at most {MOST_POSTED} items are posted at once, not {len(items)}; post them in parts"
            )
        results: list[dict[str, Any] | None] = []
        for kept in [self._try_to_keep(name, item) for item in items]:
            try:
                if isinstance(kept, AgentEnvError):
                    raise kept
                await kept
                results.append(None)
            except AgentEnvError as error:
                results.append(error.to_wire())
        await reply_json(send, 200, {"results": results})

    def _try_to_keep(self, name: str, item: Mapping[str, Any]) -> asyncio.Future[None] | AgentEnvError:
        try:
            return self._keep(name, str(item.get("episode")), str(item.get("token")), item.get("records"))
        except AgentEnvError as error:
            return error

    async def _collect(self, run: OpenRun, wanted: Any, send: Send) -> None:
        episodes = wanted.get("episodes") if isinstance(wanted, Mapping) else None
        if not isinstance(episodes, list):
            raise InvalidArguments('records are collected with {"episodes": [id, …]}')
        lines = [line for episode in episodes for line in run.journal.read(str(episode))]
        await reply(send, 200, b"".join(lines))


def _token(headers: Mapping[bytes, bytes]) -> str | None:
    """The caller's token: as a bearer, or as Anthropic's clients show their key."""
    token = bearer(headers.get(b"authorization", b"").decode("latin-1"))
    return token or headers.get(b"x-api-key", b"").decode("latin-1") or None


def _unauthenticated() -> Unauthenticated:
    return Unauthenticated(
        "the gateway wants the bearer token that the run's owner minted for this run, episode and seat"
    )
