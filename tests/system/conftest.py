"""Stores that several tests only read, or copy."""

from __future__ import annotations

import pytest

from tests.system.losses import MAIN, History


@pytest.fixture(scope="session")
def history() -> History:
    """Forty commits to `MAIN`."""
    made = History()
    made.create(MAIN)
    for i in range(40):
        made.add(MAIN, f"k{i % 7}")
    return made
