"""Three-way merge of one table: apply to one version what changed from a base version to another version.

Each part of the metadata is merged by itself: every property, branch, tag, and the current schema, partition spec, sort
order, location and format version. A part that only one side changed is taken from that side, and a part that both
sides changed alike is kept. Everything else is a conflict, with two exceptions:

- If both sides appended to a branch of the table, the appends are rebased (`append_rebase`).
- If both sides added columns and `polaris.schema-merge` is on, the columns are merged (`schema_merge`). Columns get new
  ids then, which data files of the other version do not have, so it must not have new snapshots.

Snapshots keep their ids. Their sequence numbers, row ids and times change if the table has new snapshots of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from polaris_spark.catalog.append_rebase import Append, NotRebasedError, ReadList, rebase
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.pieces import NumberedPieces, snapshot_id_of
from polaris_spark.catalog.metadata.rows import ObjectReader, Table
from polaris_spark.catalog.metadata.table_pieces import LAST_ADDED
from polaris_spark.catalog.metadata.table_updates import apply_all
from polaris_spark.catalog.metadata.texts import Json, decode
from polaris_spark.catalog.schema_merge import with_merged_columns
from polaris_spark.clock import CheckTime
from polaris_spark.errors import BadRequestError, CommitFailedError
from polaris_spark.index import diff

T = TypeVar("T")

_APPEND: Final = "append"


class TableConflictError(Exception):
    """Two versions of a table cannot be merged; the message says which part both sides changed."""


class NewFile(NamedTuple):
    """A manifest list that a merge writes."""

    location: str
    content: bytes


class MergedTable(NamedTuple):
    """The result of a merge."""

    draft: TableDraft
    """The version that was merged into, with the changes of the other one. It has no changes if there were none."""
    files: list[NewFile]


class Versions(NamedTuple):
    """The three versions of a table in a merge."""

    base: Table
    ours: Table
    """The version that changes are merged into."""
    theirs: Table
    """The version whose changes since the base are merged."""


def merge_tables(
    versions: Versions,
    reader: ObjectReader,
    *,
    now_ms: int,
    unique: str,
    read: ReadList,
    keep: Callable[[str, Any], None],
    schema_merge: Callable[[Mapping[str, str]], bool],
    check_time: CheckTime,
    restores: bool = False,
) -> MergedTable:
    """Merge two versions of a table.

    Args:
        unique: a UUID; the names of new files are derived from it.
        read: returns the manifest list at a location.
        keep: takes the location and content of a new manifest list, so that `read` finds it.
        schema_merge: returns whether added columns are merged in a table with these properties.
        restores: whether `theirs` is older than the base. Its snapshots are then not added again, because their files
            may be deleted.
    Raises:
        TableConflictError: both sides changed the same part, in different ways.
    """
    merge = _Merge(versions, reader, now_ms, unique, read, keep, check_time, restores=restores)
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


class _Merge:
    def __init__(
        self,
        versions: Versions,
        reader: ObjectReader,
        now_ms: int,
        unique: str,
        read: ReadList,
        keep: Callable[[str, Any], None],
        check_time: CheckTime,
        *,
        restores: bool,
    ) -> None:
        self.base, self.ours, self.theirs = (
            TableDraft(version, reader, now_ms=now_ms, check_time=check_time) for version in versions
        )
        self.files: list[NewFile] = []
        self._unique = unique
        self._read = read
        self._keep = keep
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

    def plain_values(self) -> None:
        """Merge the format version, the location and the properties."""
        base, ours, theirs = self.base, self.ours, self.theirs
        for name in ("encryption_keys", "extra"):
            value = _merged(getattr(base, name), getattr(ours, name), getattr(theirs, name), name)
            if value != getattr(ours, name):
                raise TableConflictError(f"the {name.replace('_', ' ')} of the table were changed")
        version = _merged(base.format_version, ours.format_version, theirs.format_version, "format version")
        if version < ours.format_version:
            raise TableConflictError("the format version of a table cannot be lowered")
        if version > ours.format_version:
            self._apply({"action": "upgrade-format-version", "format-version": version})
        location = _merged(base.location, ours.location, theirs.location, "location")
        if location != ours.location:
            self._apply({"action": "set-location", "location": location})
        names = dict.fromkeys((*base.properties, *theirs.properties))
        changed = [name for name in names if base.properties.get(name) != theirs.properties.get(name)]
        merged = {
            name: _merged(
                base.properties.get(name),
                ours.properties.get(name),
                theirs.properties.get(name),
                f"property {name!r}",
            )
            for name in changed
        }
        values = {name: value for name, value in merged.items() if value is not None}
        if values:
            self._apply({"action": "set-properties", "updates": values})
        removed = [name for name, value in merged.items() if value is None]
        if removed:
            self._apply({"action": "remove-properties", "removals": removed})

    def schemas(self, schema_merge: Callable[[Mapping[str, str]], bool]) -> None:
        """Add the new schemas of the other side, and merge which schema is the current one."""
        base, ours, theirs = self.base, self.ours, self.theirs
        before, mine, other = (_current_schema(one) for one in (base, ours, theirs))
        if mine != before and other not in (before, mine):
            self._merge_columns(schema_merge)
            return
        known = set(base.schemas.ids())
        for id, schema in theirs.schemas.all():
            digest = _schema_digest(ours.schemas, schema)
            if id not in known and ours.schemas.like(digest) is None:
                if self._both_added_columns:
                    raise TableConflictError("both sides added columns")
                self._apply({"action": "add-schema", "schema": schema})
            found = ours.schemas.like(digest)
            if found is not None:
                self._schema_ids[id] = found
        if other != before:
            wanted = self._schema_ids.get(theirs.current_schema_id)
            if wanted is None:
                raise TableConflictError("the current schema of the other side cannot be used here")
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
        """Add the new partition specs of the other side, and merge which one is the default."""
        self._numbered("spec", self.base.specs, self.ours.specs, self.theirs.specs, "partition spec")
        default = _merged(
            self.base.default_spec_id,
            self.ours.default_spec_id,
            self.theirs.default_spec_id,
            "default partition spec",
        )
        if default != self.ours.default_spec_id:
            self._apply({"action": "set-default-spec", "spec-id": default})

    def sort_orders(self) -> None:
        """Add the new sort orders of the other side, and merge which one is the default."""
        orders = (self.base.sort_orders, self.ours.sort_orders, self.theirs.sort_orders)
        self._numbered("sort-order", *orders, "sort order")
        default = _merged(
            self.base.default_sort_order_id,
            self.ours.default_sort_order_id,
            self.theirs.default_sort_order_id,
            "default sort order",
        )
        if default != self.ours.default_sort_order_id:
            self._apply({"action": "set-default-sort-order", "sort-order-id": default})

    def _numbered(
        self, field: str, base: NumberedPieces, ours: NumberedPieces, theirs: NumberedPieces, label: str
    ) -> None:
        """Add new partition specs or sort orders. They must get the ids that they have on the other side, because data
        files and manifests have these ids."""
        known = set(base.ids())
        for id, piece in theirs.all():
            if id not in known and ours.like(ours.digest(piece)) is None:
                self._apply({"action": f"add-{field}", field: piece})
            if id not in known and ours.like(ours.digest(piece)) != id:
                raise TableConflictError(f"both sides added a {label}")

    def snapshots(self) -> None:
        """Add the new snapshots of the other side, and move branches and tags."""
        base, ours, theirs = (
            {name: decode(ref.text) for name, ref in one.refs.items()}
            for one in (self.base, self.ours, self.theirs)
        )
        if self._new and not self._ours_grew:
            for id in self._new:
                self._add_snapshot(id)
        names = [name for name in dict.fromkeys((*base, *theirs)) if base.get(name) != theirs.get(name)]
        # Tags come last, because a tag may be at a snapshot that a rebased append adds.
        for name in sorted(names, key=lambda name: theirs.get(name, {}).get("type") == "tag"):
            self._move(name, base.get(name), ours.get(name), theirs.get(name))

    def _add_snapshot(self, id: int) -> None:
        """Add a snapshot of the other side as it is, except that it must not be older than the table."""
        snapshot = dict(self.theirs.snapshots.get(id) or {})
        snapshot["timestamp-ms"] = max(snapshot["timestamp-ms"], self.ours.last_updated_ms)
        if "schema-id" in snapshot:
            snapshot["schema-id"] = self._schema_ids.get(snapshot["schema-id"], snapshot["schema-id"])
        self._apply({"action": "add-snapshot", "snapshot": snapshot})

    def _move(self, name: str, base: Json | None, ours: Json | None, theirs: Json | None) -> None:
        """Merge the change of one branch or tag of the table. The parameters are its three versions; None if it does
        not exist there."""
        if ours == theirs:
            return
        if ours is not None and theirs is not None and _same_but_older(self.ours, ours, theirs, base):
            return
        if ours == base and theirs is None:
            self._apply({"action": "remove-snapshot-ref", "ref-name": name})
        elif theirs is not None and ours == base and theirs["snapshot-id"] in self.ours.snapshots:
            self._apply({"action": "set-snapshot-ref", "ref-name": name, **theirs})
        elif theirs is None or (ours is None and base is not None):
            raise TableConflictError(f"one side removed, and the other side changed the {_kind(name, base)}")
        else:
            self._append(name, base, ours, theirs)

    def _append(self, name: str, base: Json | None, ours: Json | None, theirs: Json) -> None:
        """Append the new snapshots of a branch of the other side to the same branch here."""
        both = f"both sides changed the {_kind(name, theirs)}"
        if self._restores:
            gone = theirs["snapshot-id"] not in self.ours.snapshots
            raise TableConflictError(f"snapshot {theirs['snapshot-id']} no longer exists" if gone else both)
        if theirs["type"] != "branch" or _retention(theirs) != _retention(base or theirs):
            raise TableConflictError(both)
        chain, at = [], theirs["snapshot-id"]
        began = None if base is None else base["snapshot-id"]
        while at is not None and at not in self.ours.snapshots:
            snapshot = self.theirs.snapshots.get(at)
            if snapshot is None:
                raise TableConflictError(f"snapshot {at} of the {_kind(name, theirs)} no longer exists")
            chain.append(snapshot)
            at = snapshot.get("parent-snapshot-id")
        here = None if ours is None else ours["snapshot-id"]
        if not _descends(self.theirs, theirs["snapshot-id"], began) or at not in (began, here):
            raise TableConflictError(both)
        if ours is None and at is not None:
            created = {**theirs, "snapshot-id": at}
            self._apply({"action": "set-snapshot-ref", "ref-name": name, **created})
        for snapshot in reversed(chain):
            ref = {**(ours or theirs), "snapshot-id": snapshot["snapshot-id"]}
            if (snapshot.get("summary") or {}).get("operation") == _APPEND:
                self._rebase(name, snapshot, ref)
            elif at == here and snapshot.get("sequence-number", 0) > self.ours.last_sequence_number:
                self._add_snapshot(snapshot["snapshot-id"])
                self._apply({"action": "set-snapshot-ref", "ref-name": name, **ref})
            else:
                raise TableConflictError(f"{both}, and snapshot {snapshot['snapshot-id']} is not an append")

    def _rebase(self, name: str, snapshot: Json, ref: Json) -> None:
        parent = snapshot.get("parent-snapshot-id")
        if "schema-id" in snapshot:
            id = snapshot["schema-id"]
            snapshot = {**snapshot, "schema-id": self._schema_ids.get(id, id)}
        reference = {"action": "set-snapshot-ref", "ref-name": name, **ref}
        append = Append(name, {}, parent, snapshot, reference, snapshot.get("manifest-list", ""))
        updates = [{"action": "add-snapshot", "snapshot": snapshot}, reference]
        original = None if parent is None else (self.theirs.snapshots.get(parent) or {}).get("manifest-list")
        try:
            rebased = rebase(self.ours, append, updates, self._read, self._unique, parent_list=original)
        except NotRebasedError as reason:
            raise TableConflictError(f"both sides changed the {_kind(name, ref)}: {reason}") from reason
        self._keep(rebased.location, rebased.manifests)
        self.files.append(NewFile(rebased.location, rebased.content))
        self._apply(*rebased.updates)

    def statistics(self) -> None:
        """Add the statistics files of the new snapshots."""
        for id in self._new:
            if id not in self.ours.snapshots:
                continue
            found = self.theirs.statistics.get(id)
            if found is not None:
                self._apply({"action": "set-statistics", "snapshot-id": id, "statistics": found})
            found = self.theirs.partition_statistics.get(id)
            if found is not None:
                self._apply({"action": "set-partition-statistics", "partition-statistics": found})


def _merged(base: T, ours: T, theirs: T, label: str) -> T:
    """Return the merged value of a part of the metadata.

    Raises:
        TableConflictError: both sides changed the part, in different ways.
    """
    if theirs in (base, ours):
        return ours
    if ours == base:
        return theirs
    raise TableConflictError(f"both sides changed the {label}: it is {ours!r} here and {theirs!r} there")


def _descends(draft: TableDraft, snapshot: int | None, ancestor: int | None) -> bool:
    """Whether a snapshot is `ancestor` or descends from it. Every snapshot descends from None."""
    while snapshot is not None and snapshot != ancestor:
        snapshot = (draft.snapshots.get(snapshot) or {}).get("parent-snapshot-id")
    return snapshot == ancestor


def _same_but_older(draft: TableDraft, ours: Json, theirs: Json, base: Json | None) -> bool:
    """Whether a branch here is already ahead of the same branch on the other side, and both are ahead of the base."""
    began = None if base is None else base["snapshot-id"]
    return (
        ours["type"] == theirs["type"] == "branch"
        and _retention(ours) == _retention(theirs)
        and _descends(draft, ours["snapshot-id"], theirs["snapshot-id"])
        and _descends(draft, theirs["snapshot-id"], began)
    )


def _current_schema(draft: TableDraft) -> bytes:
    return _schema_digest(draft.schemas, draft.schemas.get(draft.current_schema_id) or {})


def _schema_digest(schemas: NumberedPieces, schema: Json) -> bytes:
    return schemas.digest(schema)


def _retention(ref: Json) -> Json:
    return {name: value for name, value in ref.items() if name != "snapshot-id"}


def _kind(name: str, ref: Json | None) -> str:
    return f"{'tag' if ref is not None and ref.get('type') == 'tag' else 'branch'} {name!r} of the table"
