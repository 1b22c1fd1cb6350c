"""The files that expired snapshots of one table leave behind, which of them may be deleted, and the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from polaris_spark.catalog.overlapping_tables import Deletable
from polaris_spark.catalog.permits import Grant
from polaris_spark.catalog.snapshot_expiry import expired_key
from polaris_spark.maintenance.expiry.commits import Settled
from polaris_spark.maintenance.expiry.files import File, NeededVersion
from polaris_spark.maintenance.expiry.retention import Decision

PASSES = (
    ("deleting data and delete files", ("data", "position-deletes", "equality-deletes")),
    ("deleting manifests", ("manifest",)),
    ("deleting manifest lists and statistics", ("manifest-list", "statistics")),
)
"""File kinds in the order of deletion: a file is deleted after the files that only it lists."""
KINDS = tuple(kind for _, kinds in PASSES for kind in kinds)
LEADING = ("manifest", "manifest-list")
"""File kinds that list other files. Without them, the files that they list could not be found."""


@dataclass
class ExpiryResult:
    """The result of a run, or of a dry run, for one table."""

    table: str
    removed: Decision = field(default_factory=Decision)
    files: Counter[str] = field(default_factory=Counter)
    """Number of files deleted, by kind."""
    bytes: int = 0
    """Total size of the deleted files, as far as it is known."""
    failed: int = 0
    """Number of files that could not be deleted; the next run tries again."""
    notes: list[str] = field(default_factory=list)
    """Reasons why nothing was done, or why files are left."""


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
            records: object ids of the table's expired-snapshots records (`ExpiredSnapshots`).
            needed: versions of tables whose files stay.
            begun: whether an earlier run may have deleted some of the files.
            levels: properties of the table and its namespaces, from the nearest upwards.
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
        """Grants of the files that may be deleted, by location; `selection.take` fills them in."""
        self.problem = ""
        """Why it is not known which files are needed; empty if it is known."""
        self.shared = False
        """Whether other tables need some of the files that the expired snapshots name."""
        self.complete = True
        """Whether this run deletes everything, so that the next run has nothing to do for this table."""
        self._deleted: Counter[str] = Counter()

    @property
    def places(self) -> Collection[tuple[str, ...]]:
        """Locations that the table owns, as tuples of segments."""
        return self.deletable.places

    def stop(self, problem: str) -> None:
        """Keep all files that still exist, if `problem` is not empty, and note it as the reason."""
        if problem and not self.problem:
            self.outcome.notes.append(f"files are left: {problem}")
            self.problem, self.complete = problem, False

    def share(self, location: str | None = None) -> None:
        """Note that another table, branch or catalog needs some of the files that the expired snapshots name.

        The manifests and manifest lists stay for as long as such a file is needed.

        Args:
            location: location of a needed file, which is kept.
        """
        if not self.shared:
            self.outcome.notes.append("files are left that another table, branch or catalog needs")
        self.shared, self.complete = True, False
        if location is not None:
            self.files.pop(location, None)

    def going(self, kinds: Collection[str] = KINDS) -> Iterator[File]:
        """Return the files of some kinds that may be deleted."""
        return (file for file in self.files.values() if file.kind in kinds and self.may_delete(file))

    def may_delete(self, file: File) -> bool:
        """Whether a file of this leftover may still be deleted."""
        if self.problem or (self.shared and file.kind in LEADING):
            return False
        return file.location in self.files

    def count(self, files: Iterable[File]) -> None:
        """Count files as deleted."""
        for file in files:
            self._deleted[file.kind] += 1
            self.outcome.files[file.kind] += 1
            self.outcome.bytes += file.bytes

    def fail(self, files: int) -> None:
        """Count files that could not be deleted. If there are any, the other files stay: they may list these files.

        Args:
            files: number of files that could not be deleted.
        """
        if files:
            self.outcome.failed += files
            self.outcome.notes.append(f"{files} files could not be deleted; the next run tries again")
            self.files, self.complete = {}, False

    def settled(self) -> Settled:
        """Return the table's expired-snapshots records to remove, because all their files are deleted."""
        keys = tuple(expired_key(self.entity_id, record) for record in self.records)
        summary = {f"deleted-{kind}": str(number) for kind, number in sorted(self._deleted.items())}
        return Settled(self.entity_id, keys, summary)
