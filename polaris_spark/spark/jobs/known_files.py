"""All files that a store's tables and views reference. Executors read metadata, then manifest lists, then manifests.

Each manifest list and each manifest is read once, even if several snapshots, branches and tables reference it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from polaris_spark.catalog.drops import Drop
from polaris_spark.catalog.engine import Reach
from polaris_spark.catalog.files import Files
from polaris_spark.catalog.rows import NAMES
from polaris_spark.catalog.store_heads import StoreHead
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import StoredObjects
from polaris_spark.maintenance.needed_files import Content, Manifests, NamedLocations, needs_of
from polaris_spark.maintenance.orphans import known_files
from polaris_spark.maintenance.orphans.contents import contents_of, contents_of_drops
from polaris_spark.maintenance.orphans.known_files import Names, kept_drops, places_of
from polaris_spark.spark.engine import SparkEngine, frame_of
from polaris_spark.store.objects import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

TABLES_PER_TASK = 200
COMMITS_PER_TASK = 1_000
TASKS_PER_CORE = 4
"""Tasks for each core when manifests are read. Manifests differ in size, so more tasks than cores balance the load."""

FILE, LIST, MANIFEST, PLACE, BROKEN = "file", "list", "manifest", "place", "broken"

NAMED = "scheme string, authority string, path string"
"""Columns of a normalized file name, by which files are compared."""
_FIRST = (
    f"kind string, location string, {NAMED}, owner string, strict boolean, kept boolean, "
    "partitions array<string>, unconfirmed boolean, problem string, missing boolean"
)
_NEXT = f"source string, location string, {NAMED}, problem string, missing boolean"
_ROWS = 4_096

Row = dict[str, Any]


class KnownFilesTask(NamedTuple):
    """A range of a head's tables and views, or the tables and views that a range of its commits dropped."""

    head: StoreHead
    start: bytes = b""
    end: bytes | None = None
    commits: tuple[int, int] | None = None
    """First and last commit number of a task that reads history; None for other tasks."""
    drops: tuple[Drop, ...] = ()
    """Dropped tables and views of a task that reads only these; empty for other tasks."""

    def contents(self, store: ObjectStore, oldest_purge_ms: int) -> Iterator[Content]:
        """Return the tables and views that the task reads."""
        if self.drops:
            return contents_of_drops(self.head, store, self.drops)
        if self.commits is None:
            return contents_of(self.head, store, self.start, self.end)
        return kept_drops(self.head, store, oldest_purge_ms, *self.commits)


def tasks_of(head: StoreHead, store: ObjectStore, splits: int) -> list[KnownFilesTask]:
    """Return the tasks that cover a head and its history. Only the upper levels of the index `names` are read."""
    # Imported here, because views import PySpark, and this module is also imported where no Spark job runs.
    from polaris_spark.spark.views.entities import key_ranges
    from polaris_spark.spark.views.view import partition_count

    commit = store.get(head.head.commit, Commit)
    tasks = []
    if NAMES in commit.index_names:
        root = commit.index_roots[commit.index_names.index(NAMES)]
        n = partition_count(splits, root.count + len(root.keys), TABLES_PER_TASK)
        ranges = key_ranges(root, StoredObjects(store).read_shards, b"", None, n)
        tasks += [KnownFilesTask(head, found.start, found.end) for found in ranges]
    low, high = head.head.floor_number, head.head.number
    for first in range(low, high + 1, COMMITS_PER_TASK):
        tasks.append(KnownFilesTask(head, commits=(first, min(high, first + COMMITS_PER_TASK - 1))))
    return tasks


