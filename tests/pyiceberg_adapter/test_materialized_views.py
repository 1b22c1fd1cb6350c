"""Materialized views through pyiceberg: the stored rows, and each field of the documents in both formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import BadRequestError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable
from pyiceberg.types import LongType

from polaris_spark.pyiceberg import PolarisCatalog
from polaris_spark.rest.opening import connect
from tests.maintenance.lakes import ROWS
from tests.rest.materialized import create_materialized_view, refresh_rows
from tests.server.servers import Server

DOCUMENT = "materialized_view_metadata"


@pytest.fixture(params=["in process", "over HTTP"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A pyiceberg catalog with the table `db.t` and the materialized view `db.v`, which was refreshed twice. It is open
    in this process, or as a client of a server."""
    given = {"store": f"sqlite://{tmp_path}/c.db", "warehouse": str(tmp_path / "warehouse")}
    with connect(**given) as session, PolarisCatalog("polaris", **given) as opened:
        opened.create_namespace("db")
        opened.create_table("db.t", ROWS.schema).append(ROWS)
        create_materialized_view(
            session.catalog,
            "v",
            properties={"allow-stale-data": "true", "refresh-strategy": "incremental", "time-travel": "true"},
        )
        if request.param == "in process":
            yield opened
            return
    with (
        Server(given["store"], "--insecure") as server,
        load_catalog("c", type="rest", uri=server.uri) as client,
    ):
        yield client


def source(catalog: Catalog) -> dict[str, Any]:
    """The state of `db.t`, as in `source-states`."""
    table = catalog.load_table("db.t")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return {
        "type": "table",
        "namespace": ["db"],
        "name": "t",
        "uuid": str(table.metadata.table_uuid),
        "snapshot-id": snapshot.snapshot_id,
        "ref": "main",
    }


def base(state: dict[str, Any]) -> dict[str, Any]:
    """The base table in a refresh record."""
    properties = {"uuid": state["uuid"]}
    return {
        "type": "iceberg-metastore",
        "identifier": "t",
        "snapshot-reference": state["snapshot-id"],
        "properties": properties,
    }


def test_pyiceberg_finds_the_rows_and_every_field_of_both_texts(catalog: Catalog) -> None:
    before = source(catalog)
    first = refresh_rows(catalog, "db.v", [1], **{"source-states": [before], "base-tables": [base(before)]})
    catalog.load_table("db.t").append(ROWS)
    after = source(catalog)
    second = refresh_rows(catalog, "db.v", [1, 2], **{"source-states": [after], "base-tables": [base(after)]})

    view, table = catalog.load_view("db.v"), catalog.load_table("db.v.storage")
    assert sorted(table.scan().to_arrow()["a"].to_pylist()) == [1, 2]
    assert catalog.list_tables("db") == [("db", "t")]
    assert table.location().startswith(f"{view.metadata.location}/")

    # The draft: the view's property
    of_view = json.loads(view.properties[DOCUMENT])
    assert of_view == {
        "storage-table-location": table.metadata_location,
        "allow-stale-data": True,
        "refresh-strategy": "incremental",
    }
    by_file = StaticTable.from_metadata(of_view["storage-table-location"])
    assert by_file.metadata == table.metadata
    assert sorted(by_file.scan().to_arrow()["a"].to_pylist()) == [1, 2]

    # The draft: the storage table's property
    of_storage = json.loads(by_file.properties[DOCUMENT])
    assert of_storage["current-refresh-id"] == second["refresh-id"]
    snapshots = table.snapshots()
    for record, made, state, snapshot in zip(
        of_storage["refreshes"], (first, second), (before, after), snapshots, strict=True
    ):
        assert record["refresh-id"] == made["refresh-id"]
        assert record["version-id"] == view.metadata.current_version_id
        assert record["base-tables"] == [base(state)]
        assert record["sequence-number"] == snapshot.sequence_number
        assert record["snapshot-ids"] == [snapshot.snapshot_id]

    # The newer proposal: the view version, in the view's metadata file
    file = max(Path(local(view.metadata.location), "metadata").iterdir())
    metadata = json.loads(PyArrowFileIO().new_input(f"file://{file}").open().read())
    assert metadata["properties"][DOCUMENT] == view.properties[DOCUMENT]
    [version] = metadata["versions"]
    identifier = version["storage-table"]
    assert catalog.load_table((*identifier["namespace"], identifier["name"])).metadata == table.metadata

    # The newer proposal: the summaries of the snapshots
    for snapshot, made, state in zip(snapshots, (first, second), (before, after), strict=True):
        assert snapshot.summary is not None
        assert json.loads(snapshot.summary["refresh-state"] or "") == {
            "view-version-id": view.metadata.current_version_id,
            "refresh-start-timestamp-ms": made["refresh-start-timestamp-ms"],
            "source-states": [state],
        }


def local(location: str) -> str:
    """The path of a local location."""
    return location.removeprefix("file://")


def test_pyiceberg_writes_no_rows_to_a_storage_table_and_does_not_drop_it(catalog: Catalog) -> None:
    refresh_rows(catalog, "db.v", [1])
    table = catalog.load_table("db.v.storage")
    rows = table.scan().to_arrow()
    for write in (
        lambda: table.append(rows),
        lambda: table.overwrite(rows),
        lambda: table.delete("a = 1"),
        lambda: table.update_schema().add_column("b", LongType()).commit(),
        lambda: catalog.drop_table("db.v.storage"),
        lambda: catalog.rename_table("db.v.storage", "db.mine"),
    ):
        with pytest.raises(
            (BadRequestError, NoSuchNamespaceError)
        ):  # pyiceberg looks for the namespace `db.v`
            write()
    assert catalog.load_table("db.v.storage").scan().to_arrow() == rows


def test_a_storage_table_is_dropped_with_its_view(catalog: Catalog) -> None:
    refresh_rows(catalog, "db.v", [1])
    catalog.drop_view("db.v")
    with pytest.raises(NoSuchTableError):
        catalog.load_table("db.v.storage")
