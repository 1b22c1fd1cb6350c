"""The open RocksDB database of a store in this process: a primary if this process writes, else a read-only secondary.

RocksDB allows one process to open a database for writing. A process becomes the writer with its first write, not
earlier, so that Spark's workers and the command line, which only read, never lock the writer out. The process remains
the writer until all its backends for this store are closed. A process that only reads follows the writer's log, and
catches up with the log before every read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final, TypeVar

from rocksdict import AccessType, Rdict, WriteBatch

from polaris_spark.backends import open_files
from polaris_spark.backends.rocksdb import directories, failures
from polaris_spark.backends.rocksdb.settings import primary_options, secondary_options
from polaris_spark.backends.rocksdb.syncs import Syncs
from polaris_spark.backends.turnstile import Turnstile
from polaris_spark.errors import OutcomeUnknownError, PolarisError, StateError, TryAgainError

T = TypeVar("T")

_PATIENCE_S: Final = 30.0
"""Maximum time to wait for the end of operations in progress, or for another process that is creating the store, in
seconds."""
_LOOKS: Final = 100_000
"""Number of reads of the writer's log ("catch-ups") after which a read-only database is reopened. Each catch-up adds
about 100 bytes to RocksDB's info log, and reopening frees them. The directory of the info log has been deleted, so
RocksDB would crash the process if the log became so large that a new file is started."""


class Handle:
    """The open database of one directory in this process. All backends of the process for this store share it.
    Thread-safe."""

    def __init__(self, path: str) -> None:
        self.users: set[object] = set()
        self.ended = False
        self._path, self._where = path, f"rocksdb://{path}"
        self._turnstile = Turnstile(threading.Lock())
        self._writing = threading.Lock()
        self._primary: Rdict | None = None
        self._secondary: Rdict | None = None
        self._looks = 0
        self._lock: open_files.Identity | None = None
        self._stamp: tuple[int, int, int] | None = None
        """Result of `directories.stamp` for the directory that was opened first. If the result changes, the directory
        was replaced by another store."""
        self._failed = False
        self._unsynced: dict[bytes, int] = {}
        self._syncs = Syncs(self._sync)

    @property
    def databases(self) -> list[Rdict]:
        """The databases that are open: the primary or the secondary, or briefly both (while this process becomes the
        writer), or none."""
        return [database for database in (self._primary, self._secondary) if database is not None]

    def create(self) -> None:
        """Create the database if it does not exist. This process then becomes the writer.

        Raises:
            StateError: another process still has not created the database after `_PATIENCE_S` seconds.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while not directories.exists(self._path):
            try:
                self._change(self._create)
            except failures.WrittenElsewhereError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)

    def close(self) -> None:
        """Wait until operations in progress have ended, and close the database. This handle cannot open it again.

        Raises:
            TryAgainError: the operations did not end within `_PATIENCE_S` seconds; nothing was closed.
        """
        self._change(self._end)

    def read(self, function: Callable[[Rdict], T]) -> T:
        """Call `function` with the database, and return its result. The function sees all writes that were acknowledged
        before the call.

        Raises:
            StoreURIError, CorruptionError, TryAgainError: the store is missing, damaged, or cannot be read.
        """
        try:
            return self._read(function)
        except PolarisError:
            raise
        except Exception as error:
            if self._secondary is None:
                raise self._unread(error) from error
        self._change(
            self._close_secondary
        )  # the writer may have deleted files before this process opened them
        try:
            return self._read(function)
        except PolarisError:
            raise
        except Exception as error:
            raise self._unread(error) from error

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if the key does not exist. If the value was written recently, wait until it
        is on disk.

        Raises:
            StateError: the directory was removed or replaced.
            StoreURIError, CorruptionError, TryAgainError: the store is missing, damaged, or cannot be read.
        """

        def get(database: Rdict) -> bytes | None:
            value: bytes | None = database.get(key)
            if key in self._unsynced:
                with self._writing:
                    number = self._pending(key)
                self._syncs.wait(number)
            self._refuse_replaced()
            return value

        return self.read(get)

    def write(self, batch: WriteBatch, *, synced: bool) -> None:
        """Write an idempotent batch.

        Raises:
            StateError: another process is the writer, or the directory was removed or replaced.
            TryAgainError: the write failed; the batch may have been written in whole, in part or not at all.
        """

        def write(database: Rdict) -> None:
            with self._writing:
                number = self._put(database, batch)
            if synced:
                self._syncs.wait(number)
            self._refuse_replaced()

        try:
            self._write(write)
        except PolarisError:
            raise
        except Exception as error:
            self._failed = True
            raise failures.explained(self._where, error) from error

    def change(
        self, key: bytes, decide: Callable[[bytes | None], WriteBatch | None], *, synced: bool
    ) -> tuple[bytes | None, bool]:
        """Call `decide` with the current value of a key (None: no value), and write the batch that `decide` returns,
        unless it is None. The read and the write are one atomic operation.

        Returns:
            the value of the key before the write, and whether a batch was written.
        Raises:
            StateError: another process is the writer, or the directory was removed or replaced; nothing was written.
            TryAgainError: nothing was written.
            OutcomeUnknownError: the write may be lost after a crash, or the directory was removed or replaced during
                the call.
        """
        begun = logged = False

        def change(database: Rdict) -> tuple[bytes | None, bool]:
            nonlocal begun, logged
            self._refuse_replaced()
            with self._writing:
                before: bytes | None = database.get(key)
                batch = decide(before)
                if batch is not None:
                    if synced:
                        self._unsynced[key] = self._syncs.next()
                    begun = True
                    self._put(database, batch)
                    logged = True
                number = self._pending(key)
            if number:
                self._synced(key, number)
            if batch is not None and directories.stamp(self._path) != self._stamp:
                raise OutcomeUnknownError(f"{failures.replaced(self._where)}; the last change may be lost")
            return before, batch is not None

        try:
            return self._write(change)
        except PolarisError:
            raise
        except Exception as error:
            self._failed = True
            # If the disk was full, the last record of the log is incomplete and will be ignored.
            if not begun or (failures.full(error) and not logged):
                raise failures.explained(self._where, error) from error
            raise OutcomeUnknownError(
                f"{self._where} failed ({error}): the change may or may not survive a crash"
            ) from error

    def _refuse_replaced(self) -> None:
        """Check that the directory was not removed or replaced. RocksDB would continue with the removed files, which no
        other process sees.

        Raises:
            StateError: the path no longer leads to the directory that is open.
        """
        if directories.stamp(self._path) != self._stamp:
            raise failures.replaced(self._where)

    def _identify(self) -> None:
        """Record the identity of the directory that is about to be opened.

        Raises:
            StateError: another directory was opened at this path before.
        """
        found = directories.stamp(self._path)
        if self._stamp not in (None, found):
            raise failures.replaced(self._where)
        self._stamp = found

    def _unread(self, error: Exception) -> PolarisError:
        """Return the error of this package for an error of a read. The local variables in the error's traceback are
        cleared, because their iterators would keep the database open, and locked, as long as the error exists."""
        traceback.clear_frames(error.__traceback__)
        return failures.explained(self._where, error)

    def _put(self, database: Rdict, batch: WriteBatch) -> int:
        number = self._syncs.next()
        try:
            database.write(batch)
        finally:
            self._syncs.wrote(number)
        return number

    def _pending(self, key: bytes) -> int:
        """Return the number of the newest write of a key, if this write may not be on disk yet; an operation on the key
        must wait until it is. Return 0 if there is no such write. A write that was interrupted before it began does not
        count."""
        return min(self._unsynced.get(key, 0), self._syncs.written)

    def _synced(self, key: bytes, number: int) -> None:
        self._syncs.wait(number)
        with self._writing:
            if self._unsynced.get(key) == number:
                del self._unsynced[key]

    def _sync(self) -> None:
        assert self._primary is not None, "the database stays open while a thread waits for a sync"
        self._primary.flush_wal(True)  # noqa: FBT003  # positional in the driver; True: sync to the disk

    def _read(self, function: Callable[[Rdict], T]) -> T:
        if self._failed or self._looks >= _LOOKS or not (self._primary or self._secondary):
            self._change(self._open_secondary)
        return self._turnstile.run(self._read_open, function)

    def _read_open(self, function: Callable[[Rdict], T]) -> T:
        if self._primary is not None:
            return function(self._primary)
        if self._secondary is None:
            raise TryAgainError(
                f"{self._where} is being closed by another thread; nothing was read: open the store again"
            )
        self._looks += 1
        self._secondary.try_catch_up_with_primary()
        return function(self._secondary)

    def _write(self, function: Callable[[Rdict], T]) -> T:
        if self._failed or self._primary is None:
            self._change(self._open_primary)
        return self._turnstile.run(self._write_open, function)

    def _write_open(self, function: Callable[[Rdict], T]) -> T:
        if self._primary is None:
            raise TryAgainError(
                f"{self._where} is being closed by another thread; nothing was changed: open the store again"
            )
        return function(self._primary)

    def _change(self, function: Callable[[], None]) -> None:
        """Wait until no operation is in progress, and run a function that opens or closes databases. No operation
        begins in the meantime."""
        with self._turnstile.changing:
            if not self._turnstile.ended(_PATIENCE_S):
                raise TryAgainError(
                    f"operations of this process on {self._where} did not end within {_PATIENCE_S:g} s, so the "
                    "store could not be opened or closed; nothing was changed: try again"
                )
            function()

    def _open_primary(self) -> None:
        self._prepare()
        if self._primary is None:
            directories.check(self._path)
            self._become_writer()

    def _create(self) -> None:
        self._prepare()
        if self._primary is None:
            directories.refuse_damaged(self._path)
            self._become_writer()

    def _become_writer(self) -> None:
        self._identify()
        self._refuse_locked()
        lock = f"{self._path}/LOCK"
        try:
            with open_files.opening(lock):
                self._primary = self._opened(lambda: Rdict(self._path, primary_options()))
                self._lock = open_files.identity(lock)
                if self._lock is not None:
                    open_files.hold(self._lock)
        except BaseException:  # the database may be open although `hold` was not called for its lock file
            self._failed = True
            raise
        self._syncs = Syncs(self._sync)
        self._close_secondary()

    def _prepare(self) -> None:
        if self.ended:
            raise StateError(f"the store {self._where} is closed; open it again")
        if self._failed:
            self._close_all()

    def _open_secondary(self) -> None:
        self._prepare()
        if self._looks >= _LOOKS:
            self._close_secondary()
        if self._primary is not None or self._secondary is not None:
            return
        directories.check(self._path)
        self._identify()
        logs = tempfile.mkdtemp(prefix="polaris-spark-")
        try:
            self._secondary = self._opened(
                lambda: Rdict(self._path, secondary_options(), access_type=AccessType.secondary(logs))
            )
        finally:
            shutil.rmtree(logs, ignore_errors=True)  # nothing reads this info log

    def _opened(self, function: Callable[[], Rdict]) -> Rdict:
        global used
        used = True
        try:
            return function()
        except Exception as error:
            raise failures.explained(self._where, error) from error

    def _refuse_locked(self) -> None:
        """Check that the store has no writer. This must be done before the database is opened, because opening would
        rename the writer's info log. If this process itself is the writer, the lock file is not opened, because closing
        it would release the lock.

        Raises:
            StateError: another process is the writer; or this process is the writer through another handle, which
                opened the database under another path, or before the store was replaced.
        """
        try:
            if open_files.is_held(os.stat(f"{self._path}/LOCK")):
                raise failures.replaced(self._where)
            with open(f"{self._path}/LOCK", "r+b") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return
        except BlockingIOError:
            raise failures.written_elsewhere(self._where) from None
        except OSError as error:
            raise failures.explained(self._where, error) from error

    def _end(self) -> None:
        self.ended = True
        self._close_all()

    def _close_all(self) -> None:
        self._failed = True  # so that closing is repeated if it is interrupted
        if self._primary is not None:
            with contextlib.suppress(Exception):  # unflushed data is in the log, which the next writer reads
                self._primary.close()
            self._primary = None
        if self._lock is not None:
            open_files.release(self._lock)
            self._lock = None
        self._unsynced.clear()
        self._close_secondary()
        self._failed = False

    def _close_secondary(self) -> None:
        if self._secondary is not None:
            with contextlib.suppress(Exception):  # a secondary holds no unsaved data
                self._secondary.close()
        self._secondary, self._looks = None, 0


used = False
"""Whether this process, or a process from which it was forked, has ever opened a database."""
