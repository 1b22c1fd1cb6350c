"""Expiry of snapshots within a commit: retention, records of removed snapshots, and expiry by commits to a table.

A snapshot is removed first, and its files are deleted later. The commit that removes the snapshot also adds a record,
an `ExpiredSnapshots`, which keeps the rows of the removed snapshots. The index `expired` of a branch maps a table's
entity id and the record's id to the record. After the files are deleted, another commit removes the entry. So if a run
is interrupted between these commits, the next run finds all files that remain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.entities.entities import NamespaceName
from polaris_spark.catalog.entities.properties import GC_ENABLED, MAX_REF_AGE, MAX_SNAPSHOT_AGE, MIN_SNAPSHOTS
from polaris_spark.catalog.metadata import logs
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.pieces import key_of
from polaris_spark.catalog.metadata.rows import ObjectReader, Table
from polaris_spark.catalog.metadata.rows import Snapshot as TableSnapshot
from polaris_spark.catalog.metadata.snapshot_history import read_entries
from polaris_spark.catalog.metadata.table_updates import apply_all
from polaris_spark.catalog.rows import NAMES, NAMESPACE, Namespace, id_bytes, id_from
from polaris_spark.catalog.tables.schema_merge import is_on
from polaris_spark.commits.state import CommitReader, State, reading_state
from polaris_spark.errors import BadRequestError
from polaris_spark.index import Entry, Index, IndexRoot
from polaris_spark.index.keys import entry_keys_upwards, key_after
from polaris_spark.objects import Strong, object_type

EXPIRED = "expired"
"""Name of an index of a branch. It maps a table's entity id and the object id of a record to an `ExpiredSnapshots`."""

EXPIRE_ON_COMMIT = "polaris.expire-on-commit"

_FOREVER_MS = 2**63 - 1
_DEFAULTS = {
    MAX_SNAPSHOT_AGE: 5 * 24 * 3_600_000,
    MIN_SNAPSHOTS: 1,
    MAX_REF_AGE: _FOREVER_MS,
}
"""Default values of retention properties, as in Iceberg's `TableProperties`. Ages are in milliseconds."""

RECORD_PIECES = 10_000
"""Maximum number of snapshots in one `ExpiredSnapshots`. The same limit holds for its statistics files, and for its
partition statistics files."""

DROPPED_BY_A_COMMIT = 100
"""Maximum number of snapshots that one commit to a table expires. The next commit expires more."""

_NAMESPACES = 1_024
"""Number of namespaces whose properties are cached."""

Properties = Mapping[str, str]


class Retention(NamedTuple):
    """Retention settings of a table. They apply to branches and tags of the table that do not set their own."""

    older_than: int
    """Time in milliseconds since 1970; snapshots that are older may be removed."""
    min_snapshots: int
    max_ref_age_ms: int


def gc_enabled(levels: Sequence[Properties]) -> bool:
    """Whether files of a table or catalog may be deleted. Every job and `PURGE` checks this before it deletes files.

    The first of `levels` that sets `gc.enabled` decides. A value other than `true` forbids deletion. If no level sets
    the property, deletion is allowed.

    Args:
        levels: properties of the table, its namespaces from the nearest upwards, and the catalog.
    """
    return (_nearest(levels, GC_ENABLED) or "true").lower() == "true"


def retention(
    levels: Sequence[Properties],
    now_ms: int,
    *,
    older_than: int | None = None,
    retain_last: int | None = None,
) -> Retention:
    """Return the retention settings of a table.

    Args:
        levels: properties of the table, its namespaces from the nearest upwards, and the catalog.
        now_ms: current time, in milliseconds since 1970.
        older_than: a time, in milliseconds since 1970, that replaces the time computed from the maximum snapshot age.
        retain_last: replaces the minimum number of snapshots in the properties.
    Raises:
        BadRequestError: a property is not a whole number.
    """
    if older_than is None:
        older_than = now_ms - _number(levels, MAX_SNAPSHOT_AGE)
    if retain_last is None:
        retain_last = _number(levels, MIN_SNAPSHOTS)
    return Retention(older_than, retain_last, _number(levels, MAX_REF_AGE))


def namespace_levels(state: State, namespace: NamespaceName) -> list[Properties]:
    """Return the properties of a namespace and of the namespaces above it, the nearest first."""
    found: list[Properties] = []
    for key in reversed(entry_keys_upwards(namespace, NAMESPACE)):
        entry = state.lookup(NAMES, key)
        if entry is not None:
            found.append(state.get(entry.pointer, Namespace).properties)
    return found


