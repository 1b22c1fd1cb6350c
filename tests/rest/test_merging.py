"""Requests that are based on an older state, and do not overlap with later changes."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.types import LongType, StringType

from tests.rest.appends import appendable, attempt, new_append, send
from tests.rest.client import Client, Json, set_properties
from tests.rest.conftest import Open
from tests.rest.icebergs import open_table

SCHEMA: Json = {
    "type": "struct",
    "schema-id": 0,
    "identifier-field-ids": [1],
    "fields": [
        {"id": 1, "name": "a", "required": True, "type": "long"},
        {
            "id": 2,
            "name": "s",
            "required": False,
            "type": {
                "type": "struct",
                "fields": [{"id": 4, "name": "x", "required": False, "type": "long"}],
            },
        },
        {
            "id": 3,
            "name": "l",
            "required": False,
            "type": {
                "type": "list",
                "element-id": 5,
                "element-required": False,
                "element": {
                    "type": "struct",
                    "fields": [{"id": 6, "name": "y", "required": False, "type": "long"}],
                },
            },
        },
    ],
}


@pytest.fixture
def catalog(opened: Open, warehouse: Path) -> Client:
    """A catalog that merges columns, with the empty namespace `db`."""
    client = opened(f"memory:{uuid4()}", warehouse, **{"polaris.schema-merge": True})
    client.namespace("db")
    return client


@pytest.fixture
def base(catalog: Client) -> Json:
    """The table `t` after its creation."""
    metadata: Json = catalog.create("t", schema=SCHEMA)["metadata"]
    return metadata


def column(name: str, id: int = 7, type: Any = "string", **rest: Any) -> Json:
    return {"id": id, "name": name, "required": False, "type": type, **rest}


def struct(*fields: Json) -> Json:
    return {"type": "struct", "fields": list(fields)}


def with_columns(base: Json, *added: Json, at: int | None = None, inside: str | None = None) -> Json:
    """Return the current schema with more columns at a position in the table, the struct `s` or the list `l` of
    structs."""
    [current] = [s for s in base["schemas"] if s["schema-id"] == base["current-schema-id"]]
    schema: Json = deepcopy(current)
    fields = schema["fields"]
    if inside:
        [holder] = [field["type"] for field in fields if field["name"] == inside]
        fields = holder["element"]["fields"] if inside == "l" else holder["fields"]
    position = len(fields) if at is None else at
    fields[position:position] = added
    return schema


def evolve(catalog: Client, base: Json, schema: Json, *more: Json) -> Any:
    """Send a schema change like Iceberg's Java client, and return the answer."""
    return catalog.commit(
        "t",
        {"action": "add-schema", "schema": schema, "last-column-id": base["last-column-id"] + 1},
        {"action": "set-current-schema", "schema-id": -1},
        *more,
        requirements=(
            {"type": "assert-table-uuid", "uuid": base["table-uuid"]},
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": base["last-column-id"]},
            {"type": "assert-current-schema-id", "current-schema-id": base["current-schema-id"]},
        ),
    )


