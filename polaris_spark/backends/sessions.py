"""A pool of sessions between one process and one database server. Sessions are opened on demand, and dead sessions are
detected before use.

The connection pools of drivers open connections in background threads, where a wrong password is logged and not raised
to the caller. They detect a dead connection only when a request fails, or with an extra round trip before each request.
They also do not work in a forked child. In this pool, the calling thread connects. Before an idle connection is used,
the pool checks the connection's socket (1 us), and drops the connection if the server has closed it. So a server
restart causes no errors on idle connections.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from polaris_spark.backends.concurrency import LimitReachedError, OperationLimit
from polaris_spark.errors import OutcomeUnknownError, PolarisError, StateError, TryAgainError
from polaris_spark.forks import begin_anew_in_children


class RefusedError(Exception):
    """The server refused a statement, and undid its changes. `code` is the database's error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class LostError(Exception):
    """The connection ended, or no answer came before the deadline, while a statement was running."""


class DatabaseSession(Protocol):
    """One connection, for one thread at a time. Its methods raise `RefusedError` and `LostError`."""

    @property
    def usable(self) -> bool:
        """Whether the session can run another statement; False after the connection was lost."""
        ...

    @property
    def alive(self) -> bool:
        """Whether an idle session can still be used; False if the server has ended it."""
        ...

    def close(self) -> None:
        """Close the connection, in any state."""
        ...


S = TypeVar("S", bound=DatabaseSession)
T = TypeVar("T")


class Sessions(ABC, Generic[S]):
    """Runs functions on sessions with one server. Thread-safe; a forked child opens its own sessions."""

    def __init__(self, where: str, timeout: int, pool: int) -> None:
        """
        Args:
            where: the store's URI for error messages, without password.
            timeout: maximum time that an operation waits for a session, in milliseconds.
            pool: maximum number of sessions at a time.
        """
        self._where, self._timeout, self._pool = where, timeout, pool
        self._closed = False
        self._checked = False  # whether the tables have been found to be those of a store
        self._inherited: list[object] = []
        self._begin()
        begin_anew_in_children(self)

    @abstractmethod
    def opened(self) -> S:
        """Open and return a new session.

        Raises:
            StoreURIError: there is no store, or the user has no access to it.
            TryAgainError: the server cannot be reached.
        """

    @abstractmethod
    def make(self) -> None:
        """Create the store's tables that are missing, and check the tables that exist.

        Raises:
            NewerFormatError: a newer release made the tables.
            StoreURIError: the tables belong to another program, or the user may not create tables.
        """

    @abstractmethod
    def refused(self, error: RefusedError) -> PolarisError:
        """Return the error to raise for a statement that the server refused."""

    def create(self) -> None:
        """Create the store if it is missing.

        Raises:
            NewerFormatError: a newer release made the tables.
            StoreURIError: the tables belong to another program, or the user may not create tables.
        """
        self._checked = True  # `make` checks the tables
        try:
            self.make()
        except BaseException:
            self._checked = False
            self.forget()  # other threads may have opened sessions meanwhile, without checking the tables
            raise

    def _begin(self) -> None:
        self._places = OperationLimit(self._pool, self._timeout)
        self._idle: deque[S] = deque()

    def begin_in_child(self) -> None:
        """Start without sessions in a forked child. The parent's idle sessions are kept in a list and not used, because
        garbage collection would close their connections, which the parent still uses."""
        self._inherited.append(self._idle)
        self._begin()

    def read(self, work: Callable[[S], T]) -> T:
        """Run `work`, which must only read, and return its result. If the connection is lost, run `work` once more.

        Raises:
            TryAgainError: no connection could be opened, or the connection was lost again.
            PolarisError: an error from `refused`.
        """
        return self._repeatable(work, TryAgainError)

    def write(self, work: Callable[[S], T]) -> T:
        """Run `work`, which must be idempotent, and return its result. If the connection is lost, run `work` once more.

        Raises:
            OutcomeUnknownError: the connection was lost, and the second attempt failed, too.
            TryAgainError: the server refused the statement, or no connection could be opened.
            PolarisError: an error from `refused`.
        """
        return self._repeatable(work, OutcomeUnknownError)

    def change(self, work: Callable[[S], T]) -> T:
        """Run `work` once, and return its result.

        Raises:
            OutcomeUnknownError: the connection was lost while `work` ran.
            TryAgainError: nothing was done: the server refused the statement, or no connection could be opened.
            PolarisError: an error from `refused`.
        """
        try:
            return self._lend(work)
        except LostError as error:
            raise self._lost(error, OutcomeUnknownError) from error

    def close(self) -> None:
        """Close all sessions. Sessions in use are closed when their operation ends. Later calls raise `StateError`."""
        self._closed = True
        self.forget()

    def forget(self) -> None:
        """Close the idle sessions. Later operations open new ones."""
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread took it
                self._idle.pop().close()

    def _repeatable(self, work: Callable[[S], T], doubt: type[PolarisError]) -> T:
        try:
            return self._lend(work)
        except LostError as error:
            first = error
        try:
            return self._lend(work)
        except (LostError, TryAgainError) as error:
            raise self._lost(first, doubt) from error

    def _lend(self, work: Callable[[S], T]) -> T:
        """Wait until a session is available, call `work` with the session, and return its result."""
        if self._closed:
            raise StateError(f"the store {self._where} is closed; open it again")
        try:
            return self._places.run(self._work, work, self._idle)
        except LimitReachedError:
            raise TryAgainError(
                f"{self._where}: all {self._pool} connections were in use for {self._timeout} ms; nothing was "
                "changed; try again later, or raise the option 'pool'"
            ) from None

    def _work(self, work: Callable[[S], T], idle: deque[S]) -> T:
        session = None
        try:
            session = self._usable_idle() or self.opened()
            return work(session)
        except RefusedError as error:
            raise self.refused(error) from error
        except Exception:
            raise
        except BaseException:  # an interrupt may have left a transaction open, or an answer unread
            if session is not None:
                session.close()
            raise
        finally:
            if session is not None:
                if session.usable and not self._closed:
                    idle.append(session)
                else:
                    session.close()
            if self._closed:
                self.close()

    def _usable_idle(self) -> S | None:
        while True:
            try:
                session = self._idle.pop()
            except IndexError:
                return None
            try:
                if session.alive:
                    return session
            except BaseException:
                session.close()
                raise
            session.close()

    def _lost(self, error: LostError, doubt: type[PolarisError]) -> PolarisError:
        outcome = "nothing was read" if doubt is TryAgainError else "the change may or may not have been made"
        return doubt(f"the connection to {self._where} was lost ({error}); {outcome}")
