"""Fixtures of the tests of the MariaDB backend: each test has its own store on the server of the test session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from tests.backends.mariadb.support import Admin
from tests.servers.mariadb import MariaDB
from tests.stores import ServerOf


@pytest.fixture
def server(server_of: ServerOf) -> MariaDB:
    """A server with its default durability."""
    return cast("MariaDB", server_of("mariadb"))


@pytest.fixture
def admin(server: MariaDB) -> Iterator[Admin]:
    """A connection of the user with all privileges."""
    with Admin(server) as admin:
        yield admin
