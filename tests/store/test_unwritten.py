"""Objects that only this process has are read in the same way as stored ones."""

from __future__ import annotations

import pytest

from polaris_spark.backends.base import ObjectKey
from polaris_spark.errors import CorruptionError, NewerFormatError, WrongTypeError
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store.unwritten import REWRITE_MS, UnwrittenObjects

from .test_objects import Appended, Counting, Leaf, Other, backend, fresh, store

__all__ = ["backend", "store"]


@pytest.fixture
def unwritten(store: ObjectStore, backend: Counting) -> UnwrittenObjects:
    """The objects 1 and 2 are stored, and 3 and 4 are not."""
    store.write([(1, Leaf(0)), (2, Leaf(0, b"x"))])
    found = UnwrittenObjects(fresh(backend))
    found.keep([(3, Leaf(1)), (4, Leaf(3, b"y"))])
    return found


def test_stored_and_own_objects_are_read_together(unwritten: UnwrittenObjects, backend: Counting) -> None:
    assert unwritten.get_many([1, 3, 4, 2], Leaf) == {
        1: Leaf(0),
        2: Leaf(0, b"x"),
        3: Leaf(1),
        4: Leaf(3, b"y"),
    }
    assert unwritten.get(3, Leaf) == unwritten.get_for_rewrite(3, Leaf) == Leaf(1)
    assert len(backend.reads) == 1
    assert [unwritten.is_own(id) for id in (1, 2, 3, 4)] == [False, False, True, True]


def test_own_objects_have_the_headers_with_which_they_are_written(unwritten: UnwrittenObjects) -> None:
    before = unwritten.read([1, 3, 4])
    unwritten.write_own(0)
    assert fresh(unwritten.backend).read([1, 3, 4]) == before  # type: ignore[arg-type]  # a Counting


def test_own_objects_are_not_stored_until_they_are_written(
    unwritten: UnwrittenObjects, backend: Counting
) -> None:
    unwritten.prefetch([1, 2, 3, 4])
    assert [{key.id for key in read} for read in backend.reads] == [{1, 2}]
    with pytest.raises(CorruptionError, match="realm/3 is missing"):
        fresh(backend).get(3, Leaf)
    unwritten.write_own(0)
    assert fresh(backend).get(3, Leaf) == Leaf(1)


def test_own_objects_that_a_sweep_deleted_are_written_again(
    unwritten: UnwrittenObjects, backend: Counting
) -> None:
    unwritten.write_own(0)
    unwritten.backend.delete_objects(unwritten.realm, [ObjectKey(3), ObjectKey(4)])
    unwritten.keep([(5, Leaf(4))])
    unwritten.write_own(REWRITE_MS - 1)
    assert fresh(backend).get(5, Leaf) == Leaf(4)
    with pytest.raises(CorruptionError, match="realm/3 is missing"):
        fresh(backend).get(3, Leaf)
    unwritten.write_own(REWRITE_MS)
    assert fresh(backend).get_many([3, 4], Leaf) == {3: Leaf(1), 4: Leaf(3, b"y")}


def test_an_own_object_of_another_type_is_an_error(unwritten: UnwrittenObjects) -> None:
    for read in (unwritten.get, unwritten.get_for_rewrite):
        with pytest.raises(WrongTypeError, match="has type 'test-leaf' instead of 'test-other'"):
            read(3, Other)


def test_objects_that_the_realm_does_not_allow_are_refused(backend: Counting) -> None:
    unwritten = UnwrittenObjects(fresh(backend, {"test-appended": 1}))
    unwritten.keep([(5, Appended("a"))])
    with pytest.raises(NewerFormatError):
        unwritten.keep([(6, Appended("a", ("b",)))])
    assert not unwritten.is_own(6)
