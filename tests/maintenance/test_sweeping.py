"""Which rows a sweep deletes, which it keeps, and when it refuses to run."""

from __future__ import annotations

import msgspec
import pytest

from polaris_spark import objects
from polaris_spark.backends.base import ObjectKey, ReferenceRow
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Change
from polaris_spark.commits.completeness import Completeness
from polaris_spark.commits.log import commits
from polaris_spark.commits.publication import encode_head, read_head
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    ClockError,
    CorruptionError,
    HistoryTrimmedError,
    NotFoundError,
    ReferenceGoneError,
    TryAgainError,
)
from polaris_spark.index import Entry
from polaris_spark.objects import Strong, object_type
from polaris_spark.store.references import new_version
from polaris_spark.system.recovery.survey import Survey
from polaris_spark.system.registry import REFERENCES
from tests.commits.support import Add, Box, number
from tests.maintenance.interleaving import (
    BRIEF,
    GONE,
    GRACE,
    HOUR,
    MAIN,
    ME,
    REALM,
    RETENTION,
    SECOND,
    SIDE,
    Held,
    Place,
)


@object_type("test-holder", revision=1)
class Holder(msgspec.Struct, frozen=True, array_like=True):
    """An object that points to another one. It may be large."""

    target: Strong
    text: str = ""


class Hold(Change[None, int]):
    """Replace an entry by a holder that points to the box."""

    def __init__(self, key: str, text: str = "") -> None:
        self.key = key.encode()
        self.text = text
        self.operation = ME

    def prepare(self, view: State) -> None:
        return None

    def apply(self, state: State, prepared: None) -> int:
        box = state.add(Box(7))
        holder = state.add(Holder(box, self.text))
        before = state.lookup("names", self.key)
        state.put("names", self.key, Entry(holder))
        state.log(LogEntry(b"", "me", 1, "hold", 7, self.key, before.pointer if before else 0, holder))
        return box

    def repeat(self, state: State, entries: list[LogEntry]) -> int:
        raise AssertionError


class Drop(Hold):
    """Remove the entry."""

    def apply(self, state: State, prepared: None) -> int:
        found = state.lookup("names", self.key)
        assert found is not None
        state.remove("names", self.key)
        state.log(LogEntry(b"", "me", 1, "drop", 7, self.key, found.pointer))
        return found.pointer


@pytest.fixture
def place() -> Place:
    return Place()


def ids(place: Place) -> set[int]:
    return {id for id, _ in place.rows()}


def old(place: Place) -> None:
    """Trim all history that is not needed, and make it older than the grace period."""
    place.later()
    place.clock.advance(RETENTION + SECOND)
    for name in (MAIN, SIDE):
        place.founder.commit(name, Add(f"{name}0" + "x" * 600))
    place.clock.advance(RETENTION + SECOND)


def test_a_sweep_deletes_unneeded_rows_and_keeps_the_others(place: Place) -> None:
    before = ids(place)
    old(place)
    swept = place.sweep()
    deleted = before - ids(place)
    assert deleted
    assert sum(count.objects for count in swept.counts) >= len(deleted)
    assert {count.type for count in swept.counts} >= {"commit", "entries", "test-box"}
    place.check()
    assert number(place.process()[0].open(MAIN), "main0" + "x" * 600) == 6
    assert place.sweep().counts == []


def test_a_dry_run_says_the_same_and_changes_nothing(place: Place) -> None:
    old(place)
    place.sweep(retention_ms=HOUR * 24, grace_ms=HOUR * 12)
    rows, heads = place.rows(), list(place.heads())
    said = place.sweep(dry_run=True)
    assert (place.rows(), list(place.heads())) == (rows, heads)
    done = place.sweep()
    assert said.counts
    assert {count.type for count in said.counts} == {count.type for count in done.counts}
    assert rows - place.rows()


