"""Recovery works whichever rows are lost, wherever it is interrupted, and whichever processes keep running."""

from __future__ import annotations

import contextlib
import random

import msgspec
import pytest

from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.clock import ManualClock
from polaris_spark.commits.publication import Outcome, Publication
from polaris_spark.commits.rows import Entries
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import StateError
from polaris_spark.ids import IdGenerator, id_time_ms
from polaris_spark.system.leases import LEASE_MS, NodeLeases
from polaris_spark.system.recovery.execution import ACTION, Recovery
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
    check_sound,
    commit_of,
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
        new = CommitReader(running.store, b"version of a swap in doubt", head, before.commit)
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
    with pytest.raises(StateError, match="another process changed reference"):
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


def test_a_process_that_kept_running_continues_from_the_recovered_state(history: History) -> None:
    backend = history.copy()
    known = dict(chain(history.backend, head_of(backend, row_of(backend))))
    running = process(backend, history.clock)
    assert running.open(MAIN).read().head.number == 40
    recover(backend, history.clock, MAIN, known[7])
    assert running.commit(MAIN, Add("k1")) == 2
    assert running.open(MAIN)._heads.known().head.number == 9
    assert running.read(MAIN).head.number == 9


@pytest.mark.parametrize(("seed", "forks"), [(0, False), (1, False), (2, True), (3, True)])
def test_rows_newer_than_any_moment_may_be_lost(seed: int, forks: bool) -> None:
    """An asynchronous replica has the rows of all references, but only the objects up to some time."""
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
    """Random objects are missing, and some rows of references are missing or old."""
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
    """Return the commits of the newest row of every reference, newest first."""
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
    """Return the commit of a head, or the commit below the log entries of recoveries."""
    id = head_of(backend, row_name).commit
    while True:
        commit = commit_of(backend, id)
        assert commit is not None
        entries_ = store_of(backend).get(commit.entries, Entries).entries if commit.entries else ()
        if {entry.action for entry in entries_} != {ACTION}:
            return id
        id = commit.parents[0]
