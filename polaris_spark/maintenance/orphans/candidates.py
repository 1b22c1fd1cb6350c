"""Search for files that may be deleted: listed files that no table or view needs, and the files of dropped tables.

An engine lists folders, reads which files tables reference (`known_files`), and compares the two. The module `search`
describes the order of these steps, and why it is safe.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from polaris_spark.catalog.branches.store_heads import StoreHead
from polaris_spark.catalog.drops.drops import Drop
from polaris_spark.catalog.engine import Engine, Reach, Row, Rows
from polaris_spark.catalog.files.folders import FileStatus, Folders, repeated
from polaris_spark.catalog.files.permits import Permit
from polaris_spark.errors import BadRequestError, InputError, PolarisError
from polaris_spark.maintenance.orphans.decisions import FileName, Mismatch, folders_of, is_below, judge
from polaris_spark.maintenance.orphans.known_files import (
    NAME,
    TASKS_PER_CORE,
    KnownFiles,
    KnownFilesTask,
    Names,
    place_of,
    tasks_of,
)

_DEPTH = 4
"""Maximum number of folder levels that the driver itself lists, in order to find enough folders for all tasks."""
_FOLDERS_PER_CORE = 16

_FILE = f"location string, size bigint, modified bigint, root string, {NAME}"
_FILE_COLUMNS = 7
_LISTED = f"{_FILE}, problem string"
"""Columns of the rows that `_list` yields: listed files, and folders that cannot be listed. For a folder, `problem` is
the error; only `location`, `root` and `problem` are not null."""
_ORPHANS = "location string, size bigint, modified bigint, owner string"


class Search(NamedTuple):
    """The parameters of a search for orphan files."""

    roots: tuple[str, ...]
    """Folders to list. No folder is inside another one."""
    before_ms: int
    """Time in milliseconds since 1970. Files that were changed at or after this time are kept."""
    names: Names
    mismatch: Mismatch
    permit: Permit
    """Permission to delete files below `roots`, except files of stores. Links below the roots are not followed."""
    oldest_purge_ms: int
    """Time in milliseconds since 1970. Files of a table that was dropped with PURGE after this time are kept."""
    max_files: int
    """Maximum number of files that the search returns."""
    limits: Mapping[str, int] = {}
    """Times that replace `before_ms` for all files below a folder, in milliseconds since 1970, by the normalized path
    of the folder. The nearest folder above a file decides. 0 keeps all files."""
    keeps_strays: bool = False
    """Whether files outside the locations of all tables and views are kept, because the catalog's `gc.enabled` is
    false."""

    def concerns(self, listed: FileStatus) -> bool:
        """Whether a file may be an orphan according to its name and age. Other conditions are not checked."""
        if listed.modified_ms >= self.before_ms:
            return False
        path = self.names.of(listed.location).path
        if self.limits and listed.modified_ms >= self._limit(path):
            return False
        return not self.permit.stores.holds(path)

    def _limit(self, path: str) -> int:
        while path:
            path = path.rpartition("/")[0]
            found = self.limits.get(path)
            if found is not None:
                return found
        return self.before_ms


class Orphan(NamedTuple):
    """A file that no table or view needs."""

    location: str
    size: int
    """Size of the file, in bytes."""
    modified_ms: int
    """Time of the last change of the file, in milliseconds since 1970."""
    owner: str | None
    """The table or view whose location contains the file; None if no location contains it."""


class Broken(NamedTuple):
    """A table or view that cannot be read, or a folder that cannot be listed."""

    owner: str | None
    """Catalog and name of the table or view; None for a folder."""
    places: tuple[str, ...]
    """Locations of the table or view, or the location of the folder."""
    problem: str
    incomplete: bool = False
    """Whether only the files in `places` must be kept. True for a folder, and if only manifest lists or manifests are
    missing."""


class SearchResult(NamedTuple):
    """The result of a search for orphan files."""

    orphans: list[Orphan]
    broken: list[Broken]


class PurgeableFiles(NamedTuple):
    """Files of dropped tables that may be deleted."""

    phases: list[list[Orphan]]
    """Files grouped into phases, in the order in which the phases must be deleted. Files of a later phase list files of
    earlier phases."""
    named_by: dict[str, set[str]]
    """For the location of each file, the dropped tables that name the file. A manifest or manifest list lists further
    files of these tables."""
    broken: list[Broken]


class PurgedTables(NamedTuple):
    """Tables that were dropped with PURGE and whose files are to be deleted."""

    head: StoreHead
    """Head of a branch of the catalog from which the tables were dropped; any branch will do."""
    drops: tuple[Drop, ...]
    places: tuple[tuple[str, str], ...]
    """Pairs of a location that one of the tables owned and the name of this table."""
    warehouse: str
    permit: Permit
    """Permission to delete the tables' files."""


