"""Compaction of indexes: rewrites the shards (nodes) of a reference's indexes into fewer, fuller shards.

Other processes can commit meanwhile. Compaction makes several commits. Each rewrites a group of consecutive leaves on
top of the current head. Recent changes to the keys of these leaves, which are still stored in the head's commit itself
(embedded), go into the new leaves. Leaves that are full enough stay as they are. These commits have no log entry,
because they change no table. A writer waits for at most one such commit. Compaction can be interrupted and repeated.

The indexes within tables (snapshots, statistics) are not compacted. Each has only a few shards, and loading a table
reads only the shards that it needs. Rewriting them would make a new version of the table for every client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from polaris_spark.commits.change import Change, Operation, Unrepeated
from polaris_spark.commits.settings import OPERATIONS
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import ReferenceGoneError
from polaris_spark.index import Branch, IndexRoot, Leaf
from polaris_spark.index.compaction import Compacted
from polaris_spark.objects import encode
from polaris_spark.system.registrations import is_tag
from polaris_spark.system.registry import ROOT, References

LEAVES = 64
"""Number of leaves that one commit rewrites. They have about 400 KiB, and rewriting them takes about 20 ms."""

_TOGETHER = 256


class IndexSize(NamedTuple):
    """The size of an index in one commit."""

    shards: int
    bytes: int
    """Total size of the shards' rows, in bytes."""
    depth: int
    """Number of levels of shards."""
    embedded: int
    """Size of the index changes that are stored in the commit itself, in bytes."""


class CompactionResult(NamedTuple):
    """The sizes of an index before and after its compaction."""

    reference: str
    index_name: str
    before: IndexSize
    after: IndexSize


def compact_reference(
    references: References,
    name: str,
    principal: str,
    *,
    leaves: int = LEAVES,
    progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
) -> Iterator[CompactionResult]:
    """Compact every index of a reference except the index `operations`, whose entries expire by themselves.

    When an index has been compacted, yield its sizes before and after.

    Args:
        principal: the user in whose name the commits are made.
        leaves: number of leaves that one commit rewrites.
        progress: called with the step, the number of leaves done, and the total.
    Raises:
        ReferenceGoneError: no live reference has this name.
    """
    for index in [one for one in _read(references, name).commit.index_names if one != OPERATIONS]:
        before = _read(references, name)
        start: bytes | None = b""
        done, total = 0, _leaf_count(before, index)
        while start is not None:
            change = _Portion(index, start, leaves, Operation(b"", principal))
            portion = references.root.commit(change) if name == ROOT else references.commit(name, change)
            start, done = portion.end, done + portion.leaves
            progress(f"compacting {index} of {name}", min(done, total), total)
        after = _read(references, name)
        yield CompactionResult(name, index, size_of(before, index), size_of(after, index))


class _Portion(Unrepeated, Change[None, Compacted]):
    """Change that rewrites a group of consecutive leaves of an index, if that reduces their number."""

    onto_protected = True

    def __init__(self, index: str, start: bytes, leaves: int, operation: Operation) -> None:
        self.index = index
        self.start = start
        self.leaves = leaves
        self.operation = operation

    def prepare(self, view: State) -> None:
        """Read the shards into the cache, so that `apply` does not make other changes wait for the database."""
        scratch = State(view.base, iter(range(1, 1 << 62)).__next__, rewrites=False)
        scratch.compact(self.index, self.start, self.leaves)

    def apply(self, state: State, prepared: None) -> Compacted:
        return state.compact(self.index, self.start, self.leaves)


def size_of(reader: CommitReader, name: str) -> IndexSize:
    """Return the size of the index `name` in a commit. Reads all shards of the index."""
    index = reader.index(name)
    tree = index.tree
    shards = size = 0
    level = [tree.shard] if tree.shard else []
    while level:
        below: list[int] = []
        for start in range(0, len(level), _TOGETHER):
            for decoded in reader.store.read(level[start : start + _TOGETHER]).values():
                assert isinstance(decoded.value, Leaf | Branch)
                shards, size = shards + 1, size + len(encode(decoded.value))
                if isinstance(decoded.value, Branch):
                    below += decoded.value.children
        level = below
    return IndexSize(shards, size, tree.height + 1 if tree.shard else 0, index.embedded_bytes)


def _read(references: References, name: str) -> CommitReader:
    return references.root.read() if name == ROOT else references.read(name)


def _leaf_count(reader: CommitReader, name: str) -> int:
    tree: IndexRoot = reader.index(name).tree
    level = [tree.shard] if tree.shard else []
    for _ in range(tree.height):
        found = reader.store.get_many(level, Branch)
        level = [child for id in level for child in found[id].children]
    return len(level)


def names(references: References, asked: str | None) -> list[str]:
    """Return the names of the references to compact.

    Args:
        asked: the name of one reference, or None for every live reference that accepts commits and the registry.
    Raises:
        ReferenceGoneError: no live reference that accepts commits is named `asked`.
    """
    listed = [one for one in references.listed() if not is_tag(one.name)]
    live = [one.name for one in listed if one.registration.state == "live"]
    if asked is None:
        return [*live, ROOT]
    if asked not in (*live, ROOT):
        raise ReferenceGoneError(
            f"there is no live reference {asked!r}; the references are: {', '.join((*live, ROOT))}"
        )
    return [asked]
