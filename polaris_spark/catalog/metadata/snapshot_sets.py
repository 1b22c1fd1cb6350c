"""The snapshots of one version of a table: which they are, and what has changed since another version.

A client that keeps the snapshots of a version asks for the changes since then, which costs what has changed: the two
indexes share all other shards.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.metadata.pieces import placed, snapshot_id_of
from polaris_spark.catalog.metadata.rows import ObjectReader, Snapshot, Table
from polaris_spark.index import Index, diff

_DIGEST_BYTES = 12

_encode = msgspec.msgpack.Encoder().encode


class SnapshotChanges(NamedTuple):
    """What leads from the snapshots of one version to those of another."""

    removed: list[int]
    """Ids of snapshots to be taken away first."""
    added: list[bytes]
    """JSON texts of snapshots to be added at the end, in their order."""


def fingerprint(table: Table) -> str:
    """Identifies a set of snapshots within a table, as hexadecimal digits: equal ones hold the same snapshots.

    Commits that leave the snapshots alone keep it.
    """
    return hashlib.blake2b(_encode(table.snapshots), digest_size=_DIGEST_BYTES).hexdigest()


def all_named(table: Table) -> bool:
    """Whether branches and tags name every snapshot, as far as the table's row alone tells."""
    root = table.snapshots
    held = len(root.values) - root.values.count(None)
    return table.more_refs is None and not root.shard and held == len({ref.snapshot_id for ref in table.refs})


def all_snapshots(table: Table, reader: ObjectReader) -> SnapshotChanges:
    """Every snapshot of a version."""
    index = Index(table.snapshots, reader.read_shards)
    return SnapshotChanges([], _texts([(order, pointer) for _, pointer, order in placed(index)], reader))


def changes_between(old: Table, new: Table, reader: ObjectReader) -> SnapshotChanges | None:
    """What leads from the snapshots of `old` to those of `new`.

    None if it takes more than removing some and adding others at the end: when `new` is the older one and holds
    snapshots that were removed since, or when the two come from different branches.
    """
    removed: list[int] = []
    added: list[tuple[int, int]] = []
    for key, before, after in diff(old.snapshots, new.snapshots, reader.read_shards):
        if before is not None:
            removed.append(snapshot_id_of(key))
        if after is not None:
            added.append((int.from_bytes(after.value, "big"), after.pointer))
    if any(order < old.next_order for order, _ in added):
        return None
    return SnapshotChanges(removed, _texts(added, reader))


def _texts(places: list[tuple[int, int]], reader: ObjectReader) -> list[bytes]:
    """The texts of snapshots at (position, pointer), by position."""
    pointers = [pointer for _, pointer in sorted(places)]
    found = reader.get_many(pointers, Snapshot) if pointers else {}
    return [found[pointer].text for pointer in pointers]
