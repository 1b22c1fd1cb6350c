"""The storage contract on a real server."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from polaris_spark.testing.admin_cases import AdminCases, StoreAdmin
from polaris_spark.testing.conformance import ServerConformance
from polaris_spark.testing.server import Server
from tests.backends.postgresql.support import PostgreSQLAdmin
from tests.stores import ServerOf


class TestPostgreSQL(AdminCases, ServerConformance):
    @pytest.fixture
    def server(self, server_of: ServerOf) -> Server:
        return server_of("postgresql")

    @pytest.fixture
    def store_admin(self, admin: psycopg.Connection[Any], uri: str) -> StoreAdmin:
        return PostgreSQLAdmin(admin, uri)
