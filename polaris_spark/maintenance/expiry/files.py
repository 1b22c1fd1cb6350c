"""Finding the files that only expired snapshots need. Each function works on one table.

`maintenance.needed_files` returns the files that tables need. As in Iceberg's `ReachableFileCleanup`, only these
files are read:

1. the manifest lists of expired snapshots;
2. the manifest lists of other snapshots, until no manifest is left that only expired snapshots list;
3. the entries of the manifests that only expired snapshots list;
4. the entries of the other manifests, only if a manifest of step 3 names a file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import msgspec

from polaris_spark.catalog.contents import content_of
from polaris_spark.catalog.engine import MapFunction, Reach
from polaris_spark.catalog.files import Files, local_path
from polaris_spark.catalog.manifest_entries import ListedManifest
from polaris_spark.catalog.metadata import ObjectReader
from polaris_spark.catalog.metadata.rows import PartitionStatistics, Snapshot, Statistics, Table
from polaris_spark.catalog.rows import Unloaded
from polaris_spark.catalog.snapshot_expiry import (
    ExpiredSnapshots,
    RemovedPieces,
    SnapshotFacts,
    read_snapshot,
    removed_pieces,
)
from polaris_spark.errors import MissingFileError, PolarisError
from polaris_spark.maintenance.expiry.names import NamingFunction, file_key
from polaris_spark.maintenance.expiry.retention import Asked, decide_table
from polaris_spark.maintenance.needed_files import Content, Needs, manifests_of_list, needs_of

Kind = Literal["data", "position-deletes", "equality-deletes", "manifest", "manifest-list", "statistics"]


class File(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file that only expired snapshots need."""

    location: str
    kind: Kind
    bytes: int
    """Size of the file; 0 if it is not known."""


# Deciding


