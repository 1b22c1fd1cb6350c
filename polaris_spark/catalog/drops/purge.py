"""Purge: deletes those files of a dropped table that no other table needs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.drops.drops import kept_places
from polaris_spark.catalog.drops.overlapping_tables import Deletable, OtherTables, heads_around, real_places
from polaris_spark.catalog.files.folders import Folders
from polaris_spark.catalog.files.locations import overlap, require_allowed, segments
from polaris_spark.catalog.files.memory import charge
from polaris_spark.catalog.files.permits import Grant
from polaris_spark.catalog.manifests.manifest_entries import (
    FILE_PATH,
    ListedManifest,
    manifest_entries,
    snapshot_manifests,
)
from polaris_spark.catalog.metadata.renderer import render
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.tables.contents import places
from polaris_spark.errors import MissingFileError, PolarisError

log = logging.getLogger("polaris_spark")

MOST_COMMITS = 10_000
"""Maximum total number of commits that a purge reads from the histories of the store. Reading 10,000 commits from a
SQLite file takes about half a second."""


MOST_PLACES = 100_000
"""Maximum number of locations of tables that a purge checks for symbolic links."""


class KeptFiles(NamedTuple):
    """The files that a purge did not delete."""

    files: tuple[str, ...] = ()
    """Locations of files that could not be read or deleted, or that must not be deleted with the table."""
    because: str = ""
    """Reason why no file of the table was deleted. Empty if all files except those in `files` were deleted."""


def purge(catalog: Catalog, table: Table | View) -> KeptFiles:
    """Delete the files of a dropped table: data, deletes, manifests, manifest lists, statistics and metadata. Of a
    dropped view, delete the last metadata file.

    A file is deleted only if it is in a location that the table owns, or in the warehouse and in no location of another
    table or view (`Deletable`). No file is deleted if

    - the catalog has other branches, including dropped branches that can be restored;
    - the table's location overlaps the location of another table in the store, also by a symbolic link. This includes
      tables that were dropped without PURGE, because they can be restored from history;
    - there are too many commits or locations to check (`MOST_COMMITS`, `MOST_PLACES`), or a history is damaged.

    Data files are deleted first and metadata files last. If a file cannot be read or deleted, the files that refer to
    it are kept, so that maintenance can find and delete the remaining files after the grace period.

    Returns:
        the files that were not deleted.
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
    store = catalog.references.store.for_deleting()
    itself = (store.realm, table.entity_id)
    kept = kept_places(heads, store.of_realm, but=itself, most_commits=MOST_COMMITS)
    if kept is None:
        return KeptFiles(
            because=f"the histories of this store have more than {MOST_COMMITS} commits to check, or are damaged"
        )
    if any(overlap(one, other) for one in kept for other in every):
        return KeptFiles(
            because="its location overlaps the location of a dropped or replaced table or view in the history"
        )
    metadata = {}
    if isinstance(table, Table):
        metadata = msgspec.json.decode(render(table, catalog.reader, snapshots="all"))
    deletable.keep(kept)
    return _Purge(catalog, table, deletable).run(metadata)


_KEPT_BYTES: Final = 1_000
"""Upper bound of the memory for each file that a purge lists, in bytes, without the text of the file's location."""

_OVERLAP: Final = "its location overlaps the location of another table or view"


class _Purge:
    def __init__(self, catalog: Catalog, table: Table | View, deletable: Deletable) -> None:
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
        """Check that clients of this catalog may use a file, because its path comes from metadata that a client wrote.

        Raises:
            ForbiddenError: the file is outside the warehouse, the table's locations and the other allowed locations.
        """
        if self._readable is not None:
            require_allowed(self._readable, [segments(location)])

    def _unreadable(self, location: str, error: Exception) -> None:
        log.warning("%s cannot be read and is kept: %s", location, error)
        self._kept.append(location)


def _metadata_files(metadata: dict[str, Any], table: Table | View) -> Iterator[str]:
    for name in ("statistics", "partition-statistics"):
        for item in metadata.get(name, []):
            yield item["statistics-path"]
    for item in metadata.get("metadata-log", []):
        yield item["metadata-file"]
    yield table.metadata_location
