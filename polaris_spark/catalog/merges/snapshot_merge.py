"""Merges the snapshots, branches and tags of two versions of a table (`table_merge`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Set
from typing import Final, NamedTuple, TypeVar

from polaris_spark.catalog.entities.entities import Context
from polaris_spark.catalog.manifests import manifest_lists as avro
from polaris_spark.catalog.manifests.manifest_copies import SOURCE_SNAPSHOT, copy_of_manifest, source_of
from polaris_spark.catalog.manifests.manifest_files import ManifestFiles
from polaris_spark.catalog.manifests.manifest_lists import Manifest, ManifestList
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.metadata_paths import metadata_directory
from polaris_spark.catalog.metadata.pieces import snapshot_id_of
from polaris_spark.catalog.metadata.rows import ObjectReader, Table
from polaris_spark.catalog.metadata.table_updates import apply_all
from polaris_spark.catalog.metadata.texts import Json, decode
from polaris_spark.catalog.tables.append_rebase import (
    Append,
    NotRebasedError,
    SnapshotCopy,
    is_in_table,
    rebase,
)
from polaris_spark.clock import CheckTime
from polaris_spark.errors import BadRequestError
from polaris_spark.index import diff

T = TypeVar("T")

_APPEND: Final = "append"


class TableConflictError(Exception):
    """Two versions of a table cannot be merged; the message says which part both sides changed."""


class NewFile(NamedTuple):
    """A manifest list or manifest that a merge writes."""

    location: str
    content: bytes


class ManifestSource:
    """Reads manifest lists and manifests for a merge, each file once. The caller checks their locations.

    `read` and `content` raise `BadRequestError` if a file cannot be read.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._contents: dict[str, bytes] = {}

    def _files(self) -> ManifestFiles:
        if self._context.manifest_files is None:
            raise BadRequestError(
                "the snapshots of the table cannot be merged, because this process has no access to manifest lists"
            )
        return self._context.manifest_files

    def read(self, location: str) -> ManifestList:
        """Return the manifest list at a location."""
        return self._files().read(location, self._context.confinement)

    def content(self, location: str) -> bytes:
        """Return the content of the manifest at a location."""
        if location not in self._contents:
            self._contents[location] = self._files().content(location, self._context.confinement)
        return self._contents[location]

    def keep(self, location: str, found: ManifestList) -> None:
        """Cache a new manifest list, so that `read` finds it before its file is written."""
        self._files().keep(location, found)


class Versions(NamedTuple):
    """The three versions of a table in a merge."""

    base: Table
    ours: Table
    """The version that changes are merged into."""
    theirs: Table
    """The version whose changes since the base are merged."""


