"""Runs the lines of a page that need a package of this virtual environment, in the folder that it is started in.

    python page_lines.py docs/trainers.md verl

The lines are the Python blocks of the section that follow a comment `not run: tests/peers runs these lines …`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

page, heading = Path(sys.argv[1]).read_text("utf-8"), sys.argv[2]
(section,) = (part for part in page.split("\n## ") if part.partition("\n")[0].lower() == heading.lower())
blocks = re.findall(
    r"<!-- not run: tests/peers runs these lines [^>]*-->\n```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE
)
for block in blocks:
    exec(compile(block, heading, "exec"), {"__name__": "__page__"})  # noqa: S102
print(json.dumps({"blocks": len(blocks)}))
