"""Opening backends by the scheme of a store URI, and behavior of the memory store."""

from __future__ import annotations

import os
import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from polaris_spark import databases
from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey, ObjectRow, Split
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.databases import BUILT_IN, Database, known_schemes
from polaris_spark.errors import MissingLibraryError, StateError, StoreURIError
from polaris_spark.store_uris import StoreURI
from tests.stores import DATABASES

PYPROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text()
LAKE = Database("lake_backend", "path", locating=("cluster",))
EXTRAS = sorted({database.extra for database in BUILT_IN.values() if database.extra})


def test_the_built_in_backends_open_without_installed_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "_installed", dict)
    assert isinstance(open_backend("memory:open"), MemoryBackend)
    assert {"memory", "sqlite"} <= set(known_schemes())


def test_a_built_in_backend_opens_without_looking_for_outside_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def searched() -> None:
        pytest.fail("the entry points of all packages were read")

    monkeypatch.setattr(databases, "_installed", searched)
    assert isinstance(open_backend("memory:alone"), MemoryBackend)


def test_an_unknown_scheme_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(StoreURIError, match="did you mean 'sqlite'"):
        open_backend("sqllite:///tmp/store.db")


def test_a_missing_driver_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, "mongodb", Database("no_such_driver_library", extra="mongodb"))
    monkeypatch.setattr(databases, "_installed", dict)
    with pytest.raises(MissingLibraryError, match=r"no_such_driver_library.*polaris_spark\[mongodb\]"):
        open_backend("mongodb://localhost/store")


def test_the_record_of_another_package_decides_how_a_uri_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    record = EntryPoint("lake", f"{__name__}:LAKE", databases.GROUP)
    other = EntryPoint("pond", f"{__name__}:EXTRAS", databases.GROUP)
    missing = EntryPoint("sea", "no_such_module:SEA", databases.GROUP)
    monkeypatch.setattr(
        databases, "_installed", lambda: {each.name: each for each in (record, other, missing)}
    )
    assert StoreURI.parse("lake:a/b").path == os.path.abspath("a/b")
    with_option = StoreURI.parse("lake:///a").located({"cluster": "x", "timeout": "1s"})
    assert with_option.key == "lake::/a:cluster=x"
    with pytest.raises(StoreURIError, match=r"EXTRAS.*pond.*is not a polaris_spark.databases.Database"):
        StoreURI.parse("pond:///a")
    with pytest.raises(MissingLibraryError, match=r"no_such_module.*sea"):
        StoreURI.parse("sea:///a")


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_driver_is_an_extra_and_installed_for_tests(extra: str) -> None:
    (extras,) = re.findall(r"\n\[project\.optional-dependencies\]\n(.*?)\n\n\[", PYPROJECT, re.DOTALL)
    (tested,) = re.findall(r'^    "polaris-spark\[(.*)\]"', extras, re.MULTILINE)
    assert re.search(rf"^{extra} = ", extras, re.MULTILINE)
    assert extra in tested.split(",")


def test_each_database_has_a_store_for_tests() -> None:
    """Each backend is tested with one of its schemes. The others are aliases, or have their own tests."""
    assert {BUILT_IN[scheme] for scheme in DATABASES} == set(BUILT_IN.values())


def test_a_memory_store_is_shared_by_name_and_outlives_its_backends() -> None:
    first = open_backend("memory:shared")
    first.write_objects("realm", [ObjectRow(1, 0, b"x")])
    first.close()
    assert open_backend("memory:shared").read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"x"}
    assert open_backend("memory:other").read_objects("realm", [ObjectKey(1)]) == {}


def test_a_memory_store_refuses_a_split_of_another_process() -> None:
    foreign = Split("objects", ("shared", 1, None, None, None))
    with pytest.raises(StateError, match="exists only in process 1"):
        list(open_backend("memory:shared").scan(foreign))
