"""Catalogs are dropped, restored, and deleted with their rows and files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.catalog.catalogs import realm_catalogs
from polaris_spark.catalog.catalogs import references as references_module
from polaris_spark.catalog.catalogs.catalog_changes import DropCatalog, UndropCatalog, end_dropped, unsettled
from polaris_spark.catalog.catalogs.realm_catalogs import RealmCatalogs
from polaris_spark.catalog.catalogs.references import CATALOGS, DroppedCatalog, catalog_prefix, dropped_in
from polaris_spark.clock import ManualClock
from polaris_spark.errors import (
    CatalogNotEmptyError,
    CorruptionError,
    NotFoundError,
    PolarisError,
    ProtectedBranchError,
)
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.periods import realm_policy
from tests.rest.client import Client, connect, files_below, table_request, tables
from tests.rest.realms import HOUR_MS, WHO, Realm, namespaces


def test_a_catalog_with_a_namespace_is_dropped_only_with_cascade(realm: Realm) -> None:
    realm.create("a")
    opened = realm.open("a")
    call(opened.session, "create_branch", name="dev")
    realm.open("a", branch="dev").namespace("db")
    with pytest.raises(CatalogNotEmptyError, match="its branch 'dev' contains a namespace"):
        realm.main.catalogs.drop("a")
    assert "a" in realm.names()
    realm.main.catalogs.drop("a", cascade=True)
    assert "a" not in realm.names()


def test_a_catalog_with_a_protected_branch_is_not_dropped(realm: Realm) -> None:
    realm.create("a")
    call(realm.open("a").session, "protect_branch", name="main")
    with pytest.raises(ProtectedBranchError, match="its branch 'main' is protected"):
        realm.main.catalogs.drop("a", cascade=True)
    assert "a" in realm.names()


def test_a_session_of_a_dropped_catalog_gets_one_error_until_the_catalog_is_restored(realm: Realm) -> None:
    realm.create("a")
    opened = realm.open("a")
    opened.namespace("db")
    call(opened.session, "create_tag", name="v1")
    call(opened.session, "create_branch", name="gone")
    call(opened.session, "drop_branch", name="gone")
    realm.main.catalogs.drop("a", cascade=True)
    for method, path, body in (
        ("GET", "v1/namespaces", None),
        ("POST", "v1/namespaces", {"namespace": ["x"]}),
        ("POST", tables("db"), table_request("t")),
    ):
        answer = opened.send(method, path, body)
        assert answer.status == 404
        assert "catalog 'a' was dropped" in answer.error["message"]
    with pytest.raises(PolarisError, match="no longer exists"):
        opened.session.set_catalog_properties({"gc.enabled": "false"})
    realm.main.catalogs.undrop("a")
    assert namespaces(opened) == ["db"]
    opened.namespace("x")
    assert [row[0] for row in call(opened.session, "show_tags")] == ["v1"]
    assert [row[0] for row in call(opened.session, "show_branches")] == ["main"]
    call(opened.session, "undrop_branch", name="gone")


def test_a_dropped_catalog_is_kept_for_its_grace_period_and_then_its_rows_are_swept(tmp_path: Path) -> None:
    clock = ManualClock(int(time.time() * 1_000))
    given = {"store": f"sqlite://{tmp_path}/c.db", "clock": clock}
    with polaris_spark.connect(**given, warehouse=str(tmp_path / "w"), grace="1 h") as session:
        session.catalogs.create("a", {"warehouse": str(tmp_path / "a"), "grace": "5 h"})
        with polaris_spark.connect(**given, catalog="a") as opened:
            Client(opened).namespace("db")
            Client(opened).create("t")
            row = opened.catalog.row
        session.catalogs.drop("a", cascade=True)
        clock.advance(4 * HOUR_MS)
        call(session, "sweep", retention="1 h")
        session.catalogs.undrop("a")
        with polaris_spark.connect(**given, catalog="a") as opened:
            assert Client(opened).ok("GET", tables("db"))["identifiers"]
        session.catalogs.drop("a", cascade=True)
        clock.advance(5 * HOUR_MS)
        call(session, "sweep", retention="1 h")
        with pytest.raises(NotFoundError, match="no dropped catalog 'a'"):
            session.catalogs.undrop("a")
        names = [one.name for one in session.catalog.references.listed()]
        assert not [name for name in names if name.startswith(catalog_prefix(row))]
        assert call(session, "fsck") == []
        clock.advance(6 * HOUR_MS)  # the registry's history kept the rows
        assert "table" in {one[1] for one in call(session, "sweep", retention="1 h")}


def test_what_a_process_left_undone_is_done_by_the_next_one(realm: Realm) -> None:
    realm.create("a")
    opened = realm.open("a")
    opened.namespace("db")
    references, context, row = opened.session.catalog.references, opened.session.catalog.context, None
    row = opened.session.catalog.row
    references.commit(CATALOGS, DropCatalog(context, WHO, row))
    assert unsettled(references) == [row]
    assert opened.send("POST", "v1/namespaces", {"namespace": ["late"]}).status == 200
    realm.main.catalogs.settle_all()
    assert unsettled(references) == []
    assert opened.send("GET", "v1/namespaces").status == 404
    references.commit(CATALOGS, UndropCatalog(context, WHO, row, "a"))
    assert unsettled(references) == [row]
    assert namespaces(realm.open("a")) == ["db", "late"]  # opening it restores its branches
    references.commit(CATALOGS, DropCatalog(context, WHO, row))
    call(realm.main, "sweep")
    assert unsettled(references) == []
    realm.main.catalogs.undrop("a")
    assert namespaces(opened) == ["db", "late"]


def before_drop(
    realm: Realm, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> RealmCatalogs:
    """Return the catalogs of the realm, which call a function after the checks of a drop and before its commit."""
    catalogs = realm.main.catalogs
    commit = catalogs._commit

    def late(change: Any) -> Any:
        if isinstance(change, DropCatalog):
            meanwhile()
        return commit(change)

    monkeypatch.setattr(catalogs, "_commit", late)
    return catalogs


def test_a_namespace_that_is_created_while_its_catalog_is_dropped_keeps_the_catalog(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    realm.create("a")
    opened = realm.open("a")
    catalogs = before_drop(realm, monkeypatch, lambda: opened.namespace("db"))
    with pytest.raises(CatalogNotEmptyError):
        catalogs.drop("a")
    assert namespaces(opened) == ["db"]


def test_a_refused_drop_keeps_the_name_that_the_catalog_has_by_then(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = realm.create("a")
    opened = realm.open("a")

    def meanwhile() -> None:
        opened.namespace("db")
        realm.main.catalogs.rename("a", "renamed")
        realm.create("a", "other")

    catalogs = before_drop(realm, monkeypatch, meanwhile)
    with pytest.raises(CatalogNotEmptyError):
        catalogs.drop("a")
    assert realm.names()["renamed"] == id


def test_a_branch_that_is_protected_while_its_catalog_is_dropped_keeps_the_catalog(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    realm.create("a")
    opened = realm.open("a")
    catalogs = before_drop(realm, monkeypatch, lambda: call(opened.session, "protect_branch", name="main"))
    with pytest.raises(ProtectedBranchError):
        catalogs.drop("a", cascade=True)
    assert "a" in realm.names()


def test_a_catalog_with_a_lost_row_is_not_dropped(realm: Realm) -> None:
    """Its restoration would have nothing but an empty first commit."""
    prefix = f"/{realm.create('a'):x}/"
    opened = realm.open("a")
    opened.namespace("db")
    references = realm.main.catalog.references
    (lost,) = [one for one in references.listed() if prefix in one.name and one.name.endswith("heads/main")]
    backend, of_realm = realm.main.connection.backend, references.store.realm
    row = backend.read_reference(of_realm, lost.row_name)
    assert row is not None
    backend.delete_reference(of_realm, lost.row_name, row.version)
    with pytest.raises(CorruptionError):
        realm.main.catalogs.drop("a", cascade=True)
    assert "a" in realm.names()


def test_a_catalog_whose_row_was_lost_after_its_drop_is_not_restored_as_an_empty_one(realm: Realm) -> None:
    prefix = f"/{realm.create('a'):x}/"
    opened = realm.open("a")
    opened.namespace("db")
    references = realm.main.catalog.references
    realm.main.catalogs.drop("a", cascade=True)
    (lost,) = [one for one in references.listed() if prefix in one.name]
    backend, of_realm = realm.main.connection.backend, references.store.realm
    row = backend.read_reference(of_realm, lost.row_name)
    assert row is not None
    backend.delete_reference(of_realm, lost.row_name, row.version)
    with pytest.raises(CorruptionError, match="from a backup"):
        realm.main.catalogs.undrop("a")
    assert "a" not in realm.names()
    backend.insert_reference(of_realm, lost.row_name, row)
    realm.main.catalogs.undrop("a")
    assert namespaces(opened) == ["db"]


def test_a_process_that_opens_a_catalog_while_it_ends_does_not_open_an_empty_one(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the catalog's row, and then sleeps until the catalog's grace period has ended."""
    prefix = f"/{realm.create('a'):x}/"
    catalogs, references = realm.main.catalogs, realm.main.catalog.references
    ensure = realm_catalogs.ensure_reference

    def late(*arguments: Any) -> bool:
        monkeypatch.setattr(realm_catalogs, "ensure_reference", ensure)
        catalogs.drop("a")
        end_dropped(references, lambda _: 0, WHO)
        assert not [one for one in references.listed() if prefix in one.name]
        return ensure(*arguments)

    monkeypatch.setattr(realm_catalogs, "ensure_reference", late)
    with pytest.raises(NotFoundError, match="'a' does not exist"):
        realm.open("a")
    left = [one for one in references.listed() if prefix in one.name]
    assert [one.registration.state for one in left] == ["dropped"]
    end_dropped(references, lambda _: 0, WHO)
    assert not [one for one in references.listed() if prefix in one.name]
    assert call(realm.main, "fsck") == []


