"""Tasks: only one of a kind runs at a time, and another process can take over after a holder has died."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.clock import ManualClock, SystemClock
from polaris_spark.errors import (
    InputError,
    OutcomeUnknownError,
    TaskLostError,
    TaskRunningError,
    TryAgainError,
)
from polaris_spark.system.clocks import BEHIND_MS
from polaris_spark.system.stores import open_store
from polaris_spark.system.tasks import TASK_MS, HeldTask, Tasks
from polaris_spark.testing.processes import exit_status, in_threads
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.stores import SHARED, StoreOn, databases

_numbers = count()


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(f"tasks-{next(_numbers)}")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tasks(backend: MemoryBackend, clock: ManualClock) -> Tasks:
    return Tasks(backend, clock)


def take(tasks: Tasks, holder: str, scope: str = "catalog") -> HeldTask:
    return tasks.acquire("import", scope, holder=holder, renew=False)


def test_the_error_for_a_second_holder_names_the_first_and_the_end_of_its_lease(tasks: Tasks) -> None:
    take(tasks, "first")
    with pytest.raises(
        TaskRunningError, match=r"first has been running task 'import' of catalog .*until 2025-03-02T00:01:00"
    ):
        take(tasks, "second")


def test_a_task_that_runs_elsewhere_raises_an_error_that_says_to_try_again() -> None:
    assert issubclass(TaskRunningError, TryAgainError)


def test_tasks_of_other_kinds_and_scopes_run_beside_it(tasks: Tasks) -> None:
    take(tasks, "first")
    take(tasks, "second", scope="another catalog")
    tasks.acquire("expire", "catalog", renew=False)


def test_after_a_release_the_next_begins_at_once_and_the_outcome_is_kept(tasks: Tasks) -> None:
    take(tasks, "first").release("3 tables")
    record = tasks.find("import", "catalog")
    assert record is not None
    assert (record.holder, record.released, record.outcome) == ("first", True, "3 tables")
    take(tasks, "second")


def test_releasing_twice_leaves_the_next_holder_alone(tasks: Tasks) -> None:
    first = take(tasks, "first")
    first.release()
    second = take(tasks, "second")
    first.release("again")
    second.check()
    record = tasks.find("import", "catalog")
    assert record is not None
    assert (record.holder, record.released) == ("second", False)


def test_a_lease_that_ended_is_kept_while_clocks_may_differ(tasks: Tasks, clock: ManualClock) -> None:
    take(tasks, "first")
    clock.advance(TASK_MS + BEHIND_MS)
    with pytest.raises(TaskRunningError):
        take(tasks, "second")
    clock.advance(1)
    take(tasks, "second")


def test_a_holder_whose_lease_was_taken_over_learns_it_and_does_not_take_it_back(
    tasks: Tasks, clock: ManualClock
) -> None:
    first = take(tasks, "first")
    clock.advance(TASK_MS + BEHIND_MS + 1)
    take(tasks, "second")
    with pytest.raises(TaskLostError):
        first.renew()
    with pytest.raises(TaskLostError):
        first.check()
    first.release()
    record = tasks.find("import", "catalog")
    assert record is not None
    assert (record.holder, record.released) == ("second", False)


def test_a_renewal_lasts_the_whole_duration_from_then(tasks: Tasks, clock: ManualClock) -> None:
    first = take(tasks, "first")
    for _ in range(5):
        clock.advance(TASK_MS)
        first.renew()
    assert first.record.until_ms == clock.now_ms() + TASK_MS
    with pytest.raises(TaskRunningError):
        take(tasks, "second")


def test_a_clock_that_went_back_does_not_shorten_a_lease(tasks: Tasks, clock: ManualClock) -> None:
    first = take(tasks, "first")
    until = first.record.until_ms
    clock.set_wall(clock.now_ms() - 30_000)
    first.renew()
    assert first.record.until_ms == until


def test_the_lease_of_a_holder_whose_clock_is_ahead_is_taken_over_if_nobody_renews_it(
    backend: MemoryBackend, tasks: Tasks, clock: ManualClock
) -> None:
    ahead = ManualClock(clock.now_ms() + 86_400_000)
    take(Tasks(backend, ahead), "ahead")
    before = clock.now_ms()
    take(tasks, "second")
    assert clock.now_ms() - before == TASK_MS


def test_the_lease_of_a_holder_whose_clock_is_ahead_stays_its_own_if_it_is_renewed(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    ahead = ManualClock(clock.now_ms() + 3_600_000)
    first = take(Tasks(backend, ahead), "ahead")

    class Renewing(ManualClock):
        """A clock. While this process sleeps on it, the other holder renews its lease."""

        def sleep_ms(self, duration: float) -> None:
            super().sleep_ms(duration)
            ahead.advance(duration)
            first.renew()

    mine = Renewing(clock.now_ms())
    with pytest.raises(TaskRunningError, match="ahead has been running"):
        take(Tasks(backend, mine), "second")
    assert mine.now_ms() == clock.now_ms() + TASK_MS
    first.check()


def test_a_process_that_waits_for_a_dead_holder_whose_clock_is_ahead_gets_the_lease(
    backend: MemoryBackend, tasks: Tasks, clock: ManualClock
) -> None:
    ahead = ManualClock(clock.now_ms() + 86_400_000)
    first = take(Tasks(backend, ahead), "ahead")
    before, asked = clock.now_ms(), count()

    def waiting() -> None:
        if next(asked) == 5:
            first.renew()

    second = tasks.acquire("import", "catalog", holder="second", renew=False, waiting=waiting)
    second.check()
    assert TASK_MS < clock.now_ms() - before < 2 * TASK_MS


def test_a_waiting_process_takes_over_a_dead_holders_lease_by_the_wall_clock(
    tasks: Tasks, clock: ManualClock
) -> None:
    first = take(tasks, "first")
    tasks.acquire("import", "catalog", holder="second", renew=False, waiting=lambda: None)
    assert clock.now_ms() > first.record.until_ms + BEHIND_MS


def test_a_renewal_of_unknown_outcome_does_not_lose_the_lease(
    tasks: Tasks, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = take(tasks, "first")
    swap = backend.swap_reference

    def answer_lost(*arguments: Any) -> None:
        swap(*arguments)
        monkeypatch.setattr(backend, "swap_reference", unreachable)
        raise OutcomeUnknownError("the answer is lost")

    def unreachable(*_: Any) -> None:
        raise TryAgainError("the server restarts")

    monkeypatch.setattr(backend, "swap_reference", answer_lost)
    with pytest.raises(TryAgainError):
        held.renew()
    monkeypatch.setattr(backend, "swap_reference", swap)
    held.renew()
    held.check()
    with pytest.raises(TaskRunningError):
        take(tasks, "second")


def test_one_of_many_concurrent_processes_gets_the_lease(backend: MemoryBackend) -> None:
    def ask(number: int) -> bool:
        try:
            take(Tasks(backend, ManualClock()), f"holder {number}")
        except TaskRunningError:
            return False
        return True

    assert sum(in_threads(8, ask)) == 1


def test_a_block_says_how_it_ended(tasks: Tasks) -> None:
    with tasks.running("import", "catalog") as held:
        held.check()
    record = tasks.find("import", "catalog")
    assert record is not None
    assert record.outcome == "done"
    with pytest.raises(ValueError, match="broken"), tasks.running("import", "catalog"):
        raise ValueError("broken")
    record = tasks.find("import", "catalog")
    assert record is not None
    assert (record.released, record.outcome) == (True, "failed: ValueError")


@pytest.mark.parametrize(
    ("kind", "scope", "duration"), [("", "s", 1), ("a/b", "s", 1), ("a", "", 1), ("a", "s", 0)]
)
def test_a_value_that_is_not_a_task_is_refused(tasks: Tasks, kind: str, scope: str, duration: int) -> None:
    with pytest.raises(InputError):
        tasks.acquire(kind, scope, duration_ms=duration)


def test_the_background_renews_until_the_release(backend: MemoryBackend) -> None:
    held = Tasks(backend, SystemClock()).acquire("import", "catalog", duration_ms=300)
    first = held.record.until_ms
    wait_until(lambda: held.record.until_ms > first, "it is renewed")
    held.release()
    with pytest.raises(TaskLostError):
        held.renew()


HOLDER = """
import sys, time
from polaris_spark.backends import open_backend
from polaris_spark.clock import SystemClock
from polaris_spark.system.tasks import Tasks
backend = open_backend(sys.argv[1])
held = Tasks(backend, SystemClock()).acquire("import", "catalog", holder="the other process")
print("holding", flush=True)
sys.stdin.readline()
held.release("ended")
backend.close()
"""


@pytest.mark.parametrize("database", databases(SHARED, ordinary=("sqlite",)))
def test_processes_exclude_each_other(store_on: StoreOn, database: str) -> None:
    uri = store_on(database)
    backend = open_backend(uri)
    open_store(backend, SystemClock())
    tasks = Tasks(backend, SystemClock())
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "holding\n"
        with pytest.raises(TaskRunningError, match="the other process"):
            take(tasks, "here")
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.wait(PATIENCE_S) == 0
    take(tasks, "here").release()
    backend.close()


def test_a_forked_child_holds_nothing(tmp_path: Path) -> None:
    backend = open_backend(f"sqlite://{tmp_path / 'store.db'}")
    open_store(backend, SystemClock())
    held = Tasks(backend, SystemClock()).acquire("import", "catalog")
    child = os.fork()
    if child == 0:
        try:
            held.release("by the child")
            held.renew()
        except TaskLostError:
            os._exit(0)
        finally:  # whatever it is, the child must not go on as if it were the test run
            os._exit(1)
    assert exit_status(child) == 0
    held.renew()
    held.release()
    backend.close()


def test_how_far_a_run_has_come_is_written_now_and_then(tasks: Tasks, clock: ManualClock) -> None:
    held = take(tasks, "first")
    held.tell("reading", 1, 10)
    held.tell("reading", 2, 10)
    assert progress(tasks) == ("reading", 1, 10)
    clock.advance(2_000)
    held.tell("deleting")
    assert progress(tasks) == ("deleting", 0, 0)
    held.tell("deleting", 7)
    held.renew()
    assert progress(tasks) == ("deleting", 7, 0)
    held.tell("deleting", 9)
    held.release()
    assert progress(tasks) == ("deleting", 9, 0)


def test_telling_renews_the_lease(tasks: Tasks, clock: ManualClock) -> None:
    held = take(tasks, "first")
    clock.advance(30_000)
    held.tell("reading")
    assert held.record.until_ms == clock.now_ms() + TASK_MS


def test_a_holder_that_lost_its_lease_learns_it_when_it_reports_progress(
    tasks: Tasks, clock: ManualClock
) -> None:
    first = take(tasks, "first")
    clock.advance(TASK_MS + BEHIND_MS + 1)
    take(tasks, "second").tell("reading", 5)
    with pytest.raises(TaskLostError):
        first.tell("deleting")
    assert progress(tasks) == ("reading", 5, 0)


def test_a_progress_that_cannot_be_written_is_not_a_failure(
    tasks: Tasks, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = take(tasks, "first")

    def refuse(*_: object) -> None:
        raise TryAgainError("overloaded")

    with monkeypatch.context() as patched:
        patched.setattr(backend, "swap_reference", refuse)
        held.tell("reading", 3)
    held.renew()
    assert progress(tasks) == ("reading", 3, 0)


def test_a_waiting_process_gets_the_lease_once_it_is_free(tasks: Tasks) -> None:
    first = take(tasks, "first")
    asked = count()

    def waiting() -> None:
        if next(asked) == 3:
            first.release()

    second = tasks.acquire("import", "catalog", holder="second", renew=False, waiting=waiting)
    second.check()
    assert next(asked) > 3


def test_a_wait_can_be_cancelled(tasks: Tasks) -> None:
    take(tasks, "first")

    def waiting() -> None:
        raise TryAgainError("cancelled")

    with pytest.raises(TryAgainError, match="cancelled"):
        tasks.acquire("import", "catalog", waiting=waiting)


def progress(tasks: Tasks) -> tuple[str, int, int]:
    """Return the progress of the run in the task's record."""
    record = tasks.find("import", "catalog")
    assert record is not None
    return record.doing, record.done, record.total


@pytest.mark.parametrize(("total", "shown"), [(4, 4), (0, 3)])
def test_the_last_step_of_a_run_that_came_to_its_end_is_done(tasks: Tasks, total: int, shown: int) -> None:
    with tasks.running("expire", "one") as held:
        held.tell("deleting", 3, total)
    record = tasks.find("expire", "one")
    assert record is not None
    assert (record.outcome, record.doing, record.done, record.total) == ("done", "deleting", shown, total)


def test_a_run_that_failed_says_how_far_it_came(tasks: Tasks) -> None:
    def fail() -> None:
        with tasks.running("expire", "one") as held:
            held.tell("deleting", 3, 4)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    record = tasks.find("expire", "one")
    assert record is not None
    assert (record.done, record.total) == (3, 4)
