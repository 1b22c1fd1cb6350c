"""Adoption of locations. An imported table or view does not own all locations in its metadata (module `ownership`);
adoption makes it their owner.

A location that contains other tables cannot be adopted. This is checked twice. Before the commit, `refusals` reads the
files in the location and the heads of all catalogs of the store. The commit then checks the index `locations` of its
branch. No other commit can change this index between this check and the swap.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.drops.overlapping_tables import foreign_owner, heads_around
from polaris_spark.catalog.entities.entities import (
    Context,
    NameEntry,
    TableName,
    TimedChange,
    find,
    put,
    table_key,
)
from polaris_spark.catalog.files import locations
from polaris_spark.catalog.files.files import local_path
from polaris_spark.catalog.imports.directory import DirectoryTree
from polaris_spark.catalog.imports.sources import SourceEntry
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.catalog.tables.contents import holdings_of, occupy, require_ownable
from polaris_spark.catalog.tables.metadata_files import read_text
from polaris_spark.commits.change import Operation, Unrepeated
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError, ForbiddenError, NoSuchTableError, SourceError

KINDS: dict[bytes, type[Table] | type[View]] = {TABLE: Table, VIEW: View}


class Adoptable(NamedTuple):
    """A table or view, with its unconfirmed locations. These are in its metadata, but the table or view does not own
    them."""

    name: TableName
    kind: bytes
    entity_id: int
    uuid: str
    unconfirmed: tuple[str, ...]


class _Metadata(msgspec.Struct, rename="kebab"):
    table_uuid: str = ""
    view_uuid: str = ""


_decode = msgspec.json.Decoder(_Metadata).decode


def adoptable(catalog: Catalog, name: TableName, principal: str) -> Adoptable:
    """Return a table or view with its unconfirmed locations. If it was imported lazily, its metadata is loaded first.

    Args:
        principal: name of the principal to write in the log entry, if the metadata is loaded.
    Raises:
        NoSuchTableError: there is neither a table nor a view of that name.
    """

    def read() -> Adoptable:
        view = catalog.view()
        for kind, cls in KINDS.items():
            found = find(view, table_key(name, kind))
            if found is not None:
                value = view.get(found.content, cls)
                return Adoptable(name, kind, found.entity_id, value.uuid, value.unconfirmed)
        raise NoSuchTableError(f"there is no table or view {name}")

    return catalog.loading(read, principal)


def refusals(catalog: Catalog, one: Adoptable) -> dict[str, str]:
    """Return the unconfirmed locations of `one` that cannot be adopted, each with the reason."""
    heads = heads_around(catalog)
    found = {}
    for location in one.unconfirmed:
        place = locations.segments(location)
        try:
            require_ownable(catalog.context, place)
        except ForbiddenError as error:
            found[location] = str(error)
            continue
        owner = foreign_owner(catalog, heads, place, entity_id=one.entity_id)
        why = f"it overlaps with {owner}" if owner else _other_table(catalog, location, one.uuid)
        if why:
            found[location] = why
    return found


def _other_table(catalog: Catalog, location: str, uuid: str) -> str:
    """Return why a location cannot be adopted: it contains the metadata file of another table or view, a metadata file
    in it cannot be read, or it cannot be listed. Return an empty string if it contains no other table or view."""
    try:
        for entry in DirectoryTree(location, catalog.files.properties).entries():
            if not isinstance(entry, SourceEntry) or _is_linked_folder(entry.metadata_location):
                continue  # jobs that delete files do not follow the link either
            # Entries with a problem are checked, too: the metadata file holds the UUID of its table.
            metadata = _decode(read_text(catalog.files, entry.metadata_location))
            if uuid not in (metadata.table_uuid, metadata.view_uuid):
                return f"it contains another table or view, with the metadata file {entry.metadata_location}"
    except (SourceError, OSError) as error:
        return f"it cannot be listed: {error}"
    except (BadRequestError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"it may contain another table or view: {error}"
    return ""


def _is_linked_folder(location: str) -> bool:
    path = local_path(location)
    return path is not None and path.is_symlink() and path.is_dir()


class Adopt(Unrepeated, TimedChange[tuple[str, ...]]):
    """Change that makes a table or view the owner of some of its unconfirmed locations. Its result is the newly owned
    locations."""

    action = "adopt-locations"

    def __init__(
        self, context: Context, operation: Operation, one: Adoptable, adopted: Collection[str]
    ) -> None:
        """
        Args:
            adopted: locations to adopt; those that the table or view no longer lists as unconfirmed are skipped.
        """
        super().__init__(context, operation)
        self._one = one
        self._adopted = frozenset(adopted)

    def apply(self, state: State, prepared: int) -> tuple[str, ...]:
        """
        Raises:
            NoSuchTableError: the table or view was dropped or renamed during the adoption.
            ForbiddenError: another table or view owns an overlapping location.
        """
        key = table_key(self._one.name, self._one.kind)
        found = find(state, key)
        if found is None or found.entity_id != self._one.entity_id:
            raise NoSuchTableError(f"{self._one.name} was dropped or renamed during the adoption")
        value = state.get_for_rewrite(found.content, KINDS[self._one.kind])
        done = tuple(one for one in value.unconfirmed if one in self._adopted)
        if not done:
            return ()
        for one in done:  # even if the catalog lets tables share locations
            locations.refuse_overlap(state, found.entity_id, locations.segments(one))
        rest = tuple(one for one in value.unconfirmed if one not in done)
        after = msgspec.structs.replace(value, unconfirmed=rest)
        occupy(self.context, state, found.entity_id, holdings_of(value), holdings_of(after))
        content = state.add(after)
        put(state, key, NameEntry(content, found.entity_id))
        summary = {"locations": " ".join(done)}
        self.record(
            state, prepared, found.entity_id, key, before=found.content, after=content, summary=summary
        )
        return done
