"""Coordinated tasks: one of a kind runs at a time, by a lease that is a reference in the system realm.

The record `task/<kind>/<scope>` says who runs the task until when, and how the last run ended; it changes by
compare-and-swap and is never deleted. The lease keeps work from being done twice; it protects no data, since a holder
that slept past its lease may still be running: what a task writes is safe by the commit protocol alone. So a lease is
taken over by the wall clock, once it ended more than a minute ago (`BEHIND_MS`); one that ends later than
any lease could (its holder's clock is ahead) is watched for its whole duration, and taken over if nobody renewed it.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from polaris_spark.backends.base import Backend
from polaris_spark.clock import Clock
from polaris_spark.errors import (
    InputError,
    OutcomeUnknownError,
    PolarisError,
    TaskLostError,
    TaskRunningError,
    TryAgainError,
)
from polaris_spark.store.references import new_version
from polaris_spark.system.clocks import BEHIND_MS
from polaris_spark.system.stores import system_references

TASK_MS: Final = 60_000
"""Default duration of a lease, in milliseconds."""

DONE: Final = "done"
"""Outcome of a run that completed, including its last step."""

_PREFIX: Final = "task"
_RENEWALS = 3
"""Number of renewals within the duration of a lease."""
_TELL_MS = 2_000
"""Shortest interval between writes of a run's progress, in milliseconds."""
_ASK_MS = 500
"""Interval between polls while waiting for another process's run, in milliseconds."""


class TaskRecord(msgspec.Struct, frozen=True):
    """A kind of task in a scope: who runs it, or ran it last. Times are milliseconds since 1970."""

    holder: str
    run: bytes
    """Unique to the run."""
    started_ms: int
    until_ms: int
    """The lease ends then; after a release, when that was."""
    duration_ms: int
    """How long it lasts without renewal."""
    released: bool = False
    outcome: str = ""
    """What the run said of its end; empty while it runs, and if it ended without a word."""
    doing: str = ""
    """The step that it is at, or was at last."""
    done: int = 0
    """How much of that step is done."""
    total: int = 0
    """Of how much; 0 where that is not known."""


