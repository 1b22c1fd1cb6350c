"""`memory:` and `memory:name`: stores in the memory of one process. Each name is a separate store.

These stores are for tests and experiments. Spark's executors are other processes, where the stores would be empty. A
scan therefore refuses a split that was made in another process. A forked child starts with new, empty stores.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from polaris_spark.backends import Options
from polaris_spark.backends.arrow import BATCH_BYTES, object_batch, reference_batch
from polaris_spark.backends.base import (
    MAX_ROW_BYTES,
    Backend,
    Conflict,
    ObjectKey,
    ObjectRow,
    ReferenceRow,
    Split,
    Swapped,
    Table,
)
from polaris_spark.backends.limits import check_place, check_realm, check_reference, check_rows, distinct
from polaris_spark.errors import StateError
from polaris_spark.store_uris import StoreURI, refuse_unknown_options

if TYPE_CHECKING:
    import pyarrow as pa


_BATCH = BATCH_BYTES // MAX_ROW_BYTES

_Detail = tuple[str, int, "tuple[str, ...] | None", Any, Any]
# Detail of a split: store name, process id, realms (None: all), first key or None, key after the last or None.


class _Tables:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process = os.getpid()
        self.objects: dict[str, dict[tuple[int, int], bytes]] = {}
        self.references: dict[str, dict[str, ReferenceRow]] = {}


_stores: dict[str, _Tables] = {}
os.register_at_fork(after_in_child=_stores.clear)


def open_backend(uri: StoreURI, options: Options) -> MemoryBackend:
    """Return the backend for this process's store with the name in `uri`. The first call for a name creates the
    store."""
    refuse_unknown_options("memory", options, ())
    return MemoryBackend(uri.path)


class MemoryBackend(Backend):
    """A store in dictionaries that one lock protects. `close()` keeps the rows, which exist until the process ends."""

    scope = "process"
    transactional = True

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._tables = _stores.setdefault(name, _Tables())
        self._closed = False

    def setup(self) -> None:
        self._open()

    def close(self) -> None:
        self._closed = True

    def read_objects(self, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        check_realm(realm)
        rows = self._open().objects.get(realm, {})
        return {key: rows[key] for key in keys if key in rows}

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        check_rows(realm, rows)
        tables = self._open()
        with tables.lock:
            self._put(tables, realm, rows)

    def delete_objects(self, realm: str, keys: Collection[ObjectKey]) -> None:
        check_realm(realm)
        tables = self._open()
        with tables.lock:
            rows = tables.objects.get(realm, {})
            for key in keys:
                rows.pop(key, None)

    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        check_place(realm, name)
        return self._open().references.get(realm, {}).get(name)

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        check_reference(realm, name, new)
        tables = self._open()
        with tables.lock:
            rows = tables.references.setdefault(realm, {})
            if name in rows:
                return Conflict(rows[name])
            rows[name] = new
            return Swapped()

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        return self.write_and_swap(realm, (), name, expected_version, new)

    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        check_place(realm, name)
        tables = self._open()
        with tables.lock:
            rows = tables.references.get(realm, {})
            current = rows.get(name)
            if current is None or current.version != expected_version:
                return Conflict(current)
            del rows[name]
            return Swapped()

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        check_rows(realm, rows)
        tables = self._open()
        with tables.lock:
            references = tables.references.get(realm, {})
            current = references.get(name)
            if current is None or current.version != expected_version:
                return Conflict(current)
            self._put(tables, realm, rows)
            references[name] = new
            return Swapped()

    def drop_realm(self, realm: str) -> bool:
        check_realm(realm)
        tables = self._open()
        with tables.lock:
            tables.objects.pop(realm, None)
            tables.references.pop(realm, None)
        return True

    def splits(self, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
        tables = self._open()
        keys = self._keys(table, realms)
        size = max(1, -(-len(keys) // max(1, n)))
        bounds = [None, *keys[size::size], None]
        wanted = None if realms is None else tuple(realms)
        return [
            Split(table, (self._name, tables.process, wanted, low, high)) for low, high in pairwise(bounds)
        ]

    def scan(self, split: Split) -> Iterator[pa.RecordBatch]:
        tables = self._open()
        name, process, realms, low, high = cast("_Detail", split.detail)
        if (name, process) != (self._name, tables.process):
            raise StateError(
                f"the store memory:{name} exists only in process {process} and cannot be used by process "
                f"{os.getpid()}: "
                "use sqlite: for Spark on one machine, or a database server for a cluster"
            )
        keys = self._keys(split.table, realms)
        start = 0 if low is None else bisect_left(keys, low)
        end = len(keys) if high is None else bisect_left(keys, high)
        make = _object_batch if split.table == "objects" else _reference_batch
        for first in range(start, end, _BATCH):
            yield make(tables, keys[first : min(first + _BATCH, end)])

    def _keys(self, table: Table, realms: Sequence[str] | None) -> list[tuple[str, Any]]:
        tables = self._tables
        found: Mapping[str, Mapping[Any, object]]
        found = tables.objects if table == "objects" else tables.references
        with tables.lock:
            names = sorted(found) if realms is None else distinct(realms)
            return [(realm, key) for realm in names for key in sorted(found.get(realm, ()))]

    @staticmethod
    def _put(tables: _Tables, realm: str, rows: Sequence[ObjectRow]) -> None:
        found = tables.objects.setdefault(realm, {})
        for row in rows:
            found.setdefault((row.id, row.part), bytes(row.value))

    def _open(self) -> _Tables:
        if self._closed:
            raise StateError(f"the store memory:{self._name} is closed; open it again")
        if self._tables.process != os.getpid():
            raise StateError(
                f"the store memory:{self._name} belongs to process {self._tables.process} and cannot be used in a "
                "process forked from it"
            )
        return self._tables


def _object_batch(tables: _Tables, keys: Sequence[tuple[str, Any]]) -> pa.RecordBatch:
    rows = ((realm, *key, tables.objects.get(realm, {}).get(key)) for realm, key in keys)
    return object_batch([row for row in rows if row[3] is not None])


def _reference_batch(tables: _Tables, keys: Sequence[tuple[str, Any]]) -> pa.RecordBatch:
    rows = ((realm, name, tables.references.get(realm, {}).get(name)) for realm, name in keys)
    return reference_batch([(realm, name, *row) for realm, name, row in rows if row is not None])
