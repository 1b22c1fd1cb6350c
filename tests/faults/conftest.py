"""Long runs of these tests are there for those who ask for them."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _long_runs_are_asked_for(request: pytest.FixtureRequest) -> None:
    marked = request.node.get_closest_marker("long") is not None
    if marked and "long" not in request.config.option.markexpr:
        pytest.skip("many rounds of kills and faults take minutes: `pytest -m long` runs them")
