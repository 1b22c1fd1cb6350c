"""The storage contract on MariaDB."""

from __future__ import annotations

from typing import cast

import pytest

from polaris_spark.testing.conformance import ServerConformance
from polaris_spark.testing.session_cases import SessionAdmin, SessionCases
from tests.backends.mariadb.support import Admin, MariaDBAdmin
from tests.servers.mariadb import MariaDB
from tests.stores import ServerOf


class TestMariaDB(SessionCases, ServerConformance):
    bad_uris = (
        ("mariadb://host/db?tmeout=1s", "did you mean 'timeout'"),
        ("mysql://host/db?ssl_mod=required", "a mysql: store has no option.*did you mean 'ssl_mode'"),
        ("mariadb://host", "names no database"),
        ("mariadb://host/a/b", "not a valid database name"),
        ("mariadb://host/db%00", "NUL"),
        ("mariadb://host:port/db", "not of the form host:port"),
        ("mariadb://host:0/db", "not of the form host:port"),
        ("mariadb://one,two/db", "names several hosts"),
        ("mariadb:///db", "not of the form host:port"),
        ("mariadb://host/db?socket=/tmp/s", "a host and a socket"),
        ("mariadb://host/db?timeout=soon", "duration"),
        ("mariadb://host/db?timeout=0s", "longer than 0"),
        ("mariadb://host/db?connect_timeout=30d", "shorter than 24 days"),
        ("mariadb://host/db?pool=0", "1 to 256"),
        ("mariadb://host/db?ssl_mode=maybe", "verify-identity"),
        ("mariadb://host/db?ssl_ca=/nowhere/ca.pem", "is not a file"),
        (
            "mariadb://host/db?ssl_ca=/etc/passwd&ssl_mode=preferred",
            "cannot be combined with ssl_mode=preferred",
        ),
        ("mariadb://host/db?ssl_ca=/etc/passwd", "certificates.*cannot be used"),
        ("mariadb://user:correct-horse@host/db?timeout=soon", "duration"),
    )

    @pytest.fixture
    def server(self, server_of: ServerOf) -> MariaDB:
        return cast("MariaDB", server_of("mariadb"))

    @pytest.fixture
    def store_admin(self, server: MariaDB, admin: Admin, uri: str) -> SessionAdmin:
        return MariaDBAdmin(server, admin, uri)
