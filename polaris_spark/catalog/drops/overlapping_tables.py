"""Search for tables that may need the files of a given table, so that these files are not deleted.

These are tables with overlapping locations in any head (commit of a branch or tag) of any catalog, and the versions of
the given table in other branches and tags of its catalog, even if their locations differ.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import NamedTuple

from polaris_spark.catalog.branches.store_heads import StoreHead, store_heads
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.references import catalog_prefix
from polaris_spark.catalog.files.confinement import Confinement
from polaris_spark.catalog.files.files import local_path
from polaris_spark.catalog.files.folders import Links
from polaris_spark.catalog.files.locations import (
    is_below_any,
    overlap,
    overlapping,
    owner_of,
    segments,
    user_above,
)
from polaris_spark.catalog.files.paths import segments_of
from polaris_spark.catalog.files.permits import Grant, Permit
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.rows import IDS, LOCATIONS, NAMES, TABLE, id_bytes, id_from
from polaris_spark.catalog.tables.contents import holdings_of
from polaris_spark.commits.state import State, reading_state
from polaris_spark.errors import BadRequestError, ForbiddenError
from polaris_spark.index.keys import decode_key


class TableVersion(NamedTuple):
    """The version of a table in the newest commit of a branch."""

    realm: str
    """Instance id of the realm."""
    content: int


def heads_around(catalog: Catalog) -> list[StoreHead]:
    """Read and return the heads of all branches and tags of all catalogs in the store, in all realms, including dropped
    ones that can be undropped.

    If `catalog` and the session both set a retention property, the heads of `catalog` have the stricter of both values.

    Raises:
        CorruptionError: a head cannot be read, or was lost.
    """
    own, prefix = catalog.references.store, catalog_prefix(catalog.row)
    heads = store_heads(own.backend, lambda record: own.of_realm(record.instance), catalog.context.clock)
    binding = catalog.context.binding

    def bound(head: StoreHead) -> StoreHead:
        is_own = head.realm == own.realm and head.reference.startswith(prefix)
        beyond = binding.grace_beyond_ms(head.properties, is_own=is_own)
        properties = {**head.properties, **binding.retention(head.properties)} if is_own else head.properties
        return head._replace(properties=properties, grace_beyond_ms=beyond)

    return [bound(head) for head in heads]


class _Open(NamedTuple):
    """A head, opened for reading."""

    realm: str
    is_own: bool
    """Whether this is the head of the branch that contains the given table."""
    state: State


class OtherTables:
    """Finds tables and views of all heads of a store whose locations overlap those of a given table."""

    def __init__(self, catalog: Catalog, heads: Sequence[StoreHead]) -> None:
        """
        Args:
            catalog: the catalog whose tables are checked.
            heads: heads of all branches and tags of the store, as returned by `heads_around`.
        """
        own = catalog.references.store
        self._realm = own.realm
        prefix = catalog_prefix(catalog.row)
        self.has_branches = sum(h.realm == own.realm and h.reference.startswith(prefix) for h in heads) > 1
        """Whether the catalog has more than one branch or tag."""
        self._heads = [
            _Open(
                head.realm,
                (head.realm, head.reference) == (own.realm, catalog.reference),
                reading_state(head.reader(own.of_realm(head.realm))),
            )
            for head in heads
        ]
        self._linked: dict[tuple[str, ...], set[tuple[str, int]]] | None = None

    def of(self, entity_id: int, places: Collection[tuple[str, ...]]) -> list[TableVersion]:
        """Return the versions of all other tables whose locations overlap those of a given table, and the versions of
        the given table in other branches. Its version in its own branch is not included.

        Args:
            entity_id: entity id of the given table.
            places: the locations that the given table owns.
        """
        found = set()
        for head in self._heads:
            head.state.begin()  # forget what was read for another table
            owners = {entity_id} if head.realm == self._realm else set()
            for place in places:
                owners |= overlapping(head.state, place)
            for owner in owners - ({entity_id} if head.is_own else set()):
                content = table_content(head.state, owner)
                if content is not None:
                    found.add(TableVersion(head.realm, content))
        return sorted(found)

    def own(self, location: tuple[str, ...], *, but: int) -> bool:
        """Whether a table or view other than the entity `but` uses a location or a folder above it."""
        for head in self._heads:
            head.state.begin()
            mine = but if head.realm == self._realm else 0
            if user_above(head.state, location, but=mine):
                return True
        return False

    def own_by_link(self, real: tuple[str, ...], *, but: int) -> bool:
        """Whether a table or view other than the entity `but` owns a local folder, or a folder above it, through a
        location that contains symbolic links. The index of locations does not find such locations by real path.

        Args:
            real: the real path of the folder, as path segments.
        """
        linked = self._by_link()
        return any(linked.get(real[:n], set()) - {(self._realm, but)} for n in range(1, len(real) + 1))

    def overlap_by_link(self, places: Collection[tuple[str, ...]], *, but: int) -> bool:
        """Whether one of `places` overlaps a location that contains symbolic links and belongs to a table or view other
        than the entity `but`."""
        mine, local = (self._realm, but), [place for place in places if place[0] == "file://"]
        return bool(local) and any(
            overlap(place, other)
            for other, owners in self._by_link().items()
            if owners - {mine}
            for place in local
        )

    def _by_link(self) -> dict[tuple[str, ...], set[tuple[str, int]]]:
        """Return the owners (realm and entity id) of each location whose path contains symbolic links, keyed by the
        location's real path."""
        if self._linked is None:
            self._linked = {}
            links = Links()
            for head in self._heads:
                for key, entry in head.state.base.index(LOCATIONS).range():
                    place = decode_key(key).path
                    real = links.real(place)
                    if real != place:
                        self._linked.setdefault(real, set()).add((head.realm, id_from(entry.value)))
        return self._linked

    @property
    def places(self) -> int:
        """Approximate number of locations that are owned in all heads. Recent index entries, which are stored in
        commits, are not counted."""
        return sum(head.state.base.index(LOCATIONS).tree.count for head in self._heads)


