"""The commit protocol on one reference.

| step | a crash right after it leaves behind |
| --- | --- |
| 1. start from the known head | nothing |
| 2. prepare, apply | nothing: effects are in memory (prepare may read files, never writes any) |
| 3. write new files, then new objects, the commit object among them | what nothing points to: swept later |
| 4. swap the reference to the new commit | the commit, acknowledged to nobody; its operation id tells |
| 5. on a conflict: again from 1 with the fresh head | rows that nothing points to: swept later |

Where the database has transactions, 3 and 4 are one. Nothing that an attempt wrote is ever deleted by it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from polaris_spark.clock import Clock
from polaris_spark.commits.amending import amend_row
from polaris_spark.commits.attempts import Attempts
from polaris_spark.commits.change import Change, PrepareAgain
from polaris_spark.commits.group import Pending
from polaris_spark.commits.reading import HeadReader
from polaris_spark.commits.rows import Head
from polaris_spark.commits.settings import CommitSettings, FileWriter
from polaris_spark.commits.state import Snapshot, State
from polaris_spark.errors import MissingObjectError, RealmMovedError, ReferenceGoneError, TryAgainError
from polaris_spark.ids import IdGenerator
from polaris_spark.store.objects import ObjectStore

APART_SIZE = 200
"""The submitter of a change with more steps than this applies it before it enters a batch."""

R = TypeVar("R")


class Committer:
    """Commits changes to one reference row, from any number of threads, grouped."""

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        *,
        ids: IdGenerator,
        clock: Clock,
        settings: CommitSettings,
        files: FileWriter | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self._store = store
        self._ids = ids
        self._clock = clock
        self._settings = settings
        self._rng = rng or random.Random()
        self._heads = HeadReader(store, name, ids)
        self._attempts = Attempts(
            store,
            name,
            self._heads,
            ids=ids,
            clock=clock,
            rng=self._rng,
            settings=settings,
            files=files,
        )

    # Reading

    def read(self) -> Snapshot:
        """The head as it is now: one read of the reference row, and of the commit if it has moved.

        Raises:
            ReferenceGoneError: the row is missing.
        """
        return self._heads.read()

    def known(self) -> Snapshot:
        """The head that this process knows, perhaps no longer the newest; read now if it knows none."""
        return self._heads.known()

    def amend(self, change: Callable[[Head], Head]) -> Snapshot:
        """Change the row without a commit: its floor, its fence, its seal.

        Args:
            change: gives the same when applied to its own result, because it is applied again while it is not
                known whether the swap took place.
        Returns:
            the amended head. Commits that others began before fail their swap and begin again on it.
        Raises:
            ReferenceGoneError: the row is missing.
            TryAgainError, OutcomeUnknownError: from the database, until the deadline passed.
        """
        row = amend_row(
            self._store.backend,
            self._store.realm,
            self.name,
            change,
            clock=self._clock,
            deadline_ms=self._settings.deadline_ms,
            rng=self._rng,
        )
        return self._heads.adopt(row)

    def last(self) -> Snapshot | None:
        """The head, also of a reference that takes no more commits; None if nothing is left of it."""
        try:
            return self._heads.last()
        except MissingObjectError:
            return None

    # Committing

    def repeated_at_the_end(self, change: Change[R]) -> tuple[R] | None:
        """The answer of a change that was done before its reference took its last commit; None if it was not.

        Raises:
            OutcomeUnknownError: it may have been, and that was forgotten since.
        """
        return self._attempts.repeated(change, self.last())

    def commit(self, change: Change[R], *, deadline_ms: float | None = None) -> R:
        """Carry out a change: all of it, once, or an error and nothing of it.

        Args:
            deadline_ms: how long to try, milliseconds; that of the settings unless given.
        Raises:
            RequestError: a requirement failed, judged against a fresh head.
            TryAgainError: nothing was changed before the deadline, or too many changes wait already.
            OutcomeUnknownError: it may have been done; the same operation id will tell.
            ReferenceGoneError: the reference was dropped meanwhile, and nothing was changed.
            RealmMovedError: another store serves the realm by now, and nothing was changed here.
        """
        try:
            return self._commit(change, deadline_ms)
        except (ReferenceGoneError, RealmMovedError):
            repeated = self.repeated_at_the_end(change)
            if repeated is None:
                raise
            return repeated[0]

    def _commit(self, change: Change[R], deadline_ms: float | None) -> R:
        begun = self._clock.monotonic_ms()
        deadline = begun + (self._settings.deadline_ms if deadline_ms is None else deadline_ms)
        view, apart = self.known(), change.size > APART_SIZE
        while True:
            pending = Pending(change, begun, deadline, self._clock.signal())
            state = State(view, self._ids.next_id)
            try:
                pending.prepared = change.prepare(state)
                pending.prepared_reads, pending.prepared_fence = state.reads, view.head.fence
                pending.prepared_on = view
                if apart:
                    self._attempts.apply_apart(pending, view)
            except Exception as error:
                newest = self.read()
                repeated = self._attempts.repeated(change, newest)
                if repeated is not None:  # what it refuses now may be what it did
                    return repeated[0]
                if newest.version == view.version and not isinstance(error, PrepareAgain):
                    raise
                if self._clock.monotonic_ms() >= deadline:  # what failed was prepared for an old head
                    if isinstance(error, TryAgainError):
                        raise
                    raise self._contended() from None
                view = newest
                continue
            self._attempts.group.submit(pending)
            if pending.error is not None:
                raise pending.error
            if not pending.must_prepare:
                return pending.result  # type: ignore[no-any-return]  # a Pending carries any change's result
            if self._clock.monotonic_ms() >= deadline:
                raise self._contended()
            view, apart = self.read(), apart or pending.too_long

    def _contended(self) -> TryAgainError:
        return TryAgainError(
            f"{self.name!r} is contended: what the change was prepared for moved again and again; "
            "nothing was changed"
        )
