"""`Catalog`, the object through which the protocol handlers read and change one branch of a catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from typing import TypeVar

from polaris_spark.catalog.catalogs.catalogs import current_row
from polaris_spark.catalog.catalogs.metrics import MetricsReports
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.entities.entities import Context, hash_of
from polaris_spark.catalog.entities.properties import EffectiveProperties
from polaris_spark.catalog.files.confinement import Confinement
from polaris_spark.catalog.files.files import Files, local_path
from polaris_spark.catalog.files.locations import segments
from polaris_spark.catalog.rows import NAMES, OWNERS, CatalogRow, Unloaded, id_from
from polaris_spark.catalog.tables.lazy_imports import UNLOADED, LoadImported
from polaris_spark.commits.as_of import AsOf, pinned
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.rows import Commit, LogEntry
from polaris_spark.commits.state import CommitReader, Read, State, StoredObjects, reading_state
from polaris_spark.errors import (
    BadRequestError,
    CommitFailedError,
    ForbiddenError,
    ReferenceGoneError,
    WrongTypeError,
)
from polaris_spark.names import MAIN, is_transaction
from polaris_spark.system.registry import References

P = TypeVar("P")
R = TypeVar("R")


class Catalog:
    """One branch of a catalog: reads its commits, and commits changes to it. Thread-safe."""

    def __init__(
        self,
        references: References,
        row: CatalogRow,
        context: Context,
        files: Files,
        *,
        branch: str = MAIN,
    ) -> None:
        self.references = references
        self.row = row
        self.context = context
        self.files = files
        self.branch = branch
        self.reference = head_name(row, branch)
        self.point = ""
        """The point in history or the tag that the catalog shows, as the user wrote it; empty for the newest state."""
        self.tagged = False
        """Whether the catalog shows a tag."""
        self._read: list[CommitReader] = []
        """At most one head. The next call of `head` removes and returns it instead of reading the store."""
        self._fixed: CommitReader | None = None
        """The commit that the catalog shows; None for the newest."""
        self.opened_branches: set[str] = set()
        """Branches that this process has opened, so that they have a copy of the catalog's properties. All copies share
        this set."""
        self._recorded: dict[str, list[list[Read]]] = {}
        """Lists to which the reads of a branch are added, by the name of the branch. All copies share this dict."""
        self.bound = False
        """Whether the configuration fixes the state that the catalog shows, so that requests cannot choose another."""
        self._checked_names: tuple[tuple[bytes, int], ...] = ()
        """Keys in the index `names` that were looked up for a request, with the entity ids that were found."""
        self.metrics = MetricsReports(
            references, row, keep=lambda: self.effective_properties().metrics_reports
        )

    def __copy__(self) -> Catalog:
        found = object.__new__(type(self))  # several times as fast as the copy that Python makes by default
        found.__dict__.update(self.__dict__)
        return found

    def restricted(self, locations: Iterable[str], *, follow_links: bool = False) -> Catalog:
        """Return a copy of this catalog in which clients may use only files below the catalog's warehouse and
        `locations`.

        Args:
            follow_links: whether to follow a symbolic link below these folders if its target is also below one of
                them. All other links below these folders are refused.
        Raises:
            BadRequestError: one of `locations` is not absolute.
        """
        restricted = copy(self)
        places = (self.context.warehouse, *locations)
        local = [str(path) for place in places if (path := local_path(place)) is not None]
        confinement = Confinement(local, follow_links=follow_links)
        allowed = tuple(segments(place) for place in places)
        settings = self.context.settings and hash_of(
            self.context.settings, allowed, confinement.roots, follow_links
        )
        restricted.context = self.context._replace(
            allowed=allowed, confinement=confinement, settings=settings
        )
        restricted.files = self.files.confined(confinement)
        restricted.references = self.references.writing(restricted.files)
        return restricted

    @property
    def name(self) -> str:
        """The catalog's name in its realm."""
        return self.row.name

    def renamed(self, row: CatalogRow) -> Catalog:
        """Return a copy of this catalog with another name, after it was renamed.

        Args:
            row: the newest row of the catalog.
        """
        found = copy(self)
        found.row = row
        return found

    @property
    def is_fixed(self) -> bool:
        """Whether this catalog shows a state that does not change."""
        return self._fixed is not None

    @property
    def reader(self) -> StoredObjects:
        """Reads committed content."""
        fixed = self._fixed
        return StoredObjects(self.references.store_of(self.reference) if fixed is None else fixed.store)

    @property
    def in_transaction(self) -> bool:
        """Whether this catalog shows the state of a transaction of this process."""
        return self.references.is_private(self.reference)

    def on_branch(self, branch: str) -> Catalog:
        """Return a copy of this catalog that reads and changes the newest state of a branch, which must exist.

        Raises:
            ForbiddenError: the configuration fixes the state that this catalog shows.
        """
        self.require_choice(branch)
        found = copy(self)
        found.branch, found.reference = branch, head_name(self.row, branch)
        found._read, found._fixed, found.point, found.tagged = [], None, "", False
        return found

    def as_of(self, point: AsOf) -> Catalog:
        """Return a copy of this catalog that shows the state at a point in the branch's history, and cannot be changed.

        Raises:
            HistoryTrimmedError: the point is older than the oldest commit that is still stored.
            BeforeHistoryError: the point is a time before the first commit.
            InputError: the point is a commit number or commit id that does not exist in this history.
        """
        newest = self.head()
        store = newest.store
        head = pinned(store, newest.head, point)
        commit = CommitReader(store, b"", head, store.get(head.commit, Commit), row_name=newest.row_name)
        return self.at(commit, point.text)

    def at(self, commit: CommitReader, point: str) -> Catalog:
        """Return a copy of this catalog that shows the state of a commit, and cannot be changed.

        Args:
            point: the text that names the commit.
        """
        found = copy(self)
        found._fixed, found.point = commit, point
        return found

    def head(self) -> CommitReader:
        """Return the newest commit of the branch, read from the store now. On a copy that `beginning_at` returned, the
        first call returns the given head instead. On a copy that `as_of` returned, return its commit.

        Raises:
            ReferenceGoneError: the branch was dropped.
        """
        if self._fixed is not None:
            return self._fixed
        if self._read:
            return self._read.pop()
        try:
            return self.references.read(self.reference)
        except ReferenceGoneError as error:
            raise self._gone() from error

    def newest(self, head: CommitReader) -> CommitReader:
        """If this catalog shows a state of the past, read and return the newest commit of its branch, or return `head`
        if the branch was dropped. Otherwise, return `head`, which the caller has just read."""
        if self._fixed is None:
            return head
        try:
            return self.references.read(self.reference)
        except ReferenceGoneError:
            return head

    def _gone(self) -> ReferenceGoneError:
        if is_transaction(self.branch):
            return ReferenceGoneError(transaction_ended(self.branch))
        self.opened_branches.discard(self.branch)  # a tag may have the name by now
        if current_row(self.references, self.row) is None:
            return ReferenceGoneError(
                f"catalog {self.name!r} was dropped; undrop_catalog restores it until its grace period ends"
            )
        return ReferenceGoneError(
            f"catalog {self.name!r} has no branch {self.branch!r}; it was dropped or renamed"
        )

    def beginning_at(self, head: CommitReader) -> Catalog:
        """Return a copy of this catalog whose method `head` returns `head` at its first call. Later calls read the
        store.

        This saves a read when the caller has just read the head. The copy is for one thread only.
        """
        catalog = self.__copy__()
        catalog._read = [head]
        return catalog

    def resolving(self, names: Iterable[tuple[bytes, int]]) -> Catalog:
        """Return a copy of this catalog that refuses a change if one of these names refers to another entity when the
        change is committed. So a request that was allowed for one table never changes another table that got its name
        in the meantime.

        Args:
            names: keys in the index `names`, with the entity ids that they have now.
        """
        found = copy(self)
        found._checked_names = tuple(names)
        return found

    def owning(self) -> Catalog:
        """Return a copy of this catalog in which the principal that creates an entity becomes its owner."""
        found = copy(self)
        found.context = self.context._replace(has_owners=True)
        return found

    def effective_properties(self) -> EffectiveProperties:
        """Read the newest commit, and return the effective properties of the catalog at this commit."""
        return self.context.binding.of(self.head())

    def view(self, at: CommitReader | None = None) -> State:
        """Return a `State` for reading the commit `at`. If `at` is None, read the newest commit from the store."""
        state = reading_state(self.head() if at is None else at)
        if self._recorded and self.branch in self._recorded:
            self._recorded[self.branch].append(state.reads)
        return state

    @property
    def records_reads(self) -> bool:
        """Whether the reads of this branch are recorded."""
        return self.branch in self._recorded

    def record_reads(self, branch: str, reads: list[list[Read]] | None) -> None:
        """Begin to record what is read of a branch: each `State` that `view` returns, and each change, adds the list of
        its reads to `reads`. If `reads` is None, end the recording."""
        if reads is None:
            self._recorded.pop(branch, None)
        else:
            self._recorded[branch] = reads

    def commit(self, change: Change[P, R]) -> R:
        """Commit a change to this branch, and return the change's result. Lazily imported tables and views that the
        change reads are loaded first.

        Raises:
            BadRequestError: this catalog shows the state of a transaction, and the change needs stored content of
                another state.
            ForbiddenError: this catalog shows a state of the past.
            ReferenceGoneError: the branch was dropped.
        """
        self.require_present()
        if change.from_elsewhere and self.in_transaction:
            raise BadRequestError(
                "merges, reverts, cherry-picks, imports and undrop cannot be part of a transaction; commit the "
                "transaction or roll it back first"
            )
        reads = self._recorded.get(self.branch)
        recorded = change if reads is None else _Recorded(change, reads)
        if self._checked_names:
            recorded = _OfCheckedNames(recorded, self._checked_names)
        try:
            return self.loading(
                partial(self.references.commit, self.reference, recorded), change.operation.principal
            )
        except ReferenceGoneError as error:
            raise self._gone() from error

    def require_present(self) -> None:
        """Refuse a change of a catalog that shows a state of the past.

        Raises:
            ForbiddenError: this catalog shows a state of the past.
        """
        if self._fixed is not None:
            raise ForbiddenError(
                f"this is catalog {self.name!r} as of {self.point} (commit number {self._fixed.head.number}), which "
                "cannot be changed; open a branch of the catalog to change it"
            )

    def require_choice(self, state: str) -> None:
        """Refuse a request for another state if the configuration fixes the state that this catalog shows.

        Raises:
            ForbiddenError: the state is fixed.
        """
        if self.bound and self._fixed is not None:
            raise ForbiddenError(
                f"this session shows only catalog {self.name!r} as of {self.point}; open another session to read "
                f"{state[:80]!r}"
            )

    def loading(self, action: Callable[[], R], principal: str) -> R:
        """Return the result of an action that reads tables or views. If the action reads a lazily imported table or
        view that is not loaded yet, load it and run the action again.

        Args:
            action: may run several times, so it must have no effect when it raises an error.
            principal: logged as the author of the loads.
        """
        last = 0
        while True:
            try:
                return action()
            except WrongTypeError as error:
                if error.found != UNLOADED or error.id == last:
                    raise
                last = error.id
            unloaded = self.reader.get(last, Unloaded)
            if self._fixed is not None:  # what was loaded later is not in this state
                raise ForbiddenError(
                    f"catalog {self.name!r} as of {self.point} (commit number {self._fixed.head.number}) does not have "
                    f"the metadata of the table or view that was imported from {unloaded.metadata_location!r}: it was "
                    "imported lazily, and its metadata had not been loaded at this commit; to read the table or view, "
                    "call load_imported on the branch, and then read a later state"
                )
            load = LoadImported(self.context, Operation(b"", principal), unloaded, self.files)
            self.references.commit(self.reference, load)


