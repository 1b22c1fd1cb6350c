"""The differences between two stored versions of a table or view, as fields like those of `change_details`.

The versions can be of different branches, so equal ids of schemas and partition specs do not mean equal content: the
objects are compared. Columns are compared by their ids. If two branches gave the same id to different new columns,
these appear as one column that was renamed. Unlike a log entry, the result has `ref main` for every move of the branch
`main` of a table, because it has no `snapshot-id`.

A view has one further field: `query <dialect>`, with the new query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polaris_spark.catalog.metadata.change_details import (
    bounded,
    column_details,
    fields_text,
    moved_ref,
    property_details,
    sort_direction,
)
from polaris_spark.catalog.metadata.pieces import NumberedPieces
from polaris_spark.catalog.metadata.rows import Numbered, ObjectReader, Schema, Table, View, ViewVersion
from polaris_spark.catalog.metadata.schemas import SchemaIndex, schema_form
from polaris_spark.catalog.metadata.table_values import TableValues
from polaris_spark.catalog.metadata.texts import Json
from polaris_spark.catalog.metadata.view_draft import version_form


def table_differences(
    before: Table, after: Table, reader: ObjectReader, *, by_name: bool = False
) -> dict[str, str]:
    """Return the differences between two versions of a table.

    Args:
        by_name: whether columns are matched by their names instead of their ids. Use it for different tables, whose ids
            are unrelated.
    """
    old, new = (TableValues(one, reader, now_ms=0) for one in (before, after))
    found: dict[str, str] = {}
    if _pointer(before.schemas, before.current_schema_id) != _pointer(after.schemas, after.current_schema_id):
        columns = new.schema_index(after.current_schema_id)
        if columns is not None:
            found |= column_details(old.schema_index(before.current_schema_id), columns, by_name=by_name)
    if before.properties != after.properties or before.more_properties != after.more_properties:
        found |= _property_differences(old.properties, new.properties)
    if before.refs != after.refs or before.more_refs != after.more_refs:
        found |= _ref_differences(old, new)
    if _pointer(before.specs, before.default_spec_id) != _pointer(after.specs, after.default_spec_id):
        specs = old.specs.get(before.default_spec_id), new.specs.get(after.default_spec_id)
        if _fields(specs[0]) != _fields(specs[1]):
            found["partition-spec"] = fields_text(new, specs[1])
    orders = before.default_sort_order_id, after.default_sort_order_id
    if _pointer(before.sort_orders, orders[0]) != _pointer(after.sort_orders, orders[1]):
        pair = old.sort_orders.get(orders[0]), new.sort_orders.get(orders[1])
        if _fields(pair[0]) != _fields(pair[1]):
            found["sort-order"] = fields_text(new, pair[1], sort_direction)
    if before.format_version != after.format_version:
        found["format-version"] = str(after.format_version)
    if before.location != after.location:
        found["location"] = after.location
    return bounded(found)


def view_differences(before: View, after: View, reader: ObjectReader) -> dict[str, str]:
    """Return the differences between two versions of a view."""
    (old_columns, old_queries), (columns, queries) = (_definition(one, reader) for one in (before, after))
    found: dict[str, str] = {}
    if columns is not None:
        found |= column_details(old_columns, columns, by_name=True)
    found |= {
        f"query {dialect}": query for dialect, query in queries.items() if old_queries.get(dialect) != query
    }
    found |= _property_differences(before.properties, after.properties)
    if before.location != after.location:
        found["location"] = after.location
    return bounded(found)


def namespace_differences(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return the differences between the properties of two versions of a namespace."""
    return bounded(_property_differences(before, after))


def _property_differences(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    old, new = dict(before.items()), dict(after.items())
    return property_details(old, new, [name for name in (old | new) if old.get(name) != new.get(name)])


def _ref_differences(old: TableValues, new: TableValues) -> dict[str, str]:
    before, after = dict(old.refs.items()), dict(new.refs.items())
    found: dict[str, str] = {}
    rolled_back = []
    for name in before | after:
        was, now = before.get(name), after.get(name)
        old_id, new_id = was.snapshot_id if was else None, now.snapshot_id if now else None
        if old_id == new_id:
            continue
        found[f"ref {name}"] = moved_ref(old_id, new_id)
        if was is not None and new_id is not None:
            place = old.snapshots.place(new_id)
            if place is not None and place.order < was.order:
                rolled_back.append(name)
    return found | ({"rollback": " ".join(rolled_back)} if rolled_back else {})


def _definition(view: View, reader: ObjectReader) -> tuple[SchemaIndex | None, dict[str, str]]:
    """Return the columns of a view, and its queries by dialect."""
    version = NumberedPieces(ViewVersion, view.versions, reader, version_form).get(view.current_version_id)
    if version is None:
        return None, {}
    schema = NumberedPieces(Schema, view.schemas, reader, schema_form).get(version["schema-id"])
    queries = {
        one["dialect"]: one["sql"] for one in version["representations"] if one["type"].lower() == "sql"
    }
    return None if schema is None else SchemaIndex(schema), queries


def _pointer(pieces: Sequence[Numbered], id: int) -> int | None:
    return next((one.piece for one in pieces if one.id == id), None)


def _fields(piece: Json | None) -> object:
    return [] if piece is None else piece.get("fields") or []
