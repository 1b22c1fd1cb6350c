"""Spilling: moving embedded changes of an index root into the tree by rewriting few shards.

The changes are grouped by the leaf to which their keys belong. The leaves with the most changes per rewritten shard are
rewritten first, until the embedded changes take only half the quota (the maximum size of the embedded part). The new
tree shares with the old tree all shards that are not on the path from the root to a rewritten leaf.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from polaris_spark.index.entries import PendingEntry, embedded_size
from polaris_spark.index.nodes import Node, branch_nodes, joined_leaf, leaf_nodes
from polaris_spark.index.root import IndexRoot, IndexSettings, ShardReader, as_branch, as_leaf, load
from polaris_spark.index.shards import Branch, FrontCoded, Leaf, Shard


class Spilled(NamedTuple):
    """The result of a spill: the root of the new tree, the new shards with their ids (children before parents), and the
    changes that stay embedded. The root in `tree` does not contain the embedded changes; the caller adds them."""

    tree: IndexRoot
    shards: list[tuple[int, Shard]]
    embedded: dict[bytes, PendingEntry]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a spill. The changes that stay embedded take about half of `quota` bytes. Keys below `floor` are
    dropped, unless `floor` is None."""

    quota: int
    floor: bytes | None = None


class _Group(NamedTuple):
    """Keys with embedded changes that belong to one leaf. `leaf` is the leaf's id, `upper` the separator after the leaf
    (None if it is the last), and `parent` the id of the branch above it (0 if the leaf is the root)."""

    leaf: int
    upper: bytes | None
    keys: list[bytes]
    parent: int


def spill(
    root: IndexRoot,
    pending: Mapping[bytes, PendingEntry],
    limits: Limits,
    read: ShardReader,
    new_id: Callable[[], int],
    settings: IndexSettings,
) -> Spilled:
    """Move embedded changes into the tree until the rest takes about half of `limits.quota` bytes. Return the new tree.

    Args:
        root: the tree; the embedded part of `root` is ignored.
        pending: every embedded change, by key.
        new_id: returns a new object id at each call; called once for each new shard.
    Raises:
        CorruptionError: a shard is missing or unreadable.
    """
    floor = limits.floor
    if floor is not None and not root.shard:
        pending = {key: change for key, change in pending.items() if key >= floor}
    change = TreeChange(root, pending, floor, read, settings)
    groups = _choose(change.groups(), pending, limits, settings)
    gone = {key for group in groups for key in group.keys}
    nodes, height = change.apply(groups)
    kept = {
        key: value for key, value in pending.items() if key not in gone and (floor is None or key >= floor)
    }
    if not nodes:
        return Spilled(IndexRoot(), [], {key: value for key, value in kept.items() if value[2] is not None})
    shards: list[tuple[int, Shard]] = []
    shard = finish(nodes[0], new_id, shards)
    return Spilled(IndexRoot(shard, height, nodes[0].count), shards, kept)


def _choose(
    groups: Sequence[_Group], pending: Mapping[bytes, PendingEntry], limits: Limits, settings: IndexSettings
) -> list[_Group]:
    """Return the groups to move into the tree, in the order of their keys, each with only the keys that leave the
    embedded part."""
    floor = limits.floor
    sizes = {key: embedded_size(key, *pending[key][1:]) for group in groups for key in group.keys}
    recent = _recent(sizes, pending, int(limits.quota * settings.keep))
    chosen, others = [], []
    remaining = sum(sizes.values())
    for group in groups:
        if floor is not None and group.keys[0] < floor:
            remaining -= sum([sizes[key] for key in group.keys if key < floor])
            if group.upper is not None and group.upper <= floor:
                continue
            chosen.append(group)
            remaining -= sum([sizes[key] for key in group.keys if key >= floor])
        else:
            keys = [key for key in group.keys if key not in recent]
            if keys:
                others.append(group._replace(keys=keys))
    for group in _by_worth(others, pending):
        if remaining <= limits.quota // 2:
            break
        chosen.append(group)
        remaining -= sum([sizes[key] for key in group.keys])
    return sorted(chosen, key=lambda group: group.keys[0])


def _by_worth(groups: Sequence[_Group], pending: Mapping[bytes, PendingEntry]) -> list[_Group]:
    """Return groups in the order in which to rewrite their leaves: those with the most changed keys per rewritten shard
    come first.

    Rewriting a leaf also rewrites its branch, so the leaves of one branch are rewritten together. Branches are ordered
    by the number of their changed keys divided by the number of shards that are rewritten for them, highest first. The
    rewritten shards are the leaves with changed keys and the branch itself. Among equal branches, the one with the
    oldest change comes first.
    """
    keys, leaves, oldest = Counter[int](), Counter[int](), dict[int, int]()
    for group in groups:
        keys[group.parent] += len(group.keys)
        leaves[group.parent] += 1
        first = min([pending[key][0] for key in group.keys])
        oldest[group.parent] = min(oldest.get(group.parent, first), first)
    return sorted(
        groups,
        key=lambda group: (
            -keys[group.parent] / (leaves[group.parent] + 1),
            oldest[group.parent],
            -len(group.keys),
            min([pending[key][0] for key in group.keys]),
        ),
    )


