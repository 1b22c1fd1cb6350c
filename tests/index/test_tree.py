"""Reading and changing an index."""

from __future__ import annotations

import random
from itertools import islice

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polaris_spark import objects
from polaris_spark.errors import CorruptionError, InputError, ObjectTooLargeError
from polaris_spark.index import Branch, Entry, Index, IndexRoot, IndexSettings, Leaf, check, keys
from polaris_spark.index.compaction import compact
from polaris_spark.objects import object_type
from tests.index.support import FIRST_ID, TINY, Shelf, numbered, walk


@object_type("test-index-holder", revision=1)
class Holder(msgspec.Struct, frozen=True, array_like=True):
    index: IndexRoot


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_an_empty_index_reads_nothing(shelf: Shelf) -> None:
    index = Index(IndexRoot(), shelf.read)
    assert index.get(b"a") is None
    assert index.get_many([b"a", b"b"]) == [None, None]
    assert list(index.range()) == []
    assert index.freeze(0, shelf.new_id) == (IndexRoot(), [])
    assert shelf.batches == []


def test_an_empty_value_differs_from_an_absent_key(shelf: Shelf) -> None:
    root = shelf.root_of({b"a": Entry()})
    assert Index(root, shelf.read).get(b"a") == Entry(0, b"")
    assert Index(root, shelf.read).get(b"b") is None


def test_the_embedded_entry_wins_over_the_tree(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(100)))
    first, second, third = list(numbered(range(3)))
    changed = shelf.changed(root, {first: Entry(1, b"new"), second: None}, quota=10_000)
    assert changed.shard == root.shard
    index = Index(changed, shelf.read)
    assert index.get(first) == Entry(1, b"new")
    assert index.get(second) is None
    assert index.get_many([second, first]) == [None, Entry(1, b"new")]
    assert [key for key, _ in islice(index.range(), 2)] == [first, third]


def test_a_root_survives_encoding_as_a_field_of_another_object(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(100)))
    changed = shelf.changed(
        root, {**numbered(range(3), tag=1), b"v": Entry(0, b"x"), b"w": None}, quota=10_000
    )
    row = objects.encode(Holder(changed))
    assert objects.decode(row, "x").value == Holder(changed)
    pointers = {entry.pointer for entry in numbered(range(3), tag=1).values()}
    assert set(objects.decode_header(row, "x").strong) == {root.shard} | pointers


def test_many_keys_are_read_with_one_batch_for_each_level(shelf: Shelf) -> None:
    entries = numbered(range(2000))
    root = shelf.root_of(entries)
    assert root.height >= 2
    shelf.batches.clear()
    wanted = [*list(entries)[::37], b"missing"]
    assert Index(root, shelf.read).get_many(wanted) == [entries.get(key) for key in wanted]
    assert len(shelf.batches) == root.height + 1
    assert all(len(set(batch)) == len(batch) for batch in shelf.batches)


def test_one_key_reads_one_shard_for_each_level(shelf: Shelf) -> None:
    entries = numbered(range(2000))
    root = shelf.root_of(entries)
    shelf.batches.clear()
    for key in list(entries)[::501]:
        assert Index(root, shelf.read).get(key) == entries[key]
    assert [len(batch) for batch in shelf.batches] == [1] * 4 * (root.height + 1)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_first_entries_of_a_range_read_few_shards(shelf: Shelf, reverse: bool) -> None:
    entries = numbered(range(2000))
    root = shelf.root_of(entries)
    shelf.batches.clear()
    start = list(entries)[1000]
    index = Index(root, shelf.read)
    found = index.range(end=start, reverse=True) if reverse else index.range(start)
    assert next(found)[0] == list(entries)[999 if reverse else 1000]
    assert len(shelf.reads()) == root.height + 1


def test_a_whole_range_is_read_in_growing_batches(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(2000)))
    leaves = {placed.id for placed in walk(root, shelf) if placed.level == 0}
    shelf.batches.clear()
    assert len(list(Index(root, shelf.read).range())) == 2000
    sizes = [len(batch) for batch in shelf.batches if batch[0] in leaves]
    assert sizes[:3] == [1, 2, 4]
    assert len(sizes) < len(leaves) / 2
    assert max(sizes) <= 16
    assert all(len(batch) == 1 for batch in shelf.batches if batch[0] not in leaves)
    assert leaves <= shelf.reads()


def test_a_range_reads_no_leaf_beyond_its_ends(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(2000)))
    branch = [placed for placed in walk(root, shelf) if placed.level == 1][3].shard
    assert isinstance(branch, Branch)
    for start, end, child in zip(branch.separators, branch.separators[1:], branch.children[1:], strict=False):
        leaf = shelf.shard(child)
        assert isinstance(leaf, Leaf)
        shelf.batches.clear()
        found = Index(root, shelf.read).range(start, end)
        assert [key for key, _ in found] == leaf.keys
        assert shelf.reads() & set(branch.children) == {child}


