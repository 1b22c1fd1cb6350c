"""Search for orphan files and their deletion: the order of the steps.

No file is deleted that a live or recoverable head needs, for these reasons:

1. Folders are listed before heads are read. So if a listed file was committed before the listing, the heads that are
   read name it.
2. A file can only be an orphan if it was last changed before a threshold, which is at least a day ago unless `force` is
   given. Only this rule protects files that are written now and committed later, such as metadata files, which are
   written before the commit takes effect.
3. A file is kept if any head of any realm and catalog of the store names it. This covers every branch, and every
   dropped branch for the grace period, with every snapshot, branch and tag of each table, its statistics and its log of
   metadata files. Files of dropped tables that can be restored are kept, too (`known_files.kept_drops`). A table that
   cannot be read completely might need any file. While there is such a table, files are deleted only in the locations
   of other tables. If a row of a table or of a log is damaged, not even the locations are known. While there is such a
   row, no file is deleted.

   A manifest list or manifest that does not exist is treated differently. Storage has confirmed that it is missing, and
   no reader can find the files that it listed. If it is restored from a backup, it lists files again, nearly always in
   the table's own locations. So all files in these locations are kept. It may also have listed files elsewhere, which
   were added by `add_files`. Such a file in another table's location counts as a file of that table, and may be
   deleted, just as while a table cannot be read. Files outside all locations are deleted like any file that no reader
   can find, when they are old enough. If these files were kept, any client that can commit to one table could stop the
   search in the whole store. Expiry follows the same rule. If the metadata file of a lazily imported table is missing,
   the table counts as a table that cannot be read, because its locations are not known without that file.
4. Right before each wave of files is deleted, heads are read again. Files that are named by tables that were changed or
   registered meanwhile are kept. If a table begins to name an old file during the seconds in which the file is deleted,
   the file is lost; only the rule about the age of files protects against that.
5. A file that has been changed since it was listed is kept.

An interrupted search is simply repeated. Files that were already deleted are not listed any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from polaris_spark.catalog.branches.store_heads import StoreHead
from polaris_spark.catalog.engine import Engine
from polaris_spark.catalog.files.folders import CHANGED
from polaris_spark.catalog.files.permits import Grant
from polaris_spark.errors import PolarisError
from polaris_spark.maintenance.file_deletion import delete_files
from polaris_spark.maintenance.needed_files import EVERYWHERE
from polaris_spark.maintenance.orphans.candidates import Broken, Orphan, Search, find_orphans, list_files
from polaris_spark.maintenance.orphans.decisions import Mismatch
from polaris_spark.maintenance.orphans.files_in_use import Question, UseMonitor
from polaris_spark.maintenance.store_tables import Objects

WAVE = 1_000
"""Maximum number of files that are deleted between two reads of the store's heads."""

WOULD_DELETE, DELETED, FAILED, KEPT, EMPTY = "would delete", "deleted", "failed", "kept", "empty"


class FileOutcome(NamedTuple):
    """The outcome of a search for orphan files for one file, or for a table or folder that cannot be read.

    `outcome` is one of the constants `WOULD_DELETE`, `DELETED`, `FAILED`, `KEPT` and `EMPTY`.
    """

    location: str
    size: int | None
    modified_ms: int | None
    owner: str | None
    outcome: str
    error: str | None = None


class Record(Protocol):
    """Protocol of an object that records which files were deleted, as `maintenance.deletion_records` does."""

    def deleting(self, orphans: Sequence[Orphan]) -> None:
        """Record files that are about to be deleted."""

    def failed(self, outcomes: Sequence[FileOutcome]) -> None:
        """Record files that could not be deleted, although `deleting` has recorded them."""


class Means(NamedTuple):
    """The functions and objects that a search for orphan files uses."""

    engine: Engine
    """Reads which files tables need, and deletes files. Its `progress` may raise an error to end the run."""
    heads: Callable[[], list[StoreHead]]
    """Function that reads the heads of the store."""
    objects: Objects
    record: Record


def remove(search: Search, means: Means, *, dry_run: bool) -> Iterator[FileOutcome]:
    """Find orphan files, and delete them unless `dry_run` is true. Yield a result for each file.

    Also yields a result for each table that cannot be read and each subfolder that cannot be listed.

    Raises:
        InputError: `search.mismatch` is ERROR, and a listed file has the same path as a file that a table references,
            but another scheme or authority.
        BadRequestError: one of the folders in `search.roots` cannot be listed.
    """
    listed = list_files(means.engine, search)
    seen = means.heads()
    found = find_orphans(means.engine, search, seen, listed)
    yield from broken_ones(found.broken)
    if dry_run:
        yield from (FileOutcome(*orphan, outcome=WOULD_DELETE) for orphan in found.orphans)
    else:
        yield from delete_in_waves(search, means, found.orphans, seen)


def broken_ones(found: Iterable[Broken]) -> Iterator[FileOutcome]:
    """Yield the results for tables that cannot be read and for folders that cannot be listed, one for each location."""
    for broken in found:
        for place in broken.places or ("",):
            why = "nothing is deleted here"
            if not broken.incomplete:
                why += ", nor outside the locations of tables that can be read"
            if EVERYWHERE in broken.places:
                why = "nothing is deleted, because any file may be needed"
            why = f"{broken.problem}; {why}"
            yield FileOutcome(place, None, None, broken.owner, KEPT, why)


def delete_in_waves(
    search: Search, means: Means, orphans: Sequence[Orphan], seen: Iterable[StoreHead]
) -> Iterator[FileOutcome]:
    """Delete orphan files in waves of `WAVE` files, and yield a result for each file.

    Before each wave, heads are read again, and files that tables have begun to need are kept.

    Args:
        orphans: the files to delete.
        seen: the heads that were read before the orphans were found.
    """
    question = Question(
        [one.location for one in orphans],
        means.engine,
        search.names,
        any_storage=search.mismatch is not Mismatch.DELETE,
    )
    monitor = UseMonitor(question, seen, means.heads, means.objects, search.oldest_purge_ms)
    for start in range(0, len(orphans), WAVE):
        means.engine.progress("deleting files", start, len(orphans))
        monitor.look()
        wave = orphans[start : start + WAVE]
        if question.problem:
            why = f"it is not known whether a table needs the file now: {question.problem}"
            yield from (FileOutcome(*orphan, outcome=KEPT, error=why) for orphan in wave)
            continue
        going = [orphan for orphan in wave if orphan.location not in question.needed]
        for orphan in wave:
            if orphan.location in question.needed:
                yield FileOutcome(*orphan, outcome=KEPT, error="a table needs the file now")
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
