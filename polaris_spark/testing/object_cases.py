"""Test cases of the storage contract for objects: rows that are written once and read in batches."""

from __future__ import annotations

import os

import pytest

from polaris_spark.backends.base import MAX_ROW_BYTES, Backend, ObjectKey, ObjectRow
from polaris_spark.errors import ObjectTooLargeError
from polaris_spark.testing.stores import MAX_ID, MAX_PART, StoreCases


class ObjectCases(StoreCases):
    """Test cases for the rows of the table `objects`."""

    def test_a_row_never_written_is_absent(self, backend: Backend) -> None:
        assert backend.read_objects("realm", [ObjectKey(1), ObjectKey(2, 3)]) == {}
        assert backend.read_objects("realm", []) == {}

    def test_an_empty_value_is_not_an_absent_one(self, backend: Backend) -> None:
        backend.write_objects("realm", [ObjectRow(1, 0, b"")])
        assert backend.read_objects("realm", [ObjectKey(1), ObjectKey(2)]) == {ObjectKey(1): b""}

    def test_writing_no_rows_is_no_error(self, backend: Backend) -> None:
        backend.write_objects("realm", [])
        backend.delete_objects("realm", [])

    def test_writing_the_same_rows_again_changes_nothing(self, backend: Backend) -> None:
        written = [ObjectRow(1, 0, b"a"), ObjectRow(1, 1, b"b"), ObjectRow(2, 0, b"c")]
        backend.write_objects("realm", written)
        backend.write_objects("realm", written)
        backend.write_objects("realm", written[1:])
        found = backend.read_objects("realm", [ObjectKey(r.id, r.part) for r in written])
        assert found == {ObjectKey(r.id, r.part): r.value for r in written}

    def test_the_smallest_and_largest_ids_and_parts_work(self, backend: Backend) -> None:
        keys = [ObjectKey(id, part) for id in (0, 1, 2**32, MAX_ID) for part in (0, 1, 300, MAX_PART)]
        backend.write_objects("realm", [ObjectRow(*key, b"%d" % i) for i, key in enumerate(keys)])
        assert backend.read_objects("realm", keys) == {key: b"%d" % i for i, key in enumerate(keys)}

    def test_large_batches_work(self, backend: Backend) -> None:
        keys = [ObjectKey(id * 7, id % 3) for id in range(2_500)]
        backend.write_objects("realm", [ObjectRow(*key, b"%d" % key.id) for key in keys])
        asked = [*keys, *(ObjectKey(id * 7 + 1) for id in range(500))]
        assert backend.read_objects("realm", asked) == {key: b"%d" % key.id for key in keys}
        backend.delete_objects("realm", keys[1:])
        assert backend.read_objects("realm", asked) == {keys[0]: b"0"}

    def test_a_key_asked_for_twice_is_found(self, backend: Backend) -> None:
        backend.write_objects("realm", [ObjectRow(1, 0, b"a"), ObjectRow(2, 0, b"b")])
        found = backend.read_objects("realm", [ObjectKey(1), ObjectKey(1), ObjectKey(2)])
        assert found == {ObjectKey(1): b"a", ObjectKey(2): b"b"}

    def test_keys_and_rows_that_are_named_twice_count_once(self, backend: Backend) -> None:
        keys = {ObjectKey(1), ObjectKey(2)}
        backend.write_objects("realm", [ObjectRow(id, 0, b"%d" % id) for id in (1, 2, 1)])
        assert backend.read_objects("realm", keys) == {key: b"%d" % key.id for key in keys}
        backend.delete_objects("realm", [*keys, *keys])
        assert backend.read_objects("realm", keys) == {}

    def test_all_bytes_come_back(self, backend: Backend) -> None:
        value = bytes(range(256)) * 5
        backend.write_objects("realm", [ObjectRow(1, 0, value)])
        found = backend.read_objects("realm", [ObjectKey(1)])[ObjectKey(1)]
        assert (type(found), found) == (bytes, value)

    def test_deleted_rows_are_absent_and_missing_ones_no_error(self, backend: Backend) -> None:
        backend.write_objects("realm", [ObjectRow(1, 0, b"a"), ObjectRow(1, 1, b"b")])
        for _ in range(2):
            backend.delete_objects("realm", [ObjectKey(1, 1), ObjectKey(9)])
        assert backend.read_objects("realm", [ObjectKey(1), ObjectKey(1, 1)]) == {ObjectKey(1): b"a"}
        backend.write_objects("realm", [ObjectRow(1, 1, b"b")])
        assert backend.read_objects("realm", [ObjectKey(1, 1)]) == {ObjectKey(1, 1): b"b"}

    def test_rows_of_the_size_limit_work_and_larger_ones_are_refused(self, backend: Backend) -> None:
        largest = os.urandom(MAX_ROW_BYTES)
        backend.write_objects("realm", [ObjectRow(id, 0, largest) for id in range(5)])
        found = backend.read_objects("realm", [ObjectKey(id) for id in range(5)])
        assert found == {ObjectKey(id): largest for id in range(5)}
        with pytest.raises(ObjectTooLargeError):
            backend.write_objects("realm", [ObjectRow(7, 0, b"small"), ObjectRow(8, 0, largest + b"x")])
        assert backend.read_objects("realm", [ObjectKey(7), ObjectKey(8)]) == {}

    def test_small_and_large_rows_in_one_batch_come_back_whole(self, backend: Backend) -> None:
        sizes = (0, 1, 100, 8_000, 70_000, MAX_ROW_BYTES)
        random = os.urandom(MAX_ROW_BYTES)
        written = [ObjectRow(id, id % 2, random[: sizes[id % len(sizes)]]) for id in range(90)]
        backend.write_objects("realm", written)
        keys = [ObjectKey(each.id, each.part) for each in written]
        found = backend.read_objects("realm", keys)
        assert found == {key: each.value for key, each in zip(keys, written, strict=True)}
        backend.delete_objects("realm", keys)
        assert backend.read_objects("realm", keys) == {}

    def test_deleting_many_rows_that_are_not_there_is_no_error(self, backend: Backend) -> None:
        backend.write_objects("realm", [ObjectRow(5, 0, b"x")])
        backend.delete_objects("realm", [ObjectKey(id) for id in range(1_200) if id != 5])
        assert backend.read_objects("realm", [ObjectKey(5)]) == {ObjectKey(5): b"x"}
