"""The catalogs of a realm, as one principal may see and change them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec

from polaris_spark.catalog.catalogs.catalog_changes import (
    CreateCatalog,
    DropCatalog,
    RenameCatalog,
    UndropCatalog,
    overlapping,
    taken,
    unsettled,
)
from polaris_spark.catalog.catalogs.catalogs import (
    StoredCatalog,
    current_row,
    ensure_reference,
    heads_of,
    initialize,
    is_shared,
    list_catalogs,
    note_change,
    owner_in,
    read_catalog,
    read_catalogs,
    settle,
    warehouse_of,
)
from polaris_spark.catalog.catalogs.property_changes import copy_to_branches, set_properties
from polaris_spark.catalog.catalogs.references import (
    CATALOGS,
    DroppedCatalog,
    catalog_prefix,
    dropped_in,
    head_name,
)
from polaris_spark.catalog.entities.entities import Context, check_new_name
from polaris_spark.catalog.entities.properties import SHARED_LOCATIONS, WAREHOUSE, checked, require_bounded
from polaris_spark.catalog.files.files import absolute
from polaris_spark.catalog.files.locations import overlap
from polaris_spark.catalog.metadata.bounds import require_properties_within
from polaris_spark.catalog.rows import NAMES, CatalogRow
from polaris_spark.commits.change import Change, Operation
from polaris_spark.errors import (
    AlreadyExistsError,
    CatalogNotEmptyError,
    ForbiddenError,
    InputError,
    NotFoundError,
    ProtectedBranchError,
    ReferenceGoneError,
)
from polaris_spark.system.registrations import Registered, name_parts, was_dropped_with_catalog
from polaris_spark.system.registry import References

R = TypeVar("R")
Readable = TypeVar("Readable", StoredCatalog, DroppedCatalog)


class CatalogPermissions(Protocol):
    """Checks of what a principal may do with the catalogs of a realm with access control (`rest.catalog_rules`)."""

    def require(self, privilege: str, row: CatalogRow | None) -> None:
        """Raise `ForbiddenError` if the principal lacks a privilege on a catalog, or on the realm if `row` is None."""

    def sees(self, rows: Sequence[CatalogRow]) -> list[bool]:
        """Return, for each of the catalogs `rows`, whether the principal may know that the catalog exists."""

    def may(self, privilege: str, rows: Sequence[CatalogRow | None]) -> list[bool]:
        """Return, for each of the catalogs `rows`, whether the principal has a privilege on the catalog. A row that is
        None stands for the realm."""

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
        """Return all catalogs that exist, sorted by name."""
        return self._readable(self._seen(read_catalogs(self._references)))

    def dropped(self) -> list[DroppedCatalog]:
        """Return the dropped catalogs that can be restored, in the order of their creation."""
        return self._readable(self._seen(dropped_in(self._references.read(CATALOGS))))

    def find(self, name: str) -> StoredCatalog | None:
        """Return the catalog with a name; None if there is none."""
        found = self._find(name)
        seen = self._readable([] if found is None else self._seen([found]))
        return next(iter(seen), None)

    def _find(self, name: str) -> StoredCatalog | None:
        return read_catalog(self._references, name)

    def get(self, name: str) -> StoredCatalog:
        """Return the catalog with a name.

        Raises:
            NotFoundError: no catalog has this name.
        """
        return self._readable([self._get(name)])[0]

    def described(self, name: str) -> StoredCatalog:
        """Return the catalog with a name, with its properties.

        Raises:
            NotFoundError: no catalog has this name.
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
        """Return `found`, the catalog that was found under a name.

        Raises:
            NotFoundError: none was found, or the principal may not see it.
        """
        if found is None or not self._seen([found]):
            raise unknown(name, [one.row.name for one in self._seen(read_catalogs(self._references))])
        return found

    def _seen(self, found: Sequence[Readable]) -> list[Readable]:
        """Return the catalogs that the principal may see."""
        if self._permissions is None:
            return list(found)
        seen = self._permissions.sees([one.row for one in found])
        return [one for one, is_seen in zip(found, seen, strict=True) if is_seen]

    def _may(self, privilege: str, *rows: CatalogRow | None) -> list[bool]:
        return [True] * len(rows) if self._permissions is None else self._permissions.may(privilege, rows)

    def _is_confined(self) -> bool:
        """Whether a new catalog of this principal must not overlap the locations of other catalogs, even of catalogs
        that share their locations. As the owner of the new catalog, the principal could read the tables there."""
        return not all(self._may("SERVICE_MANAGE_ACCESS", None))

    def _require(self, privilege: str, row: CatalogRow | None) -> None:
        if self._permissions is not None:
            self._permissions.require(privilege, row)

    def _without_names(self, error: ForbiddenError) -> ForbiddenError:
        """Return `error`, which says that a warehouse overlaps another location. If the principal may not read the
        properties of all catalogs, return an error without the names and locations of other catalogs."""
        if all(self._may("CATALOG_READ_PROPERTIES", *list_catalogs(self._references))):
            return error
        return ForbiddenError("the warehouse overlaps the warehouse or a table of another catalog")

    def _readable(self, found: Sequence[Readable]) -> list[Readable]:
        """Return catalogs without the properties that the principal may not read."""
        may = self._may("CATALOG_READ_PROPERTIES", *(one.row for one in found))
        return [
            one if is_read else one._replace(row=msgspec.structs.replace(one.row, properties={}))
            for one, is_read in zip(found, may, strict=True)
        ]

    def create(self, name: str, properties: Mapping[str, str]) -> StoredCatalog:
        """Create a catalog.

        Args:
            properties: properties to store with it (`catalog.entities.properties`), including `warehouse`.
        Raises:
            AlreadyExistsError: a catalog has this name.
            BadRequestError: no catalog can have this name.
            ForbiddenError: the warehouse overlaps the warehouse or a table of another catalog; or the catalog shares
                locations, and the principal is no administrator.
            InputError: the warehouse is missing, or a property cannot be set or has a value that cannot be used.
        """
        self._create(name, properties)
        return self.get(name)

    def _create(self, name: str, properties: Mapping[str, str]) -> CatalogRow:
        check_new_name(name)
        wanted = checked_new(properties)
        self._require("CATALOG_CREATE", None)
        if is_shared(CatalogRow(0, name, 0, "", wanted)):  # its tables may be at the locations of any others
            self._require("SERVICE_MANAGE_ACCESS", None)
        initialize(self._references, self._operation)
        if self._find(name) is not None:
            raise taken(name)
        try:
            refuse_used(self._references, name, wanted, with_shared=self._is_confined())
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
            properties: if the catalog does not exist, it is created with these properties, unless the principal lacks
                the privilege. If None, no catalog is created.
        Raises:
            NotFoundError: the catalog does not exist and is not created.
            ReferenceGoneError: the catalog exists, but the reference of its branch `main` was dropped.
            PolarisError: as for `create`.
        """
        found = self._find(name)
        if found is None and properties is not None and all(self._may("CATALOG_CREATE", None)):
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
        self._copy_to_branches(renamed, f"the catalog is now named {renamed.name!r}")
        return self.get(to)

    def drop(self, name: str, *, cascade: bool = False) -> CatalogRow:
        """Drop a catalog. It can be restored until its grace period ends. Return its row.

        If the process dies during the drop, sessions that have the catalog open can still change it until its
        references are dropped, too (`settle`).

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
                f"catalog {row.name!r} cannot be dropped, because its branch {branch!r} is protected; call "
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
        dropped = self._seen(dropped_in(self._references.read(CATALOGS)))
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
            refuse_used(self._references, name, last.row.properties, with_shared=self._is_confined())
            return self._restore(last.row, name if to is None else to)
        except ForbiddenError as error:
            raise self._without_names(error) from None

    def _restore(self, dropped: CatalogRow, name: str) -> StoredCatalog:
        row = self._commit(UndropCatalog(self._context, self._operation, dropped, name))
        settle(self._references, row, self._operation)
        ensure_reference(self._references, head_name(row), self._operation)
        self._copy_to_branches(row, f"the catalog {row.name!r} is restored")
        return self.get(row.name)

    def _copy_to_branches(self, row: CatalogRow, done: str) -> None:
        copy_to_branches(
            self._references,
            self._context,
            self._operation,
            row,
            what=f"{done}, but its properties",
            advice="open the branch in a session to complete this",
        )

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


