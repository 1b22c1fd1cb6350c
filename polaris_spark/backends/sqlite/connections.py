"""Connections to one SQLite file: a pool of connections that read, one connection that writes, and retries while
another process writes."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from polaris_spark.backends import Options, open_files
from polaris_spark.backends.base import Conflict, Swapped
from polaris_spark.backends.open_files import Identity, identity
from polaris_spark.backends.sqlite import files
from polaris_spark.backends.sqlite.forks import PATIENCE_S, Forkable, forking
from polaris_spark.backends.store_options import Given
from polaris_spark.backends.turnstile import Turnstile
from polaris_spark.clock import Clock
from polaris_spark.errors import OutcomeUnknownError, StateError, TryAgainError

T = TypeVar("T")

_POOL: Final = 8
_CACHE_KIB: Final = 16_384
_LONGEST_SLEEP_MS: Final = 4.0
_PATIENCE_MS: Final = 250.0
_REPLACED: Final = (
    "was removed or replaced while this process had it open (its file, or the log beside the file): end this process, "
    "restore the files if they were removed by mistake, then start the process again"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of a SQLite store: SQLite's `synchronous`, and the maximum wait for the write lock, in milliseconds."""

    synchronous: str = "full"
    timeout: int = 30_000

    @classmethod
    def parse(cls, options: Options) -> Settings:
        """Return the settings from the options of a store URI.

        Raises:
            StoreURIError: an option or its value is unknown.
        """
        given = Given("sqlite", options, ("synchronous", "timeout"))
        synchronous = given.one_of("synchronous", ("full", "normal", "off"))
        return cls(synchronous or "full", given.duration_ms("timeout", "30 s"))


