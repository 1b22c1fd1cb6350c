"""The open databases of this process. All backends for the same store share one database.

RocksDB does not survive a fork: its threads are missing in the child, where even closing a database would hang or
write. So if a process has used RocksDB, its forked children cannot open databases, and never free the databases that
they inherited.
"""

from __future__ import annotations

import ctypes
import os
import threading

from polaris_spark.backends.rocksdb import directories, handles
from polaris_spark.backends.rocksdb.handles import Handle
from polaris_spark.errors import StateError

_handles: dict[object, Handle] = {}
_guard = threading.Lock()
_inherited = False


def share(path: str, user: object) -> Handle:
    """Return the database of a directory, and register `user`, a backend, as a user of the database.

    Raises:
        StoreURIError, NewerFormatError: the directory is not a store, or has a newer format.
        StateError: this process was forked from a process that used RocksDB.
    """
    if _inherited:
        raise StateError(
            f"rocksdb://{path} cannot be opened: this process was forked from one that used RocksDB, which does "
            "not work after a fork; start processes with 'spawn'"
        )
    with _guard:
        identity = directories.identity(path)
        handle = _handles.get(identity)
        if handle is None or handle.ended:
            handle = _handles[identity] = Handle(path)
        handle.users.add(user)
        return handle


def leave(handle: Handle, user: object) -> None:
    """Remove a user (a backend) of a database, and close the database if it has no other users. If Ctrl-C interrupts
    the call, it can be repeated.

    Raises:
        TryAgainError: operations in progress did not end in time; the user was not removed.
    """
    with _guard:
        if handle.users <= {user}:
            handle.close()
            for identity in [identity for identity, other in _handles.items() if other is handle]:
                del _handles[identity]
        handle.users.discard(user)


def _after_fork_in_child() -> None:
    global _guard, _inherited
    _guard = threading.Lock()
    _inherited = handles.used
    for handle in _handles.values():
        for database in handle.databases:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))
    _handles.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
