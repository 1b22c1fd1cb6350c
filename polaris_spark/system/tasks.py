"""Maintenance tasks that must not run twice at the same time. A task of a kind and scope runs only while its process
holds a lease, which is a record in the system realm.

The record `task/<kind>/<scope>` contains the holder, the end of the lease, and the outcome of the last run. It changes
by compare-and-swap and is never deleted. The lease avoids duplicate work but does not protect data, because a holder
that slept past the end of its lease may still be running. The commit protocol alone makes the writes of a task safe. So
it is enough that the wall clock decides when another process takes a lease over: more than a minute (`BEHIND_MS`) after
the end of the lease. If the end of a lease is further in the future than its duration allows, the holder's clock is
ahead. Then the other process watches the lease for its whole duration, and takes it over if it was not renewed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from polaris_spark.backends.base import Backend
from polaris_spark.clock import Clock, iso_text
from polaris_spark.errors import (
    InputError,
    OutcomeUnknownError,
    PolarisError,
    TaskLostError,
    TaskRunningError,
    TryAgainError,
)
from polaris_spark.store.references import new_version
from polaris_spark.system.clocks import BEHIND_MS, process_name
from polaris_spark.system.stores import system_references

TASK_MS: Final = 60_000
"""Default duration of a lease, in milliseconds."""

DONE: Final = "done"
"""Outcome of a run that completed its last step."""

_PREFIX: Final = "task"
_RENEWALS = 3
"""Number of renewals within the duration of a lease."""
_TELL_MS = 2_000
"""Minimum interval between writes of a run's progress, in milliseconds."""
_ASK_MS = 500
"""Interval between polls while waiting for another process's run, in milliseconds."""


class TaskRecord(msgspec.Struct, frozen=True):
    """The current or last run of a task of one kind in one scope. Times are milliseconds since 1970."""

    holder: str
    run: bytes
    """Unique id of this run of the task."""
    started_ms: int
    until_ms: int
    """End of the lease; if the lease was released, the time of the release."""
    duration_ms: int
    """Duration of the lease after each renewal, in milliseconds."""
    released: bool = False
    """True if the run has ended and its holder gave the lease back."""
    outcome: str = ""
    """Outcome of the run; empty while it runs, or if the process ended without a release."""
    doing: str = ""
    """The current step of the run, or its last step."""
    done: int = 0
    """Amount of work done in the step, in the unit of `total`; the unit depends on the step."""
    total: int = 0
    """Total amount of work in the step; 0 if it is not known."""


