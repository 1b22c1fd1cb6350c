"""The Python part of incremental refreshes of materialized views. The package `io.polarisspark.incremental` computes
the rows in the JVM of the Spark session."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from polaris_spark.catalog.entities.entities import TableName
    from polaris_spark.catalog.materialized.source_changes import SnapshotKey
    from polaris_spark.catalog.metadata.texts import Json
    from polaris_spark.commits.state import State


class HiddenColumn(NamedTuple):
    """A column of a storage table that the view does not show."""

    name: str
    type: str
    """Type in Spark's SQL."""
    holds: str
    """The expression whose value the column contains, such as `count(1)`."""


class Changed(NamedTuple):
    """The data files that have changed in the tables that a query reads."""

    files: int
    size: int
    """Bytes."""
    rows: int


class IncrementalQuery:
    """The query of a materialized view, and the change of its result since the last refresh. Callers close it."""

    def __init__(self, spark: SparkSession, sql: str, columns: Sequence[str]) -> None:
        """
        Args:
            sql: the pinned query.
            columns: names of the view's columns; the query can have more.
        Raises:
            AnalysisException: Spark cannot analyze the query.
        """
        self.spark = spark
        jvm: Any = spark._jvm
        self._query: Any = jvm.io.polarisspark.incremental.IncrementalRefresh(
            spark._jsparkSession, sql, json.dumps(list(columns))
        )

    def __enter__(self) -> IncrementalQuery:
        return self

    def __exit__(self, *error: object) -> None:
        self._query.close()

    @property
    def hindrance(self) -> str:
        """Why the query can never be refreshed incrementally; empty if it can."""
        return str(self._query.hindrance())

    @property
    def analyzed(self) -> Any:
        """Spark's analyzed plan of the query."""
        return self._query.analyzed()

    def hidden(self) -> list[HiddenColumn]:
        """Return the hidden columns that the query needs."""
        return [HiddenColumn(*one) for one in json.loads(self._query.hidden())]

    def rows(self) -> DataFrame:
        """Return all rows to store, with the hidden columns."""
        from pyspark.sql import DataFrame

        return DataFrame(self._query.rows(), self.spark)

    def estimate(self, since: Mapping[SnapshotKey, int], stored: str, limit: float) -> str:
        """Find out what has changed. Return why an incremental refresh is not possible or reads too much; an empty text
        if it can be tried.

        Args:
            since: the snapshots that the last refresh read.
            stored: name of the storage table and its snapshot, in SQL.
            limit: see `INCREMENTAL_LIMIT`.
        """
        ids = {f"{key.uuid}@{key.snapshot_id}": id for key, id in since.items()}
        return str(self._query.estimate(json.dumps(ids), stored, float(limit)))

    def changed(self) -> Changed:
        """Return what `estimate` has found."""
        return Changed(*json.loads(self._query.changed()))

    def compute(self, limit: float) -> str:
        """Compute the rows to delete and to insert. If writing them would read more than the limit allows, return a
        text that says how much; otherwise return an empty text."""
        return str(self._query.compute(float(limit)))

    def write(self, table: str, summary: Mapping[str, str]) -> None:
        """Write the computed change to the stored rows, in one commit.

        Args:
            table: name of the storage table in SQL.
            summary: entries for the summary of the snapshot.
        """
        self._query.write(table, json.dumps(dict(summary)))


def hidden_fields(state: State, name: TableName) -> dict[str, Json]:
    """Return the hidden columns of a storage table: fields of its current Iceberg schema, by name.

    Args:
        name: name of the materialized view.
    """
    from polaris_spark.catalog.entities.entities import require
    from polaris_spark.catalog.entities.materialized_views import HIDDEN, storage_name
    from polaris_spark.catalog.metadata.draft import TableDraft
    from polaris_spark.catalog.metadata.rows import Table
    from polaris_spark.catalog.rows import TABLE

    table = state.get(require(state, storage_name(name), TABLE).content, Table)
    schema = TableDraft(table, state, now_ms=0).schemas.get(table.current_schema_id) or {}
    return {one["name"]: one for one in schema.get("fields", ()) if one["name"].startswith(HIDDEN)}


def recorded(columns: Sequence[HiddenColumn], fields: Mapping[str, Json]) -> list[Json]:
    """Return the `state-columns` of a refresh record.

    Args:
        columns: the hidden columns that a query needs.
        fields: the hidden columns of the storage table.
    """
    return [
        {"name": one.name, "id": fields.get(one.name, {}).get("id"), "holds": one.holds} for one in columns
    ]


def set_hidden_columns(
    spark: SparkSession, table: str, columns: Sequence[HiddenColumn], fields: Mapping[str, Json]
) -> bool:
    """Give a storage table exactly the hidden columns that a query needs. Return whether the table was changed.

    Args:
        table: name of the storage table in SQL.
        fields: the hidden columns that the table has now.
    """
    from polaris_spark.catalog.materialized.snapshot_sql import is_sql_type

    types = {one.name: one.type for one in columns}
    kept = {
        name for name, field in fields.items() if name in types and is_sql_type(field["type"], types[name])
    }
    unused = [f"`{name}`" for name in fields if name not in kept]
    missing = [f"`{name}` {type}" for name, type in types.items() if name not in kept]
    if unused:
        spark.sql(f"ALTER TABLE {table} DROP COLUMNS ({', '.join(unused)})")
    if missing:
        spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({', '.join(missing)})")
    return bool(unused or missing)
