"""Bare swaps on SQLite, by the standard library's module."""

from __future__ import annotations

import sqlite3

from benchmarks.bare import REALM
from polaris_spark.backends.base import ReferenceRow
from polaris_spark.store_uris import StoreURI

_SWAP = 'UPDATE "references" SET version = ?, value = ? WHERE realm = ? AND name = ? AND version = ?'
_READ = 'SELECT version FROM "references" WHERE realm = ? AND name = ?'


def open_bare(uri: str) -> BareSQLite:
    """Open the store of a URI without options."""
    return BareSQLite(StoreURI.parse(uri).path)


class BareSQLite:
    """A store with one connection for each client. Clients wait for each other in SQLite's own busy handler."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connections: list[sqlite3.Connection] = []

    def client(self) -> _Client:
        """Return a client on a new connection."""
        connection = sqlite3.connect(self._path, timeout=30, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = full")
        self._connections.append(connection)
        return _Client(connection)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()


class _Client:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def swap(self, name: str, expected: bytes, new: ReferenceRow) -> bool:
        return self._connection.execute(_SWAP, (*new, REALM, name, expected)).rowcount == 1

    def version(self, name: str) -> bytes:
        row = self._connection.execute(_READ, (REALM, name)).fetchone()
        found: bytes = row[0]
        return found
