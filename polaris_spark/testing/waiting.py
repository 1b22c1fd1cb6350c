"""Waiting for what must come about, for no longer than a slow machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from polaris_spark.errors import OutcomeUnknownError, TryAgainError

T = TypeVar("T")

PATIENCE_S: Final = 180
"""How long a condition is waited for, seconds."""


def wait_until(condition: Callable[[], object], what: str, *, every_s: float = 0.002) -> None:
    """Wait for a condition that must come about; look at it again after each `every_s` seconds.

    Raises:
        AssertionError: it did not in `PATIENCE_S`; the message says `what`.
    """
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"did not happen in {PATIENCE_S} s: {what}"
        time.sleep(every_s)


def until_it_works(call: Callable[[], T]) -> T:
    """What a call gives that may be repeated, as soon as it is neither refused for now nor of unknown outcome.

    Raises:
        TryAgainError, OutcomeUnknownError: still so after `PATIENCE_S`.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except (TryAgainError, OutcomeUnknownError):
            if time.monotonic() > end:
                raise
        time.sleep(0.01)
