"""A catalog whose log is archived."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polaris_spark.clock import ManualClock
from tests.views.catalogs import Catalog


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def catalog(tmp_path: Path, clock: ManualClock) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path / "c.db", clock=clock)
    catalog.namespace("db")
    catalog.table("db", "t")
    yield catalog
    catalog.session.close()
