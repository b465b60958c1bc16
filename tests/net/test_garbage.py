"""Garbage collection for processes that serve."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, weakref
from agent_env.net.garbage import collect_rarely
collect_rarely()
class Node:
    pass
def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)
first = cycle()
others = [cycle() for _ in range(200_000)]
print(gc.get_freeze_count() > 1000, gc.get_threshold()[0] > 10_000, first() is None)
"""


def test_cycles_are_still_collected_though_less_often() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["True", "True", "True"]
