"""Rebasing of appends: if other appends were committed while a client prepared an append, the append is applied on top
of them.

The result is what the client's own retry would have committed (Iceberg's `SnapshotProducer`), but the client need not
retry. In this module, a branch is a branch of the table, and its head is its newest snapshot. A new manifest list
contains the manifests that the client added, in the client's order, and then the manifests of the branch's head.

| field of the snapshot | after rebasing |
| --- | --- |
| snapshot-id, schema-id, operation, counts of added files and rows, fields unknown to this release | as sent |
| parent-snapshot-id | the id of the branch's head |
| sequence-number | the table's next sequence number; in format version 1 as sent |
| first-row-id | the table's next row id; each new manifest continues from the one before; added-rows as sent |
| timestamp-ms | as sent, but not before the table's last update |
| summary: totals | the head's totals plus what the append added |
| summary: manifests-kept | the number of the head's manifests |
| manifest-list | a new file, in the table's metadata folder |

Rebasing is safe because an append does not depend on the table's earlier content. The request may also set and remove
properties, except `format-version`. All other requests are refused. If rebasing is on and an append is refused, the
error says why the append was not rebased. An append is not rebased if

- a snapshot after the client's parent, up to and including the head, is not an append (the client must not miss an
  overwrite or delete);
- the request has more than one new snapshot, or has schemas, specs or statistics;
- a manifest of the parent is missing or changed in the client's manifest list, for example because the client merged
  manifests;
- a new manifest has deleted or existing files, or a sequence number other than the new snapshot's;
- the manifest lists have another format version than the table, or the table is encrypted.

Rebasing is off unless the table property `polaris.append-rebase` is true or, if the table does not set it, the catalog
property of that name is true. It is off by default because a client may need `assert-ref-snapshot-id` to fail after any
other write: for example, if the request also sets properties with the offsets of a stream, which a rebased append would
overwrite.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from polaris_spark.catalog.files import locations
from polaris_spark.catalog.manifests import manifest_lists as avro
from polaris_spark.catalog.manifests.manifest_lists import Manifest, ManifestList
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.metadata_paths import metadata_directory
from polaris_spark.catalog.metadata.rows import ROW_LINEAGE_VERSION
from polaris_spark.catalog.metadata.table_snapshots import check_snapshot, read_ref, ref_fields
from polaris_spark.catalog.metadata.table_updates import FORMAT_VERSION
from polaris_spark.catalog.metadata.texts import Json, decode
from polaris_spark.catalog.tables.summaries import NOTHING, counted_on
from polaris_spark.errors import BadRequestError, PolarisError

APPEND_REBASE = "polaris.append-rebase"
"""Name of the property of tables and catalogs that turns on the rebasing of appends."""

_NEWEST_FORMAT = 3
"""Newest format version whose manifest lists can be rebased."""

_ENCRYPTION_KEY = "encryption.key-id"

_PROPERTY_ACTIONS = ("set-properties", "remove-properties")


class NotRebasedError(Exception):
    """An append cannot be rebased; the message gives the reason."""


class Append(NamedTuple):
    """A request that appends to a branch, and may also change properties, but does nothing else."""

    branch: str
    requirement: Json
    """The requirement that asserts which snapshot is the branch's head."""
    parent: int | None
    """Id of the snapshot that the requirement asserts, which is the new snapshot's parent; None for an empty branch."""
    snapshot: Json
    reference: Json
    """The update that makes the new snapshot the branch's head."""
    manifest_list: str


class Rebased(NamedTuple):
    """Result of a rebase: the updates that replace the updates of the request, and the new manifest list."""

    updates: list[Json]
    location: str
    """Location of the new manifest list."""
    content: bytes
    """Content of the new manifest list's file."""
    manifests: ManifestList


class SnapshotCopy(NamedTuple):
    """How to apply an append as a new snapshot, which is a copy of the client's snapshot with another id."""

    id: int
    """Id of the new snapshot."""
    summary: dict[str, str]
    """Fields to add to its summary."""
    manifest: Callable[[Manifest], Manifest]
    """Takes the record of a manifest in a manifest list, copies the manifest, and returns the record of the copy."""


ReadList = Callable[[str], ManifestList]
"""Function that returns the manifest list at a location."""


