"""A purged realm leaves no rows behind, even after failures. No other realm loses anything."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.backends.base import Backend, Conflict, ObjectKey, ObjectRow, Swapped
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.clock import SystemClock
from polaris_spark.errors import InputError, PolarisError, RealmStateError, TryAgainError
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.fsck.checker import RealmCheck
from polaris_spark.maintenance.realm_purge import Purge
from polaris_spark.objects import known_types
from polaris_spark.system.realms import Realms, RealmState
from tests.maintenance.damage import copy_rows
from tests.rest.client import Client, connect, set_properties


class Place:
    """A store with the realms `kept` and `tenant`, each with some tables."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri, self.folder = uri, folder
        self.kept, self.tenant = self.open("kept"), self.open("tenant")
        for client in (self.kept, self.tenant):
            client.namespace("db")
            for number in range(12):
                client.create(f"t{number}")
        self.backend: Backend = self.kept.session.connection.backend
        self.realms = Realms(self.backend, SystemClock())
        self.instance = self.realms.active("tenant").instance

    def open(self, realm: str) -> Client:
        return connect(self.uri, self.folder / realm, realm=realm, metadata_files="never")

    def deactivate(self) -> None:
        self.realms.move("tenant", RealmState.INACTIVE)

    def rows(self, instance: str = "", backend: Backend | None = None) -> int:
        return count_rows(backend or self.backend, instance or self.instance)

    def purge(self) -> Purge:
        return Purge(self.backend, SystemClock())


def count_rows(backend: Backend, instance: str) -> int:
    tables: tuple[Any, ...] = ("objects", "references")
    splits = [split for table in tables for split in backend.splits(table, [instance], 1)]
    return sum(batch.num_rows for split in splits for batch in backend.scan(split))


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    memory = f"memory:{uuid.uuid4()}"
    return Place(memory if request.param == "memory" else f"sqlite://{tmp_path}/s.db", tmp_path)


