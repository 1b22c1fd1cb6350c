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

The registrations of references that were dropped with a catalog end only after the catalog has ended. A catalog that
has ended cannot be restored, so `end_dropped` cannot end the references of a catalog that another process restores.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from polaris_spark.catalog.catalogs import (
    CreateCatalog,
    StoredCatalog,
    catalog_key,
    current_row,
    ensure_reference,
    find_by_id,
    initialize,
    is_shared,
    list_catalogs,
    note_change,
    read_catalog,
    read_catalogs,
    refuse_used,
    settle,
    taken,
    warehouse_of,
)
from polaris_spark.catalog.entities import Context, TimedChange, check_new_name
from polaris_spark.catalog.files import absolute
from polaris_spark.catalog.locations import overlap
from polaris_spark.catalog.metadata.bounds import require_properties_within
from polaris_spark.catalog.properties import GC_ENABLED, SHARED_LOCATIONS, WAREHOUSE, checked, require_bounded
from polaris_spark.catalog.property_changes import copy_to_branches, set_properties
from polaris_spark.catalog.references import (
    CATALOGS,
    DroppedCatalog,
    catalog_prefix,
    catalogs_in,
    dropped_in,
    head_name,
)
from polaris_spark.catalog.rows import (
    CATALOG,
    DROPPED,
    NAMES,
    PROPERTIES,
    CatalogRow,
    DroppedMark,
    id_bytes,
)
from polaris_spark.clock import Clock
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    AlreadyExistsError,
    CatalogNotEmptyError,
    ForbiddenError,
    InputError,
    NotFoundError,
    ProtectedBranchError,
    ReferenceGoneError,
)
from polaris_spark.index import Entry
from polaris_spark.index.keys import children
from polaris_spark.system.registrations import Registered, name_parts, was_dropped_with_catalog
from polaris_spark.system.registry import References

R = TypeVar("R")
Readable = TypeVar("Readable", StoredCatalog, DroppedCatalog)

ENDED: Final = "end-catalog"
"""Action of log entries about the end of the grace period of a dropped catalog."""


class CatalogPermissions(Protocol):
    """Checks of what a principal may do with the catalogs of a realm with access control (`rest.catalog_rules`)."""

    def require(self, privilege: str, row: CatalogRow | None) -> None:
        """Raise `ForbiddenError` if the principal lacks a privilege on a catalog, or on the realm if `row` is None."""

    def sees(self, row: CatalogRow) -> bool:
        """Whether the principal may know that a catalog exists."""

    def may(self, privilege: str, row: CatalogRow | None) -> bool:
        """Whether the principal has a privilege on a catalog, or on the realm if `row` is None."""

    def own(self, row: CatalogRow) -> None:
        """Make the principal the owner of a catalog that it has created."""