def test_rows_younger_than_the_grace_period_are_kept(place: Place) -> None:
    place.later()
    written, _ = place.process()
    id = written.ids.next_id()
    written.store.write([(id, Box(1))])
    place.clock.advance(GRACE - SECOND)
    place.sweep()
    assert id in ids(place)
    place.clock.advance(2 * SECOND)
    place.sweep()
    assert id not in ids(place)


def test_objects_of_several_parts_go_and_stay_as_a_whole(place: Place) -> None:
    text = "x" * 800_000
    box = place.founder.commit(MAIN, Hold("large", text))
    place.founder.commit(MAIN, Hold("other", text))
    place.founder.commit(MAIN, Drop("other"))
    old(place)
    swept = place.sweep()
    assert next(count.rows for count in swept.counts if count.type == "test-holder") == 3
    assert next(count.objects for count in swept.counts if count.type == "test-holder") == 1
    assert box in ids(place)
    place.check()


def test_objects_of_a_type_that_is_not_installed_are_followed_and_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = place.founder.commit(MAIN, Hold("kept"))
    lost = place.founder.commit(MAIN, Hold("lost"))
    place.founder.commit(MAIN, Drop("lost"))
    old(place)
    monkeypatch.delitem(objects._types, "test-holder")
    place.sweep()
    there = ids(place)
    assert box in there
    assert lost not in there
    place.check()


def test_dropped_references_are_kept_whole_until_grace_has_passed(place: Place) -> None:
    place.clock.advance(GRACE - 2 * BRIEF - SECOND)
    place.sweep()
    other, _ = place.process()
    other.undrop(GONE, ME)
    assert number(other.open(GONE), "gone0" + "x" * 600) == 3


def test_a_reference_that_was_given_up_cannot_be_restored(place: Place) -> None:
    stale, _ = place.process()
    registered = stale.lookup(GONE)
    assert registered is not None
    place.clock.advance(GRACE)
    before = {one.name for one in stale.listed()}
    place.sweep()
    assert before - {one.name for one in stale.listed()} == {GONE}
    for process in (stale, place.process()[0]):
        with pytest.raises(NotFoundError, match="grace period"):
            process.undrop(GONE, ME)
    with pytest.raises(ReferenceGoneError, match="longer ago than the grace period"):
        stale.sealed_head(registered)
    assert stale.lookup(GONE) is None
    assert GONE not in [found.name for found in Survey(stale.store).run()]


def test_a_delayed_creator_does_not_bring_a_swept_reference_back(place: Place) -> None:
    """It is about to insert the row when the reference is dropped, given up and swept."""
    action = lambda process: process.create("late", ME)  # noqa: E731  # it is what a process does
    alone = Held(place.process(), action, 0)
    alone.begin()
    place.founder.drop("late", ME)
    place.clock.advance(GRACE)
    place.sweep()
    for stands in range(1, alone.operations + 1):
        late = Held(place.process(), action, stands)
        late.begin()
        if place.process()[0].lookup("late") is None:
            late.end()
            place.founder.drop("late", ME)
        else:
            place.founder.drop("late", ME)
            place.clock.advance(GRACE)
            place.sweep()
            late.end()
        assert place.process()[0].lookup("late") is None or late.error is None
        place.clock.advance(GRACE)
        place.sweep()
        backend = place.process()[1]
        live = [
            name
            for name, row in backend._tables.references[REALM].items()
            if name.startswith("late@") and not read_head(row, name).sealed
        ]
        assert not live


def test_a_committer_of_a_dropped_reference_does_not_commit_to_a_new_one_of_the_same_name(
    place: Place,
) -> None:
    committer = place.founder.open(SIDE)
    base = committer.read()
    place.founder.drop(SIDE, ME)
    place.founder.create(SIDE, ME)
    place.clock.advance(GRACE)
    place.sweep()
    row = place.process()[1].read_reference(REALM, base.row_name)
    assert row is not None
    assert read_head(row, "").commit == 0
    with pytest.raises(ReferenceGoneError):
        committer.commit(Add("n"))


