"""Checks that find errors in an index."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec
import pytest

from polaris_spark import objects
from polaris_spark.errors import CorruptionError
from polaris_spark.index import Branch, Entry, ExpectedShard, Index, IndexRoot, Leaf, Shard, ShardReader
from polaris_spark.index import check as faults
from polaris_spark.index.shards import FrontCoded
from tests.index.support import Placed, Shelf, numbered, walk


def check(root: IndexRoot, read: ShardReader) -> Iterator[str]:
    """Return the problems as text. Each problem must name the id of an existing shard."""
    for fault in faults(root, read):
        assert not fault.shard or str(fault.shard) in fault.message
        yield fault.message


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def root(shelf: Shelf) -> IndexRoot:
    return shelf.changed(shelf.root_of(numbered(range(1000))), {b"a": Entry(1), b"b": None}, quota=1000)


def some_leaf(root: IndexRoot, shelf: Shelf) -> tuple[Placed, Leaf]:
    placed = [placed for placed in walk(root, shelf) if placed.level == 0][5]
    assert isinstance(placed.shard, Leaf)
    return placed, placed.shard


def some_branch(root: IndexRoot, shelf: Shelf) -> tuple[Placed, Branch]:
    placed = [placed for placed in walk(root, shelf) if placed.level == 1][2]
    assert isinstance(placed.shard, Branch)
    return placed, placed.shard


def problems_with(shelf: Shelf, root: IndexRoot, id: int, shard: Shard) -> list[str]:
    shelf.rows[id] = objects.encode(shard)
    found = list(check(root, shelf.read))
    assert all(str(id) in problem for problem in found)
    return found


def test_a_sound_index_has_no_problems(shelf: Shelf, root: IndexRoot) -> None:
    assert root.height >= 2
    assert list(check(root, shelf.read)) == []
    assert list(check(IndexRoot(), shelf.read)) == []


def test_every_missing_shard_is_named(shelf: Shelf, root: IndexRoot) -> None:
    leaf, branch = some_leaf(root, shelf)[0].id, some_branch(root, shelf)[0].id
    del shelf.rows[leaf], shelf.rows[branch]
    assert set(check(root, shelf.read)) == {f"shard {leaf} is missing", f"shard {branch} is missing"}


def test_a_reader_that_raises_does_not_end_the_check(shelf: Shelf, root: IndexRoot) -> None:
    bad = {some_leaf(root, shelf)[0].id, some_branch(root, shelf)[0].id}

    def read(ids: Collection[int]) -> Mapping[int, Shard]:
        for id in ids:
            if id in bad:
                raise CorruptionError(f"row {id} is gone")
        return shelf.read(ids)

    assert set(check(root, read)) == {f"row {id} is gone" for id in bad}


def test_unsorted_keys_are_found(shelf: Shelf, root: IndexRoot) -> None:
    placed, leaf = some_leaf(root, shelf)
    keys = leaf.keys
    wrong = Leaf.of([keys[1], keys[0], *keys[2:]], leaf.pointers, leaf.values)
    assert [problem for problem in problems_with(shelf, root, placed.id, wrong) if "ascending" in problem]
    twice = Leaf.of([keys[0], keys[0], *keys[2:]], leaf.pointers, leaf.values)
    assert [problem for problem in problems_with(shelf, root, placed.id, twice) if "ascending" in problem]


@pytest.mark.parametrize("key", [b"\x00", b"\xff"])
def test_keys_outside_the_bounds_of_their_shard_are_found(shelf: Shelf, root: IndexRoot, key: bytes) -> None:
    placed, leaf = some_leaf(root, shelf)
    wrong = Leaf.of(sorted([key, *leaf.keys[1:]]), leaf.pointers, leaf.values)
    (problem,) = problems_with(shelf, root, placed.id, wrong)
    assert "outside its bounds" in problem


def test_wrong_separators_are_found(shelf: Shelf, root: IndexRoot) -> None:
    placed, branch = some_branch(root, shelf)
    separators = branch.separators
    for wrong in ([separators[1], separators[0], *separators[2:]], [b"\x00", *separators[1:]]):
        shelf.rows[placed.id] = objects.encode(Branch(FrontCoded.of(wrong), branch.children, branch.counts))
        assert [
            problem for problem in check(root, shelf.read) if f"shard {placed.id} has separators" in problem
        ]


def test_wrong_counts_are_found(shelf: Shelf, root: IndexRoot) -> None:
    placed, leaf = some_leaf(root, shelf)
    (problem,) = problems_with(
        shelf, root, placed.id, Leaf.of(leaf.keys[:-1], leaf.pointers[:-1], leaf.values[:-1])
    )
    assert f"{len(leaf.keys) - 1} entries, but its parent counts {len(leaf.keys)}" in problem
    (problem,) = list(check(msgspec.structs.replace(root, count=1001), shelf.read))[:1]
    assert "its parent counts 1001" in problem


def test_shapes_that_cannot_be_are_found(shelf: Shelf, root: IndexRoot) -> None:
    placed, leaf = some_leaf(root, shelf)
    found = problems_with(shelf, root, placed.id, Leaf(FrontCoded()))
    assert any("leaf without entries" in problem for problem in found)
    found = problems_with(shelf, root, placed.id, Branch(FrontCoded(), (1,), (len(leaf.keys),)))
    assert found == [f"shard {placed.id} is a branch instead of a leaf"]
    (problem, *_) = check(msgspec.structs.replace(root, height=root.height + 1), shelf.read)
    assert "is a leaf instead of a branch" in problem
    single = Branch(FrontCoded(), (root.shard,), (1000,))
    shelf.rows[1] = objects.encode(single)
    (problem, *_) = check(IndexRoot(1, root.height + 1, 1000), shelf.read)
    assert problem == "shard 1 is a branch with only one child"
    childless = Branch(FrontCoded.of([b"m"]), (root.shard, 0), (1000, 0))
    shelf.rows[2] = objects.encode(childless)
    assert "shard 2 is a branch with a child whose id is 0, which is not the id of a shard" in list(
        check(IndexRoot(2, root.height + 1, 1000), shelf.read)
    )
    assert list(check(IndexRoot(0, 1, 5), shelf.read)) == ["an empty tree has height 1 and 5 entries"]


def test_shards_that_cannot_be_decoded_are_found(shelf: Shelf, root: IndexRoot) -> None:
    placed, leaf = some_leaf(root, shelf)
    broken = [
        Leaf(FrontCoded(leaf.front_coded.shared[1:], leaf.front_coded.lengths, leaf.front_coded.rests)),
        Leaf(leaf.front_coded, leaf.some_pointers[1:]),
        Leaf(leaf.front_coded, leaf.some_pointers, (1,), b"x"),
    ]
    for shard in broken:
        assert len(problems_with(shelf, root, placed.id, shard)) == 1


def test_a_key_over_4_kib_is_found(shelf: Shelf) -> None:
    long = b"k" * 4097
    shelf.rows[1] = objects.encode(Leaf.of([long], [1], [b""]))
    (problem,) = check(IndexRoot(1, 0, 1), shelf.read)
    assert "4097 bytes" in problem
    (problem,) = check(IndexRoot(0, 0, 0, (long,), (1,), (b"",)), shelf.read)
    assert "4097 bytes" in problem


def test_faults_of_the_embedded_part_are_found(shelf: Shelf) -> None:
    assert "a key twice" in next(
        check(IndexRoot(keys=(b"a", b"a"), pointers=(1, 1), values=(b"", b"")), shelf.read)
    )
    assert "2 keys, 1 pointers" in next(
        check(IndexRoot(keys=(b"a", b"b"), pointers=(1,), values=(b"",)), shelf.read)
    )
    assert "is marked as removed, but points to 7" in next(
        check(IndexRoot(keys=(b"a",), pointers=(7,), values=(None,)), shelf.read)
    )


def test_an_index_that_was_used_for_long_is_sound(shelf: Shelf) -> None:
    root = IndexRoot()
    for step in range(60):
        changes: dict[bytes, Entry | None] = {**numbered(range(step * 7, step * 31, 3), tag=step)}
        changes.update(dict.fromkeys(numbered(range(0, step * 20, 5))))
        root = shelf.changed(root, changes, quota=1500)
    assert list(check(root, shelf.read)) == []
    assert Index(root, shelf.read).get_many(list(shelf.content(root))) == list(shelf.content(root).values())


def test_shards_that_versions_share_are_read_once(shelf: Shelf, root: IndexRoot) -> None:
    read: list[int] = []

    def reading(ids: Collection[int]) -> Mapping[int, Shard]:
        read.extend(ids)
        return shelf.read(ids)

    later = shelf.changed(root, {b"k0000500": Entry(7)}, quota=0)
    sound: set[ExpectedShard] = set()
    assert list(faults(root, reading, sound)) == []
    before = len(read)
    assert list(faults(later, reading, sound)) == []
    assert 1 <= len(read) - before <= 2 * (later.height + 1)
    assert list(faults(later, reading, sound)) == []
    assert len(set(read)) == len(read)
