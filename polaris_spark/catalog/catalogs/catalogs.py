"""The catalogs of a realm (a tenant of a store). Each branch of a catalog has its own reference, which is a database
row that points to the newest commit.

The reference `catalogs` holds the catalogs by name. The reference `cat/<id>/heads/<branch>` holds the content of a
branch. The commit that creates a catalog comes first; then the reference of its branch `main` is created. If a process
stops in between, the next opening of the catalog creates that reference (`realm_catalogs.RealmCatalogs.open`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from polaris_spark.catalog.catalogs.references import (
    CATALOGS,
    catalog_prefix,
    catalogs_in,
    head_name,
    heads_prefix,
    tag_name,
)
from polaris_spark.catalog.entities.properties import SHARED_LOCATIONS, WAREHOUSE
from polaris_spark.catalog.files.files import absolute
from polaris_spark.catalog.files.locations import owner_of, segments
from polaris_spark.catalog.rows import CATALOG, NAMES, PROPERTIES, CatalogRow, id_bytes, id_from
from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import CommitReader, State, reading_state
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    CorruptionError,
    NotFoundError,
    RealmStateError,
    ReferenceGoneError,
)
from polaris_spark.index import Entry
from polaris_spark.index.keys import children, entry_key
from polaris_spark.system.connections import StoreConnection
from polaris_spark.system.realms import RealmRecord, RealmState
from polaris_spark.system.registry import References

_changes = count(1)
_changed = [0]


def changes_of_catalogs() -> int:
    """Return a number that changes whenever this process has created, renamed, dropped or restored a catalog."""
    return _changed[0]


def note_change() -> None:
    """Change the number that `changes_of_catalogs` returns. Call this after creating, renaming, dropping or restoring a
    catalog."""
    _changed[0] = next(_changes)


def initialize(references: References, operation: Operation) -> None:
    """Create the references (rows that point to a newest commit) that every realm has, unless they exist. Several
    processes may do this at the same time."""
    references.initialize()
    ensure_reference(references, CATALOGS, operation)


def create_realm(connection: StoreConnection, name: str, operation: Operation) -> RealmRecord:
    """Create a realm without catalogs, and return its record. If an earlier creation was interrupted, finish it. If
    several processes do this at once, all get the same realm.

    Args:
        name: name of the realm.
        operation: contains the principal for the log; its id is empty.
    Raises:
        InputError: the name cannot be used.
        RealmStateError: the realm exists.
    """
    found = connection.realms.find(name)
    if found is not None and found.state not in (RealmState.CREATED, RealmState.INITIALIZING):
        raise RealmStateError(
            f"realm {name!r} already exists (its state is {found.state.value}); choose another name"
        )
    return connection.realm(
        name, create=True, initialize=lambda references: initialize(references, operation)
    )


def ensure_reference(references: References, name: str, operation: Operation) -> bool:
    """Create a reference if it does not exist, and return whether this call created it.

    Raises:
        ReferenceGoneError: the reference was dropped. It is not created again, because it would be empty, which would
            look like lost data.
    """
    try:
        references.open(name)
        return False
    except ReferenceGoneError:
        found = references.lookup(name)
        if found is not None and found.registration.state == "dropped":
            raise
        try:
            references.create(name, operation)
            return True
        except AlreadyExistsError:
            references.open(name)
            return False


class StoredCatalog(NamedTuple):
    """A catalog as read from the reference `catalogs`."""

    pointer: int
    """Object id of the catalog's row."""
    row: CatalogRow
    set_by: str | None
    """The principal that last changed the catalog's properties. None if they have not changed since the catalog was
    created; in that case no branch holds a copy of the catalog's row."""


def read_catalog(
    references: References, name: str, *, id: int = 0, for_rewrite: bool = False
) -> StoredCatalog | None:
    """Read the newest commit of the reference `catalogs`, and return the catalog of that name; None if it does not
    exist.

    Args:
        id: the catalog's entity id, if it is known. The catalog is then found although it was renamed, and another
            catalog of that name is not returned.
        for_rewrite: whether the caller will write a changed copy of the row. Then a row that a newer release wrote is
            refused, because the copy would lack its new fields.
    Raises:
        NewerFormatError: `for_rewrite` is true, and a newer release wrote the row.
    """
    head = references.read(CATALOGS)
    key = catalog_key(name)
    entry = head.index(NAMES).get(key)
    if id and (entry is None or id_from(entry.value) != id):
        others = head.index(NAMES).range(*children((), CATALOG))
        key, entry = next(((key, one) for key, one in others if id_from(one.value) == id), (key, None))
    if entry is None:
        return None
    read = head.store.get_for_rewrite if for_rewrite else head.store.get
    mark = head.index(PROPERTIES).get(key)
    return StoredCatalog(entry.pointer, read(entry.pointer, CatalogRow), _set_by(mark))


