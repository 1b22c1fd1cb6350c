"""Schemas: ids, equality, features of format versions, and names that must not collide."""

from __future__ import annotations

from typing import Any

import pytest

from polaris_spark.catalog.metadata.schemas import SchemaIndex, schema_form
from polaris_spark.errors import BadRequestError
from tests.catalog.metadata.tables import SCHEMA, Catalog, Json, field, schema

WIDER = {**SCHEMA, "fields": [*SCHEMA["fields"], field(5, "note")]}


def add_schema(value: Json) -> Json:
    return {"action": "add-schema", "schema": value, "last-column-id": 99}


def set_current(id: int) -> Json:
    return {"action": "set-current-schema", "schema-id": id}


def test_a_new_schema_gets_the_next_id_and_becomes_current_as_the_last_added() -> None:
    catalog = Catalog().create()
    catalog.commit(add_schema({**WIDER, "schema-id": 17}), set_current(-1))
    found = catalog.json()
    assert ([s["schema-id"] for s in found["schemas"]], found["current-schema-id"]) == ([0, 1], 1)
    assert found["last-column-id"] == 5


def test_an_equal_schema_is_used_again() -> None:
    catalog = Catalog().create()
    catalog.commit(add_schema(WIDER), set_current(-1))
    catalog.commit(add_schema({**SCHEMA, "schema-id": 5}), set_current(0))
    assert [s["schema-id"] for s in catalog.json()["schemas"]] == [0, 1]
    assert catalog.json()["current-schema-id"] == 0


def test_adding_an_existing_schema_alone_changes_nothing() -> None:
    catalog = Catalog().create()
    assert not catalog.commit(add_schema(SCHEMA)).changed


def test_an_existing_schema_is_not_the_last_added_schema() -> None:
    catalog = Catalog().create()
    with pytest.raises(BadRequestError, match="Cannot set last added schema: no schema has been added"):
        catalog.commit(add_schema(SCHEMA), set_current(-1))


def test_a_schema_added_twice_in_one_request_is_the_last_added_one() -> None:
    catalog = Catalog().create()
    other = {**SCHEMA, "fields": [*SCHEMA["fields"], field(6, "other")]}
    catalog.commit(add_schema(WIDER), add_schema(other), add_schema(WIDER), set_current(-1))
    assert catalog.json()["current-schema-id"] == 1


def test_the_last_column_id_never_shrinks() -> None:
    catalog = Catalog().create()
    catalog.commit(add_schema(WIDER))
    catalog.commit(add_schema(schema(field(1, "id", "long", required=True))))
    assert catalog.json()["last-column-id"] == 5


def test_an_unknown_schema_cannot_become_current() -> None:
    with pytest.raises(BadRequestError, match="Cannot set current schema to unknown schema: 4"):
        Catalog().create().commit(set_current(4))


def test_schemas_are_removed_but_not_the_current_one() -> None:
    catalog = Catalog().create()
    catalog.commit(add_schema(WIDER), set_current(-1))
    catalog.commit({"action": "remove-schemas", "schema-ids": [0]})
    assert [s["schema-id"] for s in catalog.json()["schemas"]] == [1]
    with pytest.raises(BadRequestError, match="Cannot remove the current schema"):
        catalog.commit({"action": "remove-schemas", "schema-ids": [1]})


def test_a_schema_keeps_fields_that_are_not_known() -> None:
    catalog = Catalog().create()
    later = {**WIDER, "fields": [*SCHEMA["fields"], field(5, "note", masked="always")], "later": {"a": 1}}
    catalog.commit(add_schema(later))
    assert catalog.json()["schemas"][1] == {**later, "schema-id": 1}


def test_a_default_spec_must_fit_the_current_schema() -> None:
    catalog = Catalog().create()
    without = schema(field(1, "id", "long", required=True))
    with pytest.raises(
        BadRequestError, match="Cannot find source column for partition field: 1000: at_day: day"
    ):
        catalog.commit(add_schema(without), set_current(-1))


def test_a_default_sort_order_must_fit_the_current_schema() -> None:
    catalog = Catalog().create(**{"partition-spec": None})
    with pytest.raises(BadRequestError, match="Cannot find source column for sort field"):
        catalog.commit(add_schema(schema(field(9, "x"))), set_current(-1))


def test_a_column_cannot_take_the_name_of_another_columns_partition() -> None:
    catalog = Catalog().create()
    clash = {**SCHEMA, "fields": [*SCHEMA["fields"], field(5, "at_day")]}
    with pytest.raises(
        BadRequestError, match="Cannot create identity partition sourced from different field"
    ):
        catalog.commit(add_schema(clash), set_current(-1))


