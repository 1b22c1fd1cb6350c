"""System views of a store with several realms and catalogs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.views.catalogs import Catalog, rows


@pytest.fixture(scope="module")
def catalogs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Catalog]]:
    """Catalogs x and y in the realms default and other. Each has a namespace and a table with a distinct name."""
    path: Path = tmp_path_factory.mktemp("realms") / "c.db"
    made = [Catalog(path, realm=realm, catalog=name) for realm in ("default", "other") for name in "xy"]
    for catalog in made:
        realm, name = catalog.session.properties.realm, catalog.session.catalog.name
        catalog.namespace("db")
        catalog.table("db", f"{realm}_{name}")
    yield made
    for catalog in made:
        catalog.session.close()


def test_a_catalog_shows_its_own(catalogs: list[Catalog]) -> None:
    for catalog in catalogs:
        realm, name = catalog.session.properties.realm, catalog.session.catalog.name
        [row] = catalog.read("tables", realm=realm)
        assert (row["catalog"], row["name"]) == (name, f"{realm}_{name}")
        assert {row["catalog"] for row in catalog.read("changes", realm=realm)} == {name}


def test_without_a_catalog_a_realm_shows_all_of_its_own(catalogs: list[Catalog]) -> None:
    for realm in ("default", "other"):
        found = rows("tables", store=catalogs[0].store, realm=realm)
        assert sorted((row["catalog"], row["name"]) for row in found) == [
            ("x", f"{realm}_x"),
            ("y", f"{realm}_y"),
        ]


def test_rows_of_a_realm_are_its_own(catalogs: list[Catalog]) -> None:
    store = catalogs[0].store
    for view in ("objects", "references"):
        default, other = (rows(view, store=store, realm=realm) for realm in ("default", "other"))
        key = "id" if view == "objects" else "row_name"
        assert {row["realm"] for row in default} == {"default"}
        assert {row["realm"] for row in other} == {"other"}
        mine = {row[key] for row in default} & {row[key] for row in other}
        assert mine <= {"root"}
    branches = rows("references", store=store, realm="other")
    assert {row["catalog"] for row in branches if row["kind"] == "branch"} == {"x", "y"}