class PurgeJudge:
    """Decides which files of dropped tables may be deleted: files in the tables' own locations or in the warehouse.

    Files behind a symbolic link are kept. The search for orphan files finds them later by their real path.
    """

    def __init__(self, purged_tables: PurgedTables, names: Names) -> None:
        self._permit = purged_tables.permit
        self._places = [(names.of(place), owner) for place, owner in purged_tables.places]
        self._warehouse = names.of(purged_tables.warehouse)
        self._names = names

    def found(self, folders: Folders, location: str) -> Orphan | None:
        """Return a file if it exists and may be deleted, else None. If storage fails, the file counts as existing."""
        if self._permit.may(location) is None:
            return None
        name = self._names.of(location)
        owner = next((owner for place, owner in self._places if is_below(name, place)), None)
        if owner is None and not is_below(name, self._warehouse):
            return None
        try:
            there = repeated(lambda: folders.file(location))
        except (OSError, ValueError, BadRequestError):  # deleting the file will report the error
            return Orphan(location, 0, 0, owner)
        return None if there is None else Orphan(*there, owner=owner)


def list_files(engine: Engine, search: Search) -> Rows:
    """List the folders of a search now. Return the files, and the subfolders that cannot be listed.

    The rows have the columns of `_LISTED`.

    Raises:
        BadRequestError: one of the folders in `search.roots` cannot be listed.
    """
    tasks = _FOLDERS_PER_CORE * engine.parts
    here = Folders(engine.reach.files)
    folders = [found for root in search.roots for found in _spread(here, root, tasks)]
    # Folders differ in size: each task gets folders from all parts of the tree.
    groups = [folders[first::tasks] for first in range(min(tasks, len(folders)))]
    return engine.scan(partial(_list, search=search), groups, _LISTED, "listing files").fixed()


def _spread(folders: Folders, root: str, tasks: int) -> Iterator[tuple[str, str, bool]]:
    """Yield folders that together contain all files below `root`, to be listed by tasks.

    Yields:
        the folder, `root`, and whether to list the folder recursively.
    """
    level = [root]
    for _ in range(_DEPTH):
        if not level or len(level) >= tasks:
            break
        inner = []
        for folder in level:
            try:
                inner += folders.contents(folder).folders
                yield folder, root, False
            except BadRequestError:
                if folder == root:
                    raise
                yield folder, root, True  # the task that lists this folder reports the problem
        level = inner
    yield from ((folder, root, True) for folder in level)


def _list(reach: Reach, group: Sequence[tuple[str, str, bool]], *, search: Search) -> Iterator[Row]:
    """Yield possible orphan files in a group of folders, and the folders that cannot be listed.

    The rows have the columns of `_LISTED`.
    """
    folders = Folders(reach.files)
    unlisted: dict[str, tuple[str, str]] = {}

    def skip(folder: str, problem: PolarisError) -> None:
        if folder == root:
            raise problem
        unlisted[folder] = (root, str(problem))

    for folder, root, deep in group:
        for listed in folders.below(folder, skip) if deep else _files(folders, folder, skip):
            if search.concerns(listed):
                yield *listed, root, *search.names.of(listed.location), None
    for folder, (root, problem) in unlisted.items():
        yield folder, None, None, root, None, None, None, problem


def _files(folders: Folders, folder: str, skip: Callable[[str, PolarisError], None]) -> Sequence[FileStatus]:
    try:
        return folders.contents(folder).files
    except BadRequestError as error:
        skip(folder, error)
        return ()


def find_orphans(engine: Engine, search: Search, heads: Sequence[StoreHead], listed: Rows) -> SearchResult:
    """Return the files in `listed` that no table or view needs. The rows of `listed` are then released.

    Args:
        heads: all heads of the store, read after the files were listed.
        listed: the result of `list_files`.
    Raises:
        InputError: `search.mismatch` is ERROR, and a listed file has the same path as a file that a table references,
            but another scheme or authority.
    """
    known = _known(engine, search, heads)
    unknown = _unknown(engine, search, listed, known.names()).kept()
    try:
        if search.mismatch is Mismatch.ERROR:
            _refuse_mismatches(engine, unknown, known.names())
        unlisted = engine.query(
            "SELECT location, problem FROM {listed} WHERE problem IS NOT NULL", listed=listed
        )
        problems = [Broken(None, (row[0],), row[1], incomplete=True) for row in sorted(unlisted.collect())]
        broken, incomplete = known.broken()
        decide = partial(
            _judged,
            search=search,
            roots={root: search.names.of(root).path for root in search.roots},
            broken=set(broken),
            incomplete=set(incomplete),
        )
        judged = engine.apply(
            decide, _with_places(engine, unknown, known.places()), _ORPHANS, by=("location", "root")
        )
        rows = engine.query(f"SELECT * FROM {{judged}} LIMIT {_most(search)}", judged=judged).collect()
        orphans = sorted(Orphan(*row) for row in rows)
        return SearchResult(orphans, problems + _told(engine, known, broken, incomplete))
    finally:
        known.release()
        unknown.release()
        listed.release()


