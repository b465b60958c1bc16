"""What frameworks and model clients raise, as an `AgentError` that says who failed.

Classes are told by their names, since no framework is imported here. A message has the name of the exception and the
HTTP status, never its text: that may hold prompts, keys and addresses of the agent's owner. The text is in the cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from agent_env_wrappers.contract import AgentError, WrapError

Kind: TypeAlias = Literal["model", "tool", "limit", "refused", "framework", "agent"]

KINDS: Mapping[tuple[str, str], Kind] = {
    ("agents", "InputGuardrailTripwireTriggered"): "refused",
    ("agents", "MaxTurnsExceeded"): "limit",
    ("agents", "ModelBehaviorError"): "model",
    ("agents", "ModelRefusalError"): "refused",
    ("agents", "OutputGuardrailTripwireTriggered"): "refused",
    ("agents", "ToolTimeoutError"): "tool",
    ("agents", "AgentsException"): "framework",
    ("aiohttp", "ClientError"): "model",
    ("langgraph", "GraphRecursionError"): "limit",
    ("langgraph", "InvalidUpdateError"): "framework",
    ("openai", "OpenAIError"): "model",
    ("pydantic_ai", "ContentFilterError"): "refused",
    ("pydantic_ai", "ModelAPIError"): "model",
    ("pydantic_ai", "UnexpectedModelBehavior"): "model",
    ("pydantic_ai", "UsageLimitExceeded"): "limit",
    ("pydantic_ai", "AgentRunError"): "framework",
    ("pydantic_ai", "UserError"): "framework",
}
"""Who is at fault, by the root module and the name of an exception; the most derived class that is listed decides."""

BLAMED: Mapping[Kind, str] = {
    "model": "the agent's model failed",
    "tool": "a tool of the agent failed",
    "limit": "the agent reached a limit",
    "refused": "the agent refused",
    "framework": "the agent's framework failed",
    "agent": "the agent failed",
}


def failure(error: BaseException) -> AgentError | WrapError:
    """Makes the error that a wrapper raises for what it caught; raise it `from error`.

    An `AgentError` or `WrapError` that a framework has wrapped in its own exception comes out again as itself.
    """
    chain = _chain(error)
    for link in chain:
        if isinstance(link, AgentError | WrapError):
            return link
    for link in chain:
        kind = _kind(link)
        if kind is not None:
            return _told(link, kind)
    return _told(error, "agent")


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__
    return chain


def _kind(error: BaseException) -> Kind | None:
    for made in type(error).__mro__:
        kind = KINDS.get((made.__module__.partition(".")[0], made.__name__))
        if kind is not None:
            return kind
    return None


def _told(error: BaseException, kind: Kind) -> AgentError:
    status = getattr(error, "status_code", None) or getattr(error, "status", None)
    name = type(error).__name__
    what = f"{name}, HTTP {status}" if isinstance(status, int) else name
    return AgentError(f"{BLAMED[kind]} ({what})", kind=kind, retryable=kind == "model" and _passes(name, status))


def _passes(name: str, status: object) -> bool:
    """Whether a model's failure may be gone at the next try: it was busy, broken or out of reach."""
    if isinstance(status, int):
        return status in (408, 409, 429) or status >= 500
    return any(word in name for word in ("Connection", "Timeout", "Disconnected", "Unavailable", "Overloaded"))
