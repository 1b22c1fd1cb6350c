"""Changes of a catalog's queue: commits to the reference `cat/<id>/queue`.

The lease of a task is in its row, so one commit claims a task, and one ends its run, records the run, and lets the task
wait for its next run. Every change can be repeated if its outcome is unknown: a run is identified by its id.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple, TypeVar

import msgspec

from polaris_spark.catalog.rows import id_bytes, id_from
from polaris_spark.clock import Clock
from polaris_spark.commits.change import Change, Operation, Unrepeated, made_ms
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    InputError,
    MissingLibraryError,
    NotFoundError,
    OutcomeUnknownError,
    UnprocessableError,
)
from polaris_spark.index import Entry
from polaris_spark.maintenance.queue.rows import (
    COUNTS,
    DUE,
    RUNS,
    SCHEDULES,
    TASKS,
    Lease,
    QueuedTask,
    RunRecord,
    Timing,
)
from polaris_spark.maintenance.queue.timing import LONGEST_BACKOFF_MS, backoff_ms, next_due
from polaris_spark.system.clocks import BEHIND_MS

R = TypeVar("R")

LEASE_MS: Final = 60_000
"""Duration of a worker's lease of a task, in milliseconds. Another worker takes the task over `BEHIND_MS` after its
end."""
MAX_TASKS: Final = 10_000
"""Maximum number of tasks and schedules of a catalog, including failed tasks."""
MAX_RUNS: Final = 10_000
"""Maximum number of runs in the history of a catalog."""
MAX_ERROR: Final = 2_000
"""Maximum length of a stored error message, in characters."""
_REMOVED_AT_ONCE = 100

_COUNT = b"tasks"
_FOLLOWED = b"policies"
_CALLS = b"call/"
"""Beginning of the keys of ids of calls that have added tasks. The time of the id follows."""
_FORGOTTEN = b"forgotten"
"""Key of the time before which ids of calls may have been forgotten, in milliseconds since 1970."""


class Moment(NamedTuple):
    """The time and the random number with which a change is made."""

    now_ms: int
    random: float


@dataclass(eq=False, repr=False)
class QueueChange(Unrepeated, Change[Moment, R]):
    """Base class of changes of a queue."""

    clock: Clock
    operation: Operation

    def __post_init__(self) -> None:
        self.operation = self.operation._replace(id=b"")

    def prepare(self, view: State) -> Moment:
        """Return the time of the change, and a random number."""
        return Moment(self.clock.now_ms(), random.random())


@dataclass(eq=False, repr=False)
class AddTask(QueueChange[QueuedTask]):
    """Add a task. If it is a schedule, its name must be new.

    Raises:
        AlreadyExistsError: there is another schedule of this name.
        BadRequestError: there are too many tasks.
    """

    task: QueuedTask
    """The task. Its id is ignored. If its `due_ms` is 0, a schedule is first due after its interval or at the first
    time of its cron expression, and another task is due at once."""
    _: KW_ONLY
    replace: bool = False
    """Whether to replace a schedule of the same name."""
    id: bytes = b""
    """Id of the call that adds the task, a UUIDv7 (`commits.change.Operation.id`). If a call with this id and the same
    principal has added a task before, no other task is added; if that task is no longer in the queue, the result has no
    time of creation. Empty for calls without id."""
    lifetime_ms: int = 0
    """Time for which ids of calls are remembered, in milliseconds."""

    def apply(self, state: State, prepared: Moment) -> QueuedTask:
        if not self.id:
            return self._added(state, prepared)
        floor = _forget_calls(state, prepared.now_ms - self.lifetime_ms)
        key = _CALLS + self.id + self.operation.principal.encode()
        digest = _digest_of(self.task)
        there = state.lookup(COUNTS, key)
        if there is None:
            self._refuse_forgotten(prepared.now_ms, floor)
            added = self._added(state, prepared)
            state.put(COUNTS, key, Entry(value=id_bytes(added.id) + digest))
            return added
        if there.value[8:] != digest:
            raise UnprocessableError(
                "a call with this operation id has added another task before; use a new id for another task"
            )
        id = id_from(there.value[:8])
        if state.lookup(TASKS, id_bytes(id)) is not None:
            return find_task(state, id)
        return msgspec.structs.replace(self.task, id=id, created_ms=0)  # it has run since, or was dropped

    def _refuse_forgotten(self, now: int, floor: int) -> None:
        """Refuse an id that was made too long ago, because the task may have been added and forgotten; or in the
        future, because it would be remembered for too long.

        Args:
            floor: ids that were made before this time may have been forgotten, in milliseconds since 1970.
        """
        made = made_ms(self.id)
        age = now - made
        if age > self.lifetime_ms or made < floor:
            raise OutcomeUnknownError(
                f"the operation id was made {max(0, age) / 60_000:.0f} minutes ago; ids are remembered for "
                f"{self.lifetime_ms / 60_000:.0f} minutes, or for less if another process sets a shorter lifetime: "
                "look whether the task was added (show_queue, show_runs); if not, use a new id"
            )
        if -age > self.lifetime_ms:
            raise BadRequestError("the operation id was made in the future; use an id with the present time")

    def _added(self, state: State, prepared: Moment) -> QueuedTask:
        task, now = self.task, prepared.now_ms
        name = task.name.encode()
        if task.origin == "schedule":
            there = state.lookup(SCHEDULES, name)
            if there is not None and not self.replace:
                raise AlreadyExistsError(f"there is already a schedule {task.name!r}; drop it first")
            if there is not None:
                remove(state, find_task(state, id_from(there.value)))
        due = task.due_ms or (next_due(task.timing, now, now) if task.timing.repeats else now)
        added = msgspec.structs.replace(task, id=state.new_id(), created_ms=now, due_ms=due)
        if (
            count(state) >= MAX_TASKS and task.origin != "policy"
        ):  # there are few of these, and no task may stop them
            raise BadRequestError(f"the catalog already has {MAX_TASKS} tasks and schedules, the maximum")
        _count(state, 1)
        added = put(state, added, due + _jitter(added, prepared))
        if task.origin == "schedule":
            state.put(SCHEDULES, name, Entry(value=id_bytes(added.id)))
        return added


@dataclass(eq=False, repr=False)
class DropSchedule(QueueChange[QueuedTask]):
    """Drop a schedule. A run in progress loses its lease, so its worker asks it to stop.

    Raises:
        NotFoundError: there is no such schedule.
    """

    name: str

    def apply(self, state: State, prepared: Moment) -> QueuedTask:
        found = state.lookup(SCHEDULES, self.name.encode())
        if found is None:
            known = ", ".join(repr(key.decode()) for key, _ in state.scan(SCHEDULES, b"", None, limit=20))
            raise NotFoundError(f"there is no schedule {self.name!r}; the schedules are: {known or 'none'}")
        task = find_task(state, id_from(found.value))
        remove(state, task)
        return task


@dataclass(eq=False, repr=False)
class DropTask(QueueChange[QueuedTask]):
    """Remove a task that runs once from the queue. A run in progress loses its lease, so its worker asks it to stop.

    Raises:
        NotFoundError: there is no such task.
    """

    id: int

    def apply(self, state: State, prepared: Moment) -> QueuedTask:
        task = require_single(state, self.id)
        remove(state, task)
        return task


@dataclass(eq=False, repr=False)
class RetryTask(QueueChange[QueuedTask]):
    """Let a failed task, or one that waits for its next attempt, run at once, with all its attempts.

    Raises:
        NotFoundError: there is no such task.
        BadRequestError: the task is running.
    """

    id: int

    def apply(self, state: State, prepared: Moment) -> QueuedTask:
        task = require_single(state, self.id)
        if task.lease is not None:
            raise BadRequestError(f"the task {self.id:x} is running; wait until it ends")
        again = msgspec.structs.replace(task, attempt=0, has_failed=False)
        return put(state, again, prepared.now_ms)


@dataclass(eq=False, repr=False)
class Claim(QueueChange["QueuedTask | None"]):
    """Acquire the lease of the task that has been due for the longest time. Return the task; None if none is due.

    If the lease of a task has run out, its run is recorded as lost, and the task is taken over. Failed tasks whose time
    in the queue is over are removed.
    """

    holder: str
    """Host and process of the worker."""
    run: bytes
    """Unique id of the run that is about to begin."""
    _: KW_ONLY
    lease_ms: int
    keep_ms: int
    """Time for which runs are kept in the history, and failed tasks in the queue, in milliseconds."""
    due_by: int | None = None
    """Claim only a task that was due at this time, in milliseconds since 1970; None for now."""

    def apply(self, state: State, prepared: Moment) -> QueuedTask | None:
        now = prepared.now_ms
        until = now if self.due_by is None else min(now, self.due_by)
        while found := state.scan(DUE, b"", _time(until + 1), limit=1):
            task = find_task(state, id_from(found[0][0][8:]))
            if task.has_failed:
                remove(state, task)
                continue
            if task.lease is not None:
                lost = "its process died, or lost the lease of the task"
                record(state, ended(task, task.lease, now, "lost", lost, {}), self.keep_ms)
                if task.attempt >= task.attempts:
                    after_failure(state, task, prepared, lost, self.keep_ms)
                    continue
            lease = Lease(self.holder, self.run, now, now + self.lease_ms)
            claimed = msgspec.structs.replace(task, lease=lease, attempt=task.attempt + 1)
            return put(state, claimed, lease.until_ms + BEHIND_MS)
        return None


class Renew(QueueChange[set[bytes]]):
    """Renew the leases of runs. Return the ids of the runs that still have their leases."""

    def __init__(self, clock: Clock, operation: Operation, runs: Mapping[bytes, int], lease_ms: int) -> None:
        """
        Args:
            runs: ids of the tasks, by the ids of their runs.
        """
        super().__init__(clock, operation)
        self.runs = dict(runs)
        self.lease_ms = lease_ms

    def apply(self, state: State, prepared: Moment) -> set[bytes]:
        until = prepared.now_ms + self.lease_ms
        held = set()
        for run, id in self.runs.items():
            task = held_task(state, id, run)
            if task is not None and task.lease is not None:
                lease = msgspec.structs.replace(task.lease, until_ms=max(until, task.lease.until_ms))
                put(state, msgspec.structs.replace(task, lease=lease), lease.until_ms + BEHIND_MS)
                held.add(run)
        return held


@dataclass(eq=False, repr=False)
class GiveBack(QueueChange[None]):
    """Give back the lease of a task whose run did not begin or was interrupted. The attempt does not count."""

    id: int
    run: bytes
    _: KW_ONLY
    wait: bool = False
    """Whether the next attempt waits, because something else must end first."""

    def apply(self, state: State, prepared: Moment) -> None:
        task = held_task(state, self.id, self.run)
        if task is not None:
            waits = backoff_ms(1, prepared.random) if self.wait else 0
            given = msgspec.structs.replace(task, lease=None, attempt=task.attempt - 1)
            put(state, given, prepared.now_ms + waits)


@dataclass(eq=False, repr=False)
class Finish(QueueChange[bool]):
    """Record the end of a run, and let its task wait for its next run, or remove it from the queue. Return whether the
    run still had the lease of its task; otherwise, the task does not change."""

    id: int
    run: RunRecord
    _: KW_ONLY
    keep_ms: int

    def apply(self, state: State, prepared: Moment) -> bool:
        task = held_task(state, self.id, self.run.run)
        if task is not None or not _is_recorded(state, self.run.run):
            record(state, self.run, self.keep_ms)
        if task is None:
            return False
        if self.run.outcome != "succeeded":
            after_failure(state, task, prepared, self.run.error, self.keep_ms)
        elif task.timing.repeats:
            wait_for_next(state, task, prepared, "")
        else:
            remove(state, task)
        return True


@dataclass(eq=False, repr=False)
class AddRun(QueueChange[None]):
    """Record a run that has no task."""

    run: RunRecord
    _: KW_ONLY
    keep_ms: int

    def apply(self, state: State, prepared: Moment) -> None:
        record(state, self.run, self.keep_ms)


class FollowPolicies(QueueChange[None]):
    """Add, change and remove the tasks that the policies of a catalog require, so that there is one for each of
    `wanted`. If this is so already, no task changes."""

    def __init__(
        self, clock: Clock, operation: Operation, wanted: Collection[QueuedTask], commit: int
    ) -> None:
        """
        Args:
            wanted: tasks with the origin `policy` and different names.
            commit: id of the commit of the policies that require these tasks.
        """
        super().__init__(clock, operation)
        self.commit = commit
        self.wanted = {task.name: task for task in wanted}

    def apply(self, state: State, prepared: Moment) -> None:
        there = {task.name: task for task in all_tasks(state) if task.origin == "policy"}
        for name, task in there.items():
            wanted = self.wanted.get(name)
            if wanted is None:
                remove(state, task)
            elif (wanted.timing, wanted.procedure, wanted.arguments) != (
                task.timing,
                task.procedure,
                task.arguments,
            ):
                changed = msgspec.structs.replace(
                    task, timing=wanted.timing, procedure=wanted.procedure, arguments=wanted.arguments
                )
                if task.lease is None:
                    put(state, changed, min(task.next_ms, prepared.now_ms + wanted.timing.every_ms))
                else:
                    put(state, changed, task.lease.until_ms + BEHIND_MS)
        for name, task in self.wanted.items():
            if name not in there:
                AddTask(self.clock, self.operation, task).apply(state, prepared)
        if followed(state) != self.commit:
            state.put(COUNTS, _FOLLOWED, Entry(value=id_bytes(self.commit)))


def _digest_of(task: QueuedTask) -> bytes:
    """Return a hash of what a call asks for. Times are left out, because a repeated call has others."""
    asked = (task.procedure, task.arguments, task.branch, task.attempts, task.caller, task.roles)
    return hashlib.blake2b(repr(asked).encode(), digest_size=16).digest()


def _forget_calls(state: State, before_ms: int) -> int:
    """Forget ids of calls that were made before a time, some of them at once. Return the time before which ids may have
    been forgotten, by any process, in milliseconds since 1970."""
    found = state.lookup(COUNTS, _FORGOTTEN)
    floor = 0 if found is None else id_from(found.value)
    end = _CALLS + max(0, before_ms).to_bytes(6, "big")
    old = [key for key, _ in state.scan(COUNTS, _CALLS, end, limit=_REMOVED_AT_ONCE)]
    for key in old:
        state.remove(COUNTS, key)
    if old and made_ms(old[-1][len(_CALLS) :]) >= floor:
        floor = made_ms(old[-1][len(_CALLS) :]) + 1
        state.put(COUNTS, _FORGOTTEN, Entry(value=id_bytes(floor)))
    return floor


def is_due(state: State, now_ms: int) -> bool:
    """Whether the queue has work for a worker at the time `now_ms` (milliseconds since 1970)."""
    return bool(state.scan(DUE, b"", _time(now_ms + 1), limit=1))


def followed(state: State) -> int:
    """Return the id of the commit of the policies whose tasks are in the queue; 0 if there is none."""
    found = state.lookup(COUNTS, _FOLLOWED)
    return 0 if found is None else id_from(found.value)


def all_tasks(state: State) -> list[QueuedTask]:
    """Return all tasks and schedules, in the order in which they were added."""
    pointers = [entry.pointer for _, entry in state.scan(TASKS, b"", None)]
    rows = state.get_many(pointers, QueuedTask)
    return [rows[pointer] for pointer in pointers]


def all_runs(state: State, limit: int, allows: Callable[[RunRecord], bool]) -> list[RunRecord]:
    """Return the newest runs that a condition allows, at most `limit`, the newest first."""
    found: list[RunRecord] = []
    end: bytes | None = None
    while len(found) < limit:
        entries = state.scan(RUNS, b"", end, limit=_REMOVED_AT_ONCE, reverse=True)
        rows = state.get_many([entry.pointer for _, entry in entries], RunRecord)
        found += [rows[entry.pointer] for _, entry in entries if allows(rows[entry.pointer])]
        if len(entries) < _REMOVED_AT_ONCE:
            break
        end = entries[-1][0]
    return found[:limit]


def find_task(state: State, id: int) -> QueuedTask:
    """Return a task.

    Raises:
        NotFoundError: there is no such task.
    """
    found = state.lookup(TASKS, id_bytes(id))
    if found is None:
        raise NotFoundError(f"there is no task {id:x} in the queue")
    return state.get_for_rewrite(found.pointer, QueuedTask)


def require_single(state: State, id: int) -> QueuedTask:
    """Return a task that runs once.

    Raises:
        NotFoundError: there is no such task.
    """
    task = find_task(state, id)
    if task.origin != "task":
        raise NotFoundError(
            f"there is no task {id:x} in the queue: it belongs to {task.origin} {task.name!r}"
        )
    return task


def held_task(state: State, id: int, run: bytes) -> QueuedTask | None:
    """Return a task if a run has its lease; otherwise None."""
    found = state.lookup(TASKS, id_bytes(id))
    task = None if found is None else state.get_for_rewrite(found.pointer, QueuedTask)
    return None if task is None or task.lease is None or task.lease.run != run else task


def put(state: State, task: QueuedTask, next_ms: int) -> QueuedTask:
    """Store a new or changed task, and return it.

    Args:
        next_ms: time from which on a worker may do something with it, in milliseconds since 1970.
    """
    there = state.lookup(TASKS, id_bytes(task.id))
    if there is not None:
        state.remove(DUE, there.value)
    task = msgspec.structs.replace(task, next_ms=next_ms)
    key = _time(next_ms) + id_bytes(task.id)
    state.put(TASKS, id_bytes(task.id), Entry(state.add(task), key))
    state.put(DUE, key, Entry())
    return task


def remove(state: State, task: QueuedTask) -> None:
    """Remove a task."""
    there = state.lookup(TASKS, id_bytes(task.id))
    assert there is not None
    state.remove(DUE, there.value)
    state.remove(TASKS, id_bytes(task.id))
    if task.origin == "schedule":
        state.remove(SCHEDULES, task.name.encode())
    _count(state, -1)


def after_failure(state: State, task: QueuedTask, moment: Moment, error: str, keep_ms: int) -> None:
    """Let a task wait for its next attempt. After its last attempt, a task that runs once is marked as failed, and any
    other task waits until it is due again."""
    error = error[:MAX_ERROR]
    again = moment.now_ms + backoff_ms(task.attempt, moment.random)
    if task.timing.repeats:
        if task.attempt >= task.attempts or again >= _next_due(task, moment.now_ms)[0]:
            wait_for_next(state, task, moment, error)
            return
    elif task.attempt >= task.attempts:
        failed = msgspec.structs.replace(task, lease=None, has_failed=True, error=error)
        put(state, failed, moment.now_ms + keep_ms)
        return
    put(state, msgspec.structs.replace(task, lease=None, error=error), again)


def wait_for_next(state: State, task: QueuedTask, moment: Moment, error: str) -> None:
    """Let a task wait for the next time at which it is due."""
    due, problem = _next_due(task, moment.now_ms)
    error = "; ".join(text for text in (error, problem) if text)
    waits = msgspec.structs.replace(task, lease=None, attempt=0, due_ms=due, error=error[:MAX_ERROR])
    put(state, waits, due + _jitter(waits, moment))


def _next_due(task: QueuedTask, now_ms: int) -> tuple[int, str]:
    """Return when a task is next due, and an empty text.

    If this process cannot compute the time (for example, because a library is missing), return `now_ms +
    LONGEST_BACKOFF_MS` and the error message. The error is not raised, so that one bad task does not stop the queue.
    """
    try:
        return next_due(task.timing, task.due_ms, now_ms), ""
    except (InputError, MissingLibraryError) as error:
        return now_ms + LONGEST_BACKOFF_MS, str(error)


def ended(
    task: QueuedTask, lease: Lease, now_ms: int, outcome: str, error: str, statistics: dict[str, int]
) -> RunRecord:
    """Return the record of a run of a task."""
    return RunRecord(
        lease.run,
        task.procedure,
        task.arguments.decode(),
        task.branch,
        task.origin,
        task.name or f"{task.id:x}",
        task.attempt,
        task.principal,
        lease.holder,
        lease.started_ms,
        now_ms,
        outcome,  # type: ignore[arg-type]  # one of `Outcome`
        error[:MAX_ERROR],
        statistics,
    )


def record(state: State, run: RunRecord, keep_ms: int) -> None:
    """Add a run to the history. Remove runs that are too old or too many, some of them at once."""
    newest = state.scan(RUNS, b"", None, limit=1, reverse=True)
    number = id_from(newest[0][1].value) + 1 if newest else 1
    oldest = state.scan(RUNS, b"", None, limit=_REMOVED_AT_ONCE)
    for key, entry in oldest:
        if key[:8] >= _time(run.ended_ms - keep_ms) and number - id_from(entry.value) < MAX_RUNS:
            break
        state.remove(RUNS, key)
    id = state.add(run)
    state.put(RUNS, _time(run.ended_ms) + id_bytes(id), Entry(id, id_bytes(number)))


def _is_recorded(state: State, run: bytes) -> bool:
    """Whether a run is among the newest runs in the history. It may be there because an earlier commit of the same
    change had an unknown outcome."""
    return any(one.run == run for one in all_runs(state, _REMOVED_AT_ONCE, lambda _: True))


def count(state: State) -> int:
    """Return the number of tasks and schedules."""
    found = state.lookup(COUNTS, _COUNT)
    return 0 if found is None else id_from(found.value)


def _count(state: State, more: int) -> None:
    state.put(COUNTS, _COUNT, Entry(value=id_bytes(count(state) + more)))


def _jitter(task: QueuedTask, moment: Moment) -> int:
    return int(task.timing.jitter_ms * moment.random)


def _time(ms: int) -> bytes:
    return max(0, ms).to_bytes(8, "big")


ONCE: Final = Timing()
"""The timing of a task that runs once."""
