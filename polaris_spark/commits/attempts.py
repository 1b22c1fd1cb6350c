"""Steps 3 to 7 of the commit protocol for a batch of changes. Steps 3 to 6 are repeated on the newest head until the
compare-and-swap of the reference's row succeeds."""

from __future__ import annotations

import random
from typing import TypeVar

from polaris_spark.clock import Clock
from polaris_spark.commits.applier import NOTHING_DECIDED, Applied, Applier
from polaris_spark.commits.builder import Builder
from polaris_spark.commits.change import Change
from polaris_spark.commits.files import BatchFiles
from polaris_spark.commits.group import Batch, Group, Pending
from polaris_spark.commits.handover import WITHDRAW_MS, Handover
from polaris_spark.commits.head_reader import HeadReader
from polaris_spark.commits.intent_rows import Outcomes
from polaris_spark.commits.intents import Intents, OutcomeTrimmedError, Published
from polaris_spark.commits.mailbox import Mailbox
from polaris_spark.commits.publication import Outcome, Publication
from polaris_spark.commits.retry import Turns, backoff_ms
from polaris_spark.commits.settings import CommitSettings, FileWriter
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import (
    CorruptionError,
    NewerFormatError,
    ObjectTooLargeError,
    OutcomeUnknownError,
    StorageFullError,
    TryAgainError,
)
from polaris_spark.ids import IdGenerator, unpack
from polaris_spark.store.objects import ObjectStore

P = TypeVar("P")
R = TypeVar("R")


class _Run:
    """Progress of the execution of a batch. If another thread becomes the leader, it continues from this state."""

    def __init__(self, now: float, files: BatchFiles) -> None:
        self.began = now
        self.files = files
        self.attempt = 0
        self.troubles = 0
        self.settled = False
        """Whether every change has its result or its error."""
        self.applied: Applied | None = None
        self.ahead_of_swap = False
        """Whether `applied` is based on the commit of the previous batch, and was computed before the swap to that
        commit."""
        self.fresh: CommitReader | None = None
        """The head that the newest attempt read from the database; None if the attempt uses the remembered head."""
        self.learned = False
        """Whether the remembered head comes from the answer of a lost swap, so that the next attempt need not read the
        reference's row."""
        self.publication: Publication | None = None
        self.included: list[Pending] = []
        """The changes that the publication contains."""
        self.next_base: CommitReader | None = None
        """The head that this batch's commit will produce. The next batch may apply its changes to this head before the
        commit is written."""
        self.cause: Exception | None = None
        self.has_turn = False
        """Whether another process granted a turn, so that this one commits without a pause."""
        self.published: Published | None = None
        """The intent of this batch that was published and is not decided yet."""


