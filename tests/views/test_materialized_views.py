"""The system view `materialized_views`."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from polaris_spark.jobs.registry import call
from tests.rest.client import VIEW_VERSION
from tests.rest.materialized import SCHEMA, create_materialized_view, refresh
from tests.rest.materialized import snapshot_commit as snapshot
from tests.views.catalogs import Catalog, rows


def facts(found: Catalog, **options: Any) -> list[tuple[Any, ...]]:
    """Name, freshness, reason and changed sources of each materialized view."""
    listed = rows("materialized_views", store=found.store, **options)
    return [(row["name"], row["fresh"], row["reason"], row["changed_sources"]) for row in listed]


def test_each_materialized_view_has_a_row_with_its_freshness_at_any_commit(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.request("POST", "v1/namespaces", {"namespace": ["db"]})
    for name in ("t", "other"):
        catalog.request("POST", "v1/namespaces/db/tables", {"name": name, "schema": SCHEMA})
    version = {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": 1,
        "summary": {},
        "default-namespace": ["db"],
        "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}],
    }
    ordinary = {"name": "ordinary", "schema": SCHEMA, "view-version": version, "properties": {}}
    catalog.request("POST", "v1/namespaces/db/views", ordinary)
    opened = catalog.session.catalog
    create_materialized_view(opened, "v", properties={"allow-stale-data": "true"})
    create_materialized_view(opened, "w", "SELECT a FROM other")
    assert facts(catalog) == [
        ("v", False, "it was never refreshed", []),
        ("w", False, "it was never refreshed", []),
    ]
    view = catalog.request("GET", "v1/namespaces/db/views/v")["metadata"]
    base = catalog.request("GET", "v1/namespaces/db/tables/t")["metadata"]
    source = {
        "type": "table",
        "namespace": ["db"],
        "name": "t",
        "uuid": base["table-uuid"],
        "snapshot-id": -1,
        "ref": "main",
    }
    read = {"reason": "it was asked for", "rows-read": 5, "files-read": 2, "bytes-read": 99}
    also = {"source-states": [source], "refresh-start-timestamp-ms": 1_700_000_000_000, **read}
    catalog.request("POST", "v1/namespaces/db%1Fv/tables/storage", refresh(view["view-uuid"], 100, 1, **also))
    at = catalog.session.catalog.head().commit.number
    counts = {"added-records": "4", "deleted-records": "3"}
    catalog.request("POST", "v1/namespaces/db/tables/t", snapshot(1, 1, operation="append", **counts))
    assert facts(catalog)[0] == ("v", False, "changed: db.t", ["db.t"])
    assert facts(catalog, catalog="polaris", as_of=str(at))[0] == ("v", True, None, [])
    (row,) = [row for row in rows("materialized_views", store=catalog.store) if row["name"] == "v"]
    assert row["allow_stale_data"] is True
    assert (row["refresh_id"], row["version_id"], row["base_tables"]) == (100, 1, ["t"])
    assert row["last_refreshed_at"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc)
    names = ("last_reason", "last_rows_read", "last_files_read", "last_bytes_read")
    assert [row[name] for name in names] == list(read.values())
    assert row["storage_table_location"].endswith(".metadata.json")
    assert (row["stale_snapshots"], row["stale_rows"]) == (1, 7)
    assert row["stale_since"] == datetime(2023, 11, 14, 22, 13, 20, 1_000, tzinfo=timezone.utc)
    assert row["stale_snapshots_by_table"] == {"db.t": 1}
    assert row["stale_rows_by_table"] == {"db.t": 7}
    assert (row["last_duration_ms"], row["last_rows_written"]) == (1, None)


def milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1_000)


def test_a_view_is_stale_since_its_query_or_a_view_below_was_replaced(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.request("POST", "v1/namespaces", {"namespace": ["db"]})
    catalog.request("POST", "v1/namespaces/db/tables", {"name": "t", "schema": SCHEMA})
    query = [{"type": "sql", "sql": "SELECT a FROM t", "dialect": "spark"}]
    version = {**VIEW_VERSION, "default-namespace": ["db"], "representations": query}
    below = {"name": "low", "schema": SCHEMA, "view-version": version, "properties": {}}
    low = catalog.request("POST", "v1/namespaces/db/views", below)["metadata"]
    opened = catalog.session.catalog
    for name in ("over", "replaced"):
        create_materialized_view(opened, name, "SELECT a FROM low")
        uuid = catalog.request("GET", f"v1/namespaces/db/views/{name}")["metadata"]["view-uuid"]
        source = {
            "type": "view",
            "namespace": ["db"],
            "name": "low",
            "uuid": low["view-uuid"],
            "version-id": 1,
        }
        made = refresh(uuid, 100, 1, **{"source-states": [source]})
        catalog.request("POST", f"v1/namespaces/db%1F{name}/tables/storage", made)
    create_materialized_view(opened, "replaced", "SELECT a + 1 AS a FROM low", replace=True)
    replaced = catalog.request("GET", "v1/namespaces/db/views/replaced")["metadata"]["version-log"]
    found = {row["name"]: row["stale_since"] for row in rows("materialized_views", store=catalog.store)}
    assert found["over"] is None
    assert milliseconds(found["replaced"]) == replaced[-1]["timestamp-ms"]
    changed = {"version-id": 2, "timestamp-ms": 1_700_000_005_000, "schema-id": 0, "summary": {"v": "2"}}
    updates = [
        {"action": "add-view-version", "view-version": {**version, **changed}},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    catalog.request("POST", "v1/namespaces/db/views/low", {"requirements": [], "updates": updates})
    log = catalog.request("GET", "v1/namespaces/db/views/low")["metadata"]["version-log"]
    [row] = [row for row in rows("materialized_views", store=catalog.store) if row["name"] == "over"]
    assert (row["fresh"], row["changed_sources"]) == (False, ["db.low"])
    assert milliseconds(row["stale_since"]) == log[-1]["timestamp-ms"]


def test_each_refresh_has_a_row_while_its_snapshot_exists(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.request("POST", "v1/namespaces", {"namespace": ["db"]})
    catalog.request("POST", "v1/namespaces/db/tables", {"name": "t", "schema": SCHEMA})
    catalog.request("POST", "v1/namespaces/db/tables/t", snapshot(1, 1, operation="append"))
    create_materialized_view(catalog.session.catalog, "v")
    uuid = catalog.request("GET", "v1/namespaces/db/views/v")["metadata"]["view-uuid"]
    storage = "v1/namespaces/db%1Fv/tables/storage"
    how = {
        "strategy": "incremental",
        "reason": "changed: db.t",
        "rows-read": 5,
        "files-read": 2,
        "bytes-read": 99,
    }
    catalog.request("POST", storage, refresh(uuid, 100, 1))
    catalog.request("POST", storage, refresh(uuid, 101, 2, replaces=100, **how))
    found = {row["refresh_id"]: row for row in rows("refreshes", store=catalog.store)}
    assert {id: (row["view"], row["is_current"]) for id, row in found.items()} == {
        100: ("db.v", False),
        101: ("db.v", True),
    }
    names = ("strategy", "reason", "rows_read", "files_read", "bytes_read", "base_tables")
    assert [found[101][name] for name in names] == [*how.values(), ["t"]]
    gone = {"requirements": [], "updates": [{"action": "remove-snapshots", "snapshot-ids": [100]}]}
    catalog.request("POST", storage, gone)
    assert [row["refresh_id"] for row in rows("refreshes", store=catalog.store)] == [101]


def test_tables_with_malformed_summaries_hide_no_materialized_view_and_no_refresh(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    for namespace in (["db"], ["db", "other"]):
        catalog.request("POST", "v1/namespaces", {"namespace": namespace})
    for where, name in (("db", "t"), ("db%1Fother", "storage")):
        catalog.request("POST", f"v1/namespaces/{where}/tables", {"name": name, "schema": SCHEMA})
    create_materialized_view(catalog.session.catalog, "v")
    uuid = catalog.request("GET", "v1/namespaces/db/views/v")["metadata"]["view-uuid"]
    base = catalog.request("GET", "v1/namespaces/db/tables/t")["metadata"]["table-uuid"]
    source = {
        "type": "table",
        "namespace": ["db"],
        "name": "t",
        "uuid": base,
        "snapshot-id": -1,
        "ref": "main",
    }
    also = {"source-states": [source], "refresh-start-timestamp-ms": 2**62}
    catalog.request("POST", "v1/namespaces/db%1Fv/tables/storage", refresh(uuid, 100, 1, **also))
    counts = {"added-records": "²", "deleted-records": "9" * 5_000}
    catalog.request("POST", "v1/namespaces/db/tables/t", snapshot(1, 1, operation="append", **counts))
    garbage = snapshot(2, 1, operation="append", **{"polaris.refresh": "[", "added-records": "²"})
    catalog.request("POST", "v1/namespaces/db%1Fother/tables/storage", garbage)
    assert facts(catalog) == [("v", False, "changed: db.t", ["db.t"])]
    (row,) = rows("materialized_views", store=catalog.store)
    assert (row["stale_snapshots"], row["stale_rows"], row["last_refreshed_at"]) == (1, 0, None)
    assert [row["refresh_id"] for row in rows("refreshes", store=catalog.store)] == [100]
    [(_, name, *_, at)] = call(catalog.session, "show_materialized_views")
    assert (name, at) == ("v", None)
