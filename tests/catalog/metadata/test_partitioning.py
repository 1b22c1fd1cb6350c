"""Partition specs and sort orders."""

from __future__ import annotations

from typing import Any

import pytest

from polaris_spark.catalog.metadata.transforms import can_transform, normal_transform
from polaris_spark.errors import BadRequestError
from tests.catalog.metadata.tables import NOW, ORDER, SCHEMA, SPEC, Catalog, Json, field, schema

UNSORTED = {"order-id": 0, "fields": []}


def part(source: int, transform: str, name: str, id: int | None = None) -> Json:
    value: Json = {"name": name, "transform": transform, "source-id": source}
    return value if id is None else {**value, "field-id": id}


def add_spec(*fields: Json) -> Json:
    return {"action": "add-spec", "spec": {"spec-id": 40, "fields": list(fields)}}


def set_spec(id: int) -> Json:
    return {"action": "set-default-spec", "spec-id": id}


def add_order(value: Json) -> Json:
    return {"action": "add-sort-order", "sort-order": value}


def set_order(id: int) -> Json:
    return {"action": "set-default-sort-order", "sort-order-id": id}


def sort(
    source: int, direction: str = "asc", nulls: str = "nulls-first", transform: str = "identity"
) -> Json:
    return {"transform": transform, "source-id": source, "direction": direction, "null-order": nulls}


def test_a_new_spec_gets_the_next_id_and_becomes_the_default() -> None:
    catalog = Catalog().create()
    catalog.commit(add_spec(part(1, "Bucket[8]", "id_bucket", 1001)), set_spec(-1))
    found = catalog.json()
    assert (found["default-spec-id"], found["last-partition-id"]) == (1, 1001)
    assert found["partition-specs"][1] == {"spec-id": 1, "fields": [part(1, "bucket[8]", "id_bucket", 1001)]}


def test_an_equal_spec_is_reused_even_if_its_field_ids_differ() -> None:
    catalog = Catalog().create()
    assert not catalog.commit(add_spec(part(2, "day", "at_day", 1005))).changed
    with pytest.raises(BadRequestError, match="Cannot set last added spec: no spec has been added"):
        catalog.commit(add_spec(part(2, "day", "at_day", 1005)), set_spec(-1))


def test_missing_field_ids_are_assigned_and_kept_for_the_same_source_and_transform() -> None:
    catalog = Catalog().create()
    catalog.commit(add_spec(part(1, "bucket[8]", "b"), part(2, "day", "d")))
    assert [f["field-id"] for f in catalog.json()["partition-specs"][1]["fields"]] == [1001, 1000]
    assert catalog.json()["last-partition-id"] == 1001


def test_a_version_1_spec_needs_sequential_field_ids() -> None:
    catalog = Catalog().create(version=1)
    with pytest.raises(BadRequestError, match="Spec does not use sequential IDs"):
        catalog.commit(add_spec(part(1, "bucket[8]", "id_bucket", 1001)))
    catalog.commit(add_spec(part(2, "void", "at_day", 1000), part(1, "bucket[8]", "b", 1001)), set_spec(-1))
    assert catalog.json()["partition-spec"] == catalog.json()["partition-specs"][1]["fields"]


def test_specs_are_removed_but_not_the_default_one() -> None:
    catalog = Catalog().create()
    catalog.commit(add_spec(), set_spec(-1))
    catalog.commit({"action": "remove-partition-specs", "spec-ids": [0]})
    assert [s["spec-id"] for s in catalog.json()["partition-specs"]] == [1]
    with pytest.raises(BadRequestError, match="Cannot remove the default partition spec"):
        catalog.commit({"action": "remove-partition-specs", "spec-ids": [1]})


def test_an_unknown_spec_or_sort_order_cannot_be_the_default() -> None:
    catalog = Catalog().create()
    with pytest.raises(BadRequestError, match="unknown spec: 5"):
        catalog.commit(set_spec(5))
    with pytest.raises(BadRequestError, match="unknown sort order: 5"):
        catalog.commit(set_order(5))


