"""A reader of a reference's head. It remembers the newest head that this process has read or written, and what this
process knows about later heads."""

from __future__ import annotations

from typing import Final

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.commits.publication import read_head
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.settings import OPERATIONS
from polaris_spark.commits.state import NO_VERSION, CommitReader, State, StoredObjects
from polaris_spark.errors import RealmMovedError, ReferenceGoneError
from polaris_spark.ids import IdGenerator
from polaris_spark.store.objects import ObjectStore

MOST_FORECASTS: Final = 32
"""Maximum number of forecasts (`HeadReader.forecast`) in a row, before the head's commit is read again."""


class HeadReader:
    """Reads the head (newest commit) of one reference, and remembers the newest head that was seen. Thread-safe."""

    def __init__(self, store: ObjectStore, name: str, ids: IdGenerator) -> None:
        self._store = store
        self._name = name
        self._ids = ids
        self._known: CommitReader | None = None
        self._forecast: CommitReader | None = None
        self._forecasts = 0

    def read(self) -> CommitReader:
        """Return the newest head of the reference. Read its row, and read the commit only if the row has changed.

        Raises:
            ReferenceGoneError: the row is missing, or is sealed because the reference was dropped.
            RealmMovedError: the realm was moved to another store.
        """
        return self.adopt(self._store.backend.read_reference(self._store.realm, self._name))

    def row(self) -> tuple[ReferenceRow, Head]:
        """Return the reference's row and the head in it, which may be sealed. The commit is not read.

        Raises:
            ReferenceGoneError: the row is missing.
        """
        row = self._store.backend.read_reference(self._store.realm, self._name)
        if row is None:
            raise self._gone()
        return row, read_head(row, self._name)

    def _gone(self) -> ReferenceGoneError:
        return ReferenceGoneError(f"reference {self._name!r} of realm {self._store.realm!r} does not exist")

    def known(self) -> CommitReader:
        """Return the remembered head, which may no longer be the newest.

        If no head is remembered, or if the remembered head says that the realm is being moved to another store, the
        newest head is read from the database.
        """
        known = self._known
        return self.read() if known is None or known.head.move is not None else known

    def known_or_forecast(self) -> CommitReader:
        """Return the remembered head, or a forecast of a later one."""
        known, ahead = self.known(), self._forecast
        if ahead is None or (ahead.head.fence, ahead.head.number) <= (known.head.fence, known.head.number):
            return known
        return ahead

    def forecast(self, state: State, head: Head) -> bool:
        """Remember that `head`, which points to a commit of another process, contains the changes of the working state
        `state`.

        So a process whose changes others commit does not need to read each of their commits. The forecast has the
        content of an earlier head with the changes of this process, but without the changes of others. So a change that
        is applied to it must be committed by a process that compares its reads with the newest head. No commit can
        follow a forecast, because it has no version token.

        Returns:
            False if the head is to be read instead, because there were many forecasts in a row, or because the head
            accepts no ordinary commits.
        """
        base = state.base
        if (
            self._forecasts >= MOST_FORECASTS
            or head.sealed
            or head.move is not None
            or head.fence != base.head.fence
        ):
            return False
        indexes = base.open_indexes()
        for name, index in state.indexes.items():
            if name != OPERATIONS:  # its new entries point to log entries that were not written
                indexes[name] = index.copy(StoredObjects(self._store).read_shards)
        self._forecast = CommitReader(
            self._store, NO_VERSION, head, base.commit, row_name=self._name, indexes=indexes
        )
        self._forecasts += 1
        return True

    def is_later(self, head: Head) -> bool:
        """Whether the commit of a head is later than the commit of the remembered head."""
        known = self._known
        return known is None or (head.fence, head.number) > (known.head.fence, known.head.number)

    def adopt(self, row: ReferenceRow | None) -> CommitReader:
        """Return the head in `row`, and remember it. Call this only for a row that was just read or written, or whose
        head `is_later`.

        Raises:
            ReferenceGoneError: the row is missing, or is sealed because the reference was dropped.
            RealmMovedError: the realm was moved to another store.
        """
        known = self._known
        if known is not None and row is not None and row.version == known.version:
            return known
        if row is None:
            raise self._gone()
        head = read_head(row, self._name)
        refuse_moved(head)
        if head.sealed:  # its commits may have been swept by now
            raise ReferenceGoneError(f"reference {self._name!r} was dropped")
        self._ids.observe_head(head.commit, head.fence)
        return self.advance(self._snapshot(row, head))

    def last(self) -> CommitReader | None:
        """Return the newest head, even if the reference was dropped; None if its row or its history is gone.

        Raises:
            MissingObjectError: the head's commit was deleted by a sweep.
        """
        row = self._store.backend.read_reference(self._store.realm, self._name)
        head = None if row is None else read_head(row, self._name)
        return None if row is None or head is None or head.given_up else self._snapshot(row, head)

    def _snapshot(self, row: ReferenceRow, head: Head) -> CommitReader:
        commit = self._store.get(head.commit, Commit)
        return CommitReader(self._store, row.version, head, commit, row_name=self._name)

    def advance(self, reader: CommitReader) -> CommitReader:
        """Remember a head that is in the store, unless a later head is remembered. Return `reader`.

        A recovery after a loss of data may set a head with a lower commit number, and raises the fence. So heads are
        compared by fence first, then by number.
        """
        known, head = self._known, reader.head
        if known is None or (head.fence, head.number) >= (known.head.fence, known.head.number):
            self._known = reader
            self._forecast, self._forecasts = None, 0
        return reader


def refuse_moved(head: Head) -> None:
    """Raise an error if another store serves the realm of this head now.

    Raises:
        RealmMovedError: the realm was moved to another store.
    """
    if head.move is not None and head.move.done:
        raise RealmMovedError(f"this realm was moved to {head.move.to}: open it there")
