"""What every test of the MariaDB backend starts from: a store of its own on the session's server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from polaris_spark.testing.servers.mariadb import MariaDB
from tests.backends.mariadb.support import Admin
from tests.servers import ServerOf, StoreOn


@pytest.fixture
def server(server_of: ServerOf) -> MariaDB:
    """A server with its default durability."""
    return cast("MariaDB", server_of("mariadb"))


@pytest.fixture
def uri(store_on: StoreOn) -> str:
    return store_on("mariadb")


@pytest.fixture
def backend(uri: str) -> Iterator[Backend]:
    backend = open_backend(uri)
    backend.setup()
    yield backend
    backend.close()


@pytest.fixture
def admin(server: MariaDB) -> Iterator[Admin]:
    """A connection of the user with all privileges."""
    with Admin(server) as admin:
        yield admin
