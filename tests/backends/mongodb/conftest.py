"""What every test of the MongoDB backend starts from: a store of its own on the session's server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from tests.servers import StoreOn


@pytest.fixture
def uri(store_on: StoreOn) -> str:
    return store_on("mongodb")


@pytest.fixture
def backend(uri: str) -> Iterator[Backend]:
    backend = open_backend(uri)
    backend.setup()
    yield backend
    backend.close()


@pytest.fixture
def database(uri: str) -> Iterator[Database[dict[str, Any]]]:
    """The store's database, by the driver alone."""
    with MongoClient[dict[str, Any]](uri) as client:
        yield client.get_default_database()
