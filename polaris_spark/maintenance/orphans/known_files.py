"""Known files: all files that the tables and views of a store reference.

An engine reads metadata, then manifest lists, then manifests. Each manifest list and each manifest is read once, even
if several snapshots, branches and tables reference it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from polaris_spark.catalog.branches.store_heads import StoreHead
from polaris_spark.catalog.drops.drops import Damage, Drop, drops_of
from polaris_spark.catalog.engine import Engine, Reach, Row, Rows
from polaris_spark.catalog.files.folders import Links
from polaris_spark.catalog.rows import NAMES
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import StoredObjects
from polaris_spark.index.ranges import key_ranges
from polaris_spark.maintenance.needed_files import Content, Needs, named_by_list, named_by_manifest, needs_of
from polaris_spark.maintenance.orphans.contents import contents_of, contents_of_drops
from polaris_spark.maintenance.orphans.decisions import Comparison, FileName, OwnedLocation
from polaris_spark.store.objects import ObjectStore

TABLES_PER_TASK = 200
COMMITS_PER_TASK = 1_000
TASKS_PER_CORE = 4
"""Number of tasks for each core. More than one balances the load, because tables and manifests differ in size."""

CONTENT, MANIFEST, LIST, METADATA, PLACE, BROKEN = range(6)
"""Kinds of rows. The first four are files, in the order of deletion: a file is deleted after the files that it names.
`PLACE` is a location that a table or view names; `BROKEN` is a table or view that cannot be read."""

NAME = "scheme string, authority string, path string"
"""Columns of a normalized location (`FileName`), by which files are compared."""
_FIRST = (
    f"kind int, location string, {NAME}, owner string, strict boolean, kept boolean, partitions string, "
    "unconfirmed boolean, problem string"
)
"""Columns of the rows for the files and locations that metadata names. `strict` is described in `Content`, and `kept`,
`partitions` (here a JSON array) and `unconfirmed` in `OwnedLocation`."""
_NEXT = f"source string, location string, {NAME}, problem string, missing boolean"
"""Columns of the rows for files in manifest lists and manifests. `source` is the manifest list or manifest."""


class Names:
    """Normalization of locations for comparison. Symbolic links to local folders are resolved only once per job."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._links = Links()

    def of(self, location: str) -> FileName:
        """Return a location, normalized for comparison, with symbolic links of local paths resolved."""
        name = self._comparison.of(location)
        return name._replace(path=self._without_links(location, name))

    def paths(self, location: str) -> tuple[str, ...]:
        """Return the normalized path of a location with symbolic links resolved, and the path without links resolved.

        Both are needed to compare results of several machines, which may have different links. If the two paths are
        equal, the result has one path.
        """
        name = self._comparison.of(location)
        return tuple({name.path, self._without_links(location, name)})

    def _without_links(self, location: str, name: FileName) -> str:
        if name.scheme in ("", "file"):
            return self._comparison.of(self._links.resolved(location)).path
        return name.path


