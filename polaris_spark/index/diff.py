"""The difference between the contents of two index roots, computed without reading the shards that they share.

Both trees are walked together in key order, each as a stack of subtrees that are not yet opened. Subtrees with the same
id hold the same entries and are skipped. If two subtrees differ, the taller one is opened first, so that a shared
subtree is found at its own level even if the trees differ in height.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from polaris_spark.index.cursor import PREFETCH
from polaris_spark.index.entries import Entry
from polaris_spark.index.root import IndexRoot, ShardReader, as_branch, as_leaf, load
from polaris_spark.index.shards import Shard
from polaris_spark.index.tree import Index

Difference: TypeAlias = tuple[bytes, Entry | None, Entry | None]
"""A key, its entry in the first root, and its entry in the second root (None: absent). The two entries differ."""


def diff(a: IndexRoot, b: IndexRoot, read: ShardReader) -> Iterator[Difference]:
    """Return an iterator over every key whose entries in `a` and `b` differ, ascending.

    Reads only shards that `a` and `b` do not share. If a key is embedded in only one root, also reads the leaf of the
    other root that may hold it. Reads lazily, in batches of growing size.

    Raises:
        CorruptionError: a shard is missing or unreadable.
    """
    embedded_a = dict(zip(a.keys, zip(a.pointers, a.values, strict=True), strict=True))
    embedded_b = dict(zip(b.keys, zip(b.pointers, b.values, strict=True), strict=True))
    embedded = sorted(embedded_a.keys() | embedded_b.keys())
    changed = [key for key in embedded if embedded_a.get(key) != embedded_b.get(key)]
    hidden = set(embedded)
    in_trees = (found for found in _Walk(a, b, read).differences() if found[0] not in hidden)
    return _merged(_looked_up(a, b, read, changed), in_trees)


def _looked_up(a: IndexRoot, b: IndexRoot, read: ShardReader, keys: Sequence[bytes]) -> Iterator[Difference]:
    """Yield the differences between both roots at the given sorted keys. Each key is looked up in both roots."""
    index_a, index_b = Index(a, read), Index(b, read)
    for start in range(0, len(keys), PREFETCH):
        some = keys[start : start + PREFETCH]
        for key, before, after in zip(some, index_a.get_many(some), index_b.get_many(some), strict=True):
            if before != after:
                yield key, before, after


def _merged(first: Iterator[Difference], second: Iterator[Difference]) -> Iterator[Difference]:
    """Merge two ascending sequences of differences that have no key in common into one ascending sequence."""
    x, y = next(first, None), next(second, None)
    while x is not None and y is not None:
        if x[0] < y[0]:
            yield x
            x = next(first, None)
        else:
            yield y
            y = next(second, None)
    if x is not None:
        yield x
    if y is not None:
        yield y
    yield from first
    yield from second


class _Subtree(NamedTuple):
    """A subtree that is not yet opened. All its keys are at least `lower`."""

    lower: bytes
    height: int
    id: int


class _Side:
    """The part of one tree that is not yet compared: the entries of the open leaf, then subtrees. Both lists are
    stacks: the last item is the next one to compare."""

    def __init__(self, root: IndexRoot) -> None:
        self.subtrees = [_Subtree(b"", root.height, root.shard)] if root.shard else []
        self.entries: list[tuple[bytes, Entry]] = []

    def open(self, shard: Shard) -> None:
        """Replace the next subtree, whose root is `shard`, by its children or, for a leaf, by its entries."""
        lower, height, id = self.subtrees.pop()
        if height:
            branch = as_branch(shard, id)
            children = zip([lower, *branch.separators], branch.children, strict=True)
            self.subtrees += [_Subtree(bound, height - 1, child) for bound, child in children][::-1]
        else:
            leaf = as_leaf(shard, id)
            entries = zip(leaf.keys, map(Entry, leaf.pointers, leaf.values), strict=True)
            self.entries = list(entries)[::-1]

    def may_hold(self, key: bytes) -> bool:
        """Whether the next subtree may hold `key` or smaller keys."""
        return bool(self.subtrees) and self.subtrees[-1].lower <= key


class _Walk:
    def __init__(self, a: IndexRoot, b: IndexRoot, read: ShardReader) -> None:
        self._a, self._b = _Side(a), _Side(b)
        self._read = read
        self._loaded: dict[int, Shard] = {}
        self._batch = 1

    def differences(self) -> Iterator[Difference]:
        """Yield the keys whose entries in the two trees differ, ascending, with both entries."""
        a, b = self._a, self._b
        while True:
            if a.entries and b.entries:
                yield from self._compared()
            elif a.entries:
                if b.may_hold(a.entries[-1][0]):
                    self._open(b)
                else:
                    key, entry = a.entries.pop()
                    yield key, entry, None
            elif b.entries:
                if a.may_hold(b.entries[-1][0]):
                    self._open(a)
                else:
                    key, entry = b.entries.pop()
                    yield key, None, entry
            elif a.subtrees or b.subtrees:
                self._descend()
            else:
                return

    def _compared(self) -> Iterator[Difference]:
        """Compare the next entries of both sides until the entries of one side are used up. Yield the differences."""
        a, b = self._a.entries, self._b.entries
        while a and b:
            (key_a, entry_a), (key_b, entry_b) = a[-1], b[-1]
            if key_a <= key_b:
                a.pop()
            if key_b <= key_a:
                b.pop()
            if key_a < key_b:
                yield key_a, entry_a, None
            elif key_b < key_a:
                yield key_b, None, entry_b
            elif entry_a != entry_b:
                yield key_a, entry_a, entry_b

    def _descend(self) -> None:
        """If both sides have the same next subtree, skip it. Otherwise open the higher of the two or, if they have the
        same height, the one that begins first (both if they begin at the same key). Call this only while no leaf is
        open on either side."""
        a, b = self._a.subtrees, self._b.subtrees
        if not (a and b):
            self._open(self._a if a else self._b)
        elif a[-1].id == b[-1].id:
            a.pop()
            b.pop()
        elif a[-1].height != b[-1].height:
            self._open(self._a if a[-1].height > b[-1].height else self._b)
        else:
            lower = min(a[-1].lower, b[-1].lower)
            for side in [side for side in (self._a, self._b) if side.subtrees[-1].lower == lower]:
                self._open(side)

    def _open(self, side: _Side) -> None:
        id = side.subtrees[-1].id
        if id not in self._loaded:
            wanted = self._soon(id)
            self._loaded.update(load(self._read, wanted))
            if not side.subtrees[-1].height:
                self._batch = min(2 * self._batch, PREFETCH)
        side.open(self._loaded.pop(id))

    def _soon(self, id: int) -> list[int]:
        """Return the ids of the shards to read now in one batch: `id` and, from each side, the next few shards of the
        same height.

        Shards that both sides share are left out, because they are skipped without being read, and so are shards that
        are already loaded. If the next subtrees of the two sides differ in height, return only `id`.
        """
        tops = [side.subtrees for side in (self._a, self._b) if side.subtrees]
        if len({subtrees[-1].height for subtrees in tops}) > 1:
            return [id]
        height = tops[0][-1].height
        shared = {node.id for node in self._a.subtrees} & {node.id for node in self._b.subtrees}
        wanted = {id: None}
        batch = 1 if height else self._batch
        for subtrees in tops:
            near = [node.id for node in subtrees[-batch:][::-1] if node.height == height]
            wanted.update(dict.fromkeys([near_id for near_id in near if near_id not in shared]))
        return [near_id for near_id in wanted if near_id not in self._loaded]