class Rowwise(MemoryBackend):
    """A database that cannot delete a realm in bulk, and may die at any of its operations."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.left: int | None = None

    def _spend(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Died

    def drop_realm(self, realm: str) -> bool:
        return False

    def delete_objects(self, realm: str, keys: Collection[ObjectKey]) -> None:
        self._spend()
        super().delete_objects(realm, keys)

    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        self._spend()
        return super().delete_reference(realm, name, expected_version)

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: Any
    ) -> Swapped | Conflict:
        self._spend()
        return super().write_and_swap(realm, rows, name, expected_version, new)


class Died(BaseException):
    """Raised where the simulated process ends."""


def test_a_realm_that_others_go_on_writing_is_purged_when_they_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Rowwise("writers")
    place = Place(f"memory:{uuid.uuid4()}", tmp_path)
    copy_rows(place.backend, backend)
    realms = Realms(backend, SystemClock())
    realms.move("tenant", RealmState.INACTIVE)
    delete = backend.delete_objects

    def delete_and_write(realm: str, keys: Collection[ObjectKey]) -> None:
        delete(realm, keys)
        backend.write_objects(realm, [ObjectRow(1, 0, b"late")])

    monkeypatch.setattr(backend, "delete_objects", delete_and_write)
    with pytest.raises(TryAgainError, match="still being written"):
        Purge(backend, SystemClock()).realm("tenant")
    assert realms.find("tenant").state is RealmState.PURGING  # type: ignore[union-attr]  # it is there
    monkeypatch.setattr(backend, "delete_objects", delete)
    assert Purge(backend, SystemClock()).realm("tenant").deleted
    assert count_rows(backend, place.instance) == 0


def test_an_active_realm_is_not_purged_unless_it_is_to_be_deactivated(place: Place) -> None:
    before = place.rows()
    with pytest.raises(RealmStateError, match="ACTIVE: deactivate it first"):
        place.purge().realm("tenant")
    assert place.rows() == before
    purged = place.purge().realm("tenant", deactivate=True)
    assert (purged.realm, purged.instance, purged.state, purged.deleted) == (
        "tenant",
        place.instance,
        "GONE",
        True,
    )
    assert place.rows() == 0
    with pytest.raises(RealmStateError, match="realm 'tenant' was purged already"):
        place.purge().realm("tenant")


@pytest.mark.parametrize("is_used_again", [False, True])
def test_two_purges_at_once_both_succeed(
    place: Place, monkeypatch: pytest.MonkeyPatch, is_used_again: bool
) -> None:
    place.deactivate()
    slow = place.purge()
    delete = slow._delete_rows

    def overtaken(instance: str) -> tuple[int, int]:
        found = delete(instance)
        place.purge().realm("tenant")
        if is_used_again:
            place.tenant.session.close()
            place.open("tenant")
        return found

    monkeypatch.setattr(slow, "_delete_rows", overtaken)
    assert slow.realm("tenant").deleted
    assert place.rows() == 0
    found = place.realms.find("tenant")
    assert (found is not None and found.state is RealmState.ACTIVE) == is_used_again


def test_other_realms_keep_every_row(place: Place) -> None:
    kept = place.realms.active("kept").instance
    before = place.rows(kept)
    place.deactivate()
    place.purge().realm("tenant")
    assert place.rows(kept) == before
    assert place.kept.load("t3")["metadata"]
    assert RealmCheck(place.backend, SystemClock()).run() == []


def test_a_name_that_was_purged_can_be_used_again(place: Place) -> None:
    place.deactivate()
    place.purge().realm("tenant")
    place.tenant.session.close()
    again = place.open("tenant")
    assert again.ok("GET", "v1/namespaces")["namespaces"] == []
    assert place.realms.active("tenant").instance != place.instance


def test_writers_that_have_the_realm_open_can_no_longer_change_it(place: Place) -> None:
    place.deactivate()
    place.purge().realm("tenant")
    answer = place.tenant.commit("t1", set_properties(a="b"))
    assert answer.status >= 400
    assert not [
        problem for problem in RealmCheck(place.backend, SystemClock()).run() if problem.severity == "error"
    ]


@pytest.mark.parametrize("state", [RealmState.CREATED, RealmState.INITIALIZING, RealmState.LOADING])
def test_realms_that_were_never_finished_can_be_purged(place: Place, state: RealmState) -> None:
    ids = place.kept.session.connection.ids
    if state is RealmState.INITIALIZING:

        def dies(_: object) -> None:
            raise Died

        with pytest.raises(Died):
            place.realms.create("half", ids, dies, revisions=known_types())
    else:
        record = place.realms.create_for_loading("half", ids, revisions=known_types())
        place.backend.write_objects(record.instance, [ObjectRow(1, 0, b"half")])
    assert place.purge().realm("half").deleted
    assert place.realms.find("half") is None


def test_a_purge_that_died_anywhere_is_gone_on_with(tmp_path: Path) -> None:
    origin = Place(f"memory:{uuid.uuid4()}", tmp_path)
    origin.deactivate()
    for step in range(1, 100):
        backend = Rowwise(str(uuid.uuid4()))
        copy_rows(origin.backend, backend)
        backend.left = step
        purge = Purge(backend, SystemClock())
        try:
            purge.realm("tenant")
        except Died:
            backend.left = None
            assert count_rows(backend, origin.instance) >= 0
            assert Realms(backend, SystemClock()).find("tenant") is not None
            assert purge.realm("tenant").state == "GONE"
            assert count_rows(backend, origin.instance) == 0
            assert count_rows(backend, origin.realms.active("kept").instance) == origin.rows(
                origin.realms.active("kept").instance
            )
        else:
            assert step > 5
            return
    raise AssertionError("it never ends")


def test_rows_are_counted_where_they_are_deleted_one_by_one(tmp_path: Path) -> None:
    origin = Place(f"memory:{uuid.uuid4()}", tmp_path)
    backend = Rowwise(str(uuid.uuid4()))
    copy_rows(origin.backend, backend)
    total = count_rows(backend, origin.instance)
    purged = Purge(backend, SystemClock()).realm("tenant", deactivate=True)
    assert purged.references + purged.objects == total
    assert count_rows(backend, origin.instance) == 0


def test_rows_that_arrive_after_a_purge_are_found_and_purged_by_their_instance_id(place: Place) -> None:
    place.deactivate()
    place.purge().realm("tenant")
    place.backend.write_objects(place.instance, [ObjectRow(5, 0, b"late"), ObjectRow(6, 0, b"late")])
    (problem,) = RealmCheck(place.backend, SystemClock()).run()
    assert (problem.kind, problem.severity, problem.key) == ("leftover", "warning", place.instance)
    found = [one for one in place.purge().candidates() if one.realm is None]
    assert [(one.instance, one.objects, one.deleted) for one in found] == [(place.instance, 2, False)]
    assert place.purge().instance(place.instance).deleted
    assert place.rows() == 0
    assert RealmCheck(place.backend, SystemClock()).run() == []


def test_rows_of_a_realm_are_not_purged_by_instance(place: Place) -> None:
    before = place.rows()
    with pytest.raises(InputError, match="realm 'tenant', which is ACTIVE"):
        place.purge().instance(place.instance)
    with pytest.raises(InputError, match="the store itself"):
        place.purge().instance("::system::")
    assert place.rows() == before


Act = Callable[[Client], object]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda c: call(c.session, "purge_realm", name="kept"), "contains this catalog"),
        (lambda c: call(c.session, "purge_realm", name="a", instance="b"), "not both"),
        (lambda c: call(c.session, "purge_realm", instance="zz"), "'zz' is not the instance id of a realm"),
        (lambda c: call(c.session, "purge_realm", instance=""), "'' is not the instance id of a realm"),
        (lambda c: call(c.session, "purge_realm", deactivate=True), "give the realm's name"),
        (lambda c: call(c.session, "purge_realm", instance="a1", deactivate=True), "give the realm's name"),
        (lambda c: call(c.session, "purge_realm", name="nobody"), "no realm 'nobody'"),
        (lambda c: call(c.session, "purge_realm", name="tenant"), "ACTIVE"),
    ],
)
def test_purges_that_are_not_possible_are_refused(place: Place, act: Act, message: str) -> None:
    with pytest.raises(PolarisError, match=message):
        act(place.kept)


def test_the_procedure_lists_and_purges(place: Place) -> None:
    assert call(place.kept.session, "purge_realm") == []
    place.deactivate()
    ((name, instance, state, references, objects, deleted),) = call(place.kept.session, "purge_realm")
    assert (name, instance, state, deleted) == ("tenant", place.instance, "INACTIVE", False)
    assert references + objects == place.rows()
    (row,) = call(place.kept.session, "purge_realm", name="tenant")
    assert (row[0], row[2], row[5]) == ("tenant", "GONE", True)
    assert place.rows() == 0
