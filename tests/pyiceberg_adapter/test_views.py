"""Views through pyiceberg's interface."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchViewError,
    TableAlreadyExistsError,
    ViewAlreadyExistsError,
)

from polaris_spark.pyiceberg import PolarisCatalog
from tests.pyiceberg_adapter.content import HOSTILE, SCHEMA, view_version


def test_a_view_is_created_loaded_listed_and_dropped(catalog: PolarisCatalog) -> None:
    created = catalog.create_view("db.v", SCHEMA, view_version("SELECT 7"), properties={"owner": "ann"})
    loaded = catalog.load_view("db.v")
    assert loaded == created
    assert loaded.schema().as_struct() == SCHEMA.as_struct()
    found = loaded.sql_for("spark")
    assert found is not None
    assert (found.sql, loaded.properties["owner"]) == ("SELECT 7", "ann")
    assert catalog.view_exists("db.v")
    assert catalog.list_views("db") == [("db", "v")]
    assert catalog.list_tables("db") == []
    catalog.drop_view("db.v")
    assert not catalog.view_exists("db.v")
    assert catalog.list_views("db") == []


def test_a_schema_may_be_arrows(catalog: PolarisCatalog) -> None:
    view = catalog.create_view("db.v", SCHEMA.as_arrow(), view_version())
    assert view.schema().column_names == ["id", "name"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_kept_as_they_are(catalog: PolarisCatalog, name: str) -> None:
    catalog.create_view(("db", name), SCHEMA, view_version())
    assert catalog.list_views("db") == [("db", name)]
    assert catalog.load_view(("db", name)).name() == ("db", name)
    catalog.drop_view(("db", name))


def test_a_view_exists_once(catalog: PolarisCatalog) -> None:
    catalog.create_view("db.v", SCHEMA, view_version())
    catalog.create_table("db.t", SCHEMA)
    for taken in ("db.v", "db.t"):
        with pytest.raises(ViewAlreadyExistsError):
            catalog.create_view(taken, SCHEMA, view_version())


def test_a_missing_view_or_namespace_is_reported(catalog: PolarisCatalog) -> None:
    for ask in (catalog.load_view, catalog.drop_view):
        with pytest.raises(NoSuchViewError):
            ask("db.missing")
    assert not catalog.view_exists("db.missing")
    with pytest.raises(NoSuchNamespaceError):
        catalog.create_view("missing.v", SCHEMA, view_version())


@pytest.mark.parametrize("name", ["again", *HOSTILE[:4]])
def test_a_view_is_registered_from_its_metadata(catalog: PolarisCatalog, tmp_path: Path, name: str) -> None:
    view = catalog.create_view("db.v", SCHEMA, view_version("SELECT 7"))
    catalog.drop_view("db.v")
    file = tmp_path / "view.json"
    file.write_text(view.metadata.model_dump_json(by_alias=True))
    registered = catalog.register_view(("db", name), str(file))
    assert registered.name() == ("db", name)
    assert catalog.list_views("db") == [("db", name)]
    assert registered.metadata.view_uuid == json.loads(file.read_text())["view-uuid"]


def test_a_view_is_not_registered_over_another(catalog: PolarisCatalog, tmp_path: Path) -> None:
    view = catalog.create_view("db.v", SCHEMA, view_version())
    catalog.create_table("db.t", SCHEMA)
    file = tmp_path / "view.json"
    file.write_text(view.metadata.model_dump_json(by_alias=True))
    with pytest.raises(ViewAlreadyExistsError):
        catalog.register_view("db.v", str(file))
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_view("db.t", str(file))
