"""Locations of tables in several catalogs of a realm never overlap."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.catalog.catalogs import catalog_changes, realm_catalogs
from polaris_spark.catalog.catalogs.catalogs import list_catalogs
from polaris_spark.catalog.imports.directory import DirectoryTree
from polaris_spark.errors import ForbiddenError
from polaris_spark.jobs.registry import call
from tests.catalog.imports.support import run, statuses, table_in
from tests.rest.client import Client, at_once, set_properties, table_request, tables
from tests.rest.conftest import Open


@pytest.fixture
def place(tmp_path: Path) -> str:
    """The URI of a store in memory."""
    return f"memory:{uuid.uuid4()}"


def both(opened: Open, store: str, tmp_path: Path) -> tuple[Client, Client]:
    """Two catalogs of a realm, `one` and `two`, each with the namespace `db`."""
    clients = [opened(store, tmp_path / name, catalog=name) for name in ("one", "two")]
    for client in clients:
        client.namespace("db")
    return clients[0], clients[1]


def refused(client: Client, location: Path | str, name: str = "u") -> str:
    """Return the error of creating a table at a location."""
    answer = client.send("POST", tables("db"), table_request(name, location=str(location)))
    assert answer.kind == (403, "ForbiddenException")
    message: str = answer.error["message"]
    return message


@pytest.mark.parametrize("inner", ["", "db", "db/x"])
def test_a_table_in_another_catalogs_warehouse_is_refused(
    opened: Open, place: str, tmp_path: Path, inner: str
) -> None:
    one, two = both(opened, place, tmp_path)
    assert "warehouse of catalog 'one'" in refused(two, tmp_path / "one" / inner)
    assert one.create("mine", location=str(tmp_path / "one" / "db"))


def test_a_table_around_another_catalogs_warehouse_is_refused(
    opened: Open, place: str, tmp_path: Path
) -> None:
    one, _ = both(opened, place, tmp_path / "inner")
    assert "it contains the warehouse" in refused(one, tmp_path)
    third = opened(place, tmp_path / "far", catalog="third")
    third.namespace("db")
    assert "warehouse of catalog" in refused(third, tmp_path / "inner")


@pytest.mark.parametrize("second", ["t", "t/below", "."])
def test_a_table_where_another_catalogs_table_lies_is_refused(
    opened: Open, place: str, tmp_path: Path, second: str
) -> None:
    one, two = both(opened, place, tmp_path / "inner")
    one.create("t", location=str(tmp_path / "outside" / "t"))
    assert "belongs to catalog 'one'" in refused(two, tmp_path / "outside" / second)
    assert two.create("u", location=str(tmp_path / "outside" / "t2"))


def test_a_path_for_data_in_another_catalogs_warehouse_is_refused(
    opened: Open, place: str, tmp_path: Path
) -> None:
    one, two = both(opened, place, tmp_path)
    two.create("t")
    stolen = set_properties(**{"write.data.path": f"file://{tmp_path}/one/db"})
    assert two.commit("t", stolen).kind == (403, "ForbiddenException")
    moved = {"action": "set-location", "location": f"file://{tmp_path}/one/db"}
    assert two.commit("t", moved).kind == (403, "ForbiddenException")
    assert one.create("t", location=f"file://{tmp_path}/one/db")


def test_registering_another_catalogs_table_is_refused(opened: Open, place: str, tmp_path: Path) -> None:
    one, two = both(opened, place, tmp_path)
    file = one.create("t")["metadata-location"]
    answer = two.send("POST", "v1/namespaces/db/register", {"name": "r", "metadata-location": file})
    assert answer.kind == (403, "ForbiddenException")


@pytest.mark.parametrize("lazy", [False, True])
def test_importing_another_catalogs_table_conflicts(
    opened: Open, place: str, tmp_path: Path, lazy: bool
) -> None:
    one, two = both(opened, place, tmp_path)
    lake = tmp_path / "lake"
    table_in(lake, "db", "t", snapshots=0)
    assert statuses(run(one, DirectoryTree(str(lake), {}), lazy=lazy)) == {
        "db.t": "registered" if lazy else "imported"
    }
    assert statuses(run(two, DirectoryTree(str(lake), {}), lazy=lazy)) == {"db.t": "conflict"}


def test_the_location_of_a_dropped_table_is_free_for_others(
    opened: Open, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polaris_spark.catalog.catalogs.other_catalogs.LATEST_MS", 0)
    one, two = both(opened, place, tmp_path)
    where = str(tmp_path / "outside")
    one.create("t", location=where)
    assert "catalog 'one'" in refused(two, where)
    one.ok("DELETE", "v1/namespaces/db/tables/t")
    assert two.create("u", location=where)


@pytest.mark.parametrize("warehouse", ["one", "one/inner", "."])
def test_a_catalog_whose_warehouse_overlaps_anothers_is_not_created(
    opened: Open, place: str, tmp_path: Path, warehouse: str
) -> None:
    one, _ = both(opened, place, tmp_path)
    with pytest.raises(ForbiddenError, match=r"the warehouse of catalog '(one|two)'"):
        opened(place, tmp_path / warehouse, catalog="third")
    names = [row.name for row in list_catalogs(one.session.catalog.references)]
    assert names == ["one", "two"]


def test_a_catalog_in_whose_warehouse_a_table_lies_is_not_created(
    opened: Open, place: str, tmp_path: Path
) -> None:
    one, _ = both(opened, place, tmp_path)
    one.create("t", location=str(tmp_path / "outside" / "t"))
    with pytest.raises(ForbiddenError, match="belongs to a table or view of catalog 'one'"):
        opened(place, tmp_path / "outside", catalog="third")
    assert opened(place, tmp_path / "outside" / "t2", catalog="third")


def test_only_one_of_several_catalogs_created_at_once_in_one_warehouse_is_made(
    opened: Open, place: str, tmp_path: Path
) -> None:
    first = opened(place, tmp_path / "first", catalog="first")

    def create(name: str) -> str:
        try:
            opened(place, tmp_path / "same", catalog=name)
        except ForbiddenError:
            return "refused"
        return "made"

    outcomes = at_once([lambda name=name: create(name) for name in "abcdef"])
    assert sorted(outcomes) == ["made", *["refused"] * 5]
    assert len(list_catalogs(first.session.catalog.references)) == 2


def test_a_catalog_that_another_process_creates_and_fills_meanwhile_is_opened(
    opened: Open, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_used = realm_catalogs.refuse_used

    def refuse_after_another(*given: Any, **more: Any) -> None:
        monkeypatch.setattr(realm_catalogs, "refuse_used", refuse_used)
        first = opened(place, tmp_path / "one", catalog="one")
        first.namespace("db")
        first.create("t")
        refuse_used(*given, **more)

    monkeypatch.setattr(realm_catalogs, "refuse_used", refuse_after_another)
    assert opened(place, tmp_path / "one", catalog="one").names("db") == ["t"]


def test_catalogs_of_older_stores_that_share_a_warehouse_still_work(
    opened: Open, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(catalog_changes, "_refuse_overlap", lambda *_: None)
        older.setattr(realm_catalogs, "refuse_used", lambda *_, **__: None)
        clients = [opened(place, tmp_path / "same", catalog=name) for name in ("one", "two")]
    for client in clients:
        client.namespace("db")
        client.create("t")
    for name in ("one", "two"):
        again = opened(place, None, catalog=name)
        assert again.names("db") == ["t"]
        assert again.set("t", x="1")
        assert again.create("u")


def test_catalogs_with_shared_locations_are_exempt(opened: Open, place: str, tmp_path: Path) -> None:
    one = opened(place, tmp_path / "same", catalog="one", shared_locations="allow")
    two = opened(place, tmp_path / "same", catalog="two")
    for client in (one, two):
        client.namespace("db")
    where = str(tmp_path / "same" / "db" / "t")
    assert two.create("t", location=where)
    assert one.create("t", location=where)


@pytest.mark.parametrize("location", ["{warehouse}", "{warehouse}/", "{parent}"])
def test_the_warehouse_itself_belongs_to_no_table(catalog: Client, warehouse: Path, location: str) -> None:
    catalog.create("before")
    catalog.ok("DELETE", "v1/namespaces/db/tables/before")
    place = location.format(warehouse=warehouse, parent=warehouse.parent)
    assert "warehouse of this catalog" in refused(catalog, place)
    staged = catalog.send("POST", tables("db"), table_request("u", location=place, **{"stage-create": True}))
    assert staged.kind == (403, "ForbiddenException")
    catalog.create("t")
    for update in (
        {"action": "set-location", "location": place},
        set_properties(**{"write.data.path": f"file://{place}"}),
    ):
        assert catalog.commit("t", update).kind == (403, "ForbiddenException")
    assert catalog.create("next")


def test_a_table_of_an_older_store_at_the_root_of_the_warehouse_still_works(
    catalog: Client, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr("polaris_spark.catalog.tables.contents.require_ownable", lambda *_: None)
        catalog.create("t", location=str(warehouse))
    assert catalog.set("t", x="1")
    assert catalog.load()["metadata"]["location"] == str(warehouse)
    assert call(catalog.session, "fsck") == []
