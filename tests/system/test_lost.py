"""A row that was lost is told from one that was never written: the first comes back by `recover` alone."""

from __future__ import annotations

import pytest

from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.clock import ManualClock
from polaris_spark.errors import CorruptionError
from polaris_spark.system.recovery.lost import refuse_lost
from tests.commits.support import Add, number
from tests.system.losses import DEV, MAIN, ME, Died, Ending, History, process, recover, row_of


def lose_row(backend: MemoryBackend, name: str) -> None:
    del backend._tables.references["r"][row_of(backend, name)]


@pytest.mark.parametrize("commits", [1, 30])
def test_a_reference_whose_row_was_lost_is_not_opened_until_it_is_recovered(commits: int) -> None:
    history = History()
    history.create(MAIN)
    for _ in range(commits):
        history.add(MAIN)
    lose_row(history.backend, MAIN)
    opened = process(history.backend, history.clock)
    with pytest.raises(CorruptionError, match=f"after commit 0, .* up to commit {commits} .*: run recover"):
        opened.commit(MAIN, Add("n"))
    recover(history.backend, history.clock)
    assert number(process(history.backend, history.clock).open(MAIN), "n") == commits


@pytest.mark.parametrize("lost", [MAIN, DEV])
def test_where_branches_forked_either_s_row_is_missed(lost: str) -> None:
    history = History()
    history.create(MAIN)
    history.add(MAIN)
    history.create(DEV, MAIN)
    for name in (DEV, MAIN, DEV, MAIN):
        history.add(name)
    lose_row(history.backend, lost)
    with pytest.raises(CorruptionError, match="up to commit 3"):
        process(history.backend, history.clock).open(lost)


def dies_before_the_row(history: History, name: str, source: str | None) -> None:
    """Register a reference in a process that dies before it writes the row."""
    dying = process(history.backend, history.clock)

    def die(*_: object) -> None:
        raise Died

    vars(dying)["_insert"] = die
    with pytest.raises(Died):
        dying.create(name, ME, source=dying.read(source) if source else None)
    registered = history.references.lookup(name)
    assert registered is not None
    assert history.backend.read_reference("r", registered.row_name) is None


@pytest.mark.parametrize("source", [None, MAIN])
def test_what_a_dead_creator_registered_is_completed_whatever_others_did_since(source: str | None) -> None:
    history = History()
    history.create(MAIN)
    history.add(MAIN)
    dies_before_the_row(history, DEV, source)
    backend = Ending(history.backend, 0, lost_answer=False)
    late = process(backend, history.clock)
    late.ids.next_id()
    backend.left = 1
    with pytest.raises(Died):  # an attempt that leaves its commit behind
        late.commit(MAIN, Add("n"))
    for _ in range(25):
        history.add(MAIN)
    found = process(history.backend, history.clock)
    assert found.commit(DEV, Add("n")) == (2 if source else 1)


def test_a_creator_that_is_at_work_is_waited_for_without_reading_the_realm() -> None:
    history = History()
    history.create(MAIN)
    dies_before_the_row(history, DEV, MAIN)
    registered = history.references.lookup(DEV)
    assert registered is not None

    class Slow(ManualClock):
        def sleep_ms(self, duration: float) -> None:
            super().sleep_ms(duration)
            if self.monotonic_ms() > 100:
                history.references._insert(registered)

    store = history.references.store
    splits = store.backend.splits
    store.backend.splits = None  # type: ignore[method-assign, assignment]  # reading all would fail
    refuse_lost(store, registered, Slow())
    store.backend.splits = splits  # type: ignore[method-assign]
    assert number(process(history.backend, history.clock).open(DEV), "n") == 0
