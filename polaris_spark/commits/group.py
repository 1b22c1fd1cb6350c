"""Leader and followers: changes that wait for the same reference are carried out together, without idle waits.

One thread at a time *computes*: it leads a batch of everything that waits. When its commit is ready to be written it
may pass the turn on, so that the next leader computes while the database is at work. Batches end in the order in
which they began. A leader that must leave, because its deadline passed or because it was interrupted, hands its batch
to another thread of the batch, which carries on where it stopped; so nobody's leaving delays or fails the others.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, Protocol

from polaris_spark.clock import Clock, Signal
from polaris_spark.commits.change import Change
from polaris_spark.commits.state import Effects, Point, Range
from polaris_spark.errors import OutcomeUnknownError, TryAgainError


class Memo:
    """The outcome of one run of `apply`, to be reused while what it read still holds."""

    __slots__ = ("effects", "fence", "reads", "result")

    def __init__(self, reads: list[Point | Range], effects: Effects, result: Any, fence: int) -> None:
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
        "done",
        "error",
        "leads",
        "memo",
        "must_prepare",
        "prepared",
        "prepared_fence",
        "prepared_reads",
        "refused",
        "result",
        "since",
        "slow",
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
        self.prepared_reads: list[Point | Range] = []
        self.prepared_fence = 0
        self.memo: Memo | None = None
        self.done = False
        self.leads = False
        """Whether its submitter is to lead: `batch`, or a new one if that is None."""
        self.batch: Batch | None = None
        self.must_prepare = False
        """Whether its submitter is to prepare and submit it again."""
        self.slow = False
        """Whether it took long to apply."""
        self.refused: Exception | None = None
        """Why it fails whatever the head is; it is not applied any more."""
        self.result: Any = None
        self.error: BaseException | None = None

    def succeed(self, result: Any) -> None:
        """Set the result; the submitter sees it once the batch is over."""
        self.result, self.error = result, None

    def fail(self, error: BaseException) -> None:
        """Set the error; the submitter sees it once the batch is over."""
        self.result, self.error = None, error


class Batch:
    """Changes that are carried out together."""

    __slots__ = ("computes", "ended", "pendings", "previous", "progress", "sent")

    def __init__(self, pendings: list[Pending], previous: Batch | None, ended: Signal) -> None:
        self.pendings = pendings
        self.previous = previous
        """The batch before it, if that has not ended yet."""
        self.ended = ended
        self.computes = True
        """Whether it has the turn to compute."""
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

    def _begin(self) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._waiting: deque[Pending] = deque()
        self._computing = False
        self._last: Batch | None = None

    def submit(self, pending: Pending) -> None:
        """Return when `pending` has its result or error.

        Raises:
            TryAgainError: too many wait already, or the deadline passed; nothing was changed.
            OutcomeUnknownError: the deadline passed while a commit of it was being written.
        """
        if self._process != os.getpid():
            self._begin()  # who leads in the parent does not exist in its fork
        pending.done = pending.leads = False
        pending.batch = None
        with self._guard:
            if not self._computing:
                self._computing = pending.leads = True
            elif len(self._waiting) >= self._max_waiting:
                raise TryAgainError(
                    f"{self._max_waiting} changes wait for this reference already; nothing was changed"
                )
            else:
                self._waiting.append(pending)
        if not pending.leads:
            self._wait(pending)
        if not pending.done:
            self._lead(pending)

    def take_along(self, batch: Batch) -> list[Pending]:
        """Changes that came meanwhile, now of the batch; none if it has passed its turn to compute on."""
        with self._guard:
            if not batch.computes:
                return []
            more = self._taken(self._max_batch - len(batch.pendings), batch)
            batch.pendings += more
            return more

    def pass_on(self, batch: Batch) -> None:
        """Let the next leader compute."""
        with self._guard:
            self._pass_on(batch)

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

    # Waiting

    def _wait(self, pending: Pending) -> None:
        """Until `pending` is done, or leads."""
        try:
            if pending.turn.wait(max(0.0, pending.deadline - self._clock.monotonic_ms())):
                return
        except BaseException:
            self._leave(pending)
            raise
        error = self._leave(pending)
        if error is not None:
            raise error

    def _leave(self, pending: Pending) -> Exception | None:
        """Stop waiting: what to tell the submitter, or None if the change is done."""
        with self._guard:
            if pending.done:
                return None
            batch = pending.batch
            if pending.leads:
                if batch is None:
                    self._hand_on()
                else:
                    self._replace(pending, batch)
            elif batch is None:
                self._waiting.remove(pending)
            else:
                batch.pendings.remove(pending)
            if batch is not None and batch.sent:
                return OutcomeUnknownError(
                    "the deadline passed while the commit was being written; the operation id will tell"
                )
            return TryAgainError("the deadline passed before the change had its turn; nothing was changed")

    # Leading

    def _lead(self, pending: Pending) -> None:
        batch = pending.batch
        if batch is None:
            with self._guard:
                batch = self._batch(pending)
        error: Exception | None = None
        try:
            error = self._carrier.carry(batch, pending.deadline)
        except Exception as failure:
            for one in batch.pendings:
                one.fail(failure)
        except BaseException:
            self._stop_leading(pending, batch)
            raise
        if error is not None:
            self._stop_leading(pending, batch)
            raise error
        try:
            self._finish(pending, batch)
        except BaseException:  # interrupted: the others are to go on all the same
            self._finish(pending, batch)
            raise

    def _batch(self, first: Pending) -> Batch:
        """A batch of `first` and whoever waits; the guard is held."""
        previous = self._last
        batch = self._last = Batch([first], previous, self._clock.signal())
        first.batch = batch
        batch.pendings += self._taken(self._max_batch - 1, batch)
        return batch

    def _taken(self, most: int, batch: Batch) -> list[Pending]:
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        for pending in taken:
            pending.batch = batch
        return taken

    def _finish(self, leader: Pending, batch: Batch) -> None:
        with self._guard:
            self._end(batch)
            batch.progress = None
            for pending in batch.pendings:
                pending.done, pending.batch = (
                    True,
                    None,
                )  # no cycle is left that only the collector could free
            followers = [pending for pending in batch.pendings if pending is not leader]
        for pending in followers:
            pending.turn.set()

    def _stop_leading(self, leader: Pending, batch: Batch) -> None:
        with self._guard:
            self._replace(leader, batch)

    def _replace(self, leader: Pending, batch: Batch) -> None:
        """Let another one of the batch lead it; the guard is held."""
        if leader in batch.pendings:
            batch.pendings.remove(leader)
        if not batch.pendings:
            self._end(batch)
            return
        heir = max(batch.pendings, key=lambda pending: pending.deadline)
        heir.leads = True
        heir.turn.set()

    def _end(self, batch: Batch) -> None:
        """The guard is held."""
        self._pass_on(batch)
        if self._last is batch:
            self._last = None
        batch.previous = None
        batch.ended.set()

    def _pass_on(self, batch: Batch) -> None:
        if batch.computes:
            batch.computes = False
            self._hand_on()

    def _hand_on(self) -> None:
        """Let the next in the queue lead a new batch; the guard is held."""
        heir = self._waiting.popleft() if self._waiting else None
        self._computing = heir is not None
        if heir is not None:
            heir.leads = True
            heir.turn.set()
