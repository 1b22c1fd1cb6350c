"""The snapshot log: which snapshot was current at which time.

The rules are the same as in Iceberg's `TableMetadata.Builder.updateSnapshotLog` and of the checks in `TableMetadata`. A
snapshot that a request adds, makes current and replaces again gets no entry. If a snapshot is removed, its last entry
and all earlier entries are removed as well, because time travel across a gap would give wrong results.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from polaris_spark.catalog.metadata import logs
from polaris_spark.catalog.metadata.overflow import MAIN_REF
from polaris_spark.catalog.metadata.rows import Log, NewId, NewRows, WithNew
from polaris_spark.catalog.metadata.table_values import LogEntry, TableValues
from polaris_spark.catalog.metadata.texts import invalid, refused

CLOCK_TOLERANCE_MS = 60_000
"""Maximum time by which an entry of the log may be earlier than the entry before it, in milliseconds. Entries can be
out of order because the clocks of writers differ."""


_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Item(msgspec.Struct, rename="kebab"):
    timestamp_ms: _Long
    snapshot_id: _Long


_decode_items = msgspec.json.Decoder(list[_Item]).decode


def read_entries(texts: bytes) -> list[LogEntry]:
    """Return the entries of a snapshot log. `texts` is the content of its JSON array, without the brackets."""
    return [LogEntry(item.timestamp_ms, item.snapshot_id) for item in _decode_items(b"[" + texts + b"]")]


def updated_log(draft: TableValues, log: Log, new_id: NewId, rows: NewRows) -> tuple[Log, bool]:
    """Return the snapshot log after the changes, and whether it contains ids of snapshots that do not exist.

    New pieces of the log are added to `rows`.

    Raises:
        BadRequestError: an entry would be earlier than the entry before it by more than `CLOCK_TOLERANCE_MS`, or the
            last entry would not be the current snapshot.
    """
    entries, gaps = draft.log_entries, draft.snapshot_log_gaps
    if draft.imported_log:
        log, imported = logs.append(log, draft.imported_log, draft.reader, new_id)
        rows += imported
        draft.reader = WithNew(draft.reader, imported)
    removed = any(action == "remove-snapshots" for action, _ in draft.changes)
    passing = _passing_snapshots(draft)
    if not entries and not removed:
        return log, gaps
    if passing:
        entries = [entry for entry in entries if entry.snapshot_id not in passing]
    if passing and gaps and not removed:
        log, gaps = _without_gaps(draft, log, new_id, rows), False
    if removed:
        log, entries = _cut(draft, log, entries)
        gaps = False
    if removed or passing:
        _check_last(draft, log, entries)
    _check_times(draft, log, entries)
    log, new = logs.append(log, [item_text(entry) for entry in entries], draft.reader, new_id)
    rows += new
    return log, gaps


def item_text(entry: LogEntry) -> bytes:
    """Return an entry of the snapshot log as JSON text."""
    return b'{"timestamp-ms":%d,"snapshot-id":%d}' % entry


def _passing_snapshots(draft: TableValues) -> set[int]:
    """Return the ids of snapshots that the draft added and made current, but that are not current at the end.

    Removed snapshots are left out.
    """
    if len(draft.log_entries) < 1 or not draft.added_snapshots:
        return set()
    passed: set[int] = set()
    added: set[int] = set()
    for action, detail in draft.changes:
        if action == "add-snapshot":
            added.add(detail)
        elif action == "set-snapshot-ref" and detail[0] == MAIN_REF:
            passed.add(detail[1])
    return {id for id in passed & added if id != draft.current_snapshot_id and id in draft.snapshots}


def _cut(draft: TableValues, log: Log, entries: list[LogEntry]) -> tuple[Log, list[LogEntry]]:
    """Drop the last entry whose snapshot no longer exists, and all earlier entries.

    Return the remaining log and the remaining new entries.
    """
    for position in reversed(range(len(entries))):
        if entries[position].snapshot_id not in draft.snapshots:
            return Log(), entries[position + 1 :]
    gone = {id for action, ids in draft.changes if action == "remove-snapshots" for id in ids}
    older = read_entries(logs.text(log, draft.reader))
    for position in reversed(range(len(older))):
        id = older[position].snapshot_id
        if (draft.snapshot_log_gaps or id in gone) and id not in draft.snapshots:
            return logs.drop_first(log, position + 1), entries
    return log, entries


def _without_gaps(draft: TableValues, log: Log, new_id: NewId, rows: NewRows) -> Log:
    older = read_entries(logs.text(log, draft.reader))
    kept = [entry for entry in older if entry.snapshot_id in draft.snapshots]
    log, new = logs.append(Log(), [item_text(entry) for entry in kept], draft.reader, new_id)
    rows += new
    return log


def _last(log: Log) -> LogEntry | None:
    return read_entries(log.tail[-1])[0] if log.tail else None


def _check_last(draft: TableValues, log: Log, entries: list[LogEntry]) -> None:
    if draft.current_snapshot_id is None:
        return
    last = entries[-1] if entries else _last(log)
    if last is None or last.snapshot_id != draft.current_snapshot_id:
        raise refused("Cannot set invalid snapshot log: latest entry is not the current snapshot")


def _check_times(draft: TableValues, log: Log, entries: list[LogEntry]) -> None:
    if not entries:
        return
    last = _last(log)
    for entry in entries:
        if last is not None and entry.timestamp_ms - last.timestamp_ms < -CLOCK_TOLERANCE_MS:
            raise invalid(
                f"Cannot log snapshot {entry.snapshot_id}: its time {entry.timestamp_ms} is before the last "
                f"entry's {last.timestamp_ms}: expected sorted snapshot log entries"
            )
        last = entry
    if last is not None and draft.last_updated_ms - last.timestamp_ms < -CLOCK_TOLERANCE_MS:
        raise invalid(
            f"Invalid update timestamp {draft.last_updated_ms}: before last snapshot log entry at "
            f"{last.timestamp_ms}"
        )
