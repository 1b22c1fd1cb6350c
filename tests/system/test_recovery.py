"""After rows were lost, every reference goes on from its newest complete commit, and says so in its log."""

from __future__ import annotations

import contextlib
import random

import msgspec
import pytest

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.clock import ManualClock
from polaris_spark.commits.log import commits, entries
from polaris_spark.commits.publishing import Outcome, Publication, encode_head
from polaris_spark.commits.rows import Entries, LogEntry
from polaris_spark.commits.state import Snapshot
from polaris_spark.errors import InputError, ReferenceGoneError, StateError
from polaris_spark.ids import IdGenerator, id_time_ms
from polaris_spark.objects import MAX_ROW_BYTES, Strong, encode, object_type, rows_of
from polaris_spark.system.leases import LEASE_MS, NodeLeases
from polaris_spark.system.recovery.carrying_out import ACTION, Recovery
from polaris_spark.system.recovery.plan import plan
from polaris_spark.system.recovery.survey import Survey
from polaris_spark.system.registry import ROOT
from polaris_spark.system.stores import SYSTEM_REALM
from tests.commits.support import Add, number
from tests.system.losses import (
    DEV,
    MAIN,
    ME,
    OTHER,
    Died,
    Ending,
    History,
    chain,
    commit_of,
    content,
    head_of,
    ids_of,
    live,
    lose,
    process,
    recover,
    store_of,
    survey,
    whole,
)


@object_type("test-large", revision=1)
class Large(msgspec.Struct, frozen=True, array_like=True):
    """An object of several parts."""

    text: str
    child: Strong = 0


@pytest.fixture(scope="module")
def history() -> History:
    """Forty commits to `MAIN`."""
    made = History()
    made.create(MAIN)
    for i in range(40):
        made.add(MAIN, f"k{i % 7}")
    return made


def row_of(backend: MemoryBackend, name: str = MAIN) -> str:
    """The newest row of a reference."""
    return max(row for row in backend._tables.references["r"] if row.startswith(f"{name}@"))


def check_sound(backend: MemoryBackend, history: History) -> None:
    """Everything is complete, can be read back to the floor, and changes go on."""
    assert all(found.complete for found in survey(backend).values())
    references = process(backend, history.clock)
    for name in live(backend, history.clock):
        committer = references.root if name == ROOT else references.open(name)
        head = committer.read().head
        assert [c.number for _, c in commits(references.store, head)] == list(
            range(head.number, head.floor_number - 1, -1)
        )
        list(entries(references.store, head))
        before = number(committer, "after")
        committer.commit(Add("after"))
        assert number(committer, "after") == before + 1


def test_a_store_that_lost_nothing_is_complete_and_keeps_its_heads(history: History) -> None:
    backend = history.copy()
    found = survey(backend, search=True)
    assert [f.complete for f in found.values()] == [True, True]
    assert [f.newer for f in found.values()] == [(), ()]
    assert {step.action for step in plan(list(found.values()))} == {"keep"}
    assert recover(backend, history.clock).heads == {}
    assert head_of(backend, row_of(backend)).number == 40


@pytest.mark.parametrize("kind", ["commit", "entries", "box"])
def test_what_the_newest_commit_needs_is_lost_so_the_one_before_is_next(history: History, kind: str) -> None:
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


def test_the_log_says_who_recovered_from_what_to_what(history: History) -> None:
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


def test_what_is_undone_is_told_as_far_as_it_can_be_read(history: History) -> None:
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


def test_it_goes_back_to_a_commit_that_is_no_recent_head(history: History) -> None:
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


def test_no_id_is_made_twice_although_leases_came_back_older_and_their_holders_run_on() -> None:
    history = History()
    history.create(MAIN)
    clock, backend = history.clock, history.backend
    assert isinstance(clock, ManualClock)
    system = backend._tables.references[SYSTEM_REALM]
    before = dict(system)
    made: list[int] = []
    running = []
    for _ in range(40):
        ids = IdGenerator(NodeLeases(backend, clock, nodes=50), clock)
        made += ids.next_ids(5)
        running.append(ids)
        clock.advance(1_000)
    system.clear()
    system.update(before)
    recover(backend, clock)
    seen = set(made)
    for minutes in (0, 30, 59, 70, 130):
        for ids in [*running, *(IdGenerator(NodeLeases(backend, clock, nodes=50), clock) for _ in range(10))]:
            some = ids.next_ids(20)
            assert seen.isdisjoint(some), f"after {minutes} minutes"
            seen.update(some)
            if ids not in running:
                ids.release()
        clock.advance(minutes * 60_000)


