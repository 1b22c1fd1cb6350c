"""The `conftest.py` beside pyiceberg's suite of catalogs: its fixtures of catalogs, opened with `PolarisCatalog`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polaris_spark.pyiceberg import PolarisCatalog


def opened(folder: Path, warehouse: Path) -> PolarisCatalog:
    """A catalog in a new store."""
    store = f"sqlite://{folder / 'store.db'}"
    return PolarisCatalog("test_catalog", store=store, warehouse=f"file://{warehouse}")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[PolarisCatalog]:
    """A catalog with a warehouse of its own."""
    with opened(tmp_path, tmp_path / "warehouse") as made:
        yield made


@pytest.fixture
def catalog_with_warehouse(tmp_path: Path, warehouse: Path) -> Iterator[PolarisCatalog]:
    """A catalog with the warehouse that other fixtures of the suite use."""
    with opened(tmp_path, warehouse) as made:
        yield made
