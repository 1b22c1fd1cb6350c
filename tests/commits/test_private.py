"""Commits to a reference that only this process has: in memory, one after the other."""

from __future__ import annotations

import gc
import uuid
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from polaris_spark.clock import ManualClock
from polaris_spark.commits.applier import TURN_MS
from polaris_spark.commits.change import Operation, PrepareAgain, new_operation_id
from polaris_spark.commits.committer import APART_SIZE
from polaris_spark.commits.log import entries
from polaris_spark.commits.private import PrivateCommitter
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError, CommitFailedError, TryAgainError
from polaris_spark.index import Entry
from polaris_spark.store.cache import ObjectCache
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store.unwritten import UnwrittenObjects
from tests.rest.client import at_once

from .support import Add, Box, references

STEP_MS = 50.0
DEADLINE_MS = 60_000.0


class Files:
    """Keeps files in memory, or refuses them."""

    def __init__(self) -> None:
        self.written: list[tuple[str, bytes]] = []
        self.full = False

    def write_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        if self.full:
            raise TryAgainError("the disk is full")
        self.written += files


class WithFile(Add):
    def apply(self, state: State, prepared: object) -> int:
        state.write_file("/file", b"content")
        return super().apply(state, prepared)


class Long(Add):
    """A change that takes some steps of `STEP_MS`."""

    def __init__(self, clock: ManualClock, steps: int, *, large: bool = False) -> None:
        super().__init__("a")
        self._clock, self._steps = clock, steps
        self.size = APART_SIZE + 1 if large else 1

    def apply(self, state: State, prepared: object) -> int:
        for _ in range(self._steps):
            self._clock.advance(STEP_MS)
            state.check_time()
        return super().apply(state, prepared)


class Unready(Add):
    """A change that must be prepared three times."""

    prepared = 0

    def prepare(self, view: State) -> object:
        self.prepared += 1
        return None

    def apply(self, state: State, prepared: object) -> int:
        if self.prepared < 3:
            raise PrepareAgain
        return super().apply(state, prepared)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def backend() -> Backend:
    return open_backend(f"memory:{uuid.uuid4()}")


@pytest.fixture
def private(backend: Backend, clock: ManualClock, files: Files) -> PrivateCommitter:
    """A private reference that begins at a commit of a stored one, where `a` holds 1."""
    opened = references(backend, clock=clock, deadline_ms=DEADLINE_MS)
    opened.root.commit(Add("a"))
    begin = opened.root.read()
    return opened.open_private("copy", UnwrittenObjects(begin.store), begin, files)


def number(private: PrivateCommitter, name: str = "a") -> int:
    found = private.read().index("names").get(name.encode())
    return private.store.get(found.pointer, Box).number if found else 0


def test_changes_of_many_threads_are_all_made(private: PrivateCommitter) -> None:
    begun = private.read()

    def add(name: str) -> None:
        for _ in range(25):
            private.commit(Add("a"))
            private.commit(Add(name))

    at_once([partial(add, f"n{thread}") for thread in range(8)])
    assert (number(private), [number(private, f"n{thread}") for thread in range(8)]) == (201, [25] * 8)
    head = private.read().head
    assert head.number == begun.head.number + 400
    assert len(list(entries(private.store, head))) == 401


def test_nothing_is_written_until_another_process_must_read_it(
    private: PrivateCommitter, backend: Backend
) -> None:
    private.commit(Add("a"))
    head = private.read().head
    other = ObjectStore(backend, "r", ObjectCache(), store_key="other")
    rows = [len(batch) for split in backend.splits("objects", None, 1) for batch in backend.scan(split)]
    private.store.write_own(0)
    added = [len(batch) for split in backend.splits("objects", None, 1) for batch in backend.scan(split)]
    assert sum(added) > sum(rows)
    assert [entry.before for *_, entry in entries(other, head)][-1] == 0
    private.commit(Add("a", 5))
    private.store.write_own(0)
    [newest, *_] = [entry for *_, entry in entries(other, private.read().head)]
    assert other.get(newest.after, Box) == Box(7)


def test_a_failed_change_has_no_effect(private: PrivateCommitter) -> None:
    head = private.read()
    with pytest.raises(CommitFailedError):
        private.commit(Add("a", expect=9))
    assert private.read() is head
    assert private.commit(Add("a")) == 2


def test_a_repeated_operation_is_carried_out_once(private: PrivateCommitter, clock: ManualClock) -> None:
    operation = Operation(new_operation_id(int(clock.now_ms())), "tester")
    for _ in range(2):
        assert private.commit(Add("a", expect=1, operation=operation)) == 2
    assert number(private) == 2


@pytest.mark.parametrize("large", [False, True])
def test_a_change_may_take_longer_than_in_a_batch_but_not_longer_than_its_deadline(
    private: PrivateCommitter, clock: ManualClock, large: bool
) -> None:
    assert private.commit(Long(clock, int(2 * TURN_MS / STEP_MS), large=large)) == 2
    with pytest.raises(TryAgainError):
        private.commit(Long(clock, int(DEADLINE_MS / STEP_MS) + 1, large=large))
    assert number(private) == 2


def test_a_change_is_prepared_again_if_it_asks_for_that(private: PrivateCommitter) -> None:
    change = Unready("a")
    assert private.commit(change) == 2
    assert change.prepared == 3


