"""The files of a table, and deleting them once nothing needs them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.contents import places
from polaris_spark.catalog.drops import kept_places
from polaris_spark.catalog.files import remove_empty_folders
from polaris_spark.catalog.folders import Folders
from polaris_spark.catalog.locations import require_allowed, segments
from polaris_spark.catalog.manifest_entries import (
    FILE_PATH,
    ListedManifest,
    manifest_entries,
    snapshot_manifests,
)
from polaris_spark.catalog.metadata import render
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.sharing import Deletable, Neighbours, heads_around
from polaris_spark.errors import MissingFileError, PolarisError

log = logging.getLogger("polaris_spark")

MOST_COMMITS = 10_000
"""So many commits of all histories of the store are read for a purge at once: half a second, of a file of SQLite."""


def purge(catalog: Catalog, table: Table) -> list[str]:
    """Delete every file of a dropped table: data, deletes, manifests, manifest lists, statistics, metadata.

    A file goes only if it lies in a location of the table, or in the warehouse and in no location of another table or
    view; nothing goes while the catalog has several live or recoverable heads, or one of the store has a table whose
    location overlaps, or a history that may bring one back: one that was dropped without PURGE. To know that, histories
    are read; nothing goes either where they are long.
    Data goes first and metadata last, and what cannot be read or deleted keeps what leads to it: maintenance finds and
    deletes the rest after grace. Returns what was left behind.
    """
    heads = heads_around(catalog)
    neighbours = Neighbours(catalog, heads)
    own = places(table)
    if neighbours.has_branches or neighbours.of(table.entity_id, own):
        return [table.location]
    store = catalog.references.store
    itself = (store.realm, table.entity_id)
    kept = kept_places(heads, store.of_realm, but=itself, most_commits=MOST_COMMITS)
    if kept is None or any(_overlap(one, other) for one in kept for other in own):
        return [table.location]
    metadata = msgspec.json.decode(render(table, catalog.reader, snapshots="all"))
    return _Purge(catalog, table, Deletable(catalog, table, neighbours, kept)).run(metadata)


def _overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


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
        """Files that are not the table's to delete."""

    def run(self, metadata: dict[str, Any]) -> list[str]:
        snapshots = metadata.get("snapshots", [])
        manifests = {m.path: m for snapshot in snapshots for m in self._manifests(snapshot)}
        lists = [snapshot["manifest-list"] for snapshot in snapshots if snapshot.get("manifest-list")]
        for some in (
            self._content_files(manifests.values()),
            manifests,
            lists,
            _metadata_files(metadata, self._table),
        ):
            self._delete(some)
            if self._kept:  # only what names them leads maintenance to them
                break
        return [*self._kept, *self._foreign]

    def _delete(self, locations: Iterable[str]) -> None:
        mine: list[str] = []
        for location in dict.fromkeys(locations):
            (mine if self._deletable(location) else self._foreign).append(location)
        self._kept += self._folders.delete_all(mine)
        remove_empty_folders(self._table.location, mine)

    def _manifests(self, snapshot: dict[str, Any]) -> list[ListedManifest]:
        listed = snapshot.get("manifest-list", "")
        try:
            if listed:
                self._require_readable(listed)
            return list(snapshot_manifests(self._files, snapshot))
        except MissingFileError:
            return []
        except PolarisError as error:  # the table is dropped all the same
            self._unreadable(listed, error)
            return []

    def _content_files(self, manifests: Iterable[ListedManifest]) -> Iterator[str]:
        for manifest in manifests:
            try:
                self._require_readable(manifest.path)
                yield from [
                    entry.file[FILE_PATH] for entry in manifest_entries(self._files, manifest, deleted=True)
                ]
            except MissingFileError:
                continue
            except PolarisError as error:  # as above
                self._unreadable(manifest.path, error)

    def _require_readable(self, location: str) -> None:
        """A client chose these paths: it must not have this process read what is not its own."""
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
