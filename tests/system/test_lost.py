"""The registry distinguishes a lost row from a row that was never written. Only `recover` restores a lost row."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

import pytest

from polaris_spark.backends.base import Conflict, ObjectRow, ReferenceRow, Swapped
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.clock import ManualClock
from polaris_spark.errors import CorruptionError
from polaris_spark.system.lost_rows import commits_of_missing, refuse_lost
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
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
    with pytest.raises(
        CorruptionError, match=f"began at commit 0, .* up to number {commits} .*run polaris-spark recover"
    ):
        opened.commit(MAIN, Add("n"))
    recover(history.backend, history.clock)
    assert number(process(history.backend, history.clock).open(MAIN), "n") == commits


@pytest.mark.parametrize("lost", [MAIN, DEV])
def test_where_branches_forked_either_s_row_is_missed(lost: str) -> None:
    history = History()
    history.create(MAIN)
    history.add(MAIN)
    history.create(DEV, MAIN)
    for name in (DEV, MAIN, DEV, MAIN, DEV, MAIN):
        history.add(name)
    lose_row(history.backend, lost)
    with pytest.raises(CorruptionError, match="up to number 4"):
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
def test_a_reference_of_a_dead_creator_is_completed_after_any_other_changes(source: str | None) -> None:
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


class Foreseeing(Ending):
    """A store without transactions. Its process writes the rows of two commits, and ends before the first swap."""

    def __init__(self, inner: MemoryBackend) -> None:
        super().__init__(inner, 0, lost_answer=False)
        self.writes = 0

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        super().write_objects(realm, rows)
        self.writes += 1

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        if name.partition("@")[0] != MAIN:
            return super().swap_reference(realm, name, expected_version, new)
        wait_until(lambda: self.writes > 1, "the next commit is written")
        raise Died


def test_commits_on_top_of_a_failed_commit_belong_to_no_history() -> None:
    history = History()
    history.create(MAIN)
    history.add(MAIN)
    dies_before_the_row(history, DEV, MAIN)
    backend = Foreseeing(history.backend)
    late = process(backend, history.clock)
    late.ids.next_id()
    late.read(MAIN)
    backend.writes = 0

    def commit() -> None:
        with suppress(Died):
            late.commit(MAIN, Add("n"))

    first, second = (threading.Thread(target=commit, daemon=True) for _ in range(2))
    first.start()
    wait_until(lambda: backend.writes, "the first commit is written")
    second.start()
    for thread in (first, second):
        thread.join(PATIENCE_S)
    registered = history.references.lookup(DEV)
    assert registered is not None
    assert {one.number for one in commits_of_missing(history.references.store, registered)} == {2, 3}
    assert process(history.backend, history.clock).commit(DEV, Add("n")) == 2


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
