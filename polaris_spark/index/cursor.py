"""Reading the tree of an index: look-ups, and scans in both directions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from polaris_spark.index.entries import Entry
from polaris_spark.index.root import ShardReader, as_branch, as_leaf, load
from polaris_spark.index.shards import Branch, Leaf

PREFETCH = 16
"""Maximum number of leaves that a scan reads in one batch. The first batch is one leaf; each later batch has twice as
many leaves as the one before, up to this maximum."""


def find(read: ShardReader, shard: int, height: int, key: bytes) -> Entry | None:
    """Return the entry of one key in the tree below `shard`, which has `height` levels of branches; None if absent.

    Raises:
        CorruptionError: a shard is missing or invalid.
    """
    for _ in range(height):
        branch = as_branch(load(read, (shard,))[shard], shard)
        shard = branch.children[bisect_right(branch.separators, key)]
    leaf = as_leaf(load(read, (shard,))[shard], shard)
    return _find_in_leaf(leaf, key)


def find_many(read: ShardReader, shard: int, height: int, keys: Sequence[bytes]) -> list[Entry | None]:
    """Return the entries of several keys, in the order of `keys` (None: absent), with one batched read for each level
    of the tree.

    Raises:
        CorruptionError: a shard is missing or invalid.
    """
    at = [shard] * len(keys)
    for _ in range(height):
        shards = load(read, dict.fromkeys(at))
        for position, key in enumerate(keys):
            branch = as_branch(shards[at[position]], at[position])
            at[position] = branch.children[bisect_right(branch.separators, key)]
    shards = load(read, dict.fromkeys(at))
    return [_find_in_leaf(as_leaf(shards[id], id), key) for id, key in zip(at, keys, strict=True)]


class Scan:
    """A scan from the key `start`, inclusive, to the key `end`, exclusive (None: to the last), ascending or, if
    `reverse`, descending. Shards are read lazily, in batches of growing size."""

    def __init__(self, read: ShardReader, start: bytes, end: bytes | None, *, reverse: bool) -> None:
        self._read = read
        self._start, self._end, self._reverse = start, end, reverse
        self._batch = 1

    def entries(self, shard: int, height: int) -> Iterator[tuple[bytes, Entry]]:
        """Yield the keys of the scan that are below `shard`, with their entries. `shard` has `height` levels of
        branches."""
        step = -1 if self._reverse else 1
        for leaf in self._leaves((shard,), height):
            keys = leaf.keys
            low = bisect_left(keys, self._start)
            high = len(keys) if self._end is None else bisect_left(keys, self._end)
            pointers, values = leaf.pointers, leaf.values
            for i in range(low, high)[::step]:
                yield keys[i], Entry(pointers[i], values[i])

    def leaves(self, shard: int, height: int) -> Iterator[Leaf]:
        """Return the leaves below `shard` that may contain keys of the scan. The first and the last leaf can also
        contain keys outside the bounds of the scan."""
        return self._leaves((shard,), height)

    def keys(self, shard: int, height: int) -> Iterator[list[bytes]]:
        """Yield the keys of the scan without their entries, as one ascending list for each leaf."""
        for leaf in self._leaves((shard,), height):
            keys = leaf.keys
            low = bisect_left(keys, self._start)
            yield keys[low : len(keys) if self._end is None else bisect_left(keys, self._end)]

    def _leaves(self, ids: Sequence[int], height: int) -> Iterator[Leaf]:
        position = 0
        while position < len(ids):
            batch = ids[position : position + (1 if height else self._batch)]
            position += len(batch)
            shards = load(self._read, batch)
            for id in batch:
                if height:
                    branch = as_branch(shards[id], id)
                    yield from self._leaves(self._children(branch), height - 1)
                else:
                    yield as_leaf(shards[id], id)
            if not height:
                self._batch = min(2 * self._batch, PREFETCH)

    def _children(self, branch: Branch) -> tuple[int, ...]:
        separators = branch.separators
        low = bisect_right(separators, self._start)
        high = len(separators) if self._end is None else bisect_left(separators, self._end)
        children = branch.children[low : high + 1]
        return children[::-1] if self._reverse else children


def _find_in_leaf(leaf: Leaf, key: bytes) -> Entry | None:
    keys = leaf.keys
    position = bisect_left(keys, key)
    if position < len(keys) and keys[position] == key:
        return leaf.entry(position)
    return None