class Deletable:
    """Decides which files of a table may be deleted: files in locations that the table owns, and files in the warehouse
    that are in no location of another table or view of the store. A table has files of the second kind if its location
    was changed.

    For local files, the real path is checked, too. A file on a path with symbolic links is not deleted if its path or
    real path is in a location of another table or view, even if it is also in a location of this table.
    """

    def __init__(self, catalog: Catalog, table: Table | View, neighbours: OtherTables) -> None:
        held = holdings_of(table)
        self._unconfirmed = held.unconfirmed
        self._kept: frozenset[tuple[str, ...]] = held.unconfirmed
        self.places = held.owned
        confinement = catalog.context.confinement
        follow_links = confinement is None or confinement.follow_links
        named = ["/".join(place) for place in self.places]
        if confinement is not None and follow_links:
            named += [f"file://{real}" for place in named if (real := _real_below(confinement, place))]
        self.permit = Permit([catalog.context.warehouse], places=named, follow_links=follow_links)
        self._neighbours = neighbours
        self._entity_id = table.entity_id
        self._folders: dict[tuple[tuple[str, ...], str], bool] = {}

    def keep(self, places: Collection[tuple[str, ...]]) -> None:
        """Do not allow deletion of files in `places`, which are locations of dropped tables whose files are kept. This
        replaces the `places` of an earlier call."""
        self._kept = self._unconfirmed | frozenset(places)

    def grant(self, location: str) -> Grant | None:
        """Return the permission to delete a file; None if the file must not be deleted."""
        found = self.permit.may(location)
        if found is None or location.endswith("/"):
            return None
        try:
            parts = segments(location)[:-1]
        except BadRequestError:
            return None
        key = parts, found.path.rpartition("/")[0]
        if key not in self._folders:
            self._folders[key] = self._is_own(parts, found)
        return found if self._folders[key] else None

    def _is_own(self, parts: tuple[str, ...], grant: Grant) -> bool:
        if not grant.root:
            return self._in_places(parts) or not self._owned_by_others(parts)
        named, real = folder_names(grant)
        if self._neighbours.own_by_link(real, but=self._entity_id):
            return False
        if parts == real and self._in_places(parts):
            return True
        if parts == named and self._in_places(parts):
            return not self._owned_by_others(real)
        return not self._owned_by_others(named) and not self._owned_by_others(real)

    def _in_places(self, parts: tuple[str, ...]) -> bool:
        return is_below_any(parts, self.places)

    def _owned_by_others(self, parts: tuple[str, ...]) -> bool:
        if any(parts[:n] in self._kept for n in range(1, len(parts) + 1)):
            return True
        return self._neighbours.own(parts, but=self._entity_id)


def _real_below(confinement: Confinement, location: str) -> str:
    """Return the real path of a local folder; an empty string if it is not local or is outside the confinement."""
    path = local_path(location)
    try:
        below = None if path is None else confinement.below(path / "x")
    except ForbiddenError:
        return ""
    return "" if below is None else os.path.dirname(below.real)


def folder_names(grant: Grant) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return two paths of the folder of a local file, as path segments: a path that begins with the permit's root as it
    was given, without resolving links in it, and the real path."""
    below = grant.below
    named = ("file://", *segments_of(below.root), *below.parts[:-1])
    return named, ("file://", *segments_of(below.real)[:-1])


def real_places(permit: Permit, own: Collection[tuple[str, ...]]) -> frozenset[tuple[str, ...]]:
    """Return the locations `own` and, for each local location, the other paths of the same folder: its real path and,
    if the permit covers the location, both paths that `folder_names` returns."""
    found = set(own)
    for place in own:
        path = local_path("/".join(place))
        if path is not None:
            found.add(("file://", *segments_of(os.path.realpath(path))))
            grant = permit.may(f"{path}/x")
            found.update(() if grant is None else folder_names(grant))
    return frozenset(found)


def foreign_owner(
    catalog: Catalog, heads: Sequence[StoreHead], location: tuple[str, ...], *, entity_id: int
) -> str:
    """Find a location that a table or view of the store owns and that overlaps `location`. Return a text for messages
    with the owned location and the owner's catalog; an empty string if there is none.

    Args:
        heads: heads of all branches and tags of the store, as returned by `heads_around`.
        entity_id: a table or view of `catalog` whose locations are ignored in all branches.
    """
    own = catalog.references.store
    prefix = catalog_prefix(catalog.row)
    for head in heads:
        mine = entity_id if head.realm == own.realm and head.reference.startswith(prefix) else 0
        state = reading_state(head.reader(own.of_realm(head.realm)))
        found = owner_of(state, location, but=mine)
        if found is not None:
            return f"{'/'.join(found[0])}, which a table or view of {head.catalog} owns"
    return ""


def table_content(state: State, entity_id: int) -> int | None:
    """Return the object id of the content of the table with this entity id; None if there is no such table."""
    entry = state.lookup(IDS, id_bytes(entity_id))
    if entry is None or decode_key(entry.value).kind != TABLE:
        return None
    found = state.lookup(NAMES, entry.value)
    return None if found is None else found.pointer
