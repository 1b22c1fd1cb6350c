"""Views of tables, views and namespaces, compared with answers of the catalog's protocol."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from polaris_spark.catalog.imports.importer import ImportOptions
from polaris_spark.catalog.imports.jobs import import_source
from polaris_spark.catalog.imports.sources import SourceEntry
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.spark.views import VIEWS
from polaris_spark.spark.views.entities import WITHOUT_UNLOADED
from tests.catalog.imports.support import Entries
from tests.cli.catalogs import run
from tests.views.catalogs import OF_ENTITIES, Catalog, Row


def _named(rows: list[Row], name: str) -> Row:
    [row] = [row for row in rows if row["name"] == name]
    return row


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


def test_tables_show_what_loading_them_shows(shop: Catalog) -> None:
    row, metadata = _named(shop.read("tables"), "orders"), shop.load("sales", "orders")
    assert (row["catalog"], row["namespace"]) == ("shop", "sales")
    assert row["uuid"] == metadata["table-uuid"]
    assert row["format_version"] == metadata["format-version"]
    assert row["location"] == metadata["location"]
    assert row["last_updated_at"] == _time(metadata["last-updated-ms"])
    assert row["last_sequence_number"] == metadata["last-sequence-number"] == 2
    assert row["current_snapshot_id"] == metadata["current-snapshot-id"] == 12
    assert row["snapshot_count"] == len(metadata["snapshots"]) == 2
    assert row["refs"] == {name: ref["snapshot-id"] for name, ref in metadata["refs"].items()}
    assert row["refs"] == {"main": 12, "old": 11}
    assert row["properties"] == metadata["properties"]
    assert row["properties"]["colour"] == "red"
    assert row["column_names"] == ["n", "day"]
    assert row["partition_fields"] == ["by_day"]
    assert row["record_count"] == 3
    assert row["data_file_count"] is None


def test_tables_give_the_metadata_location_that_clients_compare(shop: Catalog) -> None:
    answer = shop.request("GET", "v1/namespaces/sales/tables/orders")
    assert _named(shop.read("tables"), "orders")["metadata_location"] == answer["metadata-location"]


def test_a_table_without_snapshots_has_nulls_where_they_would_tell(shop: Catalog) -> None:
    row = _named(shop.read("tables"), "returns")
    unknown = ("current_snapshot_id", "current_snapshot_at", "record_count", "file_bytes")
    assert [row[name] for name in unknown] == [None] * 4
    assert row["snapshot_count"] == 0
    assert row["partition_fields"] == []


def test_a_level_with_a_dot_in_it_is_quoted(shop: Catalog) -> None:
    assert _named(shop.read("tables"), "returns")["namespace"] == "sales.`2026.q1`"
    row = _named(shop.read("namespaces"), "2026.q1")
    assert row["namespace"] == "sales.`2026.q1`"
    assert row["levels"] == ["sales", "2026.q1"]
    assert (row["parent"], row["depth"]) == ("sales", 2)


def test_namespaces_show_their_properties_and_creators(shop: Catalog) -> None:
    row = _named(shop.read("namespaces"), "sales")
    assert row["properties"] == {"owner": "ann"}
    assert row["owner"] == "ann"
    assert (row["parent"], row["levels"]) == (None, ["sales"])


def test_views_show_their_text_by_dialect(shop: Catalog) -> None:
    [row] = shop.read("views")
    assert (row["namespace"], row["name"]) == ("sales", "today")
    assert row["sql"] == {"spark": "SELECT 1 AS n, current_date() AS day"}
    assert row["default_namespace"] == "sales"
    assert row["column_names"] == ["n", "day"]
    assert row["summary"] == {"engine-name": "spark"}
    assert row["properties"] == {"k": "v"}
    assert row["version_count"] == 1
    assert row["last_updated_at"] == _time(1_790_000_000_000)


def test_snapshots_show_those_of_every_table(shop: Catalog) -> None:
    first, second = sorted(shop.read("snapshots"), key=lambda row: row["snapshot_id"])
    assert (first["snapshot_id"], second["snapshot_id"]) == (11, 12)
    assert (first["refs"], second["refs"]) == (["old"], ["main"])
    assert (first["is_current"], second["is_current"]) == (False, True)
    assert first["operation"] == "append"
    assert first["summary"] == {"added-records": "3", "total-records": "3"}
    assert first["manifest_list"] == "/manifests/11"
    assert (first["namespace"], first["name"]) == ("sales", "orders")


def test_the_index_shows_every_name_once(shop: Catalog) -> None:
    found = [(row["kind"], row["namespace"], row["name"]) for row in shop.read("index")]
    assert sorted(found) == [
        ("namespace", "", "sales"),
        ("namespace", "sales", "2026.q1"),
        ("table", "sales", "orders"),
        ("table", "sales.`2026.q1`", "returns"),
        ("view", "sales", "today"),
    ]


def test_entity_and_content_ids_agree_between_views(shop: Catalog) -> None:
    by_entity = {row["entity_id"]: row["content_id"] for row in shop.read("index")}
    others = [row for view in ("namespaces", "tables", "views") for row in shop.read(view)]
    assert {row["entity_id"]: row["content_id"] for row in others} == by_entity


def test_the_snapshots_of_a_long_history_are_counted_without_reading_them(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "long.db")
    catalog.namespace("db")
    catalog.table("db", "t")
    for id in range(1, 401):
        catalog.snapshot("db", "t", id)
    catalog.update("db", "t", {"action": "remove-snapshots", "snapshot-ids": list(range(1, 6))})
    [row] = catalog.read("tables")
    assert row["snapshot_count"] == 395
    assert sorted(row["snapshot_id"] for row in catalog.read("snapshots")) == list(range(6, 401))
    catalog.session.close()


LONGEST = 10**16
"""Milliseconds of a time that neither Spark's microseconds nor Python can tell."""