def digest(text: str) -> int:
    """Return a digest of eight bytes, by which files are compared where their names take too much memory."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class KnownFilesTask(NamedTuple):
    """A part of the work of reading known files: some tables and views of a head, or some that were dropped from it.

    By default, a task reads the tables and views whose keys are in the range from `start` to `end`.
    """

    head: StoreHead
    start: bytes = b""
    end: bytes | None = None
    commits: tuple[int, int] | None = None
    """The numbers of the first and last commit of a range. If given, the task reads the tables and views that the
    commits in this range dropped."""
    drops: tuple[Drop, ...] = ()
    """If not empty, the task reads these dropped tables and views."""

    def contents(self, store: ObjectStore, oldest_purge_ms: int) -> Iterator[Content]:
        """Return the tables and views that the task reads.

        Args:
            oldest_purge_ms: see `kept_drops`.
        """
        if self.drops:
            return contents_of_drops(self.head, store, self.drops)
        if self.commits is None:
            return contents_of(self.head, store, self.start, self.end)
        return kept_drops(self.head, store, oldest_purge_ms, *self.commits)


def tasks_of(head: StoreHead, store: ObjectStore, splits: int) -> Iterator[KnownFilesTask]:
    """Yield the tasks that together read all tables and views of a head, and all that were dropped in its history.

    To split the work, this reads only the upper levels of the index `names`.

    Args:
        splits: maximum number of tasks for the tables and views of the head.
    """
    commit = store.get(head.head.commit, Commit)
    if NAMES in commit.index_names:
        root = commit.index_roots[commit.index_names.index(NAMES)]
        n = max(1, min(splits, -(-(root.count + len(root.keys)) // TABLES_PER_TASK)))
        for found in key_ranges(root, StoredObjects(store).read_shards, b"", None, n):
            yield KnownFilesTask(head, found.start, found.end)
    low, high = head.head.floor_number, head.head.number
    for first in range(low, high + 1, COMMITS_PER_TASK):
        yield KnownFilesTask(head, commits=(first, min(high, first + COMMITS_PER_TASK - 1)))


class KnownFiles:
    """The files and locations that tables and views reference, as rows in an engine that are computed only once."""

    def __init__(
        self,
        engine: Engine,
        names: Names,
        tasks: Sequence[KnownFilesTask],
        oldest_purge_ms: int,
        *,
        located: bool = False,
    ) -> None:
        """
        Args:
            names: rules for normalizing locations.
            tasks: the tables and views to read.
            oldest_purge_ms: see `kept_drops`.
            located: whether the method `located` will be called.
        """
        self._engine = engine
        contents = partial(_contents, names=names, oldest_purge_ms=oldest_purge_ms)
        self._first = engine.scan(contents, tasks, _FIRST, "reading tables").kept()
        lists = engine.query(
            f"SELECT DISTINCT location FROM {{first}} WHERE kind = {LIST}", first=self._first
        )
        self._lists = self._read(partial(_named, kind=LIST, names=names, located=True), lists)
        manifests = engine.query(
            f"SELECT location FROM {{first}} WHERE kind = {MANIFEST} "
            "UNION SELECT location FROM {lists} WHERE problem IS NULL",
            first=self._first,
            lists=self._lists,
        )
        self._manifests = self._read(partial(_named, kind=MANIFEST, names=names, located=located), manifests)

    def _read(self, function: Callable[[Reach, Iterator[Row]], Iterator[Row]], files: Rows) -> Rows:
        found = self._engine.apply(
            function, files, _NEXT, tasks_per_core=TASKS_PER_CORE, doing="reading manifests"
        )
        return found.kept()

    def _query(self, sql: str, **others: Rows) -> Rows:
        return self._engine.query(
            sql,
            first=self._first,
            lists=self._lists,
            manifests=self._manifests,
            **others,
        )

    def _naming(self) -> Rows:
        """Return the tables and views that reference each manifest list and each manifest.

        The columns are `source` (the manifest list or manifest), `owner` and `strict`.
        """
        return self._query(
            f"SELECT location AS source, owner, strict FROM {{first}} WHERE kind IN ({LIST}, {MANIFEST}) "
            "UNION SELECT lists.location, owner, strict FROM {lists} lists "
            f"JOIN {{first}} first ON source = first.location WHERE kind = {LIST} AND lists.problem IS NULL"
        )

    def names(self) -> Rows:
        """Return the normalized location of every referenced file, with the columns of `NAME`.

        The result may contain duplicates.
        """
        return self._query(
            f"SELECT scheme, authority, path FROM {{first}} WHERE kind <= {METADATA} "
            "UNION ALL SELECT scheme, authority, path FROM {lists} WHERE problem IS NULL "
            "UNION ALL SELECT scheme, authority, path FROM {manifests} WHERE problem IS NULL"
        )

    def located(self) -> Rows:
        """Return one row for each pair of a file and a table or view that references the file.

        The columns are `location` (as written in metadata), `kind`, `owner` and `path` (normalized).
        """
        further = (
            f"UNION ALL SELECT location, {kind} AS kind, owner, path FROM {{{rows}}} found "
            "JOIN {naming} naming ON found.source = naming.source WHERE problem IS NULL"
            for rows, kind in (("lists", MANIFEST), ("manifests", CONTENT))
        )
        first = f"SELECT location, kind, owner, path FROM {{first}} WHERE kind <= {METADATA}"
        return self._query(" ".join((first, *further)), naming=self._naming())

    def places(self) -> Rows:
        """Return the locations that tables and views name.

        The columns are `place_scheme`, `place_authority`, `folder` (a normalized path), `owner`, `kept`, `partitions`
        and `unconfirmed`. `place_of` converts a row to an `OwnedLocation`.
        """
        return self._query(
            "SELECT DISTINCT scheme AS place_scheme, authority AS place_authority, path AS folder, owner, kept, "
            f"partitions, unconfirmed FROM {{first}} WHERE kind = {PLACE}"
        )

    def broken(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return two dicts from owners (tables and views) to problems.

        The first dict has the owners whose metadata, manifest lists or manifests cannot be read. The second dict has
        the owners with missing manifest lists or manifests. It leaves out dropped tables, because their files may have
        been deleted.
        """
        unread = self._query(
            "SELECT source, problem, missing FROM {lists} WHERE problem IS NOT NULL "
            "UNION ALL SELECT source, problem, missing FROM {manifests} WHERE problem IS NOT NULL"
        )
        rows: list[Row] = []
        if self._engine.query("SELECT source FROM {unread} LIMIT 1", unread=unread).collect():
            owners = "SELECT owner, max(owner || ': ' || problem), missing FROM {unread} unread "
            joined = "JOIN {naming} naming ON unread.source = naming.source WHERE strict OR NOT missing "
            grouped = f"{owners}{joined}GROUP BY owner, missing"
            rows += self._query(grouped, unread=unread, naming=self._naming()).collect()
        rows += self._query(
            f"SELECT owner, problem, false AS missing FROM {{first}} WHERE kind = {BROKEN}"
        ).collect()
        return (
            {owner: problem for owner, problem, missing in rows if not missing},
            {owner: problem for owner, problem, missing in rows if missing},
        )

    def release(self) -> None:
        """Free the memory and disk space of the rows. This object cannot be used afterwards."""
        for rows in (self._first, self._lists, self._manifests):
            rows.release()


