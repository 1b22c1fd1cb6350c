"""Inconsistencies between a materialized view, its storage table and the snapshots of this table."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from polaris_spark.catalog.entities.entities import TableName, table_key
from polaris_spark.catalog.metadata.pieces import key_of
from polaris_spark.catalog.metadata.rows import Snapshot, Table, View, ViewVersion
from polaris_spark.catalog.rows import NAMES
from polaris_spark.index import Index, IndexRoot
from tests.maintenance.damage import Damaged, texts, view_content

DOCUMENT = "materialized_view_metadata"
STORAGE = table_key(TableName(("db", "mv"), "storage"))


def alter_view(store: Damaged, **fields: Any) -> str:
    """Set fields of the view's document."""
    id = view_content(store, "mv")
    properties = store.get(id, View).properties
    document = json.dumps(json.loads(properties[DOCUMENT]) | fields)
    return store.alter(id, View, properties={**properties, DOCUMENT: document})


def alter_storage(store: Damaged, **fields: Any) -> str:
    """Set fields of the storage table's document."""
    id = store.entry(STORAGE).pointer
    properties = store.get(id, Table).properties
    document = json.loads(properties[DOCUMENT]) | {name.replace("_", "-"): it for name, it in fields.items()}
    return store.alter(id, Table, properties={**properties, DOCUMENT: json.dumps(document)})


def alter_summary(store: Damaged, snapshot_id: int, **summary: str) -> str:
    """Set entries in the summary of a snapshot of the storage table. Return the key of the table's row."""
    id = store.entry(STORAGE).pointer
    found = Index(store.get(id, Table).snapshots, store.shards).get(key_of(snapshot_id))
    assert found is not None
    snapshot = texts(store.get(found.pointer, Snapshot).text)
    given = {name.replace("__", "."): text for name, text in summary.items()}
    snapshot["summary"] |= {name.replace("_", "-"): text for name, text in given.items()}
    store.rewrite(found.pointer, Snapshot(msgspec.json.encode(snapshot)))
    return f"{id}/0"


def storage_location(store: Damaged) -> str:
    return alter_view(store, **{"storage-table-location": "file:///elsewhere.metadata.json"})


def view_document(store: Damaged) -> str:
    id = view_content(store, "mv")
    return store.alter(id, View, properties={DOCUMENT: "[]"})


def stale_data(store: Damaged) -> str:
    return alter_view(store, **{"allow-stale-data": "yes"})


def strategy(store: Damaged) -> str:
    return alter_view(store, **{"refresh-strategy": "often"})


def storage_identifier(store: Damaged) -> str:
    id = view_content(store, "mv")
    [version] = store.get(id, View).versions
    text = texts(store.get(version.piece, ViewVersion).text) | {"storage-table": None}
    store.rewrite(version.piece, ViewVersion(msgspec.json.encode(text)))
    return f"{id}/0"


def no_storage_table(store: Damaged) -> str:
    def remove(root: IndexRoot) -> IndexRoot:
        index = Index(root, store.shards)
        index.remove(STORAGE)
        return index.freeze(1 << 20, lambda: 0)[0]

    store.alter_embedded(remove, NAMES)
    return f"{view_content(store, 'mv')}/0"


def not_refreshed(store: Damaged) -> str:
    return store.alter(store.entry(STORAGE).pointer, Table, properties={})


def earlier_refresh(store: Damaged) -> str:
    return alter_storage(store, current_refresh_id=100)


def unknown_refresh(store: Damaged) -> str:
    return alter_storage(store, current_refresh_id=7)


def no_record(store: Damaged) -> str:
    return alter_storage(store, refreshes=[])


def malformed_records(store: Damaged) -> str:
    return alter_storage(store, refreshes=[{"refresh-id": "x"}])


def lost_snapshot(store: Damaged) -> str:
    properties = store.get(store.entry(STORAGE).pointer, Table).properties
    first, *others = json.loads(properties[DOCUMENT])["refreshes"]
    return alter_storage(store, refreshes=[{**first, "snapshot-ids": [99]}, *others])


def rolled_back(store: Damaged) -> str:
    """The storage table was rolled back to an earlier snapshot, but its document was not."""
    id = store.entry(STORAGE).pointer
    table = store.get(id, Table)
    found = Index(table.snapshots, store.shards).get(key_of(100))
    assert found is not None
    [main] = table.refs
    text = main.text.replace(b"102", b"100")
    order = int.from_bytes(found.value, "big")
    before = msgspec.structs.replace(main, snapshot_id=100, snapshot=found.pointer, order=order, text=text)
    return store.alter(id, Table, current_snapshot_id=100, refs=(before,))


def refresh_summary(store: Damaged) -> str:
    return alter_summary(store, 100, polaris__refresh="{}")


def refresh_state(store: Damaged) -> str:
    return alter_summary(store, 100, refresh_state='{"view-version-id": 1}')


def another_version(store: Damaged) -> str:
    state = {"view-version-id": 2, "refresh-start-timestamp-ms": 5, "source-states": []}
    return alter_summary(store, 101, refresh_state=json.dumps(state))


DISAGREEMENTS = (
    storage_location,
    view_document,
    stale_data,
    strategy,
    storage_identifier,
    no_storage_table,
    not_refreshed,
    earlier_refresh,
    unknown_refresh,
    no_record,
    malformed_records,
    lost_snapshot,
    rolled_back,
    refresh_summary,
    refresh_state,
    another_version,
)
"""Every disagreement."""