class Levels:
    """Properties of the namespaces in a commit, and of the catalog."""

    def __init__(self, reader: CommitReader, catalog: Properties) -> None:
        state = reading_state(reader)

        def levels(namespace: NamespaceName) -> tuple[Properties, ...]:
            state.begin()  # forget what was read for another namespace
            return (*namespace_levels(state, namespace), catalog)

        self.of = lru_cache(_NAMESPACES)(levels)
        """Function that returns the properties of a namespace, then of its parents from the nearest upwards, then of
        the catalog."""


def _nearest(levels: Sequence[Properties], name: str) -> str | None:
    return next((level[name] for level in levels if name in level), None)


def _number(levels: Sequence[Properties], name: str) -> int:
    text = _nearest(levels, name)
    if text is None:
        return _DEFAULTS[name]
    try:
        return int(text)
    except ValueError:
        raise BadRequestError(f"the property {name} is {text!r}; it must be a whole number") from None


@object_type("expired-snapshots", revision=1)
class ExpiredSnapshots(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Record of snapshots that one commit removed from a table and whose files are not deleted yet."""

    entity_id: int
    time: int
    """Time of the commit that removed the snapshots, in milliseconds since 1970."""
    snapshots: tuple[Strong, ...]
    statistics: tuple[Strong, ...]
    partition_statistics: tuple[Strong, ...]
    after: Strong
    """Object id of the table's content after the commit that removed the snapshots. Expiry reads it if the table was
    dropped later and the commit that dropped it is no longer in the history."""


def record_expired(state: State, before: Table, removed: Collection[int], after: int, now_ms: int) -> None:
    """Record that a commit removes snapshots from a table.

    Args:
        before: the table before the commit; ids of snapshots that it does not have are ignored.
        after: object id of the table's content after the commit.
        now_ms: time of the commit, in milliseconds since 1970.
    """
    pieces = removed_pieces(before, removed, state)
    snapshots, statistics, partition_statistics = pieces
    most = max(map(len, pieces))
    for start in range(0, most, RECORD_PIECES):
        record = ExpiredSnapshots(
            before.entity_id,
            now_ms,
            tuple(snapshots[start : start + RECORD_PIECES]),
            tuple(statistics[start : start + RECORD_PIECES]),
            tuple(partition_statistics[start : start + RECORD_PIECES]),
            after,
        )
        add_record(state, record)


def add_record(state: State, record: ExpiredSnapshots) -> None:
    """Add a record of removed snapshots."""
    id = state.add(record)
    state.put(EXPIRED, expired_key(record.entity_id, id), Entry(id))


class RemovedPieces(NamedTuple):
    """Object ids of the rows of removed snapshots, of their statistics, and of their partition statistics."""

    snapshots: Sequence[int]
    statistics: Sequence[int]
    partition_statistics: Sequence[int]


def removed_pieces(table: Table, removed: Collection[int], reader: ObjectReader) -> RemovedPieces:
    """Return the object ids of the rows that are removed with snapshots of a table.

    Args:
        removed: ids of the removed snapshots; ids that the table does not have are ignored.
    """
    roots = (table.snapshots, table.statistics, table.partition_statistics)
    return RemovedPieces(*(list(_pieces(root, removed, reader)) for root in roots))


def expired_key(entity_id: int, record: int) -> bytes:
    """Return the key of an `ExpiredSnapshots` in the index `expired`.

    Args:
        entity_id: entity id of the table.
        record: object id of the `ExpiredSnapshots`.
    """
    return id_bytes(entity_id) + id_bytes(record)


def entity_of(key: bytes) -> int:
    """Return the entity id of the table in a key of the index `expired`."""
    return id_from(key)


def _pieces(root: IndexRoot, snapshot_ids: Collection[int], reader: ObjectReader) -> Iterator[int]:
    """Yield the pointers in an index whose keys begin with one of the given snapshot ids."""
    index = Index(root, reader.read_shards)
    for id in snapshot_ids:
        for _, entry in index.range(key_of(id), key_after(key_of(id) + b"\xff" * 4)):
            yield entry.pointer


def expire_on_commit(
    draft: TableDraft, state: State, namespace: NamespaceName, catalog: Properties
) -> list[int]:
    """Remove the oldest snapshots of a table from a draft (the table with pending changes), if the draft adds a
    snapshot and the table property `polaris.expire-on-commit` is true.

    The number of rows read does not grow with the number of snapshots. This function reads the oldest items of the
    snapshot log, the ancestors that each branch keeps regardless of age, and the removed snapshots. It removes only
    snapshots that Iceberg's own expiry would remove, too. Snapshots that are neither in the snapshot log nor ancestors
    of a removed snapshot are left to the procedure `expire`. These are, for example, snapshots that were only committed
    to another branch.

    Args:
        namespace: namespace of the table.
        catalog: properties of the catalog.
    Returns:
        ids of the snapshots that were removed.
    Raises:
        BadRequestError: a property is not a whole number.
    """
    base = draft.base
    if (
        base is None
        or not draft.added_snapshots
        or not is_on(draft.properties, EXPIRE_ON_COMMIT, default=False)
    ):
        return []
    levels = [draft.properties, *namespace_levels(state, namespace), catalog]
    if not gc_enabled(levels):
        return []
    kept = retention(levels, draft.now_ms)
    oldest = _oldest(base, draft.reader, kept.older_than)
    if not oldest:
        return []
    limit, needed = _needed(draft, kept)
    needed.update(draft.added_snapshots)
    dropped: dict[int, None] = {}
    for facts in _facts(draft, oldest):
        if len(dropped) >= DROPPED_BY_A_COMMIT:
            break
        at: SnapshotFacts | None = facts
        # A snapshot that one commit both added and replaced was never current, so it is not in the snapshot log.
        while (
            at is not None
            and at.timestamp_ms < limit
            and at.snapshot_id not in needed
            and at.snapshot_id not in dropped
        ):
            dropped[at.snapshot_id] = None
            if len(dropped) >= DROPPED_BY_A_COMMIT:
                break
            parent = at.parent_snapshot_id
            at = None if parent is None else next(iter(_facts(draft, [parent])), None)
    if dropped:
        apply_all(draft, [{"action": "remove-snapshots", "snapshot-ids": list(dropped)}])
    return list(dropped)


def _oldest(table: Table, reader: ObjectReader, older_than: int) -> list[int]:
    """Return the ids of the snapshots that became current before `older_than` (milliseconds since 1970), oldest first.

    Only the first `DROPPED_BY_A_COMMIT` entries of the table's snapshot log are considered.
    """
    first = logs.first(table.snapshot_log, DROPPED_BY_A_COMMIT, reader)
    entries = read_entries(b",".join(first))
    return list(dict.fromkeys(entry.snapshot_id for entry in entries if entry.timestamp_ms < older_than))


def _facts(draft: TableDraft, ids: Collection[int]) -> list[SnapshotFacts]:
    """Return facts about the given snapshots. Snapshots that the stored table does not have are left out."""
    pointers = [place.pointer for id in ids if (place := draft.snapshots.place(id)) is not None]
    found = draft.reader.get_many(pointers, TableSnapshot) if pointers else {}
    return [read_snapshot(found[pointer].text) for pointer in pointers]


def _needed(draft: TableDraft, kept: Retention) -> tuple[int, set[int]]:
    """Return which snapshots must be kept.

    Returns:
        a time, in milliseconds since 1970, and a set of snapshot ids. A snapshot must be kept if it is not older than
        this time, or if its id is in the set.
    """
    limit, needed = kept.older_than, set()
    branches: list[tuple[int, int]] = []
    for ref in draft.refs.values():
        needed.add(ref.snapshot_id)
        facts = read_ref_facts(ref.text)
        if facts.type != "branch":
            continue
        if facts.max_snapshot_age_ms is not None:
            limit = min(limit, draft.now_ms - facts.max_snapshot_age_ms)
        least = kept.min_snapshots if facts.min_snapshots_to_keep is None else facts.min_snapshots_to_keep
        branches.append((-least, ref.snapshot_id))
    return limit, needed | _nearest_ancestors(draft, branches)


def _nearest_ancestors(draft: TableDraft, branches: list[tuple[int, int]]) -> set[int]:
    """Return the ids of the snapshots that branches keep regardless of age. Each snapshot is read once, even if several
    branches share it.

    Args:
        branches: for each branch, the number of snapshots that it keeps, negated, and the id of its newest snapshot.
    """
    found: set[int] = set()
    heapify(branches)
    while branches:  # the branch that keeps most comes first, so no snapshot has to be visited again
        draft.check_time()
        left, at = heappop(branches)
        if not left or at in found:
            continue
        snapshot = draft.snapshots.get(at)
        if snapshot is not None:
            found.add(at)
            parent = snapshot.get("parent-snapshot-id")
            if parent is not None:
                heappush(branches, (left + 1, parent))
    return found


class SnapshotFacts(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    """Fields of a snapshot in a table's metadata that expiry reads."""

    snapshot_id: int
    timestamp_ms: int
    parent_snapshot_id: int | None = None
    manifest_list: str | None = None
    manifests: tuple[str, ...] = ()
    """Locations of the manifests of a format version 1 snapshot that has no manifest list."""
    schema_id: int | None = None


class RefFacts(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    """Fields of a branch or tag in a table's metadata that expiry reads."""

    snapshot_id: int
    type: str
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None


read_snapshot = msgspec.json.Decoder(SnapshotFacts).decode
read_ref_facts = msgspec.json.Decoder(RefFacts).decode
