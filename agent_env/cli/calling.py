"""`agent-env call` and `agent-env chat`: an environment from the terminal."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from threading import Thread
from typing import Annotated, Any

import typer

from agent_env.cli.output import HubOption, Json, TokenOption, console, errors, execute, print_json, reported

Ref = Annotated[str, typer.Argument(help="A reference to the hub, or a URL.")]
LaneOption = Annotated[
    str | None, typer.Option("--lane", help="websocket, http, mcp or a2a; default: the fastest that it offers.")
]
Timeout = Annotated[float, typer.Option(help="Seconds that one call may take.")]


def call(
    ref: Ref,
    tool: Annotated[str, typer.Argument(help="The tool.")] = "chat",
    message: Annotated[str | None, typer.Option("--message", "-m", help="The message for chat.")] = None,
    arguments: Annotated[str, typer.Option("--arguments", "-a", help="The arguments as a JSON object.")] = "{}",
    session: Annotated[str | None, typer.Option(help="Go on in this session.")] = None,
    lane: LaneOption = None,
    timeout: Timeout = 600.0,
    token: TokenOption = None,
    hub: HubOption = None,
    as_json: Json = False,
) -> None:
    """Calls one tool and prints its answer. The session is kept with --json, and released otherwise."""
    with reported(as_json=as_json):
        from agent_env.errors import InvalidArguments

        try:
            fields: Any = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise InvalidArguments(f"--arguments is not JSON that can be read: {error}") from error
        if not isinstance(fields, dict):
            raise InvalidArguments(f"--arguments must be a JSON object, not {arguments!r:.100}")
        if message is not None:
            fields["message"] = message
        result = execute(_call(ref, tool, fields, session, lane, timeout, token, hub, keep=as_json), as_json=as_json)
        if as_json:
            print_json(result)
        else:
            if result["text"]:
                # An answer goes out as it is: nothing in it is markup, and a pipe must not wrap it.
                typer.echo(result["text"])
            if result["data"] is not None:
                console.print_json(data=result["data"])
            if result["reward"] is not None:
                errors.print(f"[dim]reward {result['reward']:g}[/dim]")
        if result["is_error"]:
            raise typer.Exit(1)


async def _call(
    ref: str,
    tool: str,
    arguments: dict[str, Any],
    session: str | None,
    lane: Any,
    timeout: float,
    token: str | None,
    hub: str | None,
    *,
    keep: bool,
) -> dict[str, Any]:
    from agent_env.client.environment import Environment

    environment = Environment(ref, session_id=session, lane=lane, auth=token, timeout=timeout, hub=hub)
    await environment.initialize()
    try:
        return (await environment.call_tool(tool, arguments)).to_json()
    finally:
        if keep:
            environment.keep_session()
        await environment.release()


def chat(
    ref: Ref,
    lane: LaneOption = None,
    timeout: Timeout = 600.0,
    token: TokenOption = None,
    hub: HubOption = None,
) -> None:
    """Talks with an environment; an empty line or Ctrl-D ends it."""
    with reported():
        execute(_chat(ref, lane, timeout, token, hub))


async def _chat(ref: str, lane: Any, timeout: float, token: str | None, hub: str | None) -> None:
    from agent_env.client.environment import Environment
    from agent_env.errors import AgentEnvError

    async with Environment(ref, lane=lane, auth=token, timeout=timeout, hub=hub) as environment:
        console.print(
            f"[bold]{environment.card.ref}[/bold] over {environment.lane}; an empty line ends the conversation"
        )
        while message := await _ask():
            try:
                await _say(environment, message)
            except AgentEnvError as error:
                errors.print(f"{error.code}: {error.message}", markup=False, highlight=False, soft_wrap=True)


async def _ask() -> str:
    """The next line of standard input, read where nothing waits for it: Ctrl-C ends the command at once."""
    typer.echo("> ", nl=False)
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        # Not through `sys.stdin`, whose lock a thread that still reads would hold when the interpreter ends.
        with open(0, "rb", buffering=0, closefd=False) as stdin, suppress(RuntimeError):  # the loop may be closed
            loop.call_soon_threadsafe(_answer, line, stdin.readline())

    Thread(target=read, name="agent-env-chat", daemon=True).start()
    return (await line).decode(errors="replace").strip()


def _answer(line: asyncio.Future[bytes], said: bytes) -> None:
    if not line.done():
        line.set_result(said)


async def _say(environment: Any, message: str) -> None:
    from agent_env.runtime.results import ToolResult
    from agent_env_wrappers.contract import Status, TextDelta, ToolCall

    streamed = False
    async for event in environment.stream(message):
        match event:
            case TextDelta(text, "answer"):
                typer.echo(text, nl=False)
                streamed = True
            case ToolCall(_, name, arguments):
                console.print(f"{name}({json.dumps(arguments, ensure_ascii=False)})", style="dim", markup=False)
            case Status(text):
                console.print(text, style="dim", markup=False)
            case ToolResult() as result:
                if streamed:
                    console.print()
                else:
                    typer.echo(result.text or json.dumps(result.data, ensure_ascii=False))
                if result.reward is not None:
                    console.print(f"[dim]reward {result.reward:g}[/dim]")
            case _:
                pass
