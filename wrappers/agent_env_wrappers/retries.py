"""When a request to a model is made again, and after how long: by the rules of the openai SDK.

A server that is busy, or that cannot be reached, may answer a little later. Every further try is marked as one, so that
a gateway that records calls knows what it repeats.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

BUSY = frozenset({408, 409, 429})
"""The statuses below 500 that may be another one a little later."""
COUNT = "Agent-Env-Retry-Count"
FIRST_SECONDS = 0.5
LONGEST_SECONDS = 8.0
"""The pauses of a server that names none: the first, doubled with each try up to the longest, less up to a quarter."""
MOST_SECONDS = 120.0
"""The longest pause that a server may name; one that wants to be left alone for longer is not waited for."""


def passes(status: int) -> bool:
    """Tells whether the same request may get another status later."""
    return status in BUSY or status >= 500


@dataclass(slots=True)
class Tries:
    """The tries of one request: at most `most` after the first, none of them after `until` on `time.monotonic`."""

    most: int
    until: float | None = None
    made: int = 0
    """How often the request was made again so far."""

    @property
    def mark(self) -> dict[str, str]:
        """The header that says which try the next one is; none for the first."""
        return {COUNT: str(self.made)} if self.made else {}

    def after(self, status: int, headers: Mapping[str, str]) -> float | None:
        """The seconds until the next try, which is counted, after an answer; None where there is none and it stands.

        The names of `headers` are in lower case, unless they are found in any.
        """
        wished = headers.get("x-should-retry")
        again = wished == "true" if wished in ("true", "false") else passes(status)
        return self._next(named_pause(headers)) if again and status >= 400 else None

    def unanswered(self) -> float | None:
        """The same after a try that nobody answered."""
        return self._next(None)

    def _next(self, pause: float | None) -> float | None:
        if pause is None:
            pause = min(FIRST_SECONDS * 2.0 ** min(self.made, 10), LONGEST_SECONDS) * random.uniform(0.75, 1)
        late = self.until is not None and time.monotonic() + pause >= self.until
        if self.made >= self.most or pause > MOST_SECONDS or late:
            return None
        self.made += 1
        return pause


def named_pause(headers: Mapping[str, str]) -> float | None:
    """The seconds that an answer asks to wait (`retry-after-ms`, or RFC 9110 §10.2.3), or None."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            pause = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if pause >= 0:
            return pause
    try:
        pause = parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    # A date that has passed may come of a clock that is behind ours, and says nothing.
    return pause if pause > 0 else None
