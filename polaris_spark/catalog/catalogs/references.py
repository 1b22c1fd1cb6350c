"""Names of the references for catalogs, their branches and tags. A reference is a database row that points to a newest
commit."""

from __future__ import annotations

from typing import NamedTuple

from polaris_spark.catalog.rows import CATALOG, DROPPED, NAMES, CatalogRow, DroppedMark
from polaris_spark.commits.state import CommitReader
from polaris_spark.index.keys import children
from polaris_spark.names import MAIN

CATALOGS = "catalogs"
"""Name of the reference that holds the catalogs of a realm."""

ACCESS = "access"
"""Name of the reference that holds the principals, roles and grants of a realm with access control (`access`)."""


def head_name(catalog: CatalogRow, branch: str = MAIN) -> str:
    """Return the name of the reference of a catalog's branch."""
    return heads_prefix(catalog) + branch


def heads_prefix(catalog: CatalogRow) -> str:
    """Return the prefix of the names of the references of a catalog's branches. The name of the branch follows it."""
    return f"{catalog_prefix(catalog)}heads/"


def tag_name(catalog: CatalogRow, tag: str) -> str:
    """Return the name of the reference of a catalog's tag."""
    return tags_prefix(catalog) + tag


def tags_prefix(catalog: CatalogRow) -> str:
    """Return the prefix of the names of the references of a catalog's tags. The name of the tag follows it."""
    return f"{catalog_prefix(catalog)}tags/"


def catalog_prefix(catalog: CatalogRow) -> str:
    """Return the prefix of the names of all references of a catalog."""
    return f"cat/{catalog.entity_id:x}/"


def catalog_in(reference: str) -> int | None:
    """Return the entity id of the catalog to which a reference belongs, given the name of the reference; None if it
    belongs to none."""
    levels = reference.split("/", 2)
    if len(levels) < 3 or levels[0] != "cat":
        return None
    try:
        return int(levels[1], 16)
    except ValueError:
        return None


def catalogs_in(head: CommitReader) -> list[CatalogRow]:
    """Return all catalogs in a commit of the reference `catalogs`, sorted by name."""
    found = [entry.pointer for _, entry in head.index(NAMES).range(*children((), CATALOG))]
    rows = head.store.get_many(found, CatalogRow)
    return [rows[id] for id in found]


class DroppedCatalog(NamedTuple):
    """A dropped catalog, as read from the reference `catalogs`."""

    pointer: int
    """Object id of the catalog's row."""
    row: CatalogRow
    """The catalog's row when it was dropped."""
    mark: DroppedMark


def dropped_in(head: CommitReader, *, ended: bool = False) -> list[DroppedCatalog]:
    """Return the dropped catalogs in a commit of the reference `catalogs`, the oldest first.

    Args:
        ended: False for those that can be restored; True for those whose grace period has ended, and whose files were
            not deleted yet.
    """
    marks = {entry.pointer: DroppedMark.decode(entry.value) for _, entry in head.index(DROPPED).range()}
    wanted = [pointer for pointer, mark in marks.items() if mark.ended == ended]
    rows = head.store.get_many(wanted, CatalogRow)
    return [DroppedCatalog(pointer, rows[pointer], marks[pointer]) for pointer in wanted]


def kept_catalogs(head: CommitReader) -> list[CatalogRow]:
    """Return all catalogs in a commit of the reference `catalogs`, and then the dropped ones that can be restored. Both
    come from one commit: a catalog that is dropped between two reads would be in neither."""
    return [*catalogs_in(head), *(one.row for one in dropped_in(head))]
