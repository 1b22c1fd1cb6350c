"""Create, rename, drop and restore catalogs.

The reference `catalogs` decides which catalogs exist: each of these changes is one commit to it. The references of a
catalog contain its entity id and not its name, so a rename changes nothing else. When a catalog is dropped or restored,
a second commit, to the registry, drops or restores all references of the catalog (`settle`). If a process dies between
the two commits, the next change of a catalog, the next opening of the catalog, or the next job that removes dropped
references settles the catalog.

`settle` reads the reference `catalogs` again after its commit to the registry, and repeats itself if the catalog has
changed. So, of several processes, the last one that commits to the registry has seen the last change.

| catalog | in the reference `catalogs` | its references |
| --- | --- | --- |
| exists | in the index `names` | live, except those that were dropped one by one |
| dropped | in the index `dropped` | dropped, marked as dropped with the catalog |
| grace period has ended | in the index `dropped`, marked as ended, until its files are deleted | none |

`end_dropped` marks in the index `dropped` that the grace period of a catalog has ended, before it ends the
registrations of the references that were dropped with the catalog. A catalog with this mark cannot be restored. So
`end_dropped` cannot end the references of a catalog that another process restores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from polaris_spark.catalog.catalogs.catalogs import catalog_key, find_by_id, is_shared, settle, warehouse_of
from polaris_spark.catalog.catalogs.references import (
    CATALOGS,
    DroppedCatalog,
    catalog_prefix,
    catalogs_in,
    dropped_in,
)
from polaris_spark.catalog.entities.entities import Context, TimedChange, check_new_name
from polaris_spark.catalog.entities.properties import GC_ENABLED, WAREHOUSE
from polaris_spark.catalog.files.locations import overlap
from polaris_spark.catalog.rows import CATALOG, DROPPED, NAMES, PROPERTIES, CatalogRow, DroppedMark, id_bytes
from polaris_spark.clock import Clock
from polaris_spark.commits.change import ClockedChange, Operation, Unrepeated
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import AlreadyExistsError, ForbiddenError, NotFoundError, ReferenceGoneError
from polaris_spark.index import Entry
from polaris_spark.index.keys import children
from polaris_spark.system.registrations import Registered, was_dropped_with_catalog
from polaris_spark.system.registry import References

ENDED: Final = "end-catalog"
"""Action of log entries about the end of the grace period of a dropped catalog."""


class RenameCatalog(TimedChange[CatalogRow]):
    """Give a catalog another name. Its entity id and its references stay the same."""

    action = "rename-catalog"

    def __init__(self, context: Context, operation: Operation, row: CatalogRow, to: str) -> None:
        super().__init__(context, operation)
        self.row = row
        self.to = to

    def apply(self, state: State, prepared: int) -> CatalogRow:
        found = find_by_id(state, self.row)
        if found is None:
            raise NotFoundError(f"catalog {self.row.name!r} no longer exists")
        (key, entry), new = found, catalog_key(self.to)
        if new == key:
            return state.get(entry.pointer, CatalogRow)
        if state.lookup(NAMES, new) is not None:
            raise taken(self.to)
        row = msgspec.structs.replace(state.get_for_rewrite(entry.pointer, CatalogRow), name=self.to)
        after, mark = state.add(row), state.lookup(PROPERTIES, key)
        state.remove(NAMES, key)
        state.put(NAMES, new, Entry(after, entry.value))
        if mark is not None:
            state.remove(PROPERTIES, key)
            state.put(PROPERTIES, new, mark)
        self.record(state, prepared, row.entity_id, new, before=entry.pointer, after=after, old_key=key)
        return row

    def repeat(self, state: State, entries: list[LogEntry]) -> CatalogRow:
        return state.get(entries[-1].after, CatalogRow)


class DropCatalog(TimedChange[CatalogRow]):
    """Move a catalog from the index `names` to the index `dropped`."""

    action = "drop-catalog"

    def __init__(self, context: Context, operation: Operation, row: CatalogRow) -> None:
        super().__init__(context, operation)
        self.row = row

    def apply(self, state: State, prepared: int) -> CatalogRow:
        found = find_by_id(state, self.row)
        if found is None:
            raise NotFoundError(f"catalog {self.row.name!r} no longer exists")
        key, entry = found
        mark = DroppedMark(prepared, self.operation.principal)
        state.remove(NAMES, key)
        if state.lookup(PROPERTIES, key) is not None:
            state.remove(PROPERTIES, key)
        state.put(DROPPED, id_bytes(self.row.entity_id), Entry(entry.pointer, mark.encode()))
        self.record(state, prepared, self.row.entity_id, key, before=entry.pointer)
        return state.get(entry.pointer, CatalogRow)

    def repeat(self, state: State, entries: list[LogEntry]) -> CatalogRow:
        return state.get(entries[-1].before, CatalogRow)


class UndropCatalog(TimedChange[CatalogRow]):
    """Move a catalog from the index `dropped` to the index `names`."""

    action = "undrop-catalog"

    def __init__(self, context: Context, operation: Operation, row: CatalogRow, to: str) -> None:
        super().__init__(context, operation)
        check_new_name(to)
        self.row = row
        self.to = to

    def apply(self, state: State, prepared: int) -> CatalogRow:
        id = id_bytes(self.row.entity_id)
        entry, key = state.lookup(DROPPED, id), catalog_key(self.to)
        if entry is None or DroppedMark.decode(entry.value).ended:
            raise NotFoundError(
                f"catalog {self.row.name!r} can no longer be restored, or has been restored already"
            )
        if state.lookup(NAMES, key) is not None:
            raise taken(self.to)
        before = state.get_for_rewrite(entry.pointer, CatalogRow)
        row = before if before.name == self.to else msgspec.structs.replace(before, name=self.to)
        after = entry.pointer if row is before else state.add(row)
        _refuse_overlap(state, row)
        state.remove(DROPPED, id)
        state.put(NAMES, key, Entry(after, id))
        # Branches may have copies of older rows.
        state.put(PROPERTIES, key, Entry(value=id + self.operation.principal.encode()))
        self.record(state, prepared, row.entity_id, key, after=after)
        return row

    def repeat(self, state: State, entries: list[LogEntry]) -> CatalogRow:
        return state.get(entries[-1].after, CatalogRow)


class _EndChange(Unrepeated, ClockedChange[None]):
    """Base class of the changes with which jobs mark that the grace period of a dropped catalog has ended, and later
    remove the catalog."""

    action: str

    def __init__(self, operation: Operation, clock: Clock) -> None:
        super().__init__(clock, operation._replace(id=b""))

    def put(self, state: State, now: int, before: DroppedCatalog, after: DroppedMark | None) -> None:
        """Set the mark of a dropped catalog to `after`, or remove the mark if `after` is None. If the catalog has been
        restored since it was read, do nothing."""
        id = id_bytes(before.row.entity_id)
        if state.lookup(DROPPED, id) != Entry(before.pointer, before.mark.encode()):
            return
        if after is None:
            state.remove(DROPPED, id)
        else:
            state.put(DROPPED, id, Entry(before.pointer, after.encode()))
        # Another catalog may have the name now, so use the key of the catalog's references.
        key, summary = catalog_prefix(before.row).rstrip("/").encode(), {"catalog": before.row.name}
        who, entity = self.operation.principal, before.row.entity_id
        state.log(LogEntry(b"", who, now, self.action, entity, key, summary=summary))


class EndCatalogs(_EndChange):
    """End the grace periods of dropped catalogs. Catalogs that were restored since they were read are skipped."""

    action = ENDED

    def __init__(self, operation: Operation, clock: Clock, dropped: Sequence[DroppedCatalog]) -> None:
        super().__init__(operation, clock)
        self._dropped = dropped

    def apply(self, state: State, prepared: int) -> None:
        for one in self._dropped:
            self.put(state, prepared, one, one.mark._replace(ended=True) if has_files(one.row) else None)


class ForgetCatalog(_EndChange):
    """Remove a catalog whose grace period has ended and whose files were deleted."""

    action = "purge-catalog"

    def __init__(self, operation: Operation, clock: Clock, ended: DroppedCatalog) -> None:
        super().__init__(operation, clock)
        self._ended = ended

    def apply(self, state: State, prepared: int) -> None:
        self.put(state, prepared, self._ended, None)


def has_files(row: CatalogRow) -> bool:
    """Whether the files of a dropped catalog must be deleted after its grace period: its property `gc.enabled` is not
    false, and it has a warehouse of its own."""
    collects = row.properties.get(GC_ENABLED, "true").strip().lower() == "true"
    return collects and not is_shared(row) and warehouse_of(row) is not None


def unsettled(references: References) -> list[CatalogRow]:
    """Return the catalogs that were dropped although their references were not, or restored although their references
    were not, because a process died between the two commits."""
    listed = references.listed()
    dropped = {_prefix_of(one) for one in listed if was_dropped_with_catalog(one)}
    live = {_prefix_of(one) for one in listed if one.registration.state == "live"}
    catalogs = _catalogs(references)
    found = [one.row for one in catalogs.dropped if catalog_prefix(one.row) in live]
    return found + [row for row in catalogs.rows if catalog_prefix(row) in dropped]


class _Catalogs(NamedTuple):
    rows: list[CatalogRow]
    dropped: list[DroppedCatalog]


def _catalogs(references: References) -> _Catalogs:
    """Read the reference `catalogs`, and return the catalogs that exist, and those that were dropped and can be
    restored. In a realm without catalogs, the reference may be missing; the result is then empty."""
    try:
        head = references.read(CATALOGS)
    except ReferenceGoneError:
        return _Catalogs([], [])
    return _Catalogs(catalogs_in(head), dropped_in(head))


def end_dropped(references: References, grace_of: Callable[[str], int], operation: Operation) -> None:
    """End the grace periods of catalogs that were dropped long enough ago, and the registrations of the references that
    were dropped long enough ago. They can then no longer be restored, so their objects and files can be deleted.

    Args:
        grace_of: function that returns the grace period of a reference in milliseconds, given its name.
    """
    for row in unsettled(references):
        settle(references, row, operation)
    now = references.ids.now_ms()
    over = [
        one
        for one in _catalogs(references).dropped
        if now - one.mark.time >= grace_of(catalog_prefix(one.row))
    ]
    if over:
        references.commit(CATALOGS, EndCatalogs(operation, references.clock, over))

    def may_end(found: Sequence[Registered]) -> Sequence[Registered]:
        if not any(map(was_dropped_with_catalog, found)):
            return found
        catalogs = _catalogs(references)  # after the registry: a catalog that has ended is never restored
        kept = {catalog_prefix(row) for row in (*catalogs.rows, *(one.row for one in catalogs.dropped))}
        return [one for one in found if not (was_dropped_with_catalog(one) and _prefix_of(one) in kept)]

    references.end_expired(grace_of, operation, may_end=may_end)


def _prefix_of(registered: Registered) -> str:
    """Return the prefix that the names of a catalog's references share, given one of these references; an empty string
    if the reference belongs to no catalog."""
    parts = registered.name.split("/", 2)
    return f"cat/{parts[1]}/" if len(parts) == 3 and parts[0] == "cat" else ""


def overlapping(new: CatalogRow, by: str) -> ForbiddenError:
    """Return the error to raise because the warehouse of a catalog overlaps another location.

    Args:
        new: the new or restored catalog.
        by: description of the other location and its owner, for the message.
    """
    return ForbiddenError(
        f"catalog {new.name!r} cannot have the warehouse {new.properties[WAREHOUSE]}: it overlaps with {by}; choose "
        "another warehouse"
    )


class CreateCatalog(TimedChange[CatalogRow]):
    """Create a catalog.

    Raises:
        AlreadyExistsError: a catalog of that name exists.
        ForbiddenError: the new catalog's warehouse overlaps the warehouse of another catalog of the realm.
    """

    action = "create-catalog"

    def __init__(
        self, context: Context, operation: Operation, name: str, properties: Mapping[str, str]
    ) -> None:
        super().__init__(context, operation)
        check_new_name(name)
        self.name = name
        self.properties = dict(properties)

    def apply(self, state: State, prepared: int) -> CatalogRow:
        key = catalog_key(self.name)
        if state.lookup(NAMES, key) is not None:
            raise taken(self.name)
        row = CatalogRow(state.new_id(), self.name, prepared, self.operation.principal, self.properties)
        _refuse_overlap(state, row)
        content = state.add(row)
        state.put(NAMES, key, Entry(content, id_bytes(row.entity_id)))
        self.record(state, prepared, row.entity_id, key, after=content)
        return row

    def repeat(self, state: State, entries: list[LogEntry]) -> CatalogRow:
        return state.get(entries[-1].after, CatalogRow)


def _refuse_overlap(state: State, new: CatalogRow) -> None:
    """Refuse a new or restored catalog if its warehouse overlaps the warehouse of another catalog.

    Raises:
        ForbiddenError: the warehouses overlap.
    """
    warehouse = None if is_shared(new) else warehouse_of(new)
    if warehouse is None:
        return
    there = [entry.pointer for _, entry in state.scan(NAMES, *children((), CATALOG))]
    for row in state.get_many(there, CatalogRow).values():
        other = None if is_shared(row) else warehouse_of(row)
        if other is not None and overlap(other, warehouse):
            raise overlapping(new, f"{'/'.join(other)}, the warehouse of catalog {row.name!r}")


def taken(name: str) -> AlreadyExistsError:
    """Return the error to raise because another catalog already has the name."""
    return AlreadyExistsError(f"catalog {name!r} already exists")
