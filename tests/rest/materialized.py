"""Materialized views made without Spark."""

from __future__ import annotations

from typing import Any

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.entities import TableName
from polaris_spark.catalog.materialized_view_changes import CreateMaterializedView
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