def test_a_new_reference_is_born_with_a_fence(place: Place) -> None:
    written, _ = place.process()
    prepared = written.ids.next_id()
    place.clock.advance(SECOND)
    place.founder.drop(SIDE, ME)
    for act in (place.founder.undrop, place.founder.create):
        act(SIDE if act == place.founder.undrop else "new", ME)
    for name in (SIDE, "new"):
        assert place.founder.read(name).head.fence > prepared


def test_a_branch_of_a_head_that_was_trimmed_is_refused(place: Place) -> None:
    seen = place.founder.read(MAIN)
    place.later()
    with pytest.raises(HistoryTrimmedError):
        place.process()[0].create("branch", ME, source=seen)


def test_a_branch_of_a_reference_that_was_dropped_is_refused(place: Place) -> None:
    seen = place.founder.read(SIDE)
    place.founder.drop(SIDE, ME)
    for _ in range(2):
        with pytest.raises(ReferenceGoneError):
            place.process()[0].create("branch", ME, source=seen)
        place.founder.create(SIDE, ME) if place.founder.lookup(SIDE).registration.state == "dropped" else None  # type: ignore[union-attr]  # it is registered


def test_a_branch_begins_where_it_was_asked_to(place: Place) -> None:
    seen = place.founder.read(MAIN)
    place.founder.commit(MAIN, Add("more"))
    place.founder.create("branch", ME, source=seen)
    assert place.process()[0].read("branch").head.commit == seen.head.commit


def test_a_fence_is_set_above_one_of_a_process_that_is_ahead(place: Place) -> None:
    ahead = ManualClock(place.clock.now_ms() + 30 * SECOND)
    far, _ = place.process(ahead)
    near, _ = place.process()
    near.ids.next_id()
    row = near.read(MAIN)
    high = far.fence(row.row_name)
    assert near.fence(row.row_name) > high
    assert near.read(MAIN).version != row.version


def test_a_clock_that_is_hours_behind_is_refused(place: Place) -> None:
    place.sweep()
    behind, _ = place.process(ManualClock(place.clock.now_ms() - 4 * HOUR))
    before = place.rows()
    with pytest.raises(ClockError, match=r"behind the time that .* noted in this store"):
        place.sweep(behind)
    assert place.rows() == before


def test_a_writer_whose_clock_went_back_loses_nothing(place: Place) -> None:
    """Its new ids would be older than grace, if it made them by its clock."""
    clock = ManualClock(place.clock.now_ms())
    writer, backend = place.process(clock)
    writer.commit(MAIN, Add("one"))
    clock.set_wall(clock.now_ms() - 4 * HOUR)
    for stands in range(1, 8):
        held = Held((writer, backend), lambda process: process.commit(MAIN, Add("one")), stands)
        held.begin()
        place.later()
        place.sweep()
        held.end()
        place.check()
    assert number(place.process()[0].open(MAIN), "one") == number(writer.open(MAIN), "one") > 1


def test_an_interrupted_sweep_is_simply_run_again(place: Place) -> None:
    old(place)
    before = place.rows()

    class Interrupted(BaseException):
        pass

    for at in range(1, 500):
        sweeper, backend = place.process()
        left = iter(range(at))

        def step(left: object = left) -> None:
            if next(left, None) is None:  # type: ignore[call-overload]  # it is an iterator
                raise Interrupted

        backend.step = step
        try:
            place.sweep(sweeper)
        except Interrupted:
            place.check()
        else:
            break
    place.check()
    assert before - place.rows()
    assert place.sweep().counts == []


def test_nothing_is_deleted_where_something_needed_is_missing(place: Place) -> None:
    old(place)
    lost = place.founder.commit(MAIN, Hold("lost"))
    place.process()[1].delete_objects(REALM, [ObjectKey(lost)])
    before = place.rows()
    with pytest.raises(CorruptionError, match=f"{REALM}/{lost} is missing.*nothing was deleted"):
        place.sweep()
    assert place.rows() >= before


