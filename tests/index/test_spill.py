"""Freezing an index: which changes stay embedded, which shards are rewritten, and the shape of the tree."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polaris_spark.errors import InputError
from polaris_spark.index import Entry, Index, IndexRoot, IndexSettings, Leaf, check
from tests.index.support import FIRST_ID, TINY, Placed, Shelf, apply, numbered, out_of_bounds, walk

SIZES = [
    TINY,
    IndexSettings(),
    IndexSettings(max_shard_bytes=160, min_shard_bytes=20),
    IndexSettings(max_shard_bytes=400, min_shard_bytes=160, fill=0.9, keep=0.0),
]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def leaves(root: IndexRoot, shelf: Shelf) -> Sequence[Placed]:
    return [placed for placed in walk(root, shelf) if placed.level == 0]


def ids(root: IndexRoot, shelf: Shelf) -> set[int]:
    return {placed.id for placed in walk(root, shelf)}


def test_within_the_quota_no_shard_is_read_or_written(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(500)))
    shelf.batches.clear()
    index = Index(root, shelf.read, TINY)
    apply(index, numbered(range(100), tag=1))
    frozen, shards = index.freeze(index.embedded_bytes, shelf.new_id)
    assert shards == []
    assert shelf.batches == []
    assert (frozen.shard, frozen.height, frozen.count) == (root.shard, root.height, 500)
    assert list(frozen.keys) == list(numbered(range(100)))


def test_an_unchanged_index_freezes_to_the_same_root(shelf: Shelf) -> None:
    root = shelf.changed(shelf.root_of(numbered(range(100))), numbered([5], tag=1), quota=1000)
    assert Index(root, shelf.read).freeze(1000, shelf.new_id) == (root, [])


def test_changes_are_embedded_with_the_oldest_first(shelf: Shelf) -> None:
    root = shelf.root_of({b"b": Entry(1), b"a": Entry(1), b"c": Entry(1)}, quota=1000)
    assert root.keys == (b"b", b"a", b"c")
    assert shelf.changed(root, {b"b": Entry(2)}, quota=1000).keys == (b"a", b"c", b"b")


@pytest.mark.parametrize("settings", SIZES)
def test_one_byte_over_the_quota_spills_to_about_half(shelf: Shelf, settings: IndexSettings) -> None:
    chance = random.Random(1)
    root = shelf.root_of(numbered(range(3000)), settings)
    index = Index(root, shelf.read, settings)
    apply(index, numbered(chance.sample(range(3000), 100), tag=1))
    quota = index.embedded_bytes - 1
    frozen = shelf.freeze(index, quota)
    assert frozen.shard != root.shard
    assert quota * 0.3 < Index(frozen, shelf.read).embedded_bytes <= quota / 2
    assert shelf.content(frozen) == dict(index.range())


def test_the_leaves_with_most_changes_are_rewritten_first(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(1000)))
    crowded = [leaf.shard for leaf in leaves(root, shelf)[10:14]]
    changes: dict[bytes, Entry | None] = {}
    for leaf in leaves(root, shelf)[20:50]:
        assert isinstance(leaf.shard, Leaf)
        changes[leaf.shard.keys[0]] = Entry(1)
    for shard in crowded:
        assert isinstance(shard, Leaf)
        changes.update(dict.fromkeys(shard.keys[:8], Entry(2)))
    index = Index(root, shelf.read, IndexSettings(256, 80, keep=0))
    apply(index, changes)
    frozen = shelf.freeze(index, index.embedded_bytes - 1)
    assert set(frozen.pointers) == {1}
    new = [leaf.id for leaf in leaves(frozen, shelf) if leaf.id not in ids(root, shelf)]
    assert len(new) == 4


def test_the_most_recent_changes_stay_embedded(shelf: Shelf) -> None:
    chance = random.Random(2)
    root = shelf.root_of(numbered(range(1000)))
    changes = numbered(chance.sample(range(1000), 80), tag=1)
    index = Index(root, shelf.read, TINY)
    apply(index, changes)
    frozen = shelf.freeze(index, index.embedded_bytes - 1)
    assert frozen.keys[-9:] == tuple(changes)[-9:]
    again = Index(frozen, shelf.read, TINY)
    assert list(frozen.keys) == [key for key in changes if key in set(frozen.keys)]
    assert dict(again.range()) == {**numbered(range(1000)), **changes}


def test_a_quota_of_nothing_embeds_nothing(shelf: Shelf) -> None:
    root = shelf.changed(shelf.root_of(numbered(range(100))), {**numbered([5], tag=1), b"a": None}, quota=0)
    assert (root.keys, root.pointers, root.values) == ((), (), ())
    assert root.count == 100


def test_unchanged_shards_are_shared(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(5000)))
    assert root.height >= 3
    changed = shelf.changed(root, numbered([2500], tag=1))
    new = ids(changed, shelf) - ids(root, shelf)
    assert len(new) == root.height + 1
    assert len(ids(root, shelf) - ids(changed, shelf)) == root.height + 1


def test_changes_that_change_nothing_write_nothing(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(500)))
    same: dict[bytes, Entry | None] = {**numbered(range(0, 500, 7)), b"missing": None}
    assert shelf.changed(root, same) == root


def test_removing_everything_leaves_an_empty_root(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(500)))
    assert shelf.changed(root, dict.fromkeys(numbered(range(500)))) == IndexRoot()
    kept = shelf.changed(root, dict.fromkeys(numbered(range(500))), quota=1000)
    assert shelf.content(kept) == {}


def test_removals_are_forgotten_once_the_tree_is_empty(shelf: Shelf) -> None:
    removals: dict[bytes, Entry | None] = dict.fromkeys([b"a", *numbered(range(60))])
    assert shelf.changed(shelf.root_of({b"a": Entry(1)}), removals, quota=600) == IndexRoot()


def test_a_spill_reads_one_batch_for_each_level(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(3000)))
    shelf.batches.clear()
    shelf.changed(root, numbered(range(0, 3000, 40), tag=1))
    assert len(shelf.batches) == root.height + 1


@pytest.mark.parametrize("settings", SIZES)
@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_shards_stay_within_bounds_as_an_index_grows_and_shrinks(
    shelf: Shelf, settings: IndexSettings, order: str
) -> None:
    numbers = list(range(4000))
    if order == "descending":
        numbers.reverse()
    if order == "random":
        random.Random(3).shuffle(numbers)
    root = IndexRoot()
    heights = []
    for low in range(0, len(numbers), 400):
        root = shelf.changed(root, numbered(numbers[low : low + 400]), settings)
        assert out_of_bounds(root, shelf, settings) == []
        heights.append(root.height)
    for low in range(0, len(numbers), 250):
        root = shelf.changed(root, dict.fromkeys(numbered(numbers[low : low + 250])), settings)
        assert out_of_bounds(root, shelf, settings) == []
        assert list(check(root, shelf.read)) == []
        assert shelf.content(root) == numbered(sorted(numbers[low + 250 :]))
        heights.append(root.height)
    assert heights == sorted(heights[:10]) + sorted(heights[10:], reverse=True)
    assert heights[9] > heights[0] or settings == IndexSettings()
    assert root == IndexRoot()


def test_thinning_out_merges_leaves(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(3000)))
    thin = shelf.changed(
        root, dict.fromkeys([key for key in numbered(range(3000)) if not key.endswith(b"77")])
    )
    assert thin.count == 30
    assert len(leaves(thin, shelf)) < len(leaves(root, shelf)) / 20
    assert thin.height < root.height


def test_a_removal_touches_at_most_a_neighbour_on_each_level(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(5000)))
    for number in range(2500, 2520):
        before = ids(root, shelf)
        shelf.batches.clear()
        root = shelf.changed(root, dict.fromkeys(numbered([number])))
        assert len(ids(root, shelf) - before) <= 2 * (root.height + 1)
        assert len(shelf.reads()) <= 3 * (root.height + 1)
        assert out_of_bounds(root, shelf, TINY) == []


def test_an_entry_larger_than_a_shard_has_a_leaf_of_its_own(shelf: Shelf) -> None:
    entries = {**numbered(range(200)), b"\x02ns\x01ttable_000100x": Entry(1, b"v" * 1000)}
    root = shelf.root_of(entries)
    assert shelf.content(root) == dict(sorted(entries.items()))
    assert [placed.shard for placed in out_of_bounds(root, shelf, TINY) if placed.row_bytes > 256] == [
        Leaf.of([b"\x02ns\x01ttable_000100x"], [1], [b"v" * 1000])
    ]
    assert list(check(root, shelf.read)) == []


@pytest.mark.parametrize("start", [b"\x00", b"\xff"])
def test_one_separator_of_4_kib_leaves_no_branch_with_a_single_child(shelf: Shelf, start: bytes) -> None:
    long = start * 4000
    root = shelf.root_of({**numbered(range(500)), long + b"a": Entry(1), long + b"b": Entry(2)})
    assert list(check(root, shelf.read)) == []
    assert Index(root, shelf.read).get_many([long + b"a", long + b"b"]) == [Entry(1), Entry(2)]


def test_freezing_the_same_changes_gives_the_same_shards(shelf: Shelf) -> None:
    results = []
    for _ in range(2):
        shelf = Shelf()
        chance = random.Random(4)
        root = IndexRoot()
        for _ in range(30):
            changes = numbered(chance.sample(range(2000), 60), tag=chance.randrange(3))
            root = shelf.changed(root, changes, quota=2000)
        results.append((root, shelf.rows))
    assert results[0] == results[1]


def test_freezing_leaves_the_working_copy_as_it_was(shelf: Shelf) -> None:
    index = Index(shelf.root_of(numbered(range(500))), shelf.read, TINY)
    apply(index, numbered(range(0, 1000, 9), tag=1))
    before = dict(index.range())
    first = shelf.freeze(index, 500)
    assert dict(index.range()) == before
    assert shelf.content(shelf.freeze(index, 500)) == shelf.content(first)


def test_each_new_shard_is_listed_after_those_it_points_to(shelf: Shelf) -> None:
    index = Index(IndexRoot(), shelf.read, TINY)
    apply(index, numbered(range(2000)))
    root, shards = index.freeze(0, shelf.new_id)
    known: set[int] = set()
    for id, shard in shards:
        assert isinstance(shard, Leaf) or set(shard.children) <= known
        known.add(id)
    assert shards[-1][0] == root.shard


@given(
    st.lists(st.integers(0, 600), max_size=300, unique=True),
    st.lists(st.integers(0, 600), max_size=80, unique=True),
    st.lists(st.integers(0, 600), max_size=80, unique=True),
    st.integers(0, 600),
    st.sampled_from([0, 500, 1500]),
)
@example(base=list(range(16)), later=[], removed=[0], floor=16, quota=0)
def test_a_floor_cuts_off_older_keys_and_no_others(
    base: list[int], later: list[int], removed: list[int], floor: int, quota: int
) -> None:
    shelf = Shelf()
    root = shelf.root_of(numbered(base))
    index = Index(root, shelf.read, TINY)
    apply(index, numbered(later, tag=1))
    apply(index, dict.fromkeys(numbered(removed)))
    full = dict(index.range())
    bound = next(iter(numbered([floor])))
    spills = index.embedded_bytes > quota
    frozen = shelf.freeze(index, quota, floor=bound)
    content = shelf.content(frozen)
    assert {key: entry for key, entry in content.items() if key >= bound} == {
        key: entry for key, entry in full.items() if key >= bound
    }
    assert content.items() <= full.items()
    assert list(check(frozen, shelf.read)) == []
    assert out_of_bounds(frozen, shelf, TINY) == []
    if spills:
        assert not any(key < bound for key in frozen.keys)
        left = [len(leaf.shard.keys) for leaf in leaves(frozen, shelf) if isinstance(leaf.shard, Leaf)]
        older = sum(key < bound for key in content)
        # The first leaf contains the floor. It may be the last one, whose keys can all be older.
        assert older < left[0] + (len(left) == 1) if left else not older


@pytest.mark.parametrize("number", [1, 700, 1234, 1900, 1999])
def test_a_floor_drops_whole_old_leaves_unread(shelf: Shelf, number: int) -> None:
    root = shelf.root_of(numbered(range(2000)))
    floor = next(iter(numbered([number])))
    old = {
        leaf.id
        for leaf in leaves(root, shelf)
        if isinstance(leaf.shard, Leaf) and leaf.shard.keys[-1] < floor
    }
    assert old or number == 1
    changes = {**numbered(range(0, number - 30, 70), tag=1), **numbered(range(2000, 2100))}
    shelf.batches.clear()
    frozen = shelf.changed(root, changes, quota=100, floor=floor)
    assert not shelf.reads() & old
    assert not ids(frozen, shelf) & old
    assert list(shelf.content(frozen).items())[-(2100 - number) :] == list(
        numbered(range(number, 2100)).items()
    )


def test_a_floor_at_the_edge_of_a_leaf_drops_all_before_it(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(2000)))
    for leaf in leaves(root, shelf)[1::13]:
        assert isinstance(leaf.shard, Leaf)
        floor = leaf.shard.keys[0]
        frozen = shelf.changed(root, {b"\xff": Entry(1)}, floor=floor)
        assert next(iter(shelf.content(frozen))) == floor


def test_a_change_below_the_floor_goes_with_its_whole_leaf_or_brings_it_to_be_cut(shelf: Shelf) -> None:
    root = shelf.root_of(numbered(range(2000)))
    leaf = leaves(root, shelf)[40].shard
    assert isinstance(leaf, Leaf)
    changes: dict[bytes, Entry | None] = {leaf.keys[1]: None, leaf.keys[2]: Entry(7)}
    frozen = shelf.changed(root, {**changes, **numbered(range(2000, 2100))}, quota=1000, floor=leaf.keys[4])
    assert next(iter(shelf.content(frozen))) == leaf.keys[4]
    assert not set(changes) & set(frozen.keys)


def test_an_index_by_time_shrinks_as_its_floor_is_raised(shelf: Shelf) -> None:
    root = IndexRoot()
    sizes = []
    for step in range(1500):
        floor = next(iter(numbered([max(0, step - 100)])))
        root = shelf.changed(root, numbered([step]), quota=600, floor=floor)
        sizes.append(root.count + len(root.keys))
    assert max(sizes) < 150
    assert set(numbered(range(1400, 1500))) <= set(shelf.content(root))


def test_a_commit_at_100_000_tables_writes_at_most_7_kib(shelf: Shelf) -> None:
    chance = random.Random(5)
    root = shelf.root_of(numbered(range(100_000)), IndexSettings())
    first = shelf.new_id()
    embedded = 0
    for step in range(300):
        change = numbered([chance.randrange(100_000)], tag=step)
        root = shelf.changed(root, change, IndexSettings(), quota=4096)
        embedded += Index(root, shelf.read).embedded_bytes
    shards = sum(len(row) for id, row in shelf.rows.items() if id > first)
    assert (embedded + shards) / 300 < 7 * 1024


@pytest.mark.parametrize(
    "sizes",
    [
        {"max_shard_bytes": 100, "min_shard_bytes": 50},
        {"min_shard_bytes": 0},
        {"fill": 0.3},
        {"fill": 1.1},
        {"keep": 0.6},
        {"keep": -0.1},
    ],
)
def test_sizes_that_cannot_work_are_refused(sizes: dict[str, float]) -> None:
    with pytest.raises(InputError):
        IndexSettings(**sizes)  # type: ignore[arg-type]  # one dictionary for fields of two types


def test_pointers_of_any_size_and_none_are_kept(shelf: Shelf) -> None:
    entries = {
        b"%04d" % number: Entry(number % 3 and FIRST_ID * (number % 2) + number) for number in range(300)
    }
    assert shelf.content(shelf.root_of(entries)) == entries
