"""The logs of libraries that write down what goes over the wire."""

from __future__ import annotations

import logging


def keep_from_logs(*libraries: str) -> None:
    """Leaves out the DEBUG records of libraries, which hold whole messages with the ids of sessions.

    Those ids are secrets, and a program that wants its own DEBUG records sets the level of all. Whoever sets the level
    of such a library by its name has what they ask for.
    """
    for name in libraries:
        library = logging.getLogger(name)
        if library.level == logging.NOTSET:
            library.setLevel(logging.INFO)
