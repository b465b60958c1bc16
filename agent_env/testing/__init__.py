"""The contract of an environment as a function that anybody can run against any environment."""

from agent_env.testing.check import check_environment
from agent_env.testing.report import Check, ContractBroken, Report

__all__ = ["Check", "ContractBroken", "Report", "check_environment"]
