"""`postgresql://user@host:5432/database`: PostgreSQL 12 and later, for any number of processes and machines.

A store is two tables in a schema (`?schema=`, default `polaris_spark`); several stores may share a database. Every
operation is one statement in one round trip, at READ COMMITTED, on the primary. A commit's rows and its swap are a
single statement. If the swap matched no row, a second statement reads the existing row.

Durability depends on the server's `synchronous_commit`, which is not changed by default. With `on`, the server's
default, commits survive a crash of the machine. With `?synchronous_commit=remote_apply`, or `on` with
`synchronous_standby_names`, they survive the loss of the primary. With `off`, a crash of the server may lose the last
commits after they were acknowledged (`polaris-spark fsck` finds what is missing); this is for tests. A failover to an
asynchronous replica also loses some commits.

All waits are bounded: `?connect_timeout=` (10 s), `?timeout=` (30 s) for a free connection and, as
`statement_timeout`, for each statement; keepalives and `tcp_user_timeout` for a dead network. `?pool=` (8) bounds the
connections of a process. libpq's `sslmode`, `sslrootcert` and similar are options, too. With PgBouncer, use session
pooling: settings and prepared statements belong to the session.

The user needs CREATE on the database once, for `setup`; if the schema exists already and is empty, CREATE on the schema
is enough. Later, the user needs SELECT, INSERT, UPDATE and DELETE on the two tables, and USAGE on the schema.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from polaris_spark.backends import Options
from polaris_spark.backends.arrow import (
    BATCH_BYTES,
    BATCH_ROWS,
    object_columns,
    packed_sizes,
    reference_batch,
)
from polaris_spark.backends.base import Conflict, ObjectKey, ObjectRow, ReferenceRow, Split, Swapped, Table
from polaris_spark.backends.chunks import chunks, sized, value_bytes
from polaris_spark.backends.id_ranges import IdRangesBackend
from polaris_spark.backends.limits import check_place, check_realm, check_reference, check_rows
from polaris_spark.backends.postgresql import binary, ranges
from polaris_spark.backends.postgresql.connections import Connections
from polaris_spark.backends.postgresql.session import PostgreSQLSession, Statement
from polaris_spark.backends.postgresql.settings import Settings
from polaris_spark.backends.postgresql.statements import statements
from polaris_spark.errors import ObjectTooLargeError, TryAgainError
from polaris_spark.store_uris import StoreURI

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg.pq.abc import PGresult

_CHUNK_ROWS: Final = 4_096
_CHUNK_BYTES: Final = 16 * 2**20
_PAGE_ROWS: Final = 4_096  # page size of a scan; every page is a round trip
_SIZE_PAGE_ROWS: Final = 16_384  # of a scan without values; larger columns cost page faults on every page
_MOST_BYTES: Final = 512 * 2**20  # maximum for one statement; PostgreSQL limits messages to 1 GiB
_SHORTEST_S, _LONGEST_S = 0.0003, 0.004


def open_backend(uri: StoreURI, options: Options) -> PostgreSQLBackend:
    """Return the backend for the store in the database of `uri`. It connects at first use. The module's docstring lists
    the options.

    Raises:
        StoreURIError: the URI names no database, or an option or its value is not valid.
    """
    return PostgreSQLBackend(Settings.parse(uri, options))


class PostgreSQLBackend(IdRangesBackend):
    """A store in two tables of a PostgreSQL schema."""

    scope = "cluster"
    transactional = True

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connections = Connections(settings)
        self._statements = statements(settings.schema)

    def setup(self) -> None:
        self._connections.create()

    def close(self) -> None:
        self._connections.close()

    def read_objects(self, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        check_realm(realm)
        found: dict[ObjectKey, bytes] = {}
        for chunk in chunks(sorted(set(keys)), _CHUNK_ROWS):
            arguments = (realm.encode(), *_arrays(chunk))
            result = self._read(self._statements.get, *arguments)
            for id, part, value in _rows(result):
                found[ObjectKey(binary.integer(id), binary.integer(part))] = value
        return found

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        check_rows(realm, rows)
        for chunk in sized(sorted(rows), value_bytes, most_bytes=_CHUNK_BYTES, most=_CHUNK_ROWS):
            arguments = (realm.encode(), *_arrays(chunk), binary.bytea_array([row.value for row in chunk]))
            self._write(self._statements.put, *arguments)

    def delete_objects(self, realm: str, keys: Collection[ObjectKey]) -> None:
        check_realm(realm)
        for chunk in chunks(sorted(set(keys)), _CHUNK_ROWS):
            arguments = (realm.encode(), *_arrays(chunk))
            self._write(self._statements.remove, *arguments)

    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        check_place(realm, name)
        key = (realm.encode(), name.encode())
        return self._connections.read(lambda session: self._reference(session, key))

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        check_reference(realm, name, new)
        key = (realm.encode(), name.encode())

        def insert(session: PostgreSQLSession) -> Swapped | Conflict:
            if session.run(self._statements.insert, *key, *new).command_tuples:
                return Swapped()
            return Conflict(self._reference(session, key))

        return self._connections.change(insert)

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        return self._exchange(self._statements.swap, realm, name, expected_version, *new)

    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        check_place(realm, name)
        return self._exchange(self._statements.delete, realm, name, expected_version)

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        check_rows(realm, rows)
        if not rows:
            return self.swap_reference(realm, name, expected_version, new)
        size = sum(len(row.value) for row in rows)
        if size > _MOST_BYTES:
            raise ObjectTooLargeError(
                f"a commit to {self._settings.where} writes {size} bytes in one statement, over the limit of "
                f"{_MOST_BYTES}; make the change in several smaller commits"
            )
        rows = sorted(rows)
        values = binary.bytea_array([row.value for row in rows])
        return self._exchange(
            self._statements.write_and_swap, realm, name, expected_version, *new, *_arrays(rows), values
        )

    def now_ms(self) -> int | None:
        found = self._read(self._statements.now).get_value(0, 0)
        return None if found is None else binary.integer(found)

    def drop_realm(self, realm: str) -> bool:
        check_realm(realm)
        key = realm.encode()
        while self._drop_objects(key):  # repeated, because rows may have been written in the meantime
            pass
        self._write(self._statements.drop_references, key)
        return True

    def scan_sizes(self, split: Split, start: int) -> Iterator[pa.RecordBatch]:
        for part in split.detail:
            yield from self._scan_sizes(start, *part)  # type: ignore[misc]  # (realm, low, high) as made by splits()

    def _exchange(
        self, statement: Statement, realm: str, name: str, expected_version: bytes, *further: bytes
    ) -> Swapped | Conflict:
        """Run a conditional statement on a reference, and return its outcome. The statement does nothing while the row
        is locked, so it is repeated until it succeeds, or the row has another version or is missing."""
        key = (realm.encode(), name.encode())

        def attempt(session: PostgreSQLSession) -> Swapped | Conflict | None:
            if session.run(statement, *key, expected_version, *further).command_tuples:
                return Swapped()
            current = self._reference(session, key)
            locked = current is not None and current.version == expected_version
            return None if locked else Conflict(current)

        start, longest = time.monotonic(), _SHORTEST_S
        while (outcome := self._connections.change(attempt)) is None:
            if time.monotonic() - start >= self._settings.timeout / 1_000:
                raise TryAgainError(
                    f"other transactions kept reference {name!r} in realm {realm!r} of {self._settings.where} locked "
                    f"for {self._settings.timeout} ms; nothing was changed; try again later"
                )
            time.sleep(random.uniform(longest / 2, longest))
            longest = min(longest * 1.5, _LONGEST_S)
        return outcome

    def _reference(self, session: PostgreSQLSession, key: tuple[bytes, bytes]) -> ReferenceRow | None:
        found = session.run(self._statements.read, *key)
        return ReferenceRow(found.get_value(0, 0), found.get_value(0, 1)) if found.ntuples else None  # type: ignore[arg-type]  # columns are NOT NULL

    def _drop_objects(self, realm: bytes) -> bool:
        """Delete the rows of `objects` that a realm has now, in chunks. Return whether there were any."""
        last, found = 0, False
        while True:
            arguments = (realm, binary.int8(last))
            result = self._write(self._statements.drop_objects, *arguments)
            value = result.get_value(0, 0)
            if value is None:
                return found
            last, found = binary.integer(value), True

    def _scan_objects(self, realm: str, low: int, high: int) -> Iterator[pa.RecordBatch]:
        after = (low - 1, 2**31 - 1)
        limits = (binary.int8(high), binary.int8(_PAGE_ROWS), binary.int8(BATCH_BYTES))
        while True:
            arguments = (realm.encode(), binary.int8(after[0]), binary.int4(after[1]), *limits)
            page = self._read(self._statements.object_page, *arguments)
            if not page.ntuples:
                return
            ids, parts, values = zip(*_loaded(page), strict=True)
            yield object_columns(realm, ids, parts, values)
            after = ids[-1], parts[-1]

    def _scan_sizes(self, start: int, realm: str, low: int, high: int) -> Iterator[pa.RecordBatch]:
        after = binary.int8(low - 1) + binary.int4(2**31 - 1)
        limits = (binary.int8(high), binary.int8(_SIZE_PAGE_ROWS), binary.int4(start))
        while True:
            page = self._read(self._statements.size_page, realm.encode(), after[:8], after[8:], *limits)
            ids, parts, sizes, starts = (page.get_value(0, column) for column in range(4))
            if ids is None or parts is None or sizes is None or starts is None:  # all or none
                return
            yield packed_sizes(realm, ids, parts, sizes, starts, start)
            after = ids[-8:] + parts[-4:]

    def _scan_references(self, realm: str) -> Iterator[pa.RecordBatch]:
        after = b""
        limits = (binary.int8(BATCH_ROWS), binary.int8(BATCH_BYTES))
        while page := _rows(self._read(self._statements.reference_page, realm.encode(), after, *limits)):
            yield reference_batch([(realm, name.decode(), version, value) for name, version, value in page])
            after = page[-1][0]

    def _read(self, statement: Statement, *arguments: bytes) -> PGresult:
        return self._connections.read(lambda session: session.run(statement, *arguments))

    def _write(self, statement: Statement, *arguments: bytes) -> PGresult:
        return self._connections.write(lambda session: session.run(statement, *arguments))

    def _realms(self, table: Table) -> list[str]:
        statement = (
            self._statements.object_realms if table == "objects" else self._statements.reference_realms
        )
        result = self._read(statement)
        return [result.get_value(row, 0).decode() for row in range(result.ntuples)]  # type: ignore[union-attr]  # never null

    def _ranges(self, realm: str, n: int) -> list[tuple[int, int]]:
        return self._connections.read(
            partial(ranges.of_realm, self._statements, self._settings.schema, realm.encode(), n)
        )


def _rows(result: PGresult) -> list[tuple[bytes, bytes, bytes]]:
    get = result.get_value
    return [(get(row, 0), get(row, 1), get(row, 2)) for row in range(result.ntuples)]  # type: ignore[misc]  # columns are NOT NULL


def _loaded(result: PGresult) -> list[tuple[int, int, bytes]]:
    """Convert rows `(bigint, integer, bytea)` to Python values, and return them. psycopg does this in C."""
    from psycopg.adapt import Transformer

    transformer = Transformer()
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)


def _arrays(keys: Sequence[ObjectKey | ObjectRow]) -> tuple[bytes, bytes]:
    return binary.int8_array([key.id for key in keys]), binary.int4_array([key.part for key in keys])
