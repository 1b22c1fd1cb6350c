"""Check of materialized views: whether the view, its storage table and the snapshots of the table agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.entities.materialized_views import (
    ALLOW_STALE,
    METADATA,
    STORAGE_LOCATION,
    STORAGE_TABLE,
    STRATEGIES,
    STRATEGY,
    document_of,
    with_storage_table,
)
from polaris_spark.catalog.entities.refresh_records import (
    REFRESH,
    REFRESH_STATE,
    refresh_of_snapshot,
    refresh_records,
    refresh_state,
    snapshots_of,
)
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import ObjectReader, Table, View, ViewVersion
from polaris_spark.catalog.metadata.snapshot_sets import all_snapshots
from polaris_spark.catalog.metadata.texts import Json, decode, get_long
from polaris_spark.errors import BadRequestError, CorruptionError


class Disagreement(NamedTuple):
    """A part of a materialized view that does not agree with another part."""

    in_view: bool
    """Whether the damaged row belongs to the view; otherwise it belongs to the storage table."""
    message: str


def disagreements(
    name: TableName, view: View, table: Table | None, reader: ObjectReader
) -> Iterator[Disagreement]:
    """Yield the disagreements of a materialized view and its storage table.

    Parts that cannot be read are skipped, because other checks report them.

    Args:
        name: name of the view.
        table: the storage table; None if there is none.
        reader: reads the versions of the view and the snapshots of the table.
    """
    if table is None:
        yield Disagreement(in_view=True, message=f"materialized view {name} has no storage table")
        return
    try:
        for message in _of_view(name, view, table, reader):
            yield Disagreement(in_view=True, message=message)
        for message in _of_table(table, reader):
            yield Disagreement(in_view=False, message=message)
    except CorruptionError:
        return


def _of_view(name: TableName, view: View, table: Table, reader: ObjectReader) -> Iterator[str]:
    try:
        document = document_of(view.properties)
    except BadRequestError as error:
        yield str(error)
        return
    location = document.get(STORAGE_LOCATION)
    if location != table.metadata_location:
        yield (
            f"its {METADATA} names the storage table's metadata file {location!r}, but that is "
            f"{table.metadata_location!r}"
        )
    if not isinstance(document.get(ALLOW_STALE, False), bool):
        yield f"in its {METADATA}, {ALLOW_STALE} is {document[ALLOW_STALE]!r}, not true or false"
    if document.get(STRATEGY, "full") not in STRATEGIES:
        yield f"in its {METADATA}, {STRATEGY} is {document[STRATEGY]!r}, not one of {', '.join(STRATEGIES)}"
    wanted = with_storage_table({}, name)[STORAGE_TABLE]
    for one in view.versions:
        named = _object(reader.get(one.piece, ViewVersion).text).get(STORAGE_TABLE)
        if named != wanted:
            yield f"its version {one.id} names the storage table {named!r}, but that is {wanted!r}"


def _of_table(table: Table, reader: ObjectReader) -> Iterator[str]:
    draft = TableDraft(table, reader, now_ms=0)
    summaries = {}
    for text in all_snapshots(table, reader).added:
        snapshot = _object(text)
        id, summary = snapshot.get("snapshot-id"), snapshot.get("summary") or {}
        summaries[id] = summary
        for key, read in ((REFRESH, refresh_of_snapshot), (REFRESH_STATE, refresh_state)):
            try:
                if key in summary:
                    read(summary)
            except BadRequestError as error:
                yield f"the {key} in the summary of its snapshot {id} is malformed: {error}"
    try:
        document = document_of(draft.properties)
        records = {get_long(one, "refresh-id"): one for one in refresh_records(document)}
    except BadRequestError as error:
        yield f"its {METADATA} is malformed: {error}"
        return
    for id, one in records.items():
        gone = [snapshot for snapshot in snapshots_of(one) if snapshot not in summaries]
        if gone:
            yield f"its {METADATA} says that refresh {id} made snapshot {gone[0]}, which does not exist"
    yield from _of_current(draft, document, records)


def _of_current(draft: TableDraft, document: Json, records: dict[int, Json]) -> Iterator[str]:
    """Yield a message if the document's current refresh did not make the current snapshot."""
    current, snapshot = document.get("current-refresh-id"), draft.current_snapshot_id
    if current is not None and current not in records:
        yield f"its {METADATA} has no record of the current refresh {current}"
        return
    made = None if snapshot is None else _refresh_of(draft, snapshot)
    if made is None and snapshot is not None:
        # The snapshot of the refresh has expired after a compaction, or another writer made the rows.
        listed = [] if current is None else snapshots_of(records[current])
        if listed and snapshot not in listed:
            yield f"its {METADATA} does not say that refresh {current} made the current snapshot {snapshot}"
    elif made != current:
        yield f"its {METADATA} has the current refresh {current}, but its current snapshot is that of {made}"


def _refresh_of(draft: TableDraft, id: int | None) -> int | None:
    """Return the id of the refresh that computed the rows of a snapshot; None if no summary records it."""
    while id is not None:
        snapshot = draft.snapshots.get(id)
        summary = (snapshot or {}).get("summary") or {}
        try:
            if snapshot is None:
                return None
            if REFRESH in summary:
                return get_long(refresh_of_snapshot(summary), "refresh-id")
        except BadRequestError:  # reported with the snapshot
            return None
        id = snapshot.get("parent-snapshot-id")
    return None


def _object(text: bytes) -> Json:
    try:
        return decode(text)
    except BadRequestError:  # reported by the check of contents
        return {}
