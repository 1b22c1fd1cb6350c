"""An object store in memory that encodes and decodes rows, and counts reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import msgspec

from polaris_spark.index import Shard
from polaris_spark.objects import decode, encode

S = TypeVar("S", bound=msgspec.Struct)


class MemoryObjects:
    """An object store that is a dictionary of encoded rows."""

    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}
        self.last_id = 0
        self.read = 0
        self.written = 0

    def new_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def write(self, rows: list[tuple[int, msgspec.Struct]]) -> None:
        for id, value in rows:
            self.rows[id] = encode(value)
            self.written += 1

    def put(self, value: msgspec.Struct) -> int:
        id = self.new_id()
        self.write([(id, value)])
        return id

    def get(self, id: int, cls: type[S]) -> S:
        self.read += 1
        value = decode(self.rows[id], str(id)).value
        assert isinstance(value, cls)
        return value

    def get_many(self, ids: Collection[int], cls: type[S]) -> Mapping[int, S]:
        return {id: self.get(id, cls) for id in ids}

    def prefetch(self, ids: Collection[int]) -> None:
        assert set(ids) <= set(self.rows)

    @property
    def read_shards(self) -> Callable[[Collection[int]], Mapping[int, Shard]]:
        return self._read_shards

    def _read_shards(self, ids: Collection[int]) -> Mapping[int, Shard]:
        found: dict[int, Any] = {}
        for id in ids:
            self.read += 1
            found[id] = decode(self.rows[id], str(id)).value
        return found
