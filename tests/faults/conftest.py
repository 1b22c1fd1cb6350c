"""Worker processes that are ended after each test, and settings for tests that kill processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from polaris_spark.system import lost_rows
from tests.faults.workers import Workers


@pytest.fixture
def brief_glances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process wait 10 ms instead of 500 ms for the row of a reference: the process that should write the row
    is dead."""
    monkeypatch.setattr(lost_rows, "_GLANCE_MS", 1.0)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Callable[..., Workers]]:
    """Starts workers, and ends them after the test."""
    with ExitStack() as stack:

        def make(uri: str, seed: int, processes: int = 2, calm_uri: str | None = None) -> Workers:
            made = Workers(uri, tmp_path, seed, processes, calm_uri)
            stack.callback(made.kill_all)
            return made

        yield make
