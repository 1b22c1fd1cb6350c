"""Partition specs and sort orders as JSON: their transforms, checks against a schema, and comparison.

The rules are the same as in Iceberg's `PartitionSpec`, `SortOrder` and `Transforms` (specification:
https://iceberg.apache.org/spec/#partitioning, https://iceberg.apache.org/spec/#sorting).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from polaris_spark.catalog.metadata.schemas import NESTED, SchemaIndex
from polaris_spark.catalog.metadata.texts import (
    Json,
    check_int,
    get_int,
    get_objects,
    get_text,
    invalid,
    parse_int,
    refused,
)

FIRST_PARTITION_ID = 1000
"""Lowest id that is assigned to a partition field."""

_WIDTH = re.compile(r"(\w+)\[(-?\d+)\]", re.ASCII)
_WITH_WIDTH = ("bucket", "truncate")
_NAMED = frozenset({"identity", "year", "month", "day", "hour", "void"})
_TIMESTAMPS = frozenset({"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
_DATES = _TIMESTAMPS | {"date"}
_NOT_IDENTITY = NESTED | {"variant", "geometry", "geography"}
_SOURCES = {
    "bucket": _DATES | {"int", "long", "time", "string", "binary", "fixed", "decimal", "uuid"},
    "truncate": frozenset({"int", "long", "string", "binary", "decimal"}),
    "year": _DATES,
    "month": _DATES,
    "day": _DATES,
    "hour": _TIMESTAMPS,
}


def normal_transform(text: str) -> str:
    """Return a transform in the form in which Iceberg writes it; an unknown transform is not changed."""
    match = _WIDTH.fullmatch(text)
    width = parse_int(match[2]) if match else None
    if match and width is not None and match[1].lower() in _WITH_WIDTH:
        return f"{match[1].lower()}[{width}]"
    return text.lower() if text.lower() in _NAMED else text


def read_transform(text: str) -> str:
    """Return an Iceberg transform that a request contains, such as `bucket[16]`, in normalized form.

    Raises:
        BadRequestError: the width of a bucket or truncate transform is not a positive 32-bit integer, or the width of
            an unknown transform does not fit into 32 bits. Java's `Transforms` could not read the transform.
    """
    match = _WIDTH.fullmatch(text)
    if match:
        width, sized = parse_int(match[2]), match[1].lower() in _WITH_WIDTH
        if sized and (width is None or width <= 0):
            raise invalid(
                f"Invalid number of buckets or width: {match[2][:40]} (must be > 0 and fit into 32 bits)"
            )
        if width is None:
            raise invalid(f"Invalid transform: the width {match[2][:40]} does not fit into 32 bits")
    return normal_transform(text)


def read_spec(spec: Json) -> Json:
    """Return a partition spec of a request, with its transforms in normalized form.

    Raises:
        BadRequestError: the spec is malformed, or only some of its fields have ids.
    """
    fields = [_read_partition_field(field) for field in get_objects(spec, "fields")]
    with_ids = sum("field-id" in field for field in fields)
    if with_ids not in (0, len(fields)):
        raise invalid(
            f"Cannot parse spec with missing field IDs: {len(fields) - with_ids} missing of "
            f"{len(fields)} fields."
        )
    return {**spec, "fields": fields}


def with_field_ids(spec: Json, last_id: int, known: Callable[[int, str], int | None] | None = None) -> Json:
    """Return a spec with an id in every field.

    A field without an id gets the id that a field with the same source and transform has in another spec. If there is
    no such field, or if this spec already uses its id, the field gets the next unused id.

    Args:
        last_id: the highest field id of the table.
        known: a function that returns the field id of a source and transform in other specs, or None if no other spec
            has them. Pass None if there are no other specs.
    Raises:
        BadRequestError: the next id does not fit into 32 bits.
    """
    fields: list[Json] = []
    taken: set[int] = set()
    for field in spec["fields"]:
        if "field-id" not in field:
            id = None if known is None else known(field["source-id"], field["transform"])
            if id is None or id in taken:
                last_id = id = check_int(max(last_id, FIRST_PARTITION_ID - 1) + 1, "partition field id")
            field = {**field, "field-id": id}
        taken.add(field["field-id"])
        fields.append(field)
    return {**spec, "fields": fields}


def check_names(spec: Json, schema: SchemaIndex) -> None:
    """Refuse a spec with a field name that is empty, used twice, or the name of a column other than the field's source.

    Raises:
        BadRequestError: the spec is refused; the message contains the field name.
    """
    seen: set[str] = set()
    for field in spec["fields"]:
        name = field["name"]
        column = schema.find(name) if name else None
        if column is not None and field["source-id"] in schema.by_id and column.id != field["source-id"]:
            raise invalid(f"Cannot create identity partition sourced from different field in schema: {name}")
        if not name:
            raise invalid(f"Cannot use empty partition name: {name}")
        if name in seen:
            raise invalid(f"Cannot use partition name more than once: {name}")
        seen.add(name)


def check_spec(spec: Json, schema: SchemaIndex) -> None:
    """Refuse a spec with a field whose source column does not exist, is in a list or map, or has a type that the
    field's transform does not accept. Fields with the transform `void` are not checked.

    Raises:
        BadRequestError: the spec is refused; the message names the field or the type.
    """
    for field in spec["fields"]:
        if field["transform"] == "void":
            continue
        column = schema.by_id.get(field["source-id"])
        if column is None:
            raise refused(f"Cannot find source column for partition field: {_partition_text(field)}")
        if column.kind in NESTED or column.kind == "variant":
            raise refused(f"Cannot partition by non-primitive source field: {column.type}")
        if not can_transform(field["transform"], column.kind):
            raise refused(f"Invalid source type {column.type} for transform: {field['transform']}")
        for around in schema.ancestors(column):
            if around.kind != "struct":
                raise refused(f"Invalid partition field parent: {around.type}")


def check_readable(spec: Json, schema: SchemaIndex) -> None:
    """Refuse a spec with a field whose transform does not accept the type of the source column in this schema.

    Java clients cannot load such a spec, even if it is not the default spec. A source column that no longer exists is
    allowed.

    Raises:
        BadRequestError: the spec is refused; the message names the type.
    """
    for field in spec["fields"]:
        column = schema.by_id.get(field["source-id"])
        if column is not None and not can_transform(field["transform"], column.kind):
            raise invalid(
                f"Invalid source type {column.type} for transform {field['transform']} of partition spec "
                f"{spec.get('spec-id')}"
            )


def check_sort_order(order: Json, schema: SchemaIndex) -> None:
    """Refuse a sort order with a field whose source column does not exist, or has a type that the field's transform
    does not accept.

    Raises:
        BadRequestError: the sort order is refused; the message names the field or the type.
    """
    for field in order["fields"]:
        column = schema.by_id.get(field["source-id"])
        if column is None:
            raise refused(f"Cannot find source column for sort field: {_sort_text(field)}")
        if column.kind in NESTED or column.kind == "variant":
            raise refused(f"Cannot sort by non-primitive source field: {column.type}")
        if not can_transform(field["transform"], column.kind):
            raise refused(f"Invalid source type {column.type} for transform: {field['transform']}")


def can_transform(transform: str, kind: str) -> bool:
    """Return whether a transform accepts columns of a type. Unknown transforms accept every type."""
    if transform == "identity":
        return kind not in _NOT_IDENTITY
    match = _WIDTH.fullmatch(transform)
    sources = _SOURCES.get(match[1] if match else transform if transform in _NAMED else "")
    return sources is None or kind in sources


def read_sort_order(order: Json) -> Json:
    """Return a sort order of a request, with transforms, directions and null orders in normalized form.

    Raises:
        BadRequestError: the order is malformed, or has a wrong id. The id of the unsorted order must be 0, and the id
            of any other order must not be 0.
    """
    id, fields = (
        get_int(order, "order-id"),
        [_read_sort_field(field) for field in get_objects(order, "fields")],
    )
    if not fields and id:
        raise invalid("Unsorted order ID must be 0")
    if fields and not id:
        raise invalid("Sort order ID 0 is reserved for unsorted order")
    return {**order, "fields": fields}


def spec_form(spec: Json) -> object:
    """Return a value that is the same for equivalent specs: the source, transform and name of each field, in order."""
    return _each(spec, _partition_key)


def sort_order_form(order: Json) -> object:
    """Return a value that is the same for equivalent sort orders.

    It consists of the source, transform, direction and null order of each field, in order.
    """
    return _each(order, _sort_key)


def has_sequential_ids(spec: Json) -> bool:
    """Return whether the ids of the partition fields are 1000, 1001 and so on, as format version 1 requires."""
    return all(f["field-id"] == FIRST_PARTITION_ID + i for i, f in enumerate(spec["fields"]))


def last_field_id(spec: Json) -> int:
    """Return the highest id of the partition fields of a spec; 999 if the spec has no fields."""
    return max((f["field-id"] for f in spec["fields"]), default=FIRST_PARTITION_ID - 1)


def _read_partition_field(field: Json) -> Json:
    get_text(field, "name")
    get_int(field, "source-id")
    if field.get("field-id") is not None:
        get_int(field, "field-id")
    else:
        field = {key: value for key, value in field.items() if key != "field-id"}
    return {**field, "transform": read_transform(get_text(field, "transform"))}


def _read_sort_field(field: Json) -> Json:
    get_int(field, "source-id")
    direction, null_order = get_text(field, "direction").lower(), get_text(field, "null-order").lower()
    if direction not in ("asc", "desc"):
        raise invalid(f"Invalid sort direction: {field['direction']}")
    if null_order not in ("nulls-first", "nulls-last"):
        raise invalid(f"Unexpected null order: {field['null-order']}")
    transform = read_transform(get_text(field, "transform"))
    return {**field, "transform": transform, "direction": direction, "null-order": null_order}


def _each(data: Json, key: Callable[[Json], tuple[object, ...]]) -> list[tuple[object, ...]]:
    return [key(field) for field in data["fields"]]


def _partition_key(field: Json) -> tuple[object, ...]:
    return field["source-id"], normal_transform(field["transform"]), field["name"]


def _sort_key(field: Json) -> tuple[object, ...]:
    words = field["direction"].lower(), field["null-order"].lower()
    return field["source-id"], normal_transform(field["transform"]), *words


def _partition_text(field: Json) -> str:
    return f"{field.get('field-id')}: {field['name']}: {field['transform']}({field['source-id']})"


def _sort_text(field: Json) -> str:
    words = field["direction"].upper(), field["null-order"].upper().replace("-", " ")
    return f"{field['transform']}({field['source-id']}) {words[0]} {words[1]}"
