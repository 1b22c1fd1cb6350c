"""Runs functions that wait in a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from polaris_spark.errors import PolarisError


def started(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Start a thread. Its result or error is available when it has ended."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except PolarisError as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome
