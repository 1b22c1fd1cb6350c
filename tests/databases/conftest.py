"""A store on each database, and catalogs on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.databases import FILE_SCHEMES
from tests.rest.client import Client, connect
from tests.stores import NETWORKED, StoreOn, databases

VISIBLE = [*FILE_SCHEMES, *NETWORKED]
"""Databases that more than the process that made the store can read."""

Open = Callable[..., Client]


@pytest.fixture(params=databases(VISIBLE, ordinary=("sqlite",)))
def store(request: pytest.FixtureRequest, store_on: StoreOn) -> str:
    """The URI of a store that does not exist yet."""
    return store_on(request.param)


@pytest.fixture
def open_catalog(tmp_path: Path) -> Iterator[Open]:
    """Opens catalogs without metadata files, which are closed when the test is over."""
    clients: list[Client] = []

    def open(store: str, **properties: Any) -> Client:
        clients.append(connect(store, tmp_path / "warehouse", metadata_files="never", **properties))
        return clients[-1]

    yield open
    for client in clients:
        client.session.close()
