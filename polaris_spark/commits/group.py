"""Leader and followers: changes that wait for the same reference are carried out together, without idle waits.

One thread at a time *computes*: it leads a batch of everything that waits. When its commit is ready to be written it
may pass the turn on, so that the next leader computes while the database is at work. Batches end in the order in
which they began. A leader that must leave, because its deadline passed or because it was interrupted, hands its batch
to another thread of the batch, which carries on where it stopped; so nobody's leaving delays or fails the others.

An interrupt (Ctrl-C in a notebook's cell) may come at any call here. So whoever is interrupted, wherever that was,
leaves once more by the same way, and every step of leaving and ending may be repeated: what belongs together is
assigned without a call in between, and who is woken twice has gone on already.
"""

from __future__ import annotations

import copy
import os
import threading
import weakref
from typing import Any, Protocol

from polaris_spark.clock import Clock, Signal
from polaris_spark.commits.change import Change
from polaris_spark.commits.state import Effects, Point, Range, Snapshot, Tree
from polaris_spark.errors import OutcomeUnknownError, TryAgainError


class Memo:
    """The outcome of one run of `apply`, to be reused while what it read still holds."""

    __slots__ = ("effects", "fence", "reads", "result")

    def __init__(self, reads: list[Point | Range | Tree], effects: Effects, result: Any, fence: int) -> None:
        self.reads = reads
        self.effects = effects
        self.result = result
        self.fence = fence


