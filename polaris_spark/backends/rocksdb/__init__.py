"""`rocksdb:///path/of/store`: a store in a directory. One process writes; other processes on the machine read.

A process becomes the writer with its first write, and remains the writer until it closes the store. A write by another
process raises `StateError`. The rows of a commit and its swap are written to the log as one batch, and the log is
synced before the acknowledgment. With `?synchronous=normal` the log is not synced: acknowledged writes survive a crash
of the process, but not always a crash of the machine. RocksDB has no compare-and-swap, so the writer compares and
writes while it holds a lock. Other processes follow the writer's log.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from rocksdict import WriteBatch

from polaris_spark.backends import Options
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
from polaris_spark.backends.limits import check_place, check_realm, check_reference, check_rows
from polaris_spark.backends.rocksdb import directories, lookups, scans, sharing
from polaris_spark.backends.rocksdb.handles import Handle
from polaris_spark.backends.rocksdb.keys import (
    TABLES,
    after,
    object_keys,
    packed,
    place,
    row_prefix,
    unpacked,
    version_of,
)
from polaris_spark.backends.rocksdb.settings import Settings
from polaris_spark.errors import CorruptionError, StateError
from polaris_spark.store_uris import StoreURI

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_BYTES: Final = 4 * 2**20
"""Size at which a batch of rows is written to the log, in bytes. With its last row, a batch can be larger."""


def open_backend(uri: StoreURI, options: Options) -> RocksDBBackend:
    """Return the backend for the store in the directory of `uri`. The only option is `synchronous` (`full` or
    `normal`).

    Raises:
        StoreURIError: an option or its value is not valid.
    """
    return RocksDBBackend(uri.path, Settings.parse(options))


class RocksDBBackend(Backend):
    """A store in one RocksDB database."""

    scope = "writer"
    transactional = True

    def __init__(self, path: str, settings: Settings | None = None) -> None:
        self._path = path
        self._synced = (settings or Settings()).synchronous
        self._process = os.getpid()
        self._handle: Handle | None = None
        self._opening = threading.Lock()
        self._closed = False

    def setup(self) -> None:
        self._refuse_if_unusable()
        directories.create(self._path)
        self._open().create()

    def close(self) -> None:
        self._closed = True
        if self._process != os.getpid():
            return
        with self._opening:
            if self._handle is not None:
                sharing.leave(self._handle, self)
            self._handle = None

    def read_objects(self, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        check_realm(realm)
        wanted = list(keys)
        sought = object_keys(realm, wanted)
        if len(sought) == 1:
            value = self._open().read(lambda database: database.get(sought[0]))
            return {} if value is None else {wanted[0]: value}
        found = self._open().read(partial(lookups.values, sought))
        return {key: value for key, value in zip(wanted, found, strict=True) if value is not None}

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        check_rows(realm, rows)
        batch = WriteBatch(raw_mode=True)
        for row in rows:
            _put(batch, realm, (row,))
            if batch.size_in_bytes() >= _BATCH_BYTES:
                self._open().write(batch, synced=self._synced)
                batch = WriteBatch(raw_mode=True)
        if len(batch):
            self._open().write(batch, synced=self._synced)

    def delete_objects(self, realm: str, keys: Collection[ObjectKey]) -> None:
        check_realm(realm)
        prefix, batch = row_prefix("objects", realm), WriteBatch(raw_mode=True)
        for id, part in keys:
            batch.delete(prefix + place(id, part))
        if len(batch):
            self._open().write(batch, synced=self._synced)

    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        check_place(realm, name)
        return self._reference(realm, name, self._open().get(_key(realm, name)))

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        check_reference(realm, name, new)
        return self._change(realm, name, None, lambda batch, key: batch.put(key, packed(new)))

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        return self._change(realm, name, expected_version, lambda batch, key: batch.put(key, packed(new)))

    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        check_place(realm, name)
        return self._change(realm, name, expected_version, lambda batch, key: batch.delete(key))

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        check_rows(realm, rows)

        def write(batch: WriteBatch, key: bytes) -> None:
            _put(batch, realm, rows)
            batch.put(key, packed(new))

        return self._change(realm, name, expected_version, write)

    def drop_realm(self, realm: str) -> bool:
        check_realm(realm)
        batch = WriteBatch(raw_mode=True)
        for table in TABLES:
            prefix = row_prefix(table, realm)
            batch.delete_range(prefix, after(prefix))
        self._open().write(batch, synced=self._synced)
        return True

    def splits(self, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
        return scans.splits(self._open(), table, realms, n)

    def scan(self, split: Split) -> Iterator[pa.RecordBatch]:
        return scans.scan(self._open, split)

    def _change(
        self, realm: str, name: str, expected: bytes | None, write: Callable[[WriteBatch, bytes], None]
    ) -> Swapped | Conflict:
        """Change a reference if it has the expected version (None: if the reference does not exist), and return the
        outcome. `write` is called with an empty batch and the reference's key, and adds the changes to the batch."""
        key = _key(realm, name)

        def decide(value: bytes | None) -> WriteBatch | None:
            if (None if value is None else version_of(value)) != expected:
                return None
            batch = WriteBatch(raw_mode=True)
            write(batch, key)
            return batch

        before, written = self._open().change(key, decide, synced=self._synced)
        return Swapped() if written else Conflict(self._reference(realm, name, before))

    def _reference(self, realm: str, name: str, value: bytes | None) -> ReferenceRow | None:
        try:
            return None if value is None else unpacked(value)
        except CorruptionError as error:
            raise CorruptionError(
                f"reference {name!r} in realm {realm!r} of rocksdb://{self._path} is damaged: {error}"
            ) from None

    def _open(self) -> Handle:
        handle = self._handle
        if handle is None or self._closed or self._process != os.getpid():
            self._refuse_if_unusable()
            with self._opening:
                self._refuse_if_unusable()
                handle = self._handle = self._handle or sharing.share(self._path, self)
        return handle

    def _refuse_if_unusable(self) -> None:
        if self._closed:
            raise StateError(f"the store rocksdb://{self._path} is closed; open it again")
        if self._process != os.getpid():
            raise StateError(
                f"the store rocksdb://{self._path} was opened before this process was forked from its parent; "
                "RocksDB does not work after a fork; use a new process"
            )


def _key(realm: str, name: str) -> bytes:
    return row_prefix("references", realm) + name.encode()


def _put(batch: WriteBatch, realm: str, rows: Sequence[ObjectRow]) -> None:
    prefix = row_prefix("objects", realm)
    for id, part, value in rows:
        batch.put(prefix + place(id, part), value)
