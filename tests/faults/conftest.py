"""Workers that are gone after each test, and long runs for those who ask for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.workers import Workers


@pytest.fixture(autouse=True)
def _long_runs_are_asked_for(request: pytest.FixtureRequest) -> None:
    marked = request.node.get_closest_marker("long") is not None
    if marked and "long" not in request.config.option.markexpr:
        pytest.skip("many rounds of kills and faults take minutes: `pytest -m long` runs them")


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Callable[..., Workers]]:
    """Makes workers that are gone after the test."""
    with ExitStack() as stack:

        def make(uri: str, seed: int, processes: int = 2, calm_uri: str | None = None) -> Workers:
            made = Workers(uri, tmp_path, seed, processes, calm_uri)
            stack.callback(made.kill_all)
            return made

        yield make
