"""What frameworks and model clients raise, as an `AgentError` that says who failed.

Classes are told by their names, since no framework is imported here. A message has the name of the exception and the
HTTP status, never its text: that may hold prompts, keys and addresses of the agent's owner. The text is in the cause.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent_env_wrappers.contract import AgentError, Blame, WrapError

KINDS: Mapping[tuple[str, str], Blame] = {
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

BLAMED: Mapping[Blame, str] = {
    "model": "the agent's model failed",
    "tool": "a tool of the agent failed",
    "limit": "the agent reached a limit",
    "refused": "the agent refused",
    "framework": "the agent's framework failed",
    "agent": "the agent failed",
}


def failure(error: BaseException) -> AgentError | WrapError:
    """Makes the error that a wrapper raises for what its framework raised; raise it `from error`.

    An `AgentError` or `WrapError` that the framework has wrapped in an exception of its own comes out again.
    """
    links = _links(error)
    for link in links:
        if isinstance(link, AgentError):
            return AgentError(str(link), kind=link.kind, retryable=link.retryable)
        if isinstance(link, WrapError):
            return WrapError(str(link))
    for link in links:
        kind = _kind(link)
        if kind is not None:
            return _told(link, kind)
    return _told(error, "agent")


def _links(error: BaseException) -> list[BaseException]:
    """The error, what it was raised from, and the members of groups, each before what is behind it."""
    links: list[BaseException] = []
    waiting: list[BaseException] = [error]
    while waiting:
        link = waiting.pop(0)
        if link in links:
            continue
        links.append(link)
        if link.__cause__ is not None:
            waiting.append(link.__cause__)
        if isinstance(link, BaseExceptionGroup):
            waiting.extend(link.exceptions)
    return links


def _kind(error: BaseException) -> Blame | None:
    for made in type(error).__mro__:
        kind = KINDS.get((made.__module__.partition(".")[0], made.__name__))
        if kind is not None:
            return kind
    return None


def _told(error: BaseException, kind: Blame) -> AgentError:
    status = getattr(error, "status_code", None) or getattr(error, "status", None)
    name = type(error).__name__
    what = f"{name}, HTTP {status}" if isinstance(status, int) else name
    return AgentError(f"{BLAMED[kind]} ({what})", kind=kind, retryable=kind == "model" and _passes(name, status))


def _passes(name: str, status: object) -> bool:
    """Whether a model's failure may be gone at the next try: it was busy, broken or out of reach."""
    if isinstance(status, int):
        return status in (408, 409, 429) or status >= 500
    return any(word in name for word in ("Connection", "Timeout", "Disconnected", "Unavailable", "Overloaded"))
