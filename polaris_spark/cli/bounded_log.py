"""The log of a server and of a worker on standard error: a handler that clients cannot flood. It writes a bounded
number of records of each kind per minute, and counts the records that it leaves out."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TextIO

from polaris_spark.cli.output import plain

PER_MINUTE: Final = 10
"""Maximum number of records of one kind that are written per minute. Records of one kind have the same logger and the
same message, before arguments are filled in."""

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO]
else:
    _StreamHandler = logging.StreamHandler  # cannot be subscripted before Python 3.11

_WINDOW_SECONDS: Final = 60.0
_KINDS: Final = 1_000


class BoundedHandler(_StreamHandler):
    """Handler that writes records to a stream, but at most `PER_MINUTE` records of one kind per minute. When the first
    record of the kind in a later minute arrives, the handler first logs how many records of this kind it left out."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            clock: returns a monotonic time, in seconds.
        """
        super().__init__(stream)
        self._clock = clock
        self._windows: dict[tuple[str, str], tuple[float, int]] = {}
        """For each kind of records, (start of its current minute, number of records since then). The start is a time of
        `clock`, in seconds."""
        self._warm()

    def _warm(self) -> None:
        """Format an exception once, now. The first time, Python imports modules and opens files, which would fail later
        if the process had too many open files."""
        try:
            raise ValueError
        except ValueError as error:
            logging.Formatter().formatException((ValueError, error, error.__traceback__))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless `PER_MINUTE` records of its kind were already written in the current minute."""
        kind, now = (record.name, str(record.msg)), self._clock()
        begun, count = self._windows.get(kind, (now, 0))
        left_out = 0
        if now - begun >= _WINDOW_SECONDS:
            left_out, begun, count = max(0, count - PER_MINUTE), now, 0
        if len(self._windows) >= _KINDS and kind not in self._windows:
            self._windows.clear()  # some code formats arguments into messages, so the number of kinds is unbounded
        self._windows[kind] = (begun, count + 1)
        if count >= PER_MINUTE:
            return
        if left_out:
            self._tell(record, left_out)
        super().emit(record)

    def close(self) -> None:
        """Log how many records were left out and not reported yet, and close the handler."""
        windows, self._windows = self._windows, {}
        for (name, message), (_, count) in windows.items():
            if count > PER_MINUTE:
                record = logging.LogRecord(name, logging.WARNING, "", 0, message, None, None)
                self._tell(record, count - PER_MINUTE)
        super().close()

    def _tell(self, record: logging.LogRecord, left_out: int) -> None:
        text = f"{left_out} more log records of this kind were suppressed: {record.msg!s}"
        super().emit(logging.LogRecord(record.name, record.levelno, "", 0, text, None, None))


class OneLine(logging.Formatter):
    """Formatter that keeps each message on one line, even if it contains line breaks from names that clients chose."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        return plain(super().formatMessage(record))


def log_to_standard_error() -> None:
    """Log warnings to standard error, one line each."""
    handler = BoundedHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
