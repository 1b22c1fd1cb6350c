"""Batches: their limits, items that the service leaves unprocessed, and the keys of rows."""

from __future__ import annotations

from collections import Counter

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import MAX_NAME_BYTES, MAX_ROW_BYTES, Backend, ObjectKey, ObjectRow, Swapped
from polaris_spark.backends.dynamodb import items
from polaris_spark.errors import OutcomeUnknownError, TryAgainError
from polaris_spark.testing.processes import rows
from polaris_spark.testing.stores import row
from tests.backends.dynamodb.gateway import Answer, Body, Forward, Gateway

_ROWS = [ObjectRow((id << 22) + id % 3, id % 2, b"%d" % id) for id in range(230)]
_KEYS = [ObjectKey(row.id, row.part) for row in _ROWS]
_FOUND = {ObjectKey(row.id, row.part): row.value for row in _ROWS}


def test_batches_respect_the_limits_and_contain_no_key_twice(gateway: Gateway, far: Backend) -> None:
    far.write_objects("realm", [*_ROWS, *_ROWS[:40]])
    assert far.read_objects("realm", [*_KEYS, *_KEYS[:40]]) == _FOUND
    far.delete_objects("realm", [*_KEYS, *_KEYS[:40]])
    assert far.read_objects("realm", _KEYS) == {}
    sizes = Counter(
        (operation, len(part["Keys"] if operation == "BatchGetItem" else part))
        for operation, body in gateway.asked
        for part in body["RequestItems"].values()
    )
    assert sizes == {
        ("BatchWriteItem", 25): 18,
        ("BatchWriteItem", 5): 2,
        ("BatchGetItem", 100): 4,
        ("BatchGetItem", 30): 2,
    }


def test_unprocessed_rows_are_written_and_deleted_after_all(gateway: Gateway, far: Backend) -> None:
    def three_at_a_time(operation: str, body: Body, forward: Forward) -> Answer | None:
        if operation != "BatchWriteItem":
            return None
        ((table, requests),) = body["RequestItems"].items()
        done = forward({"RequestItems": {table: requests[:3]}})
        return done._replace(body={"UnprocessedItems": {table: requests[3:]} if requests[3:] else {}})

    gateway.rule = three_at_a_time
    far.write_objects("realm", _ROWS[:60])
    assert gateway.count("BatchWriteItem") == 9 + 9 + 4
    assert far.read_objects("realm", _KEYS) == dict(list(_FOUND.items())[:60])
    far.delete_objects("realm", _KEYS[:59])
    assert list(far.read_objects("realm", _KEYS)) == [_KEYS[59]]


def test_unprocessed_keys_are_read_after_all(gateway: Gateway, backend: Backend, far: Backend) -> None:
    def seven_at_a_time(operation: str, body: Body, forward: Forward) -> Answer | None:
        if operation != "BatchGetItem":
            return None
        ((table, asked),) = body["RequestItems"].items()
        done = forward({"RequestItems": {table: {**asked, "Keys": asked["Keys"][:7]}}})
        left = asked["Keys"][7:]
        return done._replace(
            body={**done.body, "UnprocessedKeys": {table: {**asked, "Keys": left}} if left else {}}
        )

    backend.write_objects("realm", _ROWS)
    gateway.rule = seven_at_a_time
    assert far.read_objects("realm", _KEYS) == _FOUND
    assert gateway.count("BatchGetItem") == 15 + 15 + 5


def test_batches_of_which_nothing_is_processed_end_in_time(
    gateway: Gateway, far_uri: str, backend: Backend
) -> None:
    def none(operation: str, body: Body, forward: Forward) -> Answer | None:
        asked = body["RequestItems"]
        if operation == "BatchWriteItem":
            return Answer(200, {"UnprocessedItems": asked})
        return Answer(200, {"Responses": {}, "UnprocessedKeys": asked})

    hasty = open_backend(f"{far_uri}&timeout=1500ms")
    gateway.rule = none
    with pytest.raises(OutcomeUnknownError, match="0 of 25 rows were written"):
        hasty.write_objects("realm", _ROWS[:25])
    with pytest.raises(TryAgainError, match="overloaded"):
        hasty.read_objects("realm", _KEYS)
    hasty.close()


def test_the_largest_rows_fit_under_the_longest_names(backend: Backend) -> None:
    realm, name = "ü" * (MAX_NAME_BYTES // 2), "表" * (MAX_NAME_BYTES // 3)
    largest = b"\xff" * MAX_ROW_BYTES
    backend.write_objects(realm, [ObjectRow(id, 2**31 - 1, largest) for id in range(30)])
    for realms in ([realm], None):
        found = rows(backend, backend.splits("objects", realms, 1))
        assert sorted(each[:3] for each in found) == [(realm, id, 2**31 - 1) for id in range(30)]
    keys = [ObjectKey(id, 2**31 - 1) for id in range(30)]
    assert backend.read_objects(realm, keys) == dict.fromkeys(keys, largest)
    first, second = row(largest), row(largest)
    assert backend.insert_reference(realm, name, first) == Swapped()
    assert backend.swap_reference(realm, name, first.version, second) == Swapped()
    assert backend.read_reference(realm, name) == second


@pytest.mark.parametrize("step", [1, 1 << 12, 1 << 22, (1 << 22) + 1, 1_000_003])
def test_rows_of_neighbouring_ids_are_spread_evenly_over_partition_keys(step: int) -> None:
    keys = [ObjectKey((1 << 50) + number * step) for number in range(6_400)]
    parts = [ObjectKey(1 << 50, part) for part in range(6_400)]
    for asked in (keys, parts):
        found = Counter(items.object_key(b"realm", key)["p"]["B"] for key in asked)
        assert len(found) == items.BUCKETS
        assert max(found.values()) < 2 * 6_400 / items.BUCKETS


def test_a_realm_is_read_by_queries_of_its_own_rows(gateway: Gateway, far: Backend) -> None:
    far.write_objects("realm", _ROWS)
    far.write_objects("other", _ROWS)
    gateway.asked.clear()
    assert len(rows(far, far.splits("objects", ["realm"], 4))) == len(_ROWS)
    assert {operation for operation, _ in gateway.asked} == {"Query"}
    assert len(far.splits("objects", None, 7)) == 7
    assert len(far.splits("objects", ["realm"], 8)) == 8
    assert all(body["ConsistentRead"] for _, body in gateway.asked)