class SnapshotMerge:
    """Merges the snapshots, branches and tags of two versions of a table."""

    def __init__(
        self,
        versions: Versions,
        reader: ObjectReader,
        now_ms: int,
        unique: str,
        files: ManifestSource,
        check_time: CheckTime,
        *,
        restores: bool,
    ) -> None:
        if not restores:  # snapshots of the other side must not be newer than the merged table
            now_ms = max(now_ms, versions.theirs.last_updated_ms)
        self.base, self.ours, self.theirs = (
            TableDraft(version, reader, now_ms=now_ms, check_time=check_time) for version in versions
        )
        self.files: list[NewFile] = []
        self._unique = unique
        self._source = files
        self._entity = versions.ours.uuid
        self._restores = restores
        self._new = [] if restores else self._snapshots_since_base(versions.theirs, versions.base, reader)
        """Ids of the snapshots that only the other side has, in the order in which they were added."""
        self._ours_grew = (
            bool(self._snapshots_since_base(versions.ours, versions.base, reader))
            or versions.ours.last_sequence_number != versions.base.last_sequence_number
            or versions.ours.next_row_id != versions.base.next_row_id
        )
        self._both_added_columns = versions.base.last_column_id not in (
            versions.ours.last_column_id,
            versions.theirs.last_column_id,
        )
        self._with_other_statistics = {
            snapshot_id_of(key): None
            for kind in ("statistics", "partition_statistics")
            for key, *_ in diff(
                getattr(versions.base, kind), getattr(versions.theirs, kind), reader.read_shards
            )
        }
        """Ids of the snapshots whose statistics files differ between the base and the other side."""
        self._schema_ids: dict[int, int] = {}
        """Maps the ids of schemas of the other side to the ids of the same schemas here."""

    @staticmethod
    def _snapshots_since_base(version: Table, base: Table, reader: ObjectReader) -> list[int]:
        added = [
            (int.from_bytes(after.value, "big"), snapshot_id_of(key))
            for key, before, after in diff(base.snapshots, version.snapshots, reader.read_shards)
            if before is None and after is not None
        ]
        return [id for _, id in sorted(added)]

    def _apply(self, *updates: Json) -> None:
        apply_all(self.ours, updates)

    def snapshots(self) -> None:
        """Add the new snapshots of the other side, and move branches and tags."""
        base, ours, theirs = (
            {name: decode(ref.text) for name, ref in one.refs.items()}
            for one in (self.base, self.ours, self.theirs)
        )
        if not self._ours_grew:
            self._add_snapshots()
        names = [name for name in dict.fromkeys((*base, *theirs)) if base.get(name) != theirs.get(name)]
        # Tags come last, because a tag may be at a snapshot that a rebased append adds.
        for name in sorted(names, key=lambda name: theirs.get(name, {}).get("type") == "tag"):
            self._move(name, base.get(name), ours.get(name), theirs.get(name))

    def _add_snapshots(self) -> None:
        """Add the new snapshots of the other side as they are, if their sequence numbers are greater than all sequence
        numbers of the table. Snapshots that the other side kept after a merge (`kept_snapshots`) may have lower
        numbers, or equal numbers. Snapshots with lower numbers are left out. If a branch or tag of the other side needs
        one of them, nothing is added."""
        added = [self.theirs.snapshots.get(id) or {} for id in self._new]
        older = _ids(one for one in added if not self._is_newer(one))
        if older and any(
            not older.isdisjoint(_ids(_chain(self.theirs, ref.snapshot_id)))
            for ref in self.theirs.refs.values()
        ):
            return
        numbers = self.ours.last_sequence_number, self.ours.next_row_id
        for id in self._new:
            if id not in older:
                self.ours.last_sequence_number, self.ours.next_row_id = numbers
                self._add_snapshot(id)
        self.ours.last_sequence_number = self.ours.highest_sequence_number
        self.ours.next_row_id = max(self.ours.next_row_id, self.theirs.next_row_id)

    def _is_newer(self, snapshot: Json) -> bool:
        """Whether the sequence number of a snapshot is greater than all sequence numbers of the table. In format
        version 1, which has no sequence numbers, return True."""
        number = snapshot.get("sequence-number", 0)
        return self.ours.format_version == 1 or number > self.ours.last_sequence_number

    def _add_snapshot(self, id: int) -> None:
        """Add a snapshot of the other side as it is. Only its timestamp is changed if it is older than the last update
        of the table, and its schema id if the schema has another id here."""
        snapshot = dict(self.theirs.snapshots.get(id) or {})
        snapshot["timestamp-ms"] = max(snapshot["timestamp-ms"], self.ours.last_updated_ms)
        if "schema-id" in snapshot:
            snapshot["schema-id"] = self._schema_ids.get(snapshot["schema-id"], snapshot["schema-id"])
        self._apply({"action": "add-snapshot", "snapshot": snapshot})

    def _move(self, name: str, base: Json | None, ours: Json | None, theirs: Json | None) -> None:
        """Merge the change of one branch or tag of the table. `base`, `ours` and `theirs` are the branch or tag in the
        three versions of the table; None if a version does not have it."""
        if ours == theirs:
            return
        if ours == base and theirs is None:
            self._apply({"action": "remove-snapshot-ref", "ref-name": name})
        elif theirs is not None and ours == base and theirs["snapshot-id"] in self.ours.snapshots:
            self._apply({"action": "set-snapshot-ref", "ref-name": name, **theirs})
        elif theirs is None or (ours is None and base is not None):
            raise TableConflictError(
                f"one side removed the {_kind(name, base)}, and the other side changed it"
            )
        else:
            self._append(name, base, ours, theirs)

    def _append(self, name: str, base: Json | None, ours: Json | None, theirs: Json) -> None:
        """Append the new snapshots that a branch of the table has on the other side to the same branch on this side."""
        both = f"both sides changed the {_kind(name, theirs)}"
        if self._restores:
            gone = theirs["snapshot-id"] not in self.ours.snapshots
            raise TableConflictError(f"snapshot {theirs['snapshot-id']} no longer exists" if gone else both)
        if theirs["type"] != "branch" or _retention(theirs) != _retention(base or theirs):
            raise TableConflictError(both)
        before, mine, other = (
            [] if ref is None else _chain(draft, ref["snapshot-id"])
            for draft, ref in ((self.base, base), (self.ours, ours), (self.theirs, theirs))
        )
        known, here, there = ({source_of(one) for one in chain} for chain in (before, mine, other))
        if base is not None and not (before and source_of(before[-1]) in here & there):
            raise TableConflictError(
                f"{both}, and one side no longer stores the newest snapshot that both sides had: it has expired, or "
                "the branch was rolled back or created again"
            )
        stored = mine
        if ours is None:  # a new branch: it begins at a snapshot that is here, too
            began = next((one for one in other[::-1] if one["snapshot-id"] in self.ours.snapshots), None)
            if began is not None:
                ref = {**theirs, "snapshot-id": began["snapshot-id"]}
                self._apply({"action": "set-snapshot-ref", "ref-name": name, **ref})
                stored = _chain(self.ours, began["snapshot-id"])
                here = {source_of(one) for one in stored}
        known |= here & there
        for snapshot in self._lacking(before, stored, other, known | here, both):
            self._append_one(name, snapshot, ours or theirs, known, both)

    def _lacking(
        self, before: list[Json], stored: list[Json], other: list[Json], present: set[int], both: str
    ) -> list[Json]:
        """Return the snapshots of the other side whose rows must be appended to a branch, oldest first.

        If both sides store the same snapshot, this branch has the rows of all snapshots before it. Otherwise, a
        snapshot of the other side is

        - not new, if the base stores it or a snapshot after it;
        - new, if it is not a copy, and comes after the newest snapshot of the base. Every copy of it in this branch
          comes after that snapshot, too, and this branch stores all snapshots from there on;
        - in doubt in all other cases: a copy in this branch may have expired.

        Args:
            before: the snapshots of the branch that the base stores, oldest first.
            stored: the snapshots of the branch that this side stores, oldest first.
            other: the snapshots of the branch that the other side stores, oldest first.
            present: ids of the snapshots that the base or this branch stores (`source_of`).
        Raises:
            TableConflictError: snapshots have expired, so it is not known which rows the branch lacks, or these rows
                cannot be appended.
        """
        first = _after(other, _ids(stored))
        if not first:
            first, until = _after(other, _ids(before)), len(other)
            if before:
                newest = source_of(before[-1])
                until = _after(other, _ids(one for one in other if source_of(one) == newest))
            in_doubt = [
                one
                for position, one in enumerate(other)
                if position >= first and (position < until or source_of(one) != one["snapshot-id"])
            ]
            if any(source_of(one) not in present for one in in_doubt):
                expired = self._expired(stored, other, both)
                first, present = max(first, _after(other, expired)), present | expired
            if not first:
                self._require_rows_before(other, stored, present, both)
        return [one for one in other[first:] if source_of(one) not in present]

    def _expired(self, stored: list[Json], other: list[Json], both: str) -> set[int]:
        """Return the ids of snapshots that expired on this side, but whose rows the branch still has.

        These ids are known only from the manifests of the oldest stored snapshot, because the record of each manifest
        contains the id of the snapshot that added it. But this does not tell everything: if that snapshot was a copy,
        the id of the original is missing; and if the manifest was merged from others, the ids of the snapshots that
        added those are missing.

        Args:
            stored: the snapshots of the branch that this side stores, oldest first.
            other: the snapshots of the branch that the other side stores, oldest first.
        Raises:
            TableConflictError: an expired snapshot may have been a snapshot of the other side, or a copy of one.
        """
        if not stored or stored[0].get("parent-snapshot-id") is None:
            return set()
        found, ids = set[int](), _ids(other)
        sources = ids | {source_of(one) for one in other}
        for manifest in self._earlier(stored[0]):
            by = manifest[avro.ADDED_SNAPSHOT_ID]
            if by not in (sources if manifest.get(avro.EXISTING_FILES) == 0 else ids):
                raise TableConflictError(
                    f"{both}, and snapshots of this branch have expired, so it is not known which rows it already has"
                )
            found.add(by)
        return found

    def _earlier(self, snapshot: Json) -> list[Manifest]:
        """Return the manifests of a snapshot that have files of earlier snapshots."""
        manifests = self._source.read(snapshot.get("manifest-list", "")).manifests
        return [
            one
            for one in manifests
            if one[avro.ADDED_SNAPSHOT_ID] != snapshot["snapshot-id"] or one.get(avro.EXISTING_FILES) != 0
        ]

    def _require_rows_before(
        self, other: list[Json], stored: list[Json], present: set[int], both: str
    ) -> None:
        """Check that this branch has the rows of the snapshots that expired on the other side. Only the rows of stored
        snapshots can be appended.

        Args:
            other: the snapshots of the branch that the other side stores, oldest first.
            stored: the snapshots of the branch that this side stores, oldest first.
            present: ids of the snapshots whose rows this branch has (`source_of`).
        Raises:
            TableConflictError: this branch may lack rows of an expired snapshot.
        """
        if not other or other[0].get("parent-snapshot-id") is None:
            return
        present = present - {other[0]["snapshot-id"]}
        lacking = {one[avro.ADDED_SNAPSHOT_ID] for one in self._earlier(other[0])} - present
        if lacking and stored:
            manifests = self._source.read(stored[-1].get("manifest-list", "")).manifests
            lacking -= {one[avro.ADDED_SNAPSHOT_ID] for one in manifests}
        if lacking:
            raise TableConflictError(
                f"{both}, and snapshots of the other side have expired, so their rows cannot be appended"
            )

    def _append_one(self, name: str, snapshot: Json, ref: Json, base: set[int], both: str) -> None:
        """Append a snapshot of the other side to a branch of the table.

        Args:
            ref: the fields of the branch.
            base: ids of the snapshots that both sides have (`source_of`). All other snapshots must be appends.
            both: beginning of error messages, which says that both sides changed the branch.
        """
        id, found = snapshot["snapshot-id"], self.ours.refs.get(name)
        head = None if found is None else found.snapshot_id
        follows = (
            head == snapshot.get("parent-snapshot-id")
            and self._is_newer(snapshot)
            and snapshot.get("first-row-id", self.ours.next_row_id) == self.ours.next_row_id
        )
        if follows:
            self._add_snapshot(id)
            self._apply({"action": "set-snapshot-ref", "ref-name": name, **ref, "snapshot-id": id})
            return
        if (snapshot.get("summary") or {}).get("operation") != _APPEND:
            raise TableConflictError(f"{both}, and snapshot {id} is not an append")
        for one in [] if head is None else _chain(self.ours, head)[::-1]:
            if source_of(one) in base:
                break
            operation = (one.get("summary") or {}).get("operation")
            if operation != _APPEND:
                raise TableConflictError(
                    f"{both}: snapshot {one['snapshot-id']} of this branch has the operation {operation}, not append"
                )
        self._rebase(name, snapshot, ref, head)

    def _rebase(self, name: str, snapshot: Json, ref: Json, head: int | None) -> None:
        """Append a copy of a snapshot of the other side to a branch of the table. The copy follows the snapshot `head`,
        the newest snapshot of the branch."""
        if "schema-id" in snapshot:
            id = snapshot["schema-id"]
            snapshot = {**snapshot, "schema-id": self._schema_ids.get(id, id)}
        unique = uuid.uuid5(uuid.UUID(self._unique), f"{self._entity} {name} {snapshot['snapshot-id']}")
        copy = SnapshotCopy(
            int.from_bytes(unique.bytes[:8], "big") >> 1,
            {SOURCE_SNAPSHOT: str(source_of(snapshot))},
            lambda manifest: self._copied(manifest, unique),
        )
        reference = {"action": "set-snapshot-ref", "ref-name": name, **ref, "snapshot-id": copy.id}
        append = Append(name, {}, head, snapshot, reference, snapshot.get("manifest-list", ""))
        updates = [{"action": "add-snapshot", "snapshot": snapshot}, reference]
        parent = snapshot.get("parent-snapshot-id")
        before = {} if parent is None else self.theirs.snapshots.get(parent) or {}
        try:
            rebased = rebase(
                self.ours,
                append,
                updates,
                self._source.read,
                self._unique,
                parent_list=before.get("manifest-list", ""),
                copy=copy,
            )
        except NotRebasedError as reason:
            raise TableConflictError(f"both sides changed the {_kind(name, ref)}: {reason}") from reason
        self._source.keep(rebased.location, rebased.manifests)
        self.files.append(NewFile(rebased.location, rebased.content))
        self._apply(*rebased.updates)

    def _copied(self, manifest: Manifest, unique: uuid.UUID) -> Manifest:
        """Make a copy of a manifest for the copy of a snapshot. Return the record of the new manifest for the manifest
        list."""
        path = manifest[avro.PATH]
        if not is_in_table(self.theirs, path):
            raise NotRebasedError(f"manifest {path} is in none of the table's locations")
        name = uuid.uuid5(unique, path)
        snapshot = int.from_bytes(unique.bytes[:8], "big") >> 1
        content = copy_of_manifest(self._source.content(path), snapshot, name.bytes)
        location = f"{metadata_directory(self.ours)}/{name}-m0.avro"
        self.files.append(NewFile(location, content))
        return {
            **manifest,
            avro.PATH: location,
            avro.LENGTH: len(content),
            avro.ADDED_SNAPSHOT_ID: snapshot,
        }


