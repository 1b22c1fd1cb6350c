"""New tables: fresh ids, properties, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from polaris_spark.catalog.metadata.table_creation import create_table
from polaris_spark.errors import BadRequestError
from tests.catalog.metadata.tables import (
    LOCATION,
    NOW,
    ORDER,
    SCHEMA,
    SPEC,
    UUID,
    Catalog,
    Json,
    field,
    schema,
)

NESTED = schema(
    field(
        10, "a", {"type": "struct", "fields": [field(40, "x", "int"), field(41, "y", "int", required=True)]}
    ),
    field(20, "b", "long", required=True, doc="kept"),
    field(
        30,
        "m",
        {
            "type": "map",
            "key-id": 50,
            "key": "string",
            "value-id": 51,
            "value": {"type": "list", "element-id": 60, "element": "int", "element-required": False},
            "value-required": True,
        },
    ),
    **{"schema-id": 9, "identifier-field-ids": [20]},
)


def test_columns_are_numbered_a_struct_before_what_is_in_it() -> None:
    catalog = Catalog().create(schema=NESTED, **{"partition-spec": None, "write-order": None})
    found = catalog.json()["schemas"][0]
    a, b, m = found["fields"]
    assert (a["id"], b["id"], m["id"]) == (1, 2, 3)
    assert [f["id"] for f in a["type"]["fields"]] == [4, 5]
    assert (m["type"]["key-id"], m["type"]["value-id"], m["type"]["value"]["element-id"]) == (6, 7, 8)
    assert (found["schema-id"], found["identifier-field-ids"], b["doc"]) == (0, [2], "kept")
    assert catalog.json()["last-column-id"] == 8


def test_specs_and_orders_follow_the_new_column_ids_by_name() -> None:
    spec = {
        "spec-id": 4,
        "fields": [{"name": "y", "transform": "bucket[4]", "source-id": 41, "field-id": 1007}],
    }
    order = {"order-id": 6, "fields": [{**ORDER["fields"][0], "source-id": 20}]}
    catalog = Catalog().create(schema=NESTED, **{"partition-spec": spec, "write-order": order})
    found = catalog.json()
    assert found["partition-specs"] == [
        {"spec-id": 0, "fields": [{"name": "y", "transform": "bucket[4]", "source-id": 5, "field-id": 1000}]}
    ]
    assert found["sort-orders"] == [{"order-id": 1, "fields": [{**ORDER["fields"][0], "source-id": 2}]}]
    assert (found["last-partition-id"], found["default-sort-order-id"]) == (1000, 1)


def test_a_new_table_is_of_version_2_unpartitioned_and_unsorted_unless_asked_otherwise() -> None:
    draft = create_table({"name": "t", "schema": SCHEMA}, uuid=UUID, location=LOCATION + "/", now_ms=NOW)
    catalog = Catalog()
    catalog.store(draft)
    found = catalog.json()
    assert (found["format-version"], found["last-updated-ms"], found["location"]) == (2, NOW, LOCATION)
    assert (found["last-partition-id"], found["default-sort-order-id"]) == (999, 0)
    assert found["partition-specs"] == [{"spec-id": 0, "fields": []}]
    assert found["sort-orders"] == [{"order-id": 0, "fields": []}]
    assert found["metadata-log"] == found["snapshot-log"] == found["snapshots"] == []


def test_properties_have_a_default_and_no_reserved_names() -> None:
    asked = {"format-version": "3", "uuid": "x", "a": "1"}
    catalog = Catalog().create(version=3, properties=asked)
    assert catalog.json()["properties"] == {"a": "1", "write.parquet.compression-codec": "zstd"}
    catalog = Catalog().create(properties={"write.parquet.compression-codec": "gzip"})
    assert catalog.json()["properties"] == {"write.parquet.compression-codec": "gzip"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": None}, "schema"),
        ({"properties": {"format-version": "9"}}, "Unsupported format version: v9"),
        ({"properties": {"format-version": "two"}}, "to an integer: two"),
        ({"properties": {"write.metadata.metrics.column.nope": "full"}}, "could not find column nope"),
        ({"properties": {"commit.retry.num-retries": "many"}}, "must have integer value"),
        ({"properties": {"commit.retry.num-retries": "-1"}}, "must have non negative integer value"),
        ({"properties": {"encryption.key-id": "k"}}, "Invalid properties for v2"),
        (
            {"partition-spec": {"fields": [{**SPEC["fields"][0], "source-id": 99}]}},
            "Cannot find source column",
        ),
        ({"write-order": {"fields": [{**ORDER["fields"][0], "source-id": 99}]}}, "Cannot find source column"),
        ({"schema": schema(field(1, "v", "variant"))}, "not supported until v3"),
    ],
)
def test_a_request_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    request: Json = {"name": "t", "schema": SCHEMA, **change}
    with pytest.raises(BadRequestError, match=message):
        create_table(request, uuid=UUID, location=LOCATION, now_ms=NOW)
