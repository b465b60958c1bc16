"""`agent-env serve` and `agent-env push`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_env.cli.output import HubOption, Json, console, execute, print_json, reported

if TYPE_CHECKING:
    from agent_env.net.keyring import Keyring
    from agent_env.serving.environment import AgentEnvironment

Target = Annotated[str, typer.Argument(help="The agent: module:attribute, or path/to/file.py:attribute.")]
Name = Annotated[str | None, typer.Option(help="The environment's name; default: the agent's own.")]
Version = Annotated[str | None, typer.Option(help="The release, such as 1.0.0; default: a draft.")]
Skills = Annotated[list[str] | None, typer.Option("--skill", help="A skill that it offers; may be given again.")]


def serve(
    agent: Target,
    name: Name = None,
    version: Version = None,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 0,
    public_url: Annotated[str | None, typer.Option(help="The address that clients use, behind a proxy.")] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="A file of bearer tokens; needed beyond loopback.", exists=True, dir_okay=False)
    ] = None,
    peer_auth: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PEER=VARIABLE",
            help="The environment variable with the token for a peer: its origin, or its name in the hub; may be given "
            "again.",
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve beyond loopback without tokens.")] = False,
    hub: HubOption = None,
    no_hub: Annotated[bool, typer.Option("--no-hub", help="Do not register in a hub.")] = False,
    skill: Skills = None,
    linger: Annotated[float | None, typer.Option(help="Stop after so many seconds without a session.")] = None,
    as_json: Json = False,
) -> None:
    """Serves an agent as an environment until it is interrupted."""
    with reported(as_json=as_json):
        from agent_env.cli.target import load, located
        from agent_env.launch import source_hash
        from agent_env.net.serving import run_loop
        from agent_env.serving.run import announce, serve_until_stopped
        from agent_env.serving.server import Server

        directory, target = located(agent)
        environment = _environment(load(agent), name, version, skill, tokens, _keyring(peer_auth), hub, no_hub)

        def ready(server: Server) -> None:
            if as_json:
                print_json({"ref": server.card.ref, "digest": server.card.digest(), "url": server.url, **server.urls})
            else:
                announce(server)

        run_loop(
            serve_until_stopped(
                environment,
                host=host,
                port=port,
                public_url=public_url,
                insecure=insecure,
                linger=linger,
                source=source_hash(target, directory),
                on_ready=ready,
            )
        )


def push(
    agent: Target,
    name: Name = None,
    version: Version = None,
    skill: Skills = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="The name of an environment variable that it needs.")
    ] = None,
    hub: HubOption = None,
    as_json: Json = False,
) -> None:
    """Publishes an agent as a release that anybody on this machine can launch."""
    with reported(as_json=as_json):
        from agent_env.cli.target import load

        environment = _environment(load(agent), name, version, skill, None, None, hub, False)
        options = _options(name, version, skill)
        release = execute(_push(environment, agent, options, env or [], hub), as_json=as_json)
        if as_json:
            print_json(release)
        else:
            console.print(f"published [bold]{release['name']}@{release['version']}[/bold] {release['digest']}")


def _environment(
    agent: object,
    name: str | None,
    version: str | None,
    skills: list[str] | None,
    tokens: Path | None,
    peer_auth: Keyring | None,
    hub: str | None,
    no_hub: bool,
) -> AgentEnvironment:
    from agent_env.errors import ConfigurationError
    from agent_env.net.credentials import Tokens
    from agent_env.serving.environment import AgentEnvironment

    if isinstance(agent, AgentEnvironment):
        if name or version or skills or tokens:
            raise ConfigurationError(
                "this is an AgentEnvironment already, with a name, a version, skills and tokens of its own; drop the "
                "options"
            )
        if peer_auth is not None:
            agent.add_peer_auth(peer_auth)
        return agent
    return AgentEnvironment(
        agent,
        name=name,
        version=version,
        skills=skills or (),
        peer_auth=peer_auth,
        auth=None if tokens is None else Tokens.from_file(tokens),
        hub=False if no_hub else hub,
    )


def _keyring(pairs: list[str] | None) -> Keyring | None:
    """The tokens for peers, out of the environment: a command line is seen by everybody on the machine."""
    from agent_env.errors import ConfigurationError
    from agent_env.net.keyring import Keyring

    variables: dict[str, str] = {}
    for number, pair in enumerate(pairs or (), start=1):
        peer, _, variable = pair.rpartition("=")
        if not peer or not variable.isidentifier():
            # What stands there may be a token.
            raise ConfigurationError(
                f"--peer-auth number {number} must be PEER=VARIABLE, with the name of an environment variable that has "
                "the token, and never the token itself"
            )
        variables[peer] = variable
    return Keyring.from_environment(variables) if variables else None


def _options(name: str | None, version: str | None, skills: list[str] | None) -> list[str]:
    """The options of `serve` that the card depends on, so that a launch makes the card that was pushed."""
    options = ["--name", name] if name is not None else []
    options += ["--version", version] if version is not None else []
    return options + [word for skill in skills or () for word in ("--skill", skill)]


async def _push(
    environment: AgentEnvironment, target: str, options: list[str], variables: list[str], hub: str | None
) -> dict[str, Any]:
    from agent_env.cli.target import located
    from agent_env.hub import shared_hub
    from agent_env.launch import python_launch

    card = await environment.card()
    directory, module = located(target)
    launch = python_launch(module, options=options, directory=directory, env=variables)
    release = await shared_hub(hub).publish(card, launch.to_json())
    await environment.aclose()
    return release.to_json()