@pytest.fixture
def beyond(tmp_path: Path) -> Iterator[Catalog]:
    """Numbers and times that clients may send, but that exceed the types of the columns."""
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("db")
    catalog.view("db", "v", "SELECT 1", timestamp_ms=10 * LONGEST)
    for name, digits in (("t", 25), ("u", 5_000)):
        catalog.table("db", name)
        totals = ("total-records", "total-data-files", "total-delete-files", "total-files-size")
        summary = {
            "operation": "append",
            "added-records": "9" * digits,
            **dict.fromkeys(totals, "9" * digits),
        }
        catalog.snapshot("db", name, 1, summary=summary)
    catalog.table("db", "tagged")
    snapshot = {"snapshot-id": 5, "sequence-number": 1, "timestamp-ms": LONGEST, "schema-id": 0}
    snapshot |= {"manifest-list": "/none", "summary": {"operation": "append"}}
    tag = {"action": "set-snapshot-ref", "ref-name": "tag", "type": "tag", "snapshot-id": 5}
    catalog.update("db", "tagged", {"action": "add-snapshot", "snapshot": snapshot}, tag)
    metadata = catalog.load("db", "tagged") | {"table-uuid": str(uuid.uuid4()), "location": "/elsewhere"}
    file = tmp_path / "00001-x.metadata.json"
    file.write_text(json.dumps(metadata | {"last-updated-ms": 10 * LONGEST}))
    registering = {"name": "registered", "metadata-location": str(file)}
    catalog.request("POST", "v1/namespaces/db/register", registering)
    yield catalog
    catalog.session.close()


def test_numbers_and_times_that_no_column_holds_are_null_and_hide_no_other_row(beyond: Catalog) -> None:
    tables = {row["name"]: row for row in beyond.read("tables")}
    totals = ("record_count", "data_file_count", "delete_file_count", "file_bytes")
    assert [tables[name][total] for name in ("t", "u") for total in totals] == [None] * 8
    assert tables["t"]["current_snapshot_at"] is not None
    assert tables["registered"]["last_updated_at"] is None
    [view] = beyond.read("views")
    assert (view["name"], view["last_updated_at"]) == ("v", None)
    times = {(row["name"], row["committed_at"] is None) for row in beyond.read("snapshots")}
    assert times == {("t", False), ("u", False), ("tagged", True), ("registered", True)}
    assert {row["name"] for row in beyond.read("refs") if row["snapshot_at"] is None} == {
        "tagged",
        "registered",
    }
    assert {row["name"] for row in beyond.read("files", unreadable="report")} == {"t", "u"}


@pytest.mark.parametrize("view", OF_ENTITIES)
def test_the_comment_of_a_view_mentions_tables_that_are_not_loaded_if_they_give_no_rows(
    tmp_path: Path, view: str
) -> None:
    catalog = Catalog(tmp_path / "c.db")
    source = Entries(
        SourceEntry(("db",), "t", TABLE, "file:///not/read"), SourceEntry(("db",), "v", VIEW, "file:///x")
    )
    import_source(catalog.session.catalog, source, principal="ann", options=ImportOptions(lazy=True))
    assert (catalog.read(view) == []) == VIEWS[view].comment.endswith(WITHOUT_UNLOADED)
    catalog.session.close()


@pytest.mark.parametrize("snapshots", ["current", "refs", "all"])
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"refs": null, "snapshots": null, "current-snapshot-id": null}', None),
        (
            '{"current-snapshot-id": 1, "refs": null, "snapshots": [{"snapshot-id": 1, "manifests": []}]}',
            None,
        ),
        ("[]", "Expected `object`"),
        ('{"snapshots": [5]}', "Expected `object`"),
        ('{"snapshots": [{"snapshot-id": 1, "manifest-list": 5}]}', "Expected `str"),
        ("{", "truncated"),
    ],
)
def test_files_of_a_table_imported_unread_whose_metadata_is_odd_hide_no_others(
    tmp_path: Path, snapshots: str, text: str, error: str | None
) -> None:
    file = tmp_path / "00001-x.metadata.json"
    file.write_text(text)
    catalog = Catalog(tmp_path / "c.db")
    source = Entries(SourceEntry(("db",), "t", TABLE, file.as_uri()))
    [imported] = import_source(
        catalog.session.catalog, source, principal="ann", options=ImportOptions(lazy=True)
    )
    assert imported.status == "registered"
    found = catalog.read("files", unreadable="report", snapshots=snapshots)
    assert [row["name"] for row in found] == ([] if error is None else ["t"])
    assert all(str(error) in row["error"] for row in found)
    catalog.session.close()


def test_commands_show_values_that_exceed_the_types_of_columns(beyond: Catalog, tmp_path: Path) -> None:
    listed = {one["name"]: one for one in run("tables", beyond.store, "--json").json}
    assert listed["db.registered"]["last-updated"] == listed["db.v"]["last-updated"] == str(10 * LONGEST)
    assert "append" in run("log", beyond.store).out
    assert run("report", beyond.store, "--output", str(tmp_path / "r.html")).code == 0
