"""The root of an index, the sizes of its shards, and the interface for reading shards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from polaris_spark.errors import CorruptionError, InputError
from polaris_spark.index.shards import Branch, Leaf, Shard
from polaris_spark.objects import Strong

ShardReader: TypeAlias = Callable[[Collection[int]], Mapping[int, Shard]]
"""Type of a function that reads shards in one batch and returns them, decoded, by id. The function leaves out ids that
do not exist, or raises an error for them. The index does not cache shards, so the function should."""


class IndexRoot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A whole index as one immutable value, stored within a commit or a table object.

    The embedded part (`keys`, `pointers`, `values`) holds recent changes that are not in the tree yet, oldest first.
    These changes override the tree. A value of None means that the key is removed.
    """

    shard: Strong = 0
    """Id of the root shard of the tree; 0 if the tree is empty."""
    height: int = 0
    """Number of levels of branches above the leaves."""
    count: int = 0
    """Number of entries in the tree; embedded changes are not counted."""
    keys: tuple[bytes, ...] = ()
    pointers: tuple[Strong, ...] = ()
    values: tuple[bytes | None, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Sizes of shards, as bytes of their rows. The sizes apply when shards are written; shards of any size can be read.

    The defaults come from `benchmarks/index_sizes.py`, for 100,000 tables, where each commit changes a random table.
    The quota is the maximum size of the embedded changes (see `IndexRoot`). With a quota of 4 KiB, a commit writes on
    average this many thousand bytes, as embedded changes + as shards:

        maximum size of a shard   2 KiB      4 KiB      6 KiB      8 KiB
        embedded + shards         3.0 + 1.7  3.0 + 2.8  3.0 + 3.7  3.0 + 4.6

    With shards of up to 6 KiB, the tree has 370 leaves of about 4 KB under two branches and a root, and a spill, every
    60 commits, writes 48 shards. Quotas of 2, 6 and 8 KiB give totals of 5.8, 7.6 and 8.7 thousand bytes. If the newest
    changes, up to an eighth of the quota, stay embedded at a spill, a commit writes 2 to 4 % more bytes than if none
    stay; for a quarter, it is 4 to 8 %.
    """

    max_shard_bytes: int = 6144
    """Maximum size of a shard, in bytes. A larger shard is split, unless it has too few entries to split."""
    min_shard_bytes: int = 2048
    """Minimum size of a shard, in bytes. A smaller shard is merged with a neighbor, unless it is the root."""
    fill: float = 0.7
    """Size of the shards that result from a split, as a fraction of `max_shard_bytes`."""
    keep: float = 0.125
    """Fraction of the quota (maximum size of the embedded changes) that stays embedded for the most recent changes when
    the others are moved into the tree."""

    def __post_init__(self) -> None:
        if not 0 < self.min_shard_bytes * 2.5 <= self.max_shard_bytes:
            raise InputError(
                f"min_shard_bytes={self.min_shard_bytes} must be above 0 and at most 0.4 of "
                f"max_shard_bytes={self.max_shard_bytes}: otherwise the halves of a split shard would be merged again"
            )
        if not 0.5 <= self.fill <= 1:
            raise InputError(f"fill={self.fill} must be between 0.5 and 1")
        if not 0 <= self.keep <= 0.5:
            raise InputError(
                f"keep={self.keep} must be between 0 and 0.5: a spill shrinks the embedded changes to about half "
                "the quota, so it cannot keep more than half of the quota embedded"
            )


def load(read: ShardReader, ids: Collection[int]) -> Mapping[int, Shard]:
    """Return all shards with these ids, by id.

    Raises:
        CorruptionError: a shard is missing.
    """
    found = read(ids)
    for id in ids:
        if id not in found:
            raise CorruptionError(f"shard {id} of an index is missing")
    return found


def as_leaf(shard: Shard, id: int) -> Leaf:
    """Return `shard`, if it is a leaf; otherwise raise CorruptionError. `id` is for the error message."""
    if not isinstance(shard, Leaf):
        raise CorruptionError(f"shard {id} of an index is a branch shard instead of a leaf shard")
    return shard


def as_branch(shard: Shard, id: int) -> Branch:
    """Return `shard`, if it is a branch; otherwise raise CorruptionError. `id` is for the error message."""
    if not isinstance(shard, Branch):
        raise CorruptionError(f"shard {id} of an index is a leaf shard instead of a branch shard")
    return shard
