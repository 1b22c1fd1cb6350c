"""The connections of one process to one database: few, opened as they are needed, and found out when they died.

psycopg_pool costs as little per use (3 us), but opens connections in threads of its own, where a wrong password is
logged rather than told to the caller, learns that a connection died by losing what was asked of it or by a question to
the server each time, and its threads do not live in a forked child. Here the caller connects, and whether a server
closed an idle connection is seen in its socket (1 us), so that a restart costs nobody an error.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import psycopg

from polaris_spark.backends.postgresql import failures, tables
from polaris_spark.backends.postgresql.session import Session
from polaris_spark.backends.postgresql.settings import Settings
from polaris_spark.errors import OutcomeUnknownError, PolarisError, StateError, TryAgainError

T = TypeVar("T")


class Connections:
    """Runs functions on connections to one database. Thread-safe; a forked child opens its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._closed = False
        self._inherited: list[object] = []
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._free = threading.Semaphore(self.settings.pool)
        self._idle: deque[Session] = deque()
        self._checked = False

    def begin_in_child(self) -> None:
        """Begin anew after a fork: the parent's connections are kept, unused, so that nothing closes them here."""
        self._inherited.append(self._idle)
        self._begin()

    def read(self, work: Callable[[Session], T]) -> T:
        """What `work` gives, which changes nothing; run once more if its connection is lost.

        Raises:
            TryAgainError: there is no connection, or it was lost again.
            StoreURIError, StateError, CorruptionError: as `failures` says.
        """
        return self._repeatable(work, TryAgainError)

    def write(self, work: Callable[[Session], T]) -> T:
        """What `work` gives, which may be repeated without harm; run once more if its connection is lost.

        Raises:
            OutcomeUnknownError: the connection was lost again.
            TryAgainError: the server refused, or there is no connection.
            StoreURIError, StateError, CorruptionError: as `failures` says.
        """
        return self._repeatable(work, OutcomeUnknownError)

    def change(self, work: Callable[[Session], T]) -> T:
        """What `work` gives, run once.

        Raises:
            OutcomeUnknownError: the connection was lost while it ran.
            TryAgainError: it was not done: the server refused, or there is no connection.
            StoreURIError, StateError, CorruptionError: as `failures` says.
        """
        with self._lent() as session:
            try:
                return work(session)
            except failures.LostError as error:
                raise self._lost(error, OutcomeUnknownError) from error

    def create(self) -> None:
        """Create the schema and the tables where they are missing.

        Raises:
            NewerFormatError: a newer release made them.
            StoreURIError: they are another program's, or the user may not create them.
        """
        self._checked = True  # by what follows
        self.write(lambda session: tables.create(session, self.settings.where, self.settings.schema))

    def close(self) -> None:
        """Close all connections; those in use when their operation ends. Later calls raise `StateError`."""
        self._closed = True
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread took it
                self._idle.pop().close()

    def _repeatable(self, work: Callable[[Session], T], doubt: type[PolarisError]) -> T:
        try:
            with self._lent() as session:
                return work(session)
        except failures.LostError as error:
            first = error
        try:
            with self._lent() as session:
                return work(session)
        except (failures.LostError, TryAgainError) as error:
            raise self._lost(first, doubt) from error

    @contextlib.contextmanager
    def _lent(self) -> Iterator[Session]:
        self._refuse_if_closed()
        free, idle = self._free, self._idle
        if not free.acquire(timeout=self.settings.timeout / 1_000):
            raise TryAgainError(
                f"{self.settings.where}: all {self.settings.pool} connections were in use for "
                f"{self.settings.timeout} ms; nothing was changed (option 'pool')"
            )
        session = None
        try:
            session = self._usable_idle() or self._opened()
            yield session
        except failures.RefusedError as error:
            raise failures.refused(self.settings.where, error) from error
        finally:
            if session is not None:
                if session.usable and not self._closed:
                    idle.append(session)
                else:
                    session.close()
            free.release()
            if self._closed:
                self.close()

    def _usable_idle(self) -> Session | None:
        while True:
            try:
                session = self._idle.pop()
            except IndexError:
                return None
            if session.alive:
                return session
            session.close()

    def _opened(self) -> Session:
        settings = self.settings
        password = None if settings.password is None else settings.password.reveal()
        try:
            connection = psycopg.connect(settings.connection, autocommit=True, password=password)
        except psycopg.Error as error:
            raise failures.connecting(settings.where, str(error)) from None
        session = Session(connection, settings.timeout / 1_000)
        try:
            tables.begin(session, settings.session)
            if not self._checked:
                tables.check(session, settings.where, settings.schema)
                self._checked = True
        except failures.LostError as error:
            session.close()
            raise TryAgainError(
                f"{settings.where} cannot be reached: {error}; nothing was changed"
            ) from error
        except BaseException:
            session.close()
            raise
        return session

    def _lost(self, error: failures.LostError, doubt: type[PolarisError]) -> PolarisError:
        outcome = (
            "nothing was read" if doubt is TryAgainError else "what was sent may or may not have been done"
        )
        return doubt(f"the connection to {self.settings.where} was lost ({error}); {outcome}")

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StateError(f"the store {self.settings.where} is closed")


_all: Final[weakref.WeakSet[Connections]] = weakref.WeakSet()


def _begin_in_child() -> None:
    for each in list(_all):
        each.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
