"""Transactions: changes of a whole catalog that take effect together, or not at all.

A transaction works on a copy of a branch, its *parent*, in the memory of this process (`PrivateCommitter`). The copy
begins at the newest commit of the parent, so all requests of the transaction see one state of the catalog and the
transaction's own changes. The requests are commits to the copy, which write nothing to the database. The commit of the
transaction merges the copy into the parent (`state_merge`): one commit of everything, or an error that names the
conflicts. Before this, nobody else sees the changes of the transaction.

| isolation | what must not have changed in the parent since the transaction began |
| --- | --- |
| `snapshot` | what the transaction changed, by the rules of merges |
| `serializable` | also what it read: loaded tables and views, names that it looked up, and listed namespaces |

These are snapshot isolation and serializability of Adya ("Weak Consistency", 1999), with tables, views and namespaces
as the objects.

A sweep may delete unreachable objects whose ids are older than the sweep (`maintenance.sweep_roots`). So if a sweep has
set a fence on the parent since the transaction began, the commit writes the objects that the transaction made under new
ids. Changes that bring stored content of other branches or of earlier commits are refused in a transaction
(`Change.from_elsewhere`): a sweep may delete it before the commit.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import Enum
from typing import NamedTuple, TypeVar

import msgspec

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.merges.differences import EntityChange, changed_among
from polaris_spark.catalog.merges.merge_steps import Difference, Merged
from polaris_spark.catalog.merges.state_merge import MergeStates, new_difference
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.metadata.texts import decode
from polaris_spark.catalog.rows import NAMES, CatalogRow
from polaris_spark.catalog.tables.contents import metadata_file
from polaris_spark.catalog.tables.snapshot_expiry import EXPIRED, ExpiredSnapshots
from polaris_spark.catalog.tables.table_changes import TRANSACTION
from polaris_spark.commits.change import Operation, PrepareAgain, new_operation_id
from polaris_spark.commits.log import ancestor, entries
from polaris_spark.commits.private import PrivateCommitter
from polaris_spark.commits.rows import Head
from polaris_spark.commits.settings import FileWriter
from polaris_spark.commits.state import (
    NO_VERSION,
    CommitReader,
    Point,
    Range,
    RangeOfOthers,
    Read,
    State,
    StoredObjects,
    reading_state,
)
from polaris_spark.errors import (
    BadRequestError,
    HistoryTrimmedError,
    InputError,
    NotFoundError,
    OutcomeUnknownError,
    ProtectedBranchError,
)
from polaris_spark.names import transaction_name
from polaris_spark.objects import with_pointers
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store.unwritten import UnwrittenObjects

C = TypeVar("C", bound=msgspec.Struct)

IDLE_MS = 24 * 3_600_000
"""Time without use after which a transaction ends automatically, in milliseconds."""

_METADATA_FILE = ".metadata.json"

_SUMS = ("added-", "deleted-", "removed-")
"""Prefixes of the fields in a snapshot's summary that describe one change, such as `added-records`."""

_IN_DOUBT = (
    "it is not known whether the transaction was committed: call commit() again to find out, or rollback() to end "
    "the transaction"
)
_NONE_OPEN = "no transaction is open in this session; begin one with begin()"
_COMMITTING = "the transaction is being committed, so it accepts no more changes"


class Isolation(Enum):
    """Isolation level of a transaction."""

    SNAPSHOT = "snapshot"
    SERIALIZABLE = "serializable"


def isolation_of(text: str | None) -> Isolation:
    """Return the isolation level with the name `text`.

    Raises:
        InputError: the text is not the name of an isolation level.
    """
    try:
        return Isolation((text or "").lower())
    except ValueError:
        raise InputError(f"isolation is {text!r}; it must be 'serializable' or 'snapshot'") from None


class Needed(NamedTuple):
    """A privilege that a request of a transaction needed, in a realm with access control."""

    privilege: str
    chain: tuple[bytes, ...]
    """The securables on which the privilege suffices."""
    entities: tuple[int, ...]
    """Entity ids of the namespaces, tables and views among them."""
    view: int | None
    """As `Place.view`."""
    described: str
    """The kind and name of the lowest securable, for messages."""


class Savepoint(NamedTuple):
    """A state within a transaction. The transaction can return to this state."""

    name: str
    commit: CommitReader
    needs: int
    """Number of privileges that the transaction had needed before."""