@pytest.mark.parametrize(
    "type", ["timestamp_ns", "timestamptz_ns", "variant", "unknown", "geometry(x)", "geography(x, karney)"]
)
def test_types_of_version_3_are_refused_before_it(type: str) -> None:
    value = {**SCHEMA, "fields": [*SCHEMA["fields"], field(5, "new", type)]}
    with pytest.raises(BadRequestError, match=r"Invalid type for new: .* is not supported until v3"):
        Catalog().create(version=2).commit(add_schema(value))
    catalog = Catalog().create(version=3)
    catalog.commit(add_schema(value))
    assert catalog.json()["schemas"][1]["fields"][-1]["type"] == type


def test_initial_defaults_are_refused_before_version_3() -> None:
    value = {**SCHEMA, "fields": [*SCHEMA["fields"], field(5, "n", "int", **{"initial-default": 1})]}
    with pytest.raises(BadRequestError, match="Invalid initial default for n"):
        Catalog().create(version=2).commit(add_schema(value))
    catalog = Catalog().create(version=3)
    catalog.commit(add_schema(value))
    assert catalog.json()["schemas"][1]["fields"][-1]["initial-default"] == 1


NESTED = {"type": "struct", "fields": [field(11, "x"), field(12, "y", "int")]}


def test_columns_are_found_by_full_and_short_names() -> None:
    value = schema(
        field(1, "l", {"type": "list", "element-id": 2, "element": NESTED, "element-required": False}),
        field(
            3,
            "m",
            {
                "type": "map",
                "key-id": 4,
                "key": "string",
                "value-id": 5,
                "value": "int",
                "value-required": True,
            },
        ),
    )
    index = SchemaIndex(value)
    assert {name: index.by_name[name] for name in ("l", "l.element.x", "l.x", "m.key", "m.value")} == {
        "l": 1,
        "l.element.x": 11,
        "l.x": 11,
        "m.key": 4,
        "m.value": 5,
    }
    assert index.highest_id == 12
    assert [column.name for column in index.ancestors(index.by_id[11])] == ["l.element", "l"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"type": "list"}, "not a struct type"),
        (schema(field(1, "a"), field(1, "b")), "Multiple entries with same id 1"),
        (schema(field(1, "a"), field(2, "a")), "multiple fields for name a"),
        (schema(field(1, "a", "text")), "Cannot parse type string to primitive: text"),
        (schema(field(1, "a", "decimal(39, 2)")), "precision larger than 38"),
        (schema(field(1, "a", {"type": "set"})), "Cannot parse type from json"),
        (schema({"id": 1, "name": "a", "type": "int"}), "required"),
        (schema({"name": "a", "type": "int", "required": True}), "missing integer: id"),
        (schema({"id": 1, "name": "a", "required": True}), "missing field: type"),
        (schema(field(1, "a", "unknown", required=True)), "required field with unknown type"),
        (schema(field(1, "a"), **{"identifier-field-ids": [2]}), "field does not exist"),
        (schema(field(1, "a"), **{"identifier-field-ids": [1]}), "not a required field"),
        (schema(field(1, "a", "double", required=True), **{"identifier-field-ids": [1]}), "float or double"),
        (
            schema(field(1, "a", NESTED, required=True), **{"identifier-field-ids": [1]}),
            "not a primitive type",
        ),
        (schema(field(1, "a", NESTED), **{"identifier-field-ids": [11]}), "not a required field"),
        (
            schema(
                field(1, "a", {"type": "struct", "fields": [field(2, "x", "int", required=True)]}),
                **{"identifier-field-ids": [2]},
            ),
            "must not be nested in an optional field a",
        ),
    ],
)
def test_a_malformed_schema_is_refused(value: Json, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        Catalog().create(version=3).commit(add_schema(value))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({**SCHEMA, "schema-id": 8}, True),
        ({**SCHEMA, "identifier-field-ids": []}, False),
        ({**SCHEMA, "fields": SCHEMA["fields"][:2]}, False),
        ({**SCHEMA, "fields": list(reversed(SCHEMA["fields"]))}, False),
    ],
)
def test_schemas_are_equal_but_for_their_ids(other: Json, same: bool) -> None:
    assert (schema_form(SCHEMA) == schema_form(other)) is same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"type": "decimal(9,2)"}, {"type": "decimal(9, 2)"}, True),
        ({"type": "fixed[ 4 ]"}, {"type": "FIXED[4]"}, True),
        ({"doc": None}, {}, True),
        ({"doc": "a"}, {"doc": "b"}, False),
        ({"write-default": "a"}, {}, False),
        ({"required": True}, {"required": False}, False),
        ({"later": 1}, {}, False),
    ],
)
def test_columns_are_compared_by_meaning(one: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    forms = [schema_form(schema({**field(1, "a"), **default})) for default in (one, other)]
    assert (forms[0] == forms[1]) is same


def test_a_removed_schema_is_gone_for_the_rest_of_the_request() -> None:
    catalog = Catalog().create()
    catalog.commit(add_schema(WIDER))
    with pytest.raises(BadRequestError, match="Cannot set current schema to unknown schema: 1"):
        catalog.commit({"action": "remove-schemas", "schema-ids": [1]}, set_current(1))