def current(catalog: Client) -> Json:
    metadata = catalog.load("t")["metadata"]
    [schema] = [s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"]]
    found: Json = schema
    return found


def names(fields: list[Json]) -> list[tuple[str, int]]:
    return [(field["name"], field["id"]) for field in fields]


# Columns


def test_columns_that_two_clients_add_at_once_are_both_there(catalog: Client, base: Json) -> None:
    assert evolve(catalog, base, with_columns(base, column("theirs", doc="d"))).status == 200
    answer = evolve(catalog, base, with_columns(base, column("mine")), set_properties(p="1"))
    assert answer.status == 200, answer
    schema = current(catalog)
    assert names(schema["fields"]) == [("a", 1), ("s", 2), ("l", 3), ("theirs", 7), ("mine", 8)]
    assert schema["fields"][3]["doc"] == "d"
    assert schema["identifier-field-ids"] == [1]
    metadata = answer.body["metadata"]
    assert metadata == catalog.load("t")["metadata"]
    assert (metadata["last-column-id"], metadata["current-schema-id"]) == (8, 2)
    assert metadata["properties"]["p"] == "1"


def test_columns_are_merged_where_they_were_put(catalog: Client, base: Json) -> None:
    evolve(catalog, base, with_columns(base, column("first"), at=0))
    evolve(catalog, base, with_columns(base, column("second"), at=0))
    assert evolve(catalog, base, with_columns(base, column("third"), at=1)).status == 200
    assert [field["name"] for field in current(catalog)["fields"]] == [
        "first",
        "second",
        "a",
        "third",
        "s",
        "l",
    ]


@pytest.mark.parametrize("inside", ["s", "l"])
def test_columns_within_others_are_merged(catalog: Client, base: Json, inside: str) -> None:
    evolve(catalog, base, with_columns(base, column("theirs"), inside=inside))
    nested = column("mine", 9, struct(column("z", 8), column("w", 7)))
    assert evolve(catalog, base, with_columns(base, nested, inside=inside)).status == 200
    [holder] = [field["type"] for field in current(catalog)["fields"] if field["name"] == inside]
    fields = (holder["element"] if inside == "l" else holder)["fields"]
    assert names(fields)[1:] == [("theirs", 7), ("mine", 10)]
    assert names(fields[-1]["type"]["fields"]) == [("z", 9), ("w", 8)]


def test_columns_of_the_same_name_in_different_structs_are_merged(catalog: Client, base: Json) -> None:
    evolve(catalog, base, with_columns(base, column("new"), inside="s"))
    assert evolve(catalog, base, with_columns(base, column("new"))).status == 200


def test_a_columns_default_and_unknown_fields_are_kept(catalog: Client) -> None:
    base = catalog.create("t", schema=SCHEMA, properties={"format-version": "3"})["metadata"]
    evolve(catalog, base, with_columns(base, column("theirs")))
    mine = column("mine", type="int", **{"initial-default": 5, "write-default": 6, "new-thing": "x"})
    assert evolve(catalog, base, with_columns(base, mine)).status == 200
    assert current(catalog)["fields"][-1] == {**mine, "id": 8}


def test_columns_that_pyiceberg_adds_at_once_are_merged(catalog: Client) -> None:
    catalog.create("t")
    tables = [open_table(catalog) for _ in range(3)]
    for n, table in enumerate(tables):
        with table.update_schema() as update:
            update.add_column(f"c{n}", LongType() if n else StringType())
    assert [field.name for field in open_table(catalog).schema().fields] == ["a", "b", "c0", "c1", "c2"]
    assert [field.field_id for field in open_table(catalog).schema().fields] == [1, 2, 3, 4, 5]


def changed(base: Json, position: int, **fields: Any) -> Json:
    """Return the current schema with one changed column."""
    schema = with_columns(base, column("mine"))
    schema["fields"][position].update(fields)
    return schema


OVERLAPS = {
    "the same name": lambda base: with_columns(base, column("theirs")),
    "the same name but for case": lambda base: with_columns(base, column("THEIRS")),
    "a required column": lambda base: with_columns(base, column("mine", required=True)),
    "a renamed column": lambda base: changed(base, 0, name="renamed"),
    "a widened column": lambda base: changed(base, 0, type="double"),
    "another comment": lambda base: changed(base, 0, doc="new"),
    "a column made optional": lambda base: {**changed(base, 0, required=False), "identifier-field-ids": []},
    "other identifiers": lambda base: {**with_columns(base, column("mine")), "identifier-field-ids": []},
    "a dropped column": lambda base: {**base["schemas"][0], "fields": base["schemas"][0]["fields"][:1]},
    "moved columns": lambda base: {**base["schemas"][0], "fields": base["schemas"][0]["fields"][::-1]},
    "a full name that is there": lambda base: with_columns(base, column("s.theirs")),
    "a dropped column that is to be there again": lambda base: with_columns(base, column("back", 4)),
    "a thing unknown": lambda base: {**with_columns(base, column("mine")), "new-thing": 1},
}


@pytest.mark.parametrize("what", OVERLAPS)
def test_more_than_additions_or_additions_that_overlap_are_a_conflict(
    catalog: Client, base: Json, what: str
) -> None:
    evolve(catalog, base, with_columns(base, column("theirs")))
    if "full name" in what:
        evolve(catalog, base, with_columns(base, column("theirs"), inside="s"))
    before = catalog.load("t")
    answer = evolve(catalog, base, OVERLAPS[what](base))
    assert answer.kind == (409, "CommitFailedException"), answer
    assert answer.error["message"].startswith("Requirement failed: ")
    assert catalog.load("t") == before


def test_additions_beside_changes_of_other_columns_are_a_conflict(catalog: Client, base: Json) -> None:
    evolve(catalog, base, changed(base, 1, doc="new"))
    assert evolve(catalog, base, with_columns(base, column("mine2"))).status == 409


MORE = {
    "name mapping": set_properties(**{"schema.name-mapping.default": "[]"}),
    "format version": set_properties(**{"format-version": "3"}),
    "sort order": {
        "action": "add-sort-order",
        "sort-order": {
            "order-id": 1,
            "fields": [
                {"source-id": 7, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
            ],
        },
    },
    "location": {"action": "set-location", "location": "file:/elsewhere"},
}


@pytest.mark.parametrize("what", MORE)
def test_additions_whose_ids_something_else_may_name_are_a_conflict(
    catalog: Client, base: Json, what: str
) -> None:
    evolve(catalog, base, with_columns(base, column("theirs")))
    assert evolve(catalog, base, with_columns(base, column("mine")), MORE[what]).status == 409


@pytest.mark.parametrize("updates", [5, "x", [["a"]], [{}]])
def test_a_value_that_is_not_a_map_of_properties_causes_no_server_error(
    catalog: Client, base: Json, updates: object
) -> None:
    evolve(catalog, base, with_columns(base, column("theirs")))
    more = {"action": "set-properties", "updates": updates}
    assert evolve(catalog, base, with_columns(base, column("mine")), more).status == 409


@pytest.mark.parametrize("id", [{}, [], "0", 1.5, True])
def test_a_value_that_is_not_a_schema_id_causes_no_server_error(
    catalog: Client, base: Json, id: object
) -> None:
    answer = catalog.commit(
        "t",
        {"action": "add-schema", "schema": with_columns(base, column("mine"))},
        {"action": "set-current-schema", "schema-id": -1},
        requirements=(
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 99},
            {"type": "assert-current-schema-id", "current-schema-id": id},
        ),
    )
    assert answer.status == 409


def test_additions_with_data_written_under_their_ids_are_a_conflict(catalog: Client) -> None:
    base = appendable(catalog)
    evolve(catalog, base, with_columns(base, column("theirs", 3)))
    made = attempt(base, new_append(1))
    made.updates[:0] = [
        {"action": "add-schema", "schema": with_columns(base, column("mine", 3))},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    made.requirements.append({"type": "assert-current-schema-id", "current-schema-id": 0})
    assert send(catalog, made).status == 409


@pytest.mark.parametrize("by", ["catalog", "table"])
def test_columns_are_merged_only_where_that_is_on(opened: Open, warehouse: Path, by: str) -> None:
    client = opened(f"memory:{uuid4()}", warehouse, **{"polaris.schema-merge": by == "table"})
    client.namespace("db")
    properties = {"polaris.schema-merge": "false"} if by == "table" else {}
    base = client.create("t", schema=SCHEMA, properties=properties)["metadata"]
    evolve(client, base, with_columns(base, column("theirs")))
    assert evolve(client, base, with_columns(base, column("mine"))).kind == (409, "CommitFailedException")
    client.set("t", **{"polaris.schema-merge": "true"})
    assert evolve(client, base, with_columns(base, column("mine"))).status == 200


# What needs no merging, because it requires nothing of what others change


def test_properties_that_two_clients_change_at_once_are_both_there(catalog: Client, base: Json) -> None:
    uuid = {"type": "assert-table-uuid", "uuid": base["table-uuid"]}
    for update in (
        set_properties(mine="1", gone="1"),
        set_properties(theirs="2"),
        {"action": "remove-properties", "removals": ["gone"]},
    ):
        assert catalog.commit("t", update, requirements=(uuid,)).status == 200
    properties = catalog.load("t")["metadata"]["properties"]
    assert (properties["mine"], properties["theirs"], "gone" in properties) == ("1", "2", False)


def test_refs_that_two_clients_set_at_once_are_both_there_and_the_same_one_is_a_conflict(
    catalog: Client,
) -> None:
    base = appendable(catalog)
    append = new_append(1)
    send(catalog, attempt(base, append))
    for name, status in (("one", 200), ("two", 200), ("one", 409)):
        to = {"ref-name": name, "type": "tag", "snapshot-id": append.snapshot_id, "max-ref-age-ms": 9}
        unset = {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": None}
        assert (
            catalog.commit("t", {"action": "set-snapshot-ref", **to}, requirements=(unset,)).status == status
        )
    assert set(catalog.load("t")["metadata"]["refs"]) == {"main", "one", "two"}
