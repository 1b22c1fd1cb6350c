"""A server whose store lies below its warehouse, and clients that name the store's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polaris_spark.rest.access import Caller
from polaris_spark.rest.handler import handle
from tests.rest.client import connect, files_below, table, table_request, tables
from tests.server.servers import Server, client, options
from tests.server.test_links import name_statistics


def test_clients_cannot_have_the_store_deleted_and_the_operator_is_warned(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    store = f"sqlite://{warehouse}/c.db"
    with Server(store, *options(warehouse)) as server:
        ann = client(server)
        ann.namespace("db")
        for number, name in enumerate(("c.db-wal", "c.db-shm", "/c.db", "%63.db", "c.db")):
            ann.create(f"t{number}")
            name_statistics(ann, "db", f"t{number}", f"file://{warehouse}/{name}")
            ann.ok("DELETE", table(f"t{number}"), query={"purgeRequested": "true"})
        ann.namespace("later")
        assert {"c.db", "c.db-wal", "c.db-shm"} <= {file.name for file in warehouse.iterdir()}
        server.stop()
    assert "overlap" in server.errors
    with Server(store, *options(warehouse)) as again:
        assert client(again).ok("GET", "v1/namespaces")["namespaces"] == [["db"], ["later"]]
        again.stop()
    assert "overlap" not in again.errors


def test_clients_cannot_create_a_table_among_the_files_of_the_store(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "warehouse").mkdir()
    store = tmp_path / "warehouse" / "store"
    direct = connect(f"file://{store}", tmp_path / "warehouse")
    request.addfinalizer(direct.session.close)
    direct.namespace("db")
    (tmp_path / "warehouse" / "link").symlink_to(store)
    before = files_below(store / "objects")
    for follow_links in (False, True):
        catalog = direct.session.catalog.restricted([], follow_links=follow_links)
        for place in ("store", "store/objects", "STORE/t", "store//objects/t", "%73tore/t", "link/t"):
            body = table_request("t", location=f"file://{tmp_path}/warehouse/{place}")
            answer = handle(catalog, "POST", tables("db"), body=json.dumps(body), caller=Caller("ann"))
            assert answer.status == 403, place
    assert files_below(store / "objects") == before
