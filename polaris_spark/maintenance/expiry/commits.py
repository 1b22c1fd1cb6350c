"""The changes that an expiry run commits. They remove snapshots from tables, and remove expired-snapshots records.

An expired-snapshots record (`ExpiredSnapshots`) lists snapshots that were removed from a table but whose files are not
deleted yet. If a commit for several tables is refused, its tables are split into halves, and each half is tried again.
The attempts for a table write metadata files with the same UUID in their names. Metadata files that no attempt
committed are deleted afterwards. If the outcome of a commit is unknown, the run ends, and all metadata files of this
commit are kept.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import (
    CatalogChange,
    Context,
    NameEntry,
    TableName,
    TimedChange,
    find,
)
from polaris_spark.catalog.files.folders import Folders
from polaris_spark.catalog.files.permits import Permit
from polaris_spark.catalog.materialized.source_changes import RefreshNeeds
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.metadata.table_updates import apply_all
from polaris_spark.catalog.rows import IDS, TABLE, id_bytes
from polaris_spark.catalog.tables.contents import ContentChange, Prepared, StoredContent, places
from polaris_spark.catalog.tables.snapshot_expiry import EXPIRED, namespace_levels, record_expired
from polaris_spark.commits.change import Operation, Unrepeated
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    ObjectTooLargeError,
    OutcomeUnknownError,
    PolarisError,
    RequestError,
    TryAgainError,
    UnwritableFileError,
)
from polaris_spark.maintenance.expiry.retention import NOTHING, ExpiryDecision, ExpiryRequest, decide_table

TABLES_OF_A_COMMIT = 100
"""Maximum number of tables from which one commit removes snapshots. It is small, so that other writers hardly wait."""

REFUSALS = 3
"""Number of consecutive tables whose metadata files cannot be written, after which storage counts as unreachable.

