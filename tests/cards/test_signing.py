"""Signatures: clause EC-39."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from agent_env_cards import CardSignature, EnvironmentCard, Need, SignatureError, sign_card, verify_card
from agent_env_cards.conformance import cases

ES = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
KEYS = {"es": ES.public_key(), "ed": ED.public_key()}
PRIVATE = {"ES256": (ES, "es"), "EdDSA": (ED, "ed")}

pytestmark = pytest.mark.clause("EC-39")


def unsigned() -> EnvironmentCard:
    return EnvironmentCard(name="agent-b", version="1.0.0", description="B.", needs=[Need("s")])


def encode(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def with_header(card: EnvironmentCard, header: object, signature: str | None = None) -> EnvironmentCard:
    made = CardSignature(
        protected=encode(json.dumps(header).encode()), signature=signature or card.signatures[0].signature
    )
    return card.model_copy(update={"signatures": [made]})


@pytest.mark.parametrize("algorithm", ["ES256", "EdDSA"])
def test_a_signature_holds_for_the_card_after_the_wire(algorithm: str) -> None:
    key, kid = PRIVATE[algorithm]
    signed = sign_card(unsigned(), key, kid=kid, algorithm=algorithm)
    assert verify_card(EnvironmentCard.parse(signed.to_json()), KEYS.get) == [kid]
    header = json.loads(decode(signed.signatures[0].protected))
    assert header == {"alg": algorithm, "kid": kid, "typ": "JOSE"}


def test_signing_does_not_change_the_digest_nor_the_card_that_was_given() -> None:
    card = unsigned()
    signed = sign_card(card, ES, kid="es")
    assert (card.signatures, len(signed.signatures)) == ([], 1)
    assert signed.digest() == card.digest()


@pytest.mark.parametrize("algorithm", ["ES256", "EdDSA"])
def test_a_signature_is_a_detached_json_web_signature_over_the_digest(algorithm: str) -> None:
    key, kid = PRIVATE[algorithm]
    signed = sign_card(unsigned(), key, kid=kid, algorithm=algorithm)
    [signature] = signed.signatures
    raw, message = decode(signature.signature), f"{signature.protected}.{encode(signed.digest().encode())}".encode()
    if algorithm == "ES256":
        der = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
        KEYS[kid].verify(der, message, ec.ECDSA(hashes.SHA256()))
    else:
        KEYS[kid].verify(raw, message)


def test_a_known_signature_comes_out_the_same() -> None:
    [card] = [case.card for case in cases("valid") if case.name == "signed"]
    key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    parsed = EnvironmentCard.parse(card)
    assert verify_card(parsed, {"test-key": key.public_key()}.get) == ["test-key"]
    again = sign_card(parsed.model_copy(update={"signatures": []}), key, kid="test-key", algorithm="EdDSA")
    assert again.to_dict() == card


@pytest.mark.parametrize(
    "change",
    [{"name": "agent-c"}, {"version": "1.0.1"}, {"description": "C."}, {"needs": []}],
)
def test_a_changed_release_fact_breaks_every_signature(change: dict[str, Any]) -> None:
    signed = sign_card(sign_card(unsigned(), ES, kid="es"), ED, kid="ed", algorithm="EdDSA")
    with pytest.raises(SignatureError, match="no signature of") as caught:
        verify_card(signed.model_copy(update=change), KEYS.get)
    assert [problem.pointer for problem in caught.value.problems] == ["/signatures/0", "/signatures/1"]
    assert {problem.clause for problem in caught.value.problems} == {"EC-39"}


def test_a_stated_digest_cannot_stand_in_for_the_real_one() -> None:
    signed = sign_card(unsigned(), ES, kid="es")
    forged = {**signed.to_dict(), "description": "Obey me.", "digest": signed.digest()}
    with pytest.raises(SignatureError):
        verify_card(EnvironmentCard.parse(forged), KEYS.get)


def test_a_replica_with_other_instance_facts_keeps_the_signature() -> None:
    signed = sign_card(unsigned(), ES, kid="es")
    assert verify_card(signed.model_copy(update={"url": "/p/agentenv", "license": "MIT"}), KEYS.get) == ["es"]


def test_one_signature_that_holds_is_enough_and_all_that_hold_are_named() -> None:
    stranger = ec.generate_private_key(ec.SECP256R1())
    card = sign_card(unsigned(), stranger, kid="stranger")
    card = sign_card(sign_card(card, ES, kid="es"), ED, kid="ed", algorithm="EdDSA")
    assert verify_card(card, KEYS.get) == ["es", "ed"]
    with pytest.raises(SignatureError, match="'stranger' is not trusted here"):
        verify_card(card.model_copy(update={"signatures": card.signatures[:1]}), KEYS.get)


def test_a_card_without_signatures_is_not_verified() -> None:
    with pytest.raises(SignatureError, match=r"'agent-b@1\.0\.0' has no signature; sign it with sign_card"):
        verify_card(unsigned(), KEYS.get)


def test_keys_may_be_pem_or_json_web_keys() -> None:
    pem = ES.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = ES.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    jwk = jwt.PyJWK.from_json(jwt.algorithms.ECAlgorithm.to_jwk(ES.public_key()), algorithm="ES256")
    private_jwk = jwt.PyJWK.from_json(jwt.algorithms.OKPAlgorithm.to_jwk(ED), algorithm="EdDSA")
    signed = sign_card(sign_card(unsigned(), pem, kid="pem"), private_jwk, kid="jwk", algorithm="EdDSA")
    assert verify_card(signed, {"pem": public.decode(), "jwk": KEYS["ed"]}.get) == ["pem", "jwk"]
    assert verify_card(signed, {"pem": jwk}.get) == ["pem"]


def test_the_verifier_and_not_the_signature_chooses_the_algorithm() -> None:
    signed = sign_card(unsigned(), ES, kid="es")
    with pytest.raises(SignatureError, match="the algorithm 'ES256' is not one of EdDSA"):
        verify_card(signed, KEYS.get, algorithms=["EdDSA"])
    secret = b"a shared secret that is long enough for HS256"
    token = jwt.api_jws.encode(signed.digest().encode(), secret, algorithm="HS256", headers={"kid": "es"})
    confused = with_header(signed, {"alg": "HS256", "kid": "es"}, token.split(".")[2])
    for algorithms in (["ES256", "EdDSA"], ["HS256"]):
        with pytest.raises(SignatureError, match="the algorithm 'HS256' is not one of"):
            verify_card(confused, {"es": secret}.get, algorithms=algorithms)
    with pytest.raises(SignatureError, match="the algorithm 'none'"):
        verify_card(with_header(signed, {"alg": "none", "kid": "es"}), KEYS.get)


def test_a_key_of_another_kind_does_not_verify() -> None:
    signed = sign_card(unsigned(), ES, kid="es")
    for key in (ED.public_key(), rsa.generate_private_key(65537, 2048).public_key(), "not a key", 7):
        with pytest.raises(SignatureError, match="the signature by 'es' is not one of this card"):
            verify_card(signed, {"es": key}.get)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"alg": "ES256"}, "no `kid` or no `alg`"),
        ({"kid": "es"}, "no `kid` or no `alg`"),
        ({"alg": 5, "kid": "es"}, "no `kid` or no `alg`"),
        ({"alg": "ES256", "kid": "es", "crit": ["exp"]}, r"makes \['exp'\] critical"),
        ([], "not a JSON object"),
    ],
)
def test_a_header_that_is_not_understood_is_refused(header: object, why: str) -> None:
    with pytest.raises(SignatureError, match=why):
        verify_card(with_header(sign_card(unsigned(), ES, kid="es"), header), KEYS.get)


@pytest.mark.parametrize("protected", ["", "%%%", encode(b"\xff"), encode(b"{"), encode(b"[" * 100_000)])
def test_a_header_that_is_not_json_is_refused(protected: str) -> None:
    signature = CardSignature(protected=protected, signature="AA")
    with pytest.raises(SignatureError, match="the protected header cannot be read"):
        verify_card(unsigned().model_copy(update={"signatures": [signature]}), KEYS.get)


def test_a_signature_that_is_not_base64_is_refused() -> None:
    signed = sign_card(unsigned(), ES, kid="es")
    for text in ("%%%", "", "ä"):
        broken = signed.signatures[0].model_copy(update={"signature": text})
        with pytest.raises(SignatureError, match="not one of this card"):
            verify_card(signed.model_copy(update={"signatures": [broken]}), KEYS.get)


def test_a_key_that_cannot_sign_is_refused_with_the_reason() -> None:
    with pytest.raises(SignatureError, match="the key 'es' cannot sign with EdDSA"):
        sign_card(unsigned(), ES, kid="es", algorithm="EdDSA")
    with pytest.raises(SignatureError, match="the algorithm 'HS256' is not one of ES256, EdDSA"):
        sign_card(unsigned(), "secret", kid="es", algorithm="HS256")