def find_append(requirements: Sequence[Json], updates: Sequence[Json]) -> Append | None:
    """Return the parts of a request that only appends to a branch and perhaps changes properties. Return None if the
    request does anything else, or is malformed."""
    added = [update for update in updates if update.get("action") == "add-snapshot"]
    if len(added) != 1:
        return None
    moved = [update for update in updates if update.get("action") == "set-snapshot-ref"]
    others = [
        update for update in updates if update.get("action") not in ("add-snapshot", "set-snapshot-ref")
    ]
    if len(moved) != 1 or not all(_is_of_properties(update) for update in others):
        return None
    snapshot, reference = added[0].get("snapshot"), moved[0]
    try:
        check_snapshot(snapshot if isinstance(snapshot, dict) else {})
        read_ref(reference)
    except PolarisError:
        return None
    assert isinstance(snapshot, dict)
    branch = reference.get("ref-name")
    asserted = [
        r for r in requirements if r.get("type") == "assert-ref-snapshot-id" and r.get("ref") == branch
    ]
    is_append = (
        len(asserted) == 1
        and reference.get("snapshot-id") == snapshot["snapshot-id"]
        and snapshot.get("parent-snapshot-id") == asserted[0].get("snapshot-id")
        and (snapshot.get("summary") or {}).get("operation") == "append"
        and "manifest-list" in snapshot
    )
    if not is_append or not isinstance(branch, str):
        return None
    parent = snapshot.get("parent-snapshot-id")
    return Append(branch, asserted[0], parent, snapshot, reference, snapshot["manifest-list"])


def _is_of_properties(update: Json) -> bool:
    changed = update.get("updates") or update.get("updated") or {}
    return (
        update.get("action") in _PROPERTY_ACTIONS
        and isinstance(changed, dict)
        and FORMAT_VERSION not in changed
    )


def needed_lists(draft: TableDraft, append: Append) -> list[str]:
    """Return the locations of the manifest lists that rebasing reads: those of the append, its parent and the head.
    Return an empty list if the append's manifest list lies outside the table's locations."""
    if not is_in_table(draft, append.manifest_list):
        return []
    head = draft.refs.get(append.branch)
    snapshots = (draft.snapshots.get(id) for id in {append.parent, head and head.snapshot_id} if id)
    found = (snapshot.get("manifest-list") for snapshot in snapshots if snapshot)
    return [append.manifest_list, *(location for location in found if location)]


def is_behind(draft: TableDraft, append: Append) -> bool:
    """Whether the head of the branch is a snapshot other than the parent of the append."""
    head = draft.refs.get(append.branch)
    return (None if head is None else head.snapshot_id) != append.parent


def rebase(
    draft: TableDraft,
    append: Append,
    updates: Sequence[Json],
    read: ReadList,
    unique: str,
    *,
    parent_list: str | None = None,
    copy: SnapshotCopy | None = None,
) -> Rebased:
    """Return the updates that apply an append on top of its branch's head. There are no side effects except those that
    `read` has.

    Args:
        draft: the table, without the request's updates.
        append: the result of `find_append` for the request.
        updates: the updates of the request.
        read: returns the manifest list at a location; raises BadRequestError if the list cannot be read.
        unique: a UUID; the name of the new file is derived from it and from the values that the content depends on.
        parent_list: location of the manifest list on which the append is based, if it was made on another branch of the
            catalog; empty if it was made on an empty table. None if the list is that of `append.parent`.
        copy: how to apply the append as a new snapshot; None if the snapshot keeps its id.
    Raises:
        NotRebasedError: the append cannot be rebased.
    """
    head = _check_head(draft, append)
    _check_format(draft, append, head)
    try:
        if not is_in_table(draft, append.manifest_list):
            raise NotRebasedError(
                f"the append's manifest list {append.manifest_list[:200]!r} is in none of the table's locations"
            )
        mine = read(append.manifest_list)
        new = _new_manifests(draft, append, mine, read, parent_list)
        if copy is not None:
            new = [copy.manifest(manifest) for manifest in new]
            summary = {**append.snapshot["summary"], **copy.summary}
            snapshot = {**append.snapshot, "snapshot-id": copy.id, "summary": summary}
            append = append._replace(snapshot=snapshot)
        old = None if head is None else read(_list_of(head))
        if old is not None and old.format_version != draft.format_version:
            # Its manifests still lack what the table's format version adds: row ids, which the client assigns.
            raise NotRebasedError(
                f"the manifest list of branch {append.branch} has format version {old.format_version}, but the "
                f"table has {draft.format_version}"
            )
        if old is not None and any(manifest[avro.PATH] in old for manifest in new):
            raise NotRebasedError("a manifest that the append adds is already in the branch")
        return _combine(draft, append, updates, mine, new, head, old, unique)
    except BadRequestError as error:
        raise NotRebasedError(str(error)) from error


def is_in_table(draft: TableDraft, location: str) -> bool:
    """Whether a file is in one of the table's locations. Clients must not make the catalog read other files."""
    try:
        parts = locations.segments(location)
    except BadRequestError:
        return False
    return locations.is_below_any(parts, locations.used(draft.location, draft.properties))


