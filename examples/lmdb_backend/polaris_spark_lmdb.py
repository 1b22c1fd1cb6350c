"""`lmdb:///path/of/store`: stores of polaris_spark in LMDB, a directory for every process of one machine.

LMDB lets one transaction write at a time, across processes, and syncs it before `commit` returns. Its keys have 511
bytes at most and names may be longer, so a row's key begins with digests of its names; the names themselves are kept in
the table `names`, and in the values of references.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import lmdb
import pyarrow as pa

from polaris_spark.backends import Options
from polaris_spark.backends.arrow import BATCH_BYTES, BATCH_ROWS, object_batch, reference_batch
from polaris_spark.backends.base import (
    Backend,
    Conflict,
    ObjectKey,
    ObjectRow,
    ReferenceRow,
    Split,
    Swapped,
    Table,
)
from polaris_spark.backends.chunks import runs
from polaris_spark.backends.limits import check_place, check_realm, check_reference, check_rows, distinct
from polaris_spark.databases import Database
from polaris_spark.errors import NoStoreError, OutcomeUnknownError, StateError, StoreURIError, TryAgainError
from polaris_spark.store_uris import StoreURI, refuse_unknown_options

DATABASE = Database("polaris_spark_lmdb", "path", files=("",))
MAP_BYTES = 1 << 38  # address space, not disk
PLACE = struct.Struct(">qi")
LENGTHS = struct.Struct(">HH")
DIGEST = 16


class Environment:
    """One per directory and process, because LMDB forbids a second one; closed by its last user."""

    def __init__(self, path: str) -> None:
        self.users = 0
        self.lmdb = lmdb.open(path, map_size=MAP_BYTES, max_dbs=3, max_readers=512, mode=0o600)
        self.tables = {name: self.lmdb.open_db(name.encode()) for name in ("objects", "references", "names")}


environments: dict[tuple[int, int], Environment] = {}
guard = threading.Lock()
inherited: list[
    Environment
] = []  # of the process that this one was forked from: not to be touched, not even closed


def open_backend(uri: StoreURI, options: Options) -> LMDBBackend:
    """The store in the directory that `uri` names; it has no options."""
    refuse_unknown_options("lmdb", options, ())
    return LMDBBackend(uri.path)


class LMDBBackend(Backend):
    """Rows in one LMDB environment."""

    scope = "machine"
    transactional = True

    def __init__(self, path: str) -> None:
        self._path, self._process = path, os.getpid()
        self._environment: Environment | None = None
        self._closed = False

    def setup(self) -> None:
        self._refuse_if_unusable()
        try:
            os.makedirs(self._path, mode=0o700, exist_ok=True)
            with open(
                f"{self._path}/POLARIS_SPARK", "w"
            ) as mark:  # remove_orphans recognizes the store by it
                mark.write("polaris_spark store, in LMDB\n")
            self._opened(create=True)
        except OSError as error:
            raise StoreURIError(f"lmdb://{self._path} cannot be created: {error}") from error

    def close(self) -> None:
        self._closed = True
        with guard:
            environment, self._environment = self._environment, None
            if environment is not None and self._process == os.getpid():
                environment.users -= 1
                if not environment.users:
                    for key in [key for key, other in environments.items() if other is environment]:
                        del environments[key]
                    environment.lmdb.close()

    def read_objects(self, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        check_realm(realm)

        def read(transaction: Any, tables: dict[str, Any]) -> dict[ObjectKey, bytes]:
            prefix, table = digest(realm), tables["objects"]
            found = {key: transaction.get(prefix + PLACE.pack(*key), db=table) for key in keys}
            return {key: bytes(value) for key, value in found.items() if value is not None}

        return self._read(read)

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        check_rows(realm, rows)
        self._write(lambda transaction, tables: _put(transaction, tables, realm, rows))

    def delete_objects(self, realm: str, keys: Collection[ObjectKey]) -> None:
        check_realm(realm)

        def delete(transaction: Any, tables: dict[str, Any]) -> None:
            for key in keys:
                transaction.delete(digest(realm) + PLACE.pack(*key), db=tables["objects"])

        self._write(delete)

    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        check_place(realm, name)
        return self._read(lambda transaction, tables: _reference(transaction, tables, realm, name))

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        check_reference(realm, name, new)
        return self._change(realm, name, None, new, ())

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        return self.write_and_swap(realm, (), name, expected_version, new)

    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        check_place(realm, name)
        return self._change(realm, name, expected_version, None, ())

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        check_rows(realm, rows)
        return self._change(realm, name, expected_version, new, rows)

    def splits(self, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
        """Every n-th key begins a range, which reads all keys once; fine for stores that fit one machine."""

        names = None if realms is None else tuple(distinct(realms))

        def keys(transaction: Any, tables: dict[str, Any]) -> list[bytes]:
            wanted = None if names is None else {digest(name) for name in names}
            with transaction.cursor(db=tables[table]) as cursor:
                found = cursor.iternext(keys=True, values=False)
                return [bytes(key) for key in found if wanted is None or bytes(key[:DIGEST]) in wanted]

        found: list[bytes] = self._read(keys)
        return [Split(table, (group[0], group[-1], names)) for group in runs(found, n)]

    def scan(self, split: Split) -> Iterator[pa.RecordBatch]:
        low, high, realms = split.detail
        make = object_batch if split.table == "objects" else reference_batch
        wanted = None if realms is None else set(realms)  # type: ignore[call-overload]  # as made by splits()
        while low is not None:  # a transaction per page: a long one would keep LMDB from reusing pages
            rows, low = self._read(
                lambda transaction, tables, low=low: _page(transaction, tables, split.table, low, high)
            )
            rows = [row for row in rows if wanted is None or row[0] in wanted]
            if rows:
                yield make(rows)

    def _change(
        self,
        realm: str,
        name: str,
        expected: bytes | None,
        new: ReferenceRow | None,
        rows: Sequence[ObjectRow],
    ) -> Swapped | Conflict:
        """Put `new`, or delete the row, if its version is the expected one (None: if there is no row)."""

        def change(transaction: Any, tables: dict[str, Any]) -> Swapped | Conflict:
            current = _reference(transaction, tables, realm, name)
            if (None if current is None else current.version) != expected:
                return Conflict(current)
            key = digest(realm) + digest(name)
            if new is None:
                transaction.delete(key, db=tables["references"])
            else:
                encoded = name.encode()
                head = LENGTHS.pack(len(encoded), len(new.version)) + encoded + new.version
                transaction.put(key, head + new.value, db=tables["references"])
            _put(transaction, tables, realm, rows)
            return Swapped()

        return self._write(change)

    def _read(self, function: Callable[[Any, dict[str, Any]], Any]) -> Any:
        environment = self._opened()
        try:
            with environment.lmdb.begin() as transaction:
                return function(transaction, environment.tables)
        except lmdb.Error as error:
            raise TryAgainError(f"lmdb://{self._path}: {error}") from error

    def _write(self, function: Callable[[Any, dict[str, Any]], Any]) -> Any:
        environment = self._opened()
        try:
            transaction = environment.lmdb.begin(write=True)
        except lmdb.Error as error:
            raise TryAgainError(f"lmdb://{self._path}: {error}; nothing was changed") from error
        try:
            outcome = function(transaction, environment.tables)
        except BaseException as error:
            transaction.abort()
            if isinstance(error, lmdb.Error):
                raise TryAgainError(f"lmdb://{self._path}: {error}; nothing was changed") from error
            raise
        try:
            transaction.commit()
        except lmdb.Error as error:
            raise OutcomeUnknownError(f"lmdb://{self._path}: {error}; the change may be there") from error
        return outcome

    def _opened(self, *, create: bool = False) -> Environment:
        self._refuse_if_unusable()
        if self._environment is not None:
            return self._environment
        with guard:
            if self._environment is None:
                if not create and not os.path.exists(f"{self._path}/data.mdb"):
                    raise NoStoreError(f"lmdb://{self._path}")
                found = os.stat(self._path)
                key = found.st_dev, found.st_ino
                try:
                    environment = environments.get(key) or Environment(self._path)
                except lmdb.Error as error:
                    raise StoreURIError(f"lmdb://{self._path} cannot be opened: {error}") from error
                environment.users += 1
                self._environment = environments[key] = environment
            return self._environment

    def _refuse_if_unusable(self) -> None:
        if self._closed:
            raise StateError(f"lmdb://{self._path} is closed")
        if self._process != os.getpid():
            raise StateError(f"lmdb://{self._path} was opened before this process was forked")


def digest(name: str) -> bytes:
    """Stands for a name in keys."""
    return blake2b(name.encode(), digest_size=DIGEST).digest()


def _put(transaction: Any, tables: dict[str, Any], realm: str, rows: Sequence[ObjectRow]) -> None:
    prefix = digest(realm)
    transaction.put(prefix, realm.encode(), db=tables["names"], overwrite=False)
    for id, part, value in rows:
        transaction.put(prefix + PLACE.pack(id, part), value, db=tables["objects"])


def _reference(transaction: Any, tables: dict[str, Any], realm: str, name: str) -> ReferenceRow | None:
    value = transaction.get(digest(realm) + digest(name), db=tables["references"])
    return None if value is None else _unpacked(value)[1]


def _unpacked(value: bytes) -> tuple[str, ReferenceRow]:
    name_bytes, version_bytes = LENGTHS.unpack_from(value)
    version = LENGTHS.size + name_bytes
    end = version + version_bytes
    return value[LENGTHS.size : version].decode(), ReferenceRow(value[version:end], value[end:])


def _page(
    transaction: Any, tables: dict[str, Any], table: Table, low: bytes, high: bytes
) -> tuple[list[Any], bytes | None]:
    """Rows from `low` to `high`, about a batch of them, and where the next page begins."""
    rows: list[Any] = []
    size = 0
    with transaction.cursor(db=tables[table]) as cursor:
        more = cursor.set_range(low)
        while more and cursor.key() <= high:
            key, value = cursor.item()
            if size >= BATCH_BYTES or len(rows) >= BATCH_ROWS:
                return rows, key
            realm = transaction.get(key[:DIGEST], db=tables["names"]).decode()
            if table == "objects":
                rows.append((realm, *PLACE.unpack(key[DIGEST:]), value))
            else:
                name, row = _unpacked(value)
                rows.append((realm, name, *row))
            size += len(value)
            more = cursor.next()
    return rows, None


def _after_fork() -> None:
    global guard
    guard = threading.Lock()
    inherited.extend(environments.values())
    environments.clear()


os.register_at_fork(after_in_child=_after_fork)