The remaining tables of the commit are then not tried. After the first failure, tables are tried in random order, so
that a few tables that always fail do not permanently keep the other tables from being tried.
"""


_REFUSED = (RequestError, UnwritableFileError, ObjectTooLargeError)
"""Errors that guarantee that nothing was committed, because they are only raised before the compare-and-swap."""


class ToExpire(NamedTuple):
    """A table with snapshots, branches, tags, schemas or partition specs that expire."""

    name: TableName
    entity_id: int
    content: int
    """Object id of the table version for which the decision was made."""
    levels: list[Mapping[str, str]]
    """Properties on which the decision is based: those of the table's namespace, then of each namespace above it, then
    of the catalog."""
    decision: ExpiryDecision
    policy: Mapping[str, str] = {}
    """Properties that a policy sets. They override those of the table and `levels`."""


class Removed(NamedTuple):
    """The parts that were removed from a table, or in `error` the reason why no part was removed."""

    table: ToExpire
    decision: ExpiryDecision
    error: str = ""


class _ExpireTable(ContentChange[tuple[Prepared, NameEntry, ExpiryDecision], Table]):
    """Change that removes the expired parts of one table.

    If the table, or the properties of its namespaces or catalog, have changed since it was decided which parts expire,
    the change decides this again.
    """

    action = "expire-snapshots"
    onto_protected = True
    kind = TABLE
    cls = Table

    def __init__(self, context: Context, operation: Operation, table: ToExpire, asked: ExpiryRequest) -> None:
        super().__init__(context, operation, table.name)
        self.table = table
        self.asked = asked
        self.leave_files()

    def leave_files(self) -> None:
        """Remove the metadata files of earlier attempts from the files to delete (`files`), because an earlier attempt
        may have been committed with them. Later attempts use other file names."""
        self.uuid = str(uuid.uuid4())
        self.files: set[str] = set()
        """Locations of metadata files that failed attempts may have left behind."""
        self.places: set[tuple[str, ...]] = set()
        """Locations that the table owned in these attempts, as tuples of URI segments."""

    def decided(
        self, state: State, for_refreshes: Mapping[str, frozenset[int]]
    ) -> tuple[NameEntry, ExpiryDecision] | None:
        """Return the table's entry in the index `names`, and which of its parts expire now.

        Return None if the table no longer exists, or if no part of it expires any more.

        Args:
            for_refreshes: the snapshots that refreshes need now.
        """
        found = find(state, self.key)
        if found is None or found.entity_id != self.table.entity_id:
            return None
        decision: ExpiryDecision | None = self.table.decision
        levels = [*namespace_levels(state, self.name.namespace), self.context.binding.at(state).retention]
        needed = any(not ids.isdisjoint(self.table.decision.snapshots) for ids in for_refreshes.values())
        if found.content != self.table.content or levels != self.table.levels or needed:
            # Only manifests show which partition specs are needed. So the specs and schemas of a changed table are left
            # to the next run.
            asked = self.asked._replace(clean_metadata=False, for_refreshes=for_refreshes)
            table = state.get(found.content, Table)
            decision = decide_table(table, state, levels, asked, lambda _: set(), self.table.policy)
        return (found, decision) if decision and decision.updates() else None

    def prepare(self, view: State) -> tuple[Prepared, NameEntry, ExpiryDecision]:
        raise AssertionError(
            "_ExpireTable cannot be committed alone: _ExpireTables prepares the changes of all its tables"
        )

    def apply(
        self, state: State, prepared: tuple[Prepared, NameEntry, ExpiryDecision]
    ) -> StoredContent[Table]:
        fixed, found, decision = prepared
        before = state.get_for_rewrite(found.content, Table)
        draft = TableDraft(before, state, now_ms=fixed.now)
        apply_all(draft, decision.updates())
        effective = self.context.binding.at(state)
        stored = self.store(state, found, draft, fixed, effective)
        if effective.metadata_files:
            self.files.add(stored.value.metadata_location)
            self.places |= places(stored.value)
        record_expired(state, before, decision.snapshots, stored.content, fixed.now)
        return stored


class _Expired(NamedTuple):
    """The parts that a commit removed from a table."""

    decision: ExpiryDecision = NOTHING
    metadata_file: str = ""
    """Location of the metadata file of the new table version; empty if the commit did not change the table."""


class _PreparedTables(NamedTuple):
    parts: list[Prepared]
    for_refreshes: Mapping[str, frozenset[int]]
    """Ids of the snapshots that the next incremental refreshes of materialized views need, by the UUID of the table.
    Determined anew for each commit, because a view that was refreshed since the run began needs other snapshots."""


class _ExpireTables(Unrepeated, CatalogChange[_PreparedTables, list[_Expired]]):
    """Change that removes the expired parts of several tables in one commit, and returns what it removed from each."""

    action = "expire-snapshots"
    onto_protected = True

    def __init__(
        self, context: Context, operation: Operation, parts: Sequence[_ExpireTable], needs: RefreshNeeds
    ) -> None:
        super().__init__(context, operation)
        self.parts = parts
        self.needs = needs

    def prepare(self, view: State) -> _PreparedTables:
        now = self.context.clock.now_ms()
        parts = [Prepared(now, part.uuid) for part in self.parts]
        return _PreparedTables(parts, self.needs.at(view))

    def apply(self, state: State, prepared: _PreparedTables) -> list[_Expired]:
        done = []
        for part, fixed in zip(self.parts, prepared.parts, strict=True):
            decided = part.decided(state, prepared.for_refreshes)
            if decided is None:
                done.append(_Expired())
            else:
                stored = part.apply(state, (fixed, *decided))
                done.append(_Expired(decided[1], stored.value.metadata_location))
        return done


def remove_expired(
    catalog: Catalog,
    operation: Operation,
    tables: Sequence[ToExpire],
    asked: ExpiryRequest,
    progress: Callable[[int, int], None],
    *,
    most: int | None = None,
) -> list[Removed]:
    """Remove the expired parts of tables, with up to `TABLES_OF_A_COMMIT` tables in each commit.

    If a table cannot be changed, the other tables are changed nevertheless.

    Args:
        progress: called before each commit with the number of tables done and the total; may raise an error to stop.
        most: maximum number of tables that are changed; tables that fail do not count. None for no limit.
    Returns:
        one result for each table that was tried.
    Raises:
        OutcomeUnknownError, TryAgainError: for example, the database cannot be reached. Run expiry again.
    """
    removing = _Removing(catalog, operation, asked, lambda done: progress(done, len(tables)))
    done = removing.done
    left = len(tables) if most is None else most
    while left and len(done) < len(tables):
        start = len(done)
        removing.remove(tables[start : start + min(left, TABLES_OF_A_COMMIT)])
        left -= sum(bool(one.decision.updates()) for one in done[start:])
    return done


class _Removing:
    """Removal of the expired parts of tables.

    If the metadata files of `REFUSALS` consecutive tables cannot be written, the rest of the commit is not tried.
    """

    def __init__(
        self, catalog: Catalog, operation: Operation, asked: ExpiryRequest, progress: Callable[[int], None]
    ) -> None:
        self._catalog = catalog
        self._operation = operation
        self._asked = asked
        self._needs = RefreshNeeds(asked.now_ms)
        self._progress = progress
        self.done: list[Removed] = []
        self._refused = 0
        """Number of consecutive tables whose metadata files could not be written."""
        self._problem = ""
        """Message of the error for the last table whose metadata file could not be written."""

    def remove(self, tables: Sequence[ToExpire]) -> None:
        """Remove the expired parts of some tables, in one commit if possible."""
        self._refused = 0  # these tables may have their files in another storage than the earlier tables
        start = len(self.done)
        context = self._catalog.context
        parts = [_ExpireTable(context, self._operation, table, self._asked) for table in tables]
        self._try(parts)
        self.done[start:] = sorted(self.done[start:], key=lambda one: one.table.name)
        self._delete(parts)

    def _try(self, parts: Sequence[_ExpireTable]) -> None:
        if self._refused >= REFUSALS:
            why = f"not tried, because the files of {REFUSALS} tables before it could not be written: {self._problem}"
            self.done += [Removed(part.table, NOTHING, why) for part in parts]
            return
        self._progress(len(self.done))
        try:
            change = _ExpireTables(self._catalog.context, self._operation, parts, self._needs)
            expired = self._catalog.commit(change)
        except PolarisError as error:
            of_the_database = isinstance(error, (OutcomeUnknownError, TryAgainError))
            if of_the_database and not isinstance(error, UnwritableFileError):
                raise
            if not isinstance(error, _REFUSED):
                for part in parts:  # an error of another class does not guarantee that nothing was committed
                    part.leave_files()
            if len(parts) == 1:
                if isinstance(error, UnwritableFileError):
                    self._refused += 1
                    self._problem = str(error)
                self.done.append(Removed(parts[0].table, NOTHING, str(error)))
                return
            mixed, half = random.sample(parts, len(parts)), len(parts) // 2
            self._try(mixed[:half])
            self._try(mixed[half:])
            return
        if any(one.decision.updates() for one in expired):
            self._refused = 0
        for part, one in zip(parts, expired, strict=True):
            part.files.discard(one.metadata_file)
            self.done.append(Removed(part.table, one.decision))

    def _delete(self, parts: Sequence[_ExpireTable]) -> None:
        """Delete the metadata files that were written but not committed.

        If `REFUSALS` consecutive deletions fail, the remaining files become orphan files.
        """
        folders, failures = Folders(self._catalog.files), 0
        for part in parts:
            places = map("/".join, part.places)
            permit = Permit([self._catalog.context.warehouse], places=places, follow_links=True)
            for location in sorted(part.files):
                grant = permit.may(location)
                if grant is not None:
                    failures = failures + 1 if folders.delete_all([grant], permit) else 0
                if failures >= REFUSALS:
                    return


class Settled(NamedTuple):
    """A table whose expired snapshots have no files left, because all of these files have been deleted."""

    entity_id: int
    records: tuple[bytes, ...]
    """Keys of the table's expired-snapshots records (`ExpiredSnapshots`) in the index `expired`."""
    summary: dict[str, str]
    """Counts of deleted files by kind, for the log entry."""


class SettleExpired(Unrepeated, TimedChange[None]):
    """Change that removes expired-snapshots records (`ExpiredSnapshots`) whose snapshots' files were deleted.

    It adds a log entry with the counts of deleted files for each table that still exists.
    """

    action = "delete-expired-files"
    onto_protected = True

    def __init__(self, context: Context, operation: Operation, tables: Sequence[Settled]) -> None:
        super().__init__(context, operation)
        self.tables = tables

    def apply(self, state: State, prepared: int) -> None:
        for table in self.tables:
            for record in table.records:
                if state.lookup(EXPIRED, record) is not None:
                    state.remove(EXPIRED, record)
            entry = state.lookup(IDS, id_bytes(table.entity_id))
            found = None if entry is None else find(state, entry.value)
            if entry is not None and found is not None:
                key, content = entry.value, found.content
                self.record(
                    state,
                    prepared,
                    table.entity_id,
                    key,
                    before=content,
                    after=content,
                    summary=table.summary,
                )