def find_purgeable(
    engine: Engine, search: Search, heads: Sequence[StoreHead], purged_tables: PurgedTables
) -> PurgeableFiles:
    """Return the files of dropped tables that no table or view needs any more.

    No files are returned if any table of the store cannot be read.

    Args:
        heads: all heads of the store.
        purged_tables: the dropped tables.
    """
    known = _known(engine, search, heads)
    tasks = [KnownFilesTask(purged_tables.head, drops=(drop,)) for drop in purged_tables.drops]
    named = KnownFiles(engine, search.names, tasks, search.oldest_purge_ms, located=True)
    try:
        broken, incomplete = known.broken()
        told = _told(engine, known, broken, incomplete)
        if broken:
            return _in_phases([], told)
        places = engine.query(
            "SELECT folder FROM {known} UNION SELECT folder FROM {named} WHERE unconfirmed",
            known=known.places(),
            named=named.places(),
        )
        unneeded = engine.without(named.located(), known.names(), ["path"])
        above = engine.apply(
            _with_ancestors,
            engine.query("SELECT DISTINCT location, path FROM {unneeded}", unneeded=unneeded),
            "location string, path string, ancestor string",
        )
        inside = engine.query(
            "SELECT DISTINCT location FROM {above} above JOIN {places} places ON ancestor = folder",
            above=above,
            places=places,
        )
        found = engine.apply(
            partial(_existing, purged_tables=purged_tables, names=search.names),
            engine.without(unneeded, inside, ["location"]),
            f"{_ORPHANS}, kind int, owners string",
            by=("location",),
        )
        ordered = f"SELECT * FROM {{found}} ORDER BY kind LIMIT {_most(search)}"
        return _in_phases(engine.query(ordered, found=found).collect(), told)
    finally:
        known.release()
        named.release()


def _known(engine: Engine, search: Search, heads: Sequence[StoreHead]) -> KnownFiles:
    own, splits = engine.reach.own, TASKS_PER_CORE * engine.parts
    tasks = [
        task for head in heads for task in tasks_of(head, own.of_realm(head.realm).for_deleting(), splits)
    ]
    return KnownFiles(engine, search.names, tasks, search.oldest_purge_ms)


def _most(search: Search) -> int:
    """Return the maximum number of files to return: the search's own maximum, capped at the largest `LIMIT` that Spark
    accepts."""
    return min(search.max_files, 2**31 - 1)


def _unknown(engine: Engine, search: Search, listed: Rows, names: Rows) -> Rows:
    """Return the listed files that are not in `names`, the files that tables and views reference."""
    columns = ", ".join(column.split(" ")[0] for column in _FILE.split(", "))
    files = engine.query(f"SELECT {columns} FROM {{listed}} WHERE problem IS NULL", listed=listed)
    same_prefix = "other.scheme IN ('', mine.scheme) AND other.authority IN ('', mine.authority)"
    match = "true" if search.mismatch is Mismatch.IGNORE else same_prefix
    return engine.without(files, names, ["path"], match)


def _refuse_mismatches(engine: Engine, unknown: Rows, names: Rows) -> None:
    """Raise an InputError if an unreferenced file differs only in scheme or authority from a file that a table
    references."""
    pairs = engine.query(
        "SELECT DISTINCT known.scheme || '://' || known.authority AS known, "
        "file.scheme || '://' || file.authority AS listed "
        "FROM {unknown} file JOIN {names} known ON file.path = known.path LIMIT 10",
        unknown=unknown,
        names=names,
    )
    told = [f"{known} in tables, {listed} in the listing" for known, listed in sorted(pairs.collect())]
    if told:
        raise InputError(
            "nothing was deleted, because tables reference files with the same path as listed files, but with another "
            f"scheme or authority: {'; '.join(told)}. Set equal_schemes and equal_authorities if these are the same "
            "storage, or set prefix_mismatch_mode to keep such files ('ignore') or to delete them ('delete')"
        )


