"""After rows were lost, every reference continues from its newest complete commit, and its log records this."""

from __future__ import annotations

import msgspec
import pytest

from polaris_spark.backends.base import ObjectKey, ObjectRow, ReferenceRow
from polaris_spark.clock import ManualClock
from polaris_spark.commits.log import commit_at, commits, entries
from polaris_spark.commits.publication import encode_head
from polaris_spark.commits.rows import LogEntry
from polaris_spark.errors import InputError, ReferenceGoneError, StateError
from polaris_spark.objects import MAX_ROW_BYTES, Strong, encode, object_type, rows_of
from polaris_spark.system.recovery.execution import ACTION
from polaris_spark.system.recovery.plan import plan
from polaris_spark.system.registry import ROOT
from tests.commits.support import Add, number
from tests.system.losses import (
    DEV,
    MAIN,
    ME,
    OTHER,
    History,
    chain,
    check_sound,
    commit_of,
    content,
    head_of,
    ids_of,
    live,
    lose,
    process,
    recover,
    row_of,
    store_of,
    survey,
    whole,
)


@object_type("test-large", revision=1)
class Large(msgspec.Struct, frozen=True, array_like=True):
    """An object of several parts."""

    text: str
    child: Strong = 0


def test_a_store_that_lost_nothing_is_complete_and_keeps_its_heads(history: History) -> None:
    backend = history.copy()
    found = survey(backend, search=True)
    assert [f.complete for f in found.values()] == [True, True]
    assert [f.newer for f in found.values()] == [(), ()]
    assert {step.action for step in plan(list(found.values()))} == {"keep"}
    assert recover(backend, history.clock).heads == {}
    assert head_of(backend, row_of(backend)).number == 40


@pytest.mark.parametrize("kind", ["commit", "entries", "box"])
def test_if_rows_of_the_newest_commit_are_lost_recovery_returns_to_the_commit_before(
    history: History, kind: str
) -> None:
    backend = history.copy()
    head = head_of(backend, row_of(backend))
    commit = commit_of(backend, head.commit)
    assert commit is not None
    lost = {"commit": head.commit, "entries": commit.entries}.get(kind) or entry_of(history).after
    lose(backend, {lost})
    found = survey(backend)[row_of(backend)]
    assert [missing.id for missing in found.heads[0].lost] == [lost]
    assert found.target is not None
    assert found.target.number == 39
    assert (found.undone.commits, found.undone.unreadable) == (1, 0 if kind == "box" else 1)
    recover(backend, history.clock)
    head = head_of(backend, row_of(backend))
    assert (head.number, commit_of(backend, head.commit).parents[0]) == (40, found.target.id)  # type: ignore[union-attr]  # it is there
    check_sound(backend, history)


def entry_of(history: History) -> LogEntry:
    """The newest log entry of `MAIN`."""
    head = history.references.read(MAIN).head
    return next(entries(history.references.store, head))[3]


def test_the_log_has_the_principal_and_both_states_of_a_recovery(history: History) -> None:
    backend = history.copy()
    before = head_of(backend, row_of(backend))
    lose(backend, {before.commit})
    recover(backend, history.clock)
    references = process(backend, history.clock)
    _, _, _, entry = next(entries(references.store, references.read(MAIN).head))
    assert (entry.action, entry.principal, entry.key) == (ACTION, "operator", MAIN.encode())
    assert entry.summary["from"] == "40"
    assert entry.summary["from-commit"] == f"{before.commit:x}"
    assert (entry.summary["to"], entry.summary["lost-commits"]) == ("39", "1")


def test_recovery_reports_the_undone_changes_that_are_readable(history: History) -> None:
    backend = history.copy()
    known = chain(history.backend, head_of(backend, row_of(backend)))
    lose(backend, {id for n, id in known if n in (40, 38, 36)})
    lose(backend, {commit.entries for n, id in known if n == 39 and (commit := commit_of(backend, id))})
    found = survey(backend)[row_of(backend)]
    assert found.target is not None
    assert found.target.number == 37
    assert (found.undone.commits, found.undone.unreadable) == (3, 3)
    lose(backend, {found.target.id})
    assert survey(backend)[row_of(backend)].undone.commits == 5


