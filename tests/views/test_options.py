"""Options of views: which are refused, and that errors contain no secrets."""

from __future__ import annotations

import pickle
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest
from pyspark import cloudpickle

from polaris_spark.errors import InputError, NotFoundError, RealmStateError, StoreURIError
from polaris_spark.spark import realm_reader, views
from polaris_spark.spark.datasource import PolarisObjects
from polaris_spark.spark.options import LISTED_VARIABLES, StoreLocation, ViewOptions
from polaris_spark.spark.realm_reader import open_for_reading
from polaris_spark.spark.views import VIEWS
from polaris_spark.store_uris import Secret
from tests.views.catalogs import Catalog, reader, rows

NAMES = ", ".join(VIEWS)


def test_every_module_with_a_view_is_listed() -> None:
    modules = [module.name for module in pkgutil.iter_modules(views.__path__)]
    with_view = [
        name for name in modules if hasattr(import_module(f"{views.__name__}.{name}"), "SYSTEM_VIEW")
    ]
    assert sorted(with_view) == sorted(VIEWS)


@pytest.mark.parametrize("view", VIEWS)
def test_every_column_is_documented(view: str) -> None:
    fields = PolarisObjects({"view": view, "store": "sqlite:///x.db"}).schema().fields
    assert all(len(field.metadata["comment"]) > 5 for field in fields)
    assert len({field.name for field in fields}) == len(fields)


def test_an_unknown_view_names_the_choices(shop: Catalog) -> None:
    with pytest.raises(InputError, match=rf"no view 'table'; did you mean 'tables'\? the views are: {NAMES}"):
        rows("table", store=shop.store)
    with pytest.raises(InputError, match=f"'view' is missing; the views are: {NAMES}"):
        PolarisObjects({"store": shop.store})


def test_an_unknown_option_names_the_choices(shop: Catalog) -> None:
    with pytest.raises(
        InputError, match=r"no option 'asof'; did you mean 'as-of'\? the options are: store, .*view"
    ):
        rows("tables", store=shop.store, asof="5")


@pytest.mark.parametrize(
    ("name", "text"),
    [("splits", "0"), ("splits", "many"), ("splits", "100001"), ("splits", "9" * 30), ("content", "maybe")],
)
def test_an_unusable_value_is_refused(shop: Catalog, name: str, text: str) -> None:
    with pytest.raises(InputError, match=f"option '{name}' is '{text}'"):
        rows("objects", store=shop.store, **{name: text})


def test_as_many_splits_as_documented_are_taken() -> None:
    given = {"store": "sqlite:///x.db", "view": "objects"}
    assert ViewOptions.parse({**given, "splits": "100000"}, VIEWS).splits == 100_000


@pytest.mark.parametrize(
    ("name", "text", "owner"),
    [("content", "true", "objects"), ("snapshots", "all", "files")],
)
def test_an_option_of_another_view_is_refused(shop: Catalog, name: str, text: str, owner: str) -> None:
    with pytest.raises(InputError, match=f"'tables' has no option '{name}'; only the view '{owner}' has it"):
        rows("tables", store=shop.store, **{name: text})


def test_an_unknown_option_of_the_store_is_refused(shop: Catalog) -> None:
    with pytest.raises(StoreURIError, match="no option 'colour'"):
        rows("tables", **{"store": shop.store, "store.colour": "red"})


def test_a_store_in_memory_is_refused() -> None:
    with pytest.raises(InputError, match=r"memory: store .* exists only in the process"):
        rows("tables", store="memory:")


def test_a_missing_store_is_refused_and_not_created(tmp_path: Path) -> None:
    path = tmp_path / "missing.db"
    with pytest.raises(StoreURIError, match=r"does not exist on .*; reading does not create a store"):
        rows("tables", store=f"sqlite://{path}")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_holds_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(StoreURIError, match="does not contain a store"):
        rows("tables", store=f"sqlite://{path}")
    assert path.stat().st_size == 0


def test_a_missing_realm_catalog_or_branch_is_named(shop: Catalog) -> None:
    with pytest.raises(RealmStateError, match="no realm 'elsewhere'"):
        rows("tables", store=shop.store, realm="elsewhere")
    with pytest.raises(NotFoundError, match=r"catalog 'shoe' does not exist .* the catalogs are: 'shop'"):
        rows("tables", store=shop.store, catalog="shoe")
    with pytest.raises(NotFoundError, match="catalog 'shop' has no branch 'dev'"):
        shop.read("tables", branch="dev")


def test_another_machine_is_refused(shop: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    found = reader("tables", store=shop.store)
    [partition] = found.partitions()
    monkeypatch.setattr("polaris_spark.spark.realm_reader.machine", lambda: "another")
    with pytest.raises(InputError, match="driver and this executor run on different machines"):
        list(found.read(partition))


def test_a_column_that_does_not_exist_is_refused(shop: Catalog) -> None:
    source = PolarisObjects({"view": "tables", "store": shop.store})
    other = PolarisObjects({"view": "commits", "store": shop.store}).schema()
    with pytest.raises(InputError, match="view 'tables' has no column 'reference'"):
        source.reader(other)


def test_a_password_in_the_uri_is_refused_without_being_shown() -> None:
    with pytest.raises(StoreURIError) as error:
        rows("tables", store="postgresql://me:hunter2@host/db")
    assert "hunter2" not in str(error.value)
    assert "store.password" in str(error.value)


def test_a_password_shows_nowhere_but_travels() -> None:
    given = {"view": "tables", "store": "postgresql://me@host/db", "store.password": "hunter2"}
    source = PolarisObjects(given)
    copy = pickle.loads(cloudpickle.dumps(source))
    for one in (source, copy):
        assert "hunter2" not in repr(vars(one))
    assert dict(copy._options.location.options)["password"].reveal() == "hunter2"


def test_a_password_of_the_environment_is_looked_up_where_the_driver_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STORE_PASSWORD", "hunter2")
    monkeypatch.setenv(LISTED_VARIABLES, "OTHER, STORE_PASSWORD")
    given = {"view": "tables", "store": "postgresql://me@host/db", "store.password": "env:STORE_PASSWORD"}
    location = ViewOptions.parse(given, VIEWS).location.resolved()
    monkeypatch.delenv("STORE_PASSWORD")
    password = dict(location.options)["password"]
    assert isinstance(password, Secret)
    assert password.reveal() == "hunter2"
    assert "hunter2" not in repr(location)


def test_a_store_is_opened_once_in_a_process(shop: Catalog) -> None:
    location = StoreLocation(shop.store)
    assert open_for_reading(location) is open_for_reading(location)
    assert sum(key[1] == location for key in realm_reader._opened) == 1
