"""Every wrapper through the shared conformance function, with the real framework and a model server on a socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from model_server import ModelServer
from subjects import SUBJECTS

from agent_env_wrappers.conformance import CHECKS, Subject, run_check

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.__name__)
async def test_a_wrapper_conforms(subject: Callable[[ModelServer], Subject], check: Any, models: ModelServer) -> None:
    print(await run_check(check, subject(models), seconds=20))
