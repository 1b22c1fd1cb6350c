"""Threads that write at the same time share a sync of the log. No thread returns before the sync is done."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import pytest

from polaris_spark.backends.rocksdb.syncs import Syncs
from polaris_spark.testing.waiting import PATIENCE_S


def test_a_sync_serves_all_writes_that_ended_before_it_began() -> None:
    begun, go_on, count = threading.Event(), threading.Event(), [0]

    def sync() -> None:
        count[0] += 1
        begun.set()
        assert go_on.wait(60)

    syncs = Syncs(sync)
    syncs.wrote(1)
    first = threading.Thread(target=syncs.wait, args=(1,))
    first.start()
    assert begun.wait(60)
    late = []
    for number in range(2, 10):  # they end while the first sync is running, so it says nothing of them
        syncs.wrote(number)
        late.append(threading.Thread(target=syncs.wait, args=(number,)))
        late[-1].start()
    go_on.set()
    for thread in (first, *late):
        thread.join(60)
        assert not thread.is_alive()
    assert count[0] == 2
    syncs.wait(9)
    assert count[0] == 2


def test_after_a_failure_no_write_is_ever_said_to_be_synced() -> None:
    outcomes: list[Exception | None] = [OSError("the disk is gone"), None]

    def sync() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    syncs = Syncs(sync)
    syncs.wrote(1)
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            syncs.wait(1)
    assert outcomes == [None]


def test_an_interrupted_sync_is_repeated() -> None:
    outcomes: list[BaseException | None] = [KeyboardInterrupt(), None]

    def sync() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    syncs = Syncs(sync)
    syncs.wrote(1)
    with pytest.raises(KeyboardInterrupt):
        syncs.wait(1)
    syncs.wait(1)
    assert outcomes == []


def test_an_interrupt_while_other_threads_learn_of_a_sync_leaves_no_write_waiting() -> None:
    owned, owner_ends = threading.Event(), threading.Event()

    def own() -> None:
        with syncs._lock:
            owned.set()
            assert owner_ends.wait(PATIENCE_S)

    def sync() -> None:  # when it ends, its thread has to wait for the lock
        if not owner.ident:
            owner.start()
            assert owned.wait(PATIENCE_S)
            signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)

    def interrupt(_: int, frame: FrameType | None) -> None:
        if frame is None or frame.f_code is not Syncs.wait.__code__:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

    syncs, owner = Syncs(sync), threading.Thread(target=own)
    syncs.wrote(1)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            syncs.wait(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        owner_ends.set()
        owner.join()
    syncs.wrote(2)
    later = threading.Thread(target=syncs.wait, args=(2,), daemon=True)
    later.start()
    later.join(PATIENCE_S)
    assert not later.is_alive()
