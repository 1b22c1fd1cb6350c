"""Creating and dropping references by commits to `root`, the registry of a realm.

To create a reference, the registry commit is written first; it points to an existing source commit. Then the row is
written, whose name contains the registration's generation. A process that finds the row missing writes it. A name that
is created again gets a new generation and hence a new row: an old row is never recreated. To drop a reference, a commit
to the registry is made, then the row is *sealed* by a swap. A process that reads a sealed row looks in the registry
again.

Rows are never deleted: a process that began to create a reference long ago, and was delayed, could otherwise recreate
the row. When a dropped reference is given up permanently, its registration ends and its row becomes a *tombstone*,
which is sealed and has no commit.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.clock import Clock
from polaris_spark.commits.amending import amend_row, insert_row
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.publishing import encode_head, read_head
from polaris_spark.commits.retry import retried
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.settings import CommitSettings, FileWriter
from polaris_spark.commits.state import CommitReader
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
from polaris_spark.system.reading import head_in_row
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

P = TypeVar("P")
R = TypeVar("R")

_LOOKUPS = 10
"""Largest number of lookups of a reference that other processes drop and create again meanwhile."""


class References:
    """The references of one realm. Committers are cached by name until their row is found sealed."""

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
        """Return references of this realm that write metadata files with `files`, with commit groups of their own."""
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
        """Create `root` with an empty first commit, unless it exists. If several processes race, one row is kept."""
        backend, realm = self.store.backend, self.store.realm
        if backend.read_reference(realm, ROOT) is not None:
            return
        now = self.clock.now_ms()
        id = self.ids.next_id()
        self.store.write([(id, Commit(0, now, 0))])
        backend.insert_reference(realm, ROOT, ReferenceRow(new_version(), encode_head(Head(id, 0, now))))

    def lookup(self, name: str) -> Registered | None:
        """Return the registration of a name, live or dropped, from a fresh head of the registry; None if not listed."""
        entry = self.root.read().index(REFERENCES).get(name.encode())
        return None if entry is None else registered_by(name, entry)

    def listed(self) -> list[Registered]:
        """Return all registrations, live and dropped, ordered by name."""
        return listed_in(self.root.read().index(REFERENCES))

    def open(self, name: str) -> Committer:
        """Return the committer of a live reference. If its creator died before it wrote the row, the row is written.

        Raises:
            ReferenceGoneError: the registry lists no live reference of that name.
            CorruptionError: the row was lost.
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
        """Forget the cached committer of `name`, so that the next `open` looks in the registry again."""
        with self._guard:
            self._open.pop(name, None)

    def read(self, name: str) -> CommitReader:
        """Return a fresh head of a reference."""
        for committer in self._live(name):
            try:
                return committer.read()
            except ReferenceGoneError:
                continue
        raise _dropped_again(name)

    def commit(self, name: str, change: Change[P, R]) -> R:
        """Commit a change to a reference. If it was dropped meanwhile, it is looked up in the registry again."""
        try:
            for committer in self._live(name):
                try:
                    return committer.commit(change)
                except ReferenceGoneError:
                    continue
            raise _dropped_again(name)
        except (ReferenceGoneError, RealmMovedError) as error:
            registry = self.root.last()
            entry = None if registry is None else registry.index(REFERENCES).get(name.encode())
            if entry is None:
                raise
            return self._committer(registered_by(name, entry).row_name).repeated_at_the_end(change, error)

    def _live(self, name: str) -> Iterator[Committer]:
        """Yield the committer of a live reference, and again after each time the reference turned out to be dropped.

        Raises:
            ReferenceGoneError, CorruptionError: as `open`.
        """
        for _ in range(_LOOKUPS):
            yield self.open(name)
            self.forget(name)

    def create(self, name: str, operation: Operation, *, source: CommitReader | None = None) -> Registered:
        """Create a reference from a present or earlier head of another reference, or with an empty first commit.

        Raises:
            AlreadyExistsError: a live reference has this name.
            ReferenceGoneError: the source was dropped.
            HistoryTrimmedError: the head is already below the source's history floor.
            NotFoundError: the head is not in the source's history.
        """
        registered = self.root.commit(Create(name, operation, source, self))
        self._afterwards(name, lambda: self._complete_unless_dropped(registered))
        return registered

    def drop(self, name: str, operation: Operation) -> Registered:
        """Drop a reference. After the return its row is sealed, so no process can commit to the reference any more.

        Raises:
            NotFoundError: no live reference has this name.
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
            NotFoundError: no dropped reference has this name, perhaps because it was given up after the grace period.
        """
        registered = self.root.commit(Undrop(name, operation, self))
        self._afterwards(name, lambda: self._complete_unless_dropped(registered))
        self.forget(name)
        return registered

    def end_expired(self, grace_ms: int | Callable[[str], int], operation: Operation) -> list[Registered]:
        """Permanently give up the references that were dropped at least the grace period ago, and return them.

        After that they cannot be undropped, so their rows and files may be deleted. To find the references that are
        given up, jobs read the registry and do not use their own clock.

        Args:
            grace_ms: the grace period in milliseconds, for all references, or as a function of the name.
        """
        return self.end(expired(self.listed(), self.ids.now_ms(), grace_ms), operation)

    def end(self, dropped: Sequence[Registered], operation: Operation) -> list[Registered]:
        """Permanently give up dropped references, except those whose registration has changed.

        Their rows are sealed first, so the last head contains every change that was committed before.

        Returns:
            the references whose registrations were ended.
        """
        for registered in dropped:
            self._seal(registered)
        return self.root.commit(End(dropped, operation, self.clock)) if dropped else []

    def bury(self, row_name: str) -> None:
        """Replace a sealed row, whose registration has ended, by a tombstone."""
        self._amend(row_name, lambda head: _tombstone(head) if head.sealed else head)

    def _afterwards(self, name: str, once: Callable[[], None]) -> None:
        """Run the step that follows a registry commit, and retry it while the database fails.

        The registry commit has already taken place, so the change can no longer be reported as not made.

        Raises:
            OutcomeUnknownError: the deadline passed; repeat the change with the same operation id to find out.
        """
        try:
            retried(self.clock, once, deadline_ms=self._settings.deadline_ms, rng=self._rng)
        except (TryAgainError, OutcomeUnknownError) as error:
            raise OutcomeUnknownError(
                f"the registry records the change of reference {name!r}, but its row may not have it: {error}"
            ) from error

    def _complete_unless_dropped(self, registered: Registered) -> None:
        with contextlib.suppress(ReferenceGoneError):  # it was created; a later drop is not this call's error
            self._insert(registered)

    def complete(self, registered: Registered) -> None:
        """Write the row of a live registration if it is missing because the creator died before it wrote the row.

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
            if current is None or current.registration != registered.registration:
                raise ReferenceGoneError(f"reference {registered.name!r} was dropped meanwhile")
            return ReferenceRow(new_version(), encode_head(registered.first_head()))

        insert_row(self.store.backend, self.store.realm, registered.row_name, first)

    def _seal(self, registered: Registered) -> None:
        """Seal the row by a swap. A row that its creator has not written yet is inserted sealed."""
        sealed = ReferenceRow(new_version(), encode_head(registered.first_head(sealed=True)))
        insert_row(self.store.backend, self.store.realm, registered.row_name, lambda: sealed)
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
        """Fence a row: every attempt of any process that began earlier fails its swap. The objects that it prepared are
        then written again under new ids.

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
            self.ids.observe(
                head.fence
            )  # of a process whose ids run ahead: what changes no row fences nothing

    def sealed_head(self, registered: Registered) -> Head:
        """Seal a dropped reference and return its last head.

        Raises:
            ReferenceGoneError: the reference was permanently given up.
        """
        self._seal(registered)
        head = head_in_row(self.store.backend, self.store.realm, registered.row_name)
        if head is None or not head.commit:
            raise ReferenceGoneError(
                f"reference {registered.name!r} was dropped longer ago than the grace period and cannot be restored"
            )
        return head


def _tombstone(head: Head) -> Head:
    """Return the tombstone of a sealed head. Its floor is above all commits, so that reading one raises
    `HistoryTrimmedError`."""
    return Head(0, head.number, head.time, head.number + 1, head.time, fence=head.fence, sealed=True)


def _dropped_again(name: str) -> ReferenceGoneError:
    return ReferenceGoneError(f"reference {name!r} is repeatedly dropped and created by others")