class Tasks:
    """Tasks of one store. Thread-safe."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._references = system_references(backend)
        self._clock = clock

    def acquire(
        self,
        kind: str,
        scope: str,
        *,
        holder: str = "",
        duration_ms: int = TASK_MS,
        renew: bool = True,
        waiting: Callable[[], None] | None = None,
    ) -> HeldTask:
        """The lease of a task, renewed in the background until it is released.

        Args:
            kind: of the task, such as `import`.
            scope: what it works on; tasks of one kind run beside each other in different scopes.
            holder: who asks, for others to read; this host and process unless given.
            duration_ms: how long the lease lasts without renewal, milliseconds.
            renew: whether a thread renews it; else its holder calls `renew` in good time.
            waiting: called again and again while somebody else holds it, to wait for its end; it may raise to end
                the waiting.
        Raises:
            TaskRunningError: somebody else holds it, and this is not to wait.
            InputError: the kind has a slash in it, or the duration is not positive.
        """
        if "/" in kind or not kind or not scope or duration_ms <= 0:
            raise InputError(f"no task can be of kind {kind!r} in {scope!r} for {duration_ms} ms")
        name = f"{_PREFIX}/{kind}/{scope}"
        watched, since, ahead = b"", 0.0, False
        while True:
            now = self._clock.now_ms()
            found = self._references.read(name, TaskRecord)
            if found is not None and _may_run(found.value, now):
                if found.version != watched:
                    # How long the lease of a clock far ahead lasts is only seen by watching whether it is renewed.
                    ahead = found.value.until_ms > now + found.value.duration_ms + BEHIND_MS
                    if waiting is None and (watched or not ahead):
                        raise _running(kind, scope, found.value)
                    watched, since = found.version, self._clock.monotonic_ms()
                left = since + found.value.duration_ms - self._clock.monotonic_ms()
                if not ahead or left > 0:
                    if waiting is not None:
                        waiting()
                    self._clock.sleep_ms(left if waiting is None else _ASK_MS)
                    continue
            record = TaskRecord(holder or process(), new_version(), now, now + duration_ms, duration_ms)
            row = self._references.row(record)
            if self._references.put(name, found.version if found else None, row):
                held = HeldTask(self, name, record, row.version, duration_ms)
                if renew:
                    held.renew_in_background()
                return held

    @contextlib.contextmanager
    def running(
        self, kind: str, scope: str, *, holder: str = "", waiting: Callable[[], None] | None = None
    ) -> Iterator[HeldTask]:
        """A task held for a block of statements; how the block ended becomes the outcome.

        Args:
            waiting: as of `acquire`.
        Raises:
            TaskRunningError: as `acquire`.
        """
        held = self.acquire(kind, scope, holder=holder, waiting=waiting)
        outcome = "interrupted"
        try:
            yield held
            outcome = DONE
        except Exception as error:
            outcome = f"failed: {type(error).__name__}"
            raise
        finally:
            with contextlib.suppress(PolarisError):  # then the lease runs out by itself
                held.release(outcome)

    def find(self, kind: str, scope: str) -> TaskRecord | None:
        """The record of a task; None if it never ran."""
        found = self._references.read(f"{_PREFIX}/{kind}/{scope}", TaskRecord)
        return None if found is None else found.value


class HeldTask:
    """A task that this process runs. Thread-safe; a forked child holds nothing."""

    def __init__(self, tasks: Tasks, name: str, record: TaskRecord, version: bytes, duration_ms: int) -> None:
        self.name = name
        self._tasks = tasks
        self._record = record
        self._version = version
        self._duration_ms = duration_ms
        self._process = os.getpid()
        self._guard = tasks._clock.lock()
        self._ended = threading.Event()
        self._lost = False
        self._told_ms: float | None = None

    @property
    def record(self) -> TaskRecord:
        """What the store says of this run, as far as this process knows."""
        return self._record

    def check(self) -> None:
        """Refuse to go on without the lease.

        Raises:
            TaskLostError: another holder took it over, or it was released.
        """
        if self._lost or self._ended.is_set() or self._process != os.getpid():
            raise TaskLostError(
                f"{self.name} is no longer held here; it ended at {_utc(self._record.until_ms)}"
            )

    def renew(self) -> None:
        """Let the lease last its whole duration from now.

        Raises:
            TaskLostError: another holder took it over, or it was released.
            OutcomeUnknownError: it may have been renewed; try again.
        """
        if self._process != os.getpid():
            self.check()
        with self._guard:
            self.check()
            until = max(self._tasks._clock.now_ms() + self._duration_ms, self._record.until_ms)
            if not self._put(msgspec.structs.replace(self._record, until_ms=until)):
                self._lost = True
                self.check()

    def tell(self, doing: str, done: int = 0, total: int = 0) -> None:
        """Say how far the run has come, for others to read. May be called as often as one likes.

        Args:
            doing: the step that it is at.
            done: how much of the step is done.
            total: of how much; 0 where that is not known.
        Raises:
            TaskLostError: as `check`.
        """
        with self._guard:
            self.check()
            self._record = msgspec.structs.replace(self._record, doing=doing, done=done, total=total)
            now = self._tasks._clock.monotonic_ms()
            if self._told_ms is not None and now < self._told_ms + _TELL_MS:
                return  # a later word, or the next renewal, carries it
            self._told_ms = now
        with contextlib.suppress(TryAgainError, OutcomeUnknownError):  # nobody but who reads along misses it
            self.renew()

    def release(self, outcome: str = DONE) -> None:
        """End the run, so that the next may begin at once. Nothing happens if it is not held any more."""
        if self._process != os.getpid():
            return
        with self._guard:
            if self._lost or self._ended.is_set():
                return
            self._ended.set()
            now = self._tasks._clock.now_ms()
            last = self._record
            done = (
                last.total or last.done if outcome == DONE else last.done
            )  # jobs tell what they begin, not its end
            self._put(msgspec.structs.replace(last, until_ms=now, released=True, outcome=outcome, done=done))

    def renew_in_background(self) -> None:
        """Start the thread that renews the lease until it is released, lost, or the process ends."""
        threading.Thread(target=self._keep, name=f"renews {self.name}", daemon=True).start()

    def _keep(self) -> None:
        while not self._ended.wait(self._duration_ms / _RENEWALS / 1_000):
            try:
                self.renew()
            except TaskLostError:
                return
            except PolarisError:  # the database cannot be reached now; the lease has some time left
                continue

    def _put(self, record: TaskRecord) -> bool:
        references = self._tasks._references
        row = references.row(record)
        try:
            # A conflict may be with an earlier swap of ours, whose outcome nobody told.
            done = references.put(self.name, self._version, row) or (
                self._is_ours() and references.put(self.name, self._version, row)
            )
        except OutcomeUnknownError:
            if self._is_ours():
                raise
            return False
        if done:
            self._record, self._version = record, row.version
        return done

    def _is_ours(self) -> bool:
        """Whether the row is of this run; then whichever of its swaps came last is the one to go on from."""
        found = self._tasks._references.read(self.name, TaskRecord)
        if found is None or found.value.run != self._record.run:
            return False
        self._version = found.version
        return True


def process() -> str:
    """This host and process, as leases name their holder."""
    return f"{socket.gethostname()}/{os.getpid()}"


def _may_run(record: TaskRecord, now: int) -> bool:
    """Whether a holder may still be at work, if its clock differs from this machine's by no more than a minute."""
    return not record.released and now <= record.until_ms + BEHIND_MS


def _running(kind: str, scope: str, record: TaskRecord) -> TaskRunningError:
    return TaskRunningError(
        f"task {kind!r} of {scope} is being run by {record.holder} since {_utc(record.started_ms)}; its lease lasts "
        f"until {_utc(record.until_ms)} and is renewed while it runs: if its process has died, try again "
        f"{BEHIND_MS // 1_000} s after that"
    )


def _utc(ms: int) -> str:
    return datetime.datetime.fromtimestamp(ms / 1_000, datetime.timezone.utc).isoformat(timespec="seconds")