def merged_value(base: T, ours: T, theirs: T, label: str) -> T:
    """Return the merged value of a part of the metadata.

    Raises:
        TableConflictError: both sides changed the part, in different ways.
    """
    if theirs in (base, ours):
        return ours
    if ours == base:
        return theirs
    raise TableConflictError(
        f"both sides changed the {label}: it is {ours!r} in this branch and {theirs!r} in the other state"
    )


def _chain(draft: TableDraft, snapshot: int | None) -> list[Json]:
    """Return a snapshot and the stored snapshots before it, oldest first."""
    found: list[Json] = []
    while snapshot is not None and (value := draft.snapshots.get(snapshot)) is not None:
        found.append(value)
        snapshot = value.get("parent-snapshot-id")
    return found[::-1]


def _ids(chain: Iterable[Json]) -> set[int]:
    return {one["snapshot-id"] for one in chain}


def _after(chain: list[Json], ids: Set[int]) -> int:
    """Return the position after the last snapshot that has one of the ids; 0 if none has."""
    return max((position + 1 for position, one in enumerate(chain) if one["snapshot-id"] in ids), default=0)


def _retention(ref: Json) -> Json:
    return {name: value for name, value in ref.items() if name != "snapshot-id"}


def _kind(name: str, ref: Json | None) -> str:
    return f"{'tag' if ref is not None and ref.get('type') == 'tag' else 'branch'} {name!r} of the table"
