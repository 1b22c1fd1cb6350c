"""Removing most entries of an index: shards merge, the tree loses levels, and the size limits hold at every step."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polaris_spark.index import Entry, Index, IndexRoot, IndexSettings, check
from tests.index.support import FIRST_ID, TINY, Shelf, out_of_bounds, walk

NAMESPACES = 40


def key_of(number: int, total: int) -> bytes:
    """Return the key of a table. The keys of one namespace are consecutive."""
    return b"\x02namespace_%03d\x01ttable_%06d" % (number * NAMESPACES // total, number)


def grown(shelf: Shelf, total: int, sizes: IndexSettings) -> IndexRoot:
    """Return an index of `total` tables that were created one namespace at a time, in random order."""
    order = list(range(NAMESPACES))
    random.Random(1).shuffle(order)
    root = IndexRoot()
    for namespace in order:
        first, end = (-(-part * total // NAMESPACES) for part in (namespace, namespace + 1))
        mine = {key_of(number, total): Entry(FIRST_ID + number) for number in range(first, end)}
        root = shelf.changed(root, mine, sizes, quota=1_000)
    return root


def dropped(total: int, share: float, order: str) -> list[int]:
    """Return the tables to drop, in their order: all tables of some namespaces, or random tables."""
    numbers = list(range(total))
    if order == "random":
        random.Random(2).shuffle(numbers)
    elif order == "namespaces":
        namespaces = list(range(NAMESPACES))
        random.Random(3).shuffle(namespaces)
        numbers.sort(key=lambda number: namespaces[number * NAMESPACES // total])
    return numbers[: int(total * share)]


def drop(
    shelf: Shelf, root: IndexRoot, keys: Sequence[bytes], sizes: IndexSettings, *, step: int, quota: int
) -> list[IndexRoot]:
    """Yield the root after each step. Check size limits and consistency after each step."""
    roots = []
    for low in range(0, len(keys), step):
        root = shelf.changed(root, dict.fromkeys(keys[low : low + step]), sizes, quota)
        assert out_of_bounds(root, shelf, sizes) == []
        assert list(check(root, shelf.read)) == []
        roots.append(root)
    return roots


def shards(root: IndexRoot, shelf: Shelf) -> int:
    return sum(1 for _ in walk(root, shelf))


@pytest.mark.parametrize("quota", [0, 600])
@pytest.mark.parametrize("order", ["random", "namespaces", "ascending"])
@pytest.mark.parametrize("share", [0.9, 0.99, 1.0])
def test_after_a_mass_drop_a_tree_is_about_as_small_as_one_that_never_was_larger(
    share: float, order: str, quota: int
) -> None:
    shelf, total = Shelf(), 5_000
    root = grown(shelf, total, TINY)
    gone = dropped(total, share, order)
    roots = drop(shelf, root, [key_of(n, total) for n in gone], TINY, step=500, quota=quota)
    left = sorted(set(range(total)) - set(gone))
    content = {key_of(n, total): Entry(FIRST_ID + n) for n in left}
    assert shelf.content(roots[-1]) == content
    # What is embedded is not yet in the tree: it may hold tables whose removal has not reached it.
    fresh = shelf.root_of({key: Entry(FIRST_ID) for key in [*content, *roots[-1].keys]})
    # These tiny shards may be thinned out to a third of the maximum on every level before they are merged.
    assert shards(roots[-1], shelf) <= 5 * shards(fresh, shelf)
    assert roots[-1].height <= fresh.height + 2
    assert share == 0.9 or roots[-1].height < root.height
    heights = [one.height for one in (root, *roots)]
    assert heights == sorted(heights, reverse=True)
    if share == 1.0 and not quota:
        assert roots[-1] == IndexRoot()


def test_dropping_a_namespace_does_not_rewrite_shards_of_its_neighbors() -> None:
    shelf, total = Shelf(), 5_000
    root = grown(shelf, total, TINY)
    root = shelf.changed(root, {}, TINY) if not root.keys else shelf.freeze(Index(root, shelf.read, TINY))
    before = {placed.id for placed in walk(root, shelf)}
    keys = [key_of(n, total) for n in range(2_500, 2_625)]
    (after,) = drop(shelf, root, keys, TINY, step=len(keys), quota=0)
    new = {placed.id for placed in walk(after, shelf)} - before
    assert len(new) <= 3 * (root.height + 1)


def test_an_emptied_index_grows_again() -> None:
    shelf, total = Shelf(), 2_000
    root = grown(shelf, total, TINY)
    keys = [key_of(n, total) for n in dropped(total, 1.0, "random")]
    empty = drop(shelf, root, keys, TINY, step=400, quota=0)[-1]
    assert empty == IndexRoot()
    again = shelf.changed(empty, {key: Entry(1) for key in keys}, TINY)
    assert again.count == total
    assert out_of_bounds(again, shelf, TINY) == []


def changed(
    what: str, count: int, present: Sequence[bytes], total: int, chance: random.Random
) -> dict[bytes, Entry | None]:
    if what == "create":
        return {key_of(chance.randrange(total), total): Entry(FIRST_ID + count) for _ in range(count)}
    if what == "drop any":
        return dict.fromkeys(chance.sample(present, min(count, len(present))))
    first = chance.randrange(len(present) + 1) if what == "drop a run" else max(0, len(present) - count)
    return dict.fromkeys(present[first : first + count])


@given(
    total=st.integers(1, 700),
    sizes=st.sampled_from(
        [TINY, IndexSettings(max_shard_bytes=400, min_shard_bytes=160, fill=0.9, keep=0.0)]
    ),
    quota=st.sampled_from([0, 200, 900]),
    seed=st.integers(0, 10**6),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["drop any", "drop a run", "drop from the end", "create"]), st.integers(1, 300)
        ),
        min_size=1,
        max_size=8,
    ),
)
@settings(max_examples=60)
def test_bounds_hold_after_any_drops_and_creations(
    total: int, sizes: IndexSettings, quota: int, seed: int, steps: list[tuple[str, int]]
) -> None:
    shelf, chance = Shelf(), random.Random(seed)
    model = {key_of(number, total): Entry(FIRST_ID + number) for number in range(total)}
    root = shelf.root_of(model, sizes, quota)
    for what, count in steps:
        changes = changed(what, count, sorted(model), total, chance)
        root = shelf.changed(root, changes, sizes, quota)
        model = {key: entry for key, entry in {**model, **changes}.items() if entry is not None}
        assert out_of_bounds(root, shelf, sizes) == []
        assert list(check(root, shelf.read)) == []
        assert Index(root, shelf.read, sizes).embedded_bytes <= quota
    assert shelf.content(root) == dict(sorted(model.items()))


@pytest.mark.long
@pytest.mark.parametrize("order", ["random", "namespaces"])
def test_100_000_tables_go_and_their_shards_with_them(order: str) -> None:
    shelf, total, sizes = Shelf(), 100_000, IndexSettings()
    root = grown(shelf, total, sizes)
    gone = [key_of(n, total) for n in dropped(total, 1.0, order)]
    roots = drop(shelf, root, gone, sizes, step=2_000, quota=2_048)
    assert root.height >= 2
    assert [shards(one, shelf) for one in (roots[44], roots[-1])][1] <= 1
    assert shards(roots[44], shelf) < shards(root, shelf) / 4
    assert shelf.content(roots[-1]) == {}
