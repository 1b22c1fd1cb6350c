"""A store of shards that counts reads, and functions that traverse trees."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import count
from typing import NamedTuple

from polaris_spark import objects
from polaris_spark.index import Branch, Entry, Index, IndexRoot, IndexSettings, Leaf, Shard

TINY = IndexSettings(max_shard_bytes=256, min_shard_bytes=80)
"""Shards of about ten entries, so that some hundred keys make several levels."""

FIRST_ID = 1 << 60


class Shelf:
    """Shards by id, stored as encoded rows. Every batch of reads is recorded."""

    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}
        self.batches: list[list[int]] = []
        self._ids = count(FIRST_ID)

    def new_id(self) -> int:
        return next(self._ids)

    def read(self, ids: Collection[int]) -> Mapping[int, Shard]:
        self.batches.append(list(ids))
        return {id: self.shard(id) for id in ids if id in self.rows}

    def shard(self, id: int) -> Shard:
        value = objects.decode(self.rows[id], str(id)).value
        assert isinstance(value, (Leaf, Branch))
        return value

    def write(self, shards: Collection[tuple[int, Shard]]) -> None:
        for id, shard in shards:
            assert id not in self.rows, "an immutable row is written twice"
            self.rows[id] = objects.encode(shard)

    def freeze(self, index: Index, quota: int = 0, floor: bytes | None = None) -> IndexRoot:
        root, shards = index.freeze(quota, self.new_id, floor=floor)
        self.write(shards)
        return root

    def root_of(
        self, entries: Mapping[bytes, Entry], settings: IndexSettings = TINY, quota: int = 0
    ) -> IndexRoot:
        index = Index(IndexRoot(), self.read, settings)
        for key, entry in entries.items():
            index.put(key, entry)
        return self.freeze(index, quota)

    def changed(
        self,
        root: IndexRoot,
        changes: Mapping[bytes, Entry | None],
        settings: IndexSettings = TINY,
        quota: int = 0,
        floor: bytes | None = None,
    ) -> IndexRoot:
        index = Index(root, self.read, settings)
        apply(index, changes)
        return self.freeze(index, quota, floor)

    def content(self, root: IndexRoot) -> dict[bytes, Entry]:
        return dict(Index(root, self.read).range())

    def reads(self) -> set[int]:
        """Return the ids that were read since the last call."""
        ids = {id for batch in self.batches for id in batch}
        self.batches.clear()
        return ids


class Placed(NamedTuple):
    id: int
    level: int
    shard: Shard
    row_bytes: int


def apply(index: Index, changes: Mapping[bytes, Entry | None]) -> None:
    for key, entry in changes.items():
        if entry is None:
            index.remove(key)
        else:
            index.put(key, entry)


def walk(root: IndexRoot, shelf: Shelf) -> Iterator[Placed]:
    """Every shard of a tree, the root first."""
    level = [root.shard] if root.shard else []
    for height in range(root.height, -1, -1):
        below: list[int] = []
        for id in level:
            shard = shelf.shard(id)
            yield Placed(id, height, shard, len(shelf.rows[id]))
            if isinstance(shard, Branch):
                below += shard.children
        level = below


def out_of_bounds(root: IndexRoot, shelf: Shelf, settings: IndexSettings) -> list[Placed]:
    """Return the shards above the maximum size, and the shards except the root below the minimum size."""
    return [
        placed
        for placed in walk(root, shelf)
        if placed.row_bytes > settings.max_shard_bytes
        or (placed.row_bytes < settings.min_shard_bytes and placed.id != root.shard)
    ]


def numbered(numbers: Collection[int], tag: int = 0) -> dict[bytes, Entry]:
    """Return entries with keys like those of tables. Another `tag` gives other pointers."""
    return {
        b"\x02ns\x01ttable_%06d" % number: Entry(FIRST_ID + 2**32 * (tag + 1) + number) for number in numbers
    }
