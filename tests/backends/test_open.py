"""Opening backends by the scheme of a store URI, and what only the memory store does."""

from __future__ import annotations

import pytest

from polaris_spark import backends
from polaris_spark.backends import known_schemes, open_backend
from polaris_spark.backends.base import ObjectKey, ObjectRow, Split
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.errors import MissingLibraryError, StateError, StoreURIError


def test_the_built_in_backends_open_without_installed_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_installed", dict)
    assert isinstance(open_backend("memory:open"), MemoryBackend)
    assert {"memory", "sqlite"} <= set(known_schemes())


def test_a_built_in_backend_opens_without_looking_for_outside_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def searched() -> None:
        pytest.fail("the entry points of all packages were read")

    monkeypatch.setattr(backends, "_installed", searched)
    assert isinstance(open_backend("memory:alone"), MemoryBackend)


def test_an_unknown_scheme_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(StoreURIError, match="did you mean 'sqlite'"):
        open_backend("sqllite:///tmp/store.db")


def test_a_missing_driver_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends.BUILT_IN, "mongodb", "no_such_driver_library")
    monkeypatch.setattr(backends, "_installed", dict)
    with pytest.raises(MissingLibraryError, match=r"no_such_driver_library.*polaris_spark\[mongodb\]"):
        open_backend("mongodb://localhost/store")


def test_a_memory_store_has_no_options() -> None:
    with pytest.raises(StoreURIError, match="no option 'synchronous'"):
        open_backend("memory:?synchronous=full")


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
