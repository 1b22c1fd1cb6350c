"""Compaction: rewrites partly filled leaves of an index into fewer, fuller leaves, a limited number at a time.

A split makes leaves that are half full, and only a leaf below the minimum size is merged with a neighbor of the same
branch. So an index that grew and shrank has more shards than necessary, and a full listing reads all of them.
Compaction does not change the content of the index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from polaris_spark.index.entries import Entry
from polaris_spark.index.nodes import Node, branch_nodes, leaf_nodes
from polaris_spark.index.root import IndexRoot, IndexSettings, ShardReader
from polaris_spark.index.shards import Leaf, Shard
from polaris_spark.index.spill import TreeChange, finish
from polaris_spark.index.tree import Index

COMPACT = IndexSettings(fill=0.9)
"""Settings for compaction: shards are nearly full, with some room so that the next changes do not split all of them."""

_WORTHWHILE = 0.9
"""Consecutive leaves are rewritten only if this reduces their number to at most this fraction."""


class Compacted(NamedTuple):
    """Result of compacting a run, which is a number of consecutive leaves."""

    start: bytes
    """Lower bound of the keys of the compacted leaves, inclusive."""
    end: bytes | None
    """Upper bound of the keys of the compacted leaves, exclusive; the next call should begin here. None if the last
    leaf was compacted."""
    leaves: int
    """Number of leaves before compaction."""
    tree: IndexRoot
    """The new tree, into which the embedded changes of the run's keys were moved; the old tree if the run was full
    enough."""
    shards: Sequence[tuple[int, Shard]]
    """New shards with their ids, children first. Empty if the tree is the old tree, or if the new tree is empty."""


class _Run(NamedTuple):
    """Consecutive leaves. They hold the keys from `start`, inclusive, to `end`, exclusive (None: to the last key)."""

    start: bytes
    end: bytes | None
    leaves: list[Node]


def compact(
    index: Index,
    start: bytes,
    leaves: int,
    read: ShardReader,
    new_id: Callable[[], int],
    settings: IndexSettings = COMPACT,
) -> Compacted:
    """Rewrite at most `leaves` consecutive leaves, beginning with the leaf to which `start` belongs. Return the new
    tree.

    `index` does not change.

    Args:
        start: a key; to continue an earlier call, the `end` that it returned.
        new_id: returns a new object id at each call; called once for each new shard.
    Raises:
        CorruptionError: a shard is missing or unreadable.
    """
    tree = index.tree
    if not tree.shard:
        return Compacted(b"", None, 0, tree, ())
    return _Compaction(index, tree, read, settings).run(start, leaves, new_id)


class _Compaction(TreeChange):
    def __init__(self, index: Index, tree: IndexRoot, read: ShardReader, settings: IndexSettings) -> None:
        super().__init__(tree, {}, None, read, settings)
        self._index = index
        self._top = Node(b"", tree.count, tree.shard)
        self._new: list[Node] = []

    def run(self, start: bytes, leaves: int, new_id: Callable[[], int]) -> Compacted:
        tree = self._root
        run = self._find(start, leaves)
        self._new = leaf_nodes(self._joined_run(run), run.start, self._settings)
        unchanged = Compacted(run.start, run.end, len(run.leaves), tree, ())
        if len(self._new) > _WORTHWHILE * len(run.leaves):
            return unchanged
        nodes, height = self.rooted(self._without(self._top, None, tree.height, run), tree.height)
        if not nodes:
            return Compacted(run.start, run.end, len(run.leaves), IndexRoot(), ())
        shards: list[tuple[int, Shard]] = []
        shard = finish(nodes[0], new_id, shards)
        new = IndexRoot(shard, height, nodes[0].count)
        return Compacted(run.start, run.end, len(run.leaves), new, shards)

    def _find(self, start: bytes, leaves: int) -> _Run:
        """Return the run of at most `leaves` leaves that begins with the leaf to which `start` belongs."""
        level: list[tuple[Node, bytes | None]] = [(self._top, None)]
        for _ in range(self._root.height):
            below: list[tuple[Node, bytes | None]] = []
            for node, upper in level:
                children = self.children(node)
                uppers = [child.lower for child in children[1:]]
                below += [
                    (child, bound)
                    for child, bound in zip(children, [*uppers, upper], strict=True)
                    if bound is None or bound > start
                ]
                if len(below) > leaves:
                    break
            level = below[: leaves + 1]
        chosen = level[:leaves]
        self._fetch([node.id for node, _ in chosen])
        return _Run(chosen[0][0].lower, chosen[-1][1], [node for node, _ in chosen])

    def _joined_run(self, run: _Run) -> Leaf:
        """Return all entries of the run, with the embedded changes applied, as one leaf, even if it exceeds the maximum
        size."""
        entries: dict[bytes, Entry | None] = {}
        for node in run.leaves:
            leaf = self.leaf(node)
            entries.update(zip(leaf.keys, map(Entry, leaf.pointers, leaf.values), strict=True))
        entries.update(self._index.embedded(run.start, run.end))
        keys = sorted(key for key, entry in entries.items() if entry is not None)
        listed = [entry for key in keys if (entry := entries[key]) is not None]
        return Leaf.of(keys, [entry.pointer for entry in listed], [entry.value for entry in listed])

    def _without(self, node: Node, upper: bytes | None, level: int, run: _Run) -> list[Node]:
        """Return the nodes that replace a subtree. The run's new leaves replace the first leaf of the run; its other
        leaves are removed."""
        if (run.end is not None and node.lower >= run.end) or (upper is not None and upper <= run.start):
            return [node]
        if not level:
            return self._new if node.lower == run.start else []
        children = self.children(node)
        uppers = [*(child.lower for child in children[1:]), upper]
        result: list[Node] = []
        for child, bound in zip(children, uppers, strict=True):
            result += self._without(child, bound, level - 1, run)
        balanced = self.balanced(result, level - 1)
        return branch_nodes(balanced, balanced[0].lower, self._settings) if balanced else []
