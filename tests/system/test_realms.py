"""Realms: their states and names, and creation by several processes at the same time."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from itertools import count
from typing import NoReturn

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.clock import ManualClock, SystemClock
from polaris_spark.errors import InputError, NewerFormatError, NoStoreError, RealmStateError, TryAgainError
from polaris_spark.ids import IdGenerator
from polaris_spark.names import problem_of
from polaris_spark.store.references import ReferenceStore
from polaris_spark.system.leases import NodeLeases
from polaris_spark.system.realms import FOLLOWING, SERVING_MS, RealmRecord, Realms, RealmState, ServingRealm
from polaris_spark.system.stores import (
    STORE_FORMAT,
    StoreRecord,
    check_store,
    open_store,
    system_references,
)
from polaris_spark.testing.processes import in_threads
from polaris_spark.testing.stores import HOSTILE_NAMES
from polaris_spark.testing.waiting import wait_until
from tests.forking import context, preload
from tests.stores import SHARED, StoreOn, databases

preload(__name__)

_numbers = count()
S = RealmState


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(f"realms-{next(_numbers)}")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def realms(backend: MemoryBackend, clock: ManualClock) -> Realms:
    open_store(backend, clock)
    return Realms(backend, clock)


@pytest.fixture
def ids(backend: MemoryBackend, clock: ManualClock) -> IdGenerator:
    return IdGenerator(NodeLeases(backend, clock), clock)


def nothing(record: RealmRecord) -> None:
    """Initialize nothing."""


# The store's record


def test_a_new_store_says_its_format(backend: MemoryBackend, clock: ManualClock) -> None:
    with pytest.raises(NoStoreError):
        check_store(backend)
    assert open_store(backend, clock) == StoreRecord(STORE_FORMAT, clock.now_ms())
    clock.advance(1_000)
    assert open_store(backend, clock) == check_store(backend)
    assert check_store(backend).created_ms == clock.now_ms() - 1_000


def test_a_store_of_a_newer_format_is_refused_with_the_required_release(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    references = system_references(backend)
    references.put("store", None, references.row(StoreRecord(7, 0, "polaris_spark 3.1")))
    with pytest.raises(NewerFormatError, match=r"format 7.*polaris_spark 3\.1"):
        check_store(backend)
    with pytest.raises(NewerFormatError, match=r"format 7.*polaris_spark 3\.1"):
        open_store(backend, clock)


def test_a_realm_of_a_newer_format_is_refused(backend: MemoryBackend, realms: Realms) -> None:
    references = system_references(backend)
    record = RealmRecord(name="new", instance="1", state=S.ACTIVE, format=7)
    references.put("realm/new", None, references.row(record))
    for use in (realms.find, realms.active, lambda name: realms.move(name, S.INACTIVE)):
        with pytest.raises(NewerFormatError, match="realm 'new' has format 7"):
            use("new")


# Creation


def test_a_created_realm_serves_under_an_instance_of_its_own(realms: Realms, ids: IdGenerator) -> None:
    initialized: list[RealmRecord] = []
    record = realms.create(
        "one", ids, initialized.append, revisions={"commit": 1}, properties={"owner": "me"}
    )
    assert realms.active("one") == record
    assert (record.state, record.revisions, record.properties) == (S.ACTIVE, {"commit": 1}, {"owner": "me"})
    assert [r.instance for r in initialized] == [record.instance]
    assert initialized[0].state is S.INITIALIZING
    other = realms.create("two", ids, nothing, revisions={})
    assert other.instance != record.instance
    assert realms.all() == [record, other]


def test_creating_a_realm_again_changes_nothing(realms: Realms, ids: IdGenerator) -> None:
    record = realms.create("one", ids, nothing, revisions={"commit": 1})
    assert realms.create("one", ids, _fail, revisions={"commit": 2}) == record


def test_a_creation_that_died_half_way_is_finished_by_the_next(realms: Realms, ids: IdGenerator) -> None:
    with pytest.raises(KeyboardInterrupt):
        realms.create("one", ids, _fail, revisions={})
    begun = realms.find("one")
    assert begun is not None
    assert begun.state is S.INITIALIZING
    with pytest.raises(RealmStateError, match="INITIALIZING"):
        realms.active("one")
    assert realms.create("one", ids, nothing, revisions={}).instance == begun.instance


def _fail(record: RealmRecord) -> None:
    raise KeyboardInterrupt


def test_threads_that_create_the_same_realm_get_the_same_one(
    backend: MemoryBackend, realms: Realms, ids: IdGenerator
) -> None:
    records = in_threads(8, lambda _: realms.create("one", ids, nothing, revisions={}))
    assert len({record.instance for record in records}) == 1
    assert {record.state for record in records} == {S.ACTIVE}


def _create(uri: str) -> str:
    backend, clock = open_backend(uri), SystemClock()
    open_store(backend, clock)
    ids = IdGenerator(NodeLeases(backend, clock), clock)

    def initialize(record: RealmRecord) -> None:
        references = ReferenceStore(backend, record.instance)
        references.insert("root", references.row("first"))

    record = Realms(backend, clock).create("one", ids, initialize, revisions={})
    assert ReferenceStore(backend, record.instance).read("root", str) is not None
    ids.release()
    backend.close()
    return record.instance


@pytest.mark.parametrize("database", databases(SHARED, ordinary=("sqlite",)))
def test_processes_that_create_the_same_store_and_realm_get_the_same_one(
    store_on: StoreOn, database: str
) -> None:
    uri = store_on(database)
    with context.Pool(4) as pool:
        instances = pool.map(_create, [uri] * 8, chunksize=1)
    assert len(set(instances)) == 1


# States


def test_a_realm_that_does_not_exist_is_refused(realms: Realms) -> None:
    assert realms.find("none") is None
    with pytest.raises(RealmStateError, match="there is no realm 'none'"):
        realms.active("none")
    with pytest.raises(RealmStateError, match="there is no realm 'none'"):
        realms.move("none", S.INACTIVE)


@pytest.mark.parametrize("before", list(S))
@pytest.mark.parametrize("after", list(S))
def test_states_follow_each_other_as_drawn_and_in_no_other_way(
    backend: MemoryBackend, realms: Realms, before: RealmState, after: RealmState
) -> None:
    drawn = {
        S.CREATED: {S.INITIALIZING, S.LOADING, S.PURGING},
        S.INITIALIZING: {S.ACTIVE, S.PURGING},
        S.LOADING: {S.ACTIVE, S.PURGING},
        S.ACTIVE: {S.INACTIVE},
        S.INACTIVE: {S.ACTIVE, S.PURGING},
        S.PURGING: {S.PURGED},
        S.PURGED: {S.GONE},
        S.GONE: set(),
    }
    assert FOLLOWING[before] == drawn[before]
    references = system_references(backend)
    references.put("realm/one", None, references.row(RealmRecord(name="one", instance="1", state=before)))
    if after is before or after in drawn[before]:
        assert realms.move("one", after).state is after
    else:
        with pytest.raises(RealmStateError, match=before.value):
            realms.move("one", after)
    found = realms.find("one")
    kept = after if after in drawn[before] else before
    assert (None if kept is S.GONE else kept) == (found and found.state)


@pytest.mark.parametrize("state", [s for s in S if s not in (S.ACTIVE, S.GONE)])
def test_only_an_active_realm_serves(backend: MemoryBackend, realms: Realms, state: RealmState) -> None:
    references = system_references(backend)
    references.put("realm/one", None, references.row(RealmRecord(name="one", instance="1", state=state)))
    with pytest.raises(RealmStateError, match=state.value):
        realms.active("one")


@pytest.mark.parametrize("state", [S.INACTIVE, S.LOADING, S.PURGING, S.PURGED])
def test_a_realm_that_is_put_away_is_not_created_again(
    backend: MemoryBackend, realms: Realms, ids: IdGenerator, state: RealmState
) -> None:
    references = system_references(backend)
    references.put("realm/one", None, references.row(RealmRecord(name="one", instance="1", state=state)))
    with pytest.raises(RealmStateError, match=state.value):
        realms.create("one", ids, nothing, revisions={})


def test_a_name_that_is_free_again_gets_a_new_instance(realms: Realms, ids: IdGenerator) -> None:
    first = realms.create("one", ids, nothing, revisions={})
    for state in (S.INACTIVE, S.PURGING, S.PURGED, S.GONE):
        realms.move("one", state, instance=first.instance)
    assert realms.find("one") is None
    assert realms.all() == []
    second = realms.create("one", ids, nothing, revisions={})
    assert second.instance != first.instance
    with pytest.raises(RealmStateError, match=f"with the instance id {first.instance}"):
        realms.move("one", S.INACTIVE, instance=first.instance)


def test_a_realm_for_loading_serves_once_it_is_moved(realms: Realms, ids: IdGenerator) -> None:
    record = realms.create_for_loading("one", ids, revisions={})
    assert record.state is S.LOADING
    with pytest.raises(RealmStateError, match="its state is LOADING"):
        realms.create_for_loading("one", ids, revisions={})
    realms.move("one", S.ACTIVE)
    assert realms.active("one").instance == record.instance


# Names


class CrowdedClock(ManualClock):
    """A manual clock that gives a lock, and counts the threads that reached it."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = 0
        self._lock = threading.Lock()

    def lock(self) -> AbstractContextManager[object]:
        return self

    def __enter__(self) -> None:
        self.arrived += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_check_while_the_database_fails_ends_at_the_deadline_of_commits(
    realms: Realms, clock: ManualClock, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = realms.create("a", ids, nothing, revisions={})
    serving = ServingRealm(realms, clock, "a", record.instance, 1_000.0)
    monkeypatch.setattr(realms, "find", fail)
    serving.require()
    clock.advance(SERVING_MS)
    begun = clock.elapsed_ms()
    with pytest.raises(TryAgainError):
        serving.require()
    assert 1_000 <= clock.elapsed_ms() - begun < 10_000
    monkeypatch.undo()
    serving.require()


def test_threads_that_wait_for_a_check_fail_with_it(
    backend: MemoryBackend, ids: IdGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    realms, clock = Realms(backend, ManualClock()), CrowdedClock()
    record = realms.create("a", ids, nothing, revisions={})
    serving = ServingRealm(realms, clock, "a", record.instance, 0.0)
    clock.advance(SERVING_MS)
    reads = count()

    def find(name: str) -> RealmRecord:
        next(reads)
        wait_until(lambda: clock.arrived == 5, "all threads wait")
        fail(name)

    monkeypatch.setattr(realms, "find", find)

    def require(_: int) -> str:
        with pytest.raises(TryAgainError) as caught:
            serving.require()
        return str(caught.value)

    assert in_threads(5, require) == ["the database fails"] * 5
    assert next(reads) == 2  # the first thread's attempt, and its last one after the deadline


def fail(_: str) -> NoReturn:
    raise TryAgainError("the database fails")


def test_hostile_names_are_names(realms: Realms, ids: IdGenerator) -> None:
    names = [name for name in HOSTILE_NAMES if len(name.encode()) <= 255 and problem_of(name) is None]
    for name in names:
        realms.create(name, ids, nothing, revisions={})
    assert [record.name for record in realms.all()] == sorted(names)
    assert len({record.instance for record in realms.all()}) == len(names)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "empty"),
        ("::system::", "reserved"),
        ("::mine", "reserved"),
        ("\ud800", "Unicode"),
        ("n" * 256, "256 bytes"),
    ],
)
def test_names_that_no_realm_can_have_are_refused(
    realms: Realms, ids: IdGenerator, name: str, words: str
) -> None:
    for use in (realms.find, lambda name: realms.create(name, ids, nothing, revisions={})):
        with pytest.raises(InputError, match=words):
            use(name)


@pytest.mark.parametrize("name", [name for name in HOSTILE_NAMES if problem_of(name)])
def test_an_unprintable_name_is_refused_for_a_new_realm_and_works_for_an_old_one(
    realms: Realms, ids: IdGenerator, name: str
) -> None:
    with pytest.raises(InputError, match=r"control character|separates"):
        realms.create(name, ids, nothing, revisions={})
    assert realms.find(name) is None
    realms.create_for_loading(name, ids, revisions={})  # as a migration does, which keeps the name
    realms.move(name, S.ACTIVE)
    assert realms.create(name, ids, nothing, revisions={}).name == name
    assert realms.active(name).name == name
