"""What a refresh records in its two documents, read by pyiceberg field by field; and a view written by hand."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import StaticTable, Table
from pyspark.sql import SparkSession

import polaris_spark
from polaris_spark.pyiceberg import PolarisCatalog
from tests.spark.sql import rows, run
from tests.spark.test_incremental_views import INCREMENTAL
from tests.spark.test_materialized_views import home, refreshed
from tests.spark.test_outside_sources import other

if TYPE_CHECKING:
    from conftest import CatalogPlace

__all__ = ["home", "other"]  # fixtures
pytestmark = pytest.mark.spark

DOCUMENT = "materialized_view_metadata"


@pytest.fixture
def catalog(place: CatalogPlace) -> Iterator[PolarisCatalog]:
    """The catalog of the session, as pyiceberg sees it."""
    with PolarisCatalog("polaris", store=place.store, warehouse=place.warehouse) as opened:
        yield opened


def summary_of(table: Table) -> dict[str, Any]:
    """The summary of the current snapshot."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return snapshot.summary.additional_properties


def current(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def test_pyiceberg_finds_what_a_refresh_has_recorded_of_each_kind_of_source(
    spark: SparkSession, home: str, other: str, catalog: PolarisCatalog, tmp_path: Path
) -> None:
    space, place = home.partition(".")[2], tmp_path / other / "db" / "by_path"
    run(
        spark,
        f"CREATE TABLE {other}.db.by_path (id INT)",
        f"INSERT INTO {other}.db.by_path VALUES (1)",
        "CREATE TABLE empty (id INT)",
        "CREATE VIEW low AS SELECT id, n FROM t",
        f"CREATE MATERIALIZED VIEW middle {INCREMENTAL} AS SELECT id, n FROM low",
    )
    refreshed(spark, "middle")
    query = (
        f"SELECT m.id, o.y FROM middle m JOIN {other}.db.t o ON m.id = o.id "
        f"LEFT ANTI JOIN empty e ON m.id = e.id JOIN iceberg.`{place}` p ON p.id = m.id"
    )
    begun = time.time() * 1_000
    run(spark, f"CREATE MATERIALIZED VIEW top {INCREMENTAL} AS {query}")
    assert refreshed(spark, "top")[0] == "full"
    assert rows(spark, "SELECT * FROM top") == [(1, "a")]
    view, table = catalog.load_view(f"{space}.top"), catalog.load_table(f"{space}.top.storage")
    of_view = json.loads(view.properties[DOCUMENT])
    assert of_view == {
        "refresh-strategy": "incremental",
        "storage-table-location": table.metadata_location,
    }
    by_file = StaticTable.from_metadata(of_view["storage-table-location"])
    document = json.loads(by_file.properties[DOCUMENT])
    [record] = document["refreshes"]
    assert document["current-refresh-id"] == record["refresh-id"]
    assert record["version-id"] == view.metadata.current_version_id
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert record["sequence-number"] == snapshot.sequence_number
    assert record["snapshot-ids"] == [snapshot.snapshot_id]

    t, empty = catalog.load_table(f"{space}.t"), catalog.load_table(f"{space}.empty")
    elsewhere = {name: files_of(tmp_path / other / "db" / name) for name in ("t", "by_path")}
    bases = {one["identifier"]: one for one in record["base-tables"]}
    assert {name: (one["type"], one["snapshot-reference"]) for name, one in bases.items()} == {
        "t": ("iceberg-metastore", current(t)),
        "empty": ("iceberg-metastore", -1),
        f"{other}.db.t": ("iceberg-metastore", current(elsewhere["t"])),
        f"iceberg.`{place}`": ("iceberg-filesystem", current(elsewhere["by_path"])),
    }
    assert bases[f"{other}.db.t"]["properties"] == {
        "catalog": other,
        "uuid": str(elsewhere["t"].metadata.table_uuid),
    }
    assert bases["t"]["properties"] == {"uuid": str(t.metadata.table_uuid)}
    assert bases[f"iceberg.`{place}`"]["location"] == str(place)

    summary = summary_of(table)
    state = json.loads(summary["refresh-state"])
    assert state["view-version-id"] == view.metadata.current_version_id
    assert begun - 60_000 <= state["refresh-start-timestamp-ms"] <= snapshot.timestamp_ms + 1
    sources = {(one["type"], one.get("catalog", ""), one["name"]): one for one in state["source-states"]}
    low, middle = (catalog.load_view(f"{space}.{name}") for name in ("low", "middle"))
    levels = space.split(".")
    for name, found in (("low", low), ("middle", middle)):
        source = sources["view", "", name]
        assert source["namespace"] == levels
        assert source["uuid"] == str(found.metadata.view_uuid)
        assert source["version-id"] == found.metadata.current_version_id
    stored = catalog.load_table(f"{space}.middle.storage")
    assert sources["view", "", "middle"]["storage-snapshot-id"] == current(stored)
    for name, loaded in (("t", t), ("empty", empty)):
        source = sources["table", "", name]
        assert (source["namespace"], source["ref"]) == (levels, "main")
        assert source["uuid"] == str(loaded.metadata.table_uuid)
        assert source["snapshot-id"] == (-1 if name == "empty" else current(loaded))
    assert sources["table", other, "t"]["snapshot-id"] == current(elsewhere["t"])


def files_of(folder: Path) -> Table:
    """The table in a folder of a Hadoop catalog."""
    number = (folder / "metadata" / "version-hint.text").read_text()
    return StaticTable.from_metadata(str(folder / "metadata" / f"v{number}.metadata.json"))


def written_by_hand(folder: Path, record: dict[str, Any], space: str, sql: str) -> Path:
    """Write a view and its storage table with the rows 1, 2 and 3, as the draft describes them. Return the view's file.

    Nothing of this product is used: the storage table is written by pyiceberg, and the view is JSON.
    """
    writer: Catalog = load_catalog(
        "theirs", type="sql", uri=f"sqlite:///{folder}/theirs.db", warehouse=str(folder)
    )
    writer.create_namespace("x")
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int32())})
    table = writer.create_table("x.stored", rows.schema, location=f"file://{folder}/v/storage")
    table.append(rows)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    record = {**record, "sequence-number": snapshot.sequence_number}
    document = {"refreshes": [record], "current-refresh-id": record["refresh-id"]}
    with table.transaction() as change:
        change.set_properties({DOCUMENT: json.dumps(document)})
    metadata = {
        "view-uuid": str(uuid.uuid4()),
        "format-version": 1,
        "location": f"file://{folder}/v",
        "current-version-id": 1,
        "properties": {DOCUMENT: json.dumps({"storage-table-location": table.metadata_location})},
        "versions": [
            {
                "version-id": 1,
                "timestamp-ms": 1_700_000_000_000,
                "schema-id": 0,
                "summary": {"engine-name": "theirs"},
                "default-namespace": space.split("."),
                "representations": [{"type": "sql", "sql": sql, "dialect": "spark"}],
            }
        ],
        "version-log": [{"version-id": 1, "timestamp-ms": 1_700_000_000_000}],
        "schemas": [
            {
                "type": "struct",
                "schema-id": 0,
                "fields": [{"id": 1, "name": "id", "required": False, "type": "int"}],
            }
        ],
    }
    file = folder / "v" / "metadata" / "theirs.metadata.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(metadata))
    return file


