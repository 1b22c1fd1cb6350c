"""Bare swaps on RocksDB, by rocksdict. RocksDB has no compare-and-swap, so threads compare under a lock."""

from __future__ import annotations

import threading

from rocksdict import Rdict, WriteOptions

from benchmarks.bare import REALM
from polaris_spark.backends.base import ReferenceRow
from polaris_spark.backends.rocksdb import sharing
from polaris_spark.backends.rocksdb.keys import packed, row_prefix, version_of
from polaris_spark.store_uris import StoreURI


def open_bare(uri: str) -> BareRocksDB:
    """Open the store of a URI without options."""
    return BareRocksDB(StoreURI.parse(uri).path)


class BareRocksDB:
    """A store on the process's open database, because a process can open a RocksDB database only once.

    Swaps use the driver alone.
    """

    def __init__(self, path: str) -> None:
        self._handle = sharing.share(path, self)
        self._handle.change(b"", lambda _: None, synced=False)  # makes this process the writer
        self._lock = threading.Lock()

    def client(self) -> _Client:
        """Return a client on the database, which all threads share."""
        return _Client(self._handle.databases[0], self._lock)

    def close(self) -> None:
        """Close the database, unless other users in the process have it open."""
        sharing.leave(self._handle, self)


class _Client:
    def __init__(self, database: Rdict, lock: threading.Lock) -> None:
        self._database, self._lock = database, lock
        self._prefix = row_prefix("references", REALM)
        self._synced = WriteOptions()
        self._synced.sync = True

    def swap(self, name: str, expected: bytes, new: ReferenceRow) -> bool:
        key = self._prefix + name.encode()
        with self._lock:
            found = self._database.get(key)
            if found is None or version_of(found) != expected:
                return False
            self._database.put(key, packed(new), self._synced)
            return True

    def version(self, name: str) -> bytes:
        found = self._database.get(self._prefix + name.encode())
        assert found is not None
        return version_of(found)
