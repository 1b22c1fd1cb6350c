"""Catalogs as sources: pyiceberg's catalogs, the tables of Iceberg's JdbcCatalog, and a REST server."""

from __future__ import annotations

import sqlite3
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from polaris_spark.catalog.imports import sql
from polaris_spark.catalog.imports.open_source import SOURCES, Scrubber, open_source
from polaris_spark.catalog.imports.sources import ListedNamespace, SourceEntry
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.errors import InputError, MissingLibraryError, SourceError
from tests.catalog.imports.support import run, statuses, table_in, view_metadata, write
from tests.rest.client import Client, view

SCHEMA = Schema(NestedField(1, "a", LongType(), required=False))

JDBC = """
CREATE TABLE iceberg_tables (catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
  table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000),
  iceberg_type VARCHAR(5), PRIMARY KEY (catalog_name, table_namespace, table_name));
CREATE TABLE iceberg_namespace_properties (catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL,
  property_key VARCHAR(255), property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key));
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "source.db"


def jdbc(database: Path, *tables: tuple[str | None, ...], catalog: str = "prod") -> None:
    """Write tables as JdbcCatalog does."""
    with sqlite3.connect(database) as connection:
        connection.executescript(JDBC)
        connection.executemany(f"INSERT INTO iceberg_tables VALUES ('{catalog}', ?, ?, ?, NULL, ?)", tables)


def test_a_catalog_of_pyiceberg_is_imported(catalog: Client, database: Path, tmp_path: Path) -> None:
    source = SqlCatalog("prod", uri=f"sqlite:///{database}", warehouse=f"file://{tmp_path}/lake")
    source.create_namespace("sales", {"owner": "ann"})
    source.create_namespace("empty")
    table = source.create_table("sales.orders", SCHEMA)
    source.create_table("sales.lines", SCHEMA)
    rows = run(catalog, open_source("sql", f"sqlite:///{database}", {}, {}))
    assert statuses(rows) == {"sales.orders": "imported", "sales.lines": "imported"}
    assert catalog.load("orders", ("sales",))["metadata-location"] == table.metadata_location
    assert catalog.stored_properties("sales") == {"owner": "ann"}
    assert catalog.stored_properties("empty") == {}


def test_tables_and_views_of_the_jdbc_catalog_are_imported(
    catalog: Client, database: Path, root: Path
) -> None:
    where, location = table_in(root, "t"), write(root / "v", view_metadata(root / "v"))
    other = table_in(root, "u", number=2)
    jdbc(
        database,
        ("a.b", "t", where, "TABLE"),
        ("a.b", "v", location, "VIEW"),
        ("a", "u", other, None),
        ("a", "x", None, "TABLE"),
    )
    rows = run(catalog, open_source("jdbc", f"jdbc:sqlite:{database}", {"catalog": "prod"}, {}))
    assert statuses(rows) == {"a.u": "imported", "a.x": "failed", "a.b.t": "imported", "a.b.v": "imported"}
    assert catalog.ok("GET", view("v", ("a", "b")))["metadata-location"] == location


def test_the_older_schema_without_types_holds_tables(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute(
            "CREATE TABLE iceberg_tables (catalog_name TEXT, table_namespace TEXT, table_name TEXT, "
            "metadata_location TEXT, previous_metadata_location TEXT)"
        )
        connection.execute(
            "INSERT INTO iceberg_tables VALUES ('prod', 'a', 't', 's3://b/t/metadata/m', NULL)"
        )
    entries = list(open_source("sql", f"sqlite:///{database}", {}, {}).entries())
    assert entries == [SourceEntry(("a",), "t", TABLE, "s3://b/t/metadata/m")]


def test_large_catalogs_are_read_by_pages(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "PAGE", 7)
    tables = [(f"n{number % 3}", f"t{number}", "s3://b/x", "TABLE") for number in range(50)]
    jdbc(database, *tables)
    entries = list(open_source("sql", f"sqlite:///{database}", {}, {}).entries())
    assert sorted((one.namespace[0], one.name) for one in entries if isinstance(one, SourceEntry)) == sorted(
        (namespace, name) for namespace, name, _, _ in tables
    )


def test_which_of_several_catalogs_must_be_said(database: Path) -> None:
    jdbc(database, ("a", "t", "s3://b/x", "VIEW"))
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO iceberg_namespace_properties VALUES ('test', 'n', 'exists', 'true')")
    with pytest.raises(SourceError, match=r"several catalogs.*prod, test"):
        list(open_source("sql", f"sqlite:///{database}", {}, {}).entries())
    named = open_source("sql", f"sqlite:///{database}", {"catalog": "prod"}, {})
    assert list(named.entries()) == [SourceEntry(("a",), "t", VIEW, "s3://b/x")]
    other = open_source("sql", f"sqlite:///{database}", {"catalog": "test"}, {})
    assert list(other.entries()) == [ListedNamespace(("n",), {})]
    with pytest.raises(SourceError, match="no catalog 'tset'; it has: prod, test"):
        list(open_source("sql", f"sqlite:///{database}", {"catalog": "tset"}, {}).entries())


@pytest.mark.parametrize(
    ("uri", "driver"),
    [
        ("postgresql://host/db", "psycopg"),
        ("jdbc:postgresql://host/db", "psycopg"),
        ("jdbc:mysql://host/db", "pymysql"),
        ("jdbc:mariadb://host/db", "pymysql"),
    ],
)
def test_a_uri_without_a_driver_gets_one(monkeypatch: pytest.MonkeyPatch, uri: str, driver: str) -> None:
    monkeypatch.setitem(sys.modules, driver, None)  # as if it were not installed
    with pytest.raises(MissingLibraryError, match=driver):
        open_source("sql", uri, {}, {})


def test_a_database_without_a_catalog_is_reported_and_not_changed(catalog: Client, database: Path) -> None:
    sqlite3.connect(database).close()
    with pytest.raises(InputError, match="no table iceberg_tables"):
        run(catalog, open_source("sql", f"sqlite:///{database}", {}, {}))
    assert database.stat().st_size == 0


def test_any_catalog_of_pyiceberg_can_be_named_by_its_properties(
    catalog: Client, database: Path, tmp_path: Path
) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": f"file://{tmp_path}/lake"}
    source = SqlCatalog("source", **properties)
    source.create_namespace("a")
    source.create_namespace("a.b")
    source.create_table("a.b.t", SCHEMA)
    rows = run(catalog, open_source("pyiceberg", "", properties, {}))
    assert statuses(rows) == {"a.b.t": "imported"}


def test_a_table_that_the_source_cannot_load_stops_nothing(
    catalog: Client, database: Path, tmp_path: Path
) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": f"file://{tmp_path}/lake"}
    source = SqlCatalog("source", **properties)
    source.create_namespace("a")
    broken = source.create_table("a.broken", SCHEMA)
    source.create_table("a.whole", SCHEMA)
    Path(broken.metadata_location.removeprefix("file://")).unlink()
    rows = run(catalog, open_source("pyiceberg", "", properties, {}))
    assert statuses(rows) == {"a.broken": "failed", "a.whole": "imported"}


class CutOff(SqlCatalog):
    """A catalog whose database becomes unavailable after the first listing."""

    def list_namespaces(self, namespace: Any = ()) -> list[Any]:
        if namespace:
            raise ConnectionError("the line is cut")
        return super().list_namespaces(namespace)


def test_namespaces_that_cannot_be_listed_now_are_not_taken_for_empty_ones(
    catalog: Client, database: Path
) -> None:
    SqlCatalog("source", uri=f"sqlite:///{database}").create_namespace("a.b")
    properties = {"py-catalog-impl": f"{__name__}.CutOff", "uri": f"sqlite:///{database}"}
    with pytest.raises(InputError, match="the line is cut"):
        run(catalog, open_source("pyiceberg", "", properties, {}))


def test_sources_that_do_not_exist_are_refused_with_those_that_do() -> None:
    with pytest.raises(InputError, match=", ".join(SOURCES)):
        open_source("oracle", "x", {}, {})
    for source in ("directory", "hadoop", "sql", "rest"):
        with pytest.raises(InputError, match="needs a location"):
            open_source(source, "", {}, {})
    with pytest.raises(InputError, match="no option 'pasword'"):
        open_source("sql", "sqlite:///x", {"pasword": "x"}, {})
    with pytest.raises(SourceError, match="the URI of the database cannot be used"):
        open_source("sql", "nonsense", {}, {})


@pytest.mark.parametrize(
    "location",
    [
        "postgresql://ann:hunter2@host/db",
        "jdbc:postgresql://host/db?user=a&password=hunter2",
        "https://a:hunter2@h/",
    ],
)
def test_a_password_in_a_location_is_refused_without_repeating_it(location: str) -> None:
    with pytest.raises(InputError, match="contains a password") as refused:
        open_source("sql", location, {}, {})
    assert "hunter2" not in str(refused.value)


def test_secrets_come_from_the_environment_and_stay_out_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_TOKEN", "hunter2")
    options = {"token": "env:SOURCE_TOKEN", "uri": "http://127.0.0.1:9"}
    with pytest.raises(SourceError) as refused:
        open_source("rest", "http://127.0.0.1:9", options, {})
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))
    assert Scrubber(options)("sent hunter2 to http://127.0.0.1:9") == "sent *** to http://127.0.0.1:9"
    monkeypatch.setenv("EMPTY", "")
    assert Scrubber({"password": "env:EMPTY"})("no route") == "no route"
    with pytest.raises(InputError, match="'NO_SUCH_VARIABLE', which is not set"):
        open_source("rest", "http://x", {"token": "env:NO_SUCH_VARIABLE"}, {})