class _Files:
    """Writes the files of a transaction's requests, except metadata files. The commit of the transaction writes a
    metadata file for the final state of each changed table and view."""

    def __init__(self, writer: FileWriter) -> None:
        self._writer = writer
        self.metadata: set[str] = set()
        """Locations of the metadata files that were not written."""

    def write_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write the files, given as (location, content), except metadata files."""
        held = {location for location, _ in files if location.endswith(_METADATA_FILE)}
        self.metadata |= held
        if len(held) < len(files):
            self._writer.write_all([file for file in files if file[0] not in held])


class Transaction:
    """A transaction that this process carries out."""

    def __init__(self, parent: Catalog, isolation: Isolation, begin: CommitReader) -> None:
        self.parent = parent
        """The catalog on the branch that the transaction changes at its commit."""
        self.isolation = isolation
        self.begin = begin
        """The parent's state when the transaction began."""
        self.store = UnwrittenObjects(begin.store)
        """Store with the objects of the copy."""
        self.files = _Files(parent.files)
        self.changed: dict[str, set[bytes]] = {}
        """The keys that differ from `begin`, and perhaps others, by index."""
        self.copy: PrivateCommitter
        """Commits the requests of the transaction."""
        self.state = ""
        """Name of the state of the transaction."""
        self.reads: list[list[Read]] = []
        """The reads of the transaction, a list for each request."""
        self.needs: dict[Needed, None] = {}
        """The privileges that the requests of the transaction needed."""
        self.savepoints: list[Savepoint] = []
        self.is_open = True
        """Whether the requests of the transaction are answered before its commit."""
        self.operation_id = b""
        """Id of the commit while its outcome is unknown, so that it is carried out once."""
        self.lock = threading.RLock()
        """Held by the thread that commits the transaction, rolls it back, or uses a savepoint."""

    def show(self, commit: CommitReader) -> None:
        """Make the copy of the branch start from a commit, under a new name of the transaction's state."""
        parent = self.parent
        self.state = transaction_name(secrets.token_hex(12))
        self.copy = parent.references.open_private(
            head_name(parent.row, self.state), self.store, commit, self.files
        )
        self.copy.changed = self.changed
        parent.opened_branches.add(self.state)
        parent.record_reads(self.state, self.reads)
        _shown[self.state] = self

    def hide(self) -> None:
        """Close the copy, so that the state of the transaction can no longer be used by its name."""
        _shown.pop(self.state, None)
        self.parent.record_reads(self.state, None)
        self.parent.opened_branches.discard(self.state)
        self.parent.references.close_private(head_name(self.parent.row, self.state))

    @property
    def head(self) -> CommitReader:
        """The newest commit of the copy."""
        return self.copy.read()


_shown: dict[str, Transaction] = {}
"""The transactions of this process, by the name of their state."""


def readable_head(catalog: CatalogRow, state: str) -> Head | None:
    """Return the newest commit of a transaction's copy. This first writes the objects of the copy to the database, so
    that other processes can read the commit: Spark's executors read system views from the database. Return None if this
    process has no such transaction."""
    transaction = _shown.get(state)
    if transaction is None or transaction.parent.row.entity_id != catalog.entity_id:
        return None
    head = transaction.head.head
    transaction.store.write_own(transaction.parent.context.clock.now_ms())
    return head


def note_needs(state: str, needs: Iterable[Needed]) -> None:
    """Record privileges that a request in the state of a transaction needed. The commit checks them again."""
    transaction = _shown.get(state)
    if transaction is not None:
        transaction.needs.update(dict.fromkeys(needs))


def branch_of_transaction(state: str) -> str | None:
    """Return the branch on which a transaction of this process began; None if there is no such transaction."""
    transaction = _shown.get(state)
    return None if transaction is None else transaction.parent.branch


def is_open_transaction(catalog: Catalog) -> bool:
    """Whether a catalog shows the state of a transaction whose requests are answered before its commit."""
    transaction = _shown.get(catalog.branch)
    return transaction is not None and transaction.is_open


