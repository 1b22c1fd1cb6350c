"""A client that appends as Iceberg's Java library does: manifest lists of its own, and requests built on a base.

Written from the specification, apart from the product, to say what a client's own retry would have committed. The
manifests that its lists name do not exist: neither side reads them.
"""

from __future__ import annotations

import io
import json
import time
import uuid
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import fastavro

from tests.rest.client import Answer, Client, Json, table

_ids = count(1_000)

_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        {"name": "contains_null", "type": "boolean", "field-id": 509},
        {"name": "contains_nan", "type": ["null", "boolean"], "default": None, "field-id": 518},
        {"name": "lower_bound", "type": ["null", "bytes"], "default": None, "field-id": 510},
        {"name": "upper_bound", "type": ["null", "bytes"], "default": None, "field-id": 511},
    ],
}


def list_schema(version: int, *more: Json) -> Json:
    """The Avro schema of a manifest list of a format version, with `more` fields."""

    def field(name: str, id: int, type: Any) -> Json:
        return {"name": name, "type": type, "field-id": id}

    def optional(name: str, id: int, type: Any) -> Json:
        return {"name": name, "type": ["null", type], "default": None, "field-id": id}

    fields = [field("manifest_path", 500, "string"), field("manifest_length", 501, "long")]
    fields.append(field("partition_spec_id", 502, "int"))
    if version > 1:
        fields += [field("content", 517, "int"), field("sequence_number", 515, "long")]
        fields.append(field("min_sequence_number", 516, "long"))
    fields.append(field("added_snapshot_id", 503, "long"))
    fields += [field(f"{kind}_files_count", id, "int") for kind, id in _COUNTS]
    fields += [field(f"{kind}_rows_count", id + 8, "long") for kind, id in _COUNTS]
    partitions = {"type": "array", "items": _SUMMARY, "element-id": 508}
    fields += [optional("partitions", 507, partitions), optional("key_metadata", 519, "bytes")]
    if version > 2:
        fields.append(optional("first_row_id", 520, "long"))
    return {"type": "record", "name": "manifest_file", "fields": [*fields, *more]}


_COUNTS = (("added", 504), ("existing", 505), ("deleted", 506))


class ListFile(NamedTuple):
    """A manifest list as read back."""

    schema: Json
    metadata: Json
    manifests: list[Json]


def path_of(location: str) -> Path:
    """Return a location as a local path."""
    return Path(location.removeprefix("file://").removeprefix("file:"))


class Storage(Protocol):
    """Reads and writes the files of tables."""

    def read(self, location: str) -> bytes:
        """The content of a file."""
        ...

    def write(self, location: str, content: bytes) -> None:
        """Write a file."""
        ...


class Disk:
    """Files on the disk."""

    def read(self, location: str) -> bytes:
        return path_of(location).read_bytes()

    def write(self, location: str, content: bytes) -> None:
        path_of(location).parent.mkdir(parents=True, exist_ok=True)
        path_of(location).write_bytes(content)


DISK = Disk()


def read_list(location: str, files: Storage = DISK) -> ListFile:
    """The manifest list at a location."""
    reader: Any = fastavro.reader(io.BytesIO(files.read(location)))
    own = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    return ListFile(reader.writer_schema, own, list(reader))


def write_list(
    location: str, schema: Json, metadata: Json, manifests: list[Json], files: Storage = DISK
) -> None:
    """Write a manifest list."""
    content = io.BytesIO()
    fastavro.writer(content, schema, manifests, codec="deflate", metadata=metadata, strict=True)
    files.write(location, content.getvalue())


class Append(NamedTuple):
    """An append: its manifests' record counts, one data file a record, and the snapshot id that retries keep."""

    snapshot_id: int
    counts: tuple[int, ...]
    branch: str = "main"


def new_append(*counts: int, branch: str = "main") -> Append:
    """An append with an id of its own."""
    return Append(next(_ids), counts, branch)


class Attempt(NamedTuple):
    """An append that was prepared on one base."""

    requirements: list[Json]
    updates: list[Json]

    @property
    def snapshot(self) -> Json:
        """The new snapshot."""
        snapshot: Json = self.updates[0]["snapshot"]
        return snapshot

    def changed(self, **fields: Any) -> Attempt:
        """Return the attempt with other fields in the snapshot."""
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        first = {**self.updates[0], "snapshot": {**self.snapshot, **named}}
        return Attempt(self.requirements, [first, *self.updates[1:]])


