"""The details of a table's change in the log, and their maximum size."""

from __future__ import annotations

import pytest

from polaris_spark.catalog.metadata.change_details import (
    CLIENT_FIELDS,
    MOST_CHARACTERS,
    MOST_FIELDS,
    client_fields,
)
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.table_creation import create_table
from polaris_spark.catalog.metadata.table_updates import apply_all
from tests.catalog.metadata.tables import (
    LOCATION,
    NOW,
    ORDER,
    SCHEMA,
    SPEC,
    UUID,
    Catalog,
    Json,
    add,
    field,
    point,
)
from tests.catalog.metadata.tables import schema as schema_of
from tests.catalog.metadata.tables import snapshot as snapshot_of


def details(catalog: Catalog, *updates: Json) -> dict[str, str]:
    """Return the log's details of updates, without the names of the updates."""
    draft = catalog.draft()
    apply_all(draft, updates)
    found = draft.summary()
    draft.freeze(catalog.objects.new_id, metadata_location="x")
    found.pop("updates", None)
    return found


def columns(*fields: Json) -> tuple[Json, ...]:
    """The updates that make these columns the current schema."""
    return (
        {"action": "add-schema", "schema": schema_of(*fields)},
        {"action": "set-current-schema", "schema-id": -1},
    )


AT = {"id": 2, "name": "at", "type": "timestamptz", "required": False, "doc": "when"}
ID = {"id": 1, "name": "id", "type": "long", "required": True}
TAGS = SCHEMA["fields"][2]


def test_a_creation_says_its_columns_properties_partitions_and_order() -> None:
    asked = {"name": "t", "schema": SCHEMA, "partition-spec": SPEC, "write-order": ORDER}
    draft = create_table(asked, uuid=UUID, location=LOCATION, now_ms=NOW)
    assert draft.summary() == {
        "updates": draft.summary()["updates"],
        "add-column id": "long required",
        "add-column at": "timestamptz",
        "add-column tags": "list",
        "set write.parquet.compression-codec": "zstd",
        "partition-spec": "day(at)",
        "sort-order": "id asc",
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ((ID, AT, TAGS, field(9, "price", "double")), {"add-column price": "double"}),
        ((ID, AT), {"drop-column tags": "list"}),
        ((ID, {**AT, "name": "seen"}, TAGS), {"rename-column at": "seen"}),
        ((ID, {**AT, "required": False, "doc": "then"}, TAGS), {}),
        (({**ID, "required": False}, AT, TAGS), {"retype-column id": "long required -> long"}),
        ((AT, ID, TAGS), {"reorder-columns": "at id tags"}),
    ],
)
def test_a_change_of_columns_says_which(fields: tuple[Json, ...], expected: dict[str, str]) -> None:
    assert details(Catalog().create(), *columns(*fields)) == expected


def test_a_column_inside_another_has_its_full_name() -> None:
    inner = {"type": "struct", "fields": [field(11, "x", "int")]}
    catalog = Catalog().create(
        schema=schema_of(field(1, "p", inner)), **{"partition-spec": None, "write-order": None}
    )
    column = next(one for one in catalog.json()["schemas"][0]["fields"])
    child = column["type"]["fields"][0]
    more = {"type": "struct", "fields": [{**child, "type": "long"}, field(40, "y", "int")]}
    assert details(catalog, *columns({**column, "type": more})) == {
        "retype-column p.x": "int -> long",
        "add-column p.y": "int",
    }


def test_properties_that_are_set_and_removed_are_named() -> None:
    catalog = Catalog().create(properties={"a": "1", "b": "2", "same": "x"})
    updates = (
        {"action": "set-properties", "updates": {"a": "3", "same": "x", "new": "y" * 500}},
        {"action": "remove-properties", "removals": ["b", "missing"]},
    )
    found = details(catalog, *updates)
    assert found.pop("set new").rstrip("…") == "y" * (MOST_CHARACTERS - 1)
    assert found == {"set a": "3", "unset": "b"}