class Transactions:
    """The transactions of a session, by the name of their state."""

    def __init__(self) -> None:
        self._open: dict[str, Transaction] = {}

    def close(self) -> None:
        """End all transactions without making their changes."""
        for transaction in list(self._open.values()):
            self._close(transaction)

    def is_busy(self) -> bool:
        """Whether a transaction is open."""
        self._close_unused()
        return bool(self._open)

    def begin(self, catalog: Catalog, isolation: Isolation) -> Transaction:
        """Begin a transaction on the branch of a catalog.

        Raises:
            BadRequestError: the catalog belongs to a transaction.
            ForbiddenError: the catalog shows a state of the past.
        """
        refuse_nested(catalog)
        self._close_unused()
        begun = Transaction(catalog, isolation, catalog.head())
        self._show(begun, begun.begin)
        return begun

    def of(self, catalog: Catalog) -> Transaction:
        """Return the transaction whose state a catalog shows.

        Raises:
            NotFoundError: the catalog does not belong to a transaction of this session, or the transaction has ended.
        """
        self._close_unused()
        found = self._open.get(catalog.branch)
        if found is None:
            raise NotFoundError(_NONE_OPEN)
        return found

    def commit(self, transaction: Transaction, operation: Operation) -> list[Merged]:
        """Commit a transaction. If this fails, the transaction stays open and can be rolled back. A transaction that
        only read has nothing to commit: it is as if it had taken place when it began.

        Raises:
            HistoryTrimmedError: the state at its beginning is no longer stored.
            MergeConflictError: something that it changed or read has changed since it began.
            NotFoundError: it has ended.
            OutcomeUnknownError: it may have been committed. It accepts only `commit`, to find out, and `roll_back`.
        """
        with transaction.lock:
            self._require_open(transaction)
            transaction.copy.close(_COMMITTING)
            id = transaction.operation_id or new_operation_id(transaction.parent.context.clock.now_ms())
            try:
                merged = _merge(transaction, operation._replace(id=id))
            except BaseException as error:
                if isinstance(error, OutcomeUnknownError) or not isinstance(error, Exception):
                    transaction.operation_id = id
                if transaction.operation_id:
                    transaction.copy.close(_IN_DOUBT)
                else:
                    transaction.copy.reopen()
                raise
            self._close(transaction)
            return merged

    def _require_open(self, transaction: Transaction) -> None:
        if self._open.get(transaction.state) is not transaction:
            raise NotFoundError(_NONE_OPEN)

    def roll_back(self, transaction: Transaction) -> None:
        """End a transaction without making its changes. Do nothing if it has ended."""
        with transaction.lock:
            self._close(transaction)

    def save(self, transaction: Transaction, name: str) -> None:
        """Set a savepoint. It hides an earlier savepoint of the same name."""
        with transaction.lock:
            self._require_open(transaction)
            transaction.savepoints.append(Savepoint(name, transaction.head, len(transaction.needs)))

    def return_to(self, transaction: Transaction, name: str) -> None:
        """Undo all changes since a savepoint. Later savepoints are removed.

        Raises:
            BadRequestError: it is not known whether the transaction was committed.
            NotFoundError: the transaction has no such savepoint.
        """
        with transaction.lock:
            self._require_open(transaction)
            saved = [one for one in transaction.savepoints if one.name == name]
            if not saved:
                known = ", ".join(dict.fromkeys(one.name for one in transaction.savepoints)) or "none"
                raise NotFoundError(f"the transaction has no savepoint {name!r}; its savepoints are: {known}")
            if transaction.operation_id:
                raise BadRequestError(_IN_DOUBT)
            self._close(transaction)
            self._show(transaction, saved[-1].commit)
            transaction.needs = dict.fromkeys(list(transaction.needs)[: saved[-1].needs])
            del transaction.savepoints[transaction.savepoints.index(saved[-1]) + 1 :]

    def _show(self, transaction: Transaction, commit: CommitReader) -> None:
        transaction.show(commit)
        self._open[transaction.state] = transaction

    def _close(self, transaction: Transaction) -> None:
        self._open.pop(transaction.state, None)
        transaction.hide()

    def _close_unused(self) -> None:
        """End the transactions that were not used for a long time."""
        for transaction in list(self._open.values()):
            if transaction.copy.used_ms + IDLE_MS < transaction.parent.context.clock.now_ms():
                self._close(transaction)


def refuse_nested(catalog: Catalog) -> None:
    """Check that a catalog shows neither a state of the past nor the state of a transaction.

    Raises:
        BadRequestError: it shows the state of a transaction.
        ForbiddenError: it shows a state of the past.
    """
    catalog.require_present()
    if catalog.in_transaction:
        raise BadRequestError("a transaction is open in this session; commit it or roll it back first")


