"""What wrappers of agents that read text alone say to other parts of a message."""

from __future__ import annotations

from agent_env_wrappers.contract import FilePart, Turn, WrapError


def refuse_files(turn: Turn, framework: str) -> None:
    """Raises `WrapError` when the message has a file, which the wrapper cannot hand over."""
    if any(isinstance(part, FilePart) for part in turn.message.parts):
        raise WrapError(
            f"agents of {framework} are given text and data here, and the message has a file; send its text, or "
            "serve a function that takes a `Message`"
        )
