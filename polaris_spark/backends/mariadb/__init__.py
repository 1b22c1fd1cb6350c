"""`mariadb://user@host:3306/database`, `mysql://...`: MariaDB 10.4 and MySQL 8.0, and later, from any machine.

A store is two InnoDB tables in a dedicated database. Every operation takes one round trip, at READ COMMITTED. A
commit's rows and its swap are one transaction in one packet (several if the server's `max_allowed_packet` is too
small). After a conflict, a second round trip reads the existing row.

Durability depends on the server. With `innodb_flush_log_at_trx_commit=1`, the default, commits survive a crash of the
machine; with 0 or 2, a crash may lose the last second of acknowledged commits. Clients connect to the primary: a
read-only server is refused, and a proxy must not send reads to replicas. On Galera, reads and swaps wait until the
earlier commits of other nodes are visible (`wsrep_sync_wait`).

All waits are bounded: `?connect_timeout=` (10 s) for each step of connecting, `?timeout=` (30 s) for a free
connection, for locks, for each statement (`max_statement_time`, or MySQL's `max_execution_time`, which applies to reads
only), and, five seconds longer, for each answer. `?pool=` (8) bounds the connections of a process. `?ssl_mode=`
(`disabled`, `preferred`, `required`, `verify-ca`, `verify-identity`), `?ssl_ca=`, `?ssl_cert=` and `?ssl_key=` set up
TLS; `?socket=` is the path of a Unix socket.

The user needs CREATE on the database once, for `setup`; later SELECT, INSERT, UPDATE and DELETE on it.

The driver is PyMySQL, because it is pure Python and installs everywhere. Its CPU time for a swap is hidden behind the
server's flush. mysqlclient has no wheels, MariaDB's connector is a release candidate, and MySQL's connector has another
license.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from polaris_spark.backends import Options
from polaris_spark.backends.arrow import BATCH_BYTES, BATCH_ROWS, object_batch, reference_batch
from polaris_spark.backends.base import Conflict, ObjectKey, ObjectRow, ReferenceRow, Swapped, Table
from polaris_spark.backends.chunks import chunks
from polaris_spark.backends.id_ranges import IdRangesBackend
from polaris_spark.backends.limits import check_place, check_realm, check_reference, check_rows
from polaris_spark.backends.mariadb import ranges, statements
from polaris_spark.backends.mariadb.connections import Connections
from polaris_spark.backends.mariadb.failures import DUPLICATE, OVERFLOW
from polaris_spark.backends.mariadb.session import MariaDBSession, Result, StatementFailedError
from polaris_spark.backends.mariadb.settings import Settings
from polaris_spark.store_uris import StoreURI

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK_KEYS: Final = 1_000


def open_backend(uri: StoreURI, options: Options) -> MariaDBBackend:
    """Return the backend for the store in the database of `uri`. It connects at first use. The module's docstring lists
    the options.

    Raises:
        StoreURIError: the URI names no database, or an option or its value is not valid.
    """
    return MariaDBBackend(Settings.parse(uri, options))


class MariaDBBackend(IdRangesBackend):
    """A store in two tables of a MariaDB or MySQL database."""

    scope = "cluster"
    transactional = True

    def __init__(self, settings: Settings) -> None:
        self._connections = Connections(settings)

    def setup(self) -> None:
        self._connections.create()

    def close(self) -> None:
        self._connections.close()

    def read_objects(self, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        check_realm(realm)
        found: dict[ObjectKey, bytes] = {}
        for chunk in chunks(sorted(set(keys)), _CHUNK_KEYS):
            for id, part, value in self._read(statements.get(realm, chunk)).rows:
                found[ObjectKey(id, part)] = value
        return found

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        check_rows(realm, rows)
        if not rows:
            return

        def put(session: MariaDBSession) -> None:
            for statement in statements.put(realm, rows, session.packet_bytes):
                session.run(statement)

        self._connections.write(put)

    def delete_objects(self, realm: str, keys: Collection[ObjectKey]) -> None:
        check_realm(realm)
        for chunk in chunks(sorted(set(keys)), _CHUNK_KEYS):
            self._write(statements.remove(realm, chunk))

    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        check_place(realm, name)
        return self._connections.read(partial(_reference, realm, name))

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        check_reference(realm, name, new)

        def insert(session: MariaDBSession) -> Swapped | Conflict:
            try:
                session.run(statements.insert(realm, name, new))
            except StatementFailedError as error:
                if error.code != DUPLICATE:
                    raise
                return Conflict(_reference(realm, name, session))
            return Swapped()

        return self._connections.change(insert)

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        return self._exchange(realm, name, statements.swap(realm, name, expected_version, new))

    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        check_place(realm, name)
        return self._exchange(realm, name, statements.delete(realm, name, expected_version))

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        check_rows(realm, rows)
        swap = statements.swap(realm, name, expected_version, new)
        if not rows:
            return self._exchange(realm, name, swap)

        def write(session: MariaDBSession) -> Swapped | Conflict:
            put = statements.put(realm, rows, session.packet_bytes)
            whole = [statements.BEGIN, swap, statements.SWAPPED, *put, statements.COMMIT]
            try:
                session.commit(statements.packets(whole, session.packet_bytes))
            except StatementFailedError as error:
                if error.code != OVERFLOW:
                    raise
                return Conflict(_reference(realm, name, session))
            return Swapped()

        return self._connections.change(write)

    def now_ms(self) -> int | None:
        found: int = self._read(statements.NOW).rows[0][0]
        return found

    def drop_realm(self, realm: str) -> bool:
        check_realm(realm)
        while self._drop_objects(realm):  # repeated, because rows may have been written in the meantime
            pass
        self._write(statements.drop_references(realm))
        return True

    def _exchange(self, realm: str, name: str, statement: str) -> Swapped | Conflict:
        def attempt(session: MariaDBSession) -> Swapped | Conflict:
            if session.run(statement)[0].matched:
                return Swapped()
            return Conflict(_reference(realm, name, session))

        return self._connections.change(attempt)

    def _drop_objects(self, realm: str) -> bool:
        """Delete the rows of `objects` that a realm has now, in chunks. Return whether there were any."""
        first, found = 0, False
        while True:
            last = self._read(statements.chunk_end(realm, first)).rows[0][0]
            if last is None:
                return found
            self._write(statements.drop_objects(realm, first, last))
            first, found = last, True

    def _scan_objects(self, realm: str, low: int, high: int) -> Iterator[pa.RecordBatch]:
        after = ObjectKey(low - 1, 2**31 - 1)
        while True:
            page = self._read(statements.object_page(realm, after, high, BATCH_ROWS, BATCH_BYTES)).rows
            if not page:
                return
            yield object_batch([(realm, *row) for row in page])
            after = ObjectKey(*page[-1][:2])

    def _scan_references(self, realm: str) -> Iterator[pa.RecordBatch]:
        after = b""
        while page := self._read(statements.reference_page(realm, after, BATCH_ROWS, BATCH_BYTES)).rows:
            yield reference_batch([(realm, name.decode(), version, value) for name, version, value in page])
            after = page[-1][0]

    def _realms(self, table: Table) -> list[str]:
        names: list[bytes] = []
        while found := self._read(statements.next_realm(table, names[-1] if names else b"")).rows:
            names.append(found[0][0])
        return [name.decode() for name in names]

    def _ranges(self, realm: str, n: int) -> list[tuple[int, int]]:
        return self._connections.read(partial(ranges.of_realm, realm=realm, n=n))

    def _read(self, statement: str) -> Result:
        return self._connections.read(lambda session: session.run(statement)[0])

    def _write(self, statement: str) -> Result:
        return self._connections.write(lambda session: session.run(statement)[0])


def _reference(realm: str, name: str, session: MariaDBSession) -> ReferenceRow | None:
    rows = session.run(statements.read(realm, name))[0].rows
    return ReferenceRow(*rows[0]) if rows else None