def test_ids_go_on_after_everything_that_is_left(history: History) -> None:
    backend = history.copy()
    backend._tables.references[SYSTEM_REALM].clear()
    highest = ids_of(backend)[-1]
    done = recover(backend, history.clock)
    new = IdGenerator(NodeLeases(backend, history.clock), history.clock).next_id()
    assert new > highest
    assert id_time_ms(new) >= done.ids_from_ms > history.clock.now_ms() + LEASE_MS
    again = recover(backend, history.clock)
    assert again.ids_from_ms >= done.ids_from_ms + LEASE_MS


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
    with pytest.raises(InputError, match="neither precedes nor follows"):
        recover(backend, history.clock, MAIN, root)
    with pytest.raises(InputError, match="no commit that can be read"):
        recover(backend, history.clock, MAIN, 5)
    head = head_of(backend, row_of(backend))
    lose(backend, {entry_of(history).after})
    with pytest.raises(InputError, match="is not complete: 1 objects"):
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


def test_a_name_whose_return_the_registry_forgot_comes_back(history: History) -> None:
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


def test_what_was_prepared_before_cannot_be_committed_afterwards(history: History) -> None:
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


def test_a_commit_in_doubt_is_known_not_to_have_happened_after_it_was_lost(history: History) -> None:
    backend = history.copy()
    lost = head_of(backend, row_of(backend))
    running = process(backend, history.clock)
    before = running.open(MAIN).read()
    lose(backend, {lost.commit})
    recover(backend, history.clock)
    kept = head_of(backend, row_of(backend)).recent[1]
    survived = msgspec.structs.replace(lost, commit=kept.commit, number=kept.number)
    for head, outcome in ((lost, Outcome.LOST), (survived, Outcome.COMMITTED)):
        new = Snapshot(running.store, b"version of a swap in doubt", head, before.commit)
        publication = Publication(running.store, row_of(backend), before, new, [])
        publication.in_doubt = True
        assert publication.publish() is outcome


def test_a_reference_that_moves_meanwhile_is_not_set_back(history: History) -> None:
    backend, clock = history.copy(), ManualClock(history.clock.now_ms())
    looked = Survey(store_of(backend))
    steps = plan(looked.run())
    process(backend, clock).commit(MAIN, Add("k0"))
    recovery = Recovery(
        store_of(backend), ids=IdGenerator(NodeLeases(backend, clock), clock), clock=clock, principal="o"
    )
    with pytest.raises(StateError, match="was changed while"):
        recovery.carry_out(steps, looked.highest_id)


@pytest.mark.parametrize("lost_answer", [False, True], ids=["ends", "loses an answer"])
def test_a_recovery_may_end_or_lose_an_answer_at_any_write(history: History, lost_answer: bool) -> None:
    for n in range(1, 100):
        backend = history.copy()
        creator = process(backend, history.clock)
        creator.create(OTHER, ME)
        creator.commit(OTHER, Add("k"))
        creator.create(DEV, ME)
        creator.drop(DEV, ME)
        lose(backend, {head_of(backend, row_of(backend)).commit, head_of(backend, ROOT).commit})
        del backend._tables.references["r"][row_of(backend, OTHER)]
        ending = Ending(backend, n, lost_answer=lost_answer)
        if lost_answer:
            recover(ending, history.clock)
        else:
            with contextlib.suppress(Died):
                recover(ending, history.clock)
            recover(backend, history.clock)
        assert head_of(backend, row_of(backend)).number == 40
        assert number(process(backend, history.clock).open(OTHER), "k") == 1
        assert live(backend, history.clock) == [ROOT, MAIN, OTHER]
        check_sound(backend, history)
        if ending.left > 0:
            assert n > 10
            return
    raise AssertionError("a recovery has fewer writes")


