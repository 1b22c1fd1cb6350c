"""The commit protocol on one reference: each change takes effect once or not at all, with any kind of failure."""

from __future__ import annotations

import threading
import tracemalloc
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from benchmarks.traffic import counted
from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation, PrepareAgain, made_ms
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.log import entries
from polaris_spark.commits.rows import Head, LogEntry, Move
from polaris_spark.commits.state import State, StoredObjects
from polaris_spark.errors import (
    BadRequestError,
    CommitFailedError,
    NewerFormatError,
    OutcomeUnknownError,
    RealmMovedError,
    ReferenceGoneError,
    TryAgainError,
    UnprocessableError,
)
from polaris_spark.index import Entry
from polaris_spark.index.shards import Branch
from polaris_spark.testing.waiting import PATIENCE_S, wait_until

from .support import Add, Box, committer, number

KEY = ManualClock().now_ms().to_bytes(6, "big") + b"\x70" + b"\x01" * 9
"""An operation id made now, as UUIDv7 are: they begin with their milliseconds."""


def test_a_requirement_that_fails_on_an_old_head_is_judged_again_on_the_newest() -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    one, two = committer(backend), committer(backend)
    one.commit(Add("a"))
    two.commit(Add("a"))
    assert one.commit(Add("a", expect=2)) == 3


class Fill(Add):
    """Set the number to `amount`; change nothing if it is equal already."""

    def apply(self, state: State, prepared: object) -> int:
        found = state.lookup("names", self.name)
        if found is not None and state.get(found.pointer, Box).number == self.amount:
            return self.amount
        after = state.add(Box(self.amount))
        state.put("names", self.name, Entry(after))
        state.log(LogEntry(b"", "tester", 1, "fill", 7, self.name, 0, after))
        return self.amount


def test_that_nothing_is_to_be_changed_is_judged_on_the_newest_head() -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    one, two = committer(backend), committer(backend)
    one.commit(Fill("a", 1))
    two.commit(Fill("a", 2))
    assert one.commit(Fill("a", 1)) == 1
    assert number(two, "a") == 1


class AddOnce(Add):
    """An addition whose `prepare` refuses to run if the number exists."""

    def prepare(self, view: State) -> object:
        if view.lookup("names", self.name) is not None:
            raise CommitFailedError("it is there")
        return None


def test_an_operation_that_would_now_be_refused_gives_its_answer_again() -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    one, two = committer(backend), committer(backend)
    operation = Operation(KEY, "tester")
    assert one.commit(AddOnce("a", operation=operation)) == 1
    assert one.commit(AddOnce("a", operation=operation)) == 1
    assert two.commit(AddOnce("a", operation=operation)) == 1
    with pytest.raises(CommitFailedError):
        two.commit(AddOnce("a"))


class AddPrepared(Add):
    """An addition that, from its second attempt on, needs the number that it read in `prepare`."""

    prepared = 0

    def prepare(self, view: State) -> object:
        self.prepared += 1
        found = view.base.index("names").get(self.name)
        return view.get(found.pointer, Box).number if found and self.prepared > 1 else None

    def apply(self, state: State, prepared: object) -> int:
        if prepared is None:
            state.put("names", self.name, Entry(state.add(Box(99))))
            raise PrepareAgain
        assert prepared == 1
        return super().apply(state, prepared)


def test_a_change_that_needs_data_it_did_not_read_is_prepared_again_without_side_effects() -> None:
    c = committer()
    c.commit(Add("a"))
    change = AddPrepared("a")
    assert c.commit(change) == 2
    assert (change.prepared, number(c, "a"), c.read().head.number) == (2, 2, 2)


def test_a_requirement_that_fails_on_the_newest_head_fails_alone() -> None:
    c = committer()
    c.commit(Add("a"))
    with pytest.raises(CommitFailedError, match="holds 1, not 5"):
        c.commit(Add("a", expect=5))
    assert number(c, "a") == 1
    assert c.read().head.number == 1