class KnownFiles:
    """The files and locations that tables and views reference, as DataFrames that are computed once."""

    def __init__(
        self,
        engine: SparkEngine,
        names: Names,
        tasks: Sequence[KnownFilesTask],
        oldest_purge_ms: int,
        *,
        located: bool = False,
    ) -> None:
        """
        Args:
            names: rules for normalizing names.
            oldest_purge_ms: see `known_files.kept_drops`.
            located: whether the method `located` will be called.
        """
        from pyspark.sql.functions import col

        read = partial(_contents, names=names, oldest_purge_ms=oldest_purge_ms)
        n = TASKS_PER_CORE * engine.parts
        self._first = frame_of(engine.scan(read, list(tasks), _FIRST)).persist()
        lists = self._first.where(col("kind") == LIST).select("location").distinct().repartition(n)
        read_lists = partial(_named, kind=LIST, names=names, located=True)
        self._lists = engine.batches(read_lists, lists, _NEXT).persist()
        direct = self._first.where(col("kind") == MANIFEST).select("location")
        manifests = (
            self._lists.where("problem IS NULL").select("location").union(direct).distinct().repartition(n)
        )
        read_manifests = partial(_named, kind=MANIFEST, names=names, located=located)
        self._manifests = engine.batches(read_manifests, manifests, _NEXT).persist()

    def names(self) -> DataFrame:
        """Return the normalized name of every file, with the columns of `NAMED`. It may contain duplicates."""
        columns = ("scheme", "authority", "path")
        files = self._first.where(f"kind IN ('{FILE}', '{LIST}', '{MANIFEST}')").select(*columns)
        for found in (self._lists, self._manifests):
            files = files.union(found.where("problem IS NULL").select(*columns))
        return files

    def located(self) -> DataFrame:
        """Return every distinct location as it is written in metadata, with its normalized `path`, `rank` and `owners`.

        The owners are the tables and views that reference the location.
        """
        from pyspark.sql.functions import collect_set, max

        named = self._first.where(f"kind IN ('{FILE}', '{LIST}', '{MANIFEST}')").selectExpr(
            "location",
            "path",
            "owner",
            f"CASE kind WHEN '{FILE}' THEN {known_files.METADATA} "
            f"WHEN '{LIST}' THEN {known_files.LIST} ELSE {known_files.MANIFEST} END AS rank",
        )
        for found, rank in ((self._lists, known_files.MANIFEST), (self._manifests, known_files.CONTENT)):
            naming = named.selectExpr("location AS source", "owner").distinct()
            further = found.where("problem IS NULL").join(naming, "source")
            named = named.union(further.selectExpr("location", "path", "owner", f"{rank} AS rank"))
        return named.groupBy("location", "path").agg(
            max("rank").alias("rank"), collect_set("owner").alias("owners")
        )

    def places(self) -> DataFrame:
        """Return the locations that tables and views own.

        The columns are `storage` (scheme and authority), `folder` (a normalized path), `owner`, `kept`, `partitions`
        and `unconfirmed`.
        """
        places = self._first.where(f"kind = '{PLACE}'")
        storage = "struct(scheme, authority) AS storage"
        return places.selectExpr(
            storage, "path AS folder", "owner", "kept", "partitions", "unconfirmed"
        ).distinct()

    def broken(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return two mappings from owners to problems.

        The first has the owners whose metadata, manifest lists or manifests cannot be read. The second has the owners
        whose manifest lists or manifests are missing although they must exist.
        """
        own = self._first.where(f"kind = '{BROKEN}'").selectExpr(
            "owner", "NULL AS source", "problem", "missing"
        )
        for found in (self._lists, self._manifests):
            own = own.union(
                found.where("problem IS NOT NULL").selectExpr("NULL", "source", "problem", "missing")
            )
        rows = own.collect()
        told = {row.owner: row.problem for row in rows if row.owner is not None}
        unread = {row.source: (row.problem, row.missing) for row in rows if row.source is not None}
        broken, incomplete = self._owners(unread) if unread else ({}, {})
        return broken | told, incomplete

    def _owners(self, unread: dict[str, tuple[str, bool]]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the owners of unreadable manifest lists and manifests, and the owners of missing ones that must exist.

        Args:
            unread: problem of each unreadable or missing file, and whether it is missing, by location.
        """
        from pyspark.sql.functions import col

        named = self._first.where(f"kind IN ('{LIST}', '{MANIFEST}')")
        direct = named.selectExpr("location AS unread", "owner", "strict")
        lists = self._lists.selectExpr("location AS unread", "source")
        listed = lists.join(named, lists.source == named.location).select("unread", "owner", "strict")
        rows = direct.union(listed).where(col("unread").isin(list(unread))).distinct().collect()
        broken: dict[str, str] = {}
        incomplete: dict[str, str] = {}
        for row in rows:
            problem, missing = unread[row.unread]
            if row.strict or not missing:
                (incomplete if missing else broken)[row.owner] = f"{row.owner}: {problem}"
        return broken, incomplete

    def release(self) -> None:
        """Release the executors' memory."""
        for frame in (self._first, self._lists, self._manifests):
            frame.unpersist()


def _contents(
    reach: Reach, task: KnownFilesTask, *, names: Names, oldest_purge_ms: int
) -> Iterator[tuple[Any, ...]]:
    """Yield the files and locations that the metadata of a task's tables and views references."""
    store = reach.own.of_realm(task.head.realm)
    contents = task.contents(store, oldest_purge_ms)
    columns = [column.split(" ")[0] for column in _FIRST.split(", ")]
    for row in _rows(contents, store, reach.files, names):
        yield tuple(map(row.get, columns))


def _rows(contents: Iterable[Content], store: ObjectStore, files: Files, names: Names) -> Iterator[Row]:
    for content in contents:
        needs = needs_of(content, StoredObjects(store), files)
        own = {"owner": content.owner, "strict": content.strict}
        for kind, locations in ((FILE, needs.files), (LIST, needs.lists), (MANIFEST, needs.manifests)):
            for location in locations:
                yield {"kind": kind, "location": location, **names.of(location)._asdict(), **own}
        for place in places_of(content, needs, names):
            partitions = list(place.partitions)
            name = place.name._asdict()
            flags = {"kept": place.kept, "unconfirmed": place.unconfirmed}
            yield {"kind": PLACE, "partitions": partitions, **flags, **name, **own}
        if needs.problem and (content.strict or not needs.missing):
            yield {"kind": BROKEN, "problem": needs.problem, "missing": needs.missing, **own}


def _named(
    reach: Reach, batches: Iterable[pa.RecordBatch], *, kind: str, names: Names, located: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the files that manifest lists or manifests list.

    Args:
        located: whether the output contains the original locations, and the files that list them.
    """
    manifests = Manifests(reach.files)
    read = manifests.of_list if kind == LIST else manifests.of_manifest
    for batch in batches:
        rows = _named_rows(batch.column(0).to_pylist(), read, names, located=located)
        yield from in_batches(rows, _NEXT)


def _named_rows(
    locations: Iterable[str], read: Callable[[str], NamedLocations], names: Names, *, located: bool
) -> Iterator[Row]:
    for source in locations:
        named = read(source)
        if named.problem:
            yield {"source": source, "problem": named.problem, "missing": named.missing}
        for location in named.locations:
            kept = {"source": source, "location": location} if located else {}
            yield {**kept, **names.of(location)._asdict()}


def in_batches(rows: Iterator[Row], schema: str) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches of a schema. Columns that a row lacks are null."""
    import pyarrow as pa

    columns = [column.split(" ") for column in schema.split(", ")]
    arrow = pa.schema([(name, _TYPES[type](pa)) for name, type in columns])
    while run := list(islice(rows, _ROWS)):
        yield pa.RecordBatch.from_pylist(run, arrow)


_TYPES: dict[str, Callable[[Any], Any]] = {
    "string": lambda pa: pa.string(),
    "boolean": lambda pa: pa.bool_(),
    "bigint": lambda pa: pa.int64(),
    "array<string>": lambda pa: pa.list_(pa.string()),
}