def test_a_range_shows_the_content_of_the_moment_it_was_asked_for(shelf: Shelf) -> None:
    entries = numbered(range(50))
    index = Index(shelf.root_of(entries), shelf.read)
    index.put(b"\x02z", Entry(1))
    found = index.range()
    index.put(b"\x02y", Entry(2))
    index.remove(b"\x02z")
    index.remove(next(iter(entries)))
    assert dict(found) == {**entries, b"\x02z": Entry(1)}


@pytest.mark.parametrize(("start", "end"), [(b"b", b"a"), (b"a", b"a"), (b"", b"")])
def test_a_range_that_ends_before_it_starts_is_empty(shelf: Shelf, start: bytes, end: bytes) -> None:
    index = Index(shelf.root_of({b"": Entry(1), b"a": Entry(1), b"b": Entry(1)}), shelf.read)
    index.put(b"aa", Entry(1))
    assert list(index.range(start, end)) == []
    assert shelf.batches == []


def test_a_range_emptied_by_removals_alone_is_empty(shelf: Shelf) -> None:
    index = Index(shelf.root_of({b"a": Entry(1), b"b": Entry(1), b"c": Entry(1)}), shelf.read)
    index.remove(b"b")
    assert not index.keys(b"b", b"c")
    assert index.keys(b"b", b"d")
    assert index.keys(b"a", b"c")


@given(
    st.lists(st.tuples(st.lists(st.text("a\x00\x01\x02\x03", max_size=3), max_size=3), st.text(max_size=2)))
)
def test_a_listing_shows_exactly_the_direct_entries_of_each_path(names: list[tuple[list[str], str]]) -> None:
    shelf = Shelf()
    made = {keys.entry_key(path, b"t", name): Entry(1) for path, name in names}
    index = Index(shelf.root_of(made), shelf.read)
    for path, _ in names:
        listed = {keys.decode_key(key).name for key, _ in index.range(*keys.children(path))}
        assert listed == {name for other, name in names if other == path}
        below = {keys.decode_key(key)[::2] for key, _ in index.range(*keys.subtree(path))}
        assert below == {(tuple(other), name) for other, name in names if other[: len(path)] == path}


def test_a_key_over_4_kib_is_refused(shelf: Shelf) -> None:
    index = Index(IndexRoot(), shelf.read)
    index.put(b"a" * 4096, Entry(1))
    with pytest.raises(ObjectTooLargeError, match="4097"):
        index.put(b"a" * 4097, Entry(1))
    assert [key for key, _ in index.range()] == [b"a" * 4096]


def test_keys_of_4_kib_make_a_tree(shelf: Shelf) -> None:
    entries = {
        bytes([first]) * length + b"%03d" % first: Entry(FIRST_ID + first)
        for first in range(256)
        for length in (1, 4093)
    }
    entries |= {b"same" * 1000 + b"%05d" % number: Entry(number, b"v") for number in range(40)}
    root = shelf.root_of(entries, IndexSettings())
    assert root.height > 0
    assert shelf.content(root) == entries
    assert list(check(root, shelf.read)) == []
    emptied = shelf.changed(root, dict.fromkeys(list(entries)[::2]), IndexSettings())
    assert list(check(emptied, shelf.read)) == []
    assert shelf.content(emptied) == dict(list(entries.items())[1::2])


def test_rolling_back_restores_content_size_and_the_order_of_changes(shelf: Shelf) -> None:
    index = Index(shelf.root_of(numbered(range(100))), shelf.read)
    for key in (b"a", b"b", b"c"):
        index.put(key, Entry(1))
    before = index.freeze(10_000, shelf.new_id)
    size = index.embedded_bytes
    assert index.keys(b"a", b"b")
    outer = index.savepoint()
    index.put(b"a", Entry(2, b"longer"))
    inner = index.savepoint()
    index.remove(b"b")
    index.remove(next(iter(numbered([7]))))
    index.put(b"d", Entry(1))
    index.rollback(inner)
    assert index.get(b"a") == Entry(2, b"longer")
    assert index.get(b"b") == Entry(1)
    assert index.freeze(10_000, shelf.new_id)[0].keys == (b"b", b"c", b"a")
    index.rollback(outer)
    assert index.freeze(10_000, shelf.new_id) == before
    assert index.embedded_bytes == size
    assert [key for key, _ in index.range(b"a", b"e")] == [b"a", b"b", b"c"]