def _recent(sizes: Mapping[bytes, int], pending: Mapping[bytes, PendingEntry], limit: int) -> set[bytes]:
    """Return the most recently changed keys, as many as fit in `limit` bytes."""
    recent: set[bytes] = set()
    for key in sorted(sizes, key=lambda key: pending[key][0], reverse=True):
        limit -= sizes[key]
        if limit < 0:
            break
        recent.add(key)
    return recent


def finish(node: Node, new_id: Callable[[], int], shards: list[tuple[int, Shard]]) -> int:
    """Assign ids to the new shards of a subtree, and append the shards with their ids to `shards`, children first.
    Return the id of the subtree's root."""
    if node.id:
        return node.id
    shard: Shard
    if node.leaf is not None:
        shard = node.leaf
    else:
        assert node.children is not None
        assert node.front_coded is not None
        ids = [finish(child, new_id, shards) for child in node.children]
        shard = Branch(node.front_coded, tuple(ids), tuple([child.count for child in node.children]))
    id = new_id()
    shards.append((id, shard))
    return id


class TreeChange:
    """One rewrite of a tree. Levels are counted from the leaves, which are level 0."""

    def __init__(
        self,
        root: IndexRoot,
        pending: Mapping[bytes, PendingEntry],
        floor: bytes | None,
        read: ShardReader,
        settings: IndexSettings,
    ) -> None:
        self._root = root
        self._pending = pending
        self._floor = floor
        self._read = read
        self._settings = settings
        self._loaded: dict[int, Shard] = {}
        self._keys: list[bytes] = []

    def groups(self) -> list[_Group]:
        """Return all keys with pending changes, grouped by leaf, in the order of the keys. Each level of branches takes
        one batched read."""
        keys = sorted(self._pending)
        spans: list[tuple[int, bytes | None, int, int, int]] = (
            [(self._root.shard, None, 0, len(keys), 0)] if keys else []
        )
        for _ in range(self._root.height):
            self._fetch([span[0] for span in spans])
            spans = [
                (
                    branch.children[child],
                    branch.separators[child] if child < len(branch.separators) else upper,
                    i,
                    j,
                    id,
                )
                for id, upper, low, high, _ in spans
                for branch in (self._branch(id),)
                for child, i, j in _routes(branch.separators, keys, low, high)
            ]
        return [_Group(id, upper, keys[low:high], parent) for id, upper, low, high, parent in spans]

    def apply(self, groups: Sequence[_Group]) -> tuple[list[Node], int]:
        """Return the tree with the groups' changes applied: a list with its root (empty if the tree is empty), and its
        height."""
        self._keys = [key for group in groups for key in group.keys]
        height = self._root.height
        if self._root.shard:
            self._fetch([group.leaf for group in groups])
            old = Node(b"", self._root.count, self._root.shard)
            nodes = self._rebuilt(old, height, 0, len(self._keys))
        else:
            nodes = leaf_nodes(self._changed(Leaf(FrontCoded()), self._keys), b"", self._settings)
        return self.rooted(nodes, height)

    def rooted(self, nodes: list[Node], height: int) -> tuple[list[Node], int]:
        """Return a list with a single root above `nodes`, and the height of this root. `height` is the height of the
        nodes. If there are no nodes, the list is empty."""
        while len(nodes) > 1:
            nodes = branch_nodes(nodes, b"", self._settings)
            height += 1
        while nodes and nodes[0].children is not None and len(nodes[0].children) == 1:
            nodes = list(nodes[0].children)
            height -= 1
        return nodes, height if nodes else 0

    def _rebuilt(self, node: Node, level: int, low: int, high: int) -> list[Node]:
        """Return the nodes that replace an old node after applying the changes of the keys at positions `low` to
        `high`."""
        if level == 0:
            leaf = self.leaf(node)
            changed = self._changed(leaf, self._keys[low:high])
            return [node] if changed is leaf else leaf_nodes(changed, node.lower, self._settings)
        children = self.children(node)
        separators = [child.lower for child in children[1:]]
        cut = 0 if self._floor is None else bisect_right(separators, self._floor)
        routes = {child: (i, j) for child, i, j in _routes(separators, self._keys, low, high)}
        if self._floor is not None and level > 1:
            routes.setdefault(cut, (low, low))
        result: list[Node] = []
        for position in range(cut, len(children)):
            child = children[position]
            result += self._rebuilt(child, level - 1, *routes[position]) if position in routes else [child]
        if result == children:
            return [node]
        balanced = self.balanced(result, level - 1)
        if node.id and separators == [child.lower for child in balanced[1:]]:
            return branch_nodes(balanced, node.lower, self._settings, self._branch(node.id).front_coded)
        return branch_nodes(balanced, node.lower, self._settings)

    def balanced(self, nodes: Sequence[Node], level: int) -> list[Node]:
        """Return sibling nodes at `level` after joining each small node with a neighbor."""
        nodes = list(nodes)
        position = 0
        while position < len(nodes) > 1:
            if nodes[position].id or not nodes[position].is_small(self._settings):
                position += 1
                continue
            left = position - 1 if self._goes_left(nodes, position) else position
            joined = self._joined(nodes[left], nodes[left + 1], level)
            nodes[left : left + 2] = joined
            position = left if len(joined) < 2 else left + len(joined)
        return nodes

    @staticmethod
    def _goes_left(nodes: Sequence[Node], position: int) -> bool:
        if position == 0 or position == len(nodes) - 1:
            return position > 0
        return nodes[position - 1].count < nodes[position + 1].count

    def _joined(self, left: Node, right: Node, level: int) -> list[Node]:
        if level == 0:
            return leaf_nodes(joined_leaf(self.leaf(left), self.leaf(right)), left.lower, self._settings)
        children = self.balanced([*self.children(left), *self.children(right)], level - 1)
        return branch_nodes(children, left.lower, self._settings)

    def _changed(self, leaf: Leaf, keys: Sequence[bytes]) -> Leaf:
        """Return the leaf with the pending changes of `keys` applied and keys below the floor dropped. If nothing
        changes, return `leaf` itself."""
        replaced = self._replaced(leaf, keys) if self._floor is None else None
        if replaced is not None:
            return replaced
        entries = dict(zip(leaf.keys, zip(leaf.pointers, leaf.values, strict=True), strict=True))
        before = entries.copy()
        for key in keys:
            _, pointer, value = self._pending[key]
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = (pointer, value)
        if self._floor is not None:
            entries = {key: entry for key, entry in entries.items() if key >= self._floor}
        if entries == before:
            return leaf
        after = sorted(entries)
        pointers, values = zip(*[entries[key] for key in after], strict=True) if after else ((), ())
        return Leaf.of(after, pointers, list(values), leaf.front_coded if after == leaf.keys else None)

    def _replaced(self, leaf: Leaf, keys: Sequence[bytes]) -> Leaf | None:
        """Return the leaf with new pointers and values of `keys`, if the leaf has all these keys and no key is removed;
        otherwise None."""
        present = leaf.keys
        pointers, values = list(leaf.pointers), list(leaf.values)
        for key in keys:
            _, pointer, value = self._pending[key]
            position = bisect_left(present, key)
            if value is None or position == len(present) or present[position] != key:
                return None
            pointers[position], values[position] = pointer, value
        if tuple(pointers) == leaf.pointers and values == leaf.values:
            return leaf
        return Leaf.of(present, pointers, values, leaf.front_coded)

    def children(self, node: Node) -> list[Node]:
        """Return the child nodes of a branch, which can be an old shard or a new node."""
        if node.children is not None:
            return list(node.children)
        branch = self._branch(node.id)
        lowers = [node.lower, *branch.separators]
        return [Node(*child) for child in zip(lowers, branch.counts, branch.children, strict=True)]

    def leaf(self, node: Node) -> Leaf:
        """Return the leaf of a leaf node, which can be an old shard or a new node."""
        if node.leaf is not None:
            return node.leaf
        self._fetch([node.id])
        return as_leaf(self._loaded[node.id], node.id)

    def _branch(self, id: int) -> Branch:
        self._fetch([id])
        return as_branch(self._loaded[id], id)

    def _fetch(self, ids: Sequence[int]) -> None:
        missing = [id for id in ids if id not in self._loaded]
        if missing:
            found = load(self._read, missing)
            self._loaded.update({id: found[id] for id in missing})


def _routes(
    separators: Sequence[bytes], keys: Sequence[bytes], low: int, high: int
) -> list[tuple[int, int, int]]:
    """Return which children the sorted keys at positions `low`, inclusive, to `high`, exclusive, belong to, as tuples
    (child, first position, end position)."""
    routes = []
    while low < high:
        child = bisect_right(separators, keys[low])
        stop = bisect_left(keys, separators[child], low, high) if child < len(separators) else high
        routes.append((child, low, stop))
        low = stop
    return routes
