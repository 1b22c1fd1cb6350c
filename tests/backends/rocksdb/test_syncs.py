"""Threads that write at the same time share a sync of the log, and nobody goes on before it is done."""

from __future__ import annotations

import threading

import pytest

from polaris_spark.backends.rocksdb.syncs import Syncs


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
