"""The SDK's request handler with what it leaves open: sessions, principals, verbs, and errors of ours."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager
from typing import Final, cast

from a2a.extensions.common import get_requested_extensions
from a2a.server.agent_execution import SimpleRequestContextBuilder
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.id_generator import IDGenerator, IDGeneratorContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.constants import VERSION_HEADER
from a2a.utils.errors import A2AError, UnsupportedOperationError
from starlette.requests import Request

from agent_env.errors import AgentEnvError
from agent_env.net.a2a_wire import EXTENSION, EXTENSION_HEADERS
from agent_env.serving.faces.a2a_calls import Call, read_caller, read_chat, read_verb
from agent_env.serving.faces.a2a_conversations import Conversations
from agent_env.serving.faces.a2a_errors import a2a_error, failed_inside
from agent_env.serving.faces.a2a_executor import TurnExecutor, attach
from agent_env.serving.faces.a2a_gate import Exchange
from agent_env.serving.faces.a2a_push import PushConfigs, PushSender, url_check
from agent_env.serving.faces.a2a_tasks import RESTING, WAITING, BoundedTaskStore, Owner
from agent_env.serving.faces.contract import Site

log = logging.getLogger("agent_env.serving")

PARKED_SECONDS: Final = 30.0
"""How long the SDK keeps a task that waits for its caller in the air; after that it is made again from the store."""

_EXCHANGE: Final = "agent_env.exchange"
_VERSION: Final = VERSION_HEADER.lower()


class ExchangeContext(ServerCallContextBuilder):
    """Tells the SDK what the gate found out about a request."""

    def build(self, request: Request) -> ServerCallContext:
        """The call context of a request that passed the gate."""
        exchange = Exchange.of(request)
        requested = [value for name in EXTENSION_HEADERS for value in request.headers.getlist(name)]
        return ServerCallContext(
            user=Owner(exchange.principal.id),
            # The version is all that the SDK reads of the headers; it logs what it is given.
            state={"headers": {_VERSION: request.headers.get(_VERSION, "")}, _EXCHANGE: exchange},
            requested_extensions=get_requested_extensions(requested),
        )


class _TaskIds(IDGenerator):
    def generate(self, context: IDGeneratorContext) -> str:
        return "t-" + secrets.token_urlsafe(16)


class MessageHandler(DefaultRequestHandler):
    """Handles A2A's methods for one environment."""

    def __init__(
        self, site: Site, agent_card: AgentCard, *, message_seconds: float, tasks: BoundedTaskStore | None = None
    ) -> None:
        self._site = site
        self._conversations = Conversations(site.runtime)
        configs = PushConfigs()
        self._tasks = tasks or BoundedTaskStore(on_forget=configs.forget)
        self._sender = PushSender(configs, site.access.guard, self._tasks)
        super().__init__(
            agent_executor=TurnExecutor(site.runtime, self._conversations, message_seconds=message_seconds),
            task_store=self._tasks,
            agent_card=agent_card,
            push_config_store=configs,
            push_sender=self._sender,
            push_url_validator=url_check(site.access.guard),
            request_context_builder=SimpleRequestContextBuilder(task_id_generator=_TaskIds()),
            interrupted_task_timeout=PARKED_SECONDS,
        )

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Message | Task:
        """Answers a message by a message or a task."""
        with _untold():
            call = await self._begin(params, context, streaming=False)
            answer: Message | Task = await super().on_message_send(params, context)
        if call is not None and call.error is not None:
            raise _told(call.exchange, call.error)
        return answer

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Answers a message by a task and its updates."""
        with _untold():
            await self._begin(params, context, streaming=True)
            async with aclosing(super().on_message_send_stream(params, context)) as events:
                async for event in events:
                    yield event

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Streams the updates of a task that runs."""
        with _untold():
            async with aclosing(super().on_subscribe_to_task(params, context)) as events:
                async for event in events:
                    yield event

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task | None:
        """Gives a task as it stands."""
        with _untold():
            return cast("Task | None", await super().on_get_task(params, context))

    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Lists the caller's tasks."""
        with _untold():
            return cast(ListTasksResponse, await super().on_list_tasks(params, context))

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task | None:
        """Cancels a task, and the turn that it runs."""
        with _untold():
            return cast("Task | None", await super().on_cancel_task(params, context))

    async def aclose(self) -> None:
        """Ends what still runs, and sends the notifications that wait."""
        await super().aclose()
        await self._sender.aclose()

    async def _begin(self, params: SendMessageRequest, context: ServerCallContext, *, streaming: bool) -> Call | None:
        """Reads the message into a call and hands it to the executor; None for what the SDK refuses itself."""
        if not params.message.parts:
            return None
        exchange: Exchange = context.state[_EXCHANGE]
        exchange.activated = EXTENSION in context.requested_extensions or EXTENSION in params.message.extensions
        try:
            call = await self._read(params, context, exchange)
        except AgentEnvError as error:
            raise _told(exchange, error) from None
        configuration = params.configuration
        call.as_task = (
            streaming or configuration.return_immediately or configuration.HasField("task_push_notification_config")
        )
        attach(call, context)
        return call

    async def _read(self, params: SendMessageRequest, context: ServerCallContext, exchange: Exchange) -> Call:
        message, principal = params.message, exchange.principal.id
        caller = read_caller(params, exchange, self._site.access)
        verb = read_verb(message) if exchange.activated else None
        given = bool(message.context_id)
        await self._find_task(message, context, principal, plain=verb is None)
        if not message.context_id:
            message.context_id = self._conversations.mint()
        context_id = message.context_id
        opens = (
            verb is None or verb.opens or (given and verb.verb == "call_tool" and not verb.arguments.get("session_id"))
        )
        if opens and given:
            self._conversations.check(principal, context_id)
        open_as = context_id if opens else None
        if verb is not None:
            return Call(
                verb.verb,
                verb.arguments,
                caller,
                exchange,
                context_id,
                plain=False,
                exact=verb.exact,
                open_as=open_as,
                attached=verb.attached,
            )
        question = self._conversations.question(principal, context_id)
        arguments = read_chat(message, self._site.runtime.info.caps, question)
        return Call(
            "call_tool",
            {"name": "chat", "arguments": arguments},
            caller,
            exchange,
            context_id,
            plain=True,
            open_as=open_as,
        )

    async def _find_task(self, message: Message, context: ServerCallContext, principal: str, *, plain: bool) -> None:
        """Finds the task that a message goes on with: the one that it names, or the one that waits in its context."""
        if not message.task_id:
            waiting = self._conversations.waiting(principal, message.context_id) if plain else None
            if waiting is None:
                return
            task = await self._tasks.get(waiting, context)
            if task is None or task.status.state not in WAITING:
                self._conversations.go_on(principal, message.context_id)
                return
            message.task_id = waiting
            return
        task = await self._tasks.get(message.task_id, context)
        if task is None:
            return  # the SDK refuses it
        if task.status.state not in RESTING:
            raise UnsupportedOperationError(
                f"task {task.id} is {TaskState.Name(task.status.state)}; wait until it has ended, or send the message "
                "without a task id to queue it in the same context"
            )
        if not message.context_id:
            message.context_id = task.context_id


@contextmanager
def _untold() -> Generator[None]:
    """Keeps back what the SDK would send: the text of whatever was raised."""
    try:
        yield
    except A2AError:
        raise
    except Exception:
        log.exception("an A2A request failed inside the server")
        raise a2a_error(failed_inside()) from None


def _told(exchange: Exchange, error: AgentEnvError) -> A2AError:
    exchange.error = error
    return a2a_error(error)
