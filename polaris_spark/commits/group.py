"""Group commit: changes that wait for the same reference are committed together in a batch. One of the waiting threads,
the leader, does this for all.

One leader at a time has the turn to *compute*, which means to apply the changes of its batch. When its commit is ready
to be written, it may pass the turn on, so that the next leader computes while the database writes. Batches end in the
order in which they began. If a leader's deadline passes or the leader is interrupted, it leaves its batch, and another
thread of the batch continues where the leader stopped. So the other changes are not delayed and do not fail.

An interrupt (Ctrl-C in a notebook's cell) may come at any call in this module. So an interrupted thread always runs the
steps of leaving, even if it was leaving already, and every step of leaving and ending may be repeated. Attributes that
must change together are assigned without a call in between. Waking a thread twice is harmless, because it waits only
once.
"""

from __future__ import annotations

import copy
import os
import threading
import weakref
from typing import Any, Protocol

from polaris_spark.clock import Clock, Signal
from polaris_spark.commits.change import Change
from polaris_spark.commits.state import CommitReader, Effects, Read
from polaris_spark.errors import OutcomeUnknownError, TryAgainError


class Memo:
    """Outcome of one run of `Change.apply`. A later attempt reuses the outcome if everything that the run read is still
    the same."""

    __slots__ = ("effects", "fence", "reads", "result")

    def __init__(self, reads: list[Read], effects: Effects, result: Any, fence: int) -> None:
        self.reads = reads
        self.effects = effects
        self.result = result
        self.fence = fence


class Pending:
    """A change that waits to be committed. Only the thread that submitted it accesses it, except while it is in a batch
    that another thread leads."""

    __slots__ = (
        "answer_directly",
        "batch",
        "change",
        "contested",
        "deadline",
        "error",
        "memo",
        "must_prepare",
        "prepared",
        "prepared_fence",
        "prepared_on",
        "prepared_reads",
        "refused",
        "result",
        "since",
        "slow",
        "too_long",
        "took_ms",
        "turn",
    )

    def __init__(self, change: Change[Any, Any], since: float, deadline: float, turn: Signal) -> None:
        """
        Args:
            since: time at which `Committer.commit` was called, in milliseconds on the monotonic clock.
            deadline: time at which the submitting thread stops waiting, in milliseconds on the monotonic clock.
            turn: signal that is set to wake the submitting thread.
        """
        self.change = change
        self.since = since
        self.deadline = deadline
        self.turn = turn
        self.prepared: Any = None
        self.prepared_reads: list[Read] = []
        self.prepared_fence = 0
        self.prepared_on: CommitReader | None = None
        """The commit on which the change was prepared."""
        self.memo: Memo | None = None
        self.batch: Batch | None = None
        """The batch that contains this change; None if the change is not in a batch yet."""
        self.must_prepare = False
        """Whether the thread that submitted the change must prepare and submit it again."""
        self.contested = False
        """Whether another process changed what this change reads, instead of carrying it out. If so, this process
        commits the change itself."""
        self.answer_directly = False
        """Whether the thread that submitted the change applies it at a fresh head first, because it may have no effect.
        No other process can carry out such a change."""
        self.slow = False
        """Whether the last run of `apply` was slow (`applier.SLOW_MS`)."""
        self.took_ms = 0.0
        """Duration of the last run of `apply`, in milliseconds."""
        self.too_long = False
        """Whether the change needs more time than a batch allows. If so, it is applied only outside batches."""
        self.refused: Exception | None = None
        """Error with which the change would fail on every head. If set, the change fails with this error and is not
        applied again."""
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether the batch has ended. If so, the change has a result or an error, or must be prepared again."""
        return self.batch is not None and self.batch.over

    def succeed(self, result: Any) -> None:
        """Set the result. The thread that submitted the change gets it when the batch has ended."""
        self.result, self.error = result, None

    def fail(self, error: BaseException) -> None:
        """Set the error. The thread that submitted the change gets it when the batch has ended."""
        self.result, self.error = None, error


class Batch:
    """Changes that are committed together."""

    __slots__ = ("ended", "leader", "over", "pendings", "previous", "progress", "sent")

    def __init__(self, leader: Pending, previous: Batch | None) -> None:
        self.leader = leader
        self.pendings = [leader]
        self.previous = previous
        """The previous batch; None if it had already ended when this batch began."""
        self.over = False
        """Whether the batch has ended, so that no thread waits for it: each change has a result or an error, must be
        prepared again, or was abandoned."""
        self.ended: Signal | None = None
        """Signal that is set when this batch has ended. None until the next batch begins, which waits for the
        signal."""
        self.sent = False
        """Whether a commit of this batch may have taken place or may still take place."""
        self.progress: Any = None
        """State of the batch's execution. If another thread becomes the leader, it continues from this state."""


