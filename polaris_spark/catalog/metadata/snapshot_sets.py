"""The snapshots of one version of a table, and the differences between the snapshots of two versions.

A client that keeps the snapshots of one version can request only the changes since that version. The cost depends only
on the number of changes, because the snapshot indexes of the two versions share all shards without changes.
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
    """The changes that turn the snapshots of one version of a table into the snapshots of another version."""

    removed: list[int]
    """Ids of the snapshots to remove first, before the snapshots in `added` are appended."""
    added: list[bytes]
    """JSON texts of the snapshots to append, in this order."""


def fingerprint(table: Table) -> str:
    """Return an identifier of the snapshots of a table, as hexadecimal digits.

    Versions of one table with equal identifiers have the same snapshots.

    A commit that does not change the snapshots does not change the identifier.
    """
    return hashlib.blake2b(_encode(table.snapshots), digest_size=_DIGEST_BYTES).hexdigest()


def all_named(table: Table) -> bool:
    """Return whether branches and tags reference every snapshot, as far as the table's row alone shows.

    If the result is False, they may still reference every snapshot.
    """
    root = table.snapshots
    held = len(root.values) - root.values.count(None)
    return table.more_refs is None and not root.shard and held == len({ref.snapshot_id for ref in table.refs})


def all_snapshots(table: Table, reader: ObjectReader) -> SnapshotChanges:
    """Return all snapshots of a table as changes that add every snapshot and remove none."""
    index = Index(table.snapshots, reader.read_shards)
    return SnapshotChanges([], _texts([(order, pointer) for _, pointer, order in placed(index)], reader))


def changes_between(old: Table, new: Table, reader: ObjectReader) -> SnapshotChanges | None:
    """Return the changes that turn the snapshots of `old` into the snapshots of `new`.

    Return None if removing some snapshots and appending others cannot give the snapshots of `new` in their order. This
    occurs if `new` is the older version and has snapshots that `old` no longer has, or if the two versions come from
    different branches of the catalog.
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
    """Return the JSON texts of snapshots, ordered by sort key. Each snapshot is given as (sort key, pointer)."""
    pointers = [pointer for _, pointer in sorted(places)]
    found = reader.get_many(pointers, Snapshot) if pointers else {}
    return [found[pointer].text for pointer in pointers]
