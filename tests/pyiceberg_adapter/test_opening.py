"""Opening, configuring, closing and pickling the catalog."""

from __future__ import annotations

import inspect
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyiceberg.utils.config import Config

from polaris_spark.commits.log import entries
from polaris_spark.errors import InputError, StoreURIError
from polaris_spark.pyiceberg import PolarisCatalog
from polaris_spark.system import connections
from tests.pyiceberg_adapter.conftest import Open
from tests.pyiceberg_adapter.content import SCHEMA, content, rows

IMPL = "polaris_spark.pyiceberg.PolarisCatalog"


def properties(folder: Path) -> dict[str, Any]:
    """Return the properties that a program passes to `load_catalog`."""
    return {"py-catalog-impl": IMPL, "store": f"sqlite://{folder}/s.db", "warehouse": str(folder / "w")}


def test_nothing_of_the_interface_is_missing() -> None:
    assert not inspect.isabstract(PolarisCatalog)
    for name, member in inspect.getmembers(Catalog, inspect.isfunction):
        if getattr(member, "__isabstractmethod__", False):
            theirs = inspect.signature(member).parameters
            assert list(inspect.signature(getattr(PolarisCatalog, name)).parameters)[: len(theirs)] == list(
                theirs
            )


def test_every_public_method_is_tested_here() -> None:
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    untested = {
        name
        for name, member in inspect.getmembers(Catalog, inspect.isfunction)
        if name[0] != "_" and f".{name}(" not in tests and f"catalog.{name}," not in tests
    }
    # These take names apart and read nothing of a catalog; pyiceberg's own implementation serves.
    pure = {
        "identifier_to_database",
        "identifier_to_database_and_table",
        "identifier_to_tuple",
        "namespace_from",
        "namespace_to_string",
        "table_name_from",
    }
    assert untested - pure == set()


def test_it_is_loaded_by_the_name_of_its_class(tmp_path: Path) -> None:
    with load_catalog("lake", **properties(tmp_path)) as catalog:
        assert isinstance(catalog, PolarisCatalog)
        assert not catalog.supports_server_side_planning()
        catalog.create_namespace("db")
    with load_catalog("lake", **properties(tmp_path)) as catalog:
        assert catalog.list_namespaces() == [("db",)]


def test_a_pyiceberg_configuration_file_can_define_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"    {key}: {value}" for key, value in properties(tmp_path).items()]
    (tmp_path / ".pyiceberg.yaml").write_text("\n".join(["catalog:", "  lake:", *lines, ""]))
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__METADATA_FILES", "never")
    configured: Any = Config().get_catalog_config("lake")
    with load_catalog("lake", **configured) as catalog:
        assert isinstance(catalog, PolarisCatalog)
        assert catalog._opened.properties.metadata_files == "never"


def test_the_catalog_of_the_realm_has_the_same_name_by_default(opened: Open, tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/s.db"
    opened(store, "one").create_namespace("db")
    assert opened(store, "two", warehouse=f"{tmp_path}/two").list_namespaces() == []
    assert opened(store, "three", catalog="one").list_namespaces() == [("db",)]


def test_properties_are_checked(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(StoreURIError, match="'store' is missing"):
        PolarisCatalog("lake", warehouse=str(tmp_path))
    with pytest.raises(InputError, match="did you mean 'metadata-files'"):
        opened("memory:", **{"metadata-file": "never"})
    with pytest.raises(InputError, match="warehouse"):
        PolarisCatalog("lake", store="memory:without-warehouse")


def test_a_principal_is_logged(opened: Open) -> None:
    catalog = opened("memory:principal", principal="ann")
    catalog.create_namespace("db")
    head = catalog._opened.catalog.head()
    assert {entry.principal for _, _, _, entry in entries(head.store, head.head)} >= {"ann"}


def test_file_properties_reach_tables_and_secrets_of_the_store_do_not(opened: Open, tmp_path: Path) -> None:
    catalog = opened(
        f"sqlite://{tmp_path}/s.db?timeout=9s",
        **{
            "s3.endpoint": "http://s3",
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            "principal": "ann",
        },
    )
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", SCHEMA)
    for shown in (catalog.properties, table.io.properties, catalog.load_table("db.t").io.properties):
        assert shown["s3.endpoint"] == "http://s3"
        assert "s.db" not in str(shown)
        assert not shown.keys() & {"store", "principal", "uri", "py-catalog-impl", "metadata-files"}


def test_a_password_shows_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    catalog = PolarisCatalog.__new__(PolarisCatalog)
    given = {"store": "memory:secret", "store.password": "hunter2", "warehouse": str(tmp_path)}
    with pytest.raises(Exception, match="password") as raised:
        catalog.__init__("lake", **given)  # type: ignore[misc]  # memory: has no password, and says so
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in repr(catalog.__dict__.get("properties", ""))


def test_a_property_that_pyiceberg_refuses_leaves_nothing_open(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="separator"):
        load_catalog("polaris", **properties(tmp_path), **{"namespace-separator": ""})
    assert not [key for key in connections._open if str(tmp_path) in str(key)]


def test_a_closed_catalog_raises_an_error(opened: Open, tmp_path: Path) -> None:
    with opened(f"sqlite://{tmp_path}/s.db") as catalog:
        catalog.create_namespace("db")
    catalog.close()
    with pytest.raises(Exception, match="closed"):
        catalog.list_namespaces()


def test_several_catalogs_live_in_one_process(opened: Open, tmp_path: Path) -> None:
    catalogs = [opened(f"sqlite://{tmp_path}/{number}.db", f"c{number}") for number in range(3)]
    for number, catalog in enumerate(catalogs):
        catalog.create_namespace(f"n{number}")
    catalogs[0].close()
    assert [catalog.list_namespaces() for catalog in catalogs[1:]] == [[("n1",)], [("n2",)]]


def append_elsewhere(table: Table) -> None:
    """Append to a table in another process."""
    table.append(rows((2, "there")))
    table.catalog.close()


def test_a_pickled_table_works_in_another_process(opened: Open, tmp_path: Path) -> None:
    catalog = opened(f"sqlite://{tmp_path}/s.db")
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", SCHEMA)
    table.append(rows((1, "here")))
    process = multiprocessing.get_context("spawn").Process(target=append_elsewhere, args=(table,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert content(table.refresh()) == [(1, "here"), (2, "there")]


def test_a_table_in_memory_is_not_pickled(opened: Open) -> None:
    catalog = opened("memory:pickled")
    catalog.create_namespace("db")
    with pytest.raises(InputError, match="memory: store"):
        pickle.dumps(catalog.create_table("db.t", SCHEMA))
