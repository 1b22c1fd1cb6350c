"""What expired snapshots of one table leave: its files, which of them may be deleted, and what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from polaris_spark.catalog.expiring import expired_key
from polaris_spark.catalog.permits import Grant
from polaris_spark.catalog.sharing import Deletable
from polaris_spark.maintenance.expiry.commits import Settled
from polaris_spark.maintenance.expiry.deciding import Decision
from polaris_spark.maintenance.expiry.files import File, Version

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
class Outcome:
    """What a run did, or in a dry run would do, with one table."""

    table: str
    removed: Decision = field(default_factory=Decision)
    files: Counter[str] = field(default_factory=Counter)
    """How many files were deleted, by kind."""
    bytes: int = 0
    """Of those files, as far as it is known."""
    failed: int = 0
    """Files that could not be deleted; the next run tries again."""
    notes: list[str] = field(default_factory=list)
    """Why nothing was done, or why something is left."""


class Leftover:
    """A table with expired snapshots whose files may still be there."""

    def __init__(
        self,
        entity_id: int,
        outcome: Outcome,
        records: list[int],
        deletable: Deletable,
        needed: list[Version],
        *,
        begun: bool,
        levels: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """
        Args:
            records: ids of its `ExpiredSnapshots`.
            needed: versions of tables whose files stay.
            begun: whether an earlier run may have deleted some of its files.
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
        """By location: those that nothing needs."""
        self.grants: dict[str, Grant] = {}
        """By location: grants of the files that may be deleted, which `taking` fills in."""
        self.problem = ""
        """Why it is not known which files are needed."""
        self.shared = False
        """Whether others need some of what its expired snapshots name."""
        self.complete = True
        """Whether nothing will be left to do for the next run."""
        self._deleted: Counter[str] = Counter()

    @property
    def places(self) -> Collection[tuple[str, ...]]:
        """The locations that the table owns."""
        return self.deletable.places

    def stop(self, problem: str) -> None:
        """Leave everything that is still there, for a reason, if there is one."""
        if problem and not self.problem:
            self.outcome.notes.append(f"files are left: {problem}")
            self.problem, self.complete = problem, False

    def share(self, location: str | None = None) -> None:
        """Others need some of what its expired snapshots name: what leads there stays until they do not.

        Args:
            location: of a file of it that they need.
        """
        if not self.shared:
            self.outcome.notes.append("files are left that another table, branch or catalog needs")
        self.shared, self.complete = True, False
        if location is not None:
            self.files.pop(location, None)

    def going(self, kinds: Collection[str] = KINDS) -> Iterator[File]:
        """Its files of some kinds that may be deleted."""
        return (file for file in self.files.values() if file.kind in kinds and self.may_delete(file))

    def may_delete(self, file: File) -> bool:
        """Whether a file of it may still be deleted."""
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
        """Some files could not be deleted: what names them stays."""
        if files:
            self.outcome.failed += files
            self.outcome.notes.append(f"{files} files could not be deleted; the next run tries again")
            self.files, self.complete = {}, False

    def settled(self) -> Settled:
        """The table once all its files are deleted."""
        keys = tuple(expired_key(self.entity_id, record) for record in self.records)
        summary = {f"deleted-{kind}": str(number) for kind, number in sorted(self._deleted.items())}
        return Settled(self.entity_id, keys, summary)
