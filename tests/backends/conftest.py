"""What the tests of a backend start from: a store of its own on the session's server, by the name of the folder.

Backends of databases whose servers take long to install or to start are tested when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from tests.stores import StoreOn

SLOW_SERVERS = ("azure", "bigtable", "cassandra", "dynamodb", "google", "mariadb", "mongodb")
"""Folders whose tests have the marker `databases`."""

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.parent == _HERE and item.path.parent.name in SLOW_SERVERS:
            item.add_marker(pytest.mark.databases)


@pytest.fixture
def uri(request: pytest.FixtureRequest, store_on: StoreOn) -> str:
    """URI of a store that does not exist yet, on the database that the test's folder is named for."""
    return store_on(request.path.parent.name)


@pytest.fixture
def backend(uri: str) -> Iterator[Backend]:
    """The store, set up and open."""
    backend = open_backend(uri)
    backend.setup()
    yield backend
    backend.close()