class Connections(Forkable):
    """Runs functions on connections to one file. Thread-safe; a forked child opens its own connections."""

    def __init__(self, path: str, settings: Settings, clock: Clock) -> None:
        super().__init__()
        self._path, self._settings, self._clock = path, settings, clock
        self._refusal = ""
        self._file: Identity | None = None
        """The file that this process opened first. If another file is at the path later, it is another store."""
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._turnstile = Turnstile(forking)  # type: ignore[arg-type]  # it has the methods that `Turnstile` uses
        self._quiet = False
        self._writing = threading.RLock()  # an RLock, because only its owner can release it
        self._writer: files.Connection | None = None
        self._readers: deque[files.Connection] = deque()

    def read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Call `function` with a connection outside any transaction, and return its result. Each statement sees the
        newest state.

        Raises:
            StateError: the file or its log was removed or replaced. This may not be detected if it happened in the
                last `files.LOOK_AGAIN_S` seconds.
        """
        return self._turnstile.run(self._lend_reader, function)

    def write(self, function: Callable[[sqlite3.Connection], Swapped | Conflict]) -> Swapped | Conflict:
        """Call `function` in a write transaction, and return its result. If the result is `Swapped`, the
        transaction is committed, otherwise it is rolled back.

        Raises:
            TryAgainError: the write lock was not free before the time-out, or the disk is full; nothing was written.
            StateError: the file or its log was removed or replaced; nothing was written.
            OutcomeUnknownError: the commit failed, or was made in files that had been removed or replaced.
        """
        return self._turnstile.run(self._lend_writer, function)

    def create(self) -> None:
        """Create the file (mode 0600) and its tables if they are missing.

        Raises:
            StoreURIError: the file cannot be created, is not a database, or is a database of another program.
            NewerFormatError: a newer release made the store.
        """
        self._turnstile.run(self._create, self._path)

    def close(self) -> None:
        """Close all connections. Connections in use are closed when their operation ends."""
        self._refusal = self._refusal or "is closed"
        if self._process == os.getpid():
            with self._writing:
                self._close_all()

    def before_fork(self) -> None:
        self._quiet = False
        if self._turnstile.ended(PATIENCE_S):
            self._close_all()
            self._quiet = True

    def after_fork_in_child(self) -> None:
        if not self._quiet or self._writer is not None or self._readers:
            self._inherited = (self._writer, self._readers)  # kept, so that they are not closed here
            self._refusal = "was in use when this process was forked from its parent; use a new process"
        self._begin()

    def _close_all(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        while (connection := self._reader()) is not None:
            connection.close()

    def _replaced(self) -> StateError:
        """Make all later operations fail, and return the error to raise. For use when the open files are no longer the
        files at the store's path, because they were removed or replaced. If SQLite went on, it could mix the open files
        with new ones."""
        self._refusal = _REPLACED
        return self._unusable()

    def _unusable(self) -> StateError:
        return StateError(f"the store sqlite://{self._path} {self._refusal}")

    def _refuse_if_unusable(self) -> None:
        if not self._refusal and self._process != os.getpid():
            self._refusal = (
                "was open when this process was forked without Python's fork hooks; use a new process"
            )
        if self._refusal:
            raise self._unusable()

    def _lend_reader(self, function: Callable[[sqlite3.Connection], T]) -> T:
        self._refuse_if_unusable()
        connection = self._reader() or self._opened()
        mine = True
        try:
            found = self._read(connection, function)
            if len(self._readers) < _POOL and not self._refusal:
                # No interrupt can come between this and `append`. After `append`, other threads may use the connection.
                mine = False
                self._readers.append(connection)
            else:
                connection.close()
            return found
        except BaseException:  # after a failure or interrupt, the connection may keep an old snapshot
            if mine:
                connection.close()
            raise

    def _lend_writer(
        self, function: Callable[[sqlite3.Connection], Swapped | Conflict]
    ) -> Swapped | Conflict:
        self._refuse_if_unusable()
        try:
            if not self._writing.acquire(timeout=self._settings.timeout / 1_000):
                raise self._no_turn()
            try:
                self._refuse_if_unusable()
                if self._writer is None:
                    self._writer = self._opened()
                return self._transaction(self._writer, function)
            finally:
                if self._writer is not None and self._writer.in_transaction:  # it was interrupted
                    files.undo(self._writer)
        finally:
            try:  # noqa: SIM105  # entering `suppress` could be interrupted too
                self._writing.release()
            except RuntimeError:  # it was not acquired, because of the time-out or an interrupt
                pass

    def _create(self, path: str) -> None:
        self._refuse_if_unusable()
        files.create(path)
        self._quiet = False
        with open_files.opening(*files.all_paths(path)):
            connection = files.connect(path)
            try:
                self._patiently(lambda: files.create_tables(connection, path))
            finally:
                connection.close()

    def _reader(self) -> files.Connection | None:
        try:
            return self._readers.pop()
        except IndexError:
            return None

    def _read(self, connection: files.Connection, function: Callable[[sqlite3.Connection], T]) -> T:
        try:
            found = function(connection)
        except sqlite3.Error as error:
            if not files.busy(error):
                raise files.explained(self._path, error) from error
            found = self._patiently(lambda: function(connection))
        if not connection.was_current():
            raise self._replaced()
        return found

    def _transaction(
        self, connection: files.Connection, function: Callable[[sqlite3.Connection], Swapped | Conflict]
    ) -> Swapped | Conflict:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if not files.busy(error):
                raise files.explained(self._path, error) from error
            self._patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        try:
            if not connection.was_current():
                raise self._replaced()
            outcome = function(connection)
        except BaseException as error:
            files.undo(connection)
            if isinstance(error, sqlite3.Error):
                raise files.explained(self._path, error) from error
            raise
        if isinstance(outcome, Conflict):
            files.undo(connection)
            if not connection.is_current():
                raise self._replaced()
            return outcome
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            files.undo(connection)
            if files.full(error):
                raise files.explained(self._path, error) from error
            raise OutcomeUnknownError(
                f"the commit to sqlite://{self._path} failed ({error}); the change may or may not have been made"
            ) from error
        if not connection.is_current():
            raise OutcomeUnknownError(f"{self._replaced()}; the last commit may be lost")
        return outcome

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` repeatedly while another connection holds the lock, and return its result. The pauses between
        the calls are short at first, then grow, and are short again after a long wait.

        Raises:
            TryAgainError: the lock was not free before the time-out.
            PolarisError: see `files.explained`.
        """
        start, longest = self._clock.monotonic_ms(), 0.1
        while True:
            try:
                return attempt()
            except sqlite3.Error as error:
                if not files.busy(error):
                    raise files.explained(self._path, error) from error
            waited = self._clock.monotonic_ms() - start
            if waited >= self._settings.timeout:
                raise self._no_turn()
            longest = min(longest * 2, _LONGEST_SLEEP_MS) if waited < _PATIENCE_MS else 0.5
            self._clock.sleep_ms(random.uniform(0.05, longest))

    def _no_turn(self) -> TryAgainError:
        return TryAgainError(
            f"sqlite://{self._path} was locked by other operations for {self._settings.timeout} ms; nothing was "
            "changed; try again"
        )

    def _opened(self) -> files.Connection:
        self._quiet = False
        before = identity(self._path)
        if self._file not in (None, before):
            raise self._replaced()
        with open_files.opening(*files.all_paths(self._path)):
            connection = files.connect(self._path)
            try:
                self._patiently(lambda: self._prepare(connection))
                if not connection.identify(self._path, before):
                    raise self._replaced()
                self._file = connection.file
            except BaseException:
                connection.close()
                raise
        return connection

    def _prepare(self, connection: files.Connection) -> None:
        files.check_tables(connection, self._path)
        connection.execute(f"PRAGMA synchronous = {self._settings.synchronous}")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute("PRAGMA temp_store = MEMORY")
