"""`polaris-spark tables`."""

from __future__ import annotations

from pathlib import Path

from polaris_spark.catalog.imports.sources import SourceEntry
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.names import sql_name
from tests.catalog.imports.support import Entries
from tests.catalog.imports.support import run as import_entries
from tests.cli.catalogs import HOSTILE, run
from tests.rest.client import connect
from tests.rest.materialized import create_materialized_view


def test_everything_in_the_catalog_is_listed(store: str) -> None:
    listed = [(entity["kind"], entity["name"]) for entity in run("tables", store, "--json").json]
    assert sorted(listed) == [
        ("namespace", "db"),
        ("namespace", "db.inner"),
        ("table", sql_name(("db", "inner", HOSTILE))),
        ("table", "db.t"),
        ("view", "db.v"),
    ]


def test_tables_are_listed_with_format_version_snapshots_and_last_update(store: str) -> None:
    (table,) = [entity for entity in run("tables", store, "--json").json if entity["name"] == "db.t"]
    assert (table["format-version"], table["snapshots"]) == (2, 0)
    assert table["last-updated"].endswith("Z")


def test_views_say_when_their_version_was_made(store: str) -> None:
    (view,) = [entity for entity in run("tables", store, "--json").json if entity["kind"] == "view"]
    assert (view["versions"], view["last-updated"]) == (1, "2026-09-21T14:13:20.000Z")


def test_namespaces_are_drawn_as_a_tree(store: str) -> None:
    lines = run("tables", store).out.splitlines()
    assert lines[:2] == ["polaris (main)", "└── db"]
    assert [line[:9].rstrip() for line in lines[2:4]] == ["    ├── t", "    ├── v"]
    assert lines[4] == "    └── inner"


def test_markup_and_escapes_in_names_are_text(store: str) -> None:
    out = run("tables", store).out
    assert r"[red]\x1b[31mtea" in out
    assert "\x1b" not in out


def test_tables_that_are_not_loaded_yet_are_marked(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/store.db"
    imported = connect(store, tmp_path / "warehouse")
    listed = [
        SourceEntry(("db",), name, kind, f"file://{tmp_path}/{name}/metadata/v1.metadata.json")
        for name, kind in (("t", TABLE), ("v", VIEW))
    ]
    import_entries(imported, Entries(*listed), lazy=True)
    imported.session.close()
    drawn = run("tables", store).out
    assert "t  not loaded yet" in drawn
    assert "v  view, not loaded yet" in drawn


def test_a_storage_table_is_drawn_below_its_materialized_view(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/store.db"
    catalog = connect(store, tmp_path / "warehouse")
    catalog.namespace("db")
    create_materialized_view(catalog.session.catalog, "v")
    catalog.session.close()
    lines = run("tables", store).out.splitlines()
    assert [line.split("  view")[0].split("  v2")[0] for line in lines[1:]] == [
        "└── db",
        "    └── v  materialized view, 1 version, 1970-01-01 00:00:00.001Z",
        "        └── storage",
    ]
