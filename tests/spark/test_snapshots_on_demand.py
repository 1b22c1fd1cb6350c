"""Loading snapshots on demand from the JVM: by Iceberg's Java interface, and by Spark SQL."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from tests.rest.client import Client, Json, connect, rename, table

if TYPE_CHECKING:
    from conftest import CatalogPlace

pytestmark = pytest.mark.spark

_numbers = count(1)


class Java:
    """Iceberg's Java interface of the catalog, on a Python side that records its requests."""

    def __init__(self, spark: SparkSession, place: CatalogPlace, folder: Path) -> None:
        self.spark = spark
        self.notes = folder / "requests"
        jvm: Any = spark._jvm
        self.jvm = jvm
        self.iceberg = jvm.org.apache.iceberg
        self.catalog = jvm.io.polarisspark.PolarisRESTCatalog()
        self.catalog.setConf(spark._jsc.hadoopConfiguration())
        properties = {"store": place.store, "warehouse": place.warehouse, "python": self._interpreter(folder)}
        self.catalog.initialize("polaris", properties)
        self.requests()

    def _interpreter(self, folder: Path) -> str:
        script = folder / "python"
        program = Path(__file__).with_name("recording_bridge.py")
        script.write_text(f'#!/bin/sh\nRECORDED_TO="{self.notes}" exec "{sys.executable}" "{program}"\n')
        script.chmod(0o755)
        return str(script)

    def load(self, namespace: str, name: str = "t") -> Any:
        space: Any = self.spark.sparkContext._gateway.new_array(self.jvm.java.lang.String, 1)  # type: ignore[union-attr]  # no remote session
        space[0] = namespace
        space = self.iceberg.catalog.Namespace.of(space)
        return self.catalog.loadTable(self.iceberg.catalog.TableIdentifier.of(space, name))

    def append(self, table: Any) -> None:
        """Append a data file that is never read."""
        table.newFastAppend().appendFile(self.file(table)).commit()

    def file(self, table: Any) -> Any:
        builder = self.iceberg.DataFiles.builder(self.iceberg.PartitionSpec.unpartitioned())
        path = f"{table.location()}/data/{next(_numbers)}.parquet"
        return builder.withPath(path).withFileSizeInBytes(10).withRecordCount(1).build()

    def requests(self) -> list[Json]:
        """Return the requests since the last call, without metrics reports, whose times vary."""
        if not self.notes.exists():
            return []
        lines = self.notes.read_text(encoding="utf-8").splitlines()
        self.notes.write_text("", encoding="utf-8")
        asked = [json.loads(line) for line in lines]
        return [request for request in asked if not request["path"].endswith("/metrics")]


@pytest.fixture(scope="module")
def java(spark: SparkSession, place: CatalogPlace, tmp_path_factory: pytest.TempPathFactory) -> Java:
    return Java(spark, place, tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="module")
def other(spark: SparkSession, place: CatalogPlace) -> Iterator[Client]:
    """Another client of the catalog, in this process. It always loads all snapshots."""
    client = connect(place.store, None, catalog="polaris")
    yield client
    client.session.close()


@pytest.fixture
def space(spark: SparkSession, namespace: str, java: Java) -> str:
    """A namespace with a table `t` of four appends."""
    found = namespace.rpartition(".")[2]
    spark.sql(f"CREATE TABLE {namespace}.t (n INT)")
    made = java.load(found)
    for _ in range(4):
        java.append(made)
    java.requests()
    return found


def ids(snapshots: Any) -> list[int]:
    """Ids of Java snapshots."""
    return [snapshot.snapshotId() for snapshot in snapshots]


def truth(other: Client, space: str, name: str = "t") -> list[int]:
    return [snapshot["snapshot-id"] for snapshot in snapshots_of(other, space, name)]


def snapshots_of(other: Client, space: str, name: str = "t") -> list[Json]:
    found: list[Json] = other.load(name, (space,))["metadata"]["snapshots"]
    return found


def commit(other: Client, space: str, *updates: Json) -> None:
    other.ok("POST", table("t", (space,)), {"requirements": [], "updates": list(updates)})


def grow(other: Client, space: str, snapshots: int) -> None:
    """Append from another client until the table has this number of snapshots."""
    last = snapshots_of(other, space)[-1]
    updates: list[Json] = []
    for number in range(len(snapshots_of(other, space)) + 1, snapshots + 1):
        id = last["snapshot-id"] % 1_000_003 + number
        last = {
            **last,
            "parent-snapshot-id": last["snapshot-id"],
            "snapshot-id": id,
            "sequence-number": number,
            "timestamp-ms": last["timestamp-ms"] + 1,
        }
        updates += [{"action": "add-snapshot", "snapshot": last}]
    main = {"ref-name": "main", "type": "branch", "snapshot-id": last["snapshot-id"]}
    commit(other, space, *updates, {"action": "set-snapshot-ref", **main})


