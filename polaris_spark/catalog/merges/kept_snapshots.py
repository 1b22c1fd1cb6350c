"""Snapshots that a branch keeps when a merge takes a table as it is in the other state.

The other state may lack snapshots of the branch: it has copies of them from an earlier merge (`table_merge`), or the
strategy `theirs` discards them. The branch keeps these snapshots, without a branch or tag of the table, as Iceberg
keeps them after a rollback. So time travel to them works as before, and the merge can be reverted. `expire` removes
them later.
"""

from __future__ import annotations

import msgspec

from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.pieces import IndexedPieces, snapshot_id_of
from polaris_spark.catalog.metadata.rows import ObjectReader, Table
from polaris_spark.catalog.metadata.table_updates import apply_all
from polaris_spark.catalog.metadata.texts import encode
from polaris_spark.catalog.metadata.transforms import check_readable
from polaris_spark.clock import CheckTime
from polaris_spark.errors import BadRequestError, CommitFailedError
from polaris_spark.index import IndexRoot, diff


def with_kept_snapshots(
    base: Table | None,
    ours: Table,
    theirs: Table,
    reader: ObjectReader,
    *,
    now_ms: int,
    check_time: CheckTime,
) -> TableDraft | None:
    """Return a draft of the version `theirs` of a table, to which the snapshots that the branch keeps are added.

    The branch keeps a snapshot if it is newer than the base, or if it is in the history of a branch or tag of the table
    and comes after all snapshots of this history that the other version stores. Other snapshots that the other version
    lacks have expired there.

    Args:
        base: the version at the common ancestor; None if the table did not exist there.
        ours: the version of the branch.
        theirs: the version that is taken.
    Returns:
        the draft; None if there is nothing to keep, or if the snapshots cannot be used in the other version. They
        cannot if it has a lower format version or other encryption keys, or if one id of a partition spec, sort order
        or column stands for different things in the two versions.
    """
    gone = _added(theirs.snapshots, ours.snapshots, reader)
    if not gone or not _compatible(base, ours, theirs):
        return None
    now_ms = max(now_ms, ours.last_updated_ms)
    mine, draft = (TableDraft(one, reader, now_ms=now_ms, check_time=check_time) for one in (ours, theirs))
    before = IndexRoot() if base is None else base.snapshots
    kept = _in_history(mine, gone) | (gone & _added(before, ours.snapshots, reader))
    if not kept:
        return None
    try:
        _add_numbered(mine, draft)
        schemas = _schema_ids(mine, draft)
    except (BadRequestError, CommitFailedError):
        return None
    for id in sorted(kept, key=lambda id: _order(mine.snapshots, id)):
        check_time()
        snapshot = dict(mine.snapshots.get(id) or {})
        if "schema-id" in snapshot:
            snapshot["schema-id"] = schemas.get(snapshot["schema-id"], snapshot["schema-id"])
        draft.snapshots.add(id, encode(snapshot), draft.take_order())
        _add_statistics(id, mine.statistics, draft, draft.statistics)
        _add_statistics(id, mine.partition_statistics, draft, draft.partition_statistics)
        draft.record("add-snapshot", id)
    draft.last_sequence_number = max(draft.last_sequence_number, ours.last_sequence_number)
    draft.next_row_id = max(draft.next_row_id, ours.next_row_id)
    return draft


def adds_only_snapshots(base: Table, ours: Table, reader: ObjectReader) -> bool:
    """Whether a version of a table differs from the base only by additional snapshots to which no branch or tag of the
    table refers. A merge can then take the other version and keep these snapshots (`with_kept_snapshots`)."""
    same = msgspec.structs.replace(
        ours,
        last_updated_ms=base.last_updated_ms,
        last_sequence_number=base.last_sequence_number,
        next_row_id=base.next_row_id,
        snapshots=base.snapshots,
        statistics=base.statistics,
        partition_statistics=base.partition_statistics,
        next_order=base.next_order,
        metadata_log=base.metadata_log,
        metadata_location=base.metadata_location,
    )
    if same != base:
        return False
    changed = list(diff(base.snapshots, ours.snapshots, reader.read_shards))
    added = {snapshot_id_of(key) for key, before, _ in changed if before is None}
    others = [
        (snapshot_id_of(key), before)
        for one in ("statistics", "partition_statistics")
        for key, before, _ in diff(getattr(base, one), getattr(ours, one), reader.read_shards)
    ]
    return len(added) == len(changed) and all(before is None and id in added for id, before in others)


def _added(before: IndexRoot, after: IndexRoot, reader: ObjectReader) -> set[int]:
    """Return the ids of the snapshots that are in the index `after` but not in the index `before`."""
    if before == after:
        return set()
    found = diff(before, after, reader.read_shards)
    return {snapshot_id_of(key) for key, old, _ in found if old is None}


def _compatible(base: Table | None, ours: Table, theirs: Table) -> bool:
    both_added_columns = ours.last_column_id != theirs.last_column_id and (
        base is None or base.last_column_id not in (ours.last_column_id, theirs.last_column_id)
    )
    return (
        ours.format_version <= theirs.format_version
        and ours.encryption_keys == theirs.encryption_keys
        and not both_added_columns
    )


def _in_history(draft: TableDraft, gone: set[int]) -> set[int]:
    """Return the ids of the snapshots in the history of each branch and tag of a table, from its newest snapshot back
    to the first one that is not in `gone`, without that one."""
    found: set[int] = set()
    for ref in draft.refs.values():
        at: int | None = ref.snapshot_id
        while at is not None and at in gone and at not in found:
            found.add(at)
            at = (draft.snapshots.get(at) or {}).get("parent-snapshot-id")
    return found


def _add_numbered(mine: TableDraft, draft: TableDraft) -> None:
    """Add the partition specs and sort orders of the branch that the other version lacks. They keep their ids, because
    manifests and data files have these ids. Their columns may be missing in the current schema of the other version.

    Raises:
        BadRequestError: the other version has another spec or order with the same id.
    """
    for action, own, other in (
        ("add-spec", mine.specs, draft.specs),
        ("add-sort-order", mine.sort_orders, draft.sort_orders),
    ):
        for id, piece in own.all():
            if other.like(other.digest(piece)) == id:
                continue
            if action == "add-spec":
                check_readable(piece, draft.current_schema())
            other.add(id, piece)
            draft.record(action, id)
    draft.last_partition_id = max(draft.last_partition_id, mine.last_partition_id)


def _schema_ids(mine: TableDraft, draft: TableDraft) -> dict[int, int]:
    """Add the schemas of the branch that the other version lacks. Return a dict from the id of each schema of the
    branch to the id of the same schema in the other version."""
    found: dict[int, int] = {}
    for id, schema in mine.schemas.all():
        digest = draft.schemas.digest(schema)
        if draft.schemas.like(digest) is None:
            apply_all(draft, [{"action": "add-schema", "schema": schema}])
        known = draft.schemas.like(digest)
        if known is not None:
            found[id] = known
    return found


def _order(snapshots: IndexedPieces, id: int) -> int:
    place = snapshots.place(id)
    return 0 if place is None else place.order


def _add_statistics(id: int, own: IndexedPieces, draft: TableDraft, other: IndexedPieces) -> None:
    file = own.get(id)
    if file is not None:
        other.add(id, encode(file), draft.take_order())
