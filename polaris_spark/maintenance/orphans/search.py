"""Finding and deleting orphan files: the order of steps.

Why no file is deleted that a live or recoverable head needs:

1. Folders are listed before heads are read: so a file that was committed before it could be listed is known.
2. A file counts only if it was last changed before a threshold, which is at least a day ago unless `force` is given.
   This age alone protects files that are written now and committed later, including metadata files that are written
   before a commit's swap.
3. A file is known if any head of any realm and catalog of the store names it. This covers every branch, and every
   dropped branch for the grace period, with every snapshot, branch and tag of each table, its statistics and its log of
   metadata files. Files of tables that can be brought back from a history are known, too (`known_files.kept_drops`). A
   table that cannot be read completely might need any file: while there is such a table, files are deleted only in the
   locations of other tables. If a row of a table or of a log is damaged, not even the locations are known: while there
   is such a row, no file is deleted.

   A manifest list or manifest that does not exist is treated differently. Storage has confirmed that it is missing, and
   no reader can find the files that it named. If it is restored from a backup, it names files again, nearly always in
   the table's own locations. So all files in these locations are kept. It may also have named files elsewhere, added by
   `add_files`. Files in another table's location belong to that table, which could always delete them. Files outside
   all locations are deleted like any file that no reader can find, once they are old enough. If they were kept, any
   client that can commit to one table could stop the search in the whole store. Expiry follows the same rule. If the
   metadata file of a lazily imported table is missing, the table still counts as unreadable, because its locations are
   not known without that file.
4. Right before each wave of files is deleted, heads are read again, and files that are named by tables changed or
   registered meanwhile are taken out. An old file is lost if a table adopts it during the seconds in which the file is
   deleted; only its age protects a file from that.
5. A file that has been changed since it was listed stays.

An interrupted search is simply repeated: deleted files are not listed any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from polaris_spark.catalog.drops import Drop
from polaris_spark.catalog.engine import Engine
from polaris_spark.catalog.folders import CHANGED, FileStatus, Folders, repeated
from polaris_spark.catalog.permits import Grant, Permit
from polaris_spark.catalog.store_heads import StoreHead
from polaris_spark.errors import BadRequestError, InputError, PolarisError
from polaris_spark.maintenance.file_deletion import delete_files
from polaris_spark.maintenance.files_in_use import Question, Watching
from polaris_spark.maintenance.needed_files import EVERYWHERE
from polaris_spark.maintenance.orphans.decisions import Mismatch, is_below
from polaris_spark.maintenance.orphans.known_files import Names
from polaris_spark.maintenance.store_tables import Objects

WAVE = 1_000
"""Number of files that are deleted between two reads of the heads."""

WOULD_DELETE, DELETED, FAILED, KEPT, EMPTY = "would delete", "deleted", "failed", "kept", "empty"


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
    """The dropped tables that name a file, by its location. The file may name more files of these tables."""
    broken: list[Broken]


class FileOutcome(NamedTuple):
    """The result for a file, or for a table or folder that cannot be read."""

    location: str
    size: int | None
    modified_ms: int | None
    owner: str | None
    outcome: str
    error: str | None = None


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


class FileSearch(Protocol):
    """The listing and comparison of the files of a search, in this process or on executors."""

    def list_files(self, search: Search) -> None:
        """List the folders of a search, and keep the files found for `find`."""

    def find(self, search: Search, heads: Sequence[StoreHead]) -> SearchResult:
        """Return the orphans among the listed files."""

    def find_doomed(self, search: Search, heads: Sequence[StoreHead], doomed: Doomed) -> FoundDoomed:
        """Return the files of dropped tables that no head needs."""


class Record(Protocol):
    """A record of deletions for later readers."""

    def deleting(self, orphans: Sequence[Orphan]) -> None:
        """Record files that are about to be deleted."""

    def failed(self, outcomes: Sequence[FileOutcome]) -> None:
        """Record those of the files that could not be deleted."""


class Means(NamedTuple):
    """The functions and objects that a run uses."""

    engine: Engine
    """Deletes files and reads what tables need. Its progress may raise an error to end the run."""
    heads: Callable[[], list[StoreHead]]
    """Reads the heads of the store."""
    objects: Objects
    record: Record


def remove(files: FileSearch, search: Search, means: Means, *, dry_run: bool) -> Iterator[FileOutcome]:
    """Find orphans, and delete them unless it is a dry run.

    Raises:
        InputError: listed and known files have equal paths but different schemes or authorities.
        BadRequestError: a folder cannot be listed.
    """
    means.engine.progress("listing files", 0, 0)
    files.list_files(search)
    means.engine.progress("reading what tables need", 0, 0)
    seen = means.heads()
    found = files.find(search, seen)
    yield from broken_ones(found.broken)
    if dry_run:
        yield from (FileOutcome(*orphan, outcome=WOULD_DELETE) for orphan in found.orphans)
    else:
        yield from delete_in_waves(search, means, found.orphans, seen)


def broken_ones(found: Iterable[Broken]) -> Iterator[FileOutcome]:
    """Yield the outcomes for tables that cannot be read, and for folders that cannot be listed."""
    for broken in found:
        for place in broken.places or ("",):
            why = "nothing is deleted here"
            if not broken.incomplete:
                why += ", nor outside the locations of tables that can be read"
            if EVERYWHERE in broken.places:
                why = "nothing is deleted, since it may need any file"
            why = f"{broken.problem}; {why}"
            yield FileOutcome(place, None, None, broken.owner, KEPT, why)


def broken_of(
    broken: Mapping[str, str], incomplete: Mapping[str, str], places: Callable[[str], Iterable[str]]
) -> list[Broken]:
    """Return the problems of tables.

    Args:
        broken: the reason why a table could not be read, by owner.
        incomplete: a message that names the missing file of a table, by owner.
        places: returns the paths of an owner's locations.
    """
    found = [Broken(owner, tuple(sorted(set(places(owner)))), problem) for owner, problem in broken.items()]
    return found + [
        Broken(owner, tuple(sorted(set(places(owner)))), problem, incomplete=True)
        for owner, problem in incomplete.items()
        if owner not in broken
    ]


def unlisted_ones(unlisted: Mapping[str, str]) -> list[Broken]:
    """Return the problems of folders.

    Args:
        unlisted: the reason why a folder cannot be listed, by location.
    """
    return [Broken(None, (folder,), problem, incomplete=True) for folder, problem in sorted(unlisted.items())]


def delete_in_waves(
    search: Search, means: Means, orphans: Sequence[Orphan], seen: Iterable[StoreHead]
) -> Iterator[FileOutcome]:
    """Delete files in waves. Before each wave, files that tables have come to need are taken out.

    Args:
        seen: the heads that were read when the orphans were found.
    """
    question = Question(
        [one.location for one in orphans],
        means.engine,
        search.names,
        any_storage=search.mismatch is not Mismatch.DELETE,
    )
    watching = Watching(question, seen, means.heads, means.objects, search.oldest_purge_ms)
    for start in range(0, len(orphans), WAVE):
        means.engine.progress("deleting files", start, len(orphans))
        watching.look()
        wave = orphans[start : start + WAVE]
        if question.problem:
            why = f"it is not known whether it is needed by now: {question.problem}"
            yield from (FileOutcome(*orphan, outcome=KEPT, error=why) for orphan in wave)
            continue
        going = [orphan for orphan in wave if orphan.location not in question.needed]
        for orphan in wave:
            if orphan.location in question.needed:
                yield FileOutcome(*orphan, outcome=KEPT, error="a table needs it by now")
        yield from _deleted(search, means, going)


def _deleted(search: Search, means: Means, going: Sequence[Orphan]) -> Iterator[FileOutcome]:
    grants: list[Grant] = []
    refused: list[FileOutcome] = []
    for orphan in going:
        try:
            grants.append(search.permit.grant(orphan.location))
        except (OSError, ValueError, PolarisError) as error:
            refused.append(FileOutcome(*orphan, outcome=KEPT, error=str(error)))
    yield from refused
    granted = {grant.location for grant in grants}
    going = [orphan for orphan in going if orphan.location in granted]
    means.record.deleting(going)
    left: dict[str, str] = {}
    for some in delete_files(means.engine, grants, search.permit, changed_before=search.before_ms):
        left |= some
    outcomes = [_outcome(orphan, left.get(orphan.location)) for orphan in going]
    means.record.failed([outcome for outcome in outcomes if outcome.outcome == FAILED])
    yield from outcomes


def _outcome(orphan: Orphan, left: str | None) -> FileOutcome:
    if left is None:
        return FileOutcome(*orphan, outcome=DELETED)
    return FileOutcome(*orphan, outcome=KEPT if left == CHANGED else FAILED, error=left)


def in_phases(ranked: Iterable[tuple[int, Orphan, Iterable[str]]], broken: list[Broken]) -> FoundDoomed:
    """Return files grouped into phases by rank.

    Args:
        ranked: (rank, file, owners that name the file).
        broken: tables that cannot be read.
    """
    phases: dict[int, list[Orphan]] = {}
    named_by: dict[str, set[str]] = {}
    for rank, orphan, owners in ranked:
        phases.setdefault(rank, []).append(orphan)
        named_by.setdefault(orphan.location, set()).update(owners)
    return FoundDoomed([sorted(phases[rank]) for rank in sorted(phases)], named_by, broken)


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


def refuse_mismatches(found: Iterable[tuple[str, str]], mismatch: Mismatch) -> None:
    """Refuse conflicts between known and listed files, if the mode is `ERROR`.

    Args:
        found: pairs of the known and the listed prefix (`scheme://authority`) of files whose paths are equal.
    Raises:
        InputError: there are conflicts, and the mode is `ERROR`.
    """
    pairs = sorted(found)[:10]
    if pairs and mismatch is Mismatch.ERROR:
        told = ", ".join(f"{known} is known and {listed} was listed" for known, listed in pairs)
        raise InputError(
            f"it is not known whether some files are orphans, so nothing was deleted: {told}, with the same "
            "paths. Set equal_schemes and equal_authorities if these are the same storage, or set "
            "prefix_mismatch_mode to keep such files ('ignore') or to delete them ('delete')"
        )