def test_a_sweep_that_another_one_overtakes_ends(place: Place) -> None:
    old(place)
    sweeper, backend = place.process()
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    backend.step = step
    place.sweep(sweeper, retention_ms=HOUR)
    length, overtaken = steps, 0
    for at in range(1, length, 3):
        sweeper, backend = place.process()
        steps = 0

        def overtakes(at: int = at) -> None:
            nonlocal steps
            steps += 1
            if steps == at:
                place.later()
                place.clock.advance(RETENTION + SECOND)
                place.founder.commit(MAIN, Add("n"))
                place.clock.advance(RETENTION + SECOND)
                place.sweep()

        backend.step = overtakes
        try:
            place.sweep(sweeper, retention_ms=HOUR)
        except TryAgainError as error:
            assert "another sweep" in str(error)  # noqa: PT017  # some steps are overtaken, some are not
            overtaken += 1
        place.check()
    assert overtaken


class Forget(Change[None, None]):
    """What a registry says that went back to a time before a reference was made."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.operation = ME

    def prepare(self, view: State) -> None:
        return None

    def apply(self, state: State, prepared: None) -> None:
        state.remove(REFERENCES, self.name.encode())

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        raise AssertionError


def test_a_reference_that_the_registry_lost_is_kept_for_a_recovery(place: Place) -> None:
    old(place)
    founder, backend = place.process()
    lost = founder.lookup(SIDE)
    assert lost is not None
    founder.root.commit(Forget(SIDE))
    for _ in range(2):
        place.clock.advance(RETENTION + SECOND)
        founder.commit(MAIN, Add("n"))
    planned = place.sweep(dry_run=True)
    swept = place.sweep()
    assert swept.counts
    assert swept.counts == planned.counts
    row = backend.read_reference(REALM, lost.row_name)
    assert row is not None
    head = read_head(row, SIDE)
    assert not head.sealed
    completeness = Completeness(backend, REALM)
    assert completeness.check([id for id, _ in commits(founder.store, head)])
    place.check()


def test_rows_that_recovery_left_sealed_are_buried(place: Place) -> None:
    backend = place.process()[1]
    registered = place.founder.lookup(GONE)
    assert registered is not None
    stray = ReferenceRow(new_version(), encode_head(registered.first_head(sealed=True)))
    backend.insert_reference(REALM, "stray@1", stray)
    place.sweep()
    row = backend.read_reference(REALM, "stray@1")
    assert row is not None
    assert read_head(row, "").commit == 0


def lose_row(place: Place, name: str) -> None:
    lost = place.founder.lookup(name)
    assert lost is not None
    backend = place.process()[1]
    row = backend.read_reference(REALM, lost.row_name)
    assert row is not None
    backend.delete_reference(REALM, lost.row_name, row.version)


@pytest.mark.parametrize("dry_run", [True, False])
def test_where_a_row_was_lost_nothing_is_swept_before_a_recovery(place: Place, dry_run: bool) -> None:
    old(place)
    lose_row(place, SIDE)
    before = ids(place)
    with pytest.raises(CorruptionError, match=r"run (polaris-spark )?recover"):
        place.sweep(dry_run=dry_run)
    assert before <= ids(place)
    found = {one.name: one for one in Survey(place.founder.store).run()}
    assert found[SIDE].head is None
    assert found[SIDE].newer


def test_a_reference_whose_creator_died_before_it_wrote_the_row_hinders_no_sweep(place: Place) -> None:
    place.founder.create("new", ME, source=place.founder.read(MAIN))
    lose_row(place, "new")
    old(place)
    assert place.sweep().counts
    place.check()
    assert place.process()[0].commit("new", Add("n"))
