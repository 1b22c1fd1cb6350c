"""A catalog in memory or in SQLite."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.maintenance.migration import marks
from polaris_spark.pyiceberg import PolarisCatalog

Open = Callable[..., PolarisCatalog]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens catalogs of one store, in this test's warehouse."""
    catalogs: list[PolarisCatalog] = []
    store = f"memory:{uuid.uuid4()}"

    def open(name: str = "lake", **properties: Any) -> PolarisCatalog:
        given = {"store": store, "warehouse": str(tmp_path / name), **properties}
        catalogs.append(PolarisCatalog(name, **given))
        return catalogs[-1]

    yield open
    for catalog in catalogs:
        catalog.close()


@pytest.fixture
def lake(opened: Open) -> PolarisCatalog:
    """A catalog with the empty namespace `db`."""
    catalog = opened()
    catalog.create_namespace("db")
    return catalog


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run parallel work in one thread, so that the order is always the same."""
    monkeypatch.setattr(marks, "_THREADS", 1)
