"""Who is to blame for what a framework raised, and how little the message says."""

from __future__ import annotations

import httpx
import openai
import pytest
from langgraph.errors import GraphRecursionError
from pydantic_ai.exceptions import UsageLimitExceeded

from agent_env_wrappers.contract import AgentError, WrapError
from agent_env_wrappers.failures import failure


def raised_from(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def test_an_unknown_error_is_the_agents_and_only_its_name_is_told() -> None:
    told = failure(KeyError("secret"))
    assert isinstance(told, AgentError)
    assert (str(told), told.kind, told.retryable) == ("the agent failed (KeyError)", "agent", False)


def test_the_most_derived_class_that_is_known_decides() -> None:
    class OwnLimit(UsageLimitExceeded):
        pass

    told = failure(OwnLimit("secret"))
    assert isinstance(told, AgentError)
    assert (str(told), told.kind) == ("the agent reached a limit (OwnLimit)", "limit")
    told = failure(GraphRecursionError("secret"))
    assert isinstance(told, AgentError)
    assert told.kind == "limit"


@pytest.mark.parametrize("error", [openai.APIConnectionError, openai.APITimeoutError])
def test_a_model_that_is_out_of_reach_may_be_tried_again(error: type[openai.APIConnectionError]) -> None:
    told = failure(error(request=httpx.Request("POST", "http://there")))  # type: ignore[arg-type]
    assert isinstance(told, AgentError)
    assert (told.kind, told.retryable) == ("model", True)


def test_the_cause_is_blamed_where_the_error_itself_is_unknown() -> None:
    told = failure(raised_from(RuntimeError("node failed"), UsageLimitExceeded("secret")))
    assert isinstance(told, AgentError)
    assert told.kind == "limit"


def test_an_error_of_the_contract_comes_out_of_any_wrapping_again() -> None:
    inner = AgentError("the solver is out", kind="tool", retryable=True)
    for error in (raised_from(RuntimeError("x"), inner), ExceptionGroup("x", [ValueError(), inner])):
        told = failure(error)
        assert isinstance(told, AgentError)
        assert (str(told), told.kind, told.retryable) == ("the solver is out", "tool", True)
        assert told is not inner
    assert isinstance(failure(raised_from(RuntimeError("x"), WrapError("use a factory"))), WrapError)


def test_errors_that_cause_each_other_end() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert str(failure(first)) == "the agent failed (RuntimeError)"
