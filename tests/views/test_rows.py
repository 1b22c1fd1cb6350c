"""The views `objects` and `references`: the rows of the database."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo, In

from polaris_spark.backends.base import ObjectKey, ObjectRow
from tests.views.catalogs import Catalog, batches, reader, rows


def test_every_object_is_shown_once_with_its_size(shop: Catalog) -> None:
    backend = shop.session.connection.backend
    instance = shop.session.catalog.references.store.realm
    stored: dict[int, int] = {}
    for split in backend.splits("objects", [instance], 1):
        for batch in backend.scan(split):
            for row in batch.to_pylist():
                stored[row["id"]] = stored.get(row["id"], 0) + len(row["value"])
    found = rows("objects", store=shop.store, splits="3")
    assert len(found) == len(stored)
    assert {row["id"]: row["bytes"] for row in found} == stored
    assert {row["error"] for row in found} == {None}
    assert {row["content"] for row in found} == {None}


def test_headers_say_what_objects_point_to(shop: Catalog) -> None:
    found = {row["id"]: row for row in rows("objects", store=shop.store)}
    head = found[shop.head()]
    assert head["type"] == "commit"
    assert len(head["weak_ids"]) == 8
    assert all(id in found for row in found.values() for id in row["strong_ids"])


def test_content_is_json_with_fields_by_name(shop: Catalog) -> None:
    found = rows("objects", store=shop.store, content="true")
    contents = {row["id"]: json.loads(row["content"]) for row in found}
    [orders] = [row for row in shop.read("tables") if row["name"] == "orders"]
    table = contents[orders["content_id"]]
    assert table["uuid"] == orders["uuid"]
    assert table["properties"]["colour"] == "red"
    assert contents[table["schemas"][0]["piece"]]["fields"][0]["name"] == "n"


@pytest.fixture
def scratch(tmp_path: Path) -> Catalog:
    """A catalog that a test may damage."""
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("db")
    return catalog


def test_a_large_object_counts_all_its_parts(scratch: Catalog) -> None:
    scratch.table("db", "t", properties={"history.big": "x" * 800_000})
    found = [row for row in rows("objects", store=scratch.store, content="true") if row["parts"] > 1]
    assert [(row["type"], row["parts"]) for row in found] == [("table", 3)]
    assert found[0]["bytes"] > 800_000
    assert json.loads(found[0]["content"])["properties"]["history.big"] == "x" * 800_000


def test_a_missing_part_is_reported_and_the_rest_is_shown(scratch: Catalog) -> None:
    scratch.table("db", "t", properties={"history.big": "x" * 800_000})
    [big] = [row for row in rows("objects", store=scratch.store) if row["parts"] > 1]
    instance = scratch.session.catalog.references.store.realm
    scratch.session.connection.backend.delete_objects(instance, [ObjectKey(big["id"], 1)])
    found = rows("objects", store=scratch.store, content="true")
    [broken] = [row for row in found if row["error"]]
    assert "parts [1]" in broken["error"]
    assert (broken["id"], broken["content"]) == (big["id"], None)
    assert len(found) > 5


def test_an_unreadable_row_is_listed_with_the_reason(scratch: Catalog) -> None:
    instance = scratch.session.catalog.references.store.realm
    backend = scratch.session.connection.backend
    backend.write_objects(instance, [ObjectRow(5, 0, b"\x01"), ObjectRow(6, 0, b"\x09" + b"x" * 20)])
    found = {row["id"]: row for row in rows("objects", store=scratch.store)}
    assert "an object has at least" in found[5]["error"]
    assert "row format 9" in found[6]["error"]
    assert found[5]["type"] is None


def test_an_id_is_looked_up_instead_of_scanned(shop: Catalog) -> None:
    wanted = EqualTo(("id",), shop.head())
    [row] = rows("objects", wanted, store=shop.store, prune="true")
    assert (row["id"], row["type"]) == (shop.head(), "commit")
    missing = In(("id",), (1, 2))
    assert rows("objects", missing, store=shop.store, prune="true") == []


def test_references_say_where_histories_end(shop: Catalog) -> None:
    found = {row["kind"]: row for row in rows("references", store=shop.store)}
    assert sorted(found) == ["branch", "catalogs", "registry"]
    branch = found["branch"]
    assert (branch["catalog"], branch["branch"]) == ("shop", "main")
    assert branch["commit_id"] == shop.head()
    assert branch["number"] == 8
    assert (branch["sealed"], branch["floor_number"]) == (False, 0)
    assert branch["fence"] == branch["generation"]
    assert branch["recent"][0]["commit_id"] == shop.head()
    assert branch["row_name"] == f"{branch['name']}@{branch['generation']:x}"
    row = shop.session.connection.backend.read_reference(
        shop.session.catalog.references.store.realm, branch["row_name"]
    )
    assert row is not None
    assert branch["version"] == row.version.hex()


def test_a_store_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("db")
    assert len(catalog.read("namespaces")) == 1
    catalog.session.close()
    for path in tmp_path.iterdir():
        if path.name.startswith("c.db"):
            path.unlink()
    again = Catalog(tmp_path / "c.db")
    assert again.read("namespaces") == []
    again.session.close()


def test_a_read_that_has_begun_locks_nothing(scratch: Catalog) -> None:
    for i in range(3):
        scratch.table("db", f"t{i}")
    begun = [
        batches(reader(view, store=scratch.store, splits="3")) for view in ("objects", "tables", "changes")
    ]
    assert all(next(read).num_rows for read in begun)
    scratch.set_property("db", "t0", "x", "y")
    path = scratch.store.removeprefix("sqlite://").partition("?")[0]
    connection = sqlite3.connect(path, timeout=0)
    busy, _, left = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert (busy, left) == (0, 0)
    connection.close()
    assert [batch for read in begun for batch in read]
