"""The file of a SQLite store: creating and opening it, and translating SQLite's errors."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import uuid
from typing import Final

from polaris_spark.backends import open_files
from polaris_spark.backends.limits import refuse_newer_format
from polaris_spark.backends.open_files import Identity, identity
from polaris_spark.errors import (
    CorruptionError,
    NoStoreError,
    PolarisError,
    StorageFullError,
    StoreURIError,
    TryAgainError,
)

APPLICATION_ID: Final = 0x506F5370
"""Number in the file (`PRAGMA application_id`) that distinguishes a store from databases of other programs."""

FORMAT: Final = 1
"""Version of the format of the two tables (`PRAGMA user_version`)."""


LOOK_AGAIN_S: Final = 1.0
"""Time after which a read, or the start of a transaction, checks again whether the open files are still at their paths,
in seconds."""

_SURE_NS: Final = 5_000_000_000
"""Minimum age of a folder's change time, in nanoseconds, at which the next change of the folder certainly sets another
change time. File systems record coarse times, so two changes in quick succession can have the same time."""

_PAGE_BYTES: Final = 4_096
_creating = threading.Lock()

# Not WITHOUT ROWID: rows of up to 350 kB would leave few keys on the inner pages (measured with 200,000 rows of 300
# to 6,000 bytes: tables with row ids take 20 to 30 % less time for writes, and half the time for reads).
_TABLES: Final = (
    "CREATE TABLE objects (realm TEXT NOT NULL, id INTEGER NOT NULL, part INTEGER NOT NULL,"
    " value BLOB NOT NULL, PRIMARY KEY (realm, id, part))",
    'CREATE TABLE "references" (realm TEXT NOT NULL, name TEXT NOT NULL, version BLOB NOT NULL,'
    " value BLOB NOT NULL, PRIMARY KEY (realm, name))",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)


def create(path: str) -> None:
    """Create a file with the tables, accessible only to its owner. An existing file is not changed.

    The tables are created in a temporary file, which is then linked to `path`. Otherwise, many processes that open a
    new store at the same time would lock each other out: SQLite cannot switch a file to a write-ahead log while another
    process reads it.

    In two cases, the file is created empty, without tables: if the temporary file cannot be made or linked (no space,
    or no hard links), or if the log or journal of a removed database is still beside `path`. SQLite deletes an old log
    or journal if the database file is empty, but would apply it to a file with content.

    Raises:
        StoreURIError: the file cannot be created.
    """
    if any(map(os.path.lexists, (*all_paths(path), _journal(path)))):
        create_file(path)
        return
    temporary = f"{path}.{uuid.uuid4().hex}.new"
    try:
        create_file(temporary)
        connection = connect(temporary)
        try:
            create_tables(connection, temporary)
        finally:
            connection.close()
        if any(map(os.path.lexists, all_paths(temporary)[1:])):  # the log could not be moved into the file
            raise StorageFullError(
                f"the write-ahead log of sqlite://{temporary} could not be moved into the file"
            )
        os.link(temporary, path)
    except FileExistsError:
        return
    except (OSError, sqlite3.Error, PolarisError):
        create_file(path)
    finally:
        for name in (*all_paths(temporary), _journal(temporary)):
            with contextlib.suppress(OSError):
                os.unlink(name)


def create_file(path: str) -> None:
    """Create an empty file, accessible only to its owner. An existing file is not changed.

    Raises:
        StoreURIError: the file cannot be created.
    """
    with _creating:  # closing a file drops this process's locks on it, so nothing may open it in the meantime
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            why = _reason(path) if missing else error.strerror
            raise StoreURIError(f"sqlite://{path} cannot be created: {why}") from error


class Connection(sqlite3.Connection):
    """A connection that records which files it has open."""

    file: Identity | None = None
    """Device and inode numbers of the database file; None if not recorded yet."""
    _folder = ""
    """The folder of the database file. Empty if the path is a symbolic link, because the files are then in another
    folder."""
    _unchanged: tuple[int, int, int] | None = None
    """Device, inode and change time of the folder at the last check that found all open files at their paths; None if
    this was not recorded. The change time is the inode's ctime, which programs cannot set."""
    _looked_at = 0.0
    _open: tuple[tuple[str, Identity], ...] = ()
    """The paths of the database, of its log (`-wal`) and of the log's index (`-shm`, which holds the locks), each with
    the file that is open. SQLite removes the log and its index when the last connection of all processes is closed."""

    def identify(self, path: str, before: Identity | None) -> bool:
        """Record which files this connection has open. Call this after the first statement, with which SQLite opens the
        files.

        Args:
            before: identity of the file that was at the path before the connection was made.
        Returns:
            whether the path still leads to the open files.
        """
        names = all_paths(path)
        found = [(name, file) for name in names if (file := identity(name)) is not None]
        open_files.hold(*(file for _, file in found))
        self._folder = "" if os.path.islink(path) else os.path.dirname(path) or "."
        self._open = tuple(found)
        if not found or found[0] != (path, before):
            return False
        self.file = before
        # If the database does not use a log, there are no other files.
        return len(found) == len(names) or self.execute("PRAGMA journal_mode").fetchone()[0] != "wal"

    def close(self) -> None:
        """Close the connection, and record that its files are closed."""
        super().close()
        found, self._open = self._open, ()
        open_files.release(*(file for _, file in found))

    def __del__(self) -> None:
        open_files.release(*(file for _, file in self._open))  # if it was collected without being closed

    def is_current(self) -> bool:
        """Whether the paths of the database, its log and the log's index still lead to the open files. If they do not,
        SQLite would continue with the removed files, which no other process sees."""
        try:
            if not self._folder:
                return self._look(None)
            found = os.stat(self._folder)
            folder = found.st_dev, found.st_ino, found.st_ctime_ns
            return folder == self._unchanged or self._look(folder)
        except OSError:
            return False

    def _look(self, folder: tuple[int, int, int] | None) -> bool:
        """Check whether all open files are still at their paths, and return the result. `folder` is the folder's
        current device, inode and change time (None: unknown). If all files are there, `folder` is recorded, so that
        `is_current` can skip this check while the folder is unchanged."""
        for path, file in self._open:
            found = os.stat(path)
            if (found.st_dev, found.st_ino) != file:
                return False
        if folder is not None and time.time_ns() - folder[2] > _SURE_NS:
            self._unchanged = folder
        return True

    def was_current(self) -> bool:
        """Return the result of `is_current`. If the last check had the result True and was less than `LOOK_AGAIN_S`
        seconds ago, return True without another check."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_AGAIN_S:
            if not self.is_current():
                return False
            self._looked_at = now
        return True


def all_paths(path: str) -> tuple[str, str, str]:
    """Return the paths of a database, of its log, and of the log's index. If the path is a symbolic link, the log and
    its index are beside the link's target."""
    real = os.path.realpath(path)
    return path, f"{real}-wal", f"{real}-shm"


