"""Scans over deleted rows, and drops of realms, on a server that reads only few deleted rows in one request."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow
from polaris_spark.clock import EPOCH_MS, SystemClock
from polaris_spark.errors import TryAgainError
from polaris_spark.ids import IdParts, pack
from polaris_spark.maintenance.realm_purge import Purge
from polaris_spark.testing.stores import row
from polaris_spark.testing.waiting import until_it_works
from tests.servers.cassandra import Cassandra
from tests.stores import start

MOST = 1_000
"""Deleted rows that one request reads past; 100,000 by default."""

_numbers = count(1)


class Strict(Cassandra):
    """A node that fails a read after few deleted rows."""

    def __init__(self) -> None:
        super().__init__(
            {"tombstone_warn_threshold": str(MOST // 2), "tombstone_failure_threshold": str(MOST)}
        )


@pytest.fixture(scope="module")
def strict() -> Iterator[Strict]:
    with start(Strict) as server:
        yield server


@pytest.fixture
def uri(strict: Strict) -> str:
    return strict.uri(f"test_{next(_numbers)}")


def partition(number: int, rows: int) -> list[ObjectRow]:
    """Rows that one process made within the same four seconds."""
    ms = EPOCH_MS + 4_096 * (number + 1)
    return [ObjectRow(pack(IdParts(ms + i // 1_000, 77, i % 1_000)), 0, b"x") for i in range(rows)]


def delete(backend: Backend, realm: str, rows: list[ObjectRow]) -> None:
    backend.delete_objects(realm, [ObjectKey(each.id, each.part) for each in rows])


def scanned(backend: Backend, realms: list[str] | None) -> list[tuple[str, int]]:
    batches = [batch for split in backend.splits("objects", realms, 1) for batch in backend.scan(split)]
    return sorted(
        pair
        for batch in batches
        for pair in zip(batch.column("realm").to_pylist(), batch.column("id").to_pylist(), strict=True)
    )


def test_a_realm_of_many_rows_is_purged(backend: Backend) -> None:
    instance = "5c3f0a12b4d6e000"
    for number in range(20):
        backend.write_objects(instance, partition(number, MOST // 5))
    backend.write_objects("other", kept := partition(0, 300))
    backend.insert_reference(instance, "name", row())
    purged = Purge(backend, SystemClock()).instance(instance)
    assert (purged.references, purged.objects) == (1, -1)
    assert scanned(backend, None) == [("other", each.id) for each in kept]


def test_a_realm_is_dropped_whose_rows_a_sweep_deleted(backend: Backend) -> None:
    for number in range(20):
        backend.write_objects("realm", rows := partition(number, MOST // 5))
        delete(backend, "realm", rows[1:])
    assert len(scanned(backend, ["realm"])) == 20
    assert backend.drop_realm("realm")
    assert scanned(backend, None) == []


def test_a_scan_finds_each_remaining_row_once_after_sweeps(backend: Backend) -> None:
    """The remaining rows fill several pages, so some of the pages that fail are not the first."""
    left = []
    for number in range(60):
        backend.write_objects("realm", rows := partition(number, MOST // 4))
        if number % 4:
            delete(backend, "realm", rows)
        else:
            left += [("realm", each.id) for each in rows]
    backend.write_objects("other", partition(0, 1))
    assert scanned(backend, ["realm"]) == sorted(left)
    assert scanned(backend, None) == sorted([*left, ("other", partition(0, 1)[0].id)])


def test_a_partition_of_too_many_deleted_rows_is_scanned_and_dropped(backend: Backend) -> None:
    """Some rows remain, so pages fail in the middle of the partition. Rows of other realms are around it."""
    backend.write_objects("realm", rows := partition(0, 5 * MOST))
    left = [rows[500], *rows[MOST : MOST + 300], rows[-1]]
    delete(backend, "realm", sorted({*rows} - {*left}))
    for number in range(1, 5):
        backend.write_objects("realm", more := partition(number, 10))
        left += more
    backend.write_objects("other", partition(0, 1))
    wanted = [("realm", each.id) for each in left]
    assert scanned(backend, ["realm"]) == sorted(wanted)
    assert scanned(backend, None) == sorted([*wanted, ("other", partition(0, 1)[0].id)])
    assert backend.drop_realm("realm")
    assert scanned(backend, None) == [("other", partition(0, 1)[0].id)]


def test_partitions_of_nothing_but_too_many_deleted_rows_are_passed(backend: Backend) -> None:
    for number in range(2):
        backend.write_objects("realm", rows := partition(number, 2 * MOST))
        delete(backend, "realm", rows)
    backend.write_objects("realm", kept := partition(2, 1))
    assert scanned(backend, ["realm"]) == [("realm", kept[0].id)]
    assert backend.drop_realm("realm")
    assert scanned(backend, None) == []


def test_an_object_of_too_many_deleted_parts_is_reported(uri: str, backend: Backend) -> None:
    rows = [ObjectRow(1, part, b"x") for part in range(MOST + 1)]
    backend.write_objects("realm", rows)
    delete(backend, "realm", rows)
    hasty = open_backend(f"{uri}&timeout=2s")
    until_it_works(lambda: hasty.read_reference("realm", "name"))
    with pytest.raises(TryAgainError, match="TOO_MANY_TOMBSTONES"):
        scanned(hasty, ["realm"])
    hasty.close()
