"""Files that may be deleted: the listed files that no table or view needs, and the files of dropped tables.

An engine lists folders, reads which files tables reference (`known_files`), and compares them. `search` describes the
order of these steps, and why it is safe.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from polaris_spark.catalog.drops import Drop
from polaris_spark.catalog.engine import Engine, Reach, Row, Rows
from polaris_spark.catalog.folders import FileStatus, Folders, repeated
from polaris_spark.catalog.permits import Permit
from polaris_spark.catalog.store_heads import StoreHead
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
"""Maximum number of folder levels that the driver lists itself, to find enough folders for all tasks."""
_FOLDERS_PER_CORE = 16

_FILE = f"location string, size bigint, modified bigint, root string, {NAME}"
_FILE_COLUMNS = 7
_LISTED = f"{_FILE}, problem string"
"""Columns of listed files, and of folders with the problem why they cannot be listed."""
_ORPHANS = "location string, size bigint, modified bigint, owner string"


class Search(NamedTuple):
    """The parameters of a search."""

    roots: tuple[str, ...]
    """Folders to list, none inside another."""
    before_ms: int
    """Only files last changed before this time count, in milliseconds since 1970."""
    names: Names
    mismatch: Mismatch
    permit: Permit
    """Permits deleting files below `roots`, except files of stores. Links below the roots are not followed."""
    oldest_purge_ms: int
    """See `known_files.kept_drops`."""
    max_files: int
    keeps_strays: bool = False
    """Whether the catalog's `gc.enabled` keeps files outside the locations of all tables and views."""

    def concerns(self, listed: FileStatus) -> bool:
        """Whether a file may be an orphan, judged by its name and age alone."""
        if listed.modified_ms >= self.before_ms:
            return False
        return not self.permit.stores.holds(self.names.of(listed.location).path)


class Orphan(NamedTuple):
    """A file that no table or view needs."""

    location: str
    size: int
    """Bytes."""
    modified_ms: int
    """Time of the last change, in milliseconds since 1970."""
    owner: str | None
    """The table or view whose location contains the file, if any."""


class Broken(NamedTuple):
    """A table or view that cannot be read, or a folder that cannot be listed; a folder's `owner` is None."""

    owner: str | None
    places: tuple[str, ...]
    problem: str
    incomplete: bool = False
    """Whether the only problem is that manifest lists or manifests are missing."""


class SearchResult(NamedTuple):
    """The result of a search."""

    orphans: list[Orphan]
    broken: list[Broken]


class FoundDoomed(NamedTuple):
    """Files of dropped tables that may be deleted."""

    phases: list[list[Orphan]]
    """Files in order of deletion. A phase is deleted after all earlier phases, because it names files in them."""
    named_by: dict[str, set[str]]
    """For the location of each file, the dropped tables that name the file. If the file is a manifest or a manifest
    list, it names more files of these tables."""
    broken: list[Broken]


class Doomed(NamedTuple):
    """Tables that were dropped with PURGE and whose files are to be deleted."""

    head: StoreHead
    """Head of any branch of the catalog that the tables were dropped from."""
    drops: tuple[Drop, ...]
    places: tuple[tuple[str, str], ...]
    """Locations that the tables owned, each with the name of its owner."""
    warehouse: str
    permit: Permit
    """Permits deleting the tables' files."""


class DoomedJudge:
    """Decision about which files of dropped tables may be deleted: files in the tables' own locations or the warehouse.

    Files behind a symbolic link stay; the search for orphan files finds them by their real path.
    """

    def __init__(self, doomed: Doomed, names: Names) -> None:
        self._permit = doomed.permit
        self._places = [(names.of(place), owner) for place, owner in doomed.places]
        self._warehouse = names.of(doomed.warehouse)
        self._names = names

    def found(self, folders: Folders, location: str) -> Orphan | None:
        """Return a file if it exists and may be deleted, else None. It counts as existing if storage fails."""
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
    """Return the files in the folders of a search, and the folders that cannot be listed. They are listed now.

    Raises:
        BadRequestError: a folder of the search itself cannot be listed.
    """
    tasks = _FOLDERS_PER_CORE * engine.parts
    here = Folders(engine.reach.files)
    folders = [found for root in search.roots for found in _spread(here, root, tasks)]
    # Folders differ in size: each task gets folders from all parts of the tree.
    groups = [folders[first::tasks] for first in range(min(tasks, len(folders)))]
    return engine.scan(partial(_list, search=search), groups, _LISTED, "listing files").fixed()


def _spread(folders: Folders, root: str, tasks: int) -> Iterator[tuple[str, str, bool]]:
    """Yield folders that together cover `root`, each with `root` and a flag: whether to list it recursively."""
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
                yield folder, root, True  # the task that lists it reports the problem
        level = inner
    yield from ((folder, root, True) for folder in level)


