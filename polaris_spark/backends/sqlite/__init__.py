"""`sqlite:///path/of/store.db`: a store in one file, for any number of processes on one machine.

The store uses write-ahead logging (WAL), one short transaction per operation, and `synchronous=FULL` by default. With
`?synchronous=normal`, commits survive a crash of the process, but not always a crash of the machine; `off` is for
tests. All threads of a process write through one connection, one thread after the other, so that its cached pages and
prepared statements are reused. Processes take turns by retrying with jitter until `?timeout=` (default 30 s), which is
fairer than SQLite's own busy handler. Scans read ranges of keys in pages, because SQLite cannot truncate the log during
a long read. WAL needs a local file system.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from polaris_spark.backends import Options
from polaris_spark.backends.arrow import BATCH_ROWS, batches, object_batch, reference_batch
from polaris_spark.backends.base import Conflict, ObjectKey, ObjectRow, ReferenceRow, Swapped, Table
from polaris_spark.backends.chunks import chunks, runs
from polaris_spark.backends.id_ranges import IdRangesBackend, starting_at
from polaris_spark.backends.limits import check_place, check_realm, check_reference, check_rows
from polaris_spark.backends.sqlite import lookups
from polaris_spark.backends.sqlite.connections import Connections, Settings
from polaris_spark.clock import Clock, SystemClock
from polaris_spark.store_uris import StoreURI

if TYPE_CHECKING:
    import pyarrow as pa


_CHUNK = 512
_READ = 'SELECT version, value FROM "references" WHERE realm = ? AND name = ?'
_INSERT = 'INSERT INTO "references" VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING'
_SWAP = 'UPDATE "references" SET version = ?, value = ? WHERE realm = ? AND name = ? AND version = ?'
_DELETE = 'DELETE FROM "references" WHERE realm = ? AND name = ? AND version = ?'
_PUT = "INSERT INTO objects VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_REMOVE = "DELETE FROM objects WHERE realm = ? AND id = ? AND part = ?"
_PAGE = (
    "SELECT realm, id, part, value FROM objects"
    " WHERE realm = ? AND (id, part) > (?, ?) AND id <= ? ORDER BY id, part LIMIT ?"
)
_REFERENCE_PAGE = (
    'SELECT realm, name, version, value FROM "references" WHERE realm = ? AND name > ? ORDER BY name LIMIT ?'
)
_DROP_OBJECTS = (
    "DELETE FROM objects WHERE realm = :realm AND id IN"
    " (SELECT id FROM objects WHERE realm = :realm ORDER BY id, part LIMIT 256)"
)
_DROP_REFERENCES = 'DELETE FROM "references" WHERE realm = ?'
_ENDS = "SELECT min(id), max(id) FROM objects WHERE realm = ?"
_FOLLOWING = "SELECT min(id) FROM objects WHERE realm = ? AND id >= ?"


def open_backend(uri: StoreURI, options: Options) -> SQLiteBackend:
    """Return the backend for the store in the file of `uri`. The options are `synchronous` (`full`, `normal` or `off`)
    and `timeout` (a duration).

    Raises:
        StoreURIError: an option or its value is not valid.
    """
    return SQLiteBackend(uri.path, Settings.parse(options))


class SQLiteBackend(IdRangesBackend):
    """A store in two tables of one SQLite file."""

    scope = "machine"
    transactional = True

    def __init__(self, path: str, settings: Settings | None = None, clock: Clock | None = None) -> None:
        self._connections = Connections(path, settings or Settings(), clock or SystemClock())
        self._read, self._write = self._connections.read, self._connections.write

    def setup(self) -> None:
        self._connections.create()

    def close(self) -> None:
        self._connections.close()

    def read_objects(self, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        check_realm(realm)
        return self._read(lambda connection: lookups.found(connection, realm, keys))

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        check_rows(realm, rows)
        for chunk in chunks(rows, _CHUNK):

            def write(connection: sqlite3.Connection, chunk: Sequence[ObjectRow] = chunk) -> Swapped:
                connection.executemany(_PUT, [(realm, id, part, value) for id, part, value in chunk])
                return Swapped()

            self._write(write)

    def delete_objects(self, realm: str, keys: Collection[ObjectKey]) -> None:
        check_realm(realm)
        for chunk in chunks(list(keys), _CHUNK):

            def delete(connection: sqlite3.Connection, chunk: Sequence[ObjectKey] = chunk) -> Swapped:
                connection.executemany(_REMOVE, [(realm, id, part) for id, part in chunk])
                return Swapped()

            self._write(delete)

    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        check_place(realm, name)
        return self._read(lambda connection: _reference(connection, realm, name))

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        check_reference(realm, name, new)
        return self._change(_INSERT, (realm, name, *new), realm, name)

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        return self._change(_SWAP, (*new, realm, name, expected_version), realm, name)

    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        check_place(realm, name)
        return self._change(_DELETE, (realm, name, expected_version), realm, name)

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        check_rows(realm, rows)
        puts = [(realm, id, part, value) for id, part, value in rows]

        def write(connection: sqlite3.Connection) -> Swapped | Conflict:
            if connection.execute(_SWAP, (*new, realm, name, expected_version)).rowcount != 1:
                return Conflict(_reference(connection, realm, name))
            connection.executemany(_PUT, puts)
            return Swapped()

        return self._write(write)

    def drop_realm(self, realm: str) -> bool:
        check_realm(realm)

        def drop(connection: sqlite3.Connection) -> Swapped | Conflict:
            return Swapped() if connection.execute(_DROP_OBJECTS, {"realm": realm}).rowcount else Conflict()

        while isinstance(self._write(drop), Swapped):
            pass
        self._change(_DROP_REFERENCES, (realm,), realm, "")
        return True

    def _change(
        self, statement: str, arguments: tuple[object, ...], realm: str, name: str
    ) -> Swapped | Conflict:
        def change(connection: sqlite3.Connection) -> Swapped | Conflict:
            if connection.execute(statement, arguments).rowcount >= 1:
                return Swapped()
            return Conflict(_reference(connection, realm, name))

        return self._write(change)

    def _scan_objects(self, realm: str, low: int, high: int) -> Iterator[pa.RecordBatch]:
        after = (low - 1, 2**31 - 1)
        while page := self._read(partial(_page, _PAGE, (realm, *after, high, BATCH_ROWS))):
            yield object_batch(page)
            after = page[-1][1:3]

    def _scan_references(self, realm: str) -> Iterator[pa.RecordBatch]:
        after = ""
        while page := self._read(partial(_page, _REFERENCE_PAGE, (realm, after, BATCH_ROWS))):
            yield reference_batch(page)
            after = page[-1][1]

    def _realms(self, table: Table) -> list[str]:
        following = f'SELECT min(realm) FROM "{table}" WHERE realm > ?'
        names = [""]
        while (name := self._read(partial(_row, following, (names[-1],)))[0]) is not None:
            names.append(name)
        return names[1:]

    def _ranges(self, realm: str, n: int) -> list[tuple[int, int]]:
        """Return about `n` ranges (both ends inclusive) that cover every id of a realm. Each range held a row when its
        start was chosen, unless the realm is empty. The bounds are spaced evenly, so the ranges hold equally many rows
        only if the ids are spread evenly. Better bounds would require reading all rows."""
        first, last = self._read(partial(_row, _ENDS, (realm,)))
        if first is None:
            return starting_at([])
        starts = [first]
        step = max(1, (last - first) // (4 * n))
        for guess in range(first + step, last + 1, step):
            if guess > starts[-1]:
                found = self._read(partial(_row, _FOLLOWING, (realm, guess)))[0]
                if found is None:  # rows were deleted in the meantime
                    break
                starts.append(found)
        return starting_at(group[0] for group in runs(starts, n)[1:])


def _row(statement: str, arguments: tuple[object, ...], connection: sqlite3.Connection) -> tuple[Any, ...]:
    row: tuple[Any, ...] = connection.execute(statement, arguments).fetchone()
    return row


def _reference(connection: sqlite3.Connection, realm: str, name: str) -> ReferenceRow | None:
    row = connection.execute(_READ, (realm, name)).fetchone()
    return None if row is None else ReferenceRow(*row)


def _page(
    statement: str, arguments: tuple[object, ...], connection: sqlite3.Connection
) -> list[tuple[Any, ...]]:
    """Run a query, and return its first rows, up to and including the row at which the total size of the values reaches
    `BATCH_BYTES`. The cursor is closed before this function returns, so that no read lock remains."""
    cursor = connection.execute(statement, arguments)
    try:
        return next(batches(cursor, lambda row: len(row[3])), [])
    finally:
        cursor.close()