def test_a_view_that_was_written_by_hand_after_the_draft_is_read_and_refreshed(
    spark: SparkSession, home: str, catalog: PolarisCatalog, place: CatalogPlace, tmp_path: Path
) -> None:
    space = home.partition(".")[2]
    run(spark, "CREATE TABLE base (id INT)", "INSERT INTO base VALUES (1), (2), (30)")
    base = catalog.load_table(f"{space}.base")
    record = {
        "refresh-id": 77,
        "version-id": 1,
        "base-tables": [
            {
                "type": "iceberg-metastore",
                "identifier": "base",
                "snapshot-reference": current(base),
                "theirs": 1,
            }
        ],
    }
    file = written_by_hand(tmp_path, record, space, "SELECT id FROM base")
    body = json.dumps({"name": "v", "metadata-location": f"file://{file}"})
    with polaris_spark.connect(store=place.store, create=False) as session:
        levels = space.replace(".", "%1F")
        status, _, answer = session.request("POST", f"v1/namespaces/{levels}/register-view", body=body)
        assert status == 200, answer
    # Their rows differ from those of the query, so that the test sees which are read.
    assert rows(spark, "SELECT id FROM v") == [(1,), (2,), (3,)]
    assert refreshed(spark, "v")[:2] == ("none", "the rows are fresh")
    run(spark, "INSERT INTO base VALUES (4)")
    assert refreshed(spark, "v")[:2] == ("full", f"changed: {space}.base")
    assert rows(spark, "SELECT id FROM v") == [(1,), (2,), (4,), (30,)]
    table = catalog.load_table(f"{space}.v.storage")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 4, 30]
    [now] = json.loads(table.properties[DOCUMENT])["refreshes"]
    assert now["refresh-id"] != 77
    run(
        spark,
        "ALTER MATERIALIZED VIEW v SET TBLPROPERTIES ('refresh-strategy' = 'incremental')",
        "INSERT INTO base VALUES (5)",
        "REFRESH MATERIALIZED VIEW v",
    )
    assert rows(spark, "SELECT id FROM v") == [(1,), (2,), (4,), (5,), (30,)]
    assert rows(spark, "CALL polaris.system.fsck()") == []
