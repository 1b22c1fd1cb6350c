"""Deletion of the files of expired snapshots: in passes by kind of file, and within a pass in waves of some files each.

Before each wave, a *look* reads the heads of the store again, and searches the tables that were changed, registered,
branched or dropped since the last look. Files that these tables name are kept. If such a file belongs to the expired
snapshots of a table, all remaining manifests and manifest lists of these snapshots are kept as well. If one of the
searched tables cannot be read, all remaining files are kept (missing manifests are an exception: see `files_in_use`).
Looks are needed because an old table version can come back into use during a run: for example, a branch is made from an
old commit, or the metadata file of an old version is registered.

Files are not protected between a look and the end of its wave. The grace period and the retention do not protect them
either: they keep the rows of old versions, but not the files of expired snapshots. If an old version is brought back,
during a run or later, some of its files may be gone already. The next look keeps the files that still exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.engine import Engine
from polaris_spark.catalog.files.permits import Permit
from polaris_spark.catalog.tables.snapshot_expiry import gc_enabled
from polaris_spark.commits.change import Operation
from polaris_spark.maintenance.deletion_records import (
    FILES_OF_A_BATCH,
    DeletedFile,
    DeletedFiles,
    record_deletions,
)
from polaris_spark.maintenance.expiry.files import File
from polaris_spark.maintenance.expiry.leftovers import PASSES, Leftover
from polaris_spark.maintenance.file_deletion import delete_files
from polaris_spark.maintenance.orphans.files_in_use import UseMonitor

JOB = "expire"

FILES_OF_A_WAVE = 20_000
"""Number of files that are deleted between two reads of the store's heads. This is enough work for many executors."""


class ExpiredFileDeletion:
    """Deletion of the files of expired snapshots. Every deleted file is recorded (`maintenance.deletion_records`)."""

    def __init__(
        self,
        catalog: Catalog,
        operation: Operation,
        engine: Engine,
        monitor: UseMonitor,
        catalog_properties: Callable[[], Mapping[str, str]],
        *,
        keep_records_ms: int,
    ) -> None:
        """
        Args:
            monitor: the check whether tables have begun to need the files. It is repeated before each wave.
            catalog_properties: returns the catalog's properties as of the last call of `monitor.look`.
            keep_records_ms: how long deleted files stay recorded, in milliseconds.
        """
        self._catalog = catalog
        self._operation = operation
        self._engine = engine
        self._monitor = monitor
        self._catalog_properties = catalog_properties
        self._keep_records_ms = keep_records_ms

    def run(self, leftovers: Sequence[Leftover]) -> None:
        """Delete the files of the tables' expired snapshots, in the passes `PASSES`, and update the leftovers' results.

        A manifest or manifest list is deleted after the files that only it lists.
        """
        for what, kinds in PASSES:
            files = [(leftover, file) for leftover in leftovers for file in leftover.going(kinds)]
            for start in range(0, len(files), FILES_OF_A_WAVE):
                self._engine.progress(what, start, len(files))
                wave = files[start : start + FILES_OF_A_WAVE]
                self._look(leftovers)
                going: dict[Leftover, list[File]] = {}
                for leftover, file in wave:
                    if leftover.may_delete(file):
                        going.setdefault(leftover, []).append(file)
                self._delete(going)

    def _look(self, leftovers: Sequence[Leftover]) -> None:
        needed, problem = self._monitor.look(), self._monitor.question.problem
        properties = self._catalog_properties()
        for leftover in leftovers:
            if any(leftover.going()) and not gc_enabled([*leftover.levels, properties]):
                leftover.stop("gc.enabled is false")
        for leftover in leftovers if needed or problem else ():
            for location in needed.intersection(leftover.files):
                leftover.share(location)
            if problem and any(leftover.going()):
                leftover.stop(f"it is not known whether a table has come to need them: {problem}")

    def _delete(self, going: Mapping[Leftover, Sequence[File]]) -> None:
        grants = {
            file.location: owner.grants[file.location] for owner, files in going.items() for file in files
        }
        permit = Permit.of_all(leftover.deletable.permit for leftover in going)
        self._record(going, "deleted")
        deleted = delete_files(self._engine, list(grants.values()), permit)
        failed = {location for left in deleted for location in left}
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
