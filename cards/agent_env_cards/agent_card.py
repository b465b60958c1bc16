"""The A2A Agent Card, made from the facts of the Environment Card and never written twice.

Environment Card ──agentCard──►  Agent Card   (/.well-known/agent-card.json: A2A 1.0; /.well-known/agent.json: 0.3)
       ▲                             │
       └── extension urn:agent-env:environment-card:v1, params.card
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_env_cards.auth import SecurityScheme
from agent_env_cards.environment_card import EnvironmentCard
from agent_env_cards.fact import JsonObject
from agent_env_cards.interfaces import CARD_PATH, resolve_url
from agent_env_cards.offers import Skill
from agent_env_cards.problems import CardError, Problem
from agent_env_cards.rules.addresses import hosts_can_be_reached, urls_are_paths_or_absolute

EXTENSION_URI = "urn:agent-env:environment-card:v1"
A2A_VERSIONS = ("1.0", "0.3")

_A2A_PATH = "/a2a"
_REST_PATH = "/rest"
_SCHEMES_V1 = {
    "apiKey": "apiKeySecurityScheme",
    "http": "httpAuthSecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}
# A2A 1.0 takes one flow a scheme; the first of these that OpenAPI's has is told.
_FLOWS_V1 = ("authorizationCode", "clientCredentials", "deviceCode", "implicit", "password")


def agent_card(card: EnvironmentCard, *, base_url: str, push_notifications: bool = True) -> JsonObject:
    """The Agent Card in A2A 1.0's form (ProtoJSON of `AgentCard`, §4.4.1), with absolute URLs under `base_url`.

    The interfaces are JSON-RPC at the path of the card's "a2a" interface and HTTP+JSON at `rest` below it, each once
    for every A2A version that the interface lists. Raises `CardError` if `base_url` is not an address that callers
    can use, if the card has interfaces and none of them is A2A, or if it may not be written.
    """
    jsonrpc, rest, versions = _addresses(card, base_url)
    written: JsonObject = {
        **_identity(card, base_url),
        "supportedInterfaces": [
            {"url": url, "protocolBinding": binding, "protocolVersion": version}
            for version in versions
            for url, binding in ((jsonrpc, "JSONRPC"), (rest, "HTTP+JSON"))
        ],
        "capabilities": {
            "streaming": True,
            "pushNotifications": push_notifications,
            "extensions": [_extension(card, base_url)],
        },
    }
    if card.auth is not None and card.auth.schemes:
        written["securitySchemes"] = {name: _scheme_v1(scheme) for name, scheme in card.auth.schemes.items()}
        written["securityRequirements"] = [
            {"schemes": {name: {"list": scopes} for name, scopes in requirement.items()}}
            for requirement in card.auth.security
        ]
    return written


def agent_card_v03(card: EnvironmentCard, *, base_url: str, push_notifications: bool = True) -> JsonObject:
    """The Agent Card in A2A 0.3's form (§5.5 of that version), with absolute URLs under `base_url`.

    Raises `CardError` as `agent_card` does, and if the card's A2A interface does not list version 0.3.
    """
    jsonrpc, rest, versions = _addresses(card, base_url)
    if not any(version.startswith("0.3") for version in versions):
        message = f"{card.ref!r} does not speak A2A 0.3 but {', '.join(versions)}; list '0.3' in its interface"
        raise CardError(message, [Problem("/interfaces", message, "EC-47")])
    written: JsonObject = {
        **_identity(card, base_url),
        "protocolVersion": "0.3.0",
        "url": jsonrpc,
        "preferredTransport": "JSONRPC",
        "additionalInterfaces": [
            {"url": jsonrpc, "transport": "JSONRPC"},
            {"url": rest, "transport": "HTTP+JSON"},
        ],
        "capabilities": {
            "streaming": True,
            "pushNotifications": push_notifications,
            "stateTransitionHistory": False,
            "extensions": [_extension(card, base_url)],
        },
    }
    if card.auth is not None and card.auth.schemes:
        written["securitySchemes"] = {name: scheme.to_dict() for name, scheme in card.auth.schemes.items()}
        written["security"] = [dict(requirement) for requirement in card.auth.security]
    return written


def environment_card_url(card: Mapping[str, Any]) -> str | None:
    """The Environment Card's address that an Agent Card of either form declares; None if it declares none."""
    capabilities: Any = card.get("capabilities") or {}
    for extension in capabilities.get("extensions") or ():
        if extension.get("uri") == EXTENSION_URI:
            url = (extension.get("params") or {}).get("card")
            return str(url) if url else None
    return None


def _addresses(card: EnvironmentCard, base_url: str) -> tuple[str, str, list[str]]:
    card.to_dict()  # Refuses a card that breaks a clause, so that what follows need not.
    problems = [
        Problem("", message, clause)
        for clause, check in (("EC-20", urls_are_paths_or_absolute), ("EC-22", hosts_can_be_reached))
        for _, message in check({"url": base_url})
    ]
    if not problems and not base_url.startswith(("http://", "https://")):
        problems = [Problem("", f"{base_url!r} is not an http address", "EC-20")]
    interface = card.interface("a2a")
    if interface is None and card.interfaces:
        spoken = ", ".join(sorted({entry.transport for entry in card.interfaces}))
        problems.append(Problem("/interfaces", f"there is no A2A interface among {spoken}", "EC-45"))
    if problems:
        raise CardError.listing(f"the Agent Card of {card.ref!r} at {base_url!r}", problems)
    jsonrpc = resolve_url(base_url, interface.url if interface else _A2A_PATH)
    return jsonrpc, jsonrpc + _REST_PATH, [*(interface.protocol_versions if interface else ())] or [*A2A_VERSIONS]


def _identity(card: EnvironmentCard, base_url: str) -> JsonObject:
    offer = card.offers
    skills = offer.skills or [Skill(id="chat", name="chat", description=card.description)]
    written: JsonObject = {
        "name": card.name,
        "description": card.description,
        "version": card.version,
        "defaultInputModes": list(offer.input_modes),
        "defaultOutputModes": list(offer.output_modes),
        "skills": [_skill(card, skill) for skill in skills],
    }
    if card.provider is not None:
        written["provider"] = {
            "organization": card.provider.organization,
            "url": card.provider.url or base_url,
        }
    return written


def _skill(card: EnvironmentCard, skill: Skill) -> JsonObject:
    written: JsonObject = {
        "id": skill.id,
        "name": skill.name or skill.id,
        "description": skill.description or skill.name or skill.id,
        "tags": list(dict.fromkeys([*skill.tags, *card.offers.tags])) or [skill.id],
    }
    examples = [sample.request for sample in card.offers.examples if sample.skill in (None, skill.id)]
    if examples:
        written["examples"] = examples
    return written


def _extension(card: EnvironmentCard, base_url: str) -> JsonObject:
    return {
        "uri": EXTENSION_URI,
        "description": "This agent is an environment; its Environment Card is at `card`.",
        "required": False,
        "params": {"card": resolve_url(base_url, CARD_PATH), "digest": card.digest()},
    }


def _scheme_v1(scheme: SecurityScheme) -> JsonObject:
    members = {name: value for name, value in scheme.to_dict().items() if name != "type"}
    if "in" in members:
        members["location"] = members.pop("in")
    if scheme.flows is not None:
        chosen = next((flow for flow in _FLOWS_V1 if flow in scheme.flows), None)
        members["flows"] = {chosen: scheme.flows[chosen]} if chosen else {}
    return {_SCHEMES_V1[scheme.type]: members}
