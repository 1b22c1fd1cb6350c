"""Worker processes that are ended after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.workers import Workers


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Callable[..., Workers]]:
    """Starts workers, and ends them after the test."""
    with ExitStack() as stack:

        def make(uri: str, seed: int, processes: int = 2, calm_uri: str | None = None) -> Workers:
            made = Workers(uri, tmp_path, seed, processes, calm_uri)
            stack.callback(made.kill_all)
            return made

        yield make