def _check_head(draft: TableDraft, append: Append) -> Json | None:
    """Check that all snapshots since the append's parent are appends, and return the snapshot on top of which to apply
    the append.

    Returns:
        the head of the branch; None if the branch is empty.
    """
    ref = draft.refs.get(append.branch)
    if ref is None:
        if append.parent is not None:
            raise NotRebasedError(f"branch {append.branch} no longer exists")
        return None
    fields = decode(ref.text)
    if fields["type"].lower() != "branch":
        raise NotRebasedError(f"{append.branch} is a tag, not a branch")
    # A client sends the retention with the ref. A retention that others set in the meantime must not be undone.
    if ref_fields(read_ref(append.reference))[1:] != ref_fields(fields)[1:]:
        raise NotRebasedError(f"the append would undo a change to the retention of {append.branch}")
    head = at = _snapshot(draft, ref.snapshot_id)
    while at["snapshot-id"] != append.parent:
        operation = (at.get("summary") or {}).get("operation")
        if operation != "append":
            raise NotRebasedError(
                f"snapshot {at['snapshot-id']}, which was committed first, has the operation {operation}, not append"
            )
        parent = at.get("parent-snapshot-id")
        if parent is None and append.parent is None:
            break
        if parent is None:
            raise NotRebasedError(f"branch {append.branch} no longer descends from snapshot {append.parent}")
        at = _snapshot(draft, parent)
    return head


def _snapshot(draft: TableDraft, id: int) -> Json:
    snapshot = draft.snapshots.get(id)
    if snapshot is None:
        raise NotRebasedError(f"snapshot {id} no longer exists")
    return snapshot


def _check_format(draft: TableDraft, append: Append, head: Json | None) -> None:
    if draft.format_version > _NEWEST_FORMAT:
        raise NotRebasedError(
            f"this release cannot read or write the manifest lists of format version {draft.format_version}"
        )
    if (
        draft.encryption_keys
        or _ENCRYPTION_KEY in draft.properties
        or append.snapshot.get("key-id") is not None
        or (head or {}).get("key-id") is not None
    ):
        raise NotRebasedError("manifest lists of the table are encrypted")
    if append.snapshot["snapshot-id"] in draft.snapshots:
        raise NotRebasedError(f"snapshot {append.snapshot['snapshot-id']} exists already")
    schema_id = append.snapshot.get("schema-id")
    if schema_id is not None and schema_id not in draft.schemas:
        raise NotRebasedError(f"schema {schema_id} no longer exists")


def _list_of(snapshot: Json) -> str:
    if "manifest-list" not in snapshot:
        raise NotRebasedError(f"snapshot {snapshot['snapshot-id']} has no manifest list")
    location: str = snapshot["manifest-list"]
    return location


def _new_manifests(
    draft: TableDraft, append: Append, mine: ManifestList, read: ReadList, parent_list: str | None
) -> Sequence[Manifest]:
    """Check the append's manifest list `mine`, and return the manifests that the append adds, in the order of
    `mine`."""
    said = mine.metadata.get("format-version", str(mine.format_version))
    if mine.format_version != draft.format_version or said != str(draft.format_version):
        raise NotRebasedError(
            f"the append's manifest list has format version {said}, but the table has {draft.format_version}"
        )
    if parent_list is None and append.parent is not None:
        parent_list = _list_of(_snapshot(draft, append.parent))
    if not parent_list:
        new: Sequence[Manifest] = mine.manifests
    else:
        parent = read(parent_list)
        found = avro.first_records(mine, parent)
        new = _without(mine, parent) if found is None else found
    _check_distinct(new)
    for manifest in new:
        _check_new(draft, append, manifest)
    return new


def _without(mine: ManifestList, parent: ManifestList) -> list[Manifest]:
    """Return the manifests of the list `mine` that the parent's list does not have. Check that `mine` has all manifests
    of the parent's list, unchanged."""
    before = {manifest[avro.PATH]: manifest for manifest in parent.manifests}
    new = [manifest for manifest in mine.manifests if manifest[avro.PATH] not in before]
    kept = {manifest[avro.PATH]: manifest for manifest in mine.manifests if manifest[avro.PATH] in before}
    for path, manifest in before.items():
        if kept.get(path) != manifest:
            raise NotRebasedError(
                f"manifest {path} of the append's parent is missing or changed in the append's manifest list"
            )
    if len(kept) + len(new) != mine.count:
        _check_distinct(mine.manifests)
    return new


def _check_distinct(manifests: Iterable[Manifest]) -> None:
    for path, times in Counter(manifest[avro.PATH] for manifest in manifests).items():
        if times > 1:
            raise NotRebasedError(f"the append's manifest list lists the manifest {path} twice")


