"""What `AgentEnvironment` can be given beside the agent, as keywords that other functions pass on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from agent_env.context import Recorder
from agent_env.net import Keyring, Limits, Tokens
from agent_env_cards import Need, Offer, Provider, SampleRequest, Skill

HubTarget: TypeAlias = str | Path | Literal[False] | None
"""A hub as `Hub.open` takes it, or False for none."""


class Options(TypedDict, total=False):
    """The keywords of `AgentEnvironment` but for the name and the version; its table says what they mean."""

    description: str
    tools: Iterable[Callable[..., Any]]
    functions: Iterable[Callable[..., Any]]
    rewards: Iterable[Callable[..., Any]]
    skills: Sequence[str | Skill]
    tags: Sequence[str]
    examples: Sequence[str | SampleRequest]
    offers: Offer | None
    needs: Sequence[Need]
    peers: Mapping[str, object] | None
    peer_auth: Keyring | Mapping[str, str] | None
    auth: Tokens | Mapping[str, Any] | None
    limits: Limits | None
    hub: HubTarget
    recorder: Recorder | None
    provider: Provider | None
    license: str | None
    wrapper: str | type[Any] | None