def test_a_savepoint_that_was_rolled_back_is_refused(shelf: Shelf) -> None:
    index = Index(IndexRoot(), shelf.read)
    with pytest.raises(InputError, match="savepoint 0"):
        index.rollback(0)
    outer = index.savepoint()
    index.put(b"a", Entry(1))
    inner = index.savepoint()
    index.rollback(outer)
    with pytest.raises(InputError, match="a rollback to an earlier savepoint removed it"):
        index.rollback(inner)
    index.rollback(outer)


def test_a_copy_and_its_original_are_independent(shelf: Shelf) -> None:
    index = Index(shelf.root_of({b"a": Entry(1)}), shelf.read)
    index.put(b"b", Entry(1))
    assert index.keys(b"b", None)
    copy = index.copy()
    copy.put(b"c", Entry(1))
    index.remove(b"a")
    assert [key for key, _ in copy.range()] == [b"a", b"b", b"c"]
    assert [key for key, _ in index.range()] == [b"b"]
    with pytest.raises(InputError):
        copy.rollback(0)


@pytest.mark.parametrize("start", [0, 400])
def test_a_reopened_index_is_the_one_that_its_root_describes(shelf: Shelf, start: int) -> None:
    rng = random.Random(7)
    root, spills = shelf.root_of(numbered(range(start))), 0
    index = Index(root, shelf.read, TINY)
    for _ in range(60):
        for key, entry in numbered(rng.sample(range(500), 4), tag=rng.randrange(9)).items():
            token = index.savepoint()
            index.put(key, entry) if rng.random() < 0.7 else index.remove(key)
            if rng.random() < 0.2:
                index.rollback(token)
        root, shards = index.freeze(800, shelf.new_id)
        spills += bool(shards)
        shelf.rows.update({id: objects.encode(shard) for id, shard in shards})
        index, unpacked = index.reopened(root, shelf.read), Index(root, shelf.read, TINY)
        assert list(index.range()) == list(unpacked.range())
        assert index.embedded_bytes == unpacked.embedded_bytes
        assert index.freeze(1 << 20, shelf.new_id) == unpacked.freeze(1 << 20, shelf.new_id) == (root, [])
    assert 0 < spills < 60


def test_removing_from_an_empty_tree_leaves_no_trace(shelf: Shelf) -> None:
    index = Index(IndexRoot(), shelf.read)
    index.put(b"a", Entry(1))
    index.remove(b"a")
    index.remove(b"b")
    assert index.freeze(1000, shelf.new_id) == (IndexRoot(), [])


def test_the_embedded_size_is_that_of_the_row_within_a_tenth(shelf: Shelf) -> None:
    entries = {**numbered(range(100)), **{b"v%d" % number: Entry(0, b"x" * number) for number in range(200)}}
    root = shelf.root_of(entries, quota=1 << 30)
    size = len(objects.encode(Holder(root)))
    assert 0.9 * size < Index(root, shelf.read).embedded_bytes < 1.1 * size


def test_a_missing_shard_is_corruption_that_names_it(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(300)))
    leaf = next(placed.id for placed in walk(root, shelf) if placed.level == 0)
    del shelf.rows[leaf]
    index = Index(root, shelf.read, TINY)
    with pytest.raises(CorruptionError, match=str(leaf)):
        index.get(next(iter(numbered([0]))))
    with pytest.raises(CorruptionError, match=str(leaf)):
        list(index.range())
    with pytest.raises(CorruptionError, match=str(leaf)):
        shelf.changed(root, numbered([0], tag=1))


def test_a_wrong_height_is_corruption(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(300)))
    for height in (root.height - 1, root.height + 1):
        wrong = msgspec.structs.replace(root, height=height)
        with pytest.raises(CorruptionError, match="instead of a"):
            Index(wrong, shelf.read).get(b"\x02ns\x01ttable_000000")


def test_embedded_changes_count_when_the_tree_is_replaced(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(500)))
    root = shelf.changed(root, dict.fromkeys(list(numbered(range(500)))[::2]))
    root = shelf.changed(root, numbered(range(900, 950)), quota=100_000)
    done = compact(Index(root, shelf.read, TINY), b"", 20, shelf.read, shelf.new_id, TINY)
    shelf.write(done.shards)
    assert done.tree != Index(root, shelf.read).tree
    index = Index(root, shelf.read, TINY)  # nobody has asked for its size
    before = Index(root, shelf.read, TINY).embedded_bytes
    token = index.savepoint()
    index.replace_tree(done.tree, ())
    assert index.embedded_bytes == before > 1_000
    index.rollback(token)
    assert index.embedded_bytes == before
    index.replace_tree(done.tree, ())
    assert shelf.freeze(index, quota=before // 2).count > done.tree.count, "it spills what is over the quota"
