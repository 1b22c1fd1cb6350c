"""A request that exceeds a limit is refused on every route before the server begins to work on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from polaris_spark.catalog.metadata.bounds import BOUNDS
from tests.rest.client import (
    SCHEMA,
    VIEW_VERSION,
    Answer,
    Client,
    Json,
    path,
    table,
    table_request,
    tables,
    view,
)
from tests.rest.growth import counted
from tests.rest.kinds import (
    add_schema,
    column,
    key,
    order,
    properties,
    snapshot,
    spec,
    struct,
    tag,
    version,
)

Request = tuple[str, Any]
"""Path and body of a POST."""

NAMES = "characters in the full names of a schema's columns"
NESTED = "levels of nested types in a schema"
JSON = "levels of nested JSON in a request"


def commit(*updates: Json, requirements: list[Json] | None = None) -> Request:
    """A commit to the table `t`."""
    return table("t"), {"requirements": requirements or [], "updates": list(updates)}


def view_commit(*updates: Json) -> Request:
    """A commit to the view `v`."""
    return view("v"), {"updates": list(updates)}


def set_properties(values: dict[str, str]) -> Json:
    """The update that sets properties."""
    return {"action": "set-properties", "updates": values}


def nested(kind: str, levels: int) -> Any:
    """A type with the given number of nested structs, lists or maps."""
    made: Any = "long"
    for n in range(levels):
        id = 10 * n + 10
        if kind == "struct":
            made = struct([column(id, "s", made)])
        elif kind == "list":
            made = {"type": "list", "element-id": id, "element-required": False, "element": made}
        else:
            ids = {"key-id": id, "value-id": id + 1, "value-required": False}
            made = {"type": "map", "key": "string", "value": made, **ids}
    return made


def fields(count: int) -> list[Json]:
    """Partition fields."""
    return [{"name": f"p{n}", "source-id": 1, "transform": "identity"} for n in range(count)]


def wide(count: int, first: int = 1) -> Json:
    """A schema with this number of columns, which have short names."""
    return struct([column(n, f"{n:x}") for n in range(first, first + count)])


def long_names(count: int) -> Json:
    """A schema whose full column names have this many characters. Full names of fields contain their struct's name."""
    inside = struct([column(n + 2, f"c{n}") for n in range(9)])
    return struct([column(1, "s" * (count // 10), inside)])


def representations(count: int) -> Json:
    """A view version with the given number of queries."""
    queries = [{"type": "sql", "sql": "select 1", "dialect": f"d{n}"} for n in range(count)]
    return {**VIEW_VERSION, "version-id": 9, "representations": queries}


def new_table(**request: Any) -> Request:
    """The creation of a table."""
    return tables("db"), table_request("new", **request)


def new_view(**request: Any) -> Request:
    """The creation of a view."""
    asked = {"schema": SCHEMA, "view-version": VIEW_VERSION, **request}
    return f"{path('db')}/views", {"name": "new", "properties": {}, **asked}


ASSERT = {"type": "assert-current-schema-id", "current-schema-id": 0}
REMOVE = {"action": "remove-properties", "removals": ["k"]}

BEYOND: list[tuple[str, Callable[[int], Request]]] = [
    ("updates in a request", lambda n: commit(*[REMOVE] * n)),
    ("updates in a request", lambda n: view_commit(*[REMOVE] * n)),
    ("requirements in a request", lambda n: commit(requirements=[ASSERT] * n)),
    ("schemas of a table or view", lambda n: commit(*[add_schema(column(1))] * n)),
    ("schemas of a table or view", lambda n: view_commit(*[add_schema(column(1))] * n)),
    ("columns in a schema", lambda n: commit({"action": "add-schema", "schema": wide(n)})),
    ("columns in a schema", lambda n: commit({"action": "ADD-SCHEMA", "schema": wide(n)})),
    ("columns in a schema", lambda n: new_table(schema=wide(n))),
    (
        "columns in a schema",
        lambda n: new_table(
            schema=struct([column(1, "s", wide(n // 2, 3)), column(2, "t", wide(n // 2, n))])
        ),
    ),
    (NAMES, lambda n: commit({"action": "add-schema", "schema": long_names(n)})),
    (NAMES, lambda n: new_view(schema=long_names(n))),
    (NESTED, lambda n: commit(add_schema(column(1, "s", nested("struct", n))))),
    (NESTED, lambda n: commit(add_schema(column(1, "s", nested("list", n))))),
    (NESTED, lambda n: new_table(schema=struct([column(1, "s", nested("map", n))]))),
    (JSON, lambda n: commit(add_schema(column(1, x=json.loads("[" * n + "]" * n))))),
    (JSON, lambda n: commit(snapshot(1, x=json.loads("[" * n + "]" * n)))),
    ("partition specs of a table", lambda n: commit(*[spec(1)] * n)),
    ("sort orders of a table", lambda n: commit(*[order(1)] * n)),
    (
        "fields in a partition spec or sort order",
        lambda n: commit({"action": "add-spec", "spec": {"fields": fields(n)}}),
    ),
    ("fields in a partition spec or sort order", lambda n: new_table(partition_spec={"fields": fields(n)})),
    ("snapshots added to a table in a request", lambda n: commit(*[snapshot(1)] * n)),
    ("encryption keys of a table", lambda n: commit(*[key(1)] * n)),
    ("ids to remove in a request", lambda n: commit({"action": "remove-snapshots", "snapshot-ids": [1] * n})),
    (
        "ids to remove in a request",
        lambda n: commit(*[{"action": "remove-schemas", "schema-ids": [1] * (n // 2 + 1)}] * 2),
    ),
    ("properties", lambda n: commit(set_properties(properties(n)))),
    ("properties", lambda n: commit({"action": "remove-properties", "removals": list(properties(n))})),
    ("properties", lambda n: new_table(properties=properties(n))),
    ("properties", lambda n: ("v1/namespaces", {"namespace": ["new"], "properties": properties(n)})),
    ("properties", lambda n: (f"{path('db')}/properties", {"updates": properties(n)})),
    ("properties", lambda n: (f"{path('db')}/properties", {"removals": list(properties(n))})),
    ("bytes in the name of a branch or tag", lambda n: commit(snapshot(1), tag(1, "n" * n))),
    ("bytes in the name of a branch or tag", lambda n: commit(snapshot(1), tag(1, "\u00e9" * (n // 2 + 1)))),
    ("levels of a namespace", lambda n: ("v1/namespaces", {"namespace": ["new"] * n})),
    ("characters in a location", lambda n: new_table(location="file:///tmp" + "/b" * (n // 2))),
    ("characters in a location", lambda n: new_view(location="file:///tmp/" + "%25" * n)),
    (
        "characters in a location",
        lambda n: commit({"action": "set-location", "location": "s3://b/" + "c" * n}),
    ),
    ("characters in a location", lambda n: commit(set_properties({"write.data.path": "/tmp" + "/b" * n}))),
    ("bytes of properties", lambda n: commit(set_properties({"k": "v" * n}))),
    ("bytes of properties", lambda n: view_commit(set_properties({"k": "\u00e9" * (n // 2 + 1)}))),
    ("versions of a view", lambda n: view_commit(*[version(1)] * n)),
    (
        "representations in a view version",
        lambda n: view_commit({"action": "add-view-version", "view-version": representations(n)}),
    ),
    ("representations in a view version", lambda n: new_view(**{"view-version": representations(n)})),
]


@pytest.fixture
def shop(catalog: Client) -> Client:
    """A catalog with a table and a view."""
    catalog.create("t")
    request = {"name": "v", "schema": SCHEMA, "view-version": VIEW_VERSION, "properties": {}}
    catalog.ok("POST", f"{path('db')}/views", request)
    return catalog


@pytest.mark.parametrize(
    ("what", "request_of"), BEYOND, ids=[f"{n}-{what}" for n, (what, _) in enumerate(BEYOND)]
)
def test_a_request_beyond_a_bound_is_refused_with_the_bound_and_the_value(
    shop: Client, what: str, request_of: Callable[[int], Request]
) -> None:
    where, body = request_of(BOUNDS[what] + 1)
    head = shop.session.catalog.head().version
    answer = shop.send("POST", where, body)
    assert answer.status == 400, answer
    assert f"too many {what}: " in answer.error["message"]
    assert f"the maximum is {BOUNDS[what]}" in answer.error["message"]
    value = int(answer.error["message"].split(f"{what}: ")[1].split(",")[0])
    assert value > BOUNDS[what]
    assert shop.session.catalog.head().version == head


def test_a_transaction_of_too_many_tables_is_refused(shop: Client) -> None:
    most = BOUNDS["tables in a transaction"]
    changes = [
        {"identifier": {"namespace": ["db"], "name": f"t{n}"}, "requirements": [], "updates": []}
        for n in range(most + 1)
    ]
    answer = shop.send("POST", "v1/transactions/commit", {"table-changes": changes})
    assert answer.status == 400
    assert f"too many tables in a transaction: {most + 1}" in answer.error["message"]


def test_a_transaction_of_too_many_requests_is_refused(shop: Client) -> None:
    most = BOUNDS["requests in a transaction"]
    one = {"method": "POST", "path": "v1/namespaces/db/properties", "body": {"updates": {"a": "b"}}}
    body = {"table-changes": [], "requests": [one] * (most + 1)}
    answer = shop.send("POST", "v1/transactions/commit", body)
    assert answer.status == 400
    assert f"too many requests in a transaction: {most + 1}" in answer.error["message"]


def test_the_tables_of_a_transaction_share_the_bounds_of_a_request(shop: Client) -> None:
    shop.create("u")
    updates = [REMOVE] * (BOUNDS["updates in a request"] // 2 + 1)
    changes = [
        {"identifier": {"namespace": ["db"], "name": name}, "requirements": [], "updates": updates}
        for name in "tu"
    ]
    answer = shop.send("POST", "v1/transactions/commit", {"table-changes": changes})
    assert answer.status == 400
    assert f"too many updates in a request: {2 * len(updates)}" in answer.error["message"]


@pytest.mark.parametrize("kind", ["struct", "list", "map"])
def test_the_deepest_possible_type_is_stored_loaded_and_extended(shop: Client, kind: str) -> None:
    deepest = nested(kind, BOUNDS[NESTED] - 1)
    schema = struct([column(1, "a"), column(2, "deep", deepest)])
    assert shop.commit("t", {"action": "add-schema", "schema": schema}).status == 200
    found = shop.load()["metadata"]["schemas"][-1]
    assert found["fields"][1]["type"] == deepest
    assert shop.commit("t", {"action": "set-current-schema", "schema-id": -1}).status == 400  # none is added
    assert shop.commit("t", {"action": "set-current-schema", "schema-id": 1}).status == 200
    assert shop.commit("t", add_schema(column(1), column(99))).status == 200
    shop.create("copy", schema=schema)


@pytest.mark.parametrize("text", ["[", '{"a":', '{"type":"struct","fields":['])
def test_a_body_with_endless_nesting_is_refused(shop: Client, text: str) -> None:
    body = '{"requirements":[],"updates":[{"action":"add-schema","schema":' + text * 100_000
    assert shop.send("POST", table("t"), body).status == 400


def test_a_table_at_a_bound_refuses_only_additions_beyond_it(shop: Client) -> None:
    most = BOUNDS["sort orders of a table"]
    columns = {"action": "add-schema", "schema": wide(most)}
    current = {"action": "set-current-schema", "schema-id": -1}
    for update in ([columns, current], [order(n) for n in range(1, most)]):
        assert shop.commit("t", *update).status == 200
    refused = shop.commit("t", order(most))
    assert f"too many sort orders of a table: {most + 1}, the maximum is {most}" in refused.error["message"]
    assert shop.commit("t", order(1)).status == 200  # it is there already
    assert shop.commit("t", set_properties({"k": "v"})).status == 200


def test_properties_grow_to_the_bound_over_several_requests_and_shrink_again(shop: Client) -> None:
    most = BOUNDS["properties"]
    assert shop.commit("t", set_properties(properties(most // 2))).status == 200
    more = {f"m{n}": "v" for n in range(most // 2 + 1)}
    assert "too many properties" in shop.commit("t", set_properties(more)).error["message"]
    assert shop.commit("t", {"action": "remove-properties", "removals": list(properties(9))}).status == 200
    where = f"{path('db')}/properties"
    assert shop.send("POST", where, {"updates": properties(most // 2)}).status == 200
    assert "too many properties" in shop.send("POST", where, {"updates": more}).error["message"]


def test_refusing_a_request_beyond_a_bound_costs_no_more_than_counting(shop: Client) -> None:
    few, many = 1_000, BOUNDS["columns in a schema"] + 1

    def work(columns: int, status: int) -> int:
        answers: list[Answer] = []
        where, body = commit({"action": "add-schema", "schema": wide(columns)})
        text = json.dumps(body)
        found = counted(lambda: answers.append(shop.send("POST", where, text)))
        assert answers[0].status == status
        return found

    assert work(many, 400) / many < work(few, 200) / few / 5


def test_the_longest_names_are_accepted(shop: Client) -> None:
    assert shop.commit("t", {"action": "add-schema", "schema": long_names(BOUNDS[NAMES] // 2)}).status == 200


def test_tags_are_added_up_to_the_bound_only(shop: Client) -> None:
    most = BOUNDS["branches and tags of a table"]
    updates = [tag(1, f"t{n}") for n in range(most + 1)]
    beyond = f"too many branches and tags of a table: {most + 1}"
    assert beyond in shop.commit("t", *updates).error["message"]
    assert shop.commit("t", snapshot(1), *updates[: most // 2]).status == 200
    assert shop.commit("t", *updates[most // 2 : most]).status == 200
    assert beyond in shop.commit("t", updates[most]).error["message"]
    assert shop.commit("t", {**updates[0], "max-ref-age-ms": 1}).status == 200  # it is there already


def test_a_namespace_of_the_most_levels_is_created_with_its_parents(shop: Client) -> None:
    levels = ["d"] * BOUNDS["levels of a namespace"]
    shop.namespace(*levels)
    assert shop.ok("GET", path(*levels[:-1]))["namespace"] == levels[:-1]