class RealmCatalogs:
    """The catalogs of a realm, and changes of them by one principal. Thread-safe.

    In a realm with access control, a catalog that the principal may not see is treated as missing, and properties that
    the principal may not read are left out. All methods raise `ForbiddenError` if the principal lacks the needed
    privilege.
    """

    def __init__(
        self,
        references: References,
        context: Context,
        operation: Operation,
        permissions: CatalogPermissions | None = None,
    ) -> None:
        """
        Args:
            context: settings and services, such as the clock.
            operation: principal and notes for the log. It has no id.
            permissions: checks of what the principal may do; None in a realm without access control.
        """
        self._permissions = permissions
        self._references = references
        self._context = context
        self._operation = operation

    def all(self) -> list[StoredCatalog]:
        """Return all catalogs that exist, in the order of their names."""
        return [self._readable(one) for one in read_catalogs(self._references) if self._sees(one.row)]

    def dropped(self) -> list[DroppedCatalog]:
        """Return the dropped catalogs that can be restored, in the order of their creation."""
        found = (one for one in dropped_in(self._references.read(CATALOGS)) if self._sees(one.row))
        return [self._readable(one) for one in found]

    def find(self, name: str) -> StoredCatalog | None:
        """Return the catalog with a name; None if there is none."""
        found = self._find(name)
        return None if found is None or not self._sees(found.row) else self._readable(found)

    def _find(self, name: str) -> StoredCatalog | None:
        return read_catalog(self._references, name)

    def get(self, name: str) -> StoredCatalog:
        """Return the catalog with a name.

        Raises:
            NotFoundError: there is none.
        """
        return self._readable(self._get(name))

    def described(self, name: str) -> StoredCatalog:
        """Return the catalog with a name, with its properties.

        Raises:
            NotFoundError: there is none.
        """
        found = self._get(name)
        self._require("CATALOG_READ_PROPERTIES", found.row)
        return found

    def _get(self, name: str, privilege: str | None = None) -> StoredCatalog:
        """Return the catalog with a name, with its properties.

        Args:
            privilege: a privilege on the catalog that the principal needs.
        """
        found = self._visible(self._find(name), name)
        if privilege is not None:
            self._require(privilege, found.row)
        return found

    def _visible(self, found: StoredCatalog | None, name: str) -> StoredCatalog:
        """Return the catalog that was found under a name.

        Raises:
            NotFoundError: none was found, or the principal may not see it.
        """
        if found is None or not self._sees(found.row):
            known = [row.name for row in list_catalogs(self._references) if self._sees(row)]
            raise unknown(name, known)
        return found

    def _sees(self, row: CatalogRow) -> bool:
        return self._permissions is None or self._permissions.sees(row)

    def _may(self, privilege: str, row: CatalogRow | None) -> bool:
        return self._permissions is None or self._permissions.may(privilege, row)

    def _require(self, privilege: str, row: CatalogRow | None) -> None:
        if self._permissions is not None:
            self._permissions.require(privilege, row)

    def _without_names(self, error: ForbiddenError) -> ForbiddenError:
        """Return the error for a warehouse that cannot be used, without the names and locations of other catalogs if
        the principal may not see all of them."""
        if all(self._may("CATALOG_READ_PROPERTIES", row) for row in list_catalogs(self._references)):
            return error
        return ForbiddenError("the warehouse overlaps the warehouse or a table of another catalog")

    def _readable(self, found: Readable) -> Readable:
        """Leave out the properties of a catalog if the principal may not read them."""
        if self._may("CATALOG_READ_PROPERTIES", found.row):
            return found
        return found._replace(row=msgspec.structs.replace(found.row, properties={}))

    def create(self, name: str, properties: Mapping[str, str]) -> StoredCatalog:
        """Create a catalog.

        Args:
            properties: properties to store with it (`catalog.properties`), including `warehouse`.
        Raises:
            AlreadyExistsError: a catalog has this name.
            BadRequestError: no catalog can have this name.
            ForbiddenError: the warehouse overlaps the warehouse or a table of another catalog.
            InputError: the warehouse is missing, or a property cannot be set or has a value that cannot be used.
        """
        self._create(name, properties)
        return self.get(name)

    def _create(self, name: str, properties: Mapping[str, str]) -> CatalogRow:
        check_new_name(name)
        wanted = checked_new(properties)
        self._require("CATALOG_CREATE", None)
        initialize(self._references, self._operation)
        if self._find(name) is not None:
            raise taken(name)
        try:
            refuse_used(self._references, name, wanted)
            row = self._commit(CreateCatalog(self._context, self._operation, name, wanted))
        except ForbiddenError as error:
            if self._find(name) is not None:  # created meanwhile, in this warehouse
                raise taken(name) from None
            raise self._without_names(error) from None
        if self._permissions is not None:
            self._permissions.own(row)
        ensure_reference(self._references, head_name(row), self._operation)
        return row

    def open(self, name: str, properties: Mapping[str, str] | None) -> tuple[CatalogRow, bool]:
        """Return the row of the catalog with a name, and whether this call created the catalog. When this returns, the
        reference of the catalog's branch `main` exists.

        Args:
            properties: properties of the catalog if it does not exist; it is then created, unless the principal lacks
                the privilege. None to create no catalog.
        Raises:
            NotFoundError: the catalog does not exist and is not created.
            ReferenceGoneError: the catalog exists, but the reference of its branch `main` was dropped.
            PolarisError: as for `create`.
        """
        found = self._find(name)
        if found is None and properties is not None and self._may("CATALOG_CREATE", None):
            try:
                return self._create(name, properties), True
            except AlreadyExistsError:  # another process has created it meanwhile
                found = self._find(name)
        row = self._visible(found, name).row
        try:
            is_new = ensure_reference(self._references, head_name(row), self._operation)
        except ReferenceGoneError:
            # A process that restored the catalog may have died before it restored the references.
            settle(self._references, row, self._operation)
            row = self._get(name).row  # another process may have dropped it
            is_new = ensure_reference(self._references, head_name(row), self._operation)
        if is_new and current_row(self._references, row) is None:
            # The catalog was dropped, and its grace period has ended, since this process has read its row.
            settle(self._references, row, self._operation)
            return self.open(name, None)
        return row, False

    def set_properties(
        self,
        name: str,
        updates: Mapping[str, str],
        removals: Collection[str] = (),
        *,
        expected: int | None = None,
    ) -> StoredCatalog:
        """Set and remove properties of a catalog (`property_changes.set_properties`)."""
        row = self._get(name, "CATALOG_WRITE_PROPERTIES").row
        set_properties(
            self._references, self._context, self._operation, row, updates, removals, expected=expected
        )
        return self.get(name)

    def rename(self, name: str, to: str) -> StoredCatalog:
        """Rename a catalog. Sessions that have the catalog open continue to work.

        Raises:
            AlreadyExistsError: a catalog has the new name.
            BadRequestError: no catalog can have the new name.
            NotFoundError: the catalog does not exist.
        """
        check_new_name(to)
        row = self._get(name, "CATALOG_WRITE_PROPERTIES").row
        change = RenameCatalog(self._context, self._operation, row, to)
        renamed = self._commit(change)
        copy_to_branches(self._references, self._context, self._operation, renamed)
        return self.get(to)

    def drop(self, name: str, *, cascade: bool = False) -> CatalogRow:
        """Drop a catalog. It can be restored until its grace period ends. Return its row.

        If the process dies during the drop, sessions that have the catalog open can still change it until it is settled
        (see the module).

        Args:
            cascade: whether to drop it although it contains namespaces.
        Raises:
            CatalogNotEmptyError: a branch or tag of the catalog contains a namespace, and `cascade` is false.
            CorruptionError: the database lost the row of a branch or tag.
            NotFoundError: the catalog does not exist.
            ProtectedBranchError: a branch of the catalog is protected.
        """
        self.settle_all()
        row = self._get(name, "CATALOG_DROP").row
        for registered in self._of(row):
            if registered.registration.state == "live":
                with suppress(ReferenceGoneError):  # another process has dropped it
                    self._references.complete(registered)  # refuses a reference whose row was lost
        self._refuse_protected(row, state="live")
        if not cascade:
            self._require_empty(row, state="live")
        row = self._commit(DropCatalog(self._context, self._operation, row))  # with its name at that time
        settle(self._references, row, self._operation)
        try:  # another process may have protected a branch or created a namespace meanwhile
            self._refuse_protected(row, state="dropped")
            if not cascade:
                self._require_empty(row, state="dropped")
        except (CatalogNotEmptyError, ProtectedBranchError):
            self._restore(row, row.name)
            raise
        return row

    def _refuse_protected(self, row: CatalogRow, *, state: str) -> None:
        """Check that no branch of a catalog is protected.

        Args:
            state: as for `_require_empty`.
        """
        for registered in self._of(row):
            r = registered.registration
            if r.state != state or not r.protected or (state == "dropped" and not r.with_catalog):
                continue
            parts = name_parts(registered.name)
            branch = registered.name if parts is None else parts.name
            raise ProtectedBranchError(
                f"catalog {row.name!r} must not be dropped, because its branch {branch!r} is protected; call "
                "unprotect_branch first"
            )

    def undrop(self, name: str, *, id: int | None = None, to: str | None = None) -> StoredCatalog:
        """Restore a dropped catalog, with the branches and tags that it had.

        Args:
            name: the name that the catalog had.
            id: entity id of the catalog; by default, the id of the last dropped catalog with this name.
            to: the new name; by default, the old one.
        Raises:
            AlreadyExistsError: a catalog has the name.
            CorruptionError: the database lost the row of a branch or tag.
            ForbiddenError: the warehouse overlaps the warehouse of a catalog that was created since the drop.
            NotFoundError: no dropped catalog has this name and id, or its grace period has ended.
        """
        self.settle_all()
        dropped = [one for one in dropped_in(self._references.read(CATALOGS)) if self._sees(one.row)]
        found = [one for one in dropped if one.row.name == name and id in (None, one.row.entity_id)]
        if not found:
            raise NotFoundError(
                f"there is no dropped catalog {name!r}{'' if id is None else f' with id {id}'} that can be restored"
            )
        last = max(found, key=lambda one: one.mark.time)
        self._require("CATALOG_DROP", last.row)
        for registered in self._of(last.row):
            if was_dropped_with_catalog(registered):
                self._references.sealed_head(registered)  # refuses a reference whose row was lost
        try:
            refuse_used(self._references, name, last.row.properties)
            return self._restore(last.row, name if to is None else to)
        except ForbiddenError as error:
            raise self._without_names(error) from None

    def _restore(self, dropped: CatalogRow, name: str) -> StoredCatalog:
        row = self._commit(UndropCatalog(self._context, self._operation, dropped, name))
        settle(self._references, row, self._operation)
        ensure_reference(self._references, head_name(row), self._operation)
        copy_to_branches(self._references, self._context, self._operation, row)
        return self.get(row.name)

    def settle_all(self) -> None:
        """Complete drops and restorations of catalogs that a process left unfinished when it died."""
        for row in unsettled(self._references):
            settle(self._references, row, self._operation)

    def _commit(self, change: Change[Any, R]) -> R:
        try:
            return self._references.commit(CATALOGS, change)
        finally:
            note_change()

    def _of(self, row: CatalogRow) -> list[Registered]:
        prefix = catalog_prefix(row)
        return [one for one in self._references.listed() if one.name.startswith(prefix)]

    def _require_empty(self, row: CatalogRow, *, state: str) -> None:
        """Check that no branch or tag of a catalog contains a namespace.

        Args:
            state: `dropped` to look at the references that were dropped with the catalog, `live` to look at the live
                ones.
        """
        for registered in self._of(row):
            parts, r = name_parts(registered.name), registered.registration
            if parts is None or r.state != state or (state == "dropped" and not r.with_catalog):
                continue
            try:
                if state == "live":
                    head = self._references.read(registered.name)
                else:
                    head = self._references.last_of(registered)
            except ReferenceGoneError:
                continue
            if next(iter(head.index(NAMES).range()), None) is not None:
                raise CatalogNotEmptyError(
                    f"catalog {row.name!r} is not empty: its {'tag' if parts.is_tag else 'branch'} {parts.name!r} "
                    "contains a namespace; drop the namespaces, or drop the catalog with 'cascade'"
                )


