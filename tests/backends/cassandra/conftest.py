"""What every test of the Cassandra backend starts from: a store of its own on the session's server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from polaris_spark.testing.servers.cassandra import Cassandra
from tests.servers import ServerOf, StoreOn


@pytest.fixture
def cassandra(server_of: ServerOf) -> Cassandra:
    return cast("Cassandra", server_of("cassandra"))


@pytest.fixture
def uri(store_on: StoreOn) -> str:
    return store_on("cassandra")


@pytest.fixture
def backend(uri: str) -> Iterator[Backend]:
    backend = open_backend(uri)
    backend.setup()
    yield backend
    backend.close()