def _check_new(draft: TableDraft, append: Append, manifest: Manifest) -> None:
    """Check that a new manifest holds only data files that the new snapshot adds, so that these files can inherit new
    sequence numbers and row ids from the manifest list."""
    expected = {
        avro.ADDED_SNAPSHOT_ID: append.snapshot["snapshot-id"],
        avro.EXISTING_FILES: 0,
        avro.DELETED_FILES: 0,
        avro.EXISTING_ROWS: 0,
    }
    if draft.format_version > 1:
        number = append.snapshot.get("sequence-number")
        expected |= {
            avro.CONTENT: avro.DATA_CONTENT,
            avro.SEQUENCE_NUMBER: number,
            avro.MIN_SEQUENCE_NUMBER: number,
        }
    for field, value in expected.items():
        if manifest.get(field) != value:
            raise NotRebasedError(
                f"manifest {manifest[avro.PATH]} must contain only data files that the new snapshot adds, but its "
                f"field with the id {field} is {manifest.get(field)}, not {value}"
            )
    if manifest.get(avro.SPEC_ID, 0) not in draft.specs:
        raise NotRebasedError(
            f"the table no longer has partition spec {manifest.get(avro.SPEC_ID)} of manifest {manifest[avro.PATH]}"
        )


def _combine(
    draft: TableDraft,
    append: Append,
    updates: Sequence[Json],
    mine: ManifestList,
    new: Sequence[Manifest],
    head: Json | None,
    old: ManifestList | None,
    unique: str,
) -> Rebased:
    snapshot = _renumbered(draft, append, head, kept=old.count if old else 0)
    metadata = dict(mine.metadata)
    moved = {
        "snapshot-id": str(snapshot["snapshot-id"]),
        "parent-snapshot-id": str(snapshot.get("parent-snapshot-id", "null")),
    }
    if draft.format_version > 1:
        number = snapshot["sequence-number"]
        numbers: Manifest = {avro.SEQUENCE_NUMBER: number, avro.MIN_SEQUENCE_NUMBER: number}
        new = [{**manifest, **numbers} for manifest in new]
        moved["sequence-number"] = str(number)
    if draft.format_version >= ROW_LINEAGE_VERSION:
        new = _with_row_ids(snapshot, new)
        moved["first-row-id"] = str(snapshot["first-row-id"])
    metadata |= {name: value for name, value in moved.items() if name in metadata}
    name = uuid.uuid5(uuid.UUID(unique), f"{head and _list_of(head)} {moved}")
    manifests, content = avro.prepend(mine, new, old, metadata, name.bytes)
    number = draft.last_sequence_number + 1
    snapshot["manifest-list"] = location = (
        f"{metadata_directory(draft)}/snap-{snapshot['snapshot-id']}-{number}-{name}.avro"
    )
    ours = {"add-snapshot": {"action": "add-snapshot", "snapshot": snapshot}}
    changed = [ours.get(update["action"], update) for update in updates]
    return Rebased(changed, location, content, manifests)


def _renumbered(draft: TableDraft, append: Append, head: Json | None, *, kept: int) -> Json:
    """Return a copy of the append's snapshot that is a child of the head. Its manifest list is still the one that the
    client sent."""
    snapshot = dict(append.snapshot)
    snapshot.pop("parent-snapshot-id", None)
    if head is not None:
        snapshot["parent-snapshot-id"] = head["snapshot-id"]
    if draft.format_version > 1:
        snapshot["sequence-number"] = draft.last_sequence_number + 1
    if draft.format_version >= ROW_LINEAGE_VERSION:
        snapshot["first-row-id"] = draft.next_row_id
    if draft.base is not None:
        snapshot["timestamp-ms"] = max(snapshot["timestamp-ms"], draft.base.last_updated_ms)
    before = NOTHING if head is None else head.get("summary") or {}
    snapshot["summary"] = counted_on(append.snapshot["summary"], before, kept)
    return snapshot


def _with_row_ids(snapshot: Json, new: Sequence[Manifest]) -> list[Manifest]:
    numbered, next_row_id = [], snapshot["first-row-id"]
    for manifest in new:
        numbered.append({**manifest, avro.FIRST_ROW_ID: next_row_id})
        next_row_id += _rows(manifest)
    if next_row_id - snapshot["first-row-id"] != snapshot.get("added-rows"):
        raise NotRebasedError(
            f"the append's manifests add {next_row_id - snapshot['first-row-id']} rows, but added-rows of its snapshot "
            f"is {snapshot.get('added-rows')}"
        )
    return numbered


def _rows(manifest: Manifest) -> int:
    rows: Any = manifest.get(avro.ADDED_ROWS)
    if not isinstance(rows, int):
        raise NotRebasedError(f"manifest {manifest[avro.PATH]} lacks the number of rows that it adds")
    return rows
