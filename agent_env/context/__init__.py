"""Who calls whom: the context that travels with every call, and the ports that a running turn uses."""

from agent_env.context.budget import Budget, Grant
from agent_env.context.call import CallContext, Link, Principal, new_call_id, new_trace_id, session_hash
from agent_env.context.carrier import CONTEXT_KEYS, RUN_HEADER, decode_run, encode_run, extract, inject
from agent_env.context.frame import Frame, current_frame, entered
from agent_env.context.ports import Peer, PeerSource, Record, Recorder
from agent_env.context.run import Route, Run

__all__ = [
    "CONTEXT_KEYS",
    "RUN_HEADER",
    "Budget",
    "CallContext",
    "Frame",
    "Grant",
    "Link",
    "Peer",
    "PeerSource",
    "Principal",
    "Record",
    "Recorder",
    "Route",
    "Run",
    "current_frame",
    "decode_run",
    "encode_run",
    "entered",
    "extract",
    "inject",
    "new_call_id",
    "new_trace_id",
    "session_hash",
]