def checked_new(properties: Mapping[str, str]) -> dict[str, str]:
    """Check the properties of a new catalog, and return them.

    Raises:
        InputError: the warehouse is missing, or a property cannot be set or has a value that cannot be used.
    """
    fixed = {name: properties[name] for name in (WAREHOUSE, SHARED_LOCATIONS) if name in properties}
    wanted = checked({name: text for name, text in properties.items() if name not in fixed})
    require_properties_within(wanted)
    require_bounded(wanted)
    if not fixed.get(WAREHOUSE):
        raise InputError(
            "the new catalog has no property 'warehouse': set it to the location below which tables are created"
        )
    if fixed.get(SHARED_LOCATIONS, "refuse") not in ("allow", "refuse"):
        raise InputError(f"{SHARED_LOCATIONS} is {fixed[SHARED_LOCATIONS]!r}; it must be 'allow' or 'refuse'")
    return wanted | fixed | {WAREHOUSE: absolute(fixed[WAREHOUSE])}


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
            raise NotFoundError(f"catalog {self.row.name!r} can no longer be restored, or was restored")
        if state.lookup(NAMES, key) is not None:
            raise taken(self.to)
        before = state.get_for_rewrite(entry.pointer, CatalogRow)
        row = before if before.name == self.to else msgspec.structs.replace(before, name=self.to)
        after = entry.pointer if row is before else state.add(row)
        self._refuse_overlap(state, row)
        state.remove(DROPPED, id)
        state.put(NAMES, key, Entry(after, id))
        # Branches may have copies of older rows.
        state.put(PROPERTIES, key, Entry(value=id + self.operation.principal.encode()))
        self.record(state, prepared, row.entity_id, key, after=after)
        return row

    def _refuse_overlap(self, state: State, row: CatalogRow) -> None:
        warehouse = None if is_shared(row) else warehouse_of(row)
        there = [entry.pointer for _, entry in state.scan(NAMES, *children((), CATALOG))]
        for other in state.get_many(there, CatalogRow).values() if warehouse is not None else ():
            place = None if is_shared(other) else warehouse_of(other)
            if place is not None and overlap(place, warehouse or ()):
                raise ForbiddenError(
                    f"catalog {row.name!r} cannot be restored: its warehouse {'/'.join(warehouse or ())} overlaps with "
                    f"the warehouse of catalog {other.name!r}"
                )

    def repeat(self, state: State, entries: list[LogEntry]) -> CatalogRow:
        return state.get(entries[-1].after, CatalogRow)


