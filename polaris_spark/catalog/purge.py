"""Purge: deletes those files of a dropped table that no other table needs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.contents import places
from polaris_spark.catalog.drops import kept_places
from polaris_spark.catalog.folders import Folders
from polaris_spark.catalog.locations import overlap, require_allowed, segments
from polaris_spark.catalog.manifest_entries import (
    FILE_PATH,
    ListedManifest,
    manifest_entries,
    snapshot_manifests,
)
from polaris_spark.catalog.memory import charge
from polaris_spark.catalog.metadata import render
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.overlapping_tables import Deletable, OtherTables, heads_around, real_places
from polaris_spark.catalog.permits import Grant
from polaris_spark.errors import MissingFileError, PolarisError

log = logging.getLogger("polaris_spark")

MOST_COMMITS = 10_000
"""Maximum number of commits, in all histories of the store together, that an immediate purge reads. Reading this many
takes about half a second from a SQLite file."""


MOST_PLACES = 100_000
"""Maximum number of locations of the store's tables that an immediate purge checks for symbolic links."""


class KeptFiles(NamedTuple):
    """The files that a purge did not delete."""

    files: tuple[str, ...] = ()
    """Files that could not be read or deleted, or that must not be deleted with the table."""
    because: str = ""
    """Reason why all files of the table were kept. Empty if the files were deleted, except those in `files`."""


def purge(catalog: Catalog, table: Table) -> KeptFiles:
    """Delete every file of a dropped table: data, deletes, manifests, manifest lists, statistics, metadata.

    A file is deleted only if it lies in a location of the table, or in the warehouse and in no location of another
    table or view (`Deletable`). Nothing is deleted if the catalog has several live or recoverable heads, or if the
    table's location overlaps the location of another table. The other table can be in any head of the store, or can
    have been dropped without PURGE, so that it can be restored from history. Overlaps through symbolic links count,
    too. To find overlaps, histories and locations are read. If there are too many of these, or a history is damaged,
    nothing is deleted either.

    Data files are deleted first and metadata files last. If a file cannot be read or deleted, the files that name it
    are kept, so that maintenance finds and deletes the rest after the grace period.
    """
    heads = heads_around(catalog)
    neighbours = OtherTables(catalog, heads)
    own = places(table)
    deletable = Deletable(catalog, table, neighbours)
    every = real_places(deletable.permit, own)
    if neighbours.has_branches:
        return KeptFiles(because="the catalog has other branches, which may contain the table")
    if neighbours.of(table.entity_id, every):
        return KeptFiles(because=_OVERLAP)
    if deletable.permit.is_local:
        if neighbours.places > MOST_PLACES:
            return KeptFiles(
                because=f"the tables of this store have more than {MOST_PLACES} locations to check"
            )
        if neighbours.overlap_by_link(every, but=table.entity_id):
            return KeptFiles(because=_OVERLAP)
    store = catalog.references.store
    itself = (store.realm, table.entity_id)
    kept = kept_places(heads, store.of_realm, but=itself, most_commits=MOST_COMMITS)
    if kept is None:
        return KeptFiles(
            because=f"the histories of this store have more than {MOST_COMMITS} commits to check, or are damaged"
        )
    if any(overlap(one, other) for one in kept for other in every):
        return KeptFiles(because="history contains a dropped table whose location overlaps")
    metadata = msgspec.json.decode(render(table, catalog.reader, snapshots="all"))
    deletable.keep(kept)
    return _Purge(catalog, table, deletable).run(metadata)


_KEPT_BYTES: Final = 1_000
"""Upper bound of the memory for each file that a purge lists, in bytes, in addition to the file's location."""

_OVERLAP: Final = "the location of another table overlaps"


class _Purge:
    def __init__(self, catalog: Catalog, table: Table, deletable: Deletable) -> None:
        self._files = catalog.files
        self._folders = Folders(catalog.files)
        self._table = table
        self._deletable = deletable
        allowed = catalog.context.allowed
        mine = (*deletable.places, segments(catalog.context.warehouse))
        self._readable = allowed and (*mine, *allowed)
        self._kept: list[str] = []
        """Files that could not be read or deleted."""
        self._foreign: list[str] = []
        """Files that must not be deleted with the table."""

    def run(self, metadata: dict[str, Any]) -> KeptFiles:
        snapshots = metadata.get("snapshots", [])
        manifests: dict[str, ListedManifest] = {}
        for snapshot in snapshots:
            manifests |= self._further_manifests(snapshot, manifests)
        lists = [snapshot["manifest-list"] for snapshot in snapshots if snapshot.get("manifest-list")]
        for some in (
            self._content_files(manifests.values()),
            manifests,
            lists,
            _metadata_files(metadata, self._table),
        ):
            self._delete(some)
            if self._kept:  # maintenance finds the kept files only through the files that name them
                break
        return KeptFiles((*self._kept, *self._foreign))

    def _delete(self, locations: Iterable[str]) -> None:
        mine: list[Grant] = []
        for location in dict.fromkeys(locations):
            grant = self._deletable.grant(location)
            if grant is None:
                self._foreign.append(location)
            else:
                mine.append(grant)
        self._kept += self._folders.delete_all(mine, self._deletable.permit)
        self._folders.remove_empty(self._table.location, mine, self._deletable.permit)

    def _further_manifests(
        self, snapshot: dict[str, Any], known: dict[str, ListedManifest]
    ) -> dict[str, ListedManifest]:
        """Return the manifests of a snapshot that are not in `known`, by path. Snapshots share most manifests."""
        listed = snapshot.get("manifest-list", "")
        found: dict[str, ListedManifest] = {}
        try:
            if listed:
                self._require_readable(listed)
            for manifest in snapshot_manifests(self._files, snapshot):
                if manifest.path not in known and manifest.path not in found:
                    charge(_KEPT_BYTES + len(manifest.path))
                    found[manifest.path] = manifest
        except MissingFileError:
            return {}
        except PolarisError as error:  # the table is dropped nevertheless
            self._unreadable(listed, error)
            return {}
        return found

    def _content_files(self, manifests: Iterable[ListedManifest]) -> Iterator[str]:
        for manifest in manifests:
            try:
                self._require_readable(manifest.path)
                found: list[str] = []
                for entry in manifest_entries(self._files, manifest, deleted=True):
                    charge(_KEPT_BYTES + len(entry.file[FILE_PATH]))
                    found.append(entry.file[FILE_PATH])
                yield from found
            except MissingFileError:
                continue
            except PolarisError as error:  # as above
                self._unreadable(manifest.path, error)

    def _require_readable(self, location: str) -> None:
        """Refuse a file that lies outside the warehouse, the table's own locations, and the other locations that
        clients of this catalog may use. The path comes from files or metadata that a client wrote, and must not make
        this process read other files."""
        if self._readable is not None:
            require_allowed(self._readable, [segments(location)])

    def _unreadable(self, location: str, error: Exception) -> None:
        log.warning("%s cannot be read and is kept: %s", location, error)
        self._kept.append(location)


def _metadata_files(metadata: dict[str, Any], table: Table) -> Iterator[str]:
    for name in ("statistics", "partition-statistics"):
        for item in metadata.get(name, []):
            yield item["statistics-path"]
    for item in metadata.get("metadata-log", []):
        yield item["metadata-file"]
    yield table.metadata_location
