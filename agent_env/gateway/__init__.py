"""The model endpoint that agents are pointed at: it records every model call and routes it to the seat's policy."""

from agent_env.gateway.app import Gateway
from agent_env.gateway.client import RunHandle
from agent_env.gateway.collector_client import RunRecorder
from agent_env.gateway.policy_client import PolicyHandle, PolicyState
from agent_env.gateway.runs import SeatPolicy
from agent_env.gateway.server import GatewayProcess, launched, running
from agent_env.gateway.tokens import mint_token

__all__ = [
    "Gateway",
    "GatewayProcess",
    "PolicyHandle",
    "PolicyState",
    "RunHandle",
    "RunRecorder",
    "SeatPolicy",
    "launched",
    "mint_token",
    "running",
]