class Tasks:
    """Acquires the leases of the tasks of one store. Thread-safe."""

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
        """Acquire the lease of a task and return it.

        Args:
            kind: kind of the task, such as `import`.
            scope: the scope that the task works on. Tasks of one kind can run at the same time in different scopes.
            holder: name of the holder, for people to read; by default this host and process.
            duration_ms: duration of the lease without renewal, in milliseconds.
            renew: True to renew the lease by a thread in the background until it is released; False if the holder calls
                `renew` in time.
            waiting: if given, wait while another holder has the lease, and call this function at every poll (every 500
                ms). An error that the function raises ends the wait.
        Raises:
            TaskRunningError: another holder has the lease, and `waiting` is None.
            InputError: the kind is empty or contains a slash, the scope is empty, or the duration is not positive.
        """
        if "/" in kind or not kind or not scope or duration_ms <= 0:
            raise InputError(
                "a task needs a kind without '/', a scope and a positive duration, got "
                f"kind {kind!r}, scope {scope!r} and {duration_ms} ms"
            )
        name = f"{_PREFIX}/{kind}/{scope}"
        watched, since, ahead = b"", 0.0, False
        while True:
            now = self._clock.now_ms()
            found = self._references.read(name, TaskRecord)
            if found is not None and _may_run(found.value, now):
                if found.version != watched:
                    # If the holder's clock is far ahead, only watching for renewals shows whether its run has ended.
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
            record = TaskRecord(holder or process_name(), new_version(), now, now + duration_ms, duration_ms)
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
        """Hold the lease of a task during a `with` block.

        The recorded outcome is `DONE` if the block ends normally, `failed: ` and the exception's class if an exception
        ends it, and `interrupted` if it is ended by an interrupt such as Ctrl-C.

        Args:
            waiting: if given, wait while another holder has the lease, and call this function at every poll.
        Raises:
            TaskRunningError: another holder has the lease, and `waiting` is None.
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
            with contextlib.suppress(PolarisError):  # if the release fails, the lease runs out by itself
                held.release(outcome)

    def find(self, kind: str, scope: str) -> TaskRecord | None:
        """Return the record of a task; None if the task never ran."""
        found = self._references.read(f"{_PREFIX}/{kind}/{scope}", TaskRecord)
        return None if found is None else found.value


class HeldTask:
    """A task whose lease this process holds. Thread-safe. A forked child does not hold the lease."""

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
        """The record of this run as last written, but possibly with newer progress."""
        return self._record

    def check(self) -> None:
        """Raise an error if this process no longer holds the lease, as far as it knows. Does not read the database.

        Raises:
            TaskLostError: another holder took the lease over, it was released, or this process is a forked child.
        """
        if self._lost or self._ended.is_set() or self._process != os.getpid():
            raise TaskLostError(
                f"this process no longer holds the lease of {self.name}, whose end was "
                f"{iso_text(self._record.until_ms)}; another process may be running the task now"
            )

    def renew(self) -> None:
        """Extend the lease, so that it lasts for its whole duration from now.

        Raises:
            TaskLostError: another holder took the lease over, it was released, or this process is a forked child.
            OutcomeUnknownError: it is unknown whether the lease was renewed; try again.
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
        """Record the progress of the run, for other processes to read.

        Frequent calls are cheap: a call writes the record only if the last write was at least 2 seconds ago. The next
        renewal also writes the latest progress.

        Args:
            doing: the current step.
            done: amount of work done in the step.
            total: total amount of work in the step, in the same unit; 0 if it is not known.
        Raises:
            TaskLostError: another holder took the lease over, it was released, or this process is a forked child.
        """
        with self._guard:
            self.check()
            self._record = msgspec.structs.replace(self._record, doing=doing, done=done, total=total)
            now = self._tasks._clock.monotonic_ms()
            if self._told_ms is not None and now < self._told_ms + _TELL_MS:
                return  # a later call or the next renewal writes the record
            self._told_ms = now
        with contextlib.suppress(TryAgainError, OutcomeUnknownError):  # only the display of progress suffers
            self.renew()

    def release(self, outcome: str = DONE) -> None:
        """End the run, so that the next run can begin at once. Do nothing if this process no longer holds the lease."""
        if self._process != os.getpid():
            return
        with self._guard:
            if self._lost or self._ended.is_set():
                return
            self._ended.set()
            now = self._tasks._clock.now_ms()
            last = self._record
            # Jobs report the start of a step, not its end: a run that is done has done all of its last step.
            done = last.total or last.done if outcome == DONE else last.done
            self._put(msgspec.structs.replace(last, until_ms=now, released=True, outcome=outcome, done=done))

    def renew_in_background(self) -> None:
        """Start a thread that renews the lease until the lease is released or lost, or the process ends."""
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
            # The conflict may be with an earlier swap of this run whose outcome was unknown.
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
        """Whether the task's row belongs to this run. If True, also remember the row's version, which an earlier swap
        of this run with an unknown outcome may have changed."""
        found = self._tasks._references.read(self.name, TaskRecord)
        if found is None or found.value.run != self._record.run:
            return False
        self._version = found.version
        return True


def _may_run(record: TaskRecord, now: int) -> bool:
    """Whether the holder of a task's lease may still be running the task. False if the lease was released, or ended
    more than a minute ago. The minute is there because the holder's clock may be behind this machine's clock."""
    return not record.released and now <= record.until_ms + BEHIND_MS


def _running(kind: str, scope: str, record: TaskRecord) -> TaskRunningError:
    return TaskRunningError(
        f"{record.holder} has been running task {kind!r} of {scope} since {iso_text(record.started_ms)}; wait until "
        f"the task ends. Its lease lasts until {iso_text(record.until_ms)} and is renewed while it runs: if its "
        f"process has died, try again {BEHIND_MS // 1_000} s after the end of the lease"
    )
