"""What every test of the Cassandra backend starts from: a store of its own on the session's server."""

from __future__ import annotations

from typing import cast

import pytest

from tests.servers.cassandra import Cassandra
from tests.stores import ServerOf


@pytest.fixture
def cassandra(server_of: ServerOf) -> Cassandra:
    return cast("Cassandra", server_of("cassandra"))
