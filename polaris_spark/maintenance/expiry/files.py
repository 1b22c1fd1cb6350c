"""Which files only expired snapshots need: work on one table at a time.

As in Iceberg's `ReachableFileCleanup`, only what differs is read: the manifest lists of expired snapshots; those of
others until no manifest is left that only expired snapshots list; the entries of such manifests; and the entries of the
others only if any of these still names a file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec

from polaris_spark.catalog.contents import content_of
from polaris_spark.catalog.expiring import ExpiredSnapshots, SnapshotFacts, read_snapshot
from polaris_spark.catalog.files import Files, local_path
from polaris_spark.catalog.manifest_entries import ListedManifest, snapshot_manifests
from polaris_spark.catalog.metadata import ObjectReader
from polaris_spark.catalog.metadata.pieces import placed
from polaris_spark.catalog.metadata.rows import PartitionStatistics, Snapshot, Statistics, Table
from polaris_spark.catalog.rows import Unloaded
from polaris_spark.errors import MissingFileError, PolarisError
from polaris_spark.index import Index
from polaris_spark.maintenance.expiry.deciding import Asked, decide_table
from polaris_spark.maintenance.expiry.names import NamingWork, file_key
from polaris_spark.maintenance.spreading import Reach, Work

Kind = Literal["data", "position-deletes", "equality-deletes", "manifest", "manifest-list", "statistics"]


class File(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file that only expired snapshots need."""

    location: str
    kind: Kind
    bytes: int
    """As far as it is known, else 0."""


# Deciding


