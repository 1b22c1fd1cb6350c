"""The system views and the command line on every database."""

from __future__ import annotations

from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey
from polaris_spark.spark.views import VIEWS
from polaris_spark.store.cache import process_cache
from polaris_spark.testing.processes import rows as scanned
from tests.cli.catalogs import COMMITS, make_catalog, run
from tests.stores import configured
from tests.views.catalogs import Catalog, rows


@pytest.fixture
def shop(store: str, tmp_path: Path) -> Catalog:
    """A catalog with objects of many kinds."""
    catalog = Catalog(tmp_path / "shop", store=store, catalog="shop", principal="ann")
    catalog.namespace("sales")
    for number in range(30):
        catalog.table("sales", f"t{number:02}")
    for id in (11, 12):
        catalog.snapshot("sales", "t00", id)
    catalog.view("sales", "today", "SELECT 1 AS n, current_date() AS day")
    return catalog


def test_every_view_reads_every_row_once(shop: Catalog) -> None:
    found = {
        view: shop.read(view, splits="4", unreadable="report")  # the snapshots' manifest lists do not exist
        for view in VIEWS
        if view not in ("objects", "references")
    }
    assert [row["namespace"] for row in found["namespaces"]] == ["sales"]
    assert sorted(row["name"] for row in found["tables"]) == [f"t{number:02}" for number in range(30)]
    assert [row["name"] for row in found["views"]] == ["today"]
    assert sorted(row["snapshot_id"] for row in found["snapshots"]) == [11, 12]
    assert sorted(row["number"] for row in found["commits"]) == list(range(35))
    assert len(found["changes"]) == 34
    assert len(found["schemas"]) == 2 * 31
    assert [(row["name"], row["ref"], row["snapshot_id"]) for row in found["refs"]] == [("t00", "main", 12)]
    assert "default" in {row["realm"] for row in found["realms"]}
    assert True in {row["in_force"] for row in found["nodes"]}
    backend = shop.session.connection.backend
    instance = shop.session.catalog.references.store.realm
    for view, table in (("objects", "objects"), ("references", "references")):
        stored = scanned(backend, backend.splits(table, [instance], 1))  # type: ignore[arg-type]  # they are tables
        parts = [key for key in stored if view == "references" or key[2] == 0]
        assert len(rows(view, **configured(shop.store), realm="default", splits="5")) == len(parts) > 2
    shop.session.close()


def test_the_command_line_shows_heads_loses_a_commit_and_recovers(store: str, tmp_path: Path) -> None:
    make_catalog(tmp_path, store)
    newest, *older = run("log", store, "--json").json
    assert [commit["number"] for commit in (newest, *older)] == list(range(COMMITS, -1, -1))
    assert run("tables", store).code == run("info", store).code == run("heads", store).code == 0
    _delete(store, int(newest["id"], 16))
    assert run("heads", store).code == 1
    answer = run("recover", store, "--yes", "--json")
    assert answer.code == 0, answer.err
    (changed,) = [one for one in answer.json["references"] if one["action"] != "keep"]
    assert (changed["action"], changed["lost-commits"]) == ("set", 1)
    assert run("heads", store).code == 0
    assert run("log", store, "--json").json[0]["changes"][0]["action"] == "recover"


def _delete(store: str, id: int) -> None:
    """Delete the rows of an object in any realm."""
    backend = open_backend(store)
    realms = {found[0] for found in scanned(backend, backend.splits("objects", None, 1)) if found[1] == id}
    for realm in realms:
        backend.delete_objects(str(realm), [ObjectKey(id)])
    backend.close()
    assert realms
    process_cache().clear()  # a command line is a process of its own
