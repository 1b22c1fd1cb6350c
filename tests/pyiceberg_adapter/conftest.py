"""Catalogs with pyiceberg's interface, on every kind of store, with and without metadata files."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.pyiceberg import PolarisCatalog

Open = Callable[..., PolarisCatalog]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens catalogs in this test's warehouse, which are closed when the test is over."""
    catalogs: list[PolarisCatalog] = []

    def open(store: str, name: str = "lake", **properties: Any) -> PolarisCatalog:
        given = {"warehouse": str(tmp_path / "warehouse"), **properties}
        catalogs.append(PolarisCatalog(name, store=store, **given))
        return catalogs[-1]

    yield open
    for catalog in catalogs:
        catalog.close()


@pytest.fixture(params=["memory, every-commit", "sqlite, never"])
def catalog(request: pytest.FixtureRequest, opened: Open, tmp_path: Path) -> PolarisCatalog:
    """A catalog with the empty namespace `db`."""
    kind, files = request.param.split(", ")
    store = f"memory:{uuid.uuid4()}" if kind == "memory" else f"sqlite://{tmp_path / 'store.db'}"
    catalog = opened(store, metadata_files=files)
    catalog.create_namespace("db")
    return catalog
