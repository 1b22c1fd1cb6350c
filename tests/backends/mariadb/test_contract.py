"""The storage contract on MariaDB."""

from __future__ import annotations

import pytest

from polaris_spark.testing.admin_cases import AdminCases, StoreAdmin
from polaris_spark.testing.conformance import ServerConformance
from polaris_spark.testing.server import Server
from tests.backends.mariadb.support import Admin, MariaDBAdmin
from tests.stores import ServerOf


class TestMariaDB(AdminCases, ServerConformance):
    @pytest.fixture
    def server(self, server_of: ServerOf) -> Server:
        return server_of("mariadb")

    @pytest.fixture
    def store_admin(self, admin: Admin, uri: str) -> StoreAdmin:
        return MariaDBAdmin(admin, uri)
