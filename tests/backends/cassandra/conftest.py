"""Fixtures of the tests of the Cassandra backend: each test has its own store on the server of the test session."""

from __future__ import annotations

from typing import cast

import pytest

from tests.servers.cassandra import Cassandra
from tests.stores import ServerOf


@pytest.fixture
def cassandra(server_of: ServerOf) -> Cassandra:
    return cast("Cassandra", server_of("cassandra"))
