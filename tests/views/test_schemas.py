"""The view `schemas`, compared with what pyiceberg reads from the same tables and views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
)
from pyspark.sql.datasource import EqualTo

from polaris_spark.pyiceberg import PolarisCatalog
from tests.views.catalogs import SCHEMA, Catalog, Row, rows

POINT = StructType(
    NestedField(11, "x.y", LongType(), required=True, doc="with a dot"),
    NestedField(12, "tags", ListType(13, StringType(), element_required=True)),
)
NESTED = Schema(
    NestedField(1, "id", IntegerType(), required=True, doc="the key"),
    NestedField(2, "price", DecimalType(9, 2)),
    NestedField(3, "places", MapType(4, StringType(), 5, POINT, value_required=False)),
    NestedField(6, "email", StringType()),
    identifier_field_ids=[1],
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PolarisCatalog, str]]:
    """A table with several schemas, another one with one schema, and the store's URI."""
    directory = tmp_path_factory.mktemp("lake")
    store = f"sqlite://{directory / 'c.db'}?synchronous=off"
    with PolarisCatalog("lake", store=store, warehouse=str(directory / "files")) as catalog:
        catalog.create_namespace("db")
        catalog.create_namespace(("db", "a.b"))
        people = catalog.create_table("db.people", schema=NESTED)
        catalog.create_table(("db", "a.b", "plain"), schema=Schema(NestedField(1, "n", LongType())))
        with people.update_schema() as update:
            update.delete_column("email")
            update.add_column("mail", StringType(), doc="the new one")
            update.add_column(("places", "value", "z"), LongType())
            update.rename_column("price", "cost")
            update.update_column("id", LongType())
        yield catalog, store


def columns_of(schema: Schema) -> Iterator[Row]:
    """Return the columns of a schema, from pyiceberg."""
    names = {field_id: schema.find_column_name(field_id) for field_id in schema.field_ids}

    def fields(type: Any, depth: int) -> Iterator[Row]:
        for position, field in enumerate(_children(type)):
            yield {
                "column_name": names[field.field_id],
                "field_name": field.name,
                "depth": depth,
                "position": position,
                "field_id": field.field_id,
                "type": _type(field.field_type),
                "required": field.required,
                "doc": field.doc,
                "is_identifier": field.field_id in schema.identifier_field_ids,
            }
            if not isinstance(field.field_type, PrimitiveType):
                yield from fields(field.field_type, depth + 1)

    return fields(schema.as_struct(), 1)


def _children(type: Any) -> tuple[NestedField, ...]:
    if isinstance(type, ListType):
        return (type.element_field,)
    return (type.key_field, type.value_field) if isinstance(type, MapType) else type.fields


def _type(type: Any) -> str:
    names = {StructType: "struct", ListType: "list", MapType: "map"}
    plain: str = names.get(type.__class__) or str(type).replace(" ", "")
    return plain


def _expected(catalog: PolarisCatalog) -> Iterator[Row]:
    for name in ("db.people", ("db", "a.b", "plain")):
        table = catalog.load_table(name)
        for id, schema in table.schemas().items():
            for column in columns_of(schema):
                yield {
                    "namespace": "db" if name == "db.people" else "db.`a.b`",
                    "name": table.name()[-1],
                    "schema_id": id,
                    "is_current": id == table.schema().schema_id,
                    **column,
                }


def _of(found: list[Row], *expected: Row) -> list[Row]:
    return [{name: row[name] for name in expected[0]} for row in found]


def test_columns_are_those_that_pyiceberg_reads_in_every_schema(lake: tuple[PolarisCatalog, str]) -> None:
    catalog, store = lake
    expected = list(_expected(catalog))
    found = _of(rows("schemas", store=store), *expected)
    for row in found:
        row["type"] = row["type"].replace(" ", "")
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert len({row["schema_id"] for row in found}) == 2


def test_a_column_is_found_wherever_it_is_and_was(lake: tuple[PolarisCatalog, str]) -> None:
    everything = rows("schemas", store=lake[1])

    def tables(column: str, **wanted: Any) -> set[str]:
        asked = {"column_name": column, **wanted}
        return {row["name"] for row in everything if all(row[k] == v for k, v in asked.items())}

    assert tables("places.value.x.y", is_current=True) == {"people"}
    assert tables("email") == {"people"}
    assert tables("email", is_current=True) == set()
    assert tables("n") == {"plain"}


def test_schemas_that_are_not_current_are_left_out_where_they_are_not_asked_for(
    lake: tuple[PolarisCatalog, str],
) -> None:
    everything = rows("schemas", store=lake[1])
    for current in (True, False):
        pushed = rows("schemas", EqualTo(("is_current",), current), store=lake[1], prune="true")
        assert pushed == [row for row in everything if row["is_current"] is current]
        assert pushed


def test_columns_of_views_are_there_too(shop: Catalog) -> None:
    shown = [row for row in shop.read("schemas") if row["kind"] == "view"]
    assert [(row["name"], row["column_name"], row["type"], row["is_current"]) for row in shown] == [
        ("today", field["name"], field["type"], True) for field in SCHEMA["fields"]
    ]
    pushed = shop.read("schemas", EqualTo(("kind",), "view"), prune="true")
    assert pushed == shown
    assert len(shop.read("schemas")) == 2 + 2 + 2


def test_a_view_that_was_replaced_keeps_its_older_columns(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("db")
    made = catalog.view("db", "v", "SELECT 1 AS n, current_date() AS day")
    schema = {
        "type": "struct",
        "schema-id": 1,
        "fields": [{"id": 1, "name": "m", "required": True, "type": "int"}],
    }
    version = {**made["versions"][0], "version-id": 2, "schema-id": -1, "timestamp-ms": 1_790_000_000_001}
    updates = [
        {"action": "add-schema", "schema": schema},
        {"action": "add-view-version", "view-version": version},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    catalog.request("POST", "v1/namespaces/db/views/v", {"requirements": [], "updates": updates})
    found = {row["column_name"]: (row["is_current"], row["required"]) for row in catalog.read("schemas")}
    assert found == {"n": (False, False), "day": (False, False), "m": (True, True)}
    catalog.session.close()


def test_schemas_are_shown_as_of_a_commit(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("db")
    catalog.table("db", "t")
    before = str(catalog.head())
    field = {"id": 3, "name": "more", "required": False, "type": "int"}
    schema = {**SCHEMA, "schema-id": 1, "fields": [*SCHEMA["fields"], field]}
    add = {"action": "add-schema", "schema": schema}
    catalog.update("db", "t", add, {"action": "set-current-schema", "schema-id": -1})
    assert {row["column_name"] for row in catalog.read("schemas")} == {"n", "day", "more"}
    assert {row["column_name"] for row in catalog.read("schemas", as_of=before)} == {"n", "day"}
    catalog.session.close()
