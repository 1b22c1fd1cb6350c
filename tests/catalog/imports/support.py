"""Metadata files to import, catalogs to import into, and functions that read the results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polaris_spark.catalog.imports.importer import ImportOptions, Row
from polaris_spark.catalog.imports.jobs import import_source
from polaris_spark.catalog.imports.sources import ListedNamespace, Source, SourceEntry
from tests.catalog.metadata.tables import NOW, ORDER, SCHEMA, SPEC, snapshot
from tests.rest.client import VIEW_VERSION, Client, Json

UUID = "9c12d441-03fe-4693-9a96-%012x"


class Entries:
    """A source that lists these entries. If one of them is an error, the source raises it."""

    def __init__(self, *entries: SourceEntry | ListedNamespace | Exception) -> None:
        self._entries = entries

    def entries(self) -> Iterator[SourceEntry | ListedNamespace]:
        for entry in self._entries:
            if isinstance(entry, Exception):
                raise entry
            yield entry


def run(client: Client, source: Source, **options: Any) -> list[Row]:
    """Import a source into a client's catalog."""
    catalog = client.session.catalog
    return import_source(catalog, source, principal="importer", options=ImportOptions(**options))


def statuses(rows: list[Row]) -> dict[str, str]:
    """Status by name."""
    return {row.table: row.status for row in rows}


def table_metadata(
    location: Path | str, *, snapshots: int = 1, version: int = 2, number: int = 1, **others: Any
) -> Json:
    """The metadata of a table with a linear history."""
    where = f"file://{location}" if str(location).startswith("/") else str(location)
    history = [snapshot(id, id, parent=id - 1 or None) for id in range(1, snapshots + 1)]
    value: Json = {
        "format-version": version,
        "table-uuid": UUID % number,
        "location": where,
        "last-updated-ms": NOW + snapshots * 1000,
        "last-column-id": 4,
        "current-schema-id": 0,
        "schemas": [SCHEMA],
        "default-spec-id": 0,
        "partition-specs": [SPEC],
        "last-partition-id": 1000,
        "default-sort-order-id": 1,
        "sort-orders": [ORDER],
        "properties": {"number": str(number)},
        "current-snapshot-id": snapshots or None,
        "refs": {"main": {"snapshot-id": snapshots, "type": "branch"}} if snapshots else {},
        "snapshots": history,
        "snapshot-log": [
            {"timestamp-ms": one["timestamp-ms"], "snapshot-id": one["snapshot-id"]} for one in history
        ],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
        **({"last-sequence-number": snapshots} if version > 1 else {}),
        **({"next-row-id": 0} if version > 2 else {}),
        **others,
    }
    return value


def view_metadata(location: Path) -> Json:
    """The metadata of a view, with an unknown field."""
    return {
        "view-uuid": UUID % 77,
        "format-version": 1,
        "location": f"file://{location}",
        "current-version-id": 1,
        "properties": {"comment": "a view"},
        "versions": [VIEW_VERSION],
        "version-log": [{"timestamp-ms": 1, "version-id": 1}],
        "schemas": [SCHEMA],
        "later": {"x": [1]},
    }


def write(folder: Path, metadata: Json | str | bytes, file: str = "00001-a.metadata.json") -> str:
    """Write the metadata of the table in a folder, and return the file's location."""
    place = folder / "metadata" / file
    place.parent.mkdir(parents=True, exist_ok=True)
    text = metadata if isinstance(metadata, (str, bytes)) else json.dumps(metadata)
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    return f"file://{place}"


def table_in(root: Path, *path: str, **metadata: Any) -> str:
    """Write a table below a root, and return the location of its metadata file."""
    folder = root.joinpath(*path)
    return write(folder, table_metadata(folder, **metadata))