def test_history_with_a_hole_begins_above_it(history: History) -> None:
    backend = history.copy()
    known = dict(chain(history.backend, head_of(backend, row_of(backend))))
    lose(backend, {known[12]})
    found = survey(backend)[row_of(backend)]
    assert not found.complete
    assert found.target is not None
    assert found.history_from is not None
    assert (found.target.number, found.history_from.number) == (40, 13)
    assert [missing.id for missing in found.lost_history] == [known[12]]
    recover(backend, history.clock)
    head = head_of(backend, row_of(backend))
    assert (head.number, head.floor_number) == (41, 13)
    assert all(recent.number >= 13 for recent in head.recent)
    check_sound(backend, history)


def test_it_goes_back_to_a_commit_that_is_not_a_recent_head(history: History) -> None:
    backend = history.copy()
    head = head_of(backend, row_of(backend))
    recent = {r.number for r in head.recent}
    for n, id in chain(history.backend, head):
        if n in recent:
            commit = commit_of(backend, id)
            assert commit is not None
            lose(backend, {commit.entries})
    wanted = max(set(range(40)) - recent)
    found = survey(backend)[row_of(backend)]
    assert not any(state.complete for state in found.heads)
    assert found.target is not None
    assert found.target.number == wanted
    recover(backend, history.clock)
    assert head_of(backend, row_of(backend)).number == wanted + 1
    check_sound(backend, history)


@pytest.mark.parametrize("left", [18, 25, 3])
def test_a_commit_that_nothing_names_any_more_is_found_by_reading_all(history: History, left: int) -> None:
    backend = history.copy()
    head = head_of(backend, row_of(backend))
    backend._tables.references["r"][row_of(backend)] = ReferenceRow(
        b"v", encode_head(msgspec.structs.replace(head, recent=head.recent[:2]))
    )
    lose(backend, {id for n, id in chain(history.backend, head) if n > left})
    recover(backend, history.clock)
    assert head_of(backend, row_of(backend)).number == left + 1
    check_sound(backend, history)


def test_where_no_commit_is_complete_that_is_said_and_nothing_is_set(history: History) -> None:
    backend = history.copy()
    head = head_of(backend, row_of(backend))
    boxes = {entry.before or entry.after for _, _, _, entry in entries(history.references.store, head)}
    first = chain(history.backend, head)[-1][1]
    lose(
        backend, boxes | {first, *(entry.after for _, _, _, entry in entries(history.references.store, head))}
    )
    found = survey(backend)[row_of(backend)]
    assert found.target is None
    assert plan([found])[0].action == "give-up"


def test_a_reference_none_of_whose_history_is_complete_is_left_for_a_backup_to_restore(
    history: History,
) -> None:
    backend = history.copy()
    row_name, head = row_of(backend), head_of(backend, row_of(backend))
    trimmed = msgspec.structs.replace(head, floor_number=38)
    backend._tables.references["r"][row_name] = ReferenceRow(b"trimmed", encode_head(trimmed))
    names = process(backend, history.clock).open(MAIN).read().index("names")
    box = min(entry.pointer for _, entry in names.range())  # of commit 34, needed ever since
    lost = backend.read_objects("r", [ObjectKey(box)])
    lose(backend, {box})
    assert survey(backend)[row_name].target is None, "commit 33 is complete, but below the floor"
    recover(backend, history.clock)
    assert live(backend, history.clock) == [ROOT, MAIN]
    assert head_of(backend, row_name).commit == head.commit
    backend.write_objects("r", [ObjectRow(*key, value) for key, value in lost.items()])
    check_sound(backend, history)


def test_an_object_whose_second_part_is_lost_is_lost(history: History) -> None:
    backend = history.copy()
    head = head_of(backend, row_of(backend))
    entry = entry_of(history)
    rows = rows_of(entry.after, encode(Large("x" * (MAX_ROW_BYTES + 10))))
    lose(backend, {entry.after})
    backend.write_objects("r", rows)
    assert survey(backend)[row_of(backend)].complete
    lose(backend, {entry.after}, part=1)
    (lost,) = survey(backend)[row_of(backend)].heads[0].lost
    assert (lost.id, lost.reason) == (entry.after, "its part 1 is missing")
    recover(backend, history.clock)
    assert whole(backend, head_of(backend, row_of(backend)).commit)
    assert head.number == 40


