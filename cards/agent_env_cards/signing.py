"""Signatures on Environment Cards: detached JSON Web Signatures (RFC 7515) over the digest, in the form of A2A's.

The payload is the text of the digest, so a signature holds for every replica of a release and can be added later
without changing it. This is the only module that needs a JOSE library.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from jwt import PyJWK, PyJWS, PyJWTError
from jwt.utils import base64url_decode, base64url_encode

from agent_env_cards.environment_card import CardSignature, EnvironmentCard
from agent_env_cards.problems import CardError, Problem

Key: TypeAlias = Any
"""A key: PEM text or bytes, a `PyJWK`, or a key object of `cryptography`; private to sign, public to verify."""

ALGORITHMS = ("ES256", "EdDSA")

_CLAUSE = "EC-39"
_JWS = PyJWS(algorithms=ALGORITHMS)


class SignatureError(CardError):
    """A card has no signature that can be trusted; `problems` says of each one why."""


def sign_card(card: EnvironmentCard, key: Key, *, kid: str, algorithm: str = "ES256") -> EnvironmentCard:
    """Returns the card with one more signature.

    `kid` names the key to those who verify. `algorithm` is "ES256" (RFC 7518 §3.4) or "EdDSA" (RFC 8037 §3.1). Raises
    `SignatureError` if the key does not fit the algorithm.

    Example:
        >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        >>> key = Ed25519PrivateKey.generate()
        >>> card = sign_card(EnvironmentCard(name="agent-b"), key, kid="me", algorithm="EdDSA")
        >>> verify_card(card, {"me": key.public_key()}.get)
        ['me']
    """
    _check_algorithm(algorithm, ALGORITHMS, at="")
    header = {"alg": algorithm, "kid": kid, "typ": "JOSE"}
    try:
        token = _JWS.encode(card.digest().encode(), key, algorithm=algorithm, headers=header)
    except (PyJWTError, TypeError, ValueError) as error:
        raise _refused("", f"the key {kid!r} cannot sign with {algorithm}: {error}") from error
    protected, _, signature = token.split(".")
    signatures = [*card.signatures, CardSignature(protected=protected, signature=signature)]
    return card.model_copy(update={"signatures": signatures})


def verify_card(
    card: EnvironmentCard, key_for: Callable[[str], Key | None], *, algorithms: Sequence[str] = ALGORITHMS
) -> list[str]:
    """Returns the ids of the keys whose signatures hold for what the card says.

    `key_for` gives the public key with an id, or None if it is not trusted; a dictionary's `get` will do. The digest
    is computed, never taken from the card, and the algorithm must be among `algorithms` whatever a signature says.
    Raises `SignatureError` if no signature holds.
    """
    digest = card.digest()
    held: list[str] = []
    problems: list[Problem] = []
    for index, signature in enumerate(card.signatures):
        try:
            held.append(_verified(signature, digest, key_for, algorithms, at=f"/signatures/{index}"))
        except SignatureError as error:
            problems += error.problems
    if not held:
        if not card.signatures:
            raise _refused("/signatures", f"{card.ref!r} has no signature; sign it with sign_card")
        raise SignatureError(
            f"no signature of {card.ref!r} holds: " + "; ".join(problem.message for problem in problems), problems
        )
    return held


def _verified(
    signature: CardSignature, digest: str, key_for: Callable[[str], Key | None], algorithms: Sequence[str], *, at: str
) -> str:
    header = _header(signature, at)
    kid, algorithm = header.get("kid"), header.get("alg")
    if not isinstance(kid, str) or not isinstance(algorithm, str):
        raise _refused(at, "the protected header has no `kid` or no `alg`")
    if header.get("crit"):
        raise _refused(at, f"the protected header makes {header['crit']!r} critical, which is not understood here")
    _check_algorithm(algorithm, algorithms, at=at)
    key = key_for(kid)
    if key is None:
        raise _refused(at, f"the key {kid!r} is not trusted here")
    payload = base64url_encode(digest.encode()).decode()
    token = f"{signature.protected}.{payload}.{signature.signature}"
    try:
        _JWS.decode(token, key.key if isinstance(key, PyJWK) else key, algorithms=[algorithm])
    except (PyJWTError, TypeError, ValueError) as error:
        raise _refused(at, f"the signature by {kid!r} is not one of this card: {error}") from error
    return kid


def _header(signature: CardSignature, at: str) -> dict[str, Any]:
    try:
        header = json.loads(base64url_decode(signature.protected))
    except (ValueError, binascii.Error, RecursionError) as error:
        raise _refused(at, f"the protected header cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise _refused(at, "the protected header is not a JSON object")
    return cast("dict[str, Any]", header)


def _check_algorithm(algorithm: str, allowed: Sequence[str], *, at: str) -> None:
    if algorithm not in allowed or algorithm not in ALGORITHMS:
        raise _refused(at, f"the algorithm {algorithm!r} is not one of {', '.join(allowed)}")


def _refused(at: str, message: str) -> SignatureError:
    return SignatureError(message, [Problem(at, message, _CLAUSE)])