def unknown(name: str, existing: Sequence[str]) -> NotFoundError:
    """Return the error to raise because no catalog has a name.

    Args:
        existing: names of catalogs, for the message.
    """
    known = ", ".join(map(repr, existing)) or "none"
    return NotFoundError(f"catalog {name!r} does not exist; existing catalogs: {known}")


def refuse_used(
    references: References, name: str, properties: Mapping[str, str], *, with_shared: bool
) -> None:
    """Refuse a new or restored catalog if its warehouse overlaps a location that a table or view of another catalog
    owns now.

    Args:
        with_shared: whether the tables and warehouses of catalogs that share locations are checked, too.
    Raises:
        ForbiddenError: the warehouse overlaps such a location.
    """
    new = CatalogRow(0, name, 0, "", dict(properties))
    warehouse = None if is_shared(new) else warehouse_of(new)
    if warehouse is None:
        return
    for row in list_catalogs(references):
        if is_shared(row) and not with_shared:
            continue
        other = (
            warehouse_of(row) if is_shared(row) else None
        )  # the commit checks the warehouses of the others
        if other is not None and overlap(other, warehouse):
            raise overlapping(new, f"{'/'.join(other)}, the warehouse of catalog {row.name!r}")
        place = owner_in(heads_of(references, row), warehouse)
        if place is not None:
            raise overlapping(
                new, f"{'/'.join(place)}, which belongs to a table or view of catalog {row.name!r}"
            )
