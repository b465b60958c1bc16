"""What a command shows of the log: a sentence for what failed, and tracebacks where they are asked for."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

from agent_env.cli.output import errors


class _Sentences(logging.Handler):
    """Prints warnings and errors in a line each, once: a batch of episodes fails for one reason."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__(logging.WARNING)
        self._tracebacks = tracebacks
        self._told: set[str] = set()
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a record."""
        if self._tracebacks:
            line = self.format(record)
        else:
            line = record.getMessage()
            cause = None if record.exc_info is None else _first(record.exc_info[1])
            if cause is not None:
                line += f"{_unsaid(cause, line)}; --debug shows the traceback"
        if line not in self._told:
            self._told.add(line)
            _print(line)


def _unsaid(cause: BaseException, line: str) -> str:
    """What a line does not yet tell of the error that it came of: its name, its words, and its place."""
    from agent_env.training.faults import place_of, shortened

    name, words, place = type(cause).__name__, shortened(str(cause)), place_of(cause)
    said = f": {words}" if words not in line else ""
    where = f" ({place})" if place is not None and place not in line else ""
    if not said and not where:
        return ""
    # A line that ends with the name, or with the words, goes on; any other is a sentence of its own.
    goes_on = line.endswith(name) or (words != "" and line.endswith(words))
    return f"{'' if goes_on else f'; it came of {name}'}{said}{where}"


def _print(line: str) -> None:
    """Prints a line on standard error; above a bar that is drawn on the same terminal, and not after it."""
    from rich.file_proxy import FileProxy

    stream = sys.stderr
    if isinstance(stream, FileProxy) and stream.rich_proxied_file.isatty():
        # Who draws the bar takes it away and draws it again below; a terminal that is gone fails no work.
        with suppress(OSError, ValueError):
            stream.write(f"{line}\n")
    else:
        errors.print(line, markup=False, highlight=False, soft_wrap=True)


def _first(error: BaseException | None) -> BaseException | None:
    """What an error came of: what an agent raised, and not that it failed."""
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    return error


@contextmanager
def told_briefly(*, tracebacks: bool = False) -> Generator[None]:
    """Shows warnings and errors of this package on standard error, without their tracebacks if they are not asked for."""
    logger = logging.getLogger("agent_env")
    handler, propagate = _Sentences(tracebacks=tracebacks), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
