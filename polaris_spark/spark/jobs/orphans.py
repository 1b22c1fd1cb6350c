"""Orphan files as Spark jobs: executors list folders, read which files tables reference, and delete orphans.

`maintenance.orphans.search` describes the order of the steps, and why it is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from polaris_spark.catalog.engine import Reach
from polaris_spark.catalog.folders import Contents, Folders
from polaris_spark.catalog.store_heads import StoreHead
from polaris_spark.errors import BadRequestError, PolarisError
from polaris_spark.maintenance.orphans.decisions import FileName, Mismatch, OwnedLocation, judge
from polaris_spark.maintenance.orphans.known_files import Names
from polaris_spark.maintenance.orphans.search import (
    Broken,
    Doomed,
    DoomedJudge,
    FoundDoomed,
    Orphan,
    Search,
    SearchResult,
    broken_of,
    in_phases,
    refuse_mismatches,
    unlisted_ones,
)
from polaris_spark.spark.engine import SparkEngine
from polaris_spark.spark.jobs.known_files import NAMED, KnownFiles, KnownFilesTask, Row, in_batches, tasks_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_DEPTH = 4
"""Maximum number of folder levels that the driver lists itself, to find enough folders for all tasks."""
_FOLDERS_PER_CORE = 16
_TASKS_PER_CORE = 4

_LISTED = f"location string, size bigint, modified bigint, root string, {NAMED}, problem string"
"""A row is a file, or a folder with the problem why it cannot be listed."""
_ORPHANS = "location string, size bigint, modified bigint, owner string"
_DOOMED = f"{_ORPHANS}, rank bigint, owners array<string>"

_ANCESTORS = """concat(array('/'), transform(
    filter(sequence(1, size(split(path, '/'))), i -> i > 1 AND i < size(split(path, '/'))),
    i -> array_join(slice(split(path, '/'), 1, i), '/')))"""
"""SQL expression for all folders above a normalized path, from the root down."""


class SparkSearch:
    """A `FileSearch` on executors."""

    def __init__(self, engine: SparkEngine) -> None:
        self._engine = engine
        self._cores = engine.parts
        self._listed: DataFrame | None = None
        self._unlisted: dict[str, str] = {}
        """Folders that the driver cannot list, each with the reason."""

    def list_files(self, search: Search) -> None:
        """List the folders of a search, and keep the files found."""
        import pyarrow as pa

        self._unlisted = {}
        folders = [
            found
            for root in search.roots
            for found in _spread(
                Folders(self._engine.reach.files),
                root,
                self._cores,
                partial(_skip, root, self._unlisted),
            )
        ]
        table = pa.Table.from_pylist(
            [{"folder": folder, "root": root, "deep": deep} for folder, root, deep in folders],
            pa.schema([("folder", pa.string()), ("root", pa.string()), ("deep", pa.bool_())]),
        )
        # Folders differ in size: more tasks than cores balance the load.
        tasks = max(1, min(len(folders), _FOLDERS_PER_CORE * self._cores))
        frame = self._engine.spark.createDataFrame(table).repartition(tasks)
        self._listed = self._engine.batches(partial(_list, search=search), frame, _LISTED).persist()
        self._listed.count()  # list now, because heads must be read after listing

    def _known(self, search: Search, heads: Sequence[StoreHead]) -> KnownFiles:
        own, splits = self._engine.reach.own, _TASKS_PER_CORE * self._cores
        tasks = [task for head in heads for task in tasks_of(head, own.of_realm(head.realm), splits)]
        return KnownFiles(self._engine, search.names, tasks, search.oldest_purge_ms)

    def find_doomed(self, search: Search, heads: Sequence[StoreHead], doomed: Doomed) -> FoundDoomed:
        """Return the files of dropped tables that no table or view needs."""
        known = self._known(search, heads)
        tasks = [KnownFilesTask(doomed.head, drops=(drop,)) for drop in doomed.drops]
        named = KnownFiles(self._engine, search.names, tasks, search.oldest_purge_ms, located=True)
        try:
            broken, incomplete = known.broken()
            told = self._told(broken, incomplete, known.places())
            if broken:
                return in_phases([], told)
            around = known.places().union(named.places().where("unconfirmed"))
            unneeded = _outside_places(_unneeded(named.located(), known.names()), around)
            look = partial(_look, doomed=doomed, names=search.names)
            found = self._engine.batches(look, unneeded, _DOOMED).orderBy("rank")
            rows = found.limit(_most(search)).collect()
            ranked = [
                (row.rank, Orphan(row.location, row.size, row.modified, row.owner), row.owners)
                for row in rows
            ]
            return in_phases(ranked, told)
        finally:
            known.release()
            named.release()

    def find(self, search: Search, heads: Sequence[StoreHead]) -> SearchResult:
        """Return the orphans among the listed files."""
        assert self._listed is not None
        known = self._known(search, heads)
        try:
            return self._found(search, known)
        finally:
            known.release()
            self._listed.unpersist()

    def _found(self, search: Search, known: KnownFiles) -> SearchResult:
        assert self._listed is not None
        names = known.names().selectExpr(
            "path AS known_path", "scheme AS known_scheme", "authority AS known_authority"
        )
        files = self._listed.where("problem IS NULL").drop("problem")
        problems = self._listed.where("problem IS NOT NULL").select("location", "problem").collect()
        unlisted = self._unlisted | {row.location: row.problem for row in problems}
        unknown = self._unknown(files, names, search.mismatch).persist()
        broken, incomplete = known.broken()
        judge_all = _Judge(search, set(broken), set(incomplete))
        judged = _with_places(unknown, known.places()).mapInArrow(judge_all, _ORPHANS)
        rows = judged.limit(_most(search)).collect()
        orphans = sorted(Orphan(row.location, row.size, row.modified, row.owner) for row in rows)
        unknown.unpersist()
        told = self._told(broken, incomplete, known.places())
        return SearchResult(orphans, [*unlisted_ones(unlisted), *told])

    def _unknown(self, files: DataFrame, names: DataFrame, mismatch: Mismatch) -> DataFrame:
        """Return the listed files that no table or view references.

        Raises:
            InputError: `mismatch` is `ERROR`, and a file's path is referenced with another scheme or authority.
        """
        from pyspark.sql.functions import col, expr

        same_path = col("path") == col("known_path")
        same_prefix = expr("known_scheme IN ('', scheme) AND known_authority IN ('', authority)")
        unknown = files.join(names, same_path & same_prefix, "left_anti")
        if mismatch is Mismatch.DELETE:
            return unknown
        if mismatch is Mismatch.IGNORE:
            return unknown.join(names, same_path, "left_anti")
        pairs = unknown.join(names, same_path).selectExpr(
            "concat(known_scheme, '://', known_authority) AS known",
            "concat(scheme, '://', authority) AS listed",
        )
        refuse_mismatches([(row.known, row.listed) for row in pairs.distinct().limit(10).collect()], mismatch)
        return unknown

    def _told(self, broken: dict[str, str], incomplete: dict[str, str], places: DataFrame) -> list[Broken]:
        if not broken and not incomplete:
            return []
        from pyspark.sql.functions import col

        owned: dict[str, set[str]] = {}
        for row in places.where(col("owner").isin([*broken, *incomplete])).collect():
            owned.setdefault(row.owner, set()).add(row.folder)
        return broken_of(broken, incomplete, lambda owner: owned.get(owner, ()))


def _most(search: Search) -> int:
    """Return the maximum number of rows to collect, limited to the maximum of `DataFrame.limit`."""
    return min(search.max_files, 2**31 - 1)


def _spread(
    folders: Folders, root: str, cores: int, unlisted: Callable[[str, PolarisError], None]
) -> Iterator[tuple[str, str, bool]]:
    """Yield folders that together cover `root`, each with `root` and a flag: whether to list it recursively."""
    level = [root]
    for _ in range(_DEPTH):
        if not level or len(level) >= _FOLDERS_PER_CORE * cores:
            break
        yield from ((folder, root, False) for folder in level)
        level = [inner for folder in level for inner in _contents(folders, folder, unlisted).folders]
    yield from ((folder, root, True) for folder in level)


def _unneeded(located: DataFrame, names: DataFrame) -> DataFrame:
    """Return the locations whose path is not referenced in any storage."""
    return located.join(names.selectExpr("path AS needed"), located.path == _column("needed"), "left_anti")


def _outside_places(located: DataFrame, places: DataFrame) -> DataFrame:
    """Return the locations that are outside the locations of all tables and views."""
    from pyspark.sql.functions import expr

    around = located.select("location", expr(f"explode({_ANCESTORS}) AS ancestor"))
    owned = around.join(places, around.ancestor == places.folder, "left_semi").select("location").distinct()
    return located.join(owned, "location", "left_anti")


def _column(name: str) -> Column:
    from pyspark.sql.functions import col

    return col(name)


def _with_places(unknown: DataFrame, places: DataFrame) -> DataFrame:
    """Return files with the places above them, as an array of structs with the columns of `KnownFiles.places`.

    Places are matched by path only, whatever their scheme and authority are.
    """
    from pyspark.sql.functions import collect_list, expr

    around = unknown.select("*", expr(f"explode({_ANCESTORS}) AS ancestor"))
    joined = around.join(places, around.ancestor == places.folder, "left")
    place = expr(
        "CASE WHEN folder IS NOT NULL THEN struct(storage, folder, owner, kept, partitions, unconfirmed) END"
    )
    file = ("location", "size", "modified", "root", "scheme", "authority", "path")
    return joined.groupBy(*file).agg(collect_list(place).alias("places"))


def _skip(root: str, unlisted: dict[str, str], folder: str, problem: PolarisError) -> None:
    """Keep the reason why a folder cannot be listed. Raise the problem if the folder is the root."""
    if folder == root:
        raise problem
    unlisted[folder] = str(problem)


def _contents(folders: Folders, folder: str, unlisted: Callable[[str, PolarisError], None]) -> Contents:
    try:
        return folders.contents(folder)
    except BadRequestError as error:
        unlisted(folder, error)
        return Contents([], [])


def _list(reach: Reach, batches: Iterable[pa.RecordBatch], *, search: Search) -> Iterator[pa.RecordBatch]:
    """Yield the files in folders, and folders with problems."""
    folders = Folders(reach.files)
    for batch in batches:
        for one in batch.to_pylist():
            yield from in_batches(_listed(search, folders, **one), _LISTED)


def _listed(search: Search, folders: Folders, folder: str, root: str, deep: bool) -> Iterator[Row]:  # noqa: FBT001  # a column
    unlisted: dict[str, str] = {}
    skip = partial(_skip, root, unlisted)
    found = folders.below(folder, skip) if deep else _contents(folders, folder, skip).files
    for listed in found:
        if search.concerns(listed):
            yield {
                "location": listed.location,
                "size": listed.size,
                "modified": listed.modified_ms,
                "root": root,
                **search.names.of(listed.location)._asdict(),
            }
    for location, problem in unlisted.items():
        yield {"location": location, "root": root, "problem": problem}


def _look(
    reach: Reach, batches: Iterable[pa.RecordBatch], *, doomed: Doomed, names: Names
) -> Iterator[pa.RecordBatch]:
    """Yield those files of dropped tables that exist and may be deleted, from their locations."""
    folders, judge = Folders(reach.files), DoomedJudge(doomed, names)
    for batch in batches:
        yield from in_batches(_doomed(folders, judge, batch), _DOOMED)


def _doomed(folders: Folders, judge: DoomedJudge, batch: pa.RecordBatch) -> Iterator[Row]:
    for row in batch.to_pylist():
        found = judge.found(folders, row["location"])
        if found is not None:
            location, size, modified, owner = found
            file = {"location": location, "size": size, "modified": modified, "owner": owner}
            yield {**file, "rank": row["rank"], "owners": row["owners"]}


class _Judge:
    """The function that executors run to decide which files are orphans.

    Input: unreferenced files with the places above them. Output: orphans.
    """

    def __init__(self, search: Search, broken: set[str], incomplete: set[str]) -> None:
        self._keeps_strays = search.keeps_strays
        self._permit = search.permit
        self._roots = {root: search.names.of(root).path for root in search.roots}
        self._broken = broken
        self._incomplete = incomplete

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from in_batches(self._rows(batch), _ORPHANS)

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        for row in batch.to_pylist():
            judged = judge(
                FileName(row["scheme"], row["authority"], row["path"]),
                self._roots[row["root"]],
                [_place(place) for place in row["places"]],
                self._broken,
                self._incomplete,
                keeps_strays=self._keeps_strays,
            )
            if judged.is_orphan and self._permit.may(row["location"]):
                yield {name: row[name] for name in ("location", "size", "modified")} | {"owner": judged.owner}


def _place(of: dict[str, Any]) -> OwnedLocation:
    """Return a row of `KnownFiles.places` as a `OwnedLocation`."""
    name = FileName(of["storage"]["scheme"], of["storage"]["authority"], of["folder"])
    return OwnedLocation(name, of["owner"], of["kept"], tuple(of["partitions"] or ()), of["unconfirmed"])
