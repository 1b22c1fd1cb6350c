"""Fixtures of the tests of the MongoDB backend: each test has its own store on the server of the test session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database


@pytest.fixture
def database(uri: str) -> Iterator[Database[dict[str, Any]]]:
    """The store's database, opened by the driver without this package."""
    with MongoClient[dict[str, Any]](uri) as client:
        yield client.get_default_database()
