"""Garbage collection for processes that serve."""

from __future__ import annotations

import gc

_THRESHOLDS = 50_000, 20, 50


def collect_rarely() -> None:
    """Makes the cyclic garbage collector of this process look less often, and never at what is imported by now.

    Nearly all objects of a call die by reference count; with the interpreter's own thresholds a server spends a tenth
    to a sixth of its time looking for the few that do not. For processes of agent-env's own, not for libraries.
    """
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