def transaction_ended(state: str) -> str:
    """Return a message about a transaction that this session does not have, given the name of its state."""
    return (
        f"transaction {state!r} has ended: it was committed or rolled back, was not used for a day, or belongs to "
        "another session; begin one with begin(). After a rollback to a savepoint, use the state that rollback returned"
    )


class _OfCheckedNames(Change[P, R]):
    """A change that is refused if one of its names refers to another entity than when the request was checked."""

    def __init__(self, change: Change[P, R], names: tuple[tuple[bytes, int], ...]) -> None:
        self.operation = change.operation
        self.onto_protected, self.size = change.onto_protected, change.size
        self.from_elsewhere = change.from_elsewhere
        self._change = change
        self._names = names

    def prepare(self, view: State) -> P:
        return self._change.prepare(view)

    def apply(self, state: State, prepared: P) -> R:
        found = state.lookup_many(NAMES, [key for key, _ in self._names])
        for (_, entity), entry in zip(self._names, found, strict=True):
            if entry is None or id_from(entry.value) == entity:
                continue
            owner = state.lookup(OWNERS, entry.value[:8])
            if (
                owner is None or owner.value.decode() != self.operation.principal
            ):  # an owner may do everything
                raise CommitFailedError(
                    "while the request was being checked, a name in it was given to another entity; send the "
                    "request again"
                )
        return self._change.apply(state, prepared)

    def repeat(self, state: State, entries: list[LogEntry]) -> R:
        return self._change.repeat(state, entries)


class _Recorded(Change[P, R]):
    """A change whose reads are added to a list, even if the change fails."""

    def __init__(self, change: Change[P, R], reads: list[list[Read]]) -> None:
        self.operation = change.operation
        self.onto_protected, self.size = change.onto_protected, change.size
        self.reads_to_prepare = change.reads_to_prepare
        self._change = change
        self._reads = reads

    def prepare(self, view: State) -> P:
        try:
            return self._change.prepare(view)
        finally:
            self._reads.append(view.reads)

    def apply(self, state: State, prepared: P) -> R:
        try:
            return self._change.apply(state, prepared)
        finally:
            self._reads.append(state.reads)

    def repeat(self, state: State, entries: list[LogEntry]) -> R:
        return self._change.repeat(state, entries)