class Pending:
    """A change on its way. Its submitter alone touches it, except while it is in a batch that another leads."""

    __slots__ = (
        "batch",
        "change",
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

    def __init__(self, change: Change[Any], since: float, deadline: float, turn: Signal) -> None:
        """
        Args:
            since: when it began, on the monotonic clock, milliseconds.
            deadline: when its submitter stops waiting, on that clock.
            turn: set when its submitter is to go on.
        """
        self.change = change
        self.since = since
        self.deadline = deadline
        self.turn = turn
        self.prepared: Any = None
        self.prepared_reads: list[Point | Range | Tree] = []
        self.prepared_fence = 0
        self.prepared_on: Snapshot | None = None
        """A snapshot in which nothing that the change read has changed."""
        self.memo: Memo | None = None
        self.batch: Batch | None = None
        """What it goes along in, once it waits no more."""
        self.must_prepare = False
        """Whether its submitter is to prepare and submit it again."""
        self.slow = False
        """Whether it took long to apply."""
        self.took_ms = 0.0
        """Time that it took to apply, in milliseconds."""
        self.too_long = False
        """Whether it needs more time than a batch allows; it is then applied only outside batches."""
        self.refused: Exception | None = None
        """Why it fails whatever the head is; it is not applied any more."""
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether it has its result or its error."""
        return self.batch is not None and self.batch.over

    def succeed(self, result: Any) -> None:
        """Set the result; the submitter sees it once the batch is over."""
        self.result, self.error = result, None

    def fail(self, error: BaseException) -> None:
        """Set the error; the submitter sees it once the batch is over."""
        self.result, self.error = None, error


class Batch:
    """Changes that are carried out together."""

    __slots__ = ("ended", "leader", "over", "pendings", "previous", "progress", "sent")

    def __init__(self, leader: Pending, previous: Batch | None) -> None:
        self.leader = leader
        self.pendings = [leader]
        self.previous = previous
        """The batch before it, if that had not ended when this one began."""
        self.over = False
        """Whether every change of it has its result or its error, or its submitter left."""
        self.ended: Signal | None = None
        """Set when it is over; there is one once another batch follows, which waits for it."""
        self.sent = False
        """Whether a commit of it may be in force, or come into force."""
        self.progress: Any = None
        """How far its leader came; another leader goes on from there."""


class Carrier(Protocol):
    """What carries out batches."""

    def carry(self, batch: Batch, deadline: float) -> Exception | None:
        """Carry a batch out, until every change of it has its result or its error: then None. Else, at `deadline`
        on the monotonic clock, the error for the leader, whom another one is to replace.

        Whatever it raises becomes the error of every change of the batch.
        """
        ...


class Group:
    """The changes of one process that wait for one reference."""

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
        """Whose submitter has the turn to compute; it leads its batch, or is to begin one."""
        self._last: Batch | None = None
        """The batch that began last, if it is not over."""

    def submit(self, pending: Pending) -> None:
        """Return when `pending` has its result or error.

        Raises:
            TryAgainError: too many wait already, or the deadline passed; nothing was changed.
            OutcomeUnknownError: the deadline passed while a commit of it was being written.
        """
        try:
            error = self._take_part(pending)
        except BaseException:  # interrupted
            try:
                self._leave(pending)
            except BaseException:  # interrupted again
                self._leave(pending)
            raise
        pending.batch = None  # no cycle is left that only the collector could free
        if error is not None:
            raise error

    def take_along(self, batch: Batch) -> list[Pending]:
        """Changes that came meanwhile, now of the batch; none if it has passed its turn to compute on."""
        with self._guard:
            return self._take(batch) if self._computes is batch.leader else []

    def pass_on(self, batch: Batch) -> None:
        """Let the next leader compute."""
        with self._guard:
            self._pass_on(batch.leader)

    def send(self, batch: Batch, applied: list[Pending]) -> bool:
        """From now on who leaves the batch does not know its outcome. False: somebody of those who were applied has
        left, and nothing may be sent.
        """
        with self._guard:
            batch.sent = batch.pendings == applied
            return batch.sent

    def unsent(self, batch: Batch) -> None:
        """The commit that was sent is certainly not in force."""
        with self._guard:
            batch.sent = False

    # Taking part

    def _take_part(self, pending: Pending) -> Exception | None:
        """Wait, lead, or both, until the change is done; or what to tell its submitter instead."""
        if not self._enter(pending):
            return TryAgainError(
                f"{self._max_waiting} changes wait for this reference already; nothing was changed"
            )
        if self._computes is not pending:
            in_time = pending.turn.wait(max(0.0, pending.deadline - self._clock.monotonic_ms()))
            if not in_time and not self._leave(pending):
                return _late(pending)
            if pending.done:
                return None
        return self._lead(pending)

    def _enter(self, pending: Pending) -> bool:
        """Lead if nobody does, else wait; False: too many wait already."""
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
        """A batch of `first` and whoever waits."""
        with self._guard:
            previous = self._last
            if previous is not None and previous.ended is None:
                previous.ended = self._clock.signal()
            batch = Batch(first, previous)
            first.batch = self._last = batch
            self._take(batch)
            return batch

    def _take(self, batch: Batch) -> list[Pending]:
        """Let as many of those who wait go along as there is room for; the guard is held."""
        room = max(0, self._max_batch - len(batch.pendings))
        taken = self._waiting[:room]
        for pending in taken:
            pending.batch = batch
        batch.pendings += taken
        del self._waiting[:room]
        return taken

    # Leaving and ending

    def _leave(self, pending: Pending) -> bool:
        """Take no part any more; whether the change was done before. May be repeated."""
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
        """The guard is held."""
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
        """The guard is held."""
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
        """Let the next in the queue compute, if `leader` has the turn; the guard is held."""
        if self._computes is leader:
            heir = self._waiting[0] if self._waiting else None
            if heir is not None:
                heir.batch = None
            self._computes = heir
            del self._waiting[:1]
            self._wake()

    def _wake(self) -> None:
        """Wake who computes; whoever gave it the turn was perhaps interrupted before."""
        if self._computes is not None:
            self._computes.turn.set()


def _late(pending: Pending) -> Exception:
    """What to tell a submitter who left at its deadline."""
    if pending.batch is not None and pending.batch.sent:
        return OutcomeUnknownError(
            "the deadline passed while the commit was being written; the operation id will tell"
        )
    return TryAgainError("the deadline passed before the change had its turn; nothing was changed")


def _twin(error: Exception) -> Exception:
    """The same error to be raised in another thread: each raising adds to an error's traceback."""
    try:
        twin = copy.copy(error)
    except Exception:  # its class has its own way to be made
        return error
    twin.__cause__ = error.__cause__
    return twin.with_traceback(error.__traceback__)


_groups: weakref.WeakSet[Group] = weakref.WeakSet()


def _start_in_child() -> None:
    """Who leads in the parent does not exist in its fork."""
    for group in _groups:
        group._begin()


os.register_at_fork(after_in_child=_start_in_child)