def test_a_change_whose_files_cannot_be_written_has_no_effect(
    private: PrivateCommitter, files: Files
) -> None:
    files.full = True
    with pytest.raises(TryAgainError, match="disk is full"):
        private.commit(WithFile("a"))
    assert number(private) == 1
    files.full = False
    assert private.commit(WithFile("a")) == 2
    assert files.written == [("/file", b"content")]


def test_a_closed_reference_refuses_changes_until_it_is_open_again(private: PrivateCommitter) -> None:
    private.close("it is being merged")
    with pytest.raises(BadRequestError, match="being merged"):
        private.commit(Add("a"))
    assert number(private) == 1
    private.reopen()
    assert private.commit(Add("a")) == 2


class Joining(Add):
    """A change that is made together with others, because it prepares nothing."""

    reads_to_prepare = False


class JoiningWithFile(WithFile):
    reads_to_prepare = False


class Interrupted(Joining):
    """A change during which the user interrupts the program."""

    def apply(self, state: State, prepared: object) -> int:
        super().apply(state, prepared)
        raise KeyboardInterrupt


def test_changes_that_nothing_reads_between_become_one_commit(private: PrivateCommitter) -> None:
    begun = private.read().head.number
    assert [private.commit(Joining("a")) for _ in range(3)] == [2, 3, 4]
    head = private.read().head
    assert (head.number, number(private)) == (begun + 1, 4)
    logged = [private.store.get(entry.after, Box).number for *_, entry in entries(private.store, head)]
    assert logged == [4, 3, 2, 1]
    private.commit(Joining("a"))
    private.commit(Add("a"))  # reads the state to prepare, so it does not join
    assert (private.read().head.number, number(private)) == (begun + 3, 6)


@pytest.mark.parametrize("earlier", [0, 2])
def test_a_change_that_fails_leaves_the_changes_before_it(
    private: PrivateCommitter, files: Files, clock: ManualClock, earlier: int
) -> None:
    operation = Operation(new_operation_id(int(clock.now_ms())), "tester")
    for _ in range(earlier):
        private.commit(Joining("a", operation=operation))  # the second time is a repetition
    with pytest.raises(CommitFailedError):
        private.commit(Joining("a", expect=9))
    with pytest.raises(KeyboardInterrupt):
        private.commit(Interrupted("a"))
    files.full = True
    with pytest.raises(TryAgainError, match="disk is full"):
        private.commit(JoiningWithFile("b"))
    for _ in range(earlier):
        assert private.commit(Joining("a", operation=operation)) == 2
    assert private.commit(Joining("c")) == 1
    found = [number(private, name) for name in "abc"]
    assert found == [1 + min(earlier, 1), 0, 1]
    assert len(list(entries(private.store, private.read().head))) == 2 + min(earlier, 1)


class Many(Add):
    """A change of this many names, which lie far apart in the index."""

    def __init__(self, count: int) -> None:
        super().__init__("many")
        self._count = count

    def apply(self, state: State, prepared: object) -> int:
        for number in range(self._count):
            state.put("names", bytes([number * 256 // self._count]) + b"%d" % number, Entry(0, b"value"))
        return super().apply(state, prepared)


class Last(Add):
    """A change after which the database fails."""

    def __init__(self, backend: Backend, *, joins: bool) -> None:
        super().__init__("new")
        self.reads_to_prepare = not joins
        self._backend = backend

    def apply(self, state: State, prepared: object) -> int:
        made = super().apply(state, prepared)
        self._backend.read_objects = _fail  # type: ignore[method-assign]
        return made


def _fail(*args: object) -> NoReturn:
    raise TryAgainError("the database failed")


@pytest.mark.parametrize("joins", [False, True])
def test_a_change_is_made_exactly_if_it_has_a_result(
    backend: Backend, clock: ManualClock, files: Files, joins: bool
) -> None:
    stored = references(backend, clock=clock)
    stored.root.commit(Many(3_000))
    stored.root.commit(Many(10))
    opened = references(backend, clock=clock, default_quota=100)
    begin = opened.root.read()
    private = opened.open_private("copy", UnwrittenObjects(begin.store), begin, files)
    read = backend.read_objects
    if joins:
        assert private.commit(Last(backend, joins=True)) == 1
        with pytest.raises(TryAgainError):
            private.read()
    else:
        with pytest.raises(TryAgainError):
            private.commit(Last(backend, joins=False))
    backend.read_objects = read  # type: ignore[method-assign]
    assert number(private, "new") == joins


def test_a_second_interrupt_leaves_nothing_of_a_change_either(
    private: PrivateCommitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    private.commit(Joining("a"))

    def interrupted(*args: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(State, "redo", interrupted)
    with pytest.raises(KeyboardInterrupt):
        private.commit(Interrupted("a"))
    with suppress(KeyboardInterrupt):
        private.read()
    assert number(private) == 2
    assert len(list(entries(private.store, private.read().head))) == 2


def test_changes_that_were_made_or_refused_are_not_kept_in_memory(private: PrivateCommitter) -> None:
    changes = [Joining("a"), *(Joining("a", expect=9) for _ in range(3))]
    for change in changes:
        with suppress(CommitFailedError):
            private.commit(change)
    kept = [weakref.ref(change) for change in changes]
    del change, changes
    gc.collect()
    assert [ref() for ref in kept] == [None] * 4
    assert number(private) == 2
