"""The Environment Card: what an environment says of itself at `/.well-known/agent-env.json`.

    release facts, in the digest        name version description kind episode rewards needs offers
                                        capabilities.tools capabilities.functions
    instance facts, outside of it       everything else: addresses, sessions, auth, provider, signatures, …

Reading is lenient: only a name must be there. Writing is strict: a card that breaks a clause of the protocol is not
written. The clauses are in cards/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self, TypeVar

from pydantic import Field, ValidationError

from agent_env_cards.auth import Auth
from agent_env_cards.capabilities import AgentCaps, Capabilities, ToolCard
from agent_env_cards.digest import digest_of
from agent_env_cards.episode import EpisodeCard, RewardCard, SessionCard
from agent_env_cards.fact import Fact, JsonObject
from agent_env_cards.interfaces import Interface, Provider
from agent_env_cards.needs import Need
from agent_env_cards.offers import Offer
from agent_env_cards.pointers import objects, select
from agent_env_cards.problems import CardError, Problem
from agent_env_cards.rules import broken
from agent_env_cards.shape import in_order, read_json, shape_problems
from agent_env_cards.versions import DRAFT_VERSION, is_draft


class CardSignature(Fact):
    """A JSON Web Signature (RFC 7515) over the card's digest, detached, in the form that A2A gives it."""

    protected: str
    signature: str
    header: JsonObject | None = None


class EnvironmentCard(Fact):
    """What an environment says of itself.

    `url` is the data plane, a path relative to the card's address as all URLs on a card. A card without a version is
    a draft. `stated_digest` is what a card that was read says its digest is; `digest()` is what it really is.

    Example:
        >>> from agent_env_cards import EnvironmentCard, Need
        >>> card = EnvironmentCard(name="agent-a", needs=[Need("solver", skills=["math"])])
        >>> card.ref, card.is_draft, card.digest()[:14]
        ('agent-a@0.0.0-dev', True, 'sha256:b0e2edd')
    """

    name: str
    protocol_version: str = "1.0"
    version: str = DRAFT_VERSION
    description: str = ""
    kind: str = "environment"

    episode: EpisodeCard = EpisodeCard()
    rewards: list[RewardCard] = Field(default=[])
    needs: list[Need] = Field(default=[])
    offers: Offer = Offer()

    url: str = "/agentenv"
    preferred_transport: str = "JSONRPC"
    additional_interfaces: list[Interface] = Field(default=[])
    interfaces: list[Interface] = Field(default=[])
    capabilities: Capabilities = Capabilities()
    children_environments: list[EnvironmentCard] = Field(
        default=[], validation_alias="children_environments", serialization_alias="children_environments"
    )

    agent_card: str | None = None
    session: SessionCard | None = None
    auth: Auth | None = None
    caps: AgentCaps | None = None
    provider: Provider | None = None
    license: str | None = None
    stated_digest: str | None = Field(default=None, validation_alias="digest", serialization_alias="digest")
    signatures: list[CardSignature] = Field(default=[])

    def model_post_init(self, context: Any) -> None:
        # Clients of the same path know only `additionalInterfaces`; `interfaces` also tells the versions spoken. What
        # only the first names is an interface like the others, and the writer makes the first from the second.
        known = {(interface.transport, interface.url) for interface in self.interfaces}
        more = [entry for entry in self.additional_interfaces if (entry.transport, entry.url) not in known]
        self.interfaces.extend(more)
        self.additional_interfaces.clear()

    @classmethod
    def parse(cls, card: object) -> Self:
        """Reads a card: a JSON object, or its text.

        Only a name is asked for, and what is there must have the right form. Raises `CardError` with every problem.
        """
        parsed, problems = _read(cls, card, reading=True)
        if parsed is None or problems:
            raise CardError.listing("the Environment Card", problems)
        return parsed

    def to_dict(self) -> JsonObject:
        """Writes the card as a JSON object, with its digest; raises `CardError` with every clause that it breaks."""
        dumped = self._dumped()
        problems = validate_card(_completed(dumped))
        if problems:
            raise CardError.listing(f"the Environment Card of {self.name!r}", problems)
        return _completed(dumped, digest=True)

    def to_json(self, *, indent: int | None = None) -> str:
        """Writes the card as JSON text; raises `CardError` with every clause that it breaks."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=indent)

    def digest(self) -> str:
        """The digest of the release facts, "sha256:" and 64 hexadecimal digits.

        It is the same for every replica, whatever its address. Raises `CardError` where a value has no canonical form.
        """
        return digest_of(_completed(self._dumped()))

    @property
    def ref(self) -> str:
        """The card's own reference, `name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def is_draft(self) -> bool:
        """Whether the card is of a draft, which may change, and not of a release, which may not."""
        return is_draft(self.version)

    def tool(self, name: str) -> ToolCard | None:
        """The tool with this name, or None."""
        return next((tool for tool in self.capabilities.tools if tool.name == name), None)

    def interface(self, transport: str) -> Interface | None:
        """The first interface with this transport, or None."""
        return next((interface for interface in self.interfaces if interface.transport == transport), None)

    def _dumped(self) -> JsonObject:
        return self.model_dump(mode="json", exclude_defaults=True, warnings="none")


# Written even where they have their default: peers of the same path look for them, and people do.
_ALWAYS_WRITTEN = ("protocolVersion", "version", "kind", "url", "preferredTransport")
_DEFAULTS = {str(field.serialization_alias): field.default for field in EnvironmentCard.model_fields.values()}


def _completed(dumped: JsonObject, *, digest: bool = False) -> JsonObject:
    """What is written of a card: without defaults but for a few, in the order of the model."""
    card = {**{name: _DEFAULTS[name] for name in _ALWAYS_WRITTEN}, **dumped}
    for _, capabilities in objects({"capabilities": {}, **card}, "capabilities"):
        card["capabilities"] = {"tools": [], **capabilities}
    if interfaces := [entry for _, entry in objects(card, "interfaces", "*")]:
        card["additionalInterfaces"] = [
            {"url": entry.get("url"), "transport": entry.get("transport")} for entry in interfaces
        ]
    for _, children in select(card, "children_environments"):
        card["children_environments"] = [
            _completed(child, digest=digest) if isinstance(child, dict) else child for child in children
        ]
    card.pop("digest", None)
    if digest:
        card["digest"] = digest_of(card)
    return {name: card[name] for name in [*_DEFAULTS, *card] if name in card}


def validate_card(card: object) -> list[Problem]:
    """Holds a card, as a JSON object or its text, against every clause that one card can break.

    Returns the problems in the order of their places, none for a card that may be written.
    """
    try:
        parsed, problems = _read(EnvironmentCard, card, reading=False)
    except CardError as error:
        return list(error.problems)
    if parsed is not None and parsed.stated_digest not in (None, digest := parsed.digest()):
        message = f"the card says {parsed.stated_digest!r}; its release facts have the digest {digest!r}"
        problems = in_order([*problems, Problem("/digest", message, "EC-38")])
    return problems


_Card = TypeVar("_Card", bound=EnvironmentCard)


def _read(kind: type[_Card], card: object, *, reading: bool) -> tuple[_Card | None, list[Problem]]:
    value = read_json(card)
    if not isinstance(value, Mapping):
        return None, [Problem("", f"a card is a JSON object, not {type(value).__name__}", "EC-01")]
    problems = list(broken(value, reading=reading))
    if any(problem.clause == "EC-04" for problem in problems):
        return None, in_order(problems)
    try:
        return kind.model_validate(value), in_order(problems)
    except ValidationError as error:
        return None, in_order([*problems, *shape_problems(error)])
