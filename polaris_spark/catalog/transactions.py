"""Transactions: changes of a whole catalog that take effect together, or not at all.

A transaction is a branch without a name of its own. It begins at the newest commit of another branch (its *parent*), so
all its requests see one state of the catalog and the transaction's own changes. Its commit merges it into the parent
(`state_merge`): one commit of everything, or an error that names the conflicts. Nobody else sees its changes before.

| isolation | what must not have changed in the parent since the transaction began |
| --- | --- |
| `snapshot` | what the transaction changed, by the rules of merges |
| `serializable` | also what it read: loaded tables and views, names that it looked up, and listed namespaces |

These are snapshot isolation and serializability of Adya ("Weak Consistency", 1999), with tables, views and namespaces
as the objects. What a transaction read is known only to the process that carries it out.

The name of the branch has the time at which the transaction ends by itself. Jobs that delete rows or files drop the
branches of transactions that have ended, and then treat their files as those of any dropped branch.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.branches import branch_of
from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.entity_merge import Merged
from polaris_spark.catalog.merge_base import BeginBranch, Contained
from polaris_spark.catalog.merges import Options, merge_branch
from polaris_spark.catalog.references import head_name
from polaris_spark.catalog.rows import NAMES
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import CommitReader, Point, Range, RangeOfOthers, Read, reading_state
from polaris_spark.errors import (
    BadRequestError,
    InputError,
    NotFoundError,
    ReferenceGoneError,
)
from polaris_spark.names import transaction_end_ms, transaction_name

DEFAULT_TIMEOUT_MS = 3_600_000
"""Default time limit of a transaction, in milliseconds."""


class Isolation(Enum):
    """How far a transaction is isolated from others."""

    SNAPSHOT = "snapshot"
    SERIALIZABLE = "serializable"


def isolation_of(text: str) -> Isolation:
    """Return the isolation that a text means.

    Raises:
        InputError: it means none.
    """
    try:
        return Isolation(text.lower())
    except ValueError:
        raise InputError(f"isolation is {text!r}; it must be 'serializable' or 'snapshot'") from None


class Savepoint(NamedTuple):
    """A state within a transaction to which it can return."""

    name: str
    commit: int
    """Id of the commit."""


class Transaction:
    """A transaction that this process carries out. One thread at a time uses it."""

    def __init__(self, parent: Catalog, isolation: Isolation, begin: CommitReader, state: str) -> None:
        self.parent = parent
        """The catalog on the branch that the transaction changes at its commit."""
        self.isolation = isolation
        self.begin = begin
        """The parent's state at the beginning."""
        self.state = state
        """Name of the branch of the transaction."""
        self.reads: list[list[Read]] = []
        """What was read, a list for each request."""
        self.savepoints: list[Savepoint] = []


class Transactions:
    """The transactions of a session, by the name of their branch."""

    def __init__(self) -> None:
        self._open: dict[str, Transaction] = {}

    def close(self) -> None:
        """Forget the transactions. Their branches are dropped when their time is over."""
        self._open.clear()

    def begin(
        self,
        catalog: Catalog,
        operation: Operation,
        isolation: Isolation,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> Transaction:
        """Begin a transaction on the branch of a catalog.

        Raises:
            BadRequestError: the catalog is that of a transaction.
            ForbiddenError: the catalog shows a state of the past.
        """
        catalog.require_present()
        if transaction_end_ms(catalog.branch) is not None:
            raise BadRequestError("a transaction is open in this session; commit it or roll it back first")
        begin = catalog.head()
        end = catalog.context.clock.now_ms() + timeout_ms
        state = _create(catalog, operation, begin, transaction_name(end, secrets.token_hex(6)))
        found = self._open[state] = Transaction(catalog, isolation, begin, state)
        catalog.record_reads(state, found.reads)
        return found

    def of(self, catalog: Catalog) -> Transaction:
        """Return the transaction whose branch a catalog shows.

        Raises:
            NotFoundError: the catalog is not that of a transaction of this process, or the transaction has ended.
        """
        found = self._open.get(catalog.branch)
        if found is None:
            raise NotFoundError("no transaction is open in this session; begin one with begin()")
        return found

    def commit(self, transaction: Transaction, operation: Operation) -> list[Merged]:
        """Commit a transaction. If this fails, the transaction stays open and can be rolled back.

        Raises:
            MergeConflictError: something that it changed or read has changed since it began.
            NotFoundError: its time was over, and a job has ended it.
        """
        reads = () if transaction.isolation is Isolation.SNAPSHOT else _reads(transaction)
        merged = merge_branch(
            transaction.parent, transaction.state, operation, Options(), label="commit", reads=reads
        )
        self._end(transaction, operation)
        return merged

    def roll_back(self, transaction: Transaction, operation: Operation) -> None:
        """End a transaction without making its changes."""
        self._end(transaction, operation)

    def save(self, transaction: Transaction, name: str) -> None:
        """Set a savepoint. An earlier one of the same name is hidden."""
        head = branch_of(transaction.parent, transaction.state).head
        transaction.savepoints.append(Savepoint(name, head.commit))

    def return_to(self, transaction: Transaction, name: str, operation: Operation) -> None:
        """Undo all changes since a savepoint. Later savepoints are removed.

        Raises:
            NotFoundError: the transaction has no such savepoint.
        """
        saved = [one for one in transaction.savepoints if one.name == name]
        if not saved:
            known = ", ".join(dict.fromkeys(one.name for one in transaction.savepoints)) or "none"
            raise NotFoundError(f"the transaction has no savepoint {name!r}; its savepoints are: {known}")
        parent, old = transaction.parent, transaction.state
        newest = branch_of(parent, old)
        commit = newest.store.get(saved[-1].commit, Commit)
        head = msgspec.structs.replace(
            newest.head, commit=saved[-1].commit, number=commit.number, time=commit.time
        )
        at = CommitReader(newest.store, newest.version, head, commit, row_name=newest.row_name)
        end = transaction_end_ms(old)
        assert end is not None
        state = _create(parent, operation, at, transaction_name(end, secrets.token_hex(6)))
        del transaction.savepoints[transaction.savepoints.index(saved[-1]) + 1 :]
        transaction.state = state
        self._open[state] = transaction
        parent.record_reads(state, transaction.reads)
        self._drop(transaction, old, operation)

    def _end(self, transaction: Transaction, operation: Operation) -> None:
        self._drop(transaction, transaction.state, operation)

    def _drop(self, transaction: Transaction, state: str, operation: Operation) -> None:
        self._open.pop(state, None)
        parent = transaction.parent
        parent.record_reads(state, None)
        try:
            parent.references.drop(head_name(parent.row, state), operation)
        except (NotFoundError, ReferenceGoneError):  # a job ended it
            return


def _create(catalog: Catalog, operation: Operation, at: CommitReader, state: str) -> str:
    """Create the branch of a transaction, and return its name."""
    reference = head_name(catalog.row, state)
    registered = catalog.references.create(reference, operation, source=at)
    source = Contained(registered.registration.number, registered.source)
    catalog.references.commit(reference, BeginBranch(registered.registration.generation, source))
    return state


def _reads(transaction: Transaction) -> Sequence[Read]:
    """Return what a transaction read, as it was when it began."""
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
