"""Deleting the files that expired snapshots left: pass by pass, a wave of files at a time.

Before each wave the heads of the store are read again, and what tables name that were changed, registered or branched
since the last look stays, with all that leads to it; where that cannot be read, everything that is left stays. So a
branch that is made from an old commit, or a metadata file of an old version that is registered, while a run finds out
what to delete keeps its files.

The window that remains is one wave, from the look to the deletion of its last file. Neither grace nor retention covers
it: history keeps rows, but no files of what expired, so who brings back an old version gets its files only as far as
they are there when the next look sees it, in that window as at any later time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.expiring import gc_enabled
from polaris_spark.catalog.permits import Permit
from polaris_spark.commits.change import Operation
from polaris_spark.maintenance.deleting import delete_files
from polaris_spark.maintenance.deletions import FILES_OF_A_BATCH, DeletedFile, DeletedFiles, record_deletions
from polaris_spark.maintenance.expiry.files import File
from polaris_spark.maintenance.expiry.leftovers import PASSES, Leftover
from polaris_spark.maintenance.spreading import Spread
from polaris_spark.maintenance.store_needs import Watching

JOB = "expire"

FILES_OF_A_WAVE = 20_000
"""So many files are deleted between two looks at the heads: some for each of many executors."""


class Deleting:
    """Deletes files of leftovers, and records it."""

    def __init__(
        self,
        catalog: Catalog,
        operation: Operation,
        spread: Spread,
        watching: Watching,
        catalog_properties: Callable[[], Mapping[str, str]],
        *,
        keep_records_ms: int,
        progress: Callable[[str, int, int], None],
    ) -> None:
        """
        Args:
            watching: knows that no table needed the files when heads were read first.
            catalog_properties: returns the catalog's properties, as of the last look.
            keep_records_ms: how long deletions stay recorded, milliseconds.
        """
        self._catalog = catalog
        self._operation = operation
        self._spread = spread
        self._watching = watching
        self._catalog_properties = catalog_properties
        self._keep_records_ms = keep_records_ms
        self._progress = progress

    def run(self, leftovers: Sequence[Leftover]) -> None:
        """Delete what is to go of each, in passes; nothing goes before what only it names."""
        for what, kinds in PASSES:
            files = [(leftover, file) for leftover in leftovers for file in leftover.going(kinds)]
            for start in range(0, len(files), FILES_OF_A_WAVE):
                self._progress(what, start, len(files))
                wave = files[start : start + FILES_OF_A_WAVE]
                self._look(leftovers)
                going: dict[Leftover, list[File]] = {}
                for leftover, file in wave:
                    if leftover.may_delete(file):
                        going.setdefault(leftover, []).append(file)
                self._delete(going)

    def _look(self, leftovers: Sequence[Leftover]) -> None:
        needed, problem = self._watching.look(), self._watching.question.problem
        properties = self._catalog_properties()
        for leftover in leftovers:
            if any(leftover.going()) and not gc_enabled([*leftover.levels, properties]):
                leftover.stop("gc.enabled is false")
        for leftover in leftovers if needed or problem else ():
            for location in needed.intersection(leftover.files):
                leftover.share(location)
            if problem and any(leftover.going()):
                leftover.stop(f"nobody can say whether a table has come to need them: {problem}")

    def _delete(self, going: Mapping[Leftover, Sequence[File]]) -> None:
        grants = {
            file.location: owner.grants[file.location] for owner, files in going.items() for file in files
        }
        permit = Permit.of_all(leftover.deletable.permit for leftover in going)
        self._record(going, "deleted")
        deleted = delete_files(self._spread, list(grants.values()), permit)
        failed = {location for left in deleted for location in left.files}
        left = {owner: [one for one in files if one.location in failed] for owner, files in going.items()}
        for leftover, files in going.items():
            leftover.count(file for file in files if file.location not in failed)
            leftover.fail(len(left[leftover]))
        self._record(left, "failed")

    def _record(
        self, files: Mapping[Leftover, Sequence[File]], outcome: Literal["deleted", "failed"]
    ) -> None:
        now, principal = self._catalog.context.clock.now_ms(), self._operation.principal
        batches = [
            DeletedFiles(
                now,
                principal,
                JOB,
                leftover.entity_id,
                leftover.outcome.table,
                outcome,
                tuple(
                    DeletedFile(one.location, one.kind, one.bytes)
                    for one in some[start : start + FILES_OF_A_BATCH]
                ),
            )
            for leftover, some in files.items()
            for start in range(0, len(some), FILES_OF_A_BATCH)
        ]
        record_deletions(self._catalog, self._operation, batches, keep_ms=self._keep_records_ms)
