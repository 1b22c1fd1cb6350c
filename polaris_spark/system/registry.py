"""References are born and die by commits on `root`, the registry of a realm.

The registry commit comes first and names an existing source commit; the row, named by the registration's
generation, follows, or is completed by whoever finds it missing. A name that is created again gets a new
generation, hence a new row: an old row is never recreated. Dropping commits to the registry, then *seals* the
row by a swap; whoever meets a sealed row looks in the registry again.

Rows are never deleted: who began to create a reference long ago, and was held up, would bring one back. When a
dropped reference is given up for good its registration ends, and what is left of the row is a *tombstone*, sealed and
without a commit.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.clock import Clock
from polaris_spark.commits.amending import amend_row
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.publishing import encode_head, read_head
from polaris_spark.commits.retry import backoff_ms
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.settings import CommitSettings, FileWriter
from polaris_spark.commits.state import Snapshot
from polaris_spark.commits.upkeep import fence as raise_fence
from polaris_spark.errors import (
    OutcomeUnknownError,
    RealmMovedError,
    ReferenceGoneError,
    TryAgainError,
)
from polaris_spark.ids import IdGenerator
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store.references import new_version
from polaris_spark.system.recovery.lost import refuse_lost
from polaris_spark.system.registrations import (
    REFERENCES as REFERENCES,
)
from polaris_spark.system.registrations import (
    ROOT as ROOT,
)
from polaris_spark.system.registrations import (
    Create,
    Drop,
    End,
    Undrop,
    expired,
    registered_by,
)
from polaris_spark.system.registrations import (
    Registered as Registered,
)
from polaris_spark.system.registrations import (
    Registration as Registration,
)
from polaris_spark.system.registrations import (
    encode_registration as encode_registration,
)
from polaris_spark.system.registrations import (
    listed_in as listed_in,
)

R = TypeVar("R")

_LOOKUPS = 10
"""How often a reference is looked up that others drop and create again meanwhile."""


class References:
    """The references of one realm, as one process uses them: committers are cached by name until sealed."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        ids: IdGenerator,
        clock: Clock,
        settings: CommitSettings,
        files: FileWriter | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.ids = ids
        self._settings = settings
        self._files = files
        self._rng = rng or random.Random()
        self._open: dict[str, Committer] = {}
        self._guard = threading.Lock()
        self.root = self._committer(ROOT)

    def writing(self, files: FileWriter) -> References:
        """The same references, with metadata files written by another writer. Their commits are grouped apart."""
        return References(
            self.store, ids=self.ids, clock=self.clock, settings=self._settings, files=files, rng=self._rng
        )

    def _committer(self, row_name: str) -> Committer:
        return Committer(
            self.store,
            row_name,
            ids=self.ids,
            clock=self.clock,
            settings=self._settings,
            files=self._files,
            rng=self._rng,
        )

    def initialize(self) -> None:
        """Create `root` with an empty first commit; a race is won by one and used by all."""
        backend, realm = self.store.backend, self.store.realm
        if backend.read_reference(realm, ROOT) is not None:
            return
        now = self.clock.now_ms()
        id = self.ids.next_id()
        self.store.write([(id, Commit(0, now, 0))])
        backend.insert_reference(realm, ROOT, ReferenceRow(new_version(), encode_head(Head(id, 0, now))))

    def lookup(self, name: str) -> Registered | None:
        """The registration of a name, live or dropped, from a fresh head of the registry."""
        entry = self.root.read().index(REFERENCES).get(name.encode())
        return None if entry is None else registered_by(name, entry)

    def listed(self) -> list[Registered]:
        """All registrations, live and dropped, by name."""
        return listed_in(self.root.read().index(REFERENCES))

    def open(self, name: str) -> Committer:
        """The committer of a live reference; its row is completed if its creator did not get that far.

        Raises:
            ReferenceGoneError: the registry lists no live reference of that name.
            CorruptionError: its row was lost.
        """
        found = self._open.get(name)
        if found is not None:
            return found
        registered = self.lookup(name)
        if registered is None or registered.registration.state != "live":
            raise ReferenceGoneError(f"reference {name!r} does not exist")
        self.complete(registered)
        with self._guard:
            return self._open.setdefault(name, self._committer(registered.row_name))

    def forget(self, name: str) -> None:
        """Look in the registry again when `name` is opened next."""
        with self._guard:
            self._open.pop(name, None)

    def read(self, name: str) -> Snapshot:
        """A fresh head of a reference."""
        return self._retrying(name, _read_live)

    def commit(self, name: str, change: Change[R]) -> R:
        """Commit a change to a reference, found again by the registry if it was dropped and created anew."""
        try:
            return self._retrying(name, lambda committer: committer.commit(change))
        except (ReferenceGoneError, RealmMovedError):
            repeated = self._repeated_at_the_end(name, change)
            if repeated is None:
                raise
            return repeated[0]

    def _repeated_at_the_end(self, name: str, change: Change[R]) -> tuple[R] | None:
        """The answer of a change that was done before its reference was dropped or its realm moved; None if not."""
        registry = self.root.last()
        entry = None if registry is None else registry.index(REFERENCES).get(name.encode())
        if entry is None:
            return None
        return self._committer(registered_by(name, entry).row_name).repeated_at_the_end(change)

    def _retrying(self, name: str, use: Callable[[Committer], R]) -> R:
        for _ in range(_LOOKUPS):
            committer = self.open(name)
            try:
                return use(committer)
            except ReferenceGoneError:
                self.forget(name)
        raise ReferenceGoneError(f"reference {name!r} is dropped and created again and again")

    def create(self, name: str, operation: Operation, *, source: Snapshot | None = None) -> Registered:
        """Create a reference from a head that another one has or had, or with an empty first commit.

        Raises:
            AlreadyExistsError: the name is live.
            ReferenceGoneError: the source was dropped.
            HistoryTrimmedError: the head lies below the source's history floor by now.
            NotFoundError: the head is not in the source's history.
        """
        registered = self.root.commit(Create(name, operation, source, self))
        self._afterwards(name, lambda: self._complete_unless_dropped(registered))
        return registered

    def drop(self, name: str, operation: Operation) -> Registered:
        """Drop a reference; returns after its row is sealed, so that nobody commits to it any more.

        Raises:
            NotFoundError: the name is not live.
        """
        registered = self.root.commit(Drop(name, operation, self))
        if (
            registered.registration.state == "dropped"
        ):  # else sent again after the name came back; that row lives
            self._afterwards(name, lambda: self._seal(registered))
        self.forget(name)
        return registered

    def undrop(self, name: str, operation: Operation) -> Registered:
        """Bring a dropped reference back, with its last head, under a new generation.

        Raises:
            NotFoundError: no such dropped reference, or none any more: it was given up after the grace period.
        """
        registered = self.root.commit(Undrop(name, operation, self))
        self._afterwards(name, lambda: self._complete_unless_dropped(registered))
        self.forget(name)
        return registered

    def end_expired(self, grace_ms: int | Callable[[str], int], operation: Operation) -> list[Registered]:
        """Give the references up for good that were dropped longer ago than the grace period, so that nobody brings
        one back whose rows or files are deleted then. Jobs trust the registry, not their clock, in what that is.

        Args:
            grace_ms: milliseconds, of all references or by name.
        """
        return self.end(expired(self.listed(), self.ids.now_ms(), grace_ms), operation)

    def end(self, dropped: Sequence[Registered], operation: Operation) -> list[Registered]:
        """Give dropped references up for good, those that are still registered as they are given here.

        They are sealed before: what is committed to them until then is in their last head.

        Returns:
            those that were ended.
        """
        for registered in dropped:
            self._seal(registered)
        return self.root.commit(End(dropped, operation, self.clock)) if dropped else []

    def bury(self, row_name: str) -> None:
        """Leave nothing but a tombstone of a row that is sealed, and whose registration ended."""
        self._amend(row_name, lambda head: _tombstone(head) if head.sealed else head)

    def _afterwards(self, name: str, once: Callable[[], None]) -> None:
        """Do what follows a registry commit, which is done by now whatever the database says next.

        Raises:
            OutcomeUnknownError: the deadline passed; the same operation id will tell.
        """
        started = self.clock.monotonic_ms()
        attempt = 0
        while True:
            try:
                return once()
            except (TryAgainError, OutcomeUnknownError) as error:
                age = self.clock.monotonic_ms() - started
                if age > self._settings.deadline_ms:
                    raise OutcomeUnknownError(
                        f"the registry has the change of reference {name!r}, its row may not: {error}"
                    ) from error
            attempt += 1
            self.clock.sleep_ms(backoff_ms(attempt, age, self._rng))

    def _complete_unless_dropped(self, registered: Registered) -> None:
        with contextlib.suppress(ReferenceGoneError):  # it did live; what others did then is another matter
            self._insert(registered)

    def complete(self, registered: Registered) -> None:
        """Write the row of a live registration whose creator did not get that far.

        Raises:
            ReferenceGoneError: the registration is not live any more; its row must never come back.
            CorruptionError: it had a row, which was lost.
        """
        if self.store.backend.read_reference(self.store.realm, registered.row_name) is None:
            refuse_lost(self.store, registered, self.clock)
            self._insert(registered)

    def _insert(self, registered: Registered) -> None:
        """Insert the row of a live registration unless it is there already."""
        backend, realm = self.store.backend, self.store.realm
        first = ReferenceRow(new_version(), encode_head(registered.first_head()))
        while backend.read_reference(realm, registered.row_name) is None:
            current = self.lookup(registered.name)
            if current is None or current.registration != registered.registration:
                raise ReferenceGoneError(f"reference {registered.name!r} was dropped meanwhile")
            with contextlib.suppress(OutcomeUnknownError):  # the next read tells
                backend.insert_reference(realm, registered.row_name, first)

    def _seal(self, registered: Registered) -> None:
        """Swap the row to sealed; a row that its creator has not written yet is written sealed."""
        backend, realm, name = self.store.backend, self.store.realm, registered.row_name
        sealed = ReferenceRow(new_version(), encode_head(registered.first_head(sealed=True)))
        while backend.read_reference(realm, name) is None:
            with contextlib.suppress(OutcomeUnknownError):  # the next read tells
                backend.insert_reference(realm, name, sealed)
        self._amend(registered.row_name, lambda head: msgspec.structs.replace(head, sealed=True))

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

    def fence(self, row_name: str) -> int:
        """Put a fence before everything that anybody prepared for a row so far: every attempt that began before fails
        its swap, and what it prepared is written again under new ids.

        Returns:
            the fence, higher than every id and fence that this process has seen, and than any fence of this row.
        Raises:
            ReferenceGoneError: there is no such row.
            TryAgainError, OutcomeUnknownError: from the database, until the deadline passed.
        """
        while True:
            id = self.ids.next_id()
            head = read_head(self._amend(row_name, partial(raise_fence, id=id)), row_name)
            if head.fence == id:
                return id
            self.ids.observe(
                head.fence
            )  # of a process whose ids run ahead: what changes no row fences nothing

    def sealed_head(self, registered: Registered) -> Head:
        """The last head of a dropped reference.

        Raises:
            ReferenceGoneError: it was given up for good.
        """
        self._seal(registered)
        row = self.store.backend.read_reference(self.store.realm, registered.row_name)
        head = None if row is None else read_head(row, registered.row_name)
        if head is None or not head.commit:
            raise ReferenceGoneError(
                f"reference {registered.name!r} was dropped longer ago than the grace period, and given up"
            )
        return head


def _tombstone(head: Head) -> Head:
    """What is left of a sealed head: none of its commits, so that whoever asks for one is told that it was trimmed."""
    return Head(0, head.number, head.time, head.number + 1, head.time, fence=head.fence, sealed=True)


def _read_live(committer: Committer) -> Snapshot:
    snapshot = committer.read()
    if snapshot.head.sealed:
        raise ReferenceGoneError(f"reference {committer.name!r} was dropped")
    return snapshot
