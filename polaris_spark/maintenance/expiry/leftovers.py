"""Tables with expired snapshots whose files may still exist (`Leftover`), and the result of an expiry run for each of
them (`ExpiryResult`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from polaris_spark.catalog.drops.overlapping_tables import Deletable
from polaris_spark.catalog.files.permits import Grant
from polaris_spark.catalog.tables.snapshot_expiry import expired_key
from polaris_spark.maintenance.expiry.commits import Settled
from polaris_spark.maintenance.expiry.files import File, NeededVersion
from polaris_spark.maintenance.expiry.retention import ExpiryDecision

PASSES = (
    ("deleting data and delete files", ("data", "position-deletes", "equality-deletes")),
    ("deleting manifests", ("manifest",)),
    ("deleting manifest lists and statistics", ("manifest-list", "statistics")),
)
"""Steps of the deletion, in order: what the step does, for progress reports, and the kinds of files that it deletes.

A manifest or manifest list is deleted after the files that only it lists.
"""
KINDS = tuple(kind for _, kinds in PASSES for kind in kinds)
LEADING = ("manifest", "manifest-list")
"""Kinds of files that list other files. Without them, a later run could not find the files that they list."""


@dataclass
class ExpiryResult:
    """The result of an expiry run for one table. After a dry run, it says what would be removed and deleted."""

    table: str
    removed: ExpiryDecision = field(default_factory=ExpiryDecision)
    files: Counter[str] = field(default_factory=Counter)
    """Number of files deleted, by kind."""
    bytes: int = 0
    """Total size of the deleted files in bytes, without files whose size is not known."""
    failed: int = 0
    """Number of files that could not be deleted; the next run tries again."""
    notes: list[str] = field(default_factory=list)
    """Reasons why nothing was done, or why some files were not deleted."""


class Leftover:
    """A table with expired snapshots whose files may still exist."""

    def __init__(
        self,
        entity_id: int,
        outcome: ExpiryResult,
        records: list[int],
        deletable: Deletable,
        needed: list[NeededVersion],
        *,
        begun: bool,
        levels: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """
        Args:
            outcome: the result for this table, which this object updates.
            records: object ids of the table's expired-snapshots records (`ExpiredSnapshots`).
            deletable: decides by location which files may be deleted for this table.
            needed: versions of this and other tables whose files are kept.
            begun: whether an earlier run may have deleted some of the files.
            levels: properties of the table, then of its namespace, then of each namespace above it.
        """
        self.entity_id = entity_id
        self.outcome = outcome
        self.records = records
        self.deletable = deletable
        self.needed = needed
        self.begun = begun
        self.levels = levels
        self.files: dict[str, File] = {}
        """The files that no table needs, by location."""
        self.grants: dict[str, Grant] = {}
        """Permissions to delete files, by the location of the file; `selection.take` fills them in."""
        self.problem = ""
        """Reason why all files that still exist must be kept; empty if there is none."""
        self.shared = False
        """Whether other tables need some of the files of the expired snapshots."""
        self.complete = True
        """Whether this run deletes all files of the expired snapshots, so that the next run need not look for them."""
        self._deleted: Counter[str] = Counter()

    @property
    def places(self) -> Collection[tuple[str, ...]]:
        """Locations that the table owns, as tuples of URI segments."""
        return self.deletable.places

    def stop(self, problem: str) -> None:
        """Keep all files that still exist, and note `problem` as the reason. Do nothing if `problem` is empty."""
        if problem and not self.problem:
            self.outcome.notes.append(f"files are left: {problem}")
            self.problem, self.complete = problem, False

    def share(self, location: str | None = None) -> None:
        """Note that another table, branch or catalog needs some files of the expired snapshots.

        From now on, all manifests and manifest lists of the expired snapshots are kept, so that later runs find the
        shared files again.

        Args:
            location: location of a shared file, which is then kept; None if the shared file is not in `files`.
        """
        if not self.shared:
            self.outcome.notes.append("files are left that another table, branch or catalog needs")
        self.shared, self.complete = True, False
        if location is not None:
            self.files.pop(location, None)

    def going(self, kinds: Collection[str] = KINDS) -> Iterator[File]:
        """Return the files that may be deleted and whose kind is one of `kinds`."""
        return (file for file in self.files.values() if file.kind in kinds and self.may_delete(file))

    def may_delete(self, file: File) -> bool:
        """Return whether a file may still be deleted."""
        if self.problem or (self.shared and file.kind in LEADING):
            return False
        return file.location in self.files

    def count(self, files: Iterable[File]) -> None:
        """Add deleted files to the counts and sizes in the result."""
        for file in files:
            self._deleted[file.kind] += 1
            self.outcome.files[file.kind] += 1
            self.outcome.bytes += file.bytes

    def fail(self, files: int) -> None:
        """Note that files could not be deleted. All remaining files are then kept, because they may list these files.

        Args:
            files: number of files that could not be deleted; nothing is noted for 0.
        """
        if files:
            self.outcome.failed += files
            self.outcome.notes.append(f"{files} files could not be deleted; the next run tries again")
            self.files, self.complete = {}, False

    def settled(self) -> Settled:
        """Return the table's expired-snapshots records. They can be removed, because all files of their snapshots have
        been deleted."""
        keys = tuple(expired_key(self.entity_id, record) for record in self.records)
        summary = {f"deleted-{kind}": str(number) for kind, number in sorted(self._deleted.items())}
        return Settled(self.entity_id, keys, summary)
