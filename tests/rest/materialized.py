"""Materialized views that are created and refreshed without Spark."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog as IcebergCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.entities.materialized_views import METADATA
from polaris_spark.catalog.materialized.materialized_view_changes import CreateMaterializedView
from polaris_spark.commits.change import Operation
from tests.rest.client import VIEW_VERSION

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "a", "type": "long", "required": False}],
}


def create_materialized_view(
    catalog: Catalog,
    name: str,
    sql: str = "SELECT a FROM t",
    *,
    replace: bool = False,
    namespace: tuple[str, ...] = ("db",),
    properties: dict[str, str] | None = None,
    column: str = "a",
    summary: dict[str, str] | None = None,
) -> None:
    """Create a materialized view of one column."""
    schema = {**SCHEMA, "fields": [{"id": 1, "name": column, "type": "long", "required": False}]}
    query = {"type": "sql", "sql": sql, "dialect": "spark"}
    version: dict[str, Any] = {
        **VIEW_VERSION,
        "summary": summary or {},
        "default-namespace": list(namespace),
        "representations": [query],
    }
    view = {"schema": schema, "view-version": version, "properties": properties or {}}
    storage = {"schema": schema, "properties": {}}
    operation = Operation(b"", "me")
    catalog.commit(
        CreateMaterializedView(
            catalog.context, operation, TableName(namespace, name), view, storage, replace=replace
        )
    )


def snapshot_commit(id: int, number: int, parent: int | None = None, **summary: str) -> dict[str, Any]:
    """A commit that adds a snapshot and makes it current."""
    added: dict[str, Any] = {
        "snapshot-id": id,
        "sequence-number": number,
        "timestamp-ms": 1_700_000_000_000 + number,
        "manifest-list": f"file:///lists/{id}.avro",
        "summary": summary,
        "schema-id": 0,
    }
    if parent is not None:
        added["parent-snapshot-id"] = parent
    return {
        "requirements": [],
        "updates": [
            {"action": "add-snapshot", "snapshot": added},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id},
        ],
    }


def refresh(
    view_uuid: str,
    id: int,
    number: int,
    *,
    replaces: int | None = None,
    version: int = 1,
    state: dict[str, Any] | None = None,
    **also: Any,
) -> dict[str, Any]:
    """A commit of a refresh, whose id and snapshot id are `id`.

    Args:
        state: fields of `refresh-state`; by default, the snapshot has none.
        also: further fields of the refresh record.
    """
    record = {
        "refresh-id": id,
        "version-id": version,
        "view-uuid": view_uuid,
        "replaces": replaces,
        "base-tables": [{"type": "iceberg-metastore", "identifier": "t", "snapshot-reference": 7}],
        **also,
    }
    summary = {"operation": "overwrite", "polaris.refresh": json.dumps(record)}
    if state is not None:
        begun = {"view-version-id": version, "refresh-start-timestamp-ms": 1_700_000_000_000}
        summary["refresh-state"] = json.dumps({**begun, **state})
    return snapshot_commit(id, number, replaces, **summary)


def refresh_rows(catalog: IcebergCatalog, view: str, values: Sequence[int], **also: Any) -> dict[str, Any]:
    """Refresh a materialized view of the column `a` with pyiceberg, so that it has these rows. Return the record.

    Args:
        view: name of the view, with its namespace.
        also: further fields of the refresh record.
    """
    of_view = catalog.load_view(view).metadata
    table = catalog.load_table(f"{view}.storage")
    document = json.loads(table.properties.get(METADATA, "{}"))
    begun = {
        "refresh-start-timestamp-ms": 1_700_000_000_000,
        "source-states": also.pop("source-states", []),
    }
    record = {
        "refresh-id": secrets.randbits(62),
        "version-id": of_view.current_version_id,
        "view-uuid": str(of_view.view_uuid),
        "replaces": document.get("current-refresh-id"),
        "base-tables": [],
        **begun,
        **also,
    }
    state = {"view-version-id": record["version-id"], **begun}
    summary = {"polaris.refresh": json.dumps(record), "refresh-state": json.dumps(state)}
    rows = pa.table({"a": pa.array(values, pa.int64())})
    with table.transaction() as change, change.update_snapshot(summary).overwrite() as snapshot:
        for scanned in table.scan().plan_files():
            snapshot.delete_data_file(scanned.file)
        for file in _dataframe_to_data_files(table.metadata, rows, table.io):
            snapshot.append_data_file(file)
    return record
