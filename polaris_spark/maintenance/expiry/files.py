"""Search for the files that only expired snapshots need. Each function works on one table.

`maintenance.needed_files` returns the files that tables need. As in Iceberg's `ReachableFileCleanup`, the search reads
only the following files, in this order:

1. the manifest lists of expired snapshots;
2. the manifest lists of other snapshots, until each manifest from step 1 has been found in one of them;
3. the manifests that only expired snapshots list;
4. the other manifests, but only if a manifest of step 3 names a file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import msgspec

from polaris_spark.catalog.engine import MapFunction, Reach
from polaris_spark.catalog.files.files import Files, local_path
from polaris_spark.catalog.manifests.manifest_entries import ListedManifest
from polaris_spark.catalog.metadata.rows import ObjectReader, PartitionStatistics, Snapshot, Statistics, Table
from polaris_spark.catalog.rows import Unloaded
from polaris_spark.catalog.tables.contents import content_of
from polaris_spark.catalog.tables.snapshot_expiry import (
    ExpiredSnapshots,
    RemovedPieces,
    SnapshotFacts,
    read_snapshot,
    removed_pieces,
)
from polaris_spark.errors import MissingFileError, PolarisError
from polaris_spark.maintenance.expiry.names import NamingFunction, file_key
from polaris_spark.maintenance.expiry.retention import ExpiryDecision, ExpiryRequest, decide_table
from polaris_spark.maintenance.needed_files import Content, Needs, manifests_of_list, needs_of

Kind = Literal["data", "position-deletes", "equality-deletes", "manifest", "manifest-list", "statistics"]


class File(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file that only expired snapshots need, or that was found while looking for these files."""

    location: str
    kind: Kind
    bytes: int
    """Size of the file in bytes; 0 if the size is not known."""


# Deciding


