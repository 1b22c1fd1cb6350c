"""Updates of a table's schemas, partition specs and sort orders; `table_updates` lists the rules."""

from __future__ import annotations

from polaris_spark.catalog.metadata.bounds import require_within
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.pieces import form_digest
from polaris_spark.catalog.metadata.schemas import (
    SchemaIndex,
    check_format,
    check_new_types,
    normal_form,
    normal_schema,
)
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
    with_field_ids,
)

LAST_ADDED = -1
"""Id in an update that stands for the schema, spec, sort order or view version that the same request added last."""


def add_schema(draft: TableDraft, update: Json) -> None:
    """Apply the update `add-schema` to a draft."""
    schema = get_object(update, "schema")
    index = SchemaIndex(schema)
    check_format(index, draft.format_version)
    check_new_types(index)
    last_column_id = max(draft.last_column_id, index.highest_id)
    schema = normal_schema(schema)
    digest = form_digest(normal_form(schema))
    id = draft.schemas.like(digest)
    if id is not None and last_column_id == draft.last_column_id:
        if draft.last_added_schema_id is not None:
            draft.last_added_schema_id = id if ("add-schema", id) in draft.added else None
        return
    draft.last_column_id = last_column_id
    if id is None:
        require_within("schemas of a table or view", len(draft.schemas) + 1)
        id = draft.schemas.next_id(draft.current_schema_id)
        draft.schemas.add(id, {**schema, "schema-id": id}, digest=digest)
    draft.last_added_schema_id = id
    draft.record("add-schema", id)


def set_current_schema(draft: TableDraft, update: Json) -> None:
    """Apply the update `set-current-schema` to a draft."""
    id = get_int(update, "schema-id")
    if id == LAST_ADDED:
        id = last_added("schema", draft.last_added_schema_id)
    if id == draft.current_schema_id:
        return
    index = draft.schema_index(id)
    if index is None:
        raise invalid(f"Cannot set current schema to unknown schema: {id}")
    if draft.spec_fields.needs_name_check(index):
        for _, spec in draft.specs.all():
            check_names(spec, index)
    draft.current_schema_id = id
    draft.record("set-current-schema", id)


def remove_schemas(draft: TableDraft, update: Json) -> None:
    """Apply the update `remove-schemas` to a draft."""
    ids = get_longs(update, "schema-ids")
    if draft.current_schema_id in ids:
        raise invalid("Cannot remove the current schema")
    if ids:
        draft.remove_schemas(ids)
        draft.record("remove-schemas", ids)


def add_spec(draft: TableDraft, update: Json) -> None:
    """Apply the update `add-spec` to a draft."""
    spec = read_spec({"spec-id": 0, **get_object(update, "spec")})
    spec = with_field_ids(spec, draft.last_partition_id, draft.spec_fields.field_id)
    schema = draft.current_schema()
    check_names(spec, schema)
    check_spec(spec, schema)
    digest = draft.specs.digest(spec)
    id = draft.specs.like(digest)
    if id is not None:
        if ("add-spec", draft.last_added_spec_id) not in draft.added:
            id = None
        draft.last_added_spec_id = id
        return
    if draft.format_version == 1 and not has_sequential_ids(spec):
        raise refused(f"Spec does not use sequential IDs that are required in v1: {spec['fields']}")
    require_within("partition specs of a table", len(draft.specs) + 1)
    id = draft.specs.next_id()
    draft.last_partition_id = max(draft.last_partition_id, last_field_id(spec), FIRST_PARTITION_ID - 1)
    spec = {**spec, "spec-id": id}
    draft.specs.add(id, spec, digest=digest)
    draft.spec_fields.add(id, spec)
    draft.last_added_spec_id = id
    draft.record("add-spec", id)


def set_default_spec(draft: TableDraft, update: Json) -> None:
    """Apply the update `set-default-spec` to a draft."""
    id = get_int(update, "spec-id")
    if id == LAST_ADDED:
        id = last_added("spec", draft.last_added_spec_id)
    if id == draft.default_spec_id:
        return
    draft.default_spec_id = id
    draft.record("set-default-spec", id)


def remove_specs(draft: TableDraft, update: Json) -> None:
    """Apply the update `remove-partition-specs` to a draft."""
    ids = get_longs(update, "spec-ids")
    if draft.default_spec_id in ids:
        raise invalid("Cannot remove the default partition spec")
    if ids:
        draft.specs.remove(ids)
        draft.spec_fields.remove(ids)
        draft.record("remove-partition-specs", ids)


def add_sort_order(draft: TableDraft, update: Json) -> None:
    """Apply the update `add-sort-order` to a draft."""
    order = read_sort_order(get_object(update, "sort-order"))
    check_sort_order(order, draft.current_schema())
    digest = draft.sort_orders.digest(order)
    id = draft.sort_orders.like(digest)
    if id is not None:
        if ("add-sort-order", draft.last_added_sort_order_id) not in draft.added:
            id = None
        draft.last_added_sort_order_id = id
        return
    require_within("sort orders of a table", len(draft.sort_orders) + 1)
    id = draft.sort_orders.next_id(1) if order["fields"] else 0
    draft.sort_orders.add(id, {**order, "order-id": id}, digest=digest)
    draft.last_added_sort_order_id = id
    draft.record("add-sort-order", id)


def set_default_sort_order(draft: TableDraft, update: Json) -> None:
    """Apply the update `set-default-sort-order` to a draft."""
    id = get_int(update, "sort-order-id")
    if id == LAST_ADDED:
        id = last_added("sort order", draft.last_added_sort_order_id)
    if id == draft.default_sort_order_id:
        return
    draft.default_sort_order_id = id
    draft.record("set-default-sort-order", id)


def last_added(what: str, id: int | None) -> int:
    """Return the id of the schema, spec or sort order that was added last. `what` is its kind, for the message.

    Raises:
        BadRequestError: nothing of this kind has been added (`id` is None).
    """
    if id is None:
        raise refused(f"Cannot set last added {what}: no {what} has been added")
    return id