def test_types_that_are_not_installed_are_followed(history: History) -> None:
    backend = history.copy()
    after = entry_of(history).after
    child = ids_of(backend)[-1] + 1
    foreign = encode(Large("unknown", child))
    lose(backend, {after})
    backend.write_objects("r", rows_of(after, foreign.replace(b"test-large", b"test-alien")))
    (lost,) = survey(backend)[row_of(backend)].heads[0].lost
    assert (lost.id, lost.holder, lost.holder_type) == (child, after, "test-alien")
    backend.write_objects("r", rows_of(child, encode(Large("found"))))
    assert survey(backend)[row_of(backend)].complete


def test_a_row_that_came_back_older_is_complete_and_a_search_finds_what_came_after(history: History) -> None:
    backend = history.copy()
    name, newest = row_of(backend), head_of(backend, row_of(backend))
    backend._tables.references["r"][name] = history.past[-6]["r"][name]
    found = survey(backend, search=True)[name]
    assert found.complete
    assert [known.number for known in found.newer] == [40, 39, 38, 37, 36]
    assert recover(backend, history.clock).heads == {}
    recover(backend, history.clock, MAIN, newest.commit)
    head = head_of(backend, name)
    assert (head.number, content(backend, head.commit)) == (41, content(backend, newest.commit))
    check_sound(backend, history)


def test_a_fork_s_commits_are_not_taken_for_newer_ones_of_its_source() -> None:
    history = History()
    history.create(MAIN)
    history.add(MAIN)
    history.create(DEV, MAIN)
    history.add(DEV)
    found = survey(history.backend, search=True)
    assert all(f.complete and f.newer == () for f in found.values())


def test_only_commits_of_the_reference_can_be_asked_for(history: History) -> None:
    backend = history.copy()
    root = head_of(backend, ROOT).commit
    with pytest.raises(InputError, match="neither before nor after its head"):
        recover(backend, history.clock, MAIN, root)
    with pytest.raises(InputError, match="there is no commit with the id"):
        recover(backend, history.clock, MAIN, 5)
    head = head_of(backend, row_of(backend))
    lose(backend, {entry_of(history).after})
    with pytest.raises(InputError, match=r"is not complete \(lost objects: 1\)"):
        recover(backend, history.clock, MAIN, head.commit)


def test_an_older_commit_can_be_asked_for(history: History) -> None:
    backend = history.copy()
    known = dict(chain(history.backend, head_of(backend, row_of(backend))))
    recover(backend, history.clock, MAIN, known[30])
    head = head_of(backend, row_of(backend))
    assert (head.number, content(backend, head.commit)) == (31, content(backend, known[30]))
    check_sound(backend, history)


def test_a_row_that_is_missing_comes_back_with_its_newest_commit(history: History) -> None:
    backend = history.copy()
    name, before = row_of(backend), head_of(backend, row_of(backend))
    del backend._tables.references["r"][name]
    assert not survey(backend)[name].complete
    recover(backend, history.clock)
    head = head_of(backend, name)
    assert (head.number, content(backend, head.commit)) == (41, content(backend, before.commit))
    check_sound(backend, history)


def test_history_of_a_clock_far_ahead_can_be_searched_by_time_after_its_row_was_lost() -> None:
    history = History()
    history.create(MAIN)
    wrong = process(history.backend, ManualClock(history.clock.now_ms() + 400 * 86_400_000))
    for maker in (history.references, wrong, history.references):
        for _ in range(3):
            history.clock.sleep_ms(700)
            maker.commit(MAIN, Add("n"))
    backend = history.copy()
    del backend._tables.references["r"][row_of(backend)]
    recover(backend, history.clock)
    head, store = head_of(backend, row_of(backend)), store_of(backend)
    listed = list(commits(store, head))
    for time in {commit.time for _, commit in listed}:
        assert commit_at(store, head, time) == next(id for id, commit in listed if commit.time <= time)
    assert head.time_resets == (7,)


