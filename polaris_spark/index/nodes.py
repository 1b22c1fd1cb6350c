"""Nodes of an index tree that is being changed, and functions that split and join them.

A node is an old shard that has not been read, a new leaf, or a list of child nodes that will become a branch. New nodes
get ids only when the change to the tree is complete.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

from polaris_spark.index.root import IndexSettings
from polaris_spark.index.shards import FrontCoded, Leaf, branch_bytes, separator

_ENTRY_BYTES = 3
_POINTER_BYTES = 11


@dataclass(slots=True, eq=False)
class Node:
    """The root of a subtree. `lower` is the separator before the subtree, and `count` the number of its entries.
    Exactly one of `id` (an old shard), `leaf` and `children` is set. `size` is the size of a new node's row, in bytes.
    `front_coded` holds the separators between the children, if `children` is set.

    Do not change a node. The class is not frozen, because creating a frozen instance takes several times as long, and
    thousands of nodes are created at once when embedded changes are moved into the tree.
    """

    lower: bytes
    count: int
    id: int = 0
    leaf: Leaf | None = None
    children: Sequence[Node] | None = None
    front_coded: FrontCoded | None = None
    size: int = 0

    def is_small(self, settings: IndexSettings) -> bool:
        """Whether the node is new and so small that it must be joined with a sibling, if it has one."""
        lonely = self.children is not None and len(self.children) < 2
        return not self.id and (lonely or self.size < settings.min_shard_bytes)


def leaf_nodes(leaf: Leaf, lower: bytes, settings: IndexSettings) -> list[Node]:
    """Return the leaf as a list of nodes: one node, several if the leaf is too large, none if it is empty."""
    keys = leaf.keys
    if not keys:
        return []
    size = leaf.encoded_bytes
    if size <= settings.max_shard_bytes or len(keys) == 1:
        return [Node(lower, len(keys), leaf=leaf, size=size)]
    values = leaf.values
    costs = [
        _ENTRY_BYTES + key + len(value) + (_POINTER_BYTES if pointer else 0)
        for key, value, pointer in zip(leaf.front_coded.lengths, values, leaf.pointers, strict=True)
    ]
    nodes = []
    for low, high in _cut(costs, _pieces(size, settings), least=1):
        piece = Leaf.of(keys[low:high], leaf.pointers[low:high], values[low:high])
        nodes += leaf_nodes(piece, separator(keys[low - 1], keys[low]) if low else lower, settings)
    return nodes


def branch_nodes(
    children: Sequence[Node], lower: bytes, settings: IndexSettings, front_coded: FrontCoded | None = None
) -> list[Node]:
    """Return one branch over the children, or several branches if one would be too large; none if there are no
    children. Each branch has at least two children, unless there is only one child.

    Args:
        front_coded: the separators between the children, if the caller already has them; None to compute them.
    """
    if not children:
        return []
    if front_coded is None:
        front_coded = FrontCoded.of([child.lower for child in children[1:]])
    counts = [child.count for child in children]
    size = branch_bytes(front_coded, counts)
    if size <= settings.max_shard_bytes or len(children) < 4:
        return [Node(lower, sum(counts), children=tuple(children), front_coded=front_coded, size=size)]
    costs = [_ENTRY_BYTES + _POINTER_BYTES + length for length in (0, *front_coded.lengths)]
    nodes = []
    for low, high in _cut(costs, _pieces(size, settings), least=2):
        nodes += branch_nodes(children[low:high], children[low].lower if low else lower, settings)
    return nodes


def joined_leaf(left: Leaf, right: Leaf) -> Leaf:
    """Return the entries of two neighboring leaves as one leaf, even if it exceeds the maximum size."""
    return Leaf.of(left.keys + right.keys, left.pointers + right.pointers, left.values + right.values)


def _pieces(size: int, settings: IndexSettings) -> int:
    return max(2, ceil(size / (settings.max_shard_bytes * settings.fill)))


def _cut(costs: Sequence[int], pieces: int, *, least: int) -> list[tuple[int, int]]:
    """Return at most `pieces` consecutive ranges of positions, as (start, end). Each has at least `least` items, and
    their total costs are about equal."""
    count = len(costs)
    pieces = min(pieces, count // least)
    sums = list(accumulate(costs))
    bounds = [0]
    for piece in range(1, pieces):
        goal = sums[-1] * piece / pieces
        position = bisect_left(sums, goal)
        if sums[position] - goal < costs[position] / 2:
            position += 1
        bounds.append(min(max(position, bounds[-1] + least), count - least * (pieces - piece)))
    return list(zip(bounds, [*bounds[1:], count], strict=True))
