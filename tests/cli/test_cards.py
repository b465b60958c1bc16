"""`agent-env card` and `agent-env doctor`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent_env_cards import EnvironmentCard

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def card(cli: Any) -> str:
    cli("push", "agents:echo", "--name", "echo", "--version", "1.0.0", "--skill", "echoing")
    text = cli("card", "show", "echo", "--json")
    (cli.folder / "card.json").write_text(text, "utf-8")
    return "card.json"


def test_a_card_is_drawn_with_its_tools_and_offers(cli: Any, card: str) -> None:
    drawn = cli("card", "show", card)
    assert "echo@1.0.0" in drawn
    assert "chat" in drawn
    assert "echoing" in drawn


def test_every_problem_of_a_bad_card_is_listed_with_its_clause(cli: Any) -> None:
    (cli.folder / "bad.json").write_text(json.dumps({"name": "Bad", "version": "v1"}), "utf-8")
    problems = cli.json("card", "validate", "bad.json", code=1)
    assert {"/name", "/version"} <= {problem["pointer"] for problem in problems}
    assert all(problem["clause"].startswith("EC-") for problem in problems)


def test_a_signed_card_verifies_until_it_is_changed(cli: Any, card: str) -> None:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (cli.folder / "private.pem").write_bytes(private)
    (cli.folder / "public.pem").write_bytes(public)
    cli("card", "sign", card, "--key", "private.pem", "--kid", "me", "--algorithm", "EdDSA", "-o", "signed.json")
    assert cli.json("card", "verify", "signed.json", "--key", "public.pem", "--kid", "me")["verified"] == ["me"]
    signed = EnvironmentCard.parse((cli.folder / "signed.json").read_text("utf-8"))
    changed = signed.model_copy(update={"description": "something else"})
    (cli.folder / "changed.json").write_text(changed.to_json(), "utf-8")
    refused = cli("card", "verify", "changed.json", "--key", "public.pem", "--kid", "me", code=2)
    assert "not one of this card" in " ".join(refused.split())


def test_doctor_tells_what_works(cli: Any) -> None:
    findings = {finding["subject"]: finding for finding in cli.json("doctor")}
    assert findings["python"]["state"] == "ok"
    assert findings["wrapper callable"]["state"] == "ok"
    assert findings["mcp"]["state"] == "ok"
    assert str(cli.hub) in findings["hub"]["note"]


def test_doctor_draws_a_rival_that_installs_the_same_package_as_wrong(cli: Any) -> None:
    # The folder of a command is on its path, so what lies there is installed.
    rival = cli.folder / "agentenv_framework-0.9.dist-info"
    rival.mkdir()
    (rival / "METADATA").write_text("Metadata-Version: 2.1\nName: agentenv-framework\nVersion: 0.9\n", "utf-8")
    drawn = " ".join(cli("doctor", code=1).replace("│", " ").split())
    assert "agentenv-framework wrong 0.9 is in this environment" in drawn
    assert "virtual environment of its own" in drawn
    assert drawn.endswith("1 to fix")