class _EndChange(Change[int, None]):
    """Base class of the changes by which jobs end dropped catalogs."""

    action: str

    def __init__(self, operation: Operation, clock: Clock) -> None:
        self.operation = operation._replace(id=b"")
        self._clock = clock

    def prepare(self, view: State) -> int:
        return self._clock.now_ms()

    def put(self, state: State, now: int, before: DroppedCatalog, after: DroppedMark | None) -> None:
        """Change the mark of a dropped catalog, or remove it if `after` is None. If the catalog has been restored since
        it was read, do nothing."""
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

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        raise AssertionError("this change has no operation id, so it cannot be repeated")


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
    """Return catalogs that were dropped or restored while their references were not, because a process died."""
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
    restored. A realm without catalogs may lack the reference."""
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
    """Return the prefix of the names of the references of a catalog, given one of them; an empty string if the
    reference belongs to no catalog."""
    parts = registered.name.split("/", 2)
    return f"cat/{parts[1]}/" if len(parts) == 3 and parts[0] == "cat" else ""


def unknown(name: str, existing: Sequence[str]) -> NotFoundError:
    """Return the error for a name that no catalog has.

    Args:
        existing: names of catalogs, for the message.
    """
    known = ", ".join(map(repr, existing)) or "none"
    return NotFoundError(f"catalog {name!r} does not exist; existing catalogs: {known}")