def test_a_row_that_its_creator_did_not_write_is_completed() -> None:
    history = History()
    history.create(MAIN)
    backend = history.copy()
    del backend._tables.references["r"][row_of(backend)]
    recover(backend, history.clock)
    assert head_of(backend, row_of(backend)).number == 0
    check_sound(backend, history)


def test_references_that_the_registry_forgot_are_listed_again(history: History) -> None:
    backend = history.copy()
    name = row_of(backend)
    lose(backend, {head_of(backend, ROOT).commit})
    assert survey(backend)[name].state == "unlisted"
    recover(backend, history.clock)
    assert survey(backend)[name].state == "live"
    assert number(process(backend, history.clock).open(MAIN), "k1") == 6
    check_sound(backend, history)


def test_a_registry_whose_row_is_missing_is_found_again(history: History) -> None:
    backend = history.copy()
    del backend._tables.references["r"][ROOT]
    recover(backend, history.clock)
    assert live(backend, history.clock) == [ROOT, MAIN]
    check_sound(backend, history)


def test_a_drop_that_the_registry_forgot_stays_dropped(history: History) -> None:
    backend = history.copy()
    process(backend, history.clock).drop(MAIN, ME)
    lose(backend, {head_of(backend, ROOT).commit})
    found = survey(backend)[row_of(backend)]
    assert (found.state, found.complete) == ("live", False)
    recover(backend, history.clock)
    references = process(backend, history.clock)
    with pytest.raises(ReferenceGoneError):
        references.read(MAIN)
    references.undrop(MAIN, ME)
    assert number(references.open(MAIN), "k1") == 6
    check_sound(backend, history)


def test_a_dropped_reference_goes_back_too_and_the_registry_s_log_tells(history: History) -> None:
    backend = history.copy()
    process(backend, history.clock).drop(MAIN, ME)
    lose(backend, {head_of(backend, row_of(backend)).commit})
    recover(backend, history.clock)
    references = process(backend, history.clock)
    _, _, _, entry = next(entries(references.store, references.root.read().head))
    assert (entry.action, entry.key, entry.summary["to"]) == (ACTION, MAIN.encode(), "39")
    references.undrop(MAIN, ME)
    assert number(references.open(MAIN), "k4") == 5
    check_sound(backend, history)


def test_a_recreated_reference_is_recovered_if_the_registry_lost_the_record_of_it(history: History) -> None:
    backend = history.copy()
    old, references = row_of(backend), process(backend, history.clock)
    before = backend.read_reference("r", ROOT)
    references.drop(MAIN, ME)
    references.create(MAIN, ME)
    references.commit(MAIN, Add("new"))
    assert before is not None
    backend._tables.references["r"][ROOT] = before
    assert survey(backend)[old].state == "live"
    recover(backend, history.clock)
    assert number(process(backend, history.clock).open(MAIN), "new") == 1
    check_sound(backend, history)


def test_without_a_registry_there_is_nothing_to_recover(history: History) -> None:
    backend = history.copy()
    lose(backend, set(ids_of(backend)))
    with pytest.raises(StateError, match="restore a backup"):
        recover(backend, history.clock)


def test_changes_prepared_before_a_recovery_cannot_be_committed_after_it(history: History) -> None:
    backend = history.copy()
    running = process(backend, history.clock)
    stale = running.open(MAIN).read()
    recover(backend, history.clock)
    head = head_of(backend, row_of(backend))
    assert head.number == 40
    assert head.fence > max(ids_of(backend))
    assert backend.read_reference("r", row_of(backend)).version != stale.version  # type: ignore[union-attr]  # it is there
    assert running.commit(MAIN, Add("k1")) == 7
    assert head_of(backend, row_of(backend)).commit > head.fence


def test_names_of_references(history: History) -> None:
    assert {found.name for found in survey(history.copy()).values()} == {ROOT, MAIN}
    assert OTHER not in live(history.copy(), history.clock)
