"""Updates of a table's schemas, partition specs and sort orders; `table_updates` lists the rules."""

from __future__ import annotations

from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.schemas import SchemaIndex, check_format, normal_schema, schema_form
from polaris_spark.catalog.metadata.texts import Json, get_int, get_longs, get_object, invalid, refused
from polaris_spark.catalog.metadata.transforms import (
    FIRST_PARTITION_ID,
    check_names,
    check_sort_order,
    check_spec,
    has_sequential_ids,
    last_field_id,
    read_sort_order,
    read_spec,
    sort_order_form,
    spec_form,
    with_field_ids,
)

LAST_ADDED = -1
"""What stands for the schema, spec or sort order that the same request added last."""


def add_schema(draft: TableDraft, update: Json) -> None:
    """Apply `add-schema`."""
    schema = get_object(update, "schema")
    index = SchemaIndex(schema)
    check_format(index, draft.format_version)
    last_column_id = max(draft.last_column_id, index.highest_id)
    known = draft.schemas.all()
    id = draft.schemas.like(schema, schema_form)
    if id is not None and last_column_id == draft.last_column_id:
        if draft.last_added_schema_id is not None:
            draft.last_added_schema_id = id if ("add-schema", id) in draft.changes else None
        return
    draft.last_column_id = last_column_id
    if id is None:
        id = max([draft.current_schema_id, *(other + 1 for other, _ in known)])
        draft.schemas.add(id, {**normal_schema(schema), "schema-id": id})
    draft.last_added_schema_id = id
    draft.changes.append(("add-schema", id))


def set_current_schema(draft: TableDraft, update: Json) -> None:
    """Apply `set-current-schema`."""
    id = get_int(update, "schema-id")
    if id == LAST_ADDED:
        id = _last_added("schema", draft.last_added_schema_id)
    if id == draft.current_schema_id:
        return
    schema = draft.schemas.get(id)
    if schema is None:
        raise invalid(f"Cannot set current schema to unknown schema: {id}")
    index = SchemaIndex(schema)
    for _, spec in draft.specs.all():
        check_names(spec, index)
    draft.current_schema_id = id
    draft.changes.append(("set-current-schema", id))


def remove_schemas(draft: TableDraft, update: Json) -> None:
    """Apply `remove-schemas`."""
    ids = get_longs(update, "schema-ids")
    if draft.current_schema_id in ids:
        raise invalid("Cannot remove the current schema")
    if ids:
        draft.schemas.remove(ids)
        draft.changes.append(("remove-schemas", ids))


def add_spec(draft: TableDraft, update: Json) -> None:
    """Apply `add-spec`."""
    known = draft.specs.all()
    spec = read_spec({"spec-id": 0, **get_object(update, "spec")})
    spec = with_field_ids(spec, [other for _, other in known], draft.last_partition_id)
    schema = draft.current_schema()
    check_names(spec, schema)
    check_spec(spec, schema)
    id = draft.specs.like(spec, spec_form)
    if id is not None:
        if ("add-spec", draft.last_added_spec_id) not in draft.changes:
            id = None
        draft.last_added_spec_id = id
        return
    if draft.format_version == 1 and not has_sequential_ids(spec):
        raise refused(f"Spec does not use sequential IDs that are required in v1: {spec['fields']}")
    id = max([0, *(other + 1 for other, _ in known)])
    draft.last_partition_id = max(draft.last_partition_id, last_field_id(spec), FIRST_PARTITION_ID - 1)
    draft.specs.add(id, {**spec, "spec-id": id})
    draft.last_added_spec_id = id
    draft.changes.append(("add-spec", id))


def set_default_spec(draft: TableDraft, update: Json) -> None:
    """Apply `set-default-spec`."""
    id = get_int(update, "spec-id")
    if id == LAST_ADDED:
        id = _last_added("spec", draft.last_added_spec_id)
    if id == draft.default_spec_id:
        return
    draft.default_spec_id = id
    draft.changes.append(("set-default-spec", id))


def remove_specs(draft: TableDraft, update: Json) -> None:
    """Apply `remove-partition-specs`."""
    ids = get_longs(update, "spec-ids")
    if draft.default_spec_id in ids:
        raise invalid("Cannot remove the default partition spec")
    if ids:
        draft.specs.remove(ids)
        draft.changes.append(("remove-partition-specs", ids))


def add_sort_order(draft: TableDraft, update: Json) -> None:
    """Apply `add-sort-order`."""
    order = read_sort_order(get_object(update, "sort-order"))
    check_sort_order(order, draft.current_schema())
    known = draft.sort_orders.all()
    id = draft.sort_orders.like(order, sort_order_form)
    if id is not None:
        if ("add-sort-order", draft.last_added_sort_order_id) not in draft.changes:
            id = None
        draft.last_added_sort_order_id = id
        return
    id = max([1, *(other + 1 for other, _ in known)]) if order["fields"] else 0
    draft.sort_orders.add(id, {**order, "order-id": id})
    draft.last_added_sort_order_id = id
    draft.changes.append(("add-sort-order", id))


def set_default_sort_order(draft: TableDraft, update: Json) -> None:
    """Apply `set-default-sort-order`."""
    id = get_int(update, "sort-order-id")
    if id == LAST_ADDED:
        id = _last_added("sort order", draft.last_added_sort_order_id)
    if id == draft.default_sort_order_id:
        return
    draft.default_sort_order_id = id
    draft.changes.append(("set-default-sort-order", id))


def _last_added(what: str, id: int | None) -> int:
    if id is None:
        raise refused(f"Cannot set last added {what}: no {what} has been added")
    return id
