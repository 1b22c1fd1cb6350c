"""Lookups of many rows in stores of files. The backend chooses how to read by the gaps between ids. All existing rows
are returned."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow

_EVEN = range(0, 3_000, 2)
_TOGETHER = range(10_000, 12_000)
_LAST = 2**63 - 1
_STORED = {*_EVEN, *_TOGETHER, *range(_LAST - 20, _LAST)}


@pytest.fixture(scope="module", params=["sqlite", "rocksdb"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    backend = open_backend(f"{request.param}://{tmp_path_factory.mktemp('lookups')}/store")
    backend.setup()
    for realm in ("before", "realm", "realms"):
        backend.write_objects(realm, [ObjectRow(id, 0, _value(realm, id)) for id in sorted(_STORED)])
    backend.write_objects("realm", [ObjectRow(id, 1, b"part 1 of %d" % id) for id in _TOGETHER[::3]])
    yield backend
    backend.close()


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(_EVEN, id="every one in order"),
        pytest.param(_TOGETHER, id="ids that follow one another"),
        pytest.param(_TOGETHER[::-1], id="backwards"),
        pytest.param(random.Random(7).sample(_TOGETHER, 700), id="shuffled"),
        pytest.param([*_TOGETHER[:600], *_TOGETHER[700:720], *_TOGETHER[1_000:]], id="ranges"),
        pytest.param([id for id in _TOGETHER if id % 4], id="more ranges than one statement takes"),
        pytest.param(range(1_000), id="every other one missing"),
        pytest.param(range(20_000, 20_600), id="none there"),
        pytest.param([*_EVEN[:20], 41, *_EVEN[21:40]], id="one missing among others"),
        pytest.param(range(11_900, 12_100), id="the end missing"),
        pytest.param(range(_LAST - 20, _LAST + 1), id="up to the last id that there can be"),
        pytest.param([*_TOGETHER[:100], *_EVEN[::20]], id="together, then apart"),
        pytest.param([*_EVEN[::20], *_TOGETHER[:100]], id="apart, then together"),
        pytest.param([*_TOGETHER[:10], *_TOGETHER[:10], *_EVEN[:10]] * 2, id="asked for twice"),
    ],
)
def test_exactly_the_rows_that_are_there_are_read(backend: Backend, ids: Iterable[int]) -> None:
    found = backend.read_objects("realm", [ObjectKey(id) for id in ids])
    assert found == {ObjectKey(id): _value("realm", id) for id in ids if id in _STORED}


def test_further_parts_are_read_together_with_first_parts(backend: Backend) -> None:
    keys = [ObjectKey(id, part) for id in _TOGETHER[:300] for part in (0, 1)]
    found = backend.read_objects("realm", keys)
    assert {key for key in found if key.part} == {ObjectKey(id, 1) for id in _TOGETHER[:300:3]}
    assert all(value == b"part 1 of %d" % key.id for key, value in found.items() if key.part)
    assert sum(not key.part for key in found) == 300


def test_keys_that_are_found_are_those_of_the_store(backend: Backend) -> None:
    assert {type(key) for key in backend.read_objects("realm", [ObjectKey(id) for id in _EVEN])} == {
        ObjectKey
    }


def _value(realm: str, id: int) -> bytes:
    return f"{realm} {id}".encode()
