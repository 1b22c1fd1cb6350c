"""Bare swaps on MariaDB and MySQL, by PyMySQL's connections and cursors."""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.constants import CLIENT

from benchmarks.bare import REALM
from polaris_spark.backends.base import ReferenceRow
from polaris_spark.store_uris import StoreURI

_KEY = "realm = _binary %s AND name = _binary %s"
_UPDATE = f"UPDATE `references` SET version = %s, value = %s WHERE {_KEY} AND version = %s"
_READ = f"SELECT version FROM `references` WHERE {_KEY}"


def open_bare(uri: str) -> BareMariaDB:
    """Open the store of a URI without options."""
    return BareMariaDB(StoreURI.parse(uri))


class BareMariaDB:
    """A store with one connection for each client."""

    def __init__(self, uri: StoreURI) -> None:
        self._uri = uri
        self._connections: list[pymysql.Connection[Any]] = []

    def client(self) -> _Client:
        """Return a client on a new connection."""
        host, _, port = self._uri.authority.partition(":")
        connection = pymysql.connect(
            host=host,
            port=int(port or 3306),
            user=self._uri.user,
            password=self._uri.password.reveal() if self._uri.password else "",
            database=self._uri.path,
            autocommit=True,
            client_flag=CLIENT.FOUND_ROWS,
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )
        self._connections.append(connection)
        return _Client(connection)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()


class _Client:
    def __init__(self, connection: pymysql.Connection[Any]) -> None:
        self._cursor = connection.cursor()

    def swap(self, name: str, expected: bytes, new: ReferenceRow) -> bool:
        return bool(self._cursor.execute(_UPDATE, (*new, REALM, name, expected)) == 1)

    def version(self, name: str) -> bytes:
        self._cursor.execute(_READ, (REALM, name))
        row = self._cursor.fetchone()
        assert row is not None
        found: bytes = row[0]
        return found
