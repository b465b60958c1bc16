"""How a caller proves who it is: OpenAPI security schemes."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from agent_env_cards.fact import Fact, JsonObject


class SecurityScheme(Fact):
    """A Security Scheme Object of OpenAPI 3.1 (§4.8.27).

    `type` is "apiKey", "http", "oauth2", "openIdConnect" or "mutualTLS"; which other members there are depends on it.
    """

    type: str
    description: str | None = None
    name: str | None = None
    location: str | None = Field(default=None, validation_alias="in", serialization_alias="in")
    scheme: str | None = None
    bearer_format: str | None = None
    flows: JsonObject | None = None
    open_id_connect_url: str | None = None


class Auth(Fact):
    """The schemes that an environment knows, and which of them a request needs.

    `security` is a list of alternatives; each maps the names of schemes that are needed together to their scopes
    (the Security Requirement Object of OpenAPI 3.1, §4.8.30). An empty list asks for nothing.
    """

    schemes: dict[str, SecurityScheme] = Field(default={})
    security: list[dict[str, list[str]]] = Field(default=[])

    @classmethod
    def bearer(cls, scopes: Sequence[str] = ()) -> Auth:
        """Makes what an environment with bearer tokens (RFC 6750) says.

        Example:
            >>> Auth.bearer(["chat"]).to_dict()
            {'schemes': {'bearer': {'type': 'http', 'scheme': 'bearer'}}, 'security': [{'bearer': ['chat']}]}
        """
        return cls(schemes={"bearer": SecurityScheme(type="http", scheme="bearer")}, security=[{"bearer": [*scopes]}])
