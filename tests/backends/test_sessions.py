"""The pool of sessions does not lose a slot if Ctrl-C interrupts a thread at any point."""

from __future__ import annotations

import threading
import weakref

import pytest

from polaris_spark.backends.sessions import RefusedError, Sessions
from polaris_spark.errors import PolarisError, StateError, TryAgainError
from polaris_spark.testing.processes import in_threads
from polaris_spark.testing.waiting import PATIENCE_S
from tests.backends.interrupts import interruptions

_POOL = 2


class _Session:
    @property
    def alive(self) -> bool:
        return True

    def __init__(self) -> None:
        self.usable = True

    def close(self) -> None:
        self.usable = False


class _Sessions(Sessions[_Session]):
    """A pool for a server that is always available."""

    def __init__(self, where: str, timeout: int, pool: int) -> None:
        super().__init__(where, timeout, pool)
        self.all: weakref.WeakSet[_Session] = weakref.WeakSet()

    def opened(self) -> _Session:
        session = _Session()
        self.all.add(session)
        return session

    def make(self) -> None:
        """Do nothing: this pool needs no connection."""

    def refused(self, error: RefusedError) -> PolarisError:
        return StateError(str(error))


def test_an_operation_that_is_interrupted_anywhere_gives_its_place_back() -> None:
    sessions = _Sessions("server", 1_000 * PATIENCE_S, _POOL)
    hasty = threading.Barrier(_POOL, timeout=PATIENCE_S)
    kept = []
    for interrupt in interruptions(lambda: sessions.read(lambda session: len(str(session)))):
        kept.append(interrupt)
        in_threads(_POOL, lambda _: sessions.read(lambda _: hasty.wait()))
    assert len(kept) > 10


def test_an_operation_that_is_interrupted_anywhere_leaves_its_session_closed_or_idle() -> None:
    sessions = _Sessions("server", 1_000 * PATIENCE_S, _POOL)
    sessions.read(str)
    kept = []
    for interrupt in interruptions(lambda: sessions.read(repr)):
        kept.append(interrupt)
        assert all(session in sessions._idle for session in sessions.all if session.usable)
        sessions.read(str)
    assert len(kept) > 10


def test_a_waiting_thread_gets_a_free_slot_and_a_further_one_is_refused() -> None:
    sessions = _Sessions("server", 200, 1)

    def one_more(_: _Session) -> None:
        with pytest.raises(TryAgainError, match="all 1 connections were in use for 200 ms"):
            sessions.read(str)

    sessions.read(one_more)
    patient = _Sessions("server", 1_000 * PATIENCE_S, _POOL)
    used: list[int] = []

    def use(session: _Session) -> None:
        used.append(id(session))

    in_threads(16, lambda _: [patient.write(use) for _ in range(50)])
    assert len(used) == 800
