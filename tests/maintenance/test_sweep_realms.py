"""A sweep of many realms deletes in each realm what a sweep of that realm would delete, and reads the store once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import polaris_spark
from polaris_spark.backends.base import ObjectKey, ObjectRow, Split, Table
from polaris_spark.backends.sqlite import SQLiteBackend
from polaris_spark.clock import ManualClock
from polaris_spark.ids import IdParts, pack
from polaris_spark.maintenance.periods import Policy, realm_policy
from polaris_spark.maintenance.sweep import Rate
from polaris_spark.maintenance.sweep_realms import RealmToSweep, sweep_realms
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.connections import connect_store
from polaris_spark.system.realms import REALM_FORMAT, RealmRecord, RealmState
from polaris_spark.system.stores import system_references
from polaris_spark.system.tasks import Tasks
from tests.cli.catalogs import run

REALMS = ("a", "b", "c")
OLD = pack(IdParts(1_750_000_000_000, 1, 0))
"""An id that was made in 2025."""


@pytest.fixture
def store(tmp_path: Path) -> str:
    """URI of a store with the realms `REALMS`, and in each an object that nothing points to, under the same id."""
    uri = f"sqlite://{tmp_path / 'c.db'}"
    for realm in REALMS:
        with polaris_spark.connect(store=uri, realm=realm, warehouse=str(tmp_path / realm)) as session:
            session.request("POST", "v1/namespaces", None, json.dumps({"namespace": [f"of_{realm}"]}))
            references = session.catalog.references
            references.store.backend.write_objects(references.store.realm, [ObjectRow(OLD, 0, b"unreadable")])
    return uri


def rows_of(uri: str) -> dict[str, set[int]]:
    """Return the ids of the objects of each realm."""
    connection = connect_store(StoreURI.parse(uri), create=False)
    try:
        found: dict[str, set[int]] = {}
        for record in connection.realms.all():
            for split in connection.backend.splits("objects", [record.instance], 1):
                for batch in connection.backend.scan(split):
                    found.setdefault(record.name, set()).update(batch.column("id").to_pylist())
        return found
    finally:
        connection.close()


def test_each_realm_loses_its_own_garbage(store: str) -> None:
    before = rows_of(store)
    assert all(OLD in ids for ids in before.values())
    would = run("maintain", "sweep-realms", store, "--dry-run", "--json").json
    assert [(row["realm"], row["rows"], row["deleted"]) for row in would] == [
        (one, 1, False) for one in REALMS
    ]
    assert rows_of(store) == before
    did = run("maintain", "sweep-realms", store, "--json").json
    assert [(row["realm"], row["rows"], row["deleted"]) for row in did] == [(one, 1, True) for one in REALMS]
    after = rows_of(store)
    for realm in REALMS:
        assert before[realm] - after[realm] == {OLD}
        assert run("maintain", "sweep", store, "--realm", realm, "--no-spark", "--json").json[0]["rows"] == 0
        assert run("fsck", store, "--realm", realm).code == 0


def test_the_store_is_scanned_once(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: Counter[tuple[str, int]] = Counter()
    splits, scan = SQLiteBackend.splits, SQLiteBackend.scan
    asked: list[Any] = []

    def counted_splits(self: Any, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
        if table == "objects":
            asked.append(realms)
        return splits(self, table, realms, n)

    def counted(self: Any, split: Split) -> Iterator[pa.RecordBatch]:
        for batch in scan(self, split):
            if split.table == "objects":
                scanned.update(
                    zip(batch.column("realm").to_pylist(), batch.column("id").to_pylist(), strict=True)
                )
            yield batch

    monkeypatch.setattr(SQLiteBackend, "splits", counted_splits)
    monkeypatch.setattr(SQLiteBackend, "scan", counted)
    assert run("maintain", "sweep-realms", store).code == 0
    assert [len(realms) for realms in asked] == [len(REALMS)]
    assert set(scanned.values()) == {1}


def test_a_realm_that_cannot_be_swept_does_not_keep_others_from_it(store: str) -> None:
    needed = min(rows_of(store)["b"] - {OLD})
    connection = connect_store(StoreURI.parse(store), create=False)
    try:
        connection.backend.delete_objects(connection.realms.active("b").instance, [ObjectKey(needed)])
    finally:
        connection.close()
    before = rows_of(store)
    answer = run("maintain", "sweep-realms", store, "--json")
    assert (answer.code, "1 of 3 realms were not swept" in answer.err) == (2, True)
    assert [row["realm"] for row in answer.json] == ["a", "c"]
    after = rows_of(store)
    assert after["b"] == before["b"]
    assert OLD not in after["a"] | after["c"]


def test_a_realm_of_a_newer_release_does_not_keep_others_from_it(store: str) -> None:
    connection = connect_store(StoreURI.parse(store), create=False)
    try:
        references = system_references(connection.backend)
        found = references.read("realm/b", RealmRecord)
        assert found is not None
        newer = references.row(msgspec.structs.replace(found.value, format=REALM_FORMAT + 1))
        assert references.put("realm/b", found.version, newer)
        answer = run("maintain", "sweep-realms", store, "--json")
        assert (answer.code, "1 of 3 realms were not swept" in answer.err) == (2, True)
        assert [row["realm"] for row in answer.json] == ["a", "c"]
        assert references.put("realm/b", newer.version, references.row(found.value))
    finally:
        connection.close()
    assert OLD in rows_of(store)["b"]


def test_periods_that_change_after_a_realm_was_opened_hold(store: str) -> None:
    connection = connect_store(StoreURI.parse(store), create=False)
    sessions = {realm: polaris_spark.connect(store=store, realm=realm) for realm in ("a", "b")}

    def changed() -> Policy:
        sessions["b"].set_catalog_properties({"grace": "3000 d", "history-retention": "3000 d"})
        return realm_policy(sessions["a"].catalog)

    try:
        realms = [
            RealmToSweep(realm, one.catalog.references, policy, one.operation(), one.serving.require)
            for (realm, one), policy in zip(
                sessions.items(), (changed, lambda: realm_policy(sessions["b"].catalog)), strict=True
            )
        ]
        swept = {one.name: one.swept for one in sweep_realms(realms)}
        assert {name: one and [count.rows for count in one.counts] for name, one in swept.items()} == {
            "a": [1],
            "b": [],
        }
    finally:
        for session in sessions.values():
            session.close()
        connection.close()
    assert OLD in rows_of(store)["b"]


def test_realms_that_are_not_active_are_left_alone(store: str) -> None:
    connection = connect_store(StoreURI.parse(store), create=False)
    connection.realms.move("b", RealmState.INACTIVE)
    connection.close()
    before = rows_of(store)["b"]
    answer = run("maintain", "sweep-realms", store, "--json")
    assert [row["realm"] for row in answer.json] == ["a", "c"]
    assert rows_of(store)["b"] == before


def test_one_process_at_a_time_sweeps_all_realms(store: str) -> None:
    connection = connect_store(StoreURI.parse(store), create=False)
    try:
        with Tasks(connection.backend, connection.clock).running("sweep-realms", "store"):
            answer = run("maintain", "sweep-realms", store)
            assert (answer.code, "has been running" in answer.err) == (2, True)
    finally:
        connection.close()
    assert run("maintain", "sweep-realms", store).code == 0


def test_rows_per_second_are_bounded() -> None:
    clock = ManualClock()
    rate, begun = Rate(100, clock), clock.monotonic_ms()
    for _ in range(10):
        rate.take(50)
    assert clock.monotonic_ms() - begun == pytest.approx(4_500)  # the last rows have their time afterwards
    clock.advance(60_000)
    begun = clock.monotonic_ms()
    rate.take(50)
    assert clock.monotonic_ms() == begun  # time that was not used is not saved up for more than one call
    rate.take(50)
    assert clock.monotonic_ms() - begun == pytest.approx(500)


def test_a_realm_without_a_catalog_is_reported_and_is_no_error(store: str) -> None:
    assert run("realm", "create", store, "empty").code == 0
    answer = run("maintain", "sweep-realms", store, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert [row["realm"] for row in answer.json] == [*REALMS, "empty"]
    assert answer.json[-1] == {"realm": "empty", "note": "no catalog"}
    answer = run("maintain", "sweep-realms", store)
    assert answer.code == 0
    assert any("empty" in line and "no catalog" in line for line in answer.out.splitlines())