def _with_places(engine: Engine, files: Rows, places: Rows) -> Rows:
    """Return one row for each pair of a file and a table's location whose path contains the file's path.

    A file without such a location has a row with nulls. Schemes and authorities are not compared. The columns are the
    columns of `files`, then `ancestor` (a folder above the file), then the columns of `KnownFiles.places`.
    """
    above = engine.apply(_with_ancestors, files, f"{_FILE}, ancestor string")
    return engine.query(
        "SELECT * FROM {above} above LEFT JOIN {places} places ON ancestor = folder "
        "WHERE folder IS NOT NULL OR ancestor = '/'",  # every file is below the root once
        above=above,
        places=places,
    )


def _with_ancestors(_: Reach, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield each row once for each folder above the path in its last column, with the folder as a further column."""
    for row in rows:
        for folder in folders_of(row[-1]):
            yield *row, folder


def _judged(
    _: Reach,
    rows: Iterator[Row],
    *,
    search: Search,
    roots: Mapping[str, str],
    broken: Collection[str],
    incomplete: Collection[str],
) -> Iterator[Row]:
    """Yield the files that are orphans, with the columns of `_ORPHANS`.

    Args:
        rows: rows as `_with_places` returns them; the rows of one file must be consecutive.
        roots: the normalized path of each folder of the search, by folder.
        broken: owners (tables and views) that cannot be read.
        incomplete: owners with missing manifest lists or manifests.
    """
    for file, around in groupby(rows, lambda row: row[:_FILE_COLUMNS]):
        location, size, modified, root, *name = file
        places = [row[_FILE_COLUMNS + 1 :] for row in around]
        judged = judge(
            FileName(*name),
            roots[root],
            [place_of(place) for place in places if place[0] is not None],
            broken,
            incomplete,
            keeps_strays=search.keeps_strays,
        )
        if judged.is_orphan and search.permit.may(location):
            yield location, size, modified, judged.owner


def _existing(
    reach: Reach, rows: Iterator[Row], *, purged_tables: PurgedTables, names: Names
) -> Iterator[Row]:
    """Yield the files of dropped tables that exist and may be deleted.

    The columns are those of `_ORPHANS`, the kind of the file, and a JSON array of the tables that name the file.
    """
    folders, purge_judge = Folders(reach.files), PurgeJudge(purged_tables, names)
    for location, naming in groupby(rows, lambda row: row[0]):
        found = purge_judge.found(folders, location)
        if found is not None:
            _, kinds, owners, _ = zip(*naming, strict=True)
            yield *found, max(kinds), json.dumps(sorted(set(owners)))


def _told(
    engine: Engine, known: KnownFiles, broken: Mapping[str, str], incomplete: Mapping[str, str]
) -> list[Broken]:
    """Return the problems of tables and views, with the locations of each.

    Args:
        broken: the error for each table or view that cannot be read, by owner.
        incomplete: a message that names a missing manifest list or manifest, by owner.
    """
    if not broken and not incomplete:
        return []
    owned: dict[str, set[str]] = {}
    for owner, folder in engine.query(
        "SELECT DISTINCT places.owner, folder FROM {places} places JOIN {owners} owners "
        "ON places.owner = owners.owner",
        places=known.places(),
        owners=engine.rows(((owner,) for owner in {*broken, *incomplete}), "owner string"),
    ).collect():
        owned.setdefault(owner, set()).add(folder)

    def told(owner: str, problem: str, *, incomplete: bool) -> Broken:
        return Broken(owner, tuple(sorted(owned.get(owner, ()))), problem, incomplete)

    found = [told(owner, problem, incomplete=False) for owner, problem in broken.items()]
    return found + [
        told(owner, problem, incomplete=True) for owner, problem in incomplete.items() if owner not in broken
    ]


def _in_phases(rows: Iterable[Row], broken: list[Broken]) -> PurgeableFiles:
    """Group the files of dropped tables into phases of deletion, by kind of file.

    Args:
        rows: files as `_existing` yields them.
        broken: tables that cannot be read, to be added to the result.
    """
    phases: dict[int, list[Orphan]] = {}
    named_by: dict[str, set[str]] = {}
    for *file, kind, owners in rows:
        phases.setdefault(kind, []).append(Orphan(*file))
        named_by[file[0]] = set(json.loads(owners))
    return PurgeableFiles([sorted(phases[kind]) for kind in sorted(phases)], named_by, broken)
