"""The sessions of one process with one database server: few, opened as they are needed, and found out when they died.

Pools of drivers open connections in threads of their own, where a wrong password is logged rather than told to the
caller, learn that a connection died by losing what was asked of it or by a question to the server each time, and do not
live in a forked child. Here the caller connects, and whether a server closed an idle connection is seen in its socket
(1 us), so that a restart costs nobody an error.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from polaris_spark.backends.places import NoPlaceError, Places
from polaris_spark.errors import OutcomeUnknownError, PolarisError, StateError, TryAgainError


class RefusedError(Exception):
    """The server refused a statement and undid its transaction; `code` is the database's own name of the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class LostError(Exception):
    """The connection ended, or the deadline passed, while a statement was under way."""


class Session(Protocol):
    """One connection, for one thread at a time. Its methods raise `RefusedError` and `LostError`."""

    @property
    def usable(self) -> bool:
        """Whether another statement may be run; false after a loss."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the server did not end the session while it lay idle."""
        ...

    def close(self) -> None:
        """Close the connection, whatever is going on."""
        ...


S = TypeVar("S", bound=Session)
T = TypeVar("T")


class Sessions(ABC, Generic[S]):
    """Runs functions on sessions with one server. Thread-safe; a forked child opens its own."""

    def __init__(self, where: str, timeout: int, pool: int) -> None:
        """
        Args:
            where: the store's URI, without password, as errors show it.
            timeout: how long an operation waits for a session, milliseconds.
            pool: most sessions at a time.
        """
        self._where, self._timeout, self._pool = where, timeout, pool
        self._closed = False
        self._checked = False  # whether a session found the tables to be a store's
        self._inherited: list[object] = []
        self._begin()
        _all.add(self)

    @abstractmethod
    def opened(self) -> S:
        """A new session.

        Raises:
            StoreURIError: there is no store, or no access to it.
            TryAgainError: the server cannot be reached.
        """

    @abstractmethod
    def make(self) -> None:
        """Create the tables where they are missing, and check them; raises as `create`."""

    @abstractmethod
    def refused(self, error: RefusedError) -> PolarisError:
        """What is raised for a refusal."""

    def create(self) -> None:
        """Create the store where it is missing.

        Raises:
            NewerFormatError: a newer release made its tables.
            StoreURIError: they are another program's, or the user may not create them.
        """
        self._checked = True  # by what follows
        try:
            self.make()
        except BaseException:
            self._checked = False
            self.forget()  # which were not checked either
            raise

    def _begin(self) -> None:
        self._places = Places(self._pool, self._timeout)
        self._idle: deque[S] = deque()

    def begin_in_child(self) -> None:
        """Begin anew after a fork: the parent's connections are kept, unused, so that nothing closes them here."""
        self._inherited.append(self._idle)
        self._begin()

    def read(self, work: Callable[[S], T]) -> T:
        """What `work` gives, which changes nothing; run once more if its connection is lost.

        Raises:
            TryAgainError: there is no connection, or it was lost again.
            PolarisError: as `refused` says.
        """
        return self._repeatable(work, TryAgainError)

    def write(self, work: Callable[[S], T]) -> T:
        """What `work` gives, which may be repeated without harm; run once more if its connection is lost.

        Raises:
            OutcomeUnknownError: the connection was lost again.
            TryAgainError: the server refused, or there is no connection.
            PolarisError: as `refused` says.
        """
        return self._repeatable(work, OutcomeUnknownError)

    def change(self, work: Callable[[S], T]) -> T:
        """What `work` gives, run once.

        Raises:
            OutcomeUnknownError: the connection was lost while it ran.
            TryAgainError: it was not done: the server refused, or there is no connection.
            PolarisError: as `refused` says.
        """
        try:
            return self._lend(work)
        except LostError as error:
            raise self._lost(error, OutcomeUnknownError) from error

    def close(self) -> None:
        """Close all sessions; those in use when their operation ends. Later calls raise `StateError`."""
        self._closed = True
        self.forget()

    def forget(self) -> None:
        """Close the sessions that lie idle; what comes next opens new ones."""
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
        """What `work` gives, once there is a place for it."""
        if self._closed:
            raise StateError(f"the store {self._where} is closed")
        try:
            return self._places.run(self._work, work, self._idle)
        except NoPlaceError:
            raise TryAgainError(
                f"{self._where}: all {self._pool} connections were in use for {self._timeout} ms; nothing was changed "
                "(option 'pool')"
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
        outcome = (
            "nothing was read" if doubt is TryAgainError else "what was sent may or may not have been done"
        )
        return doubt(f"the connection to {self._where} was lost ({error}); {outcome}")


_all: Final[weakref.WeakSet[Sessions]] = weakref.WeakSet()  # type: ignore[type-arg]  # of any kind of session


def _begin_in_child() -> None:
    for each in list(_all):
        each.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
