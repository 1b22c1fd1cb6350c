"""Comparing two roots."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polaris_spark.index import Entry, IndexRoot, diff
from tests.index.support import Shelf, numbered, walk

keys = st.one_of(
    st.integers(0, 300).map(lambda number: b"\x02ns\x01ttable_%03d" % number), st.binary(max_size=3)
)
changes = st.dictionaries(
    keys, st.one_of(st.none(), st.builds(Entry, st.integers(0, 3), st.sampled_from([b"", b"v"]))), max_size=60
)
quotas = st.sampled_from([0, 300, 1500, 100_000])


def expected(a: dict[bytes, Entry], b: dict[bytes, Entry]) -> list[tuple[bytes, Entry | None, Entry | None]]:
    return [(key, a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]


@given(changes, st.booleans(), st.lists(st.tuples(changes, quotas), max_size=4), st.integers(0, 4))
def test_a_diff_lists_every_key_whose_entries_differ(
    first: dict[bytes, Entry | None],
    large: bool,
    rounds: list[tuple[dict[bytes, Entry | None], int]],
    start: int,
) -> None:
    shelf = Shelf()
    base: dict[bytes, Entry | None] = {**numbered(range(300)), **first} if large else first
    roots = [shelf.changed(IndexRoot(), base)]
    for change, quota in rounds:
        roots.append(shelf.changed(roots[-1], change, quota=quota))
    a, b = roots[min(start, len(roots) - 1)], roots[-1]
    content_a, content_b = shelf.content(a), shelf.content(b)
    assert list(diff(a, b, shelf.read)) == expected(content_a, content_b)
    assert list(diff(b, a, shelf.read)) == expected(content_b, content_a)


@pytest.mark.parametrize("seed", range(8))
def test_unrelated_trees_of_any_height_can_be_compared(seed: int) -> None:
    chance = random.Random(seed)
    shelf = Shelf()
    a = shelf.root_of(numbered(chance.sample(range(3000), 10 ** chance.randrange(4))))
    b = shelf.root_of(numbered(chance.sample(range(3000), 10 ** chance.randrange(4))))
    assert list(diff(a, b, shelf.read)) == expected(shelf.content(a), shelf.content(b))


def test_equal_roots_are_compared_without_reading() -> None:
    shelf = Shelf()
    root = shelf.changed(shelf.root_of(numbered(range(500))), numbered([3], tag=1), quota=1000)
    shelf.batches.clear()
    assert list(diff(root, root, shelf.read)) == []
    assert shelf.batches == []


def test_shared_shards_are_not_read() -> None:
    shelf = Shelf()
    a = shelf.root_of(numbered(range(5000)))
    b = shelf.changed(a, {**numbered([77, 2500], tag=1), **dict.fromkeys(numbered([2501]))})
    ids_a, ids_b = ({placed.id for placed in walk(root, shelf)} for root in (a, b))
    shelf.batches.clear()
    assert len(list(diff(a, b, shelf.read))) == 3
    assert shelf.reads() == ids_a ^ ids_b


def test_a_tree_that_grew_a_level_shares_its_leaves() -> None:
    shelf = Shelf()
    a = shelf.root_of(numbered(range(0, 1000, 10)))
    b = a
    while b.height == a.height:
        b = shelf.changed(b, numbered(range(1000 + b.count, 1020 + b.count)))
    shared = {placed.id for placed in walk(a, shelf)} & {placed.id for placed in walk(b, shelf)}
    assert shared
    shelf.batches.clear()
    assert list(diff(a, b, shelf.read)) == expected(shelf.content(a), shelf.content(b))
    shelf.batches.clear()
    list(diff(a, b, shelf.read))
    assert not shelf.reads() & shared


def test_a_change_embedded_in_one_root_is_looked_up_in_the_other() -> None:
    shelf = Shelf()
    a = shelf.root_of(numbered(range(500)))
    key, other, third = list(numbered([7, 8, 9]))
    b = shelf.changed(
        a, {key: Entry(1), other: None, third: numbered([9])[third], b"new": Entry(2)}, quota=1000
    )
    assert list(diff(a, b, shelf.read)) == [
        (key, numbered([7])[key], Entry(1)),
        (other, numbered([8])[other], None),
        (b"new", None, Entry(2)),
    ]


def test_a_spill_alone_is_not_a_difference() -> None:
    shelf = Shelf()
    a = shelf.changed(shelf.root_of(numbered(range(500))), numbered(range(0, 500, 11), tag=1), quota=10_000)
    b = shelf.changed(a, {}, quota=0)
    assert a.keys
    assert not b.keys
    assert list(diff(a, b, shelf.read)) == []


def test_the_first_difference_comes_after_few_reads() -> None:
    shelf = Shelf()
    a = shelf.root_of(numbered(range(3000)))
    b = shelf.root_of(numbered(range(3000), tag=1))
    shelf.batches.clear()
    found = diff(a, b, shelf.read)
    next(found)
    assert len(shelf.reads()) == 2 * (a.height + 1)
    assert len(list(found)) == 2999
