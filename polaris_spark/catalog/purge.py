"""The files of a table, and deleting them once nothing needs them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile, read_manifest_list

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.catalogs import head_name
from polaris_spark.catalog.contents import places
from polaris_spark.catalog.files import remove_empty_folders
from polaris_spark.catalog.locations import owner_above, require_allowed, segments
from polaris_spark.catalog.metadata import render
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.errors import BadRequestError

log = logging.getLogger("polaris_spark")


def purge(catalog: Catalog, table: Table) -> list[str]:
    """Delete every file of a dropped table: data, deletes, manifests, manifest lists, statistics, metadata.

    A file goes only if it lies in a location of the table or in the warehouse, and in no location of another table or
    view; nothing goes while another head of the catalog may need it, and no data where `gc.enabled` is false.
    Maintenance deletes the rest after grace. Data goes first and metadata last, so that a purge that was interrupted
    can be run again. Returns what was left behind.
    """
    metadata = msgspec.json.decode(render(table, catalog.reader, snapshots="all"))
    if not _only_head(catalog):
        return [table.location]
    return _Purge(catalog, table).run(metadata)


class _Purge:
    def __init__(self, catalog: Catalog, table: Table) -> None:
        self.catalog = catalog
        self.table = table
        self.io: FileIO = catalog.files.io(table.location)
        self.view = catalog.view()
        self.mine = (*places(table), segments(catalog.context.warehouse))
        self.readable = catalog.context.allowed and (*self.mine, *catalog.context.allowed)
        self.left: list[str] = []
        self._allowed: dict[str, bool] = {}

    def run(self, metadata: dict[str, Any]) -> list[str]:
        manifests: dict[str, ManifestFile] = {}
        lists = [s["manifest-list"] for s in metadata.get("snapshots", []) if s.get("manifest-list")]
        for listed in lists:
            manifests |= {m.manifest_path: m for m in self._manifests(listed)}
        if metadata.get("properties", {}).get("gc.enabled", "true").lower() != "false":
            self._delete(self._content_files(manifests.values()))
        self._delete(manifests)
        self._delete(lists)
        self._delete(_metadata_files(metadata, self.table))
        return self.left

    def _delete(self, locations: Iterable[str]) -> None:
        unique = dict.fromkeys(locations)
        mine = [location for location in unique if location not in self.left and self._may_delete(location)]
        self.left += [location for location in unique if not self._may_delete(location)]
        self.left += self.catalog.files.delete_all(mine)
        remove_empty_folders(self.table.location, mine)

    def _may_delete(self, location: str) -> bool:
        folder = location.rpartition("/")[0]
        allowed = self._allowed.get(folder)
        if allowed is None:
            try:
                parts = segments(location)[:-1]
            except BadRequestError:
                allowed = False
            else:
                inside = any(parts[: len(place)] == place for place in self.mine)
                allowed = inside and owner_above(self.view, parts) is None
            self._allowed[folder] = allowed
        return allowed

    def _manifests(self, location: str) -> list[ManifestFile]:
        try:
            self._require_readable(location)
            return list(read_manifest_list(self.io.new_input(location)))
        except FileNotFoundError:
            return []
        except (
            Exception
        ) as error:  # whatever a damaged file makes its reader raise: the table is dropped all the same
            self._unreadable(location, error)
            return []

    def _content_files(self, manifests: Iterable[ManifestFile]) -> Iterator[str]:
        for manifest in manifests:
            try:
                self._require_readable(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(self.io, discard_deleted=False)
            except FileNotFoundError:
                continue
            except Exception as error:  # as above
                self._unreadable(manifest.manifest_path, error)
                continue
            for entry in entries:
                yield entry.data_file.file_path

    def _require_readable(self, location: str) -> None:
        """A client chose these paths: it must not have this process read what is not its own."""
        if self.readable is not None:
            require_allowed(self.readable, [segments(location)])

    def _unreadable(self, location: str, error: Exception) -> None:
        log.warning("%s cannot be read and is kept: %s", location, error)
        self.left.append(location)


def _only_head(catalog: Catalog) -> bool:
    """Whether the catalog has no other branch, live or recoverable, whose table may be the same."""
    heads = head_name(catalog.row, "")
    names = [registered.name for registered in catalog.references.listed()]
    return sum(name.startswith(heads) for name in names) == 1


def _metadata_files(metadata: dict[str, Any], table: Table) -> Iterator[str]:
    for name in ("statistics", "partition-statistics"):
        for item in metadata.get(name, []):
            yield item["statistics-path"]
    for item in metadata.get("metadata-log", []):
        yield item["metadata-file"]
    yield table.metadata_location