class Attempts:
    """Executes batches of changes to one reference: applies the changes, writes the rows, and swaps the reference's
    row."""

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        heads: HeadReader,
        *,
        ids: IdGenerator,
        clock: Clock,
        rng: random.Random,
        settings: CommitSettings,
        files: FileWriter | None,
        mailbox: Mailbox,
    ) -> None:
        self._store = store
        self._name = name
        self._heads = heads
        self._clock = clock
        self._rng = rng
        self._files = files
        self._turns = Turns(ids, clock, rng)
        self._applier = Applier(
            name, ids, clock, settings.operation_lifetime_ms, commit_ms=lambda: self._turns.commit_ms
        )
        self._builder = Builder(store, ids, settings)
        self._intents = Intents(
            store, ids, self._applier, mailbox, clock=clock, deadline_ms=settings.deadline_ms
        )
        self._handover = Handover(
            store, name, heads, self._intents, self._turns, mailbox=mailbox, clock=clock, rng=rng
        )
        self.group = Group(self, clock, max_batch=settings.max_batch, max_waiting=settings.max_waiting)

    def carry(self, batch: Batch, deadline: float) -> Exception | None:
        """Execute a batch. Return None when each of its changes has a result or an error; if `deadline` (in
        milliseconds on the monotonic clock) passes first, return the error for the leader."""
        run: _Run | None = batch.progress
        if run is None:
            files = BatchFiles(self._name, self._files, self._clock)
            run = batch.progress = _Run(self._clock.monotonic_ms(), files)
        while not run.settled:
            try:
                self._go_on(batch, run, deadline)
            except Exception as error:
                final = self._final(run, error, deadline)
                if final is not None and not self._settled_before(batch, run, final):
                    raise final from None
            except BaseException:
                run.applied = None  # the next leader cannot tell how many changes were applied
                raise
            if not run.settled and self._clock.monotonic_ms() >= deadline:
                late = self._late(run)
                if not self._settled_before(batch, run, late):
                    return late
        return None

    def _go_on(self, batch: Batch, run: _Run, deadline: float) -> None:
        if run.publication is None:
            run.publication = self._publication(batch, run, deadline)
        publication = run.publication
        if publication is None:
            return
        if not publication.in_doubt and not self.group.send(batch, run.included):
            run.publication = run.applied = None
            return
        begun = self._clock.monotonic_ms()
        outcome = publication.publish()
        self._turns.tried(self._clock.monotonic_ms() - begun)
        if outcome is Outcome.COMMITTED:
            publication.remember()
            decision = (None if run.applied is None else run.applied.decision) or NOTHING_DECIDED
            self._intents.committed(decision, publication)
            run.published = None
            self._heads.advance(publication.new)
            self._turns.won()
            if decision.yields_to:
                self._turns.yield_to(decision.yields_to - {unpack(publication.new.head.commit).node})
            run.settled = True
        elif outcome is Outcome.LOST:
            self._unsent(batch, run)
            run.publication = run.applied = None
            run.attempt += 1
            run.has_turn = run.learned = False
            self._turns.lost(heard=publication.current is not None)
            for pending in batch.pendings:
                pending.contested = False
            if publication.current is not None:
                found = self._heads.adopt(publication.current)
                # A head that was set back without a new fence does not replace the remembered one.
                run.learned = self._heads.known() is found
        else:
            if outcome is Outcome.BUSY:
                self._unsent(batch, run)
            self._wait_out(run, publication.cause, deadline)

    def apply_outside_batch(self, pending: Pending, base: CommitReader) -> None:
        """Apply a change to the commit `base` outside any batch, and store the outcome in `pending.memo` for a later
        batch."""
        self._applier.apply_outside_batch(pending, base)

    def repeated(self, change: Change[P, R], head: CommitReader | None) -> tuple[R] | None:
        """Return `(result,)` if the change's operation (its idempotency key) was already carried out, else None."""
        return self._applier.repeated(change, head)

    # Computing

    def _publication(self, batch: Batch, run: _Run, deadline: float) -> Publication | None:
        """Carry out steps 3 and 4 and the first part of step 5: return the commit of the batch, ready to be written.
        Its rows may already have been written by `_apply_early`. Under contention, this also publishes an intent, and
        waits for other processes.

        Return None if every change already has its result or its error, if the leader's deadline has passed, or if the
        changes must be applied again.
        """
        early = None
        if run.attempt == 0 and run.published is None and not self._intents.sends_requests:
            early = self._apply_early(batch, run)
        if not self._await_previous(batch, deadline):
            return None
        if early is not None and early.base is self._heads.known() and not early.base.head.slots:
            return self._ready(batch, run, early)
        if self._turns.contended or run.published is not None:
            self._handover.yield_turn(deadline)
            if self._handed_over(batch, run, deadline):
                return None
        if run.published is None:
            self._pause(batch, run, deadline)
            applied = self._applied(batch, run)
        else:
            run.applied = None  # the state of the intent stays as it is
            applied = self._applied(batch, run, run.fresh)
            if run.published.has_files and any(
                one.memo not in run.published.memos for one in run.published.pendings
            ):
                # The intent needs its own files, which this attempt would replace.
                self._withdraw(batch, run, deadline - self._clock.monotonic_ms())
                return None
        if not applied.effects and applied.base is not run.fresh:
            run.fresh = self._heads.read()  # without a swap, only a read shows whether the head has moved
            if run.fresh is not applied.base:  # changes submitted after this read go into the next batch
                applied = self._applied(batch, run, run.fresh)
        if applied.effects:
            self._refuse_moving(applied.base)
        if not run.files.write(applied.pendings):
            run.applied = None
            return None
        if not applied.effects:
            if run.published is not None:
                self._withdraw(batch, run, deadline - self._clock.monotonic_ms())
            run.settled = True
            return None
        if applied.base.head.slots or self._turns.crowded:
            self._intents.decide(applied, run.published, competing=self._turns.crowded)
        publication = self._built_if_possible(run, applied)
        return None if publication is None else self._ready(batch, run, publication)

    # Handing over

    def _handed_over(self, batch: Batch, run: _Run, deadline: float) -> bool:
        """Let another process carry out the batch, if one is likely to commit soon. Return True if the other process
        has decided the batch: every change then has its result, or must be prepared again. Return False if this process
        must commit.

        If this returns False and the batch has a published intent, no process had decided the intent at the head
        `run.fresh`.
        """
        tried = run.published is not None and run.attempt > 0
        if run.published is None and not self._publish_intent(batch, run):
            return False
        assert run.published is not None
        if tried:
            self._pause(batch, run, deadline)
        found = self._handover.wait(run.published, deadline, only_look=tried)
        run.attempt, run.fresh = 0, found.head
        if found.outcomes is None:
            return False
        if run.published.asks_for_turn:
            self._intents.settle(run.published, found.outcomes)
            run.published, run.has_turn = None, True
            for pending in batch.pendings:
                pending.contested = True  # no further intent: this process commits next
            return False
        self._settle(batch, run, found.outcomes)
        return True

    def _publish_intent(self, batch: Batch, run: _Run) -> bool:
        """Publish an intent of the batch, unless this process is to commit next. Return False if it published none."""
        if _contested(batch):
            return False
        known = self._handover.base_for_intent(lost=run.attempt > 0)
        if known is None:
            return False
        self.group.add_waiting(batch)
        pendings, published = list(batch.pendings), None
        if self._intents.sends_requests:
            published = self._intents.draft_of_requests(self._applier.begin(known).state, pendings)
        if published is None:
            applied = self._applied(batch, run, known)
            if applied.failed or not applied.effects or not run.files.write(applied.pendings):
                run.applied = None
                return False
            published, pendings = self._intents.draft(applied), list(applied.pendings)
            if published is None:
                published = self._intents.draft_for_turn(applied.state)
        if published is None or not (published.asks_for_turn or self.group.send(batch, pendings)):
            return False
        run.published = published
        self._intents.publish(published, known.head)
        return True

    def _settle(self, batch: Batch, run: _Run, outcomes: Outcomes) -> None:
        """Give each change in the published intent its outcome. Mark the changes of the batch that are not in the
        intent to be prepared again."""
        assert run.published is not None
        for pending in batch.pendings:
            pending.must_prepare, pending.answer_directly, pending.error = True, True, None
        self._intents.settle(run.published, outcomes)
        run.published, run.settled = None, True

    def _withdraw(self, batch: Batch, run: _Run, limit_ms: float) -> None:
        """Withdraw the published intent. If another process has already carried it out, settle the changes.

        Raises:
            TryAgainError, OutcomeUnknownError: the database failed; the intent may still be carried out.
        """
        assert run.published is not None
        outcomes, run.learned = None, False  # the withdrawal changes the row
        if run.published.asks_for_turn:
            self._intents.abandon(run.published)
        else:
            outcomes = self._handover.withdraw(run.published, limit_ms)
        if outcomes is not None:
            self._settle(batch, run, outcomes)
        else:
            run.published = None
            self._unsent(batch, run)

    def _final(self, run: _Run, error: Exception, deadline: float) -> Exception | None:
        """Return the error to report for the batch. If the error is temporary, wait before the next attempt, and return
        None."""
        in_doubt = run.publication is not None and run.publication.in_doubt
        if (
            isinstance(error, (OutcomeUnknownError, TryAgainError))
            and not isinstance(error, OutcomeTrimmedError)
            and not in_doubt
        ):
            try:
                self._wait_out(run, error, deadline)
            except StorageFullError as full:
                return full
            return None
        run.applied = None
        if in_doubt and not isinstance(error, OutcomeUnknownError):
            return OutcomeUnknownError(
                f"it is not known whether a commit to {self._name!r} took place: {error}; before you repeat the "
                "change, check the log for it"
            )
        return error

    def _settled_before(self, batch: Batch, run: _Run, error: Exception) -> bool:
        """Withdraw the published intent, if there is one, before `error` is reported. Return True if another process
        has already carried it out: the changes then have their outcome, and `error` is not reported.

        Raises:
            OutcomeUnknownError: the database failed; the intent may still be carried out.
        """
        if run.published is None or isinstance(error, OutcomeUnknownError):
            return False
        try:
            self._withdraw(batch, run, WITHDRAW_MS)
        except Exception as failure:
            raise OutcomeUnknownError(
                f"it is not known whether a commit to {self._name!r} took place: {error}; {failure}; before you repeat "
                "the change, check the log for it"
            ) from failure
        return run.settled

    def _unsent(self, batch: Batch, run: _Run) -> None:
        """Mark the batch as not sent, unless another process may carry it out."""
        if run.published is None or run.published.asks_for_turn:
            self.group.unsent(batch)

    def _apply_early(self, batch: Batch, run: _Run) -> Publication | None:
        """Apply the changes before the previous batch has ended: to the commit that the previous batch is writing, or,
        if there is none, to the remembered head. If rows are written apart from the swap, also write the files and rows
        of a batch that is on top of another one.

        Returns:
            a commit whose parent is the previous batch's commit, with its rows already written; None if the previous
            batch is not writing a commit, if a change failed or its files or objects cannot be written, if no change
            has an effect, or if the backend writes rows together with the swap.
        """
        if run.applied is None:
            before: _Run | None = None if batch.previous is None else batch.previous.progress
            ahead = None if before is None else before.next_base
            run.ahead_of_swap = ahead is not None
            run.applied = self._applier.begin(ahead or self._heads.known_or_forecast())
            self._applier.apply(run.applied, list(batch.pendings))
        applied = run.applied
        if (
            not run.ahead_of_swap
            or self._store.backend.transactional
            or applied.failed
            or not applied.effects
        ):
            return None
        if not run.files.write(applied.pendings):
            run.applied = None
            return None
        publication = self._built_if_possible(run, applied)
        if publication is not None:
            publication.write_rows()
        return publication

    def _await_previous(self, batch: Batch, deadline: float) -> bool:
        """Wait for the previous batch to end. Return False if the deadline passed first."""
        previous = batch.previous
        ended = None if previous is None else previous.ended
        return ended is None or ended.wait(deadline - self._clock.monotonic_ms())

    def _pause(self, batch: Batch, run: _Run, deadline: float) -> None:
        """If other processes also commit to this reference, pause to let them commit."""
        if run.has_turn or (not self._turns.crowded and not self._intents.own):
            return
        if self._intents.own and not _contested(batch):
            self._handover.await_intents(deadline, changes=len(batch.pendings))
            if not self._turns.has_strangers(self._heads.known()):
                return  # intents take the place of turns
        now = self._clock.monotonic_ms()
        age = now - min([pending.since for pending in batch.pendings], default=now)
        pause = self._turns.pause_ms(self._heads.known(), run.attempt, age)
        if pause:
            run.learned = False
            self._clock.sleep_ms(min(pause, max(0.0, deadline - now)))

    def _applied(self, batch: Batch, run: _Run, base: CommitReader | None = None) -> Applied:
        """Apply every change of the batch to a commit and return the result. The commit is `base`; if `base` is None,
        it is the head.

        If `base` is None, waiting changes are added to the batch first. The head is then read from the database if this
        is a repeated attempt, or if other processes are likely to commit and this process did not make the newest
        commit. Otherwise the remembered head is used. The remembered head is also used if it comes from the answer to
        the swap that just failed.
        """
        if base is None:
            self.group.add_waiting(batch)
            others = self._turns.contended and not self._turns.committed_recently
            look = (run.attempt or others) and not run.learned
            run.fresh = self._heads.read() if look else None
            run.learned = False
            base = run.fresh or self._heads.known()
        applied, pendings = run.applied, list(batch.pendings)
        done = 0 if applied is None else len(applied.pendings)
        if (
            applied is None
            or applied.base is not base
            or applied.decision is not None
            or applied.pendings != pendings[:done]
            or (run.ahead_of_swap and applied.failed)  # perhaps only because a row of the base was missing
        ):
            applied, done = self._applier.begin(base), 0
        if done < len(pendings):
            self._applier.apply(applied, pendings[done:])
        run.applied, run.ahead_of_swap = applied, False
        return applied

    def _refuse_moving(self, base: CommitReader) -> None:
        """Raise TryAgainError if the realm is being moved to another store. If the move is canceled, commits succeed
        again."""
        if base.head.move is not None:
            raise TryAgainError(
                f"reference {self._name!r} accepts no commits while its realm is being moved to {base.head.move.to}; "
                "nothing was changed: try again later"
            )

    def _built(self, applied: Applied) -> Publication:
        built = self._builder.build(applied)
        decision = applied.decision or NOTHING_DECIDED
        publication = Publication(
            self._store, self._name, applied.base, built.reader, built.objects, decision.rows
        )
        if decision.requested:
            publication.add_rows(self._intents.written_answers(decision, publication))
        return publication

    def _built_if_possible(self, run: _Run, applied: Applied) -> Publication | None:
        """Build the commit of the applied changes and return it. Return None if the changes must be applied again.

        The changes must be applied again in two cases. If the objects of a change cannot be written, that change fails,
        and the other changes are applied again. If rows of the base cannot be read because they were deleted by a sweep
        or are not written yet, the changes are applied to the newest head.
        """
        try:
            return self._built(applied)
        except (ObjectTooLargeError, NewerFormatError):
            if not self._refused(applied):
                raise
            run.applied = None
            return None
        except CorruptionError:
            if not run.ahead_of_swap and (applied.base is run.fresh or self._heads.read() is applied.base):
                raise
            run.applied = None
            return None

    def _refused(self, applied: Applied) -> bool:
        """Set `refused` of each change whose own objects cannot be written. Return True if there is at least one such
        change."""
        found = False
        for pending in applied.pendings:
            if pending.memo is not None and pending.refused is None:
                try:
                    self._store.rows(pending.memo.effects.objects)
                except (ObjectTooLargeError, NewerFormatError) as error:
                    pending.refused, found = error, True
        return found

    def _ready(self, batch: Batch, run: _Run, publication: Publication) -> Publication:
        """Return `publication`. On a first attempt, also let the next batch apply its changes while this commit is
        written, unless other processes are likely to commit first."""
        run.included = [] if run.applied is None else list(run.applied.pendings)
        if run.attempt == 0 and not self._turns.contended and not publication.new.head.slots:
            publication.remember()
            run.next_base = publication.new
            self.group.pass_on(batch)
        return publication

    # Trouble

    def _wait_out(self, run: _Run, cause: Exception | None, deadline: float) -> None:
        """Wait before the next attempt: longer after each failure of the database, but not beyond the deadline.

        Raises:
            StorageFullError: `cause` is a StorageFullError, and the commit certainly did not take place. Retrying is
                pointless until there is space.
        """
        in_doubt = run.publication is not None and run.publication.in_doubt
        if isinstance(cause, StorageFullError) and not in_doubt:
            raise cause
        run.troubles, run.cause, run.learned = run.troubles + 1, cause, False
        pause = backoff_ms(
            run.troubles, 0.0, self._rng
        )  # when the database fails, older changes have no priority
        self._clock.sleep_ms(min(pause, max(0.0, deadline - self._clock.monotonic_ms())))

    def _late(self, run: _Run) -> Exception:
        """Return the error for the leader (the thread that executes the batch) when its deadline has passed: an
        OutcomeUnknownError if a commit may have taken place, otherwise a TryAgainError."""
        took = self._clock.monotonic_ms() - run.began
        if run.publication is not None and run.publication.in_doubt:
            why = f" ({run.cause})" if run.cause is not None else ""
            return OutcomeUnknownError(
                f"it is not known after {took:.0f} ms whether a commit to {self._name!r} took place{why}; before you "
                "repeat the change, check the log for it"
            )
        why = str(run.cause) if run.cause is not None else "other commits came first"
        return TryAgainError(
            f"the commit to {self._name!r} did not succeed in {took:.0f} ms ({why}); nothing was changed: try again"
        )


def _contested(batch: Batch) -> bool:
    return any(pending.contested for pending in batch.pendings)