def test_the_periods_of_a_dropped_catalog_count(realm: Realm) -> None:
    realm.create("a", grace="300 d")
    catalog = realm.main.catalog
    kept = realm_policy(catalog).rows_ms
    realm.main.catalogs.drop("a")
    assert realm_policy(catalog).rows_ms == kept > 200 * 24 * HOUR_MS


def test_the_periods_of_a_catalog_count_that_is_dropped_while_they_are_read(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a sweep could delete what the catalog still keeps."""
    realm.create("a", grace="300 d")
    list_dropped = references_module.dropped_in

    def late(*arguments: Any, **more: Any) -> list[DroppedCatalog]:
        monkeypatch.undo()
        realm.main.catalogs.drop("a")
        return list_dropped(*arguments, **more)

    monkeypatch.setattr(references_module, "dropped_in", late)
    assert realm_policy(realm.main.catalog).rows_ms > 200 * 24 * HOUR_MS
    assert "a" not in realm.names()
    assert realm_policy(realm.main.catalog).rows_ms > 200 * 24 * HOUR_MS


def test_other_files_of_a_dropped_catalog_without_collection_are_kept(tmp_path: Path) -> None:
    shared = {"shared-locations": "allow"}
    opened = connect(f"sqlite://{tmp_path}/store.db", tmp_path / "all", shared_locations="allow")
    with opened.session as session:
        session.catalogs.create("b", {"warehouse": str(tmp_path / "all/b"), "gc.enabled": "false", **shared})
        file = tmp_path / "all" / "b" / "keep.txt"
        file.parent.mkdir(parents=True)
        file.write_text("x")
        os.utime(file, (1, 1_700_000_000))
        session.catalogs.drop("b")
        call(session, "remove_orphans", dry_run=False)
        assert file.exists()


def test_the_files_of_a_dropped_catalog_are_deleted_after_its_grace_period(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/c.db"
    with polaris_spark.connect(store=store, warehouse=str(tmp_path / "w"), grace="0 s") as session:
        for name, properties in (("a", {}), ("b", {"gc.enabled": "false"}), ("c", {})):
            session.catalogs.create(name, {"warehouse": str(tmp_path / name), **properties})
            with polaris_spark.connect(store=store, catalog=name) as opened:
                Client(opened).namespace("db")
                Client(opened).create("t")
            session.catalogs.drop(name, cascade=True)
        assert list(call(session, "purge_catalogs", older_than="0 s", force=True, dry_run=True)) == []
        session.catalogs.undrop("c")
        call(session, "sweep")
        purge = {"older_than": "0 s", "force": True}
        assert call(session, "purge_catalogs") == []  # the files are young
        would = call(session, "purge_catalogs", dry_run=True, **purge)
        files = files_below(tmp_path / "a")
        assert {row[0].removeprefix(f"file://{tmp_path}/a/") for row in would} == files
        assert {row[4] for row in call(session, "purge_catalogs", **purge)} == {"deleted"}
        assert not files_below(tmp_path / "a")
        assert call(session, "purge_catalogs", **purge) == []
        assert files_below(tmp_path / "b")
        assert files_below(tmp_path / "c")
        assert not dropped_in(session.catalog.references.read(CATALOGS), ended=True)
        assert call(session, "fsck") == []


def test_the_files_of_a_dropped_catalog_are_kept_if_another_catalog_has_its_warehouse(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/c.db"
    with polaris_spark.connect(store=store, warehouse=str(tmp_path / "w"), grace="0 s") as session:
        for _ in range(2):
            session.catalogs.create("a", {"warehouse": str(tmp_path / "a")})
            with polaris_spark.connect(store=store, catalog="a") as opened:
                Client(opened).namespace("db")
                Client(opened).create("t")
            if len(session.catalogs.dropped()) == 0:
                session.catalogs.drop("a", cascade=True)
        files = files_below(tmp_path / "a")
        call(session, "sweep")
        assert call(session, "purge_catalogs", older_than="0 s", force=True) == []
        assert files_below(tmp_path / "a") == files


def test_a_warehouse_that_cannot_be_listed_does_not_hinder_the_purge_of_others(tmp_path: Path) -> None:
    store, purge = f"sqlite://{tmp_path}/c.db", {"older_than": "0 s", "force": True}
    with polaris_spark.connect(store=store, warehouse=str(tmp_path / "w"), grace="0 s") as session:
        for name in ("a", "b"):
            session.catalogs.create(name, {"warehouse": str(tmp_path / name)})
            session.catalogs.drop(name)
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "file").write_text("x")
        (tmp_path / "a").write_text("no folder")
        call(session, "sweep")
        found = {
            row[0].removeprefix(f"file://{tmp_path}/"): row[4]
            for row in call(session, "purge_catalogs", **purge)
        }
        assert found == {"a": "kept", "b/file": "deleted"}
        (tmp_path / "a").unlink()
        assert call(session, "purge_catalogs", **purge) == []
        assert not dropped_in(session.catalog.references.read(CATALOGS), ended=True)


def test_files_around_another_catalog_are_deleted_after_that_catalog(tmp_path: Path) -> None:
    store, purge = f"sqlite://{tmp_path}/c.db", {"older_than": "0 s", "force": True}
    with polaris_spark.connect(store=store, warehouse=str(tmp_path / "w"), grace="0 s") as session:
        for name, place in (("outer", "a"), ("inner", "a/inner")):
            session.catalogs.create(name, {"warehouse": str(tmp_path / place)})
            folder = tmp_path / place
            folder.mkdir()
            (folder / "file").write_text("x")
            if name == "outer":
                session.catalogs.drop(name)
                call(session, "sweep")
        assert call(session, "purge_catalogs", **purge) == []
        assert files_below(tmp_path / "a") == {"file", "inner/file"}
        session.catalogs.drop("inner")
        call(session, "sweep")
        assert {row[4] for row in call(session, "purge_catalogs", **purge)} == {"deleted"}
        assert not files_below(tmp_path / "a")
        assert not dropped_in(session.catalog.references.read(CATALOGS), ended=True)