def test_a_table_cannot_lose_its_last_spec_by_naming_another_the_default() -> None:
    with pytest.raises(BadRequestError, match="Partition specs cannot be null or empty"):
        Catalog().create().commit(set_spec(1), {"action": "remove-partition-specs", "spec-ids": [0]})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([part(9, "identity", "x")], "Cannot find source column for partition field"),
        ([part(3, "identity", "tags")], "Cannot partition by non-primitive source field: list"),
        ([part(4, "identity", "x")], "Invalid partition field parent: list"),
        ([part(1, "day", "x")], "Invalid source type long for transform: day"),
        ([part(2, "truncate[4]", "x")], "Invalid source type timestamptz for transform"),
        ([part(1, "bucket[0]", "x")], "must be > 0"),
        ([part(1, "identity", "")], "Cannot use empty partition name"),
        ([part(2, "day", "x"), part(1, "bucket[2]", "x")], "Cannot use partition name more than once: x"),
        ([part(2, "day", "id")], "sourced from different field in schema: id"),
        ([part(2, "day", "x", 1000), part(1, "bucket[2]", "y")], "missing field IDs: 1 missing of 2 fields"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused(fields: list[Json], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        Catalog().create().commit(add_spec(*fields))


def test_a_void_transform_needs_no_source() -> None:
    catalog = Catalog().create()
    catalog.commit(add_spec(part(77, "void", "gone", 1001)))
    assert catalog.json()["partition-specs"][1]["fields"][0]["source-id"] == 77


def test_a_new_sort_order_gets_the_next_id_and_becomes_the_default() -> None:
    catalog = Catalog().create()
    catalog.commit(add_order({"order-id": 9, "fields": [sort(2, "DESC", "NULLS-LAST")]}), set_order(-1))
    found = catalog.json()
    assert found["default-sort-order-id"] == 2
    assert found["sort-orders"][1] == {"order-id": 2, "fields": [sort(2, "desc", "nulls-last")]}


def test_the_unsorted_order_is_number_0_and_an_equal_order_is_used_again() -> None:
    catalog = Catalog().create()
    catalog.commit(add_order(UNSORTED), set_order(-1))
    catalog.commit(add_order({**ORDER, "order-id": 3}), set_order(1))
    assert [order["order-id"] for order in catalog.json()["sort-orders"]] == [1, 0]
    assert catalog.json()["default-sort-order-id"] == 1


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({"order-id": 1, "fields": []}, "Unsorted order ID must be 0"),
        ({"order-id": 0, "fields": [sort(1)]}, "reserved for unsorted order"),
        ({"order-id": 1, "fields": [sort(9)]}, "Cannot find source column for sort field"),
        ({"order-id": 1, "fields": [sort(3)]}, "Cannot sort by non-primitive"),
        (
            {"order-id": 1, "fields": [sort(1, transform="hour")]},
            "Invalid source type long for transform: hour",
        ),
        ({"order-id": 1, "fields": [sort(1, "up")]}, "Invalid sort direction: up"),
        ({"order-id": 1, "fields": [sort(1, nulls="nowhere")]}, "Unexpected null order: nowhere"),
        ({"fields": []}, "missing integer: order-id"),
    ],
)
def test_a_sort_order_that_does_not_fit_is_refused(order: Json, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        Catalog().create().commit(add_order(order))


def test_no_sort_order_or_spec_is_the_last_added_before_one_is_added() -> None:
    catalog = Catalog().create()
    with pytest.raises(BadRequestError, match="no sort order has been added"):
        catalog.commit(set_order(-1))
    with pytest.raises(BadRequestError, match="no spec has been added"):
        catalog.commit(set_spec(-1))


@pytest.mark.parametrize(
    ("transform", "takes", "refuses"),
    [
        ("identity", ["int", "uuid", "timestamp_ns"], ["variant", "geometry", "struct"]),
        ("bucket[4]", ["int", "decimal", "uuid", "date"], ["boolean", "float", "double"]),
        ("truncate[4]", ["int", "string", "binary"], ["uuid", "date", "fixed"]),
        ("day", ["date", "timestamp", "timestamptz_ns"], ["time", "string"]),
        ("hour", ["timestamp", "timestamptz"], ["date"]),
        ("void", ["struct", "int"], []),
        ("zorder", ["int", "string"], []),
    ],
)
def test_transforms_take_the_types_that_the_specification_names(
    transform: str, takes: list[str], refuses: list[str]
) -> None:
    assert [can_transform(transform, kind) for kind in takes] == [True] * len(takes)
    assert [can_transform(transform, kind) for kind in refuses] == [False] * len(refuses)


@pytest.mark.parametrize(
    ("text", "normal"), [("Year", "year"), ("BUCKET[016]", "bucket[16]"), ("zOrder(3)", "zOrder(3)")]
)
def test_transforms_are_written_as_iceberg_writes_them(text: str, normal: str) -> None:
    assert normal_transform(text) == normal


def test_a_replace_transaction_keeps_the_history_and_starts_a_new_schema_spec_and_order() -> None:
    catalog = Catalog().create()
    catalog.append(1)
    value = schema(field(1, "id", "long", required=True), field(5, "name"))
    replacing: list[dict[str, Any]] = [
        {"action": "remove-snapshot-ref", "ref-name": "main"},
        {"action": "add-schema", "schema": value, "last-column-id": 5},
        {"action": "set-current-schema", "schema-id": -1},
        add_spec(part(5, "identity", "name", 1001)),
        set_spec(-1),
        add_order(UNSORTED),
        set_order(-1),
        {"action": "set-location", "location": "s3://warehouse/other"},
        {"action": "set-properties", "updates": {"a": "1"}},
    ]
    catalog.commit(
        *replacing, requirements=({"type": "assert-last-assigned-field-id", "last-assigned-field-id": 4},)
    )
    found = catalog.json()
    assert (found["current-snapshot-id"], found["refs"], len(found["snapshots"])) == (-1, {}, 1)
    assert found["snapshot-log"] == [{"timestamp-ms": NOW + 1000, "snapshot-id": 1}]
    assert (found["current-schema-id"], found["default-spec-id"], found["default-sort-order-id"]) == (1, 1, 0)
    assert SPEC in found["partition-specs"]
    assert ORDER in found["sort-orders"]


def test_minus_1_is_a_spec_or_order_of_this_request_only() -> None:
    catalog = Catalog().create(**{"partition-spec": None, "write-order": None})
    spec = {"action": "add-spec", "spec": {**SPEC, "spec-id": 1}}
    none = {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}}
    last = {"action": "set-default-spec", "spec-id": -1}
    catalog.commit(spec, none, last)
    with pytest.raises(BadRequestError, match="no spec has been added"):
        catalog.commit({"action": "add-spec", "spec": {**SPEC, "spec-id": 1}}, last)
    order = {"action": "add-sort-order", "sort-order": ORDER}
    unsorted = {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}}
    with pytest.raises(BadRequestError, match="no sort order has been added"):
        catalog.commit(order, unsorted, unsorted, {"action": "set-default-sort-order", "sort-order-id": -1})


def test_a_column_of_an_old_spec_cannot_become_of_a_type_that_its_transform_cannot_take() -> None:
    catalog = Catalog().create()
    catalog.commit(
        {"action": "add-spec", "spec": {"spec-id": 1, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
    )
    fields = [field(2, "at", "double") if column["id"] == 2 else column for column in SCHEMA["fields"]]
    changed = {"action": "add-schema", "schema": {**SCHEMA, "fields": fields}}
    with pytest.raises(
        BadRequestError, match="Invalid source type double for transform day of partition spec 0"
    ):
        catalog.commit(changed, {"action": "set-current-schema", "schema-id": -1})


def test_a_transform_without_its_width_is_unknown_and_accepts_any_type() -> None:
    catalog = Catalog().create(**{"partition-spec": None})
    spec = {"spec-id": 1, "fields": [{"name": "b", "transform": "bucket", "source-id": 2, "field-id": 1000}]}
    catalog.commit({"action": "add-spec", "spec": spec})
    assert catalog.json()["partition-specs"][1]["fields"][0]["transform"] == "bucket"