def test_two_processes_that_count_lose_nothing() -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    both = [committer(backend), committer(backend)]

    def count(c: object) -> None:
        for _ in range(200):
            c.commit(Add("a"))  # type: ignore[attr-defined]  # a committer

    threads = [threading.Thread(target=count, args=(c,)) for c in both for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert number(both[0], "a") == 1_600


def test_after_a_conflict_elsewhere_a_change_is_not_run_again() -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    one, two = committer(backend), committer(backend)
    one.commit(Add("a"))
    two.commit(Add("b"))
    change = Add("a")
    assert one.commit(change) == 2
    assert change.runs == 1


def test_a_change_is_run_again_after_a_conflict_on_data_it_read() -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    one, two = committer(backend), committer(backend)
    one.commit(Add("a"))
    two.commit(Add("a"))
    change = Add("a")
    assert one.commit(change) == 3
    assert change.runs == 2


def test_changes_that_wait_together_go_into_few_commits_and_a_failing_one_fails_alone() -> None:
    c = committer()
    gate = threading.Event()

    class Slow(Add):
        def apply(self, state: object, prepared: object) -> int:
            gate.wait(PATIENCE_S)
            return super().apply(state, prepared)  # type: ignore[arg-type]  # a state

    results: list[object] = []

    def run(change: Add) -> None:
        try:
            results.append(c.commit(change))
        except CommitFailedError as error:
            results.append(error)

    first = threading.Thread(target=run, args=(Slow("slow"),))
    first.start()
    others = [
        threading.Thread(target=run, args=(Add("a", expect=-1 if n == 5 else None),)) for n in range(20)
    ]
    for thread in others:
        thread.start()
    wait_until(lambda: len(c._attempts.group._waiting) == 20, "all others wait")
    gate.set()
    for thread in [first, *others]:
        thread.join()
    assert sum(isinstance(r, CommitFailedError) for r in results) == 1
    assert number(c, "a") == 19
    assert c.read().head.number <= 2
    assert len(list(entries(c.read().store, c.read().head))) == 20


def test_the_same_operation_is_done_once_and_answered_twice() -> None:
    c = committer()
    operation = Operation(KEY, "tester", b"digest")
    assert c.commit(Add("a", operation=operation)) == 1
    c.commit(Add("a"))
    assert c.commit(Add("a", operation=operation)) == 1
    assert number(c, "a") == 2


def test_the_same_operation_id_with_another_request_is_refused() -> None:
    c = committer()
    c.commit(Add("a", operation=Operation(KEY, "tester", b"one")))
    with pytest.raises(UnprocessableError):
        c.commit(Add("a", operation=Operation(KEY, "tester", b"two")))


def test_the_same_operation_id_of_another_principal_is_another_operation() -> None:
    c = committer()
    c.commit(Add("a", operation=Operation(KEY, "one", b"d")))
    assert c.commit(Add("a", operation=Operation(KEY, "two", b"d"))) == 2


def test_a_duplicate_in_the_same_batch_joins_the_first() -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    c = committer(backend)
    operation = Operation(KEY, "tester", b"d")
    threads = [threading.Thread(target=lambda: c.commit(Add("a", operation=operation))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert number(c, "a") == 1


def test_operation_ids_older_than_their_lifetime_are_cut_off_when_the_index_spills() -> None:
    clock = ManualClock()
    c = committer(clock=clock, operation_lifetime_ms=60_000)

    def operation(n: int) -> Operation:
        return Operation(clock.now_ms().to_bytes(6, "big") + n.to_bytes(10, "big"), "tester", b"d" * 12)

    first = operation(0)
    for n in range(500):
        c.commit(Add("a", operation=first if n == 0 else operation(n)))
        clock.advance(1_000)
    index = c.read().index("operations")
    assert index.get(first.key) is None
    assert sum(1 for _ in index.range()) < 400


def test_a_reference_that_never_stops_moving_is_given_up_in_time_with_nothing_changed() -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    clock = ManualClock()
    c, other = committer(backend, clock=clock, deadline_ms=1_000.0), committer(backend)

    class Busy(Add):
        def apply(self, state: object, prepared: object) -> int:
            other.commit(Add("a"))
            return super().apply(state, prepared)  # type: ignore[arg-type]  # a state

    with pytest.raises(TryAgainError):
        c.commit(Busy("a"))
    assert number(c, "a") == other.read().head.number


def test_files_of_attempts_that_others_overtook_do_not_pile_up_in_memory() -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    other, root = committer(backend), committer(backend)
    written: list[str] = []

    class Folder:
        def write_all(self, files: Sequence[tuple[str, bytes]]) -> None:
            written.extend(location for location, _ in files)

    class Overtaken(Add):
        def apply(self, state: State, prepared: object) -> int:
            if self.runs < 40:
                other.commit(Add("a"))
            state.write_file(f"file:/attempt-{self.runs}", bytes(1_000_000))
            return super().apply(state, prepared)

    c = Committer(
        root._store, root.name, ids=root._ids, clock=ManualClock(), settings=root._settings, files=Folder()
    )
    tracemalloc.start()
    try:
        assert c.commit(Overtaken("a")) == 41
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(written) == 22  # attempts that others overtook early write no files
    assert peak < 10_000_000


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [(-31, OutcomeUnknownError), (31, BadRequestError)],
    ids=["forgotten since", "ahead of time"],
)
def test_an_operation_id_that_cannot_be_remembered_is_refused(
    minutes: int, expected: type[Exception]
) -> None:
    clock = ManualClock()
    c = committer(clock=clock)
    at = clock.now_ms() + minutes * 60_000
    with pytest.raises(expected, match="idempotency key"):
        c.commit(Add("a", operation=Operation(at.to_bytes(6, "big") + b"\x70" * 10, "tester", b"d")))
    assert number(c, "a") == 0


@pytest.mark.parametrize(
    ("ahead", "lifetime"),
    [(20 * 60_000, 30 * 60_000), (0, 60_000)],
    ids=["a clock that is ahead", "a shorter lifetime"],
)
def test_an_operation_that_another_process_forgot_is_refused_rather_than_done_twice(
    ahead: int, lifetime: int
) -> None:
    backend, start = open_backend(f"memory:{uuid.uuid4()}"), ManualClock().now_ms()
    clock, theirs = ManualClock(start), ManualClock(start + ahead)
    mine, other = (
        committer(backend, clock=clock),
        committer(backend, clock=theirs, operation_lifetime_ms=lifetime),
    )
    operation = Operation(KEY, "tester", b"d")
    mine.commit(Add("a", operation=operation))
    for n in range(300):
        clock.advance(4_000)
        theirs.advance(4_000)
        id = theirs.now_ms().to_bytes(6, "big") + n.to_bytes(10, "big")
        other.commit(Add("b", operation=Operation(id, "tester", b"d")))
    assert mine.read().index("operations").get(operation.key) is None
    with pytest.raises(OutcomeUnknownError, match="idempotency key"):  # not as if nothing had happened
        mine.commit(Add("a", operation=operation))
    assert number(mine, "a") == 1


def test_a_clock_that_is_ahead_forgets_what_was_done_and_refuses_nothing_new() -> None:
    backend, start = open_backend(f"memory:{uuid.uuid4()}"), ManualClock().now_ms()
    clock, theirs = ManualClock(start), ManualClock(start + 35 * 60_000)
    mine, other = committer(backend, clock=clock), committer(backend, clock=theirs)

    def operation(of: ManualClock, n: int) -> Operation:
        return Operation(of.now_ms().to_bytes(6, "big") + n.to_bytes(10, "big"), "tester", b"d")

    first = operation(clock, 0)
    mine.commit(Add("a", operation=first))
    for n in range(400):
        theirs.advance(1)
        other.commit(Add("b", operation=operation(theirs, n)))
    assert mine.read().index("operations").get(first.key) is None
    with pytest.raises(OutcomeUnknownError, match="idempotency key"):
        mine.commit(Add("a", operation=first))
    clock.advance(1)
    mine.commit(Add("a", operation=operation(clock, 1)))
    assert number(mine, "a") == 2


def test_old_unreadable_operations_do_not_stop_commits() -> None:
    backend, clock = open_backend(f"memory:{uuid.uuid4()}"), ManualClock()
    c = committer(backend, clock=clock)

    def commit(number: int) -> None:
        id = clock.now_ms().to_bytes(6, "big") + number.to_bytes(10, "big")
        c.commit(Add("a", operation=Operation(id, "tester", b"d")))

    for n in range(1_500):
        clock.advance(1_000)
        commit(n)
    head = c.read()
    root = head.index("operations").tree.shard
    branch = StoredObjects(head.store).read_shards([root])[root]
    assert isinstance(branch, Branch)
    middle = len(branch.children) // 2
    backend.delete_objects(head.store.realm, [ObjectKey(branch.children[middle])])
    inside = sum(made_ms(branch.separators[at].ljust(6, b"\0")) for at in (middle - 1, middle)) // 2
    clock.advance(inside + 30 * 60_000 - clock.now_ms())  # the oldest that is kept would be in what was lost
    c = committer(backend, clock=clock)
    for n in range(300):
        clock.advance(1)
        commit(n)
    assert number(c, "a") == 1_800


@pytest.mark.parametrize("end", ["dropped", "moved"])
def test_what_was_done_before_a_reference_took_its_last_commit_is_answered_again(end: str) -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    c, other = committer(backend), committer(backend)
    operation = Operation(KEY, "tester", b"d")
    assert c.commit(Add("a", operation=operation)) == 1
    ending = {"sealed": True} if end == "dropped" else {"move": Move("elsewhere", "pause", done=True)}
    with pytest.raises((ReferenceGoneError, RealmMovedError)):
        other.amend(lambda head: msgspec.structs.replace(head, **ending))
    assert c.commit(Add("a", operation=operation)) == 1
    for change in (Add("a"), Add("a", operation=Operation(KEY[:-1] + b"z", "tester", b"d"))):
        with pytest.raises((ReferenceGoneError, RealmMovedError)):
            c.commit(change)


def test_a_process_goes_on_from_a_head_that_was_set_back(tmp_path: Path) -> None:
    """The head in the row is earlier than the one that the process remembers, and has the same fence. The process loses
    one swap, and reads the row."""
    backend = open_backend(f"sqlite://{tmp_path}/store.db")
    c, other = committer(backend), committer(backend)
    c.commit(Add("a"))
    first = c.read().head
    for _ in range(3):
        c.commit(Add("a"))
    other.amend(
        lambda head: msgspec.structs.replace(head, commit=first.commit, number=first.number, recent=())
    )
    with counted(backend) as traffic:
        c.commit(Add("a"))
    assert number(c, "a") == 2
    assert traffic.round_trips == 3


def test_an_amendment_that_was_overtaken_is_made_on_the_row_that_the_database_returned(
    tmp_path: Path,
) -> None:
    backend, fast = (open_backend(f"sqlite://{tmp_path}/store.db") for _ in range(2))
    c, other = committer(backend), committer(fast)
    other.commit(Add("a"))
    others = [Add("a"), Add("a")]

    def fenced(head: Head) -> Head:
        if others:
            other.commit(others.pop())
        return msgspec.structs.replace(head, fence=7)

    with counted(backend) as traffic:
        assert c.amend(fenced).head.number == 3
    assert traffic.round_trips == 5  # read, three swaps, and read the newest commit


def make_newer(backend: Backend, id: int, type: bytes) -> None:
    """Change an object's row so that it says that a much newer release wrote it."""
    key = ObjectKey(id)
    row = backend.read_objects("r", [key])[key]
    newer = row.replace(type + b"\x01", type + b"\x7f", 1)
    assert newer != row
    backend.delete_objects("r", [key])
    backend.write_objects("r", [ObjectRow(*key, newer)])


def test_after_a_commit_of_a_newer_release_nothing_is_changed() -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    committer(backend).commit(Add("a"))
    make_newer(backend, committer(backend).read().head.commit, b"\xa6commit")
    assert number(committer(backend), "a") == 1
    with pytest.raises(NewerFormatError, match="revision 127"):
        committer(backend).commit(Add("a"))
    assert number(committer(backend), "a") == 1


def shard_of_names(c: Committer) -> int:
    """Return the root of the tree of the index `names`; 0 while the commit contains the whole index."""
    commit = c.read().commit
    return commit.index_roots[commit.index_names.index("names")].shard if commit.index_names else 0


def add_many(c: Committer) -> None:
    """Add so many names that the index is written to shards."""
    for n in range(200):
        c.commit(Add(f"z{n:04}"))


def test_an_index_shard_of_a_newer_release_is_read_but_not_rewritten() -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    first = committer(backend)
    while not shard_of_names(first):
        first.commit(Add(f"k{first.read().head.number:04}"))
    make_newer(backend, shard_of_names(first), b"\xa4leaf")
    c = committer(backend)
    assert number(c, "k0000") == 1
    with pytest.raises(NewerFormatError, match="revision 127"):
        add_many(c)
    assert number(committer(backend), "k0000") == 1
