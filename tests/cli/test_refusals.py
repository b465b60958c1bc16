"""Bad input on the command line: one sentence with the remedy, never a traceback."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("target", ["..:x", ".a:x", "a-b:x", ":x", "agents:"])
def test_a_target_that_is_no_module_is_refused(cli: Any, target: str) -> None:
    assert "module:attribute" in " ".join(cli("serve", target, code=2).split())


def test_a_module_that_serves_on_import_is_told_to_use_a_guard(cli: Any) -> None:
    (cli.folder / "eager.py").write_text(
        "from agent_env import serve_agent_as_env\n"
        "def agent(message):\n    return message\n"
        "serve_agent_as_env(agent)\n",
        "utf-8",
    )
    assert "__main__" in " ".join(cli("push", "eager:agent", code=2).split())


def test_a_file_that_is_no_text_is_no_card(cli: Any) -> None:
    (cli.folder / "card.json").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in cli("card", "validate", "card.json", code=2)


def test_arguments_nested_without_end_are_refused(cli: Any) -> None:
    assert "not JSON" in cli("call", "agent", "-a", "[" * 100_000, code=2)


def test_what_an_agent_says_is_printed_as_it_is(cli: Any) -> None:
    said = "a :100: list[:on:] [red]x[/red] " + "y" * 200
    with cli.serving("agents:echo", "--no-hub") as served:
        assert cli("call", served["url"], "-m", said) == said + "\n"


ALONE = [
    *(("episodes", one) for one in ("list", "show", "export")),
    *((one,) for one in ("call", "check", "chat", "serve", "push")),
    *(("card", one) for one in ("show", "validate")),
    *(("hub", one) for one in ("show", "yank")),
]


@pytest.mark.parametrize("words", ALONE, ids=" ".join)
def test_a_command_without_its_argument_says_which_is_missing(cli: Any, words: tuple[str, ...]) -> None:
    assert "Missing argument" in cli(*words, code=2)
