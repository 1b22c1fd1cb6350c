"""Large requests: other requests do not wait for them, and the deadline limits them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from polaris_spark.catalog.metadata.schemas import SchemaIndex
from polaris_spark.testing.waiting import PATIENCE_S
from tests.rest.client import Client, Json, path, table
from tests.rest.kinds import add_schema, column, version, wide

Open = Callable[..., Client]

MANY = 2_000


def many_schemas(count: int = MANY) -> Json:
    """A commit that adds schemas."""
    return {"requirements": [], "updates": [add_schema(column(1), column(n + 3)) for n in range(count)]}


def test_thousands_of_schemas_are_added_by_one_request(catalog: Client) -> None:
    catalog.create("t")
    schemas = catalog.ok("POST", table("t"), many_schemas())["metadata"]["schemas"]
    assert [schema["schema-id"] for schema in schemas] == list(range(MANY + 1))
    assert [schema["fields"][1]["id"] for schema in schemas[1:]] == list(range(3, MANY + 3))


def test_another_table_is_changed_while_a_large_request_is_applied(
    catalog: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "tu":
        catalog.create(name)
    inside, go = threading.Event(), threading.Event()
    read = SchemaIndex.__init__

    def held(self: SchemaIndex, schema: Json) -> None:
        if schema["fields"][-1]["id"] == MANY:
            inside.set()
            assert go.wait(PATIENCE_S)
        read(self, schema)

    monkeypatch.setattr(SchemaIndex, "__init__", held)
    answers: list[Json] = []
    large = threading.Thread(target=lambda: answers.append(catalog.ok("POST", table("t"), many_schemas())))
    large.start()
    try:
        assert inside.wait(PATIENCE_S)
        for n in range(3):
            catalog.set("u", k=str(n))
        assert not answers
    finally:
        go.set()
        large.join(PATIENCE_S)
    assert len(answers[0]["metadata"]["schemas"]) == MANY + 1
    assert catalog.load("u")["metadata"]["properties"]["k"] == "2"


def test_a_large_request_keeps_concurrent_changes_to_its_table(
    catalog: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.create("t")
    read, done = SchemaIndex.__init__, threading.Event()

    def overtaken(self: SchemaIndex, schema: Json) -> None:
        if schema["fields"][-1]["id"] == MANY and not done.is_set():
            done.set()
            catalog.set("t", k="v")
        read(self, schema)

    monkeypatch.setattr(SchemaIndex, "__init__", overtaken)
    metadata = catalog.ok("POST", table("t"), many_schemas())["metadata"]
    assert metadata["properties"]["k"] == "v"
    assert len(metadata["schemas"]) == MANY + 1


@pytest.mark.parametrize("kind", ["a commit", "a transaction", "a new table", "a view"])
def test_a_request_that_takes_longer_than_the_deadline_is_refused_and_changes_nothing(
    opened: Open, warehouse: Path, kind: str
) -> None:
    store = f"memory:{uuid.uuid4()}"
    client = opened(store, warehouse)
    client.namespace("db")
    client.create("t")
    identifier = {"namespace": ["db"], "name": "t"}
    of_view = {"name": "v", "schema": wide(1), "properties": {}}
    client.ok("POST", f"{path('db')}/views", {**of_view, "view-version": version(0)["view-version"]})
    requests: dict[str, tuple[str, Json]] = {
        "a commit": (table("t"), many_schemas()),
        "a transaction": (
            "v1/transactions/commit",
            {"table-changes": [{"identifier": identifier, **many_schemas()}]},
        ),
        "a new table": (f"{path('db')}/tables", {"name": "u", "schema": wide(10 * MANY)}),
        "a view": (f"{path('db')}/views/v", {"updates": many_schemas()["updates"]}),
    }
    hasty = opened(store, warehouse, commit_timeout="1 ms")
    before = client.session.catalog.head().version
    answer = hasty.send("POST", *requests[kind])
    assert answer.status == (503 if kind == "a new table" else 409)
    assert "(commit-timeout) passed while the change was being computed" in answer.error["message"]
    assert client.session.catalog.head().version == before
    assert client.send("POST", *requests[kind]).status in (200, 204)