def attempt(
    metadata: Json,
    append: Append,
    *more_fields: Json,
    files: Storage = DISK,
    now_ms: int | None = None,
    **more_values: Any,
) -> Attempt:
    """Write the manifest list of an append to a table with this metadata, and return what a client sends."""
    version, ref = metadata["format-version"], metadata.get("refs", {}).get(append.branch)
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", [])}
    parent = snapshots[ref["snapshot-id"]] if ref else None
    number = metadata["last-sequence-number"] + 1 if version > 1 else 0
    old = read_list(parent["manifest-list"], files).manifests if parent else []
    new = [_manifest(metadata, append, position, version, number) for position in range(len(append.counts))]
    location = f"{metadata['location']}/metadata/snap-{append.snapshot_id}-1-{uuid.uuid4()}.avro"
    about = {"snapshot-id": str(append.snapshot_id), "format-version": str(version)}
    about["parent-snapshot-id"] = str(parent["snapshot-id"]) if parent else "null"
    snapshot: Json = {
        "snapshot-id": append.snapshot_id,
        "timestamp-ms": time.time_ns() // 1_000_000 if now_ms is None else now_ms,
        "manifest-list": location,
        "schema-id": metadata["current-schema-id"],
        "summary": _summary(append, parent, kept=len(old)),
    }
    if parent:
        snapshot["parent-snapshot-id"] = parent["snapshot-id"]
    if version > 1:
        snapshot["sequence-number"] = number
        about["sequence-number"] = str(number)
    if version > 2:
        snapshot |= {"first-row-id": metadata["next-row-id"], "added-rows": sum(append.counts)}
        about["first-row-id"] = str(metadata["next-row-id"])
        rows = metadata["next-row-id"]
        for manifest in new:
            manifest["first_row_id"] = rows
            rows += manifest["added_rows_count"]
    schema = list_schema(version, *more_fields)
    unset = {field["name"]: None for field in more_fields}
    manifests = [{**manifest, **more_values} for manifest in new] + [{**unset, **m} for m in old]
    write_list(location, schema, about, manifests, files)
    return Attempt(_requirements(metadata, append.branch, ref), _updates(append, snapshot, ref))


def write_manifests(made: Attempt, files: Storage = DISK) -> None:
    """Write the manifests that an attempt adds, with one data file for each record."""
    snapshot = made.snapshot
    for manifest in read_list(snapshot["manifest-list"], files).manifests:
        if manifest["added_snapshot_id"] != snapshot["snapshot-id"]:
            continue
        path = manifest["manifest_path"]
        entries = [
            {
                "status": 1,
                "snapshot_id": snapshot["snapshot-id"],
                "sequence_number": None,
                "file_sequence_number": None,
                "data_file": {"content": 0, "file_path": f"{path}.{n}.parquet", "record_count": 1},
            }
            for n in range(manifest["added_files_count"])
        ]
        content = io.BytesIO()
        fastavro.writer(content, _ENTRY, entries, codec="deflate", metadata=_ABOUT, strict=True)
        files.write(path, content.getvalue())


def data_files(manifest: str, files: Storage = DISK) -> list[Json]:
    """The entries of the manifest at a location, without those of deleted files."""
    entries: Any = fastavro.reader(io.BytesIO(files.read(manifest)))
    return [entry for entry in entries if entry["status"] != _DELETED]


def merge_manifests(made: Attempt, files: Storage = DISK) -> None:
    """Replace all manifests in the list of an attempt by one manifest, as Iceberg's `MergeAppend` does."""
    id, location = made.snapshot["snapshot-id"], made.snapshot["manifest-list"]
    schema, about, manifests = read_list(location, files)
    new = [one for one in manifests if one["added_snapshot_id"] == id]
    entries = []
    for one in manifests:
        number = one["sequence_number"]
        for entry in data_files(one["manifest_path"], files):
            known = {"status": 0, "sequence_number": number, "file_sequence_number": number}
            entries.append(entry if one in new else {**known, **entry, "status": 0})
    merged = {**new[0], "manifest_path": f"{new[0]['manifest_path'].removesuffix('.avro')}-merged.avro"}
    for what in ("files", "rows"):
        added = sum(one[f"added_{what}_count"] for one in new)
        merged |= {f"added_{what}_count": added, f"existing_{what}_count": len(entries) - added}
    merged["min_sequence_number"] = min(one["min_sequence_number"] for one in manifests)
    content = io.BytesIO()
    fastavro.writer(content, _ENTRY, entries, codec="deflate", metadata=_ABOUT, strict=True)
    files.write(merged["manifest_path"], content.getvalue())
    write_list(location, schema, about, [merged], files)