class ToDecide(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A table for which expiry decides what expires."""

    content: int
    """Object id of the table's row."""
    namespace: int
    """Position of the properties of the table's namespaces and catalog in `DecideTables.levels`."""


class Decided(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The parts of a table that expire (`retention.Decision`)."""

    snapshots: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()
    schemas: tuple[int, ...] = ()
    specs: tuple[int, ...] = ()
    left_alone: str = ""
    """Why no part of the table may expire, or why it is not known which parts expire; otherwise empty."""


class DecideTables(MapFunction[ToDecide, Decided]):
    """Function that decides which parts of a table expire."""

    few = 1_000
    item = ToDecide
    result = Decided

    def __init__(self, realm: str, asked: Asked, levels: Sequence[Sequence[Mapping[str, str]]]) -> None:
        """
        Args:
            realm: instance id of the realm.
            levels: for each value of `ToDecide.namespace`, the properties of the namespaces from the nearest upwards,
                and of the catalog.
        """
        self.realm = realm
        self.asked = asked
        self.levels = levels

    def __call__(self, reach: Reach, item: ToDecide) -> Decided:
        reader = reach.reader(self.realm)
        try:
            table = content_of(reader, item.content, Table)
            if isinstance(table, Unloaded):
                return Decided(left_alone="imported, and not loaded yet")
            specs_of = partial(_specs_of, files=reach.files)
            found = decide_table(table, reader, self.levels[item.namespace], self.asked, specs_of)
        except PolarisError as error:
            return Decided(left_alone=str(error))
        if found is None:
            return Decided(left_alone="gc.enabled is false")
        return Decided(*found)


# Finding


class NeededVersion(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A version of a table whose files must be kept."""

    realm: str
    """Instance id of the table's realm."""
    id: int
    """Object id of the version's row."""
    without: tuple[int, ...] = ()
    """Ids of snapshots that are about to be removed from the table; they do not count as needing any file."""
    dropped: bool = False
    """Whether the table was dropped after this version: a purge may then have deleted some of its files."""


class ToExamine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A table with expired snapshots."""

    realm: str
    """Instance id of the table's realm."""
    records: tuple[int, ...]
    """Object ids of the table's expired-snapshots records. Snapshots in `NeededVersion.without` of `needed` count as
    expired as well."""
    needed: tuple[NeededVersion, ...]
    """Versions whose files stay: the table as it is now, then versions of this or other tables that share locations."""


class Examined(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The files that a table's expired snapshots leave behind."""

    files: tuple[File, ...] = ()
    """Manifests, manifest lists and statistics files that no version needs."""
    manifests: tuple[str, ...] = ()
    """The manifests in `files` that may name live content files."""
    own: tuple[str, ...] = ()
    """Manifests that the table needs, and that may name the same content files as `manifests`."""
    foreign: tuple[str, ...] = ()
    """Manifests that only other tables or versions need, and that may name the same content files as `manifests`."""
    shared: bool = False
    """True if only other tables or versions, not the table itself, need some file that the expired snapshots name."""
    problem: str = ""
    """Why the result is not known, so that all files stay; empty if it is known."""


class Examine(NamingFunction[ToExamine, Examined]):
    """Function that finds the files that the expired snapshots of a table need, but its remaining snapshots do not."""

    few = 64
    item = ToExamine
    result = Examined

    def __call__(self, reach: Reach, item: ToExamine) -> Examined:
        try:
            return _examined(reach, item)
        except (PolarisError, OSError, ValueError) as error:
            return Examined(problem=str(error))


def _examined(reach: Reach, item: ToExamine) -> Examined:
    expired, needs = _Expired(reach.files), []
    own = reach.reader(item.realm)
    for record in own.get_many(item.records, ExpiredSnapshots).values():
        pieces = RemovedPieces(record.snapshots, record.statistics, record.partition_statistics)
        expired.add(own, pieces)
    for position, version in enumerate(item.needed):
        reader = reach.reader(version.realm)
        table = content_of(reader, version.id, Table)
        if isinstance(table, Unloaded):
            return Examined(
                problem=f"the imported table of {table.metadata_location} shares its location, and is not loaded yet"
            )
        owner = "a table that shares its location" if position else "the table"
        found = needs_of(Content(owner, table), reader, reach.files, without=version.without)
        if found.problem:
            return Examined(problem=found.problem)
        needs.append(found)
        if version.without:
            expired.add(reader, removed_pieces(table, version.without, reader))
    return _difference(item, expired, needs[:1], needs[1:], reach.files)


def _difference(
    item: ToExamine, expired: _Expired, mine: Sequence[Needs], foreign: Sequence[Needs], files: Files
) -> Examined:
    manifests, leading = expired.read()
    own_manifests = _leave_out(manifests, mine, files, purged=item.needed[0].dropped)
    size = len(manifests)
    foreign_manifests = _leave_out(manifests, foreign, files)
    for_me, for_others = _leading(mine), _leading(foreign)
    leading = [file for file in leading if file_key(file.location) not in for_me]
    left = [file for file in leading if file_key(file.location) not in for_others]
    naming = tuple(manifest.path for manifest in manifests.values() if manifest.live_files != 0)
    left += [File(manifest.path, "manifest", manifest.length) for manifest in manifests.values()]
    return Examined(
        tuple({file_key(file.location): file for file in left}.values()),
        naming,
        own_manifests if naming else (),
        foreign_manifests if naming else (),
        shared=len(left) - len(manifests) < len(leading) or len(manifests) < size,
    )


def _leading(needs: Sequence[Needs]) -> set[str]:
    """Return the keys of the manifest lists, statistics and metadata files that are needed."""
    return {file_key(location) for one in needs for location in (*one.files, *one.lists)}


def _leave_out(
    manifests: dict[str, ListedManifest], needs: Sequence[Needs], files: Files, *, purged: bool = False
) -> tuple[str, ...]:
    """Remove needed manifests from `manifests`. Return the needed manifests that were read and may name live files.

    Stops as soon as no manifest is left. Reads the oldest snapshots first, because they share most manifests with
    expired snapshots.

    Args:
        purged: whether manifest lists may have been deleted, with all files that they named.
    Raises:
        UnreadableFileError: a manifest list cannot be read.
    """
    others: dict[str, ListedManifest] = {}
    listings = _listings(needs, files, purged=purged)
    while manifests and (listed := next(listings, None)) is not None:
        for manifest in listed:
            key = file_key(manifest.path)
            others[key] = manifest
            manifests.pop(key, None)
    return tuple(manifest.path for manifest in others.values() if manifest.live_files != 0)


def _listings(needs: Sequence[Needs], files: Files, *, purged: bool) -> Iterator[list[ListedManifest]]:
    """Yield the manifests that are needed, list by list. A list that several versions need is read once."""
    yield [ListedManifest(location) for one in needs for location in one.manifests]
    for location in dict.fromkeys(location for one in needs for location in one.lists):
        try:
            listed = manifests_of_list(files, location)
        except MissingFileError:
            if not purged:
                raise
            continue
        yield listed


class _Expired:
    """The files that expired snapshots of a table name."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._snapshots: list[SnapshotFacts] = []
        self._statistics: list[File] = []

    def add(self, reader: ObjectReader, pieces: RemovedPieces) -> None:
        """Add snapshots that were removed, or are about to be."""
        snapshots = reader.get_many(pieces.snapshots, Snapshot) if pieces.snapshots else {}
        self._snapshots += [read_snapshot(snapshots[id].text) for id in pieces.snapshots]
        texts = [
            *(one.text for one in reader.get_many(pieces.statistics, Statistics).values()),
            *(one.text for one in reader.get_many(pieces.partition_statistics, PartitionStatistics).values()),
        ]
        for file in map(_read_statistics, texts):
            self._statistics.append(File(file.statistics_path, "statistics", file.file_size_in_bytes))

    def read(self) -> tuple[dict[str, ListedManifest], list[File]]:
        """Return the manifests by `file_key`, and the statistics files and manifest lists.

        A missing manifest list was deleted by an earlier run, after the files that it names.

        Raises:
            UnreadableFileError: a manifest list cannot be read.
        """
        manifests: dict[str, ListedManifest] = {}
        files = list(self._statistics)
        for snapshot in self._snapshots:
            size = 0
            listed: list[ListedManifest] = []
            with contextlib.suppress(FileNotFoundError, MissingFileError):
                listed = _manifests_of(snapshot, self._files)
                size = _size(self._files, snapshot.manifest_list or "")
            manifests.update((file_key(manifest.path), manifest) for manifest in listed)
            if snapshot.manifest_list:
                files.append(File(snapshot.manifest_list, "manifest-list", size))
        return manifests, files


def _manifests_of(snapshot: SnapshotFacts, files: Files) -> list[ListedManifest]:
    """Return the manifests of a snapshot.

    Raises:
        UnreadableFileError: the manifest list cannot be read.
    """
    if snapshot.manifest_list:
        return manifests_of_list(files, snapshot.manifest_list)
    return [ListedManifest(location) for location in snapshot.manifests]


def _specs_of(snapshot: SnapshotFacts, files: Files) -> set[int]:
    return {manifest.spec_id for manifest in _manifests_of(snapshot, files)}


class _StatisticsFile(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    statistics_path: str
    file_size_in_bytes: int = 0


_read_statistics = msgspec.json.Decoder(_StatisticsFile).decode


def _size(files: Files, location: str) -> int:
    """Return the size of an existing file, in bytes; 0 for an empty location (a snapshot without a manifest list)."""
    path = local_path(location)
    if not location:
        return 0
    return path.stat().st_size if path is not None else len(files.io(location).new_input(location))