def _merge(transaction: Transaction, operation: Operation) -> list[Merged]:
    """Merge a transaction into its parent, and return the action taken for each entity."""
    parent = transaction.parent
    if transaction.head.head.commit == transaction.begin.head.commit:
        return []
    change = MergeStates(
        parent.context,
        operation,
        lambda view: _difference(transaction, view),
        label=TRANSACTION,
        advice="roll it back and repeat it",
    )
    return parent.commit(change)


def at_once(catalog: Catalog, operation: Operation, work: Callable[[Catalog], None]) -> None:
    """Make several changes of a catalog in one commit.

    Args:
        work: makes the changes on a copy of the catalog. It is called again, with a new copy, if something that it read
            or changed has been changed meanwhile; so it must have no other effect.
    Raises:
        PolarisError: `work` raised it; nothing was changed.
        BadRequestError: the catalog belongs to a transaction.
        ForbiddenError: the catalog shows a state of the past, or its branch is protected.
        TryAgainError: the changes need more time than a commit may take; nothing was changed.
    """
    refuse_nested(catalog)
    until = catalog.context.clock.monotonic_ms() + catalog.references.deadline_ms

    def difference(view: State) -> Difference:
        if view.is_protected:
            raise ProtectedBranchError("only merges, reverts and cherry-picks may change it")
        if view.base.version == NO_VERSION:
            raise PrepareAgain
        transaction = Transaction(catalog, Isolation.SNAPSHOT, view.base)
        transaction.is_open = False
        transaction.show(view.base)
        transaction.copy.until = until
        try:
            work(catalog.on_branch(transaction.state))
            found = _difference(transaction, view)
        finally:
            transaction.hide()
        for change in found.changes.values():
            view.lookup_many(NAMES, [one.key for one in (change.before, change.after) if one is not None])
        view.reads.extend(_reads(transaction))
        return found

    change = MergeStates(
        catalog.context, operation, difference, label=TRANSACTION, advice="repeat the request"
    )
    catalog.commit(change)


def _difference(transaction: Transaction, view: State) -> Difference:
    """Return the changes of a transaction, to be applied to the newest state of its parent."""
    parent, begin, head = transaction.parent, transaction.begin, transaction.head
    _require_history(view, begin.head)
    changes = changed_among(transaction.changed.get(NAMES, ()), begin, head)
    expired = _expired(transaction, changes)
    new_ids, objects = _needed(
        transaction, changes, expired, view.new_id, renews=view.base.head.fence != begin.head.fence
    )
    reads = () if transaction.isolation is Isolation.SNAPSHOT else _reads(transaction)
    summaries = _summaries(transaction.store, head.head, begin.head)
    files = {new_ids.get(id, id): file for id, file in _metadata_files(transaction, changes).items()}
    moved = {id: _moved(change, new_ids) for id, change in changes.items()} if new_ids else changes
    records = {id: [with_pointers(one, new_ids) for one in of_table] for id, of_table in expired.items()}
    return new_difference(parent, moved, head)._replace(
        reads=reads,
        objects=objects,
        files=files,
        begun=begin.head.commit,
        has_needs=bool(transaction.needs),
        summaries=summaries,
        expired=records,
    )


def _expired(
    transaction: Transaction, changes: Mapping[int, EntityChange]
) -> dict[int, list[ExpiredSnapshots]]:
    """Return the records of the snapshots that the transaction removed from tables that it did not drop, by the entity
    id of the table."""
    found: dict[int, list[ExpiredSnapshots]] = {}
    keys = sorted(transaction.changed.get(EXPIRED, ()))
    for entry in transaction.head.index(EXPIRED).get_many(keys) if keys else ():
        if entry is not None:
            record = transaction.store.get(entry.pointer, ExpiredSnapshots)
            change = changes.get(record.entity_id)
            if change is not None and change.after is not None:
                found.setdefault(record.entity_id, []).append(
                    msgspec.structs.replace(record, after=change.after.content)
                )
    return found


def _moved(change: EntityChange, new_ids: Mapping[int, int]) -> EntityChange:
    after = change.after
    if after is None:
        return change
    return change._replace(after=after._replace(content=new_ids.get(after.content, after.content)))


def _metadata_files(
    transaction: Transaction, changes: Mapping[int, EntityChange]
) -> dict[int, tuple[str, bytes]]:
    """Return the metadata files of the changed tables and views that were not written yet, as (location, content), by
    the object id of the table or view."""
    held = transaction.files.metadata
    if not held:
        return {}
    contents = [change.after.content for change in changes.values() if change.after is not None]
    reader = StoredObjects(transaction.store)
    return {
        id: metadata_file(_without_held(value, held), reader)
        for id, value in ((id, one.value) for id, one in transaction.store.read(contents).items())
        if isinstance(value, Table | View) and value.metadata_location in held
    }


