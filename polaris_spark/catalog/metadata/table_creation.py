"""New tables from a `CreateTableRequest` of the REST specification.

The rules are the same as in Iceberg's `TableMetadata.newTableMetadata`: new ids replace all ids of columns and
partition fields in the request.
"""

from __future__ import annotations

from itertools import count

from polaris_spark.catalog.metadata import table_pieces as pieces
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import DEFAULT_FORMAT_VERSION, NO_OBJECTS, SUPPORTED_FORMAT_VERSION
from polaris_spark.catalog.metadata.schemas import SchemaIndex, fresh_ids
from polaris_spark.catalog.metadata.table_updates import (
    FORMAT_VERSION,
    RESERVED_PROPERTIES,
    parse_version,
    require_booleans,
    strip_trailing_slash,
)
from polaris_spark.catalog.metadata.texts import (
    Json,
    as_object,
    find_object,
    get_object,
    get_text_map,
    invalid,
    parse_int,
    refused,
)
from polaris_spark.catalog.metadata.transforms import (
    FIRST_PARTITION_ID,
    check_names,
    check_sort_order,
    check_spec,
    read_sort_order,
    read_spec,
)
from polaris_spark.clock import CheckTime, unlimited

NEW_TABLE_PROPERTIES = {"write.parquet.compression-codec": "zstd"}
"""Default properties of a new table. The properties in the request override them."""

_COMMIT_PROPERTIES = (
    "commit.retry.num-retries",
    "commit.retry.min-wait-ms",
    "commit.retry.max-wait-ms",
    "commit.retry.total-timeout-ms",
)
_ENCRYPTION_PROPERTIES = ("encryption.key-id", "encryption.data-key-length")
_COLUMN_METRICS = "write.metadata.metrics.column."


def create_table(
    request: Json, *, uuid: str, location: str, now_ms: int, check_time: CheckTime = unlimited
) -> TableDraft:
    """Return the draft of a new table.

    Args:
        request: `schema`, and optionally `partition-spec`, `write-order` and `properties`. The property
            `format-version` sets the format version (default 2); other reserved properties are not stored.
        uuid: UUID of the table.
        location: location of the table. This function ignores the location in the request, which the caller handles.
        now_ms: the current time, milliseconds since 1970 UTC.
        check_time: called at each step; raises an error to abort work that takes too long.
    Raises:
        BadRequestError: the request is malformed, or its parts are inconsistent.
    """
    as_object(request, "create table request")
    asked = get_text_map(request, "properties") if request.get("properties") is not None else {}
    draft = TableDraft(None, NO_OBJECTS, now_ms=now_ms, check_time=check_time)
    draft.uuid, draft.location = uuid, strip_trailing_slash(location)
    draft.format_version = parse_version(asked.get(FORMAT_VERSION, str(DEFAULT_FORMAT_VERSION)))
    if not 1 <= draft.format_version <= SUPPORTED_FORMAT_VERSION:
        raise invalid(
            f"Unsupported format version: v{draft.format_version} (supported: v{SUPPORTED_FORMAT_VERSION})"
        )
    require_booleans(asked)
    properties = {k: v for k, v in {**NEW_TABLE_PROPERTIES, **asked}.items() if k not in RESERVED_PROPERTIES}
    schema, old = fresh_ids(get_object(request, "schema"), 0, count(1).__next__)
    check_time()
    check_properties(properties, old, draft.format_version)
    pieces.add_schema(draft, {"schema": schema})
    check_time()
    new_ids = {column.name: column.id for column in SchemaIndex(schema).by_id.values()}
    _add_spec(draft, find_object(request, "partition-spec"), old, new_ids)
    _add_order(draft, find_object(request, "write-order"), old, new_ids)
    draft.own_properties().update(properties)
    return draft


def check_properties(properties: dict[str, str], schema: SchemaIndex, format_version: int) -> None:
    """Refuse properties that are not valid for a new table with this schema and format version.

    Raises:
        BadRequestError: a property is refused; the message names the property.
    """
    for name in properties:
        column = name.removeprefix(_COLUMN_METRICS)
        if column != name and schema.find(column) is None:
            raise refused(
                f"Invalid metrics config, could not find column {column} from table prop {name} in schema"
            )
    for name in _COMMIT_PROPERTIES:
        value = properties.get(name)
        if value is None:
            continue
        number = parse_int(value)
        if number is None:
            raise refused(f"Table property {name} must have integer value: {value[:40]}")
        if number < 0:
            raise refused(f"Table property {name} must have non negative integer value: {value[:40]}")
    found = [name for name in _ENCRYPTION_PROPERTIES if name in properties]
    if format_version < 3 and found:
        raise invalid(f"Invalid properties for v{format_version}: {found}")


def _add_spec(draft: TableDraft, asked: Json | None, old: SchemaIndex, new_ids: dict[str, int]) -> None:
    spec = read_spec({"spec-id": 0, **(asked or {"fields": []})})
    check_names(spec, old)
    check_spec(spec, old)
    fields = [
        {
            **field,
            "source-id": _moved(field["source-id"], old, new_ids),
            "field-id": FIRST_PARTITION_ID + position,
        }
        for position, field in enumerate(spec["fields"])
    ]
    pieces.add_spec(draft, {"spec": {**spec, "fields": fields}})


def _add_order(draft: TableDraft, asked: Json | None, old: SchemaIndex, new_ids: dict[str, int]) -> None:
    asked = asked or {"fields": []}
    order = read_sort_order({"order-id": 1 if asked.get("fields") else 0, **asked})
    check_sort_order(order, old)
    fields = [{**field, "source-id": _moved(field["source-id"], old, new_ids)} for field in order["fields"]]
    pieces.add_sort_order(draft, {"sort-order": {**order, "fields": fields}})
    draft.default_sort_order_id = draft.last_added_sort_order_id or 0


def _moved(source_id: int, old: SchemaIndex, new_ids: dict[str, int]) -> int:
    column = old.by_id.get(source_id)
    if column is None:
        raise refused(f"Cannot find source column: {source_id}")
    return new_ids[column.name]