def read_catalogs(references: References) -> list[StoredCatalog]:
    """Read the newest commit of the reference `catalogs`, and return all catalogs, sorted by name."""
    head = references.read(CATALOGS)
    found = dict(head.index(NAMES).range(*children((), CATALOG)))
    rows = head.store.get_many([entry.pointer for entry in found.values()], CatalogRow)
    marks = head.index(PROPERTIES).get_many(list(found))
    return [
        StoredCatalog(entry.pointer, rows[entry.pointer], _set_by(mark))
        for entry, mark in zip(found.values(), marks, strict=True)
    ]


def _set_by(mark: Entry | None) -> str | None:
    return None if mark is None else mark.value[len(id_bytes(0)) :].decode()


def current_row(references: References, row: CatalogRow) -> CatalogRow | None:
    """Read and return the newest row of a catalog, which may have another name by now; None if it was dropped."""
    found = read_catalog(references, row.name, id=row.entity_id)
    return None if found is None else found.row


def list_catalogs(references: References) -> list[CatalogRow]:
    """Return all catalogs of the realm, sorted by name."""
    return catalogs_in(references.read(CATALOGS))


def settle(references: References, row: CatalogRow, operation: Operation) -> None:
    """If a catalog was dropped, drop its references. If it exists, restore the references that were dropped with it
    (`catalog_changes`)."""
    prefix, operation = catalog_prefix(row), operation._replace(id=b"")
    while True:
        before = current_row(references, row) is not None
        if before:
            references.restore_all(prefix, operation)
        else:
            references.drop_all(prefix, operation)
        if (current_row(references, row) is not None) == before:
            return


def warehouse_of(row: CatalogRow) -> tuple[str, ...] | None:
    """Return the warehouse that a catalog was created with, as a tuple of path segments (`locations.segments`). Return
    None if no warehouse was given or it is malformed."""
    try:
        return segments(absolute(row.properties[WAREHOUSE]))
    except (KeyError, BadRequestError):
        return None


def is_shared(row: CatalogRow) -> bool:
    """Whether the tables of a catalog are allowed to overlap the locations of other tables (`shared-locations`)."""
    return row.properties.get(SHARED_LOCATIONS) == "allow"


def branches_of(references: References, row: CatalogRow) -> list[str]:
    """Return the names of the references of all branches of a catalog that are not dropped."""
    prefix = heads_prefix(row)
    return [
        one.name
        for one in references.listed()
        if one.name.startswith(prefix) and one.registration.state == "live"
    ]


def heads_of(references: References, row: CatalogRow) -> list[CommitReader]:
    """Read and return the newest commits of all branches of a catalog that are not dropped.

    Branches whose newest commit is damaged are left out, so that they do not stop work in other catalogs. This is safe,
    because no job deletes files while a branch is damaged.
    """
    found = []
    for name in branches_of(references, row):
        with contextlib.suppress(
            ReferenceGoneError, CorruptionError
        ):  # dropped since it was listed, or damaged
            found.append(references.read(name))
    return found


def owner_in(heads: Iterable[CommitReader], place: tuple[str, ...]) -> tuple[str, ...] | None:
    """Find a location that a table or view in one of these heads owns and that overlaps the location `place`.

    Heads whose rows are damaged are ignored. Locations are given as path segments.

    Returns:
        the owned location if it is or contains `place`; `place` if the owned location is inside it; None if no table or
        view owns an overlapping location.
    """
    for head in heads:
        with contextlib.suppress(CorruptionError):
            found = owner_of(reading_state(head), place)
            if found is not None:
                return found[0]
    return None


def require_branch(references: References, row: CatalogRow, branch: str) -> None:
    """Check that a catalog has a branch of that name.

    Raises:
        NotFoundError: the branch does not exist.
    """
    try:
        references.open(head_name(row, branch))
    except ReferenceGoneError as error:
        tag = references.lookup(tag_name(row, branch))
        advice = "; to read the tag of this name, name it in the property 'as-of'" if tag is not None else ""
        raise NotFoundError(f"catalog {row.name!r} has no branch {branch[:80]!r}{advice}") from error


def find_by_id(state: State, row: CatalogRow) -> tuple[bytes, Entry] | None:
    """Find a catalog by its entity id, even if it was renamed. Return its key and its entry in the index `names` of the
    reference `catalogs`; None if the catalog does not exist."""
    key = catalog_key(row.name)
    entry = state.lookup(NAMES, key)
    if entry is not None and id_from(entry.value) == row.entity_id:
        return key, entry
    others = state.scan(NAMES, *children((), CATALOG))
    return next(((key, one) for key, one in others if id_from(one.value) == row.entity_id), None)


def catalog_key(name: str) -> bytes:
    """Return the key of a catalog in the index `names` of the reference `catalogs`."""
    return entry_key((), CATALOG, name)
