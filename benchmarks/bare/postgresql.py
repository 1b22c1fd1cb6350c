"""Bare swaps on PostgreSQL, by psycopg's connections and prepared statements."""

from __future__ import annotations

from typing import Any

import psycopg

from benchmarks.bare import REALM
from polaris_spark.backends.base import ReferenceRow

_UPDATE = (
    'UPDATE {0}."references" SET version = %s, value = %s WHERE realm = %s AND name = %s AND version = %s AND EXISTS '
    '(SELECT FROM {0}."references" WHERE realm = %s AND name = %s AND version = %s FOR NO KEY UPDATE SKIP LOCKED)'
)
_READ = 'SELECT version FROM {0}."references" WHERE realm = %s AND name = %s'


def open_bare(uri: str) -> BarePostgreSQL:
    """Open the store of a URI whose only option is `schema`."""
    place, _, schema = uri.partition("?schema=")
    return BarePostgreSQL(place, schema)


class BarePostgreSQL:
    """A store with one connection for each client."""

    def __init__(self, place: str, schema: str) -> None:
        self._place, self._schema = place, schema
        self._connections: list[psycopg.Connection[Any]] = []

    def client(self) -> _Client:
        """Return a client on a new connection."""
        connection = psycopg.connect(self._place, autocommit=True, prepare_threshold=0)
        self._connections.append(connection)
        return _Client(connection, self._schema)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()


class _Client:
    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._connection = connection
        self._update, self._read = _UPDATE.format(schema).encode(), _READ.format(schema).encode()

    def swap(self, name: str, expected: bytes, new: ReferenceRow) -> bool:
        key = REALM, name, expected
        return self._connection.execute(self._update, (*new, *key, *key), binary=True).rowcount == 1

    def version(self, name: str) -> bytes:
        row = self._connection.execute(self._read, (REALM, name), binary=True).fetchone()
        assert row is not None
        found: bytes = row[0]
        return found
