"""The storage contract on MariaDB."""

from __future__ import annotations

import pytest

from polaris_spark.testing.conformance import ServerConformance
from polaris_spark.testing.server import Server
from tests.stores import ServerOf


class TestMariaDB(ServerConformance):
    @pytest.fixture
    def server(self, server_of: ServerOf) -> Server:
        return server_of("mariadb")
