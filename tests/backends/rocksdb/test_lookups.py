"""Which rows the backend reads with an iterator, and which with a lookup of many keys."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from rocksdict import Rdict

from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow
from polaris_spark.backends.rocksdb import lookups

_STORED = range(0, 6_000, 2)


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the keys that were looked up."""
    asked: list[bytes] = []
    look_up = lookups._looked_up

    def noted(sought: Sequence[bytes], database: Rdict) -> list[bytes | None]:
        asked.extend(sought)
        return look_up(sought, database)

    monkeypatch.setattr(lookups, "_looked_up", noted)
    return asked


def _read(backend: Backend, ids: Sequence[int]) -> list[int]:
    return sorted(key.id for key in backend.read_objects("realm", [ObjectKey(id) for id in ids]))


def test_rows_with_near_keys_are_read_by_an_iterator(backend: Backend, looked_up: list[bytes]) -> None:
    backend.write_objects("realm", [ObjectRow(id, 0, b"x") for id in _STORED])
    runs = [id for first in range(0, 3_000, 50) for id in _STORED[first : first + 10]]
    assert _read(backend, _STORED) == [*_STORED]
    assert _read(backend, runs) == runs
    assert looked_up == []


def test_rows_with_distant_keys_are_looked_up(backend: Backend, looked_up: list[bytes]) -> None:
    backend.write_objects("realm", [ObjectRow(id, 0, b"x") for id in _STORED])
    apart = [*_STORED[::10]]
    assert _read(backend, apart) == apart
    assert 0.9 * len(apart) < len(looked_up) < len(apart)


def test_deleted_rows_between_two_ranges_are_not_stepped_over(
    backend: Backend, looked_up: list[bytes]
) -> None:
    backend.write_objects("realm", [ObjectRow(id, 0, b"x") for id in _STORED])
    backend.delete_objects("realm", [ObjectKey(id) for id in _STORED[20:-20]])
    left = [*_STORED[:20], *_STORED[-20:]]
    assert _read(backend, left) == left
    assert looked_up == []
    assert _read(backend, [*left[:20], _STORED[20], *left[20:]]) == left
    assert len(looked_up) == 1
