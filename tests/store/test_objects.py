"""Objects of a realm: reads use the cache and few requests, and a missing object is an error."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count

import msgspec
import pytest

from polaris_spark.backends.base import MAX_ROW_BYTES, ObjectKey, ObjectRow
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.errors import CorruptionError, NewerFormatError
from polaris_spark.objects import Strong, object_type
from polaris_spark.store.cache import ObjectCache
from polaris_spark.store.objects import ObjectStore
from tests.test_objects import raw_row

_numbers = count()


@object_type("test-leaf", revision=2)
class Leaf(msgspec.Struct, frozen=True, array_like=True):
    next: Strong
    blob: bytes = b""


@object_type("test-other", revision=1)
class Other(msgspec.Struct, frozen=True, array_like=True):
    text: str


@object_type("test-appended", revision=2, appended=(("more",),))
class Appended(msgspec.Struct, frozen=True, array_like=True):
    text: str
    more: tuple[str, ...] = ()


class Counting(MemoryBackend):
    """A memory store that records the keys of each read."""

    def __init__(self) -> None:
        super().__init__(f"objects-{next(_numbers)}")
        self.reads: list[list[ObjectKey]] = []

    def read_objects(self, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        self.reads.append(list(keys))
        return super().read_objects(realm, keys)


@pytest.fixture
def backend() -> Counting:
    return Counting()


@pytest.fixture
def store(backend: Counting) -> ObjectStore:
    return ObjectStore(backend, "realm", ObjectCache(), store_key="memory")


def fresh(backend: Counting, revisions: dict[str, int] | None = None) -> ObjectStore:
    """The same realm with an empty cache, as in another process."""
    return ObjectStore(backend, "realm", ObjectCache(), store_key="memory", revisions=revisions)


def test_written_objects_are_read_from_the_cache(store: ObjectStore, backend: Counting) -> None:
    leaf = Leaf(5, b"x")
    store.write([(1, leaf)])
    assert store.get(1, Leaf) is leaf
    assert store.read([1])[1].header.strong == (5,)
    assert backend.reads == []


def test_an_object_is_read_once(store: ObjectStore, backend: Counting) -> None:
    store.write([(1, Leaf(0, b"x"))])
    other = fresh(backend)
    assert other.get(1, Leaf) == Leaf(0, b"x")
    assert other.get(1, Leaf) is other.get(1, Leaf)
    assert len(backend.reads) == 1


def test_many_objects_take_one_read_for_those_not_cached_and_one_for_their_parts(
    store: ObjectStore, backend: Counting
) -> None:
    leaves = {id: Leaf(0, bytes([id]) * (MAX_ROW_BYTES * 2 if id % 3 == 0 else 10)) for id in range(1, 10)}
    store.write(list(leaves.items()))
    other = fresh(backend)
    other.get(1, Leaf)
    assert other.get_many(list(leaves), Leaf) == leaves
    first, parts = backend.reads[1:]
    assert {key.id for key in first} == set(range(2, 10))
    assert {(key.id, key.part) for key in parts} == {(id, part) for id in (3, 6, 9) for part in (1, 2)}


def test_nothing_is_remembered_before_it_is_written(store: ObjectStore, backend: Counting) -> None:
    objects = [(1, Leaf(0)), (2, Leaf(1, b"x" * MAX_ROW_BYTES))]
    rows = store.rows(objects)
    assert [(row.id, row.part) for row in rows] == [(1, 0), (2, 0), (2, 1)]
    with pytest.raises(CorruptionError):
        store.get(1, Leaf)
    backend.write_objects("realm", rows)
    store.remember(rows)
    assert store.get_many([1, 2], Leaf) == dict(objects)
    assert len(backend.reads) == 1


def test_a_missing_object_is_named_with_its_realm(store: ObjectStore) -> None:
    with pytest.raises(CorruptionError, match="realm/77 is missing"):
        store.get(77, Leaf)


def test_a_missing_part_is_named(store: ObjectStore, backend: Counting) -> None:
    store.write([(1, Leaf(0, b"x" * 2 * MAX_ROW_BYTES))])
    backend.delete_objects("realm", [ObjectKey(1, 2)])
    with pytest.raises(CorruptionError, match="part 2 of object realm/1 is missing"):
        fresh(backend).get(1, Leaf)


def test_an_object_of_another_type_is_corrupt(store: ObjectStore, backend: Counting) -> None:
    store.write([(1, Other("x"))])
    for reader in (store, fresh(backend)):
        with pytest.raises(CorruptionError, match="realm/1 has type 'test-other' instead of 'test-leaf'"):
            reader.get(1, Leaf)
        with pytest.raises(CorruptionError):
            reader.get_many([1], Leaf)
        with pytest.raises(CorruptionError):
            reader.get_for_rewrite(1, Leaf)


def test_an_object_of_a_type_not_installed_can_be_read_with_its_pointers(
    store: ObjectStore, backend: Counting
) -> None:
    backend.write_objects("realm", [ObjectRow(1, 0, raw_row("plugin-thing", 4, [8], [9], {}))])
    assert store.read([1])[1].header.strong == (8,)
    with pytest.raises(CorruptionError, match="'plugin-thing', which is not installed here"):
        store.get(1, Leaf)


def test_what_a_newer_release_wrote_is_read_but_not_rewritten(store: ObjectStore, backend: Counting) -> None:
    backend.write_objects("realm", [ObjectRow(1, 0, raw_row("test-leaf", 3, [], [], [0, b"x", "new field"]))])
    assert store.get(1, Leaf) == Leaf(0, b"x")
    with pytest.raises(NewerFormatError, match="realm/1"):
        store.get_for_rewrite(1, Leaf)


def test_what_this_release_wrote_can_be_rewritten(store: ObjectStore) -> None:
    store.write([(1, Leaf(0))])
    assert store.get_for_rewrite(1, Leaf) == Leaf(0)


def test_a_revision_that_the_realm_does_not_allow_yet_is_not_written(backend: Counting) -> None:
    store = fresh(backend, {"test-leaf": 1, "test-other": 1})
    with pytest.raises(NewerFormatError, match="upgrade"):
        store.write([(1, Other("x")), (2, Leaf(0))])
    assert backend.read_objects("realm", [ObjectKey(1), ObjectKey(2)]) == {}
    store.write([(1, Other("x"))])
    fresh(backend, {"test-leaf": 2}).write([(2, Leaf(0))])


def test_an_object_without_the_newest_fields_is_written_as_the_revision_before(backend: Counting) -> None:
    store = fresh(backend, {"test-appended": 1})
    store.write([(1, Appended("x"))])
    assert store.read([1])[1].header.revision == 1
    assert fresh(backend).get_for_rewrite(1, Appended) == Appended("x")
    with pytest.raises(NewerFormatError, match="polaris-spark upgrade"):
        store.write([(2, Appended("x", ("new",)))])
    upgraded = fresh(backend, {"test-appended": 2})
    upgraded.write([(2, Appended("x", ("new",))), (3, Appended("y"))])
    assert [fresh(backend).read([id])[id].header.revision for id in (2, 3)] == [2, 1]


@pytest.mark.parametrize("rewrite_of_cached", [False, True])
def test_a_revision_found_in_a_row_is_allowed_from_then_on(
    backend: Counting, rewrite_of_cached: bool
) -> None:
    cache = ObjectCache()
    upgraded = ObjectStore(backend, "realm", cache, store_key="memory")
    upgraded.write([(1, Appended("x", ("more",)))])
    kept = cache if rewrite_of_cached else ObjectCache()
    early = ObjectStore(backend, "realm", kept, store_key="memory", revisions={"test-appended": 1})
    with pytest.raises(NewerFormatError):
        early.write([(2, Appended("y", ("more",)))])
    assert not early.allows(Appended)
    assert early.get_for_rewrite(1, Appended) == Appended("x", ("more",))
    assert early.allows(Appended)
    early.write([(2, Appended("y", ("more",)))])


def test_a_revision_that_this_release_does_not_know_is_not_allowed_by_a_row(backend: Counting) -> None:
    backend.write_objects("realm", [ObjectRow(1, 0, raw_row("test-appended", 3, [], [], ["x", [], "new"]))])
    early = ObjectStore(backend, "realm", ObjectCache(), store_key="memory", revisions={"test-appended": 1})
    early.get(1, Appended)
    with pytest.raises(NewerFormatError):
        early.write([(2, Appended("y", ("more",)))])


def test_realms_and_stores_do_not_share_cached_objects(backend: Counting) -> None:
    cache = ObjectCache()
    ObjectStore(backend, "a", cache, store_key="one").write([(1, Leaf(0))])
    for realm, key in (("b", "one"), ("a", "two")):
        with_cache = ObjectStore(Counting(), realm, cache, store_key=key)
        with pytest.raises(CorruptionError, match="missing"):
            with_cache.get(1, Leaf)


def test_prefetching_reads_what_is_missing_in_one_batch_and_leaves_a_single_object_to_its_reader(
    store: ObjectStore, backend: Counting
) -> None:
    store.write([(id, Leaf(0, b"x")) for id in range(1, 6)])
    other = fresh(backend)
    other.prefetch([1])
    other.prefetch([])
    assert backend.reads == []
    other.get(1, Leaf)
    other.prefetch([1, 2, 3, 4])
    assert [key.id for key in backend.reads[1]] == [2, 3, 4]
    other.get(3, Leaf)
    assert len(backend.reads) == 2
    with pytest.raises(CorruptionError):
        other.prefetch([5, 7, 8])
