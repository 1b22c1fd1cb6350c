"""Functions that wait for a condition, with a time limit that is long enough for a slow machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from polaris_spark.errors import OutcomeUnknownError, TryAgainError

T = TypeVar("T")

PATIENCE_S: Final = 180
"""Maximum time to wait for a condition in tests, in seconds."""


def wait_until(condition: Callable[[], object], what: str, *, every_s: float = 0.002) -> None:
    """Wait until `condition()` is true. Check the condition every `every_s` seconds.

    Args:
        what: description of the condition, for the message of the error.
    Raises:
        AssertionError: the condition was not true within `PATIENCE_S`.
    """
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"did not happen in {PATIENCE_S} s: {what}"
        time.sleep(every_s)


def until_it_works(call: Callable[[], T]) -> T:
    """Repeat a call until it raises neither `TryAgainError` nor `OutcomeUnknownError`, and return its result.

    Raises:
        TryAgainError, OutcomeUnknownError: the call still raised this error after `PATIENCE_S`.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except (TryAgainError, OutcomeUnknownError):
            if time.monotonic() > end:
                raise
        time.sleep(0.01)
