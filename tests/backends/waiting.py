"""Work that waits for something in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from polaris_spark.errors import PolarisError


def started(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread, and what its work gave or raised once it ended."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except PolarisError as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome
