"""Leader and followers: changes that wait for the same reference are carried out together, without idle waits."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from polaris_spark.commits.change import Change
from polaris_spark.commits.state import Effects, Point, Range
from polaris_spark.errors import OutcomeUnknownError


class Memo:
    """The outcome of one run of `apply`, to be reused while what it read still holds."""

    __slots__ = ("effects", "fence", "reads", "result")

    def __init__(self, reads: list[Point | Range], effects: Effects, result: Any, fence: int) -> None:
        self.reads = reads
        self.effects = effects
        self.result = result
        self.fence = fence


class Pending:
    """A change on its way, owned by the thread that submitted it until it is queued."""

    __slots__ = (
        "change",
        "done",
        "error",
        "leads",
        "memo",
        "must_prepare",
        "prepared",
        "prepared_fence",
        "prepared_reads",
        "result",
        "since",
        "turn",
    )

    def __init__(self, change: Change[Any], since: float) -> None:
        self.change = change
        self.since = since
        self.prepared: Any = None
        self.prepared_reads: list[Point | Range] = []
        self.prepared_fence = 0
        self.memo: Memo | None = None
        self.done = False
        self.leads = False
        self.must_prepare = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.turn = threading.Lock()

    def succeed(self, result: Any) -> None:
        """Set the result; the submitter sees it once the batch is over."""
        self.result, self.error = result, None

    def fail(self, error: BaseException) -> None:
        """Set the error; the submitter sees it once the batch is over."""
        self.result, self.error = None, error


class Group:
    """Runs batches one at a time. The first to come leads; whoever comes meanwhile waits and goes along next."""

    def __init__(self, run: Callable[[list[Pending]], None], *, max_batch: int) -> None:
        self._run = run
        self._max_batch = max_batch
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._waiting: deque[Pending] = deque()
        self._busy = False

    def submit(self, pending: Pending) -> None:
        """Return when `pending` has its result or error."""
        if self._process != os.getpid():
            self._begin()  # who leads in the parent does not exist in its fork
        pending.done = False
        with self._guard:
            pending.leads = not self._busy
            self._busy = True
            if not pending.leads:
                pending.turn.acquire()
                self._waiting.append(pending)
        if not pending.leads:
            self._wait(pending)
        if not pending.done:
            self._lead(pending)

    def _wait(self, pending: Pending) -> None:
        """Until `pending` is done, or leads."""
        try:
            pending.turn.acquire()
        except BaseException:
            # Interrupted: leave the queue, or hand on the lead that nobody else would take.
            with self._guard:
                if pending in self._waiting:
                    self._waiting.remove(pending)
                elif pending.leads:
                    self._hand_on()
            raise
        pending.turn.release()

    def _lead(self, first: Pending) -> None:
        with self._guard:
            more = min(len(self._waiting), self._max_batch - 1)
            batch = [first, *(self._waiting.popleft() for _ in range(more))]
        try:
            self._run(batch)
        except BaseException as error:
            first.fail(error)
            told = (
                error if isinstance(error, Exception) else OutcomeUnknownError("the commit was interrupted")
            )
            for pending in batch[1:]:
                pending.fail(told)
            raise
        finally:
            for pending in batch:
                pending.done = True
            with self._guard:
                self._hand_on()
            for pending in batch[1:]:
                pending.turn.release()

    def _hand_on(self) -> None:
        """Let the next in the queue lead; the guard is held."""
        heir = self._waiting.popleft() if self._waiting else None
        self._busy = heir is not None
        if heir is not None:
            heir.leads = True
            heir.turn.release()
