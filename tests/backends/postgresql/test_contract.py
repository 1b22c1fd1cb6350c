"""The storage contract on a real server."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from polaris_spark.testing.conformance import ServerConformance
from polaris_spark.testing.server import Server
from polaris_spark.testing.session_cases import SessionAdmin, SessionCases
from tests.backends.postgresql.support import PostgreSQLAdmin
from tests.stores import ServerOf


class TestPostgreSQL(SessionCases, ServerConformance):
    bad_uris = (
        ("postgresql://host/db?schem=x", "did you mean 'schema'"),
        ("postgresql://host/db?sslmod=require", "did you mean 'sslmode'"),
        ("postgresql://host", "names no database"),
        ("postgresql://host:port/db", "not of the form host:port"),
        ("postgresql://host:0/db", "not of the form host:port"),
        ("postgresql://host:/db", "not of the form host:port"),
        ("postgresql://:5432/db", "not of the form host:port"),
        ("postgresql://host/db%00", "NUL"),
        ("postgresql://user%00@host/db", "NUL"),
        ("postgresql://host/db?application_name=a%00", "NUL"),
        ("postgresql://host/db?target_session_attrs=any", "read-write or primary"),
        ("postgresql://host/db?timeout=soon", "duration"),
        ("postgresql://host/db?timeout=0s", "longer than 0"),
        ("postgresql://host/db?pool=0", "1 to 256"),
        ("postgresql://host/db?pool=many", "1 to 256"),
        ("postgresql://host/db?schema=", "not a valid name of a PostgreSQL schema"),
        ("postgresql://host/db?synchronous_commit=maybe", "remote_apply"),
        ("postgresql://user:correct-horse@host/db?timeout=soon", "duration"),
    )

    @pytest.fixture
    def server(self, server_of: ServerOf) -> Server:
        return server_of("postgresql")

    @pytest.fixture
    def store_admin(self, admin: psycopg.Connection[Any], uri: str) -> SessionAdmin:
        return PostgreSQLAdmin(admin, uri)
