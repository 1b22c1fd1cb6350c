"""The same updates, applied here and by pyiceberg, give the same metadata."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import TableUpdate, update_table_metadata

from tests.catalog.metadata.tables import SCHEMA, Catalog, Json, add, field, point, snapshot

WIDER = {**SCHEMA, "schema-id": 1, "fields": [*SCHEMA["fields"], field(5, "note"), field(6, "n", "int")]}

REQUESTS: dict[str, list[Json]] = {
    "properties": [
        {"action": "set-properties", "updates": {"a": "1", "b": "2"}},
        {"action": "remove-properties", "removals": ["a"]},
    ],
    "location": [{"action": "set-location", "location": "s3://elsewhere/t"}],
    "schema": [
        {"action": "add-schema", "schema": WIDER, "last-column-id": 6},
        {"action": "set-current-schema", "schema-id": -1},
    ],
    "spec": [
        {
            "action": "add-spec",
            "spec": {
                "spec-id": 1,
                "fields": [
                    {"name": "at_day", "transform": "day", "source-id": 2, "field-id": 1000},
                    {"name": "id_bucket", "transform": "bucket[16]", "source-id": 1, "field-id": 1001},
                ],
            },
        },
        {"action": "set-default-spec", "spec-id": -1},
    ],
    "order": [
        {
            "action": "add-sort-order",
            "sort-order": {
                "order-id": 2,
                "fields": [
                    {
                        "transform": "bucket[4]",
                        "source-id": 1,
                        "direction": "desc",
                        "null-order": "nulls-last",
                    }
                ],
            },
        },
        {"action": "set-default-sort-order", "sort-order-id": -1},
    ],
    "append": [],
    "branch and tag": [point("audit", 101, **{"min-snapshots-to-keep": 3}), point("v1", 101, "tag")],
    "second append": [],
    "no tag": [{"action": "remove-snapshot-ref", "ref-name": "v1"}],
    "statistics": [
        {
            "action": "set-statistics",
            "snapshot-id": 101,
            "statistics": {
                "snapshot-id": 101,
                "statistics-path": "s3://x.puffin",
                "file-size-in-bytes": 10,
                "file-footer-size-in-bytes": 4,
                "blob-metadata": [
                    {
                        "type": "apache-datasketches-theta-v1",
                        "snapshot-id": 101,
                        "sequence-number": 1,
                        "fields": [1],
                    }
                ],
            },
        }
    ],
    "no statistics": [{"action": "remove-statistics", "snapshot-id": 101}],
    "old schemas": [{"action": "remove-schemas", "schema-ids": [0]}],
}


def appending(catalog: Catalog, id: int) -> list[Json]:
    table = catalog.table
    number = table.last_sequence_number + 1 if table.format_version > 1 else 0
    value = snapshot(id, number, parent=table.current_snapshot_id, **{"timestamp-ms": catalog.now})
    if not number:
        del value["sequence-number"]
    return [add(value), point("main", id)]


def parsed(text: bytes) -> Json:
    """Parse metadata, without fields that depend on the commit time, and without two fields of version 1 that pyiceberg
    does not update."""
    found = TableMetadataUtil.parse_raw(text.decode())
    fields: Json = found.model_dump(exclude={"last_updated_ms", "metadata_log", "schema_", "partition_spec"})
    return fields


@pytest.mark.parametrize("version", [1, 2])
def test_the_same_updates_give_the_same_metadata(version: int) -> None:
    catalog = Catalog().create(version=version)
    updates: TypeAdapter[tuple[TableUpdate, ...]] = TypeAdapter(tuple[TableUpdate, ...])
    ids = iter((101, 102))
    for name, request in REQUESTS.items():
        request = request or appending(catalog, next(ids))
        before = TableMetadataUtil.parse_raw(catalog.text().decode())
        catalog.commit(*request)
        expected = update_table_metadata(before, updates.validate_python(request))
        assert parsed(catalog.text()) == parsed(expected.model_dump_json().encode()), name
