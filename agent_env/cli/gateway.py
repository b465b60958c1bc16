"""`agent-env gateway`: the model endpoint that records and routes, as a server."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from agent_env.cli.output import Json, print_json, reported, say

TOKEN_VARIABLE = "AGENT_ENV_GATEWAY_TOKEN"


def gateway(
    directory: Annotated[Path, typer.Option(help="Where the journals of runs go.", file_okay=False)] = Path("journal"),
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8791,
    token_env: Annotated[
        str, typer.Option(metavar="VARIABLE", help="The environment variable that has the admin token.")
    ] = TOKEN_VARIABLE,
    max_body: Annotated[
        int | None,
        typer.Option(min=1, metavar="BYTES", help="The longest request that is taken; default: 16 MiB."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Serves a gateway until it is interrupted: agents' model calls go through it, and are recorded."""
    with reported(as_json=as_json):
        from agent_env.errors import ConfigurationError
        from agent_env.gateway import Gateway
        from agent_env.gateway.app import MAX_BODY_BYTES
        from agent_env.gateway.server import serve
        from agent_env.net.serving import run_loop

        # What the gateway starts must not inherit it.
        token = os.environ.pop(token_env, "")
        if not token:
            # What stands there may be a token.
            named = token_env if token_env.isidentifier() else "the variable that --token-env names"
            raise ConfigurationError(
                f"{named} must have the admin token, which opens runs; make one with: "
                "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )

        there = next((place for place in (directory, *directory.parents) if place.exists()), directory)
        if there.exists() and not there.is_dir():
            raise ConfigurationError(f"--directory cannot be {str(directory)!r}: {str(there)!r} is a file")

        def ready(url: str) -> None:
            if as_json:
                print_json({"url": url, "directory": str(directory)})
            else:
                say(f"the gateway is served at {url}; its journals are in {directory}")

        # On standard error: when runs are opened and closed.
        logging.basicConfig(format="%(asctime)s %(message)s")
        logging.getLogger("agent_env.gateway").setLevel(logging.INFO)
        longest = MAX_BODY_BYTES if max_body is None else max_body
        served = Gateway(directory, admin_token=token, max_body_bytes=longest)
        run_loop(serve(served, host, port, on_ready=ready))
