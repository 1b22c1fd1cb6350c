"""Waiting for conditions, with a time limit that is long enough for a slow machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from polaris_spark.errors import OutcomeUnknownError, TryAgainError

T = TypeVar("T")

PATIENCE_S: Final = 180
"""Longest wait for a condition, in seconds."""


def wait_until(condition: Callable[[], object], what: str, *, every_s: float = 0.002) -> None:
    """Wait until a condition is true, and check it every `every_s` seconds.

    Raises:
        AssertionError: the condition was not true within `PATIENCE_S`; the message contains `what`.
    """
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"did not happen in {PATIENCE_S} s: {what}"
        time.sleep(every_s)


def until_it_works(call: Callable[[], T]) -> T:
    """Repeat a call until it raises neither `TryAgainError` nor `OutcomeUnknownError`, and return its result.

    Raises:
        TryAgainError, OutcomeUnknownError: the call still raised it after `PATIENCE_S`.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except (TryAgainError, OutcomeUnknownError):
            if time.monotonic() > end:
                raise
        time.sleep(0.01)