def place_of(row: Row) -> OwnedLocation:
    """Convert a row of `KnownFiles.places` to an `OwnedLocation`."""
    *name, owner, kept, partitions, unconfirmed = row
    return OwnedLocation(FileName(*name), owner, bool(kept), tuple(json.loads(partitions)), bool(unconfirmed))


def _contents(reach: Reach, task: KnownFilesTask, *, names: Names, oldest_purge_ms: int) -> Iterator[Row]:
    """Yield the files and locations in the metadata of a task's tables and views, with the columns of `_FIRST`."""
    store = reach.own.of_realm(task.head.realm).for_deleting()
    for content in task.contents(store, oldest_purge_ms):
        needs = needs_of(content, StoredObjects(store), reach.files)
        own = (content.owner, content.strict)
        for kind, locations in ((METADATA, needs.files), (LIST, needs.lists), (MANIFEST, needs.manifests)):
            for location in locations:
                yield kind, location, *names.of(location), *own, None, None, None, None
        for place in places_of(content, needs, names):
            partitions = json.dumps(place.partitions)
            yield PLACE, None, *place.name, *own, place.kept, partitions, place.unconfirmed, None
        if needs.problem and (content.strict or not needs.missing):
            yield BROKEN, None, None, None, None, *own, None, None, None, needs.problem


def _named(reach: Reach, rows: Iterator[Row], *, kind: int, names: Names, located: bool) -> Iterator[Row]:
    """Yield the files in manifest lists or manifests, with the columns of `_NEXT`.

    Args:
        rows: the locations of manifest lists or manifests.
        kind: `LIST` to read manifest lists, `MANIFEST` to read manifests.
        located: whether to fill the columns `source` and `location` for files; otherwise they are null.
    """
    read = named_by_list if kind == LIST else named_by_manifest
    for (source,) in rows:
        named = read(reach.files, source)
        if named.problem:
            yield source, None, None, None, None, named.problem, named.missing
        for location in named.locations:
            written = (source, location) if located else (None, None)
            yield *written, *names.of(location), None, None


def places_of(content: Content, needs: Needs, names: Names) -> Iterator[OwnedLocation]:
    """Yield the locations that a table or view names, whether or not it owns them."""
    kept = content.moved or not needs.collected
    for location in (*needs.places, *needs.unconfirmed):
        name = place_name(location, names)
        yield OwnedLocation(name, content.owner, kept, needs.partitions, location in needs.unconfirmed)


def place_name(location: str, names: Names) -> FileName:
    """Return a table's location, normalized for comparison with files.

    A location without a scheme is treated as a `file` URI, because listing a local folder returns `file` URIs.
    """
    return names.of(f"file://{location}" if location.startswith("/") else location)


def kept_drops(
    head: StoreHead, store: ObjectStore, oldest_purge_ms: int, low: int | None = None, high: int | None = None
) -> Iterator[Content]:
    """Yield the tables and views that were dropped in a history and whose files must still be kept
    (`catalog.drops.drops`).

    If the realm was moved to another store, its later tables there use the same warehouse. A `Content` that stands for
    the whole warehouse is then yielded, too. For a part of the log that cannot be read, a `Content` with a `problem` is
    yielded, because any table may have been dropped in that part.

    Args:
        oldest_purge_ms: time in milliseconds since 1970, computed with the session's grace period;
            `head.grace_beyond_ms` is subtracted from it. Tables and views that were dropped with PURGE are yielded only
            if they were dropped after the resulting time.
        low: number of the first commit to read, by default the history floor (the oldest commit that is kept).
        high: number of the last commit to read, by default the head.
    """
    damaged: list[Damage] = []

    def kept() -> Iterator[Drop]:
        for found in drops_of(store, head, low, high):
            if isinstance(found, Damage):
                damaged.append(found)
            elif found.keeps_files(oldest_purge_ms - head.grace_beyond_ms):
                yield found

    warehouse = head.properties.get("warehouse", "") if head.moved else ""
    if warehouse and low in (None, head.head.floor_number):
        yield Content(head.catalog, None, moved=True, warehouse=warehouse)
    yield from contents_of_drops(head, store, kept())
    yield from (Content(one.owner, None, problem=one.problem) for one in damaged)
