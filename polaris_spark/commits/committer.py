"""The commit protocol on one reference: step 1 (start from the remembered head) and step 2 (prepare), repeated until
the change has its result.

The steps have the numbers of `docs/concepts/commits.md`, which also says what the store contains if the process dies
after a step. `attempts` runs steps 3 to 7: `applier` (3), `files` (4), `builder` and `publication` (5 and 6), `group`
(7). If another process commits first, an attempt begins again with step 3. A change begins again with step 2 if
something that it read in `prepare` has changed, or if a fence was set on the reference, so that objects prepared
earlier must not be used.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from polaris_spark.clock import Clock
from polaris_spark.commits.amendments import amend_row
from polaris_spark.commits.attempts import Attempts
from polaris_spark.commits.change import Change, PrepareAgain
from polaris_spark.commits.group import Pending
from polaris_spark.commits.head_reader import HeadReader
from polaris_spark.commits.mailbox import Mailbox, NoMailbox
from polaris_spark.commits.rows import Head
from polaris_spark.commits.settings import CommitSettings, FileWriter
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import MissingObjectError, RealmMovedError, ReferenceGoneError, TryAgainError
from polaris_spark.ids import IdGenerator
from polaris_spark.store.objects import ObjectStore

APART_SIZE = 200
"""A change with more steps of `Change.apply` than this is first applied outside any batch, by the thread that submitted
it."""

P = TypeVar("P")
R = TypeVar("R")


class Committer:
    """Commits changes to one reference. Any number of threads may use it; their changes are committed in batches."""

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
        mailbox: Mailbox | None = None,
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
            mailbox=mailbox or NoMailbox(clock),
        )

    # Reading

    def read(self) -> CommitReader:
        """Return the newest head of the reference. Read its row, and read the commit only if the row has changed.

        Raises:
            ReferenceGoneError: the row is missing, or is sealed because the reference was dropped.
            RealmMovedError: the realm was moved to another store.
        """
        return self._heads.read()

    def amend(self, change: Callable[[Head], Head]) -> CommitReader:
        """Change the reference's row without adding a commit, for example to trim its history or to set a fence.

        Args:
            change: returns the new head. It must be idempotent, because it is called again while the outcome of the
                swap is unknown.
        Returns:
            the amended head. Commits that other processes began earlier fail their swap and start again on this head.
        Raises:
            ReferenceGoneError: the row is missing or sealed.
            RealmMovedError: the realm was moved to another store.
            TryAgainError, OutcomeUnknownError: the database failed until the deadline passed.
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

    def last(self) -> CommitReader | None:
        """Return the newest head, even if the reference was dropped; None if its row, its commit or its history is
        gone."""
        try:
            return self._heads.last()
        except MissingObjectError:
            return None

    # Committing

    def commit(self, change: Change[P, R], *, deadline_ms: float | None = None) -> R:
        """Carry out a change atomically and exactly once, and return its result; or raise an error.

        Args:
            deadline_ms: time limit, in milliseconds; by default `CommitSettings.deadline_ms`.
        Raises:
            RequestError: a requirement of the change is not met by the newest head.
            TryAgainError: the change could not be made before the deadline, or too many changes wait already; nothing
                was changed.
            OutcomeUnknownError: the change may have been made; repeat it with the same operation id to find out.
            ReferenceGoneError: the reference was dropped; nothing was changed.
            RealmMovedError: another store serves the realm now; nothing was changed here.
        """
        begun = self._clock.monotonic_ms()
        deadline = begun + (self._settings.deadline_ms if deadline_ms is None else deadline_ms)
        apart, contested, answer_directly = change.size > APART_SIZE, False, False
        try:
            view = self._heads.known_or_forecast()
            while True:
                pending = Pending(change, begun, deadline, self._clock.signal())
                pending.contested = contested
                failure = self._prepare(pending, view, apart=apart or answer_directly)
                if failure is None and answer_directly:  # answer it at the head that was just read
                    repeated = self._attempts.repeated(change, view)
                    if repeated is not None:
                        return repeated[0]
                    if pending.memo is not None and not pending.memo.effects:
                        return pending.memo.result  # type: ignore[no-any-return]  # as below
                if failure is None:
                    self._attempts.group.submit(pending)
                    if pending.error is not None:
                        raise pending.error
                    if not pending.must_prepare:
                        return pending.result  # type: ignore[no-any-return]  # a Pending carries any change's result
                newest = self.read()
                if failure is not None:
                    repeated = self._attempts.repeated(change, newest)
                    if repeated is not None:  # the change may fail only because it was already carried out
                        return repeated[0]
                    if newest.version == view.version and not isinstance(failure, PrepareAgain):
                        raise failure
                # A failure on an old head is not the final outcome.
                if self._clock.monotonic_ms() >= deadline:
                    raise failure if isinstance(failure, TryAgainError) else self._contended()
                view, apart, contested = newest, apart or pending.too_long, pending.contested
                answer_directly = pending.answer_directly
        except (ReferenceGoneError, RealmMovedError) as error:
            return self.result_if_already_done(change, error)

    def result_if_already_done(self, change: Change[P, R], error: Exception) -> R:
        """Return the result of a change to a dropped or moved reference, if its operation was carried out before.

        Args:
            error: raised if the operation was not carried out.
        Raises:
            OutcomeUnknownError: the operation may have been carried out so long ago that its record was deleted.
        """
        repeated = self._attempts.repeated(change, self.last())
        if repeated is None:
            raise error
        return repeated[0]

    def _prepare(self, pending: Pending, view: CommitReader, *, apart: bool) -> Exception | None:
        """Prepare a change on the commit `view`. Return the error if this fails, else None.

        Args:
            apart: whether to also apply the change, outside any batch.
        """
        state = State(view, self._ids.next_id)
        try:
            pending.prepared = pending.change.prepare(state)
            pending.prepared_reads, pending.prepared_fence = state.reads, view.head.fence
            pending.prepared_on = view
            if apart:
                self._attempts.apply_outside_batch(pending, view)
        except Exception as error:
            return error
        return None

    def _contended(self) -> TryAgainError:
        return TryAgainError(
            f"other commits to {self.name!r} repeatedly changed data that this change had read; nothing was changed: "
            "try again"
        )