class ToDecide(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A table for which expiry must decide which parts expire."""

    content: int
    """Object id of the table's row."""
    namespace: int
    """Position in `DecideTables.levels` of the properties of the table's namespaces and catalog."""
    policy: dict[str, str] = {}
    """Properties that a policy sets. They override those of the table, its namespaces and the catalog."""


class DecideTables(MapFunction[ToDecide, ExpiryDecision]):
    """Function that decides which parts of a table expire."""

    few = 1_000
    item = ToDecide
    result = ExpiryDecision

    def __init__(
        self, realm: str, asked: ExpiryRequest, levels: Sequence[Sequence[Mapping[str, str]]]
    ) -> None:
        """
        Args:
            realm: instance id of the realm.
            asked: the parameters of the run.
            levels: for each value of `ToDecide.namespace`, the properties of the table's namespace, then of each
                namespace above it, then of the catalog.
        """
        self.realm = realm
        self.asked = asked
        self.levels = levels

    def __call__(self, reach: Reach, item: ToDecide) -> ExpiryDecision:
        reader = reach.reader(self.realm)
        try:
            table = content_of(reader, item.content, Table)
            if isinstance(table, Unloaded):
                return ExpiryDecision(left_alone="the table was imported lazily, and is not loaded yet")
            specs_of = partial(_specs_of, files=reach.files)
            found = decide_table(
                table, reader, self.levels[item.namespace], self.asked, specs_of, item.policy
            )
        except PolarisError as error:
            return ExpiryDecision(left_alone=str(error))
        return ExpiryDecision(left_alone="gc.enabled is false") if found is None else found


# Finding


class NeededVersion(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A version of a table whose files must be kept."""

    realm: str
    """Instance id of the table's realm."""
    id: int
    """Object id of the version's row."""
    without: tuple[int, ...] = ()
    """Ids of snapshots that are about to be removed from the table. Their files need not be kept."""
    dropped: bool = False
    """Whether the table was dropped; some of the version's files may then have been deleted already."""


class ToExamine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A table with expired snapshots."""

    realm: str
    """Instance id of the table's realm."""
    records: tuple[int, ...]
    """Object ids of the table's expired-snapshots records (`ExpiredSnapshots`). The snapshots in
    `NeededVersion.without` of the versions in `needed` also count as expired."""
    needed: tuple[NeededVersion, ...]
    """Versions whose files are kept: first the table as it is now, then versions of this table on other branches and of
    other tables with overlapping locations."""


class UnneededFiles(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The files that only a table's expired snapshots need, before content files are searched for."""

    files: tuple[File, ...] = ()
    """Manifests, manifest lists and statistics files that none of the versions in `ToExamine.needed` needs."""
    manifests: tuple[str, ...] = ()
    """Locations of the manifests in `files` that may list live content files."""
    own: tuple[str, ...] = ()
    """Manifests that the table needs, and that may list the same content files as `manifests`."""
    foreign: tuple[str, ...] = ()
    """Manifests that only other tables or versions need, and that may list the same content files as `manifests`."""
    shared: bool = False
    """True if other tables or versions need a file of the expired snapshots that the table itself no longer needs."""
    problem: str = ""
    """The error that prevented the search, so that all files must be kept; empty if the search succeeded."""


class Examine(NamingFunction[ToExamine, UnneededFiles]):
    """Function that finds manifests, manifest lists and statistics files that only a table's expired snapshots need.

    It does not search for content files.
    """

    few = 64
    item = ToExamine
    result = UnneededFiles

    def __call__(self, reach: Reach, item: ToExamine) -> UnneededFiles:
        try:
            return _examined(reach, item)
        except (PolarisError, OSError, ValueError) as error:
            return UnneededFiles(problem=str(error))


def _examined(reach: Reach, item: ToExamine) -> UnneededFiles:
    expired, needs = _Expired(reach.files), []
    own = reach.reader(item.realm)
    for record in own.get_many(item.records, ExpiredSnapshots).values():
        pieces = RemovedPieces(record.snapshots, record.statistics, record.partition_statistics)
        expired.add(own, pieces)
    for position, version in enumerate(item.needed):
        reader = reach.reader(version.realm)
        table = content_of(reader, version.id, Table)
        if isinstance(table, Unloaded):
            return UnneededFiles(
                problem=f"the lazily imported table of {table.metadata_location} may need them, and is not loaded yet"
            )
        owner = "a table that shares its location" if position else "the table"
        found = needs_of(Content(owner, table), reader, reach.files, without=version.without)
        if found.problem:
            return UnneededFiles(problem=found.problem)
        needs.append(found)
        if version.without:
            expired.add(reader, removed_pieces(table, version.without, reader))
    return _difference(item, expired, needs[:1], needs[1:], reach.files)


def _difference(
    item: ToExamine, expired: _Expired, mine: Sequence[Needs], foreign: Sequence[Needs], files: Files
) -> UnneededFiles:
    manifests, leading = expired.read()
    own_manifests = _leave_out(manifests, mine, files, purged=item.needed[0].dropped)
    size = len(manifests)
    foreign_manifests = _leave_out(manifests, foreign, files)
    for_me, for_others = _leading(mine), _leading(foreign)
    leading = [file for file in leading if file_key(file.location) not in for_me]
    left = [file for file in leading if file_key(file.location) not in for_others]
    naming = tuple(manifest.path for manifest in manifests.values() if manifest.live_files != 0)
    left += [File(manifest.path, "manifest", manifest.length) for manifest in manifests.values()]
    return UnneededFiles(
        tuple({file_key(file.location): file for file in left}.values()),
        naming,
        own_manifests if naming else (),
        foreign_manifests if naming else (),
        shared=len(left) - len(manifests) < len(leading) or len(manifests) < size,
    )


def _leading(needs: Sequence[Needs]) -> set[str]:
    """Return the keys (`file_key`) of the needed manifest lists, statistics files and metadata files."""
    return {file_key(location) for one in needs for location in (*one.files, *one.lists)}


def _leave_out(
    manifests: dict[str, ListedManifest], needs: Sequence[Needs], files: Files, *, purged: bool = False
) -> tuple[str, ...]:
    """Remove from `manifests` those manifests that are still needed.

    The search reads manifest lists until `manifests` is empty. The oldest snapshots come first, because they share the
    most manifests with expired snapshots.

    Args:
        manifests: manifests of expired snapshots, by `file_key`.
        purged: whether manifest lists may be missing because a purge deleted them, with all files that they named.
    Returns:
        locations of those manifests found by the search that may list live files.
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
    """Yield, for each needed manifest list, the manifests in it. A list that several versions need is read once.

    The first result has the manifests that snapshots name directly, without a manifest list.

    Args:
        purged: whether missing manifest lists are skipped instead of raising `MissingFileError`.
    """
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
    """The files to which a table's expired snapshots refer."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._snapshots: list[SnapshotFacts] = []
        self._statistics: list[File] = []

    def add(self, reader: ObjectReader, pieces: RemovedPieces) -> None:
        """Add snapshots, and their statistics files, that were removed from the table or are about to be removed."""
        snapshots = reader.get_many(pieces.snapshots, Snapshot) if pieces.snapshots else {}
        self._snapshots += [read_snapshot(snapshots[id].text) for id in pieces.snapshots]
        texts = [
            *(one.text for one in reader.get_many(pieces.statistics, Statistics).values()),
            *(one.text for one in reader.get_many(pieces.partition_statistics, PartitionStatistics).values()),
        ]
        for file in map(_read_statistics, texts):
            self._statistics.append(File(file.statistics_path, "statistics", file.file_size_in_bytes))

    def read(self) -> tuple[dict[str, ListedManifest], list[File]]:
        """Return the manifests by `file_key`, and a list of the statistics files and manifest lists.

        A manifest list that is missing counts as empty: an earlier run deleted it, after the files that it lists.

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
    """Return the size of an existing file, in bytes; 0 if the location is empty (a snapshot without manifest list)."""
    path = local_path(location)
    if not location:
        return 0
    return path.stat().st_size if path is not None else len(files.io(location).new_input(location))