def test_a_process_that_ran_on_goes_on_from_what_was_recovered(history: History) -> None:
    backend = history.copy()
    known = dict(chain(history.backend, head_of(backend, row_of(backend))))
    running = process(backend, history.clock)
    assert running.open(MAIN).read().head.number == 40
    recover(backend, history.clock, MAIN, known[7])
    assert running.commit(MAIN, Add("k1")) == 2
    assert running.open(MAIN).known().head.number == 9
    assert running.read(MAIN).head.number == 9


@pytest.mark.parametrize(("seed", "forks"), [(0, False), (1, False), (2, True), (3, True)])
def test_rows_newer_than_any_moment_may_be_lost(seed: int, forks: bool) -> None:
    """An asynchronous replica that had all references' rows, but objects only up to some moment."""
    history = History().at_random(seed, 60, forks=forks)
    known = chains(history)
    for moment in sorted({id for one in known.values() for _, id in one}):
        backend = history.copy()
        lose(backend, {id for id in ids_of(backend) if id > moment})
        recover(backend, history.clock)
        check_newest(backend, known)
        check_sound(backend, history)


@pytest.mark.parametrize("seed", range(25))
def test_any_rows_may_be_lost(seed: int) -> None:
    """Some objects at random, some rows of references gone, and some older."""
    history = History().at_random(seed + 100, 50, forks=seed % 2 == 1)
    rng, backend, known = random.Random(seed), history.copy(), chains(history)
    rows = backend._tables.references["r"]
    objects = ids_of(backend)
    lose(backend, set(rng.sample(objects[len(objects) // 2 :], rng.randrange(1, 12))))
    lose(backend, set(rng.sample(objects, rng.randrange(3))))
    for name in rng.sample(sorted(rows), rng.randrange(3)):
        older = rng.choice(history.past)["r"].get(name)
        if older is None:
            del rows[name]
        else:
            rows[name] = older
    rolled_back = {name: head_of(backend, name).number for name in known if name in rows}
    try:
        recover(backend, history.clock)
    except StateError:
        assert not any(whole(backend, id) for _, id in known[ROOT])
        return
    left = {name: [c for c in one if c[0] <= rolled_back.get(name, c[0])] for name, one in known.items()}
    check_newest(backend, left)
    check_sound(backend, history)


def chains(history: History) -> dict[str, list[tuple[int, int]]]:
    """The commits of the newest row of every reference, newest first."""
    rows = history.backend._tables.references["r"]
    newest = {name.rpartition("@")[0] or name: name for name in sorted(rows, key=lambda n: (len(n), n))}
    return {name: chain(history.backend, head_of(history.backend, name)) for name in newest.values()}


def check_newest(backend: MemoryBackend, known: dict[str, list[tuple[int, int]]]) -> None:
    """Every reference goes on from its newest complete commit, and where references forked at least from one of its
    own. What has none is not live, nor what has only the empty commit that began it if the registry forgot it."""
    names, listed = live(backend, ManualClock()), survey(backend)
    forked = any(name.startswith(DEV) for name in known)
    for row_name, one in known.items():
        left = [(number, id) for number, id in one if whole(backend, id)]
        name = row_name.rpartition("@")[0] or row_name
        if row_name not in listed or (name not in names and (not left or left[0][0] == 0)):
            assert forked or name not in names
            continue
        assert left, row_name
        went = goes_on_from(backend, row_name)
        assert went == left[0][1] or (forked and went in dict(left).values()), row_name


def goes_on_from(backend: MemoryBackend, row_name: str) -> int:
    """The commit that a head is, or has been put on top of by commits that say so."""
    id = head_of(backend, row_name).commit
    while True:
        commit = commit_of(backend, id)
        assert commit is not None
        entries_ = store_of(backend).get(commit.entries, Entries).entries if commit.entries else ()
        if {entry.action for entry in entries_} != {ACTION}:
            return id
        id = commit.parents[0]


def test_names_of_references(history: History) -> None:
    assert {found.name for found in survey(history.copy()).values()} == {ROOT, MAIN}
    assert OTHER not in live(history.copy(), history.clock)