def test_one_table_object_appends_and_expires_and_appends(java: Java, other: Client, space: str) -> None:
    made = java.load(space)
    for _ in range(3):
        java.append(made)
    assert ids(made.snapshots()) == truth(other, space)
    assert len(truth(other, space)) == 7
    first, second = ids(made.snapshots())[:2]
    made.expireSnapshots().expireSnapshotId(first).expireSnapshotId(second).commit()
    assert ids(made.snapshots()) == truth(other, space)
    assert len(truth(other, space)) == 5
    java.append(made)
    made.expireSnapshots().expireOlderThan(made.currentSnapshot().timestampMillis() + 1).retainLast(
        2
    ).commit()
    assert ids(made.snapshots()) == truth(other, space)
    assert len(truth(other, space)) == 2
    java.append(made)
    made.refresh()
    assert ids(made.snapshots()) == truth(other, space)
    assert [entry.snapshotId() for entry in made.history()] == truth(other, space)


def test_a_loaded_version_stays_as_it_was_while_others_append_and_expire(
    java: Java, other: Client, space: str
) -> None:
    before = truth(other, space)
    reader, writer = java.load(space), java.load(space)
    held = reader.operations().current()
    java.append(writer)
    commit(other, space, {"action": "remove-snapshots", "snapshot-ids": before[:2]})
    java.append(writer)
    assert ids(writer.snapshots()) == truth(other, space)
    assert ids(held.snapshots()) == before
    assert held.snapshot(before[0]).snapshotId() == before[0]
    assert ids(reader.snapshots()) == before
    reader.refresh()
    assert ids(reader.snapshots()) == truth(other, space)
    assert reader.snapshot(before[0]) is None


def test_a_thousand_snapshots_are_loaded_once_and_only_when_asked_for(
    java: Java, other: Client, space: str
) -> None:
    grow(other, space, 1_000)
    made = java.load(space)
    assert made.currentSnapshot().snapshotId() == truth(other, space)[-1]
    assert [(r["method"], r["snapshots"]) for r in java.requests()] == [("GET", 1)]
    assert len(ids(made.snapshots())) == 1_000
    java.requests()
    for _ in range(3):
        java.append(made)
        made.updateProperties().set("k", str(next(_numbers))).commit()
    asked = java.requests()
    assert sum(request["method"] == "POST" for request in asked) == 6
    assert max(request["snapshots"] for request in asked) <= 1
    assert max(request["sent"] for request in asked) < 5_000
    assert len(asked) <= 18
    assert ids(java.load(space).snapshots()) == truth(other, space)
    assert len(truth(other, space)) == 1_003


def test_commits_that_leave_the_snapshots_alone_ask_for_none(java: Java, space: str) -> None:
    made = java.load(space)
    made.updateProperties().set("k", "0").commit()
    java.requests()
    for number in range(3):
        made.updateProperties().set("k", str(number + 1)).commit()
    assert not [request for request in java.requests() if request["path"].endswith("/snapshots")]


def test_a_version_that_the_jvm_has_is_not_sent_again(java: Java, other: Client, space: str) -> None:
    made = java.load(space)
    made.updateProperties().set("k", "0").commit()
    java.requests()
    made.refresh()
    made.updateProperties().set("k", "1").commit()
    assert java.load(space).properties()["k"] == "1"
    assert java.load(space).properties()["k"] == "1"
    assert [(request["method"], request["status"]) for request in java.requests()] == [
        ("GET", 304),
        ("GET", 304),
        ("POST", 200),
        ("GET", 304),
        ("GET", 304),
    ]
    commit(other, space, {"action": "set-properties", "updates": {"k": "2"}})
    made.refresh()
    assert made.properties()["k"] == "2"
    assert java.load(space).properties()["k"] == "2"
    assert [request["status"] for request in java.requests()] == [200, 304]


def test_snapshots_are_the_same_however_they_came(java: Java, other: Client, space: str) -> None:
    parse = java.iceberg.SnapshotParser
    made = java.load(space)
    java.append(made)
    sent = [json.loads(parse.toJson(snapshot)) for snapshot in made.snapshots()]
    assert sent == snapshots_of(other, space)


def test_text_beyond_ascii_in_a_summary_comes_through(java: Java, other: Client, space: str) -> None:
    made = java.load(space)
    for text in ("ü𝄞", '"}],\\'):
        made.newFastAppend().appendFile(java.file(made)).set("note", text).commit()
    java.append(made)
    found = [snapshot.summary().get("note") for snapshot in java.load(space).snapshots()]
    assert found[-3:] == ["ü𝄞", '"}],\\', None]


def test_a_renamed_table_keeps_its_loaded_metadata(java: Java, other: Client, space: str) -> None:
    before = truth(other, space)
    made = java.load(space)
    other.ok("POST", "v1/tables/rename", _within(space, rename("t", "renamed")))
    assert ids(made.snapshots()) == before
    assert ids(java.load(space, "renamed").snapshots()) == before


def _within(space: str, body: Json) -> Json:
    return {key: {**identifier, "namespace": [space]} for key, identifier in body.items()}