class Carrier(Protocol):
    """Executor of batches."""

    def carry(self, batch: Batch, deadline: float) -> Exception | None:
        """Execute a batch, and return None when each of its changes has a result or an error.

        If `deadline` (in milliseconds on the monotonic clock) passes first, return the error for the leader's change.
        Another thread of the batch then calls this again and continues. If this raises an error, every change of the
        batch gets the error.
        """
        ...


class Group:
    """Queue and batches of the changes that threads of this process commit to one reference."""

    def __init__(self, carrier: Carrier, clock: Clock, *, max_batch: int, max_waiting: int) -> None:
        self._carrier = carrier
        self._clock = clock
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._begin()
        _groups.add(self)

    def _begin(self) -> None:
        self._guard = threading.Lock()
        self._waiting: list[Pending] = []
        self._computes: Pending | None = None
        """The change whose submitting thread has the turn to compute (see the module's docstring). This thread leads a
        batch that it has begun or is about to begin. None if no thread has the turn."""
        self._last: Batch | None = None
        """The newest batch that has not ended; None if all have ended."""

    def submit(self, pending: Pending) -> None:
        """Commit a change in a batch. Return when `pending` has its result or its error, or must be prepared again.

        Raises:
            TryAgainError: too many changes wait already, or the deadline passed; nothing was changed.
            OutcomeUnknownError: the deadline passed while a commit of the change was being written.
        """
        try:
            error = self._await_turn(pending)
            if error is None and not pending.done:
                error = self._lead(pending)
        except BaseException:  # interrupted
            try:
                self._leave(pending)
            except BaseException:  # interrupted again
                self._leave(pending)
            raise
        pending.batch = None  # break the reference cycle, so that the objects are freed at once
        if error is not None:
            raise error

    def add_waiting(self, batch: Batch) -> list[Pending]:
        """Move waiting changes into the batch and return them. Move none if the next leader already has the turn to
        compute."""
        with self._guard:
            return self._take(batch) if self._computes is batch.leader else []

    def pass_on(self, batch: Batch) -> None:
        """Let the next leader apply the changes of its batch, unless the leader of `batch` has already passed the turn
        on."""
        with self._guard:
            self._pass_on(batch.leader)

    def send(self, batch: Batch, applied: list[Pending]) -> bool:
        """Mark the batch as sent: from now on, a thread that stops waiting for its change gets `OutcomeUnknownError`.

        Return True if the changes of the batch are those in `applied`. Otherwise, a thread has stopped waiting and its
        change was removed: return False, and do not mark the batch. The commit must then not be sent.
        """
        with self._guard:
            same = batch.pendings == applied
            batch.sent = batch.sent or same
            return same

    def unsent(self, batch: Batch) -> None:
        """Mark the batch as not sent: its commit certainly did not take place."""
        with self._guard:
            batch.sent = False

    # Taking part

    def _await_turn(self, pending: Pending) -> Exception | None:
        """Wait until the change is done, or until the thread that submitted it must lead a batch.

        Return the error for that thread if the queue is full or the deadline passed, else None.
        """
        if not self._enter(pending):
            return TryAgainError(
                f"{self._max_waiting} changes wait for this reference already; nothing was changed: try again later"
            )
        if self._computes is not pending:
            in_time = pending.turn.wait(max(0.0, pending.deadline - self._clock.monotonic_ms()))
            if not in_time and not self._leave(pending):
                return _late(pending)
        return None

    def _enter(self, pending: Pending) -> bool:
        """Take the turn to lead a batch if it is free, else join the queue. Return False if the queue is full."""
        with self._guard:
            if self._computes is None:
                self._computes = pending
            elif len(self._waiting) >= self._max_waiting:
                return False
            else:
                self._waiting.append(pending)
            return True

    def _lead(self, pending: Pending) -> Exception | None:
        batch = pending.batch or self._batch(pending)
        try:
            error = self._carrier.carry(batch, pending.deadline)
        except Exception as failure:
            error = None
            for one in list(batch.pendings):
                one.fail(failure if one is pending else _twin(failure))
        if error is not None:
            self._leave(pending)
            return error
        with self._guard:
            self._end(batch)
        return None

    def _batch(self, first: Pending) -> Batch:
        """Begin a batch of `first` and the waiting changes, and return it."""
        with self._guard:
            previous = self._last
            if previous is not None and previous.ended is None:
                previous.ended = self._clock.signal()
            batch = Batch(first, previous)
            first.batch = self._last = batch
            self._take(batch)
            return batch

    def _take(self, batch: Batch) -> list[Pending]:
        """Move waiting changes into the batch, as many as it has room for, and return them. The caller must hold
        `_guard`."""
        room = max(0, self._max_batch - len(batch.pendings))
        taken = self._waiting[:room]
        for pending in taken:
            pending.batch = batch
        batch.pendings += taken
        del self._waiting[:room]
        return taken

    # Leaving and ending

    def _leave(self, pending: Pending) -> bool:
        """Remove a change from the queue or from its batch. Return True if the batch had already ended. May be
        repeated."""
        with self._guard:
            batch = pending.batch
            if pending in self._waiting:
                self._waiting.remove(pending)
            elif batch is None:
                self._pass_on(pending)
            elif batch.over:
                self._end(batch)
                return True
            else:
                self._leave_batch(pending, batch)
            self._wake()
            return False

    def _leave_batch(self, pending: Pending, batch: Batch) -> None:
        """Remove a change from its batch; if it led the batch, choose another leader. The caller must hold `_guard`."""
        if pending in batch.pendings:
            batch.pendings.remove(pending)
        if not batch.pendings:
            self._end(batch)
            return
        if batch.leader is pending:
            heir = max(batch.pendings, key=lambda one: one.deadline)
            if self._computes is pending:
                self._computes = heir
            batch.leader = heir
        batch.leader.turn.set()

    def _end(self, batch: Batch) -> None:
        """End a batch and wake the threads that wait for its changes. The caller must hold `_guard`."""
        batch.over = True
        if self._last is batch:
            before = batch.previous
            self._last = None if before is None or before.over else before
        batch.previous = batch.progress = None
        self._pass_on(batch.leader)
        self._wake()
        if batch.ended is not None:
            batch.ended.set()
        for pending in batch.pendings:
            pending.turn.set()

    def _pass_on(self, leader: Pending) -> None:
        """If `leader` has the turn to lead, pass it to the first change in the queue. The caller must hold `_guard`."""
        if self._computes is leader:
            heir = self._waiting[0] if self._waiting else None
            if heir is not None:
                heir.batch = None
            self._computes = heir
            del self._waiting[:1]
            self._wake()

    def _wake(self) -> None:
        """Wake the thread that has the turn to lead. It may not have been woken yet, if the thread that passed the turn
        on was interrupted."""
        if self._computes is not None:
            self._computes.turn.set()


def _late(pending: Pending) -> Exception:
    """Return the error for a thread that stopped waiting for its change at the deadline."""
    if pending.batch is not None and pending.batch.sent:
        return OutcomeUnknownError(
            "the time limit of commits (commit-timeout) passed while the commit was being written; repeat the "
            "request with the same operation id to find out whether it succeeded"
        )
    return TryAgainError(
        "the time limit of commits (commit-timeout) passed before the change had its turn; nothing was changed: "
        "try again, or set a longer commit-timeout"
    )


def _twin(error: Exception) -> Exception:
    """Return a copy of an error, to be raised in another thread, because each raise extends an error's traceback."""
    try:
        twin = copy.copy(error)
    except Exception:  # the class needs constructor arguments that copy does not supply
        return error
    twin.__cause__ = error.__cause__
    return twin.with_traceback(error.__traceback__)


_groups: weakref.WeakSet[Group] = weakref.WeakSet()


def _start_in_child() -> None:
    """Reset all groups in a forked child, because the threads of the parent do not exist there."""
    for group in _groups:
        group._begin()


os.register_at_fork(after_in_child=_start_in_child)
