"""Three-way merge of one table: apply to one version what changed from a base version to another version.

Each part of the metadata is merged separately: every property, branch, tag and statistics file, and the current schema,
partition spec, sort order, location and format version. A part that only one side changed is taken from that side, and
a part that both sides changed in the same way is kept. Everything else is a conflict, with two exceptions:

- If both sides appended to a branch of the table, the appends are rebased (`append_rebase`).
- If both sides added columns and `polaris.schema-merge` is on, the columns are merged (`schema_merge`). The columns
  that the other version added then get new ids. Its data files contain the old ids, so the other version must not have
  new snapshots.

A snapshot keeps its id only if the table had the same snapshots before it on the other side, because the id identifies
one content of the table. A rebased append becomes a new snapshot with a new id, new manifests (`manifest_copies`), and
the field `source-snapshot-id` in its summary. By this field, later merges recognize the snapshots whose rows a table
already has. `snapshot_merge` merges snapshots, branches and tags.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from polaris_spark.catalog.merges.snapshot_merge import (
    ManifestSource,
    NewFile,
    SnapshotMerge,
    TableConflictError,
    Versions,
    merged_value,
)
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.pieces import NumberedPieces
from polaris_spark.catalog.metadata.rows import ObjectReader
from polaris_spark.catalog.metadata.table_pieces import LAST_ADDED
from polaris_spark.catalog.metadata.transforms import check_names, check_readable
from polaris_spark.catalog.tables.schema_merge import with_merged_columns
from polaris_spark.clock import CheckTime
from polaris_spark.errors import BadRequestError, CommitFailedError


class MergedTable(NamedTuple):
    """The result of a merge."""

    draft: TableDraft
    """The target version of the merge, with the changes of the other version applied. Unchanged if the other version
    has no changes."""
    files: list[NewFile]


def merge_tables(
    versions: Versions,
    reader: ObjectReader,
    *,
    now_ms: int,
    unique: str,
    files: ManifestSource,
    schema_merge: Callable[[Mapping[str, str]], bool],
    check_time: CheckTime,
    restores: bool = False,
) -> MergedTable:
    """Merge two versions of a table.

    Args:
        unique: a UUID; the names of new files are derived from it.
        files: reads manifest lists and manifests.
        schema_merge: takes the properties of a table, and returns whether columns that both sides added are merged.
        restores: whether `theirs` is older than the base. Its snapshots are then not added again, because their files
            may be deleted.
    Raises:
        TableConflictError: both sides changed the same part, in different ways.
    """
    merge = _Merge(versions, reader, now_ms, unique, files, check_time, restores=restores)
    try:
        merge.plain_values()
        merge.schemas(schema_merge)
        merge.specs()
        merge.sort_orders()
        merge.snapshots()
        merge.statistics()
    except (BadRequestError, CommitFailedError) as error:
        raise TableConflictError(str(error)) from error
    return MergedTable(merge.ours, merge.files)


class _Merge(SnapshotMerge):
    """Merges all parts of the metadata of two versions of a table."""

    def plain_values(self) -> None:
        """Merge the format version, the location and the properties."""
        base, ours, theirs = self.base, self.ours, self.theirs
        for name, label in (
            ("uuid", "UUID"),
            ("encryption_keys", "encryption keys"),
            ("extra", "fields unknown to this release"),
        ):
            value = merged_value(getattr(base, name), getattr(ours, name), getattr(theirs, name), label)
            if value != getattr(ours, name):
                raise TableConflictError(
                    f"the other state changed the {label} of the table; a merge cannot apply this change"
                )
        version = merged_value(
            base.format_version, ours.format_version, theirs.format_version, "format version"
        )
        if version < ours.format_version:
            raise TableConflictError("the format version of a table cannot be lowered")
        if version > ours.format_version:
            self._apply({"action": "upgrade-format-version", "format-version": version})
        location = merged_value(base.location, ours.location, theirs.location, "location")
        if location != ours.location:
            self._apply({"action": "set-location", "location": location})
        names = dict.fromkeys((*base.properties, *theirs.properties))
        changed = [name for name in names if base.properties.get(name) != theirs.properties.get(name)]
        merged = {
            name: merged_value(
                base.properties.get(name),
                ours.properties.get(name),
                theirs.properties.get(name),
                f"property {name!r}",
            )
            for name in changed
        }
        merged = {name: value for name, value in merged.items() if value != ours.properties.get(name)}
        values = {name: value for name, value in merged.items() if value is not None}
        if values:
            self._apply({"action": "set-properties", "updates": values})
        removed = [name for name, value in merged.items() if value is None]
        if removed:
            self._apply({"action": "remove-properties", "removals": removed})

    def schemas(self, schema_merge: Callable[[Mapping[str, str]], bool]) -> None:
        """Add the new schemas of the other side, and merge the choice of the current schema."""
        base, ours, theirs = self.base, self.ours, self.theirs
        before, mine, other = (_current_schema(one) for one in (base, ours, theirs))
        if mine != before and other not in (before, mine):
            self._merge_columns(schema_merge)
            return
        known = set(base.schemas.ids())
        needed = {(theirs.snapshots.get(id) or {}).get("schema-id") for id in self._new}
        for id, schema in theirs.schemas.all():
            digest = ours.schemas.digest(schema)
            # This branch may have removed a schema of the base that new snapshots of the other side need.
            if (id not in known or id in needed) and ours.schemas.like(digest) is None:
                if id not in known and self._both_added_columns:
                    raise TableConflictError("both sides added columns")
                self._apply({"action": "add-schema", "schema": schema})
            found = ours.schemas.like(digest)
            if found is not None:
                self._schema_ids[id] = found
        if other != before:
            wanted = self._schema_ids.get(theirs.current_schema_id)
            if wanted is None:
                raise TableConflictError("this branch removed the schema that is current in the other state")
            self._apply({"action": "set-current-schema", "schema-id": wanted})

    def _merge_columns(self, schema_merge: Callable[[Mapping[str, str]], bool]) -> None:
        """Merge columns that both sides added."""
        base, ours, theirs = self.base, self.ours, self.theirs
        schema = theirs.schemas.get(theirs.current_schema_id)
        updates = None
        if schema_merge(ours.properties) and not self._new:
            updates = with_merged_columns(
                ours,
                [{"type": "assert-current-schema-id", "current-schema-id": base.current_schema_id}],
                [
                    {"action": "add-schema", "schema": schema, "last-column-id": theirs.last_column_id},
                    {"action": "set-current-schema", "schema-id": LAST_ADDED},
                ],
            )
        if updates is None:
            raise TableConflictError("both sides changed the columns")
        self._apply(*updates)

    def specs(self) -> None:
        """Add the new partition specs of the other side, and merge the choice of the default spec."""
        specs = (self.base.specs, self.ours.specs, self.theirs.specs)
        needed = self._needed(self.theirs.specs, self.base.default_spec_id, self.theirs.default_spec_id)
        self._numbered("spec", *specs, "partition spec", needed)
        default = merged_value(
            self.base.default_spec_id,
            self.ours.default_spec_id,
            self.theirs.default_spec_id,
            "default partition spec",
        )
        if default != self.ours.default_spec_id:
            self._apply({"action": "set-default-spec", "spec-id": default})

    def sort_orders(self) -> None:
        """Add the new sort orders of the other side, and merge the choice of the default order."""
        orders = (self.base.sort_orders, self.ours.sort_orders, self.theirs.sort_orders)
        needed = self._needed(
            self.theirs.sort_orders, self.base.default_sort_order_id, self.theirs.default_sort_order_id
        )
        self._numbered("sort-order", *orders, "sort order", needed)
        default = merged_value(
            self.base.default_sort_order_id,
            self.ours.default_sort_order_id,
            self.theirs.default_sort_order_id,
            "default sort order",
        )
        if default != self.ours.default_sort_order_id:
            self._apply({"action": "set-default-sort-order", "sort-order-id": default})

    def _needed(self, pieces: NumberedPieces, before: int, default: int) -> Collection[int]:
        """Return the ids of the specs or sort orders that the changes of the other side may need. If the other side
        has new snapshots, return all its ids, because the manifests of these snapshots are not read.

        Args:
            pieces: the specs or sort orders of the other side.
            before: the default at the base.
            default: the default of the other side.
        """
        if self._new:
            return list(pieces.ids())
        return [] if default == before else [default]

    def _numbered(
        self,
        field: str,
        base: NumberedPieces,
        ours: NumberedPieces,
        theirs: NumberedPieces,
        label: str,
        needed: Collection[int],
    ) -> None:
        """Add new partition specs or sort orders, and those that this branch removed but the other side needs. They
        must get the ids that they have on the other side, because data files and manifests have these ids.

        Args:
            needed: ids of the specs or orders that the changes of the other side may need.
        """
        known = set(base.ids())
        for id, piece in theirs.all():
            if id not in known and ours.like(ours.digest(piece)) is None:
                self._apply({"action": f"add-{field}", field: piece})
            if id not in known and ours.like(ours.digest(piece)) != id:
                raise TableConflictError(f"both sides added a {label}")
            if id not in needed:
                continue
            if id not in ours:
                if field == "spec":
                    schema = self.ours.current_schema()
                    check_names(piece, schema)
                    check_readable(piece, schema)
                    self.ours.spec_fields.add(id, piece)
                ours.add(id, piece)
                self.ours.record(f"add-{field}", id)
            elif ours.get(id) != piece:
                raise TableConflictError(
                    f"the {label} with the id {id} of this branch is not the one with this id in the other state"
                )

    def statistics(self) -> None:
        """Merge the statistics files of the snapshots that are in both versions. A rollback changes none."""
        if self._restores:
            return
        for id in self._with_other_statistics:
            if id not in self.ours.snapshots or id not in self.theirs.snapshots:
                continue
            for kind in ("statistics", "partition-statistics"):
                before, mine, other = (
                    getattr(version, kind.replace("-", "_")).get(id)
                    for version in (self.base, self.ours, self.theirs)
                )
                if other in (before, mine):
                    continue
                if mine != before:
                    raise TableConflictError(f"both sides changed the {kind} of snapshot {id}")
                if other is None:
                    self._apply({"action": f"remove-{kind}", "snapshot-id": id})
                else:
                    self._apply({"action": f"set-{kind}", "snapshot-id": id, kind: other})


def _current_schema(draft: TableDraft) -> bytes:
    return draft.schemas.digest(draft.schemas.get(draft.current_schema_id) or {})