_DELETED = 2
_ABOUT = {"format-version": "2", "content": "data", "schema": "{}"}
_ENTRY = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        {"name": "status", "type": "int", "field-id": 0},
        {"name": "snapshot_id", "type": ["null", "long"], "default": None, "field-id": 1},
        {"name": "sequence_number", "type": ["null", "long"], "default": None, "field-id": 3},
        {"name": "file_sequence_number", "type": ["null", "long"], "default": None, "field-id": 4},
        {
            "name": "data_file",
            "field-id": 2,
            "type": {
                "type": "record",
                "name": "r2",
                "fields": [
                    {"name": "content", "type": "int", "field-id": 134},
                    {"name": "file_path", "type": "string", "field-id": 100},
                    {"name": "record_count", "type": "long", "field-id": 103},
                ],
            },
        },
    ],
}


def _requirements(metadata: Json, branch: str, ref: Json | None) -> list[Json]:
    head = {"snapshot-id": ref["snapshot-id"] if ref else None}
    return [
        {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]},
        {"type": "assert-ref-snapshot-id", "ref": branch, **head},
    ]


def _updates(append: Append, snapshot: Json, ref: Json | None) -> list[Json]:
    to = {**(ref or {}), "type": "branch", "snapshot-id": append.snapshot_id}
    return [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": append.branch, **to},
    ]


def _manifest(metadata: Json, append: Append, position: int, version: int, number: int) -> Json:
    records = append.counts[position]
    manifest = {
        "manifest_path": f"{metadata['location']}/metadata/{append.snapshot_id}-m{position}.avro",
        "manifest_length": 1_000 + position,
        "partition_spec_id": 0,
        "added_snapshot_id": append.snapshot_id,
        "partitions": [
            {"contains_null": False, "contains_nan": None, "lower_bound": b"\x00", "upper_bound": b"\xff"}
        ],
        "key_metadata": None,
        **{f"{kind}_{what}_count": 0 for kind, _ in _COUNTS for what in ("files", "rows")},
        "added_files_count": records,
        "added_rows_count": records,
    }
    if version > 1:
        manifest |= {"content": 0, "sequence_number": number, "min_sequence_number": number}
    if version > 2:
        manifest["first_row_id"] = None
    return manifest


def _summary(append: Append, parent: Json | None, *, kept: int) -> dict[str, str]:
    records = sum(append.counts)
    added = {"added-records": records, "added-data-files": records, "added-files-size": 10 * records}
    summary = {"operation": "append", "manifests-created": str(len(append.counts)), "app-id": "tests"}
    summary |= {"manifests-kept": str(kept), "manifests-replaced": "0"}
    summary |= {name: str(value) for name, value in added.items()}
    for total, name in _TOTALS.items():
        before = "0" if parent is None else parent["summary"].get(total)
        if before is not None:
            summary[total] = str(int(before) + added.get(name, 0))
    return summary


_TOTALS = {
    "total-records": "added-records",
    "total-files-size": "added-files-size",
    "total-data-files": "added-data-files",
    "total-delete-files": "added-delete-files",
    "total-position-deletes": "added-position-deletes",
    "total-equality-deletes": "added-equality-deletes",
}


def send(client: Client, made: Attempt, name: str = "t", **rest: Any) -> Answer:
    """Send an attempt."""
    body = {"requirements": made.requirements, "updates": made.updates}
    return client.send("POST", table(name), json.dumps(body), **rest)


def appendable(client: Client, name: str = "t", *, version: int = 2, **properties: str) -> Json:
    """Create a table in the namespace `db`, and return its metadata."""
    given = {"format-version": str(version), "polaris.append-rebase": "true", **properties}
    created = client.create(name, properties=given)
    metadata: Json = created["metadata"]
    return metadata


def snapshot_of(metadata: Json, id: int) -> Json:
    """A snapshot of a table."""
    [snapshot] = [s for s in metadata["snapshots"] if s["snapshot-id"] == id]
    found: Json = snapshot
    return found
