"""The rows of references: written when a reference is created, sealed when it is dropped, and fenced by sweeps."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import msgspec

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.clock import Clock
from polaris_spark.commits.amendments import amend_row, insert_row
from polaris_spark.commits.publication import encode_head, read_head
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.settings import CommitSettings
from polaris_spark.commits.state import CommitReader
from polaris_spark.commits.upkeep import fence as raise_fence
from polaris_spark.errors import (
    ReferenceGoneError,
)
from polaris_spark.ids import IdGenerator
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store.references import new_version
from polaris_spark.system.lost_rows import refuse_lost
from polaris_spark.system.reference_reader import head_in_row
from polaris_spark.system.registrations import REFERENCES as REFERENCES
from polaris_spark.system.registrations import ROOT as ROOT
from polaris_spark.system.registrations import Registered as Registered
from polaris_spark.system.registrations import Registration as Registration
from polaris_spark.system.registrations import encode_registration as encode_registration
from polaris_spark.system.registrations import listed_in as listed_in


class ReferenceRows(ABC):
    """Reads and changes the rows of the references of one realm."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        ids: IdGenerator,
        clock: Clock,
        settings: CommitSettings,
        rng: random.Random | None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.ids = ids
        self._settings = settings
        self._rng = rng or random.Random()

    @abstractmethod
    def lookup(self, name: str) -> Registered | None:
        """Return the registration of a name, live or dropped, in the registry's newest commit; None if not found."""

    def complete(self, registered: Registered) -> None:
        """Write the row of a live reference if it is missing because the reference's creator died before it wrote the
        row.

        Raises:
            ReferenceGoneError: the registration is no longer live, so its row must never be written again.
            CorruptionError: the row existed and was lost.
        """
        if self.store.backend.read_reference(self.store.realm, registered.row_name) is None:
            refuse_lost(self.store, registered, self.clock)
            self._insert(registered)

    def _insert(self, registered: Registered) -> None:
        """Insert the row of a live registration, unless the row exists."""

        def first() -> ReferenceRow:
            current = self.lookup(registered.name)
            same = current is not None and current.row_name == registered.row_name
            if current is None or not same or current.registration.state != "live":
                raise ReferenceGoneError(f"reference {registered.name!r} has just been dropped")
            return ReferenceRow(new_version(), encode_head(registered.first_head()))

        insert_row(self.store.backend, self.store.realm, registered.row_name, first)

    def _seal(self, registered: Registered) -> None:
        """Seal the row of a dropped reference by a swap. If the row is missing, because the reference's creator has not
        written it yet, insert a sealed row."""
        sealed = ReferenceRow(new_version(), encode_head(registered.first_head(sealed=True)))
        insert_row(self.store.backend, self.store.realm, registered.row_name, lambda: sealed)
        self._amend(registered.row_name, lambda head: msgspec.structs.replace(head, sealed=True))

    def fence(self, row_name: str) -> int:
        """Set a new fence in a row. Every commit attempt that began earlier, in any process, then fails its swap. For
        its next attempt, the process writes the prepared objects once more, under new ids.

        Returns:
            the fence: an id above every id and fence that this process has seen, and above any earlier fence of this
                row.
        Raises:
            ReferenceGoneError: the row is missing.
            TryAgainError, OutcomeUnknownError: the database failed until the deadline passed.
        """
        while True:
            id = self.ids.next_id()
            head = read_head(self._amend(row_name, partial(raise_fence, id=id)), row_name)
            if head.fence == id:
                return id
            # A process whose ids run ahead set a higher fence, so the row was not changed and no attempt was fenced.
            self.ids.observe(head.fence)

    def sealed_head(self, registered: Registered) -> Head:
        """Seal the row of a dropped reference against commits, and return its last head.

        Raises:
            CorruptionError: the row existed and was lost.
            ReferenceGoneError: the reference can no longer be restored, because its registration has ended and its row
                is a tombstone (a row without a commit).
        """
        if self.store.backend.read_reference(self.store.realm, registered.row_name) is None:
            refuse_lost(self.store, registered, self.clock)
        self._seal(registered)
        head = head_in_row(self.store.backend, self.store.realm, registered.row_name)
        if head is None or not head.commit:
            raise ReferenceGoneError(
                f"reference {registered.name!r} was dropped longer ago than the grace period and cannot be restored"
            )
        return head

    def last_of(self, registered: Registered) -> CommitReader:
        """Seal the row of a dropped reference, and return a reader of its last commit.

        Raises:
            ReferenceGoneError: as by `sealed_head`.
        """
        head = self.sealed_head(registered)
        return CommitReader(self.store, b"", head, self.store.get(head.commit, Commit))

    def make_tombstone(self, row_name: str) -> None:
        """Replace a sealed row by a tombstone, which is a head without a commit. Do nothing if the row is not sealed.
        The caller must make sure that the row's registration has ended, or that the row never had one."""
        self._amend(row_name, lambda head: _tombstone(head) if head.sealed else head)

    def _amend(self, row_name: str, change: Callable[[Head], Head]) -> ReferenceRow:
        return amend_row(
            self.store.backend,
            self.store.realm,
            row_name,
            change,
            clock=self.clock,
            deadline_ms=self._settings.deadline_ms,
            rng=self._rng,
        )


def _tombstone(head: Head) -> Head:
    """Return a head without a commit, to replace a sealed head permanently. Its history floor is above all commits, so
    that reading a commit raises `HistoryTrimmedError`."""
    return Head(0, head.number, head.time, head.number + 1, head.time, fence=head.fence, sealed=True)