def test_properties_outside_the_row_are_compared_too() -> None:
    catalog = Catalog().create(properties={f"p{i:04}": "v" * 100 for i in range(400)})
    assert catalog.table.more_properties is not None
    updates = (
        {"action": "set-properties", "updates": {"p0001": "w", "p0002": "v" * 100}},
        {"action": "remove-properties", "removals": ["p0003"]},
    )
    assert details(catalog, *updates) == {"set p0001": "w", "unset": "p0003"}


def test_an_ordinary_append_says_only_what_the_client_says() -> None:
    catalog = Catalog().create()
    catalog.append(11)
    summary = {
        "operation": "append",
        "spark.app.id": "local-1",
        "app-id": "local-1",
        "job": "nightly",
        "added-records": "10",
        "total-records": "20",
        "iceberg-version": "Apache Iceberg 1.12.0 (commit abc)",
        "engine-name": "spark",
        "rollback": "main",
        "ref main": "1 -> 2",
    }
    updates = (add(snapshot_of(12, 2, parent=11, summary=summary)), point("main", 12))
    draft = catalog.draft()
    apply_all(draft, updates)
    assert draft.summary() == {
        "snapshot-id": "12",
        "operation": "append",
        "added-records": "10",
        "spark.app.id": "local-1",
        "job": "nightly",
        "engine-name": "spark",
    }


def history() -> Catalog:
    """A table with the snapshots 11, 12 and 13, and the tag `best` on 12."""
    catalog = Catalog().create()
    for id in (11, 12, 13):
        catalog.append(id)
    catalog.commit(point("best", 12, "tag"))
    return catalog


def test_the_log_marks_a_rollback() -> None:
    assert details(history(), point("main", 11)) == {"ref main": "13 -> 11", "rollback": "main"}


def test_a_ref_that_is_made_moved_or_removed_shows_both_snapshots() -> None:
    catalog = history()
    assert details(catalog, point("dev", 13)) == {"ref dev": "none -> 13"}
    assert details(catalog, point("best", 13, "tag")) == {"ref best": "12 -> 13"}
    removal = {"action": "remove-snapshot-ref", "ref-name": "best"}
    assert details(catalog, removal) == {"ref best": "12 -> none"}


def test_the_log_shows_a_ref_that_was_removed_with_its_snapshot() -> None:
    catalog = history()
    catalog.commit(point("main", 11))
    removal = {"action": "remove-snapshots", "snapshot-ids": [12]}
    assert details(catalog, removal) == {"ref best": "12 -> none"}


def test_new_partitions_and_a_new_order_are_spelled_out() -> None:
    catalog = Catalog().create()
    spec = {"fields": [{"name": "b", "transform": "bucket[16]", "source-id": 1}]}
    updates = (
        {"action": "add-spec", "spec": spec},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "set-default-sort-order", "sort-order-id": 0},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
    )
    found = details(catalog, *updates[:2], updates[3], {**updates[2], "sort-order-id": -1})
    assert found == {"partition-spec": "bucket[16](id)", "sort-order": "none"}


def test_the_description_of_a_change_is_bounded() -> None:
    fields = [field(i, f"c{i}", "int") for i in range(1, 1_001)]
    asked = {"name": "t", "schema": schema_of(*fields)}
    draft: TableDraft = create_table(asked, uuid=UUID, location=LOCATION, now_ms=NOW)
    found = draft.summary()
    assert found["more"] == str(1_001 - MOST_FIELDS)  # the property with the default codec is one of them
    assert len(found) == MOST_FIELDS + 2


def test_the_fields_of_a_client_are_bounded() -> None:
    given = {f"k{i}": "v" * 10_000 for i in range(100)} | {"n" * 200: "long name"}
    found = client_fields(given)
    assert len(found) == CLIENT_FIELDS
    assert {len(text) for text in found.values()} == {MOST_CHARACTERS}
