"""The storage contract on MariaDB."""

from __future__ import annotations

import pytest

from polaris_spark.testing.conformance import ServerConformance
from polaris_spark.testing.servers.base import Server
from tests.servers import ServerOf


class TestMariaDB(ServerConformance):
    @pytest.fixture
    def server(self, server_of: ServerOf) -> Server:
        return server_of("mariadb")