def test_a_table_of_the_same_name_is_not_taken_for_the_one_that_was_dropped(
    spark: SparkSession, java: Java, other: Client, space: str
) -> None:
    before = truth(other, space)
    old = java.load(space)
    spark.sql(f"DROP TABLE polaris.{space}.t")
    spark.sql(f"CREATE TABLE polaris.{space}.t (n INT)")
    new = java.load(space)
    java.append(new)
    java.append(new)
    assert ids(new.snapshots()) == truth(other, space)
    assert len(truth(other, space)) == 2
    assert ids(old.snapshots()) == before


def test_a_transaction_of_two_appends_and_an_expiry_is_one_commit(
    java: Java, other: Client, space: str
) -> None:
    made = java.load(space)
    first = ids(made.snapshots())[0]
    transaction = made.newTransaction()
    transaction.newFastAppend().appendFile(java.file(made)).commit()
    transaction.expireSnapshots().expireSnapshotId(first).commit()
    transaction.newFastAppend().appendFile(java.file(made)).commit()
    transaction.commitTransaction()
    assert ids(made.snapshots()) == truth(other, space)
    assert len(truth(other, space)) == 5


def test_a_table_is_set_back_to_a_snapshot_that_no_branch_names(
    java: Java, other: Client, space: str
) -> None:
    made = java.load(space)
    first, second, *_ = truth(other, space)
    made.manageSnapshots().createTag("second", second).commit()
    made.manageSnapshots().rollbackTo(first).commit()
    assert made.currentSnapshot().snapshotId() == first
    assert made.refs()["second"].snapshotId() == second
    assert len(ids(made.snapshots())) == 4


def test_properties_of_icebergs_own_way_to_load_snapshots_late_change_nothing(
    java: Java, spark: SparkSession, place: CatalogPlace, other: Client, space: str
) -> None:
    catalog = java.jvm.io.polarisspark.PolarisRESTCatalog()
    catalog.setConf(spark._jsc.hadoopConfiguration())
    properties = {"store": place.store, "warehouse": place.warehouse, "python": sys.executable}
    catalog.initialize("polaris", {**properties, "snapshot-loading-mode": "refs"})
    identifier = java.iceberg.catalog.TableIdentifier.parse(f"{space}.t")
    before = truth(other, space)
    held = catalog.loadTable(identifier)
    java.append(java.load(space))
    commit(other, space, {"action": "remove-snapshots", "snapshot-ids": before[:1]})
    assert ids(held.snapshots()) == before


@pytest.fixture
def rows(spark: SparkSession, namespace: str) -> str:
    """A table with the snapshots of four statements. Returned as its SQL name."""
    spark.sql(f"CREATE TABLE {namespace}.r (n INT)")
    for n in range(4):
        spark.sql(f"INSERT INTO {namespace}.r VALUES ({n})")
    return f"{namespace}.r"


def test_all_of_icebergs_metadata_tables_show_all_snapshots(spark: SparkSession, rows: str) -> None:
    for name in ("snapshots", "history", "metadata_log_entries"):
        assert spark.table(f"{rows}.{name}").count() == (5 if name == "metadata_log_entries" else 4)
    for name in ("all_manifests", "all_data_files", "all_files", "all_entries"):
        assert spark.table(f"{rows}.{name}").count() == 10 if name == "all_manifests" else 4
    assert spark.table(f"{rows}.all_delete_files").count() == 0
    for name in ("manifests", "entries", "files", "data_files"):
        assert spark.table(f"{rows}.{name}").count() == 4
    for name in ("partitions", "refs"):
        assert spark.table(f"{rows}.{name}").count() == 1


def test_every_snapshot_can_be_read_by_id_and_by_time(spark: SparkSession, rows: str) -> None:
    listed = spark.sql(
        f"SELECT snapshot_id, committed_at FROM {rows}.snapshots ORDER BY committed_at"
    ).collect()
    for number, (id, at) in enumerate(listed, 1):
        assert spark.sql(f"SELECT * FROM {rows} VERSION AS OF {id}").count() == number
        assert spark.sql(f"SELECT * FROM {rows} TIMESTAMP AS OF '{at}'").count() == number


def test_a_staged_snapshot_is_cherry_picked_and_a_replaced_table_keeps_its_history(
    spark: SparkSession, rows: str
) -> None:
    spark.sql(f"ALTER TABLE {rows} SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
    spark.conf.set("spark.wap.id", "audit")
    try:
        spark.sql(f"INSERT INTO {rows} VALUES (4)")
    finally:
        spark.conf.unset("spark.wap.id")
    assert spark.table(rows).count() == 4
    [(staged,)] = spark.sql(
        f"SELECT snapshot_id FROM {rows}.snapshots WHERE summary['wap.id'] = 'audit'"
    ).collect()
    name = rows.partition(".")[2]
    spark.sql(f"CALL polaris.system.cherrypick_snapshot('{name}', {staged})")
    assert spark.table(rows).count() == 5
    snapshots = spark.table(f"{rows}.snapshots").count()
    spark.sql(f"CREATE OR REPLACE TABLE {rows} AS SELECT 1 AS other")
    assert spark.table(f"{rows}.snapshots").count() == snapshots + 1
    assert spark.sql(f"SELECT * FROM {rows} VERSION AS OF {staged}").columns == ["n"]