def _list(reach: Reach, group: Sequence[tuple[str, str, bool]], *, search: Search) -> Iterator[Row]:
    """Yield the files in folders, and folders with problems, with the columns of `_LISTED`."""
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
    """Return the orphans among the files that `list_files` returned. These rows are released.

    Args:
        heads: all heads of the store, read after the files were listed.
    Raises:
        InputError: listed and known files have equal paths but different schemes or authorities.
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


def find_doomed(engine: Engine, search: Search, heads: Sequence[StoreHead], doomed: Doomed) -> FoundDoomed:
    """Return the files of dropped tables that no table or view needs.

    Args:
        heads: all heads of the store.
    """
    known = _known(engine, search, heads)
    tasks = [KnownFilesTask(doomed.head, drops=(drop,)) for drop in doomed.drops]
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
            partial(_existing, doomed=doomed, names=search.names),
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
    tasks = [task for head in heads for task in tasks_of(head, own.of_realm(head.realm), splits)]
    return KnownFiles(engine, search.names, tasks, search.oldest_purge_ms)


def _most(search: Search) -> int:
    """Return the maximum number of rows to collect, limited to the maximum of Spark's `LIMIT`."""
    return min(search.max_files, 2**31 - 1)


def _unknown(engine: Engine, search: Search, listed: Rows, names: Rows) -> Rows:
    """Return the listed files that no table or view references."""
    columns = ", ".join(column.split(" ")[0] for column in _FILE.split(", "))
    files = engine.query(f"SELECT {columns} FROM {{listed}} WHERE problem IS NULL", listed=listed)
    same_prefix = "other.scheme IN ('', mine.scheme) AND other.authority IN ('', mine.authority)"
    match = "true" if search.mismatch is Mismatch.IGNORE else same_prefix
    return engine.without(files, names, ["path"], match)


def _refuse_mismatches(engine: Engine, unknown: Rows, names: Rows) -> None:
    """Raise an InputError if tables reference the path of an unknown file with another scheme or authority."""
    pairs = engine.query(
        "SELECT DISTINCT known.scheme || '://' || known.authority AS known, "
        "file.scheme || '://' || file.authority AS listed "
        "FROM {unknown} file JOIN {names} known ON file.path = known.path LIMIT 10",
        unknown=unknown,
        names=names,
    )
    told = [f"{known} is known and {listed} was listed" for known, listed in sorted(pairs.collect())]
    if told:
        raise InputError(
            f"it is not known whether some files are orphans, so nothing was deleted: {', '.join(told)}, with "
            "the same paths. Set equal_schemes and equal_authorities if these are the same storage, or set "
            "prefix_mismatch_mode to keep such files ('ignore') or to delete them ('delete')"
        )


def _with_places(engine: Engine, files: Rows, places: Rows) -> Rows:
    """Return each file with each location above it, or with nulls. The columns are those of files, the folder
    `ancestor`, and those of `KnownFiles.places`.

    Locations are matched by path only, whatever their scheme and authority are.
    """
    above = engine.apply(_with_ancestors, files, f"{_FILE}, ancestor string")
    return engine.query(
        "SELECT * FROM {above} above LEFT JOIN {places} places ON ancestor = folder "
        "WHERE folder IS NOT NULL OR ancestor = '/'",  # every file is below the root once
        above=above,
        places=places,
    )


def _with_ancestors(_: Reach, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield each row once for each folder above the path in its last column, which is added as a column."""
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
    """Yield the orphans among files with the locations above them.

    Args:
        roots: the normalized path of each folder of the search.
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


def _existing(reach: Reach, rows: Iterator[Row], *, doomed: Doomed, names: Names) -> Iterator[Row]:
    """Yield those files of dropped tables that exist and may be deleted, each with its kind and owners (as JSON)."""
    folders, doomed_judge = Folders(reach.files), DoomedJudge(doomed, names)
    for location, naming in groupby(rows, lambda row: row[0]):
        found = doomed_judge.found(folders, location)
        if found is not None:
            _, kinds, owners, _ = zip(*naming, strict=True)
            yield *found, max(kinds), json.dumps(sorted(set(owners)))


def _told(
    engine: Engine, known: KnownFiles, broken: Mapping[str, str], incomplete: Mapping[str, str]
) -> list[Broken]:
    """Return the problems of tables.

    Args:
        broken: the reason why a table could not be read, by owner.
        incomplete: a message that names the missing file of a table, by owner.
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


def _in_phases(rows: Iterable[Row], broken: list[Broken]) -> FoundDoomed:
    """Return files grouped into phases by kind.

    Args:
        rows: files as `_existing` yields them.
        broken: tables that cannot be read.
    """
    phases: dict[int, list[Orphan]] = {}
    named_by: dict[str, set[str]] = {}
    for *file, kind, owners in rows:
        phases.setdefault(kind, []).append(Orphan(*file))
        named_by[file[0]] = set(json.loads(owners))
    return FoundDoomed([sorted(phases[kind]) for kind in sorted(phases)], named_by, broken)
