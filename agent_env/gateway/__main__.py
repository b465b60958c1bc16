"""Runs a gateway: `python -m agent_env.gateway --directory DIR`; prints `{"url": …}` when it is ready."""

from __future__ import annotations

import argparse
import json
import os

from agent_env.errors import ConfigurationError
from agent_env.gateway.app import Gateway
from agent_env.gateway.server import ADMIN_VARIABLE, serve
from agent_env.net.serving import run_loop


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m agent_env.gateway", description=__doc__)
    parser.add_argument("--directory", required=True, help="where the journals of runs go")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--until-stdin-ends", action="store_true", help="stop when the parent process ends")
    options = parser.parse_args()
    token = os.environ.pop(ADMIN_VARIABLE, "")
    if not token:
        parser.error(f"set {ADMIN_VARIABLE} to the admin token")
    gateway = Gateway(options.directory, admin_token=token)

    def ready(url: str) -> None:
        print(json.dumps({"url": url}), flush=True)

    try:
        run_loop(serve(gateway, options.host, options.port, until_stdin_ends=options.until_stdin_ends, on_ready=ready))
    except ConfigurationError as error:
        parser.error(error.message)


if __name__ == "__main__":
    main()
