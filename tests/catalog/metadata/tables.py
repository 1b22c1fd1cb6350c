"""Requests, snapshots, and an object that commits to one table as a catalog would."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.metadata_paths import metadata_location
from polaris_spark.catalog.metadata.renderer import render
from polaris_spark.catalog.metadata.requirements import check_all
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.metadata.table_creation import create_table
from polaris_spark.catalog.metadata.table_parser import parse_table
from polaris_spark.catalog.metadata.table_updates import apply_all
from tests.catalog.metadata.memory import MemoryObjects

Json = dict[str, Any]

UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"
LOCATION = "s3://warehouse/ns/t-9c12d441"
NOW = 1_700_000_000_000
"""When test tables are created, milliseconds since 1970."""

SCHEMA: Json = {
    "type": "struct",
    "schema-id": 0,
    "identifier-field-ids": [1],
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": True},
        {"id": 2, "name": "at", "type": "timestamptz", "required": False, "doc": "when"},
        {
            "id": 3,
            "name": "tags",
            "required": False,
            "type": {"type": "list", "element-id": 4, "element": "string", "element-required": True},
        },
    ],
}
SPEC: Json = {
    "spec-id": 0,
    "fields": [{"name": "at_day", "transform": "day", "source-id": 2, "field-id": 1000}],
}
ORDER: Json = {
    "order-id": 1,
    "fields": [{"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}],
}


def field(id: int, name: str, type: Any = "string", *, required: bool = False, **others: Any) -> Json:
    """A column."""
    return {"id": id, "name": name, "type": type, "required": required, **others}


def schema(*fields: Json, **others: Any) -> Json:
    """A schema of these columns."""
    return {"type": "struct", "schema-id": 0, "fields": list(fields), **others}


def snapshot(id: int, sequence_number: int, *, parent: int | None = None, **others: Any) -> Json:
    """A snapshot, one second younger with each sequence number."""
    value: Json = {
        "snapshot-id": id,
        "sequence-number": sequence_number,
        "timestamp-ms": NOW + sequence_number * 1000,
        "manifest-list": f"{LOCATION}/metadata/snap-{id}.avro",
        "summary": {"operation": "append", "added-data-files": "1", "added-records": "10"},
        "schema-id": 0,
        **others,
    }
    return value if parent is None else {**value, "parent-snapshot-id": parent}


def add(value: Json) -> Json:
    """The update that adds a snapshot."""
    return {"action": "add-snapshot", "snapshot": value}


def point(name: str, id: int, type: str = "branch", **others: Any) -> Json:
    """The update that sets a branch or tag."""
    return {"action": "set-snapshot-ref", "ref-name": name, "snapshot-id": id, "type": type, **others}


class Catalog:
    """One table, and its object store."""

    def __init__(self, table: Table | None = None, objects: MemoryObjects | None = None) -> None:
        self.objects = objects or MemoryObjects()
        self.now = NOW
        self.id = 0
        if table is not None:
            self.id = self.objects.put(table)

    @property
    def table(self) -> Table:
        return self.objects.get(self.id, Table)

    def draft(self) -> TableDraft:
        return TableDraft(self.table if self.id else None, self.objects, now_ms=self.now)

    def store(self, draft: TableDraft, where: str = "") -> TableDraft:
        where = where or metadata_location(draft, f"{self.now:08d}")
        table, rows = draft.freeze(
            self.objects.new_id, metadata_location=where, entity_id=7 if not self.id else None
        )
        self.objects.write(rows)
        self.id = self.objects.put(table)
        return draft

    def create(self, *, version: int = 2, **request: Any) -> Catalog:
        properties = {"format-version": str(version), **request.pop("properties", {})}
        asked = {"name": "t", "schema": SCHEMA, "partition-spec": SPEC, "write-order": ORDER, **request}
        asked["properties"] = properties
        self.store(create_table(asked, uuid=UUID, location=LOCATION, now_ms=self.now))
        return self

    def register(self, metadata: Json | bytes | str) -> Catalog:
        text = metadata if isinstance(metadata, (bytes, str)) else msgspec.json.encode(metadata)
        self.store(parse_table(text, now_ms=self.now), f"{LOCATION}/metadata/00003-a.metadata.json")
        return self

    def commit(self, *updates: Json, requirements: tuple[Json, ...] = ()) -> TableDraft:
        """Commit one second after the last commit."""
        self.now += 1000
        draft = self.draft()
        check_all(draft, requirements)
        apply_all(draft, updates)
        return self.store(draft)

    def append(self, id: int, **others: Any) -> TableDraft:
        """Append a snapshot to main."""
        table = self.table
        number = table.last_sequence_number + 1 if table.format_version > 1 else 0
        value = snapshot(
            id, number, parent=table.current_snapshot_id, **{"timestamp-ms": self.now + 1000, **others}
        )
        if table.format_version == 1:
            del value["sequence-number"]
        if table.format_version >= 3:
            value = {"first-row-id": table.next_row_id, "added-rows": 10, **value}
        return self.commit(add(value), point("main", id))

    def json(self, snapshots: Any = "all") -> Json:
        found: Json = json.loads(self.text(snapshots))
        return found

    def text(self, snapshots: Any = "all") -> bytes:
        return render(self.table, self.objects, snapshots=snapshots)
