"""The call context on the wire: W3C Trace Context and Baggage, the same two keys on every protocol.

HTTP and WebSocket carry them as headers and frame fields, MCP in `_meta`, A2A in `metadata`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from opentelemetry import baggage, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agent_env.context.call import CallContext, Link
from agent_env.context.run import Route, Run
from agent_env.errors import InvalidArguments

CONTEXT_KEYS = ("traceparent", "baggage")
RUN_HEADER = "Agent-Env-Run"

_PREFIX = "agent-env."
_NUMBER = re.compile(r"[+-]?[0-9]{1,15}")
_TRACE = TraceContextTextMapPropagator()
_BAGGAGE = W3CBaggagePropagator()
_ROOT_SPAN = "0000000000000001"


def inject(context: CallContext) -> dict[str, str]:
    """Encodes the context as `traceparent` and `baggage`."""
    carrier: dict[str, str] = {}
    span = SpanContext(
        trace_id=int(context.trace_id, 16),
        span_id=int(context.call_id or _ROOT_SPAN, 16),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
    otel = trace.set_span_in_context(NonRecordingSpan(span), Context())
    _TRACE.inject(carrier, otel)
    values: dict[str, str] = {}
    if context.episode is not None:
        # Quoted once more than baggage itself does, since its readers strip what is left of the quoting.
        values["episode"] = quote(context.episode, safe="")
    if context.chain:
        values["chain"] = " ".join(f"{link.environment}/{link.session}" for link in context.chain)
    if context.calls is not None:
        values["calls"] = str(context.calls)
    if context.deadline is not None:
        values["ms"] = str(int(max(0.0, context.deadline - time.monotonic()) * 1000))
    if values:
        otel = Context()
        for key, value in values.items():
            otel = baggage.set_baggage(_PREFIX + key, value, otel)
        _BAGGAGE.inject(carrier, otel)
    return carrier


def extract(carrier: Mapping[str, Any]) -> CallContext:
    """Decodes what `inject` encoded; a caller that sends nothing starts a tree of its own.

    Raises `InvalidArguments` for a value of ours that cannot be read. Foreign entries are ignored.
    """
    known: dict[str, str] = {}
    for key in CONTEXT_KEYS:
        value = carrier.get(key)
        if value and not isinstance(value, str):
            raise InvalidArguments(f"the context's {key} must be a string, not a {type(value).__name__}")
        if value:
            known[key] = value
    if not known:
        return CallContext()
    span = trace.get_current_span(_TRACE.extract(known, Context())).get_span_context()
    values = baggage.get_all(_BAGGAGE.extract(known, Context()))
    ours = {key.removeprefix(_PREFIX): str(value) for key, value in values.items() if key.startswith(_PREFIX)}
    parent = f"{span.span_id:016x}" if span.is_valid else ""
    milliseconds = _number(ours, "ms")
    fields: dict[str, Any] = {"trace_id": f"{span.trace_id:032x}"} if span.is_valid else {}
    return CallContext(
        call_id="" if parent == _ROOT_SPAN else parent,
        episode=unquote(ours["episode"]) if "episode" in ours else None,
        chain=tuple(_link(entry) for entry in ours.get("chain", "").split()),
        calls=_number(ours, "calls"),
        deadline=None if milliseconds is None else time.monotonic() + milliseconds / 1000,
        **fields,
    )


def _number(values: Mapping[str, str], key: str) -> int | None:
    text = values.get(key)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise InvalidArguments(
            f"the baggage entry {_PREFIX}{key} must be a whole number of at most 15 digits, not {text!r:.100}"
        )
    return int(text)


def _link(entry: str) -> Link:
    environment, separator, session = entry.rpartition("/")
    if not separator:
        raise InvalidArguments(f"the baggage entry {_PREFIX}chain has {entry!r}, which is not environment/session")
    return Link(environment, session)


def encode_run(run: Run) -> str:
    """Encodes a run for the `Agent-Env-Run` header: base64url of compact JSON."""
    routes = {seat: [route.token, route.model] for seat, route in run.routes.items()}
    text = json.dumps([run.gateway, run.run, run.episode, run.seat, routes], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode_run(header: str) -> Run:
    """Decodes an `Agent-Env-Run` header; raises `InvalidArguments` if it is not one."""
    try:
        gateway, run, episode, seat, routes = json.loads(base64.urlsafe_b64decode(header.encode()))
        known = {str(name): Route(str(token), str(model)) for name, (token, model) in routes.items()}
    except (ValueError, TypeError, AttributeError, binascii.Error):
        raise InvalidArguments(f"the {RUN_HEADER} header cannot be read; send what encode_run made") from None
    return Run(str(gateway), str(run), str(episode), str(seat), known)