class ToDecide(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A table to decide on."""

    number: int
    content: int
    namespace: int
    """Position of the properties of its namespaces and catalog."""


class Decided(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What expires of a table."""

    number: int
    snapshots: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()
    schemas: tuple[int, ...] = ()
    specs: tuple[int, ...] = ()
    left_alone: str = ""
    """Why nothing may expire, or why that is not known."""


class DecideTables(Work[ToDecide, Decided]):
    """Decides what expires of tables."""

    few = 1_000
    item = ToDecide
    result = Decided

    def __init__(self, realm: str, asked: Asked, levels: Sequence[Sequence[Mapping[str, str]]]) -> None:
        """
        Args:
            realm: its instance id.
            levels: properties of namespaces, from the nearest upwards, and of the catalog, by position.
        """
        self.realm = realm
        self.asked = asked
        self.levels = levels

    def __call__(self, reach: Reach, item: ToDecide) -> Decided:
        reader = reach.objects(self.realm)
        try:
            table = content_of(reader, item.content, Table)
            if isinstance(table, Unloaded):
                return Decided(item.number, left_alone="imported, and not loaded yet")
            specs_of = _Lists(reach.files).specs_of
            found = decide_table(table, reader, self.levels[item.namespace], self.asked, specs_of)
        except PolarisError as error:
            return Decided(item.number, left_alone=str(error))
        if found is None:
            return Decided(item.number, left_alone="gc.enabled is false")
        return Decided(item.number, *found)


# Finding


class Content(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A version of a table that needs its files."""

    realm: str
    """Instance id."""
    id: int
    without: tuple[int, ...] = ()
    """Snapshots that are to be removed from it, and need nothing any more."""
    dropped: bool = False
    """Whether the table was dropped since: a purge may have deleted files of it."""


class ToExamine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A table with expired snapshots."""

    number: int
    realm: str
    """Instance id."""
    records: tuple[int, ...]
    """`ExpiredSnapshots`; the snapshots that `needed` is to be without are expired as well."""
    needed: tuple[Content, ...]
    """The table as it is, then every version of it or of another table that shares its place: their files stay."""


class Examined(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a table's expired snapshots leave."""

    number: int
    files: tuple[File, ...] = ()
    """Manifests, manifest lists and statistics that nothing needs."""
    manifests: tuple[str, ...] = ()
    """Those of them that name content files."""
    own: tuple[str, ...] = ()
    """Manifests that the table needs, and that may name the same content files."""
    foreign: tuple[str, ...] = ()
    """Such manifests that only other tables, or versions of it, need."""
    shared: bool = False
    """Whether some of what the expired snapshots name is needed by others alone."""
    problem: str = ""
    """Why it is not known: then everything stays."""


class Examine(NamingWork[ToExamine, Examined]):
    """Finds what differs between the expired snapshots of a table and those that stay."""

    few = 64
    item = ToExamine
    result = Examined

    def __call__(self, reach: Reach, item: ToExamine) -> Examined:
        try:
            return _examined(reach, item)
        except (PolarisError, OSError, ValueError) as error:
            return Examined(item.number, problem=str(error))


def _examined(reach: Reach, item: ToExamine) -> Examined:
    own = reach.objects(item.realm)
    expired, mine, foreign = _Facts(), _Facts(), _Facts()
    for record in own.get_many(item.records, ExpiredSnapshots).values():
        expired.add_record(record, own)
    for position, content in enumerate(item.needed):
        reader = reach.objects(content.realm)
        table = content_of(reader, content.id, Table)
        if isinstance(table, Unloaded):
            return Examined(
                item.number, problem=f"{table.metadata_location} shares its place and is not loaded yet"
            )
        gone = frozenset(content.without)
        (foreign if position else mine).add_table(table, reader, gone, inside=False)
        if gone:
            expired.add_table(table, reader, gone, inside=True)
    lists = _Lists(reach.files)
    files = [File(at, "statistics", size) for at, size in expired.statistics.items()]
    manifests: dict[str, ListedManifest] = {}
    for snapshot in expired.snapshots:
        found = lists.of_expired(snapshot)
        manifests |= found.manifests
        if snapshot.manifest_list:
            files.append(File(snapshot.manifest_list, "manifest-list", found.bytes))
    dropped = item.needed[0].dropped
    own_manifests = _leave_out(manifests, mine, lists, purged=dropped)
    size = len(manifests)
    foreign_manifests = _leave_out(manifests, foreign, lists)
    files = [file for file in files if file_key(file.location) not in mine.files]
    left = [file for file in files if file_key(file.location) not in foreign.files]
    naming = tuple(manifest.path for manifest in manifests.values() if manifest.live_files != 0)
    left += [File(manifest.path, "manifest", manifest.length) for manifest in manifests.values()]
    return Examined(
        item.number,
        tuple({file_key(file.location): file for file in left}.values()),
        naming,
        own_manifests if naming else (),
        foreign_manifests if naming else (),
        shared=len(left) - len(manifests) < len(files) or len(manifests) < size,
    )


def _leave_out(
    manifests: dict[str, ListedManifest], needed: _Facts, lists: _Lists, *, purged: bool = False
) -> tuple[str, ...]:
    """Take from `manifests` those that are needed; gives what else is needed and may name the same files.

    It ends as soon as no manifest is left: the oldest snapshots, which come first, have most in common.
    """
    others: dict[str, ListedManifest] = {}
    for snapshot in needed.snapshots:
        if not manifests:
            break
        listed = lists.of_expired(snapshot).manifests if purged else lists.of_needed(snapshot)
        others |= listed
        for key in listed:
            manifests.pop(key, None)
    return tuple(manifest.path for manifest in others.values() if manifest.live_files != 0)


class _Facts:
    """Snapshots and statistics files of some versions of a table, the oldest snapshot first."""

    def __init__(self) -> None:
        self.snapshots: list[SnapshotFacts] = []
        self.statistics: dict[str, int] = {}

    @cached_property
    def files(self) -> set[str]:
        """Keys of their manifest lists and statistics files."""
        lists = (snapshot.manifest_list for snapshot in self.snapshots if snapshot.manifest_list)
        return {file_key(location) for location in (*self.statistics, *lists)}

    def add_record(self, record: ExpiredSnapshots, reader: ObjectReader) -> None:
        """Add what a commit removed."""
        self._add(reader, record.snapshots, record.statistics, record.partition_statistics)

    def add_table(self, table: Table, reader: ObjectReader, ids: Collection[int], *, inside: bool) -> None:
        """Add the snapshots of a table whose ids are among `ids`, or are not."""
        roots = (table.snapshots, table.statistics, table.partition_statistics)
        pieces = [
            [
                pointer
                for _, pointer in sorted(
                    (order, pointer)
                    for id, pointer, order in placed(Index(root, reader.read_shards))
                    if (id in ids) == inside
                )
            ]
            for root in roots
        ]
        self._add(reader, *pieces)

    def _add(
        self,
        reader: ObjectReader,
        snapshots: Collection[int],
        statistics: Collection[int],
        partition_statistics: Collection[int],
    ) -> None:
        found = reader.get_many(snapshots, Snapshot) if snapshots else {}
        self.snapshots += [read_snapshot(found[id].text) for id in snapshots]
        texts = [
            *(one.text for one in reader.get_many(statistics, Statistics).values()),
            *(one.text for one in reader.get_many(partition_statistics, PartitionStatistics).values()),
        ]
        for text in texts:
            file = _read_statistics(text)
            self.statistics[file.statistics_path] = file.file_size_in_bytes


class _StatisticsFile(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    statistics_path: str
    file_size_in_bytes: int = 0


_read_statistics = msgspec.json.Decoder(_StatisticsFile).decode


class _Listed(NamedTuple):
    bytes: int
    manifests: dict[str, ListedManifest]


class _Lists:
    """Reads what snapshots list."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def of_expired(self, snapshot: SnapshotFacts) -> _Listed:
        """The manifests of a snapshot, and the size of its list; a list that is not there any more was deleted, which
        is done after what it names.

        Raises:
            UnreadableFileError: it cannot be read.
        """
        try:
            manifests = self.of_needed(snapshot)
            return _Listed(_size(self._files, snapshot.manifest_list or ""), manifests)
        except (FileNotFoundError, MissingFileError):
            return _Listed(0, {})

    def of_needed(self, snapshot: SnapshotFacts) -> dict[str, ListedManifest]:
        """The manifests of a snapshot by `file_key`.

        Raises:
            UnreadableFileError: its list cannot be read.
        """
        facts = {"manifest-list": snapshot.manifest_list, "manifests": snapshot.manifests}
        return {file_key(manifest.path): manifest for manifest in snapshot_manifests(self._files, facts)}

    def specs_of(self, snapshot: SnapshotFacts) -> set[int]:
        """The partition specs of a snapshot's manifests.

        Raises:
            UnreadableFileError: they cannot be read.
        """
        return {manifest.spec_id for manifest in self.of_needed(snapshot).values()}


def _size(files: Files, location: str) -> int:
    """Bytes of a file that is there; 0 for a snapshot without a list."""
    path = local_path(location)
    if not location:
        return 0
    return path.stat().st_size if path is not None else len(files.io(location).new_input(location))
