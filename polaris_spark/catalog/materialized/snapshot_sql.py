"""Generates Spark SQL that reads a snapshot of a table, with the columns that the table has now."""

from __future__ import annotations

import re
from typing import Any

from polaris_spark.catalog.materialized.outside_sources import TableState
from polaris_spark.catalog.materialized.view_queries import SourceReference
from polaris_spark.catalog.metadata.texts import Json
from polaris_spark.errors import BadRequestError

_VERSION = re.compile(r"(?:FOR\s+)?(?:SYSTEM_)?VERSION\s+AS\s+OF\s+(\d{1,19})", re.IGNORECASE)
_SQL_TYPES = {
    "long": "BIGINT",
    "timestamp": "TIMESTAMP_NTZ",
    "timestamptz": "TIMESTAMP",
    "uuid": "STRING",
}
"""Names in Spark's SQL of Iceberg's types, where they differ."""
_CAST = re.compile(
    r"boolean|int|long|float|double|date|timestamp|timestamptz|string|uuid|binary|fixed\[\d+\]|decimal\(.*\)"
)
"""The types of Iceberg to which values are cast."""


def named_snapshot(reference: SourceReference) -> int:
    """Return the snapshot id in the time travel clause of a reference.

    Raises:
        BadRequestError: the clause does not name a snapshot id, so its meaning can change.
    """
    match = _VERSION.fullmatch(reference.version.strip())
    if match is None:
        raise BadRequestError(
            f"{reference.identifier} {reference.version}: a materialized view can read a table as of a snapshot "
            "id, or a branch or tag as in db.t.branch_name, but not as of a time or any other version"
        )
    return int(match[1])


def at_snapshot(table: TableState, full: str, id: int) -> str:
    """Return SQL that reads a snapshot with the table's current columns. The clause VERSION AS OF alone would return
    the columns that the table had at the snapshot.

    Raises:
        BadRequestError: the schema has changed since the snapshot in a way that SQL cannot express.
    """
    at = f"{full} VERSION AS OF {id}"
    schema_id = schema_at(table, id)
    if schema_id == table.current_schema_id:
        return at
    then, now = (_fields(table, one) for one in (schema_id, table.current_schema_id))
    if [_shown(one) for one in then] == [_shown(one) for one in now]:
        return at
    by_id = {one["id"]: one for one in then}
    ids = {one["name"].lower(): one["id"] for one in now}
    columns = []
    for field in now:
        old = by_id.get(field["id"])
        type = field["type"]
        name = quoted((field["name"],))
        if old is not None and ids.get(old["name"].lower(), old["id"]) != old["id"]:
            # Iceberg would skip files by the statistics of the column that has the name now.
            raise _changed(full, field["name"])
        if old is not None and old["type"] == type:
            columns.append(f"{quoted((old['name'],))} AS {name}")
        elif isinstance(type, str) and "initial-default" not in field:
            value = "NULL" if old is None else quoted((old["name"],))
            columns.append(f"CAST({value} AS {sql_type(type)}) AS {name}")
        else:
            raise _changed(full, field["name"])
    return f"(SELECT {', '.join(columns)} FROM {at})"


def _changed(full: str, column: str) -> BadRequestError:
    return BadRequestError(
        f"column {column} of {full} was changed after the last snapshot of the table; write to the table first"
    )


def sql_type(type: str) -> str:
    """Return the name of a primitive type of Iceberg in Spark's SQL."""
    return "BINARY" if type.startswith("fixed[") else _SQL_TYPES.get(type, type)


def is_sql_type(type: Any, sql: str) -> bool:
    """Whether a type in an Iceberg schema is primitive, and is the type `sql` of Spark's SQL."""
    return isinstance(type, str) and sql_type(type).lower().replace(" ", "") == sql.lower().replace(" ", "")


def with_type(name: str, type: Any, given: str) -> str:
    """Return SQL that reads a column with the type that an Iceberg schema gives it. Nested types are left as they are.

    Args:
        given: the type that the column has, in Spark's SQL.
    """
    column = quoted((name,))
    if not isinstance(type, str) or not _CAST.fullmatch(type) or is_sql_type(type, given):
        return column
    return f"CAST({column} AS {sql_type(type)}) AS {column}"


def schema_at(table: TableState, id: int) -> int:
    """Return the id of the schema that a table had at a snapshot."""
    found: int = (table.snapshots.get(id) or {}).get("schema-id", table.current_schema_id)
    return found


def _fields(table: TableState, schema_id: int) -> list[Json]:
    schema = table.schemas.get(schema_id)
    return [] if schema is None else list(schema["fields"])


def _shown(field: Json) -> tuple[Any, ...]:
    """Return those properties of a column on which queries depend: its id, name and type."""
    return field["id"], field["name"], field["type"]


def quoted(parts: tuple[str, ...]) -> str:
    """Return a name in backticks, as Spark's SQL needs it."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)
