"""Views of entities against what the catalog's own protocol says."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from tests.views.catalogs import Catalog, Row


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


def test_namespaces_show_properties_and_who_made_them(shop: Catalog) -> None:
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