def _without_held(value: C, held: Set[str]) -> C:
    """Return an object. If it is a table, remove those of the newest entries of its metadata log whose files were not
    written."""
    if not isinstance(value, Table) or not held:
        return value
    log = value.metadata_log
    tail = tuple(item for item in log.tail if decode(item)["metadata-file"] not in held)
    if tail == log.tail:
        return value
    return msgspec.structs.replace(value, metadata_log=msgspec.structs.replace(log, tail=tail))


def _summaries(store: ObjectStore, head: Head, begin: Head) -> dict[int, dict[str, str]]:
    """Return a dict from the id of each entity to the summary of what the transaction changed in it, merged from the
    log entries of the transaction."""
    found: dict[int, dict[str, str]] = {}
    own = msgspec.structs.replace(head, floor_number=begin.number + 1)
    for *_, entry in reversed(list(entries(store, own))):
        summary = found.setdefault(entry.entity, {})
        for name, text in entry.summary.items():
            known = summary.get(name, "0")
            is_sum = name.startswith(_SUMS) and text.isdecimal() and known.isdecimal()
            summary[name] = str(int(known) + int(text)) if is_sum else text
    return found


def _require_history(view: State, begin: Head) -> None:
    """Check that the commit at which a transaction began is in the history of its parent. Record this check as a
    requirement of the commit.

    Raises:
        HistoryTrimmedError: the commit is not in the history.
    """
    try:
        view.require_kept(begin.number)
        kept = view.base.head.number >= begin.number and begin.commit == (
            ancestor(view.base.store, view.base.head, begin.number)
        )
    except HistoryTrimmedError:
        kept = False
    if not kept:
        raise HistoryTrimmedError(
            "the transaction cannot be committed; nothing was changed. The state at its beginning is no longer in "
            "the history of the branch: roll back, and repeat the transaction"
        )


def _needed(
    transaction: Transaction,
    changes: Mapping[int, EntityChange],
    expired: Mapping[int, Sequence[ExpiredSnapshots]],
    new_id: Callable[[], int],
    *,
    renews: bool,
) -> tuple[dict[int, int], list[tuple[int, msgspec.Struct]]]:
    """Return the objects that the transaction made and that the changed entities and the records of removed snapshots
    need.

    Args:
        renews: whether all objects get new ids. If False, only objects that differ from the transaction's own objects
            get new ids.
    Returns:
        the new ids by the old ones, and the objects as (id, object).
    """
    store, is_new, held = transaction.store, transaction.store.is_own, transaction.files.metadata
    new_ids: dict[int, int] = {}
    found: dict[int, msgspec.Struct] = {}
    wanted = {change.after.content for change in changes.values() if change.after is not None}
    for record in (one for of_table in expired.values() for one in of_table):
        wanted.update(record.snapshots, record.statistics, record.partition_statistics)
    while wanted:
        read = store.read([id for id in wanted if is_new(id)])
        wanted = set()
        for id, decoded in read.items():
            assert decoded.value is not None  # this process made it
            found[id] = _without_held(decoded.value, held)
            if renews or found[id] is not decoded.value:
                new_ids[id] = new_id()
            wanted.update(decoded.header.strong)
        wanted -= found.keys()
    if not new_ids:
        return new_ids, list(found.items())
    return new_ids, [(new_ids.get(id, id), with_pointers(value, new_ids)) for id, value in found.items()]


def _reads(transaction: Transaction) -> Sequence[Read]:
    """Return what a transaction read, with the results that the reads had when the transaction began."""
    begin = reading_state(transaction.begin)
    seen: set[tuple[object, ...]] = set()
    for read in (one for request in transaction.reads for one in request):
        scan = read.scan if isinstance(read, RangeOfOthers) else read
        if isinstance(scan, Point) and scan.name == NAMES and (scan.key,) not in seen:
            seen.add((scan.key,))
            begin.lookup(NAMES, scan.key)
        elif isinstance(scan, Range) and scan.name == NAMES and scan[:5] not in seen:
            seen.add(scan[:5])
            begin.scan(NAMES, scan.start, scan.end, limit=scan.limit, reverse=scan.reverse)
    return begin.reads