def _journal(path: str) -> str:
    """Return the path of a database's rollback journal, which exists during the change to a write-ahead log."""
    return f"{os.path.realpath(path)}-journal"


def connect(path: str) -> Connection:
    """Return a connection to an existing file, in autocommit mode. Only one thread at a time may use the connection.

    Raises:
        NoStoreError: the file does not exist.
        StoreURIError: the file cannot be opened.
    """
    if os.path.isdir(path):
        raise StoreURIError(f"sqlite://{path} names a directory; a store is a file")
    if os.path.exists(path) and not os.path.isfile(path):
        raise StoreURIError(f"sqlite://{path} names a device, pipe or socket; a store is a regular file")
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    try:
        return sqlite3.connect(
            f"file:{quoted}?mode=rw",
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
            factory=Connection,
        )
    except sqlite3.Error as error:
        raise explained(path, error) from error


def create_tables(connection: sqlite3.Connection, path: str) -> None:
    """Create the tables if the file is empty; otherwise check the existing tables.

    Raises:
        StoreURIError: the file is a database of another program.
        NewerFormatError: a newer release made the store.
        sqlite3.Error: SQLite failed. If the database is locked, the caller must try again.
    """
    if _number(connection, "SELECT count(*) FROM sqlite_schema"):
        check_tables(connection, path)
        return
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not _number(connection, "SELECT count(*) FROM sqlite_schema"):
            for statement in _TABLES:
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        undo(connection)
        raise


def check_tables(connection: sqlite3.Connection, path: str) -> None:
    """Check that a file holds a store, in a format that this release supports.

    Raises:
        StoreURIError: the file is a database of another program, or empty.
        NewerFormatError: a newer release made the store.
    """
    if _number(connection, "PRAGMA application_id") != APPLICATION_ID:
        tables = _number(connection, "SELECT count(*) FROM sqlite_schema")
        if tables:
            raise StoreURIError(f"sqlite://{path} is a database of another program; choose another path")
        raise NoStoreError(f"sqlite://{path}")
    refuse_newer_format(f"sqlite://{path}", _number(connection, "PRAGMA user_version"), FORMAT)


def undo(connection: sqlite3.Connection) -> None:
    """Roll back the transaction, if there is one."""
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):  # SQLite has already undone it
            connection.execute("ROLLBACK")


def busy(error: sqlite3.Error) -> bool:
    """Whether an error of SQLite means that another connection holds the lock on the database."""
    return "is locked" in str(error)


def full(error: sqlite3.Error) -> bool:
    """Whether an error of SQLite means that the disk is full."""
    return "full" in str(error)


def explained(path: str, error: sqlite3.Error) -> PolarisError:
    """Return the error of this package for an error of SQLite. Kinds of errors are recognized by their text, because
    Python 3.10 does not expose SQLite's error codes."""
    text, where = str(error), f"sqlite://{path}"
    if full(error):
        return StorageFullError(
            f"the disk of {where} is full; nothing was changed: free space, then try again"
        )
    if "readonly" in text:
        return StoreURIError(f"{where} is read-only for this process; a catalog needs write access")
    if "not a database" in text:
        return StoreURIError(f"{where} is not an SQLite database")
    if "unable to open" in text:
        if _could_be_created(path):
            return NoStoreError(where, "the file does not exist")
        return StoreURIError(f"{where} cannot be opened: {_reason(path)}")
    if "no such table" in text:
        return NoStoreError(where)
    if "malformed" in text:
        return CorruptionError(f"{where} is damaged: {text}")
    return TryAgainError(f"{where} failed: {text}; nothing was changed")


def _could_be_created(path: str) -> bool:
    """Whether a path leads to no file, but its directory exists. False if the directory cannot be accessed."""
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError) and os.path.isdir(os.path.dirname(path))
    return False


def _reason(path: str) -> str:
    directory = os.path.dirname(path)
    try:
        os.stat(path)
    except FileNotFoundError:
        return f"the directory {directory} does not exist; check the path, or create the directory first"
    except OSError as error:
        return f"{(error.strerror or str(error)).lower()} in the directory {directory}"
    if not os.access(path, os.R_OK):
        return "permission denied"
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return "it is on a read-only file system, where SQLite cannot open the log beside it"
    return "not a regular file, or its log cannot be opened"


def _number(connection: sqlite3.Connection, statement: str) -> int:
    return int(connection.execute(statement).fetchone()[0])


def _start_in_child() -> None:
    global _creating
    _creating = threading.Lock()


os.register_at_fork(after_in_child=_start_in_child)
