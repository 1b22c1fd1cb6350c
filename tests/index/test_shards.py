"""Encoding of shards as rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polaris_spark import objects
from polaris_spark.errors import CorruptionError
from polaris_spark.index.entries import Entry
from polaris_spark.index.shards import Branch, FrontCoded, Leaf, branch_bytes, separator, shared_length
from tests.index.support import FIRST_ID, numbered

keys = st.lists(st.binary(max_size=40), unique=True, max_size=60).map(sorted)
pointers = st.one_of(st.just(0), st.integers(FIRST_ID, 2**63 - 1))


@given(keys)
def test_front_coding_gives_the_keys_back(sorted_keys: list[bytes]) -> None:
    assert FrontCoded.of(sorted_keys).keys() == sorted_keys


@given(keys, st.data())
def test_a_leaf_keeps_its_entries_and_knows_the_size_of_its_row(
    sorted_keys: list[bytes], data: st.DataObject
) -> None:
    count = len(sorted_keys)
    ids = data.draw(st.lists(pointers, min_size=count, max_size=count))
    values = data.draw(st.lists(st.binary(max_size=300), min_size=count, max_size=count))
    leaf = Leaf.of(sorted_keys, ids, values)
    row = objects.encode(leaf)
    assert len(row) == leaf.encoded_bytes
    again = objects.decode(row, "x").value
    assert isinstance(again, Leaf)
    assert again.keys == sorted_keys
    entries = [again.entry(position) for position in range(count)]
    assert entries == [Entry(*pair) for pair in zip(ids, values, strict=True)]


@pytest.mark.parametrize("count", [2, 15, 16, 128, 255, 256, 400])
def test_a_branch_knows_the_size_of_its_row_before_its_children_have_ids(count: int) -> None:
    separators = FrontCoded.of(sorted(numbered(range(1, count))))
    counts = tuple(range(200, 200 + count))
    branch = Branch(separators, tuple(range(FIRST_ID, FIRST_ID + count)), counts)
    assert len(objects.encode(branch)) == branch_bytes(separators, counts)
    again = objects.decode(objects.encode(branch), "x").value
    assert isinstance(again, Branch)
    assert again.separators == separators.keys()


def test_a_leaf_of_table_names_takes_14_bytes_an_entry() -> None:
    entries = numbered(range(250))
    leaf = Leaf.of(list(entries), [entry.pointer for entry in entries.values()], [b""] * 250)
    assert len(objects.encode(leaf)) < 250 * 14


@given(st.binary(max_size=5), st.binary(max_size=5))
def test_the_shared_length_is_that_of_the_longest_common_beginning(a: bytes, b: bytes) -> None:
    length = shared_length(a, b)
    assert a[:length] == b[:length]
    assert a[length : length + 1] != b[length : length + 1] or length == len(a) == len(b)


@given(st.binary(max_size=5), st.binary(max_size=5))
def test_a_separator_is_the_shortest_that_separates(a: bytes, b: bytes) -> None:
    if a == b:
        return
    a, b = sorted((a, b))
    between = separator(a, b)
    assert a < between <= b
    assert not a < between[:-1]


@pytest.mark.parametrize(
    "broken",
    [
        Leaf(FrontCoded((0,), (1, 1), b"ab")),
        Leaf(FrontCoded((0, 0), (1, 1), b"abc")),
    ],
)
def test_keys_whose_lengths_disagree_are_corruption(broken: Leaf) -> None:
    with pytest.raises(CorruptionError, match="lengths that do not agree"):
        _ = broken.keys


def test_pointers_values_and_children_that_do_not_fit_the_keys_are_corruption() -> None:
    two = FrontCoded.of([b"a", b"b"])
    with pytest.raises(CorruptionError, match="1 pointers"):
        _ = Leaf(two, (5,)).pointers
    with pytest.raises(CorruptionError, match="values"):
        _ = Leaf(two, (), (1, 1), b"x").values
    with pytest.raises(CorruptionError, match="2 children"):
        _ = Branch(two, (5, 6), (1, 1)).separators
