"""Tasks run once, are repeated after failures, and end as failed; runs are in the history."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation, new_operation_id
from polaris_spark.errors import (
    BadRequestError,
    InputError,
    NotFoundError,
    OutcomeUnknownError,
    RealmStateError,
    TaskRunningError,
    UnprocessableError,
)
from polaris_spark.jobs.queue.history import commit_queue, error_text, read_queue
from polaris_spark.jobs.registry import call
from polaris_spark.jobs.worker import Worker
from polaris_spark.maintenance.queue import changes
from polaris_spark.maintenance.queue.changes import LEASE_MS, AddRun, Claim, Finish, all_runs, ended
from polaris_spark.maintenance.queue.rows import QueuedTask, RunRecord
from polaris_spark.maintenance.queue.timing import FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS
from polaris_spark.rest.session import Session
from polaris_spark.system.clocks import BEHIND_MS
from polaris_spark.system.realms import RealmState
from tests.queue.conftest import Counted

DAY = 86_400_000


def rows(session: Session, name: str, /, **arguments: Any) -> list[dict[str, Any]]:
    from polaris_spark.jobs.registry import find

    names = [column.name for column in find(name).columns]
    return [dict(zip(names, row, strict=True)) for row in call(session, name, **arguments)]


def history(session: Session) -> list[RunRecord]:
    state = read_queue(session.catalog)
    return [] if state is None else all_runs(state, 1_000, lambda _: True)


def claim(session: Session, clock: ManualClock, run: bytes, *, keep_ms: int = DAY) -> QueuedTask | None:
    change = Claim(clock, Operation(b"", "w"), "other", run, lease_ms=LEASE_MS, keep_ms=keep_ms)
    found: QueuedTask | None = commit_queue(session.catalog, change)
    return found


def operation(clock: ManualClock, *, ago_ms: int = 0) -> str:
    return str(uuid.UUID(bytes=new_operation_id(clock.now_ms() - ago_ms)))


def test_calls_with_one_operation_id_add_one_task(
    session: Session, worker: Worker, counted: Counted, clock: ManualClock
) -> None:
    given = {"procedure": "counted", "arguments": {"n": "7"}, "operation": operation(clock)}
    [first] = rows(session, "enqueue", **given)
    clock.advance(1_000)
    assert rows(session, "enqueue", **given) == [first]
    assert worker.run_due() == 1
    ended = {**first, "state": "ended", "next": None, "created": None}  # it has run since
    assert rows(session, "enqueue", **given) == [ended]
    assert worker.run_due() == 0
    with pytest.raises(UnprocessableError, match="has added another task"):
        call(session, "enqueue", **{**given, "arguments": {"n": "8"}})
    call(session, "enqueue", **{**given, "operation": operation(clock)})
    assert worker.run_due() == 1


def test_an_operation_id_that_may_have_been_forgotten_is_refused(
    session: Session, counted: Counted, clock: ManualClock
) -> None:
    lifetime = session.properties.idempotency_key_lifetime
    given = {"procedure": "counted", "operation": operation(clock)}
    call(session, "enqueue", **given)
    clock.advance(lifetime + 1)
    call(session, "enqueue", procedure="counted", operation=operation(clock))  # forgets the first id
    with pytest.raises(OutcomeUnknownError, match=r"look whether the task was added.*use a new id$"):
        call(session, "enqueue", **given)
    with pytest.raises(BadRequestError, match="made in the future"):
        call(session, "enqueue", procedure="counted", operation=operation(clock, ago_ms=-lifetime - 60_000))
    with pytest.raises(InputError, match="must be a UUID of version 7"):
        call(session, "enqueue", procedure="counted", operation=str(uuid.uuid4()))
    assert len(rows(session, "show_queue")) == 2


def test_an_operation_id_that_a_process_with_a_shorter_lifetime_forgot_is_refused(
    session: Session, counted: Counted, clock: ManualClock
) -> None:
    given = {"procedure": "counted", "operation": operation(clock)}
    call(session, "enqueue", **given)
    clock.advance(120_000)
    shorter = session.derive()
    shorter.properties = dataclasses.replace(session.properties, idempotency_key_lifetime=60_000)
    call(shorter, "enqueue", procedure="counted")
    with pytest.raises(OutcomeUnknownError, match="another process sets a shorter lifetime"):
        call(session, "enqueue", **given)
    assert len(rows(session, "show_queue")) == 2


def test_a_task_runs_once_with_its_arguments_as_the_principal_that_added_it(
    session: Session, worker: Worker, counted: Counted
) -> None:
    given = {"n": "7", "at": "2026-01-31T12:00:00Z", "names": "a, b", "options": '{"x": "y"}'}
    call(session, "enqueue", procedure="counted", arguments=given)
    assert worker.run_due() == 1
    assert worker.run_due() == 0
    at = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    assert counted.calls == [{"n": 7, "at": at, "names": ["a", "b"], "options": {"x": "y"}}]
    assert counted.principals == ["ann"]
    assert call(session, "show_queue") == []


def test_a_run_is_in_the_history_with_its_statistics(
    session: Session, worker: Worker, counted: Counted, clock: ManualClock
) -> None:
    [task] = rows(session, "enqueue", procedure="counted", arguments={"n": "7"})
    counted.meanwhile = lambda _: clock.advance(2_000)
    worker.run_due()
    [run] = history(session)
    assert (run.procedure, run.arguments, run.origin, run.name) == (
        "counted",
        '{"n": 7}',
        "task",
        task["id"],
    )
    assert (run.outcome, run.error, run.statistics) == ("succeeded", "", {"rows": 2, "files": 5})
    assert run.ended_ms - run.started_ms == 2_000
    [shown] = rows(session, "show_runs")
    assert (shown["outcome"], shown["statistics"]) == ("succeeded", {"rows": "2", "files": "5"})


def test_a_failing_task_backs_off_and_ends_as_failed(
    session: Session, worker: Worker, counted: Counted, clock: ManualClock
) -> None:
    counted.error = BadRequestError("no luck")
    call(session, "enqueue", procedure="counted", attempts=3)
    worker.run_due()
    for attempt in (1, 2):
        [task] = rows(session, "show_queue")
        assert (task["state"], task["attempt"], task["error"]) == ("waiting", attempt, "no luck")
        wait = task["next"].timestamp() * 1_000 - clock.now_ms()
        assert FIRST_BACKOFF_MS << (attempt - 1) >= wait >= FIRST_BACKOFF_MS << (attempt - 1) >> 1
        clock.advance(wait - 1_000)
        assert worker.run_due() == 0
        clock.advance(1_000)
        assert worker.run_due() == 1
    [task] = rows(session, "show_queue")
    assert (task["state"], task["attempt"], task["error"], task["next"]) == ("failed", 3, "no luck", None)
    clock.advance(DAY)
    assert worker.run_due() == 0
    assert [(run.outcome, run.attempt, run.error) for run in history(session)] == [
        ("failed", n, "no luck") for n in (3, 2, 1)
    ]


def test_the_pause_between_attempts_is_bounded() -> None:
    assert changes.backoff_ms(1_000, 1.0) == LONGEST_BACKOFF_MS


def test_a_failed_task_can_be_retried_or_dropped(session: Session, worker: Worker, counted: Counted) -> None:
    counted.error = BadRequestError("no luck")
    ids = [rows(session, "enqueue", procedure="counted", attempts=1)[0]["id"] for _ in range(2)]
    worker.run_due()
    counted.error = None
    call(session, "retry_task", id=ids[0])
    assert worker.run_due() == 1
    call(session, "drop_task", id=ids[1])
    assert call(session, "show_queue") == []
    with pytest.raises(NotFoundError, match="there is no task"):
        call(session, "drop_task", id=ids[1])


def test_a_failed_task_is_forgotten_with_its_runs(
    session: Session, worker: Worker, counted: Counted, clock: ManualClock
) -> None:
    counted.error = BadRequestError("no luck")
    call(session, "enqueue", procedure="counted", attempts=1)
    worker.run_due()
    clock.advance(DAY)
    assert claim(session, clock, b"run") is None
    assert len(call(session, "show_queue")) == 1
    clock.advance(30 * DAY)
    assert worker.run_due() == 0
    assert call(session, "show_queue") == []


def test_a_task_waits_while_the_job_runs_elsewhere_and_no_attempt_counts(
    session: Session, worker: Worker, counted: Counted, clock: ManualClock
) -> None:
    counted.error = TaskRunningError("elsewhere")
    call(session, "enqueue", procedure="counted", attempts=1)
    assert worker.run_due() == 1
    [task] = rows(session, "show_queue")
    assert (task["state"], task["attempt"]) == ("waiting", 0)
    assert history(session) == []
    counted.error = None
    clock.advance(FIRST_BACKOFF_MS)
    assert worker.run_due() == 1
    assert call(session, "show_queue") == []


def test_a_task_whose_worker_died_is_taken_over_after_its_lease(
    session: Session, worker: Worker, counted: Counted, clock: ManualClock
) -> None:
    call(session, "enqueue", procedure="counted")
    assert claim(session, clock, b"dead") is not None
    assert rows(session, "show_queue")[0]["state"] == "running"
    clock.advance(LEASE_MS + BEHIND_MS - 1)
    assert worker.run_due() == 0
    clock.advance(1)
    assert worker.run_due() == 1
    assert [(run.outcome, run.attempt, run.holder == "other") for run in history(session)] == [
        ("succeeded", 2, False),
        ("lost", 1, True),
    ]


def test_a_task_whose_workers_always_die_ends_as_failed(session: Session, clock: ManualClock) -> None:
    call(session, "enqueue", procedure="expire", attempts=2)
    for run in (b"1", b"2"):
        assert claim(session, clock, run) is not None
        clock.advance(LEASE_MS + BEHIND_MS)
    assert claim(session, clock, b"3") is None
    assert [(task["state"], task["attempt"]) for task in rows(session, "show_queue")] == [("failed", 2)]
    assert [run.outcome for run in history(session)] == ["lost", "lost"]


def test_a_run_that_lost_its_lease_changes_nothing_when_it_ends(session: Session, clock: ManualClock) -> None:
    call(session, "enqueue", procedure="expire")
    first = claim(session, clock, b"first")
    clock.advance(LEASE_MS + BEHIND_MS)
    second = claim(session, clock, b"second")
    assert first is not None
    assert first.lease is not None
    assert second is not None
    assert second.lease is not None
    operation = Operation(b"", "w")
    late = ended(first, first.lease, clock.now_ms(), "succeeded", "", {})
    assert commit_queue(session.catalog, Finish(clock, operation, first.id, late, keep_ms=DAY)) is False
    assert rows(session, "show_queue")[0]["state"] == "running"
    done = ended(second, second.lease, clock.now_ms(), "succeeded", "", {})
    assert commit_queue(session.catalog, Finish(clock, operation, second.id, done, keep_ms=DAY)) is True
    assert call(session, "show_queue") == []


def test_the_end_of_a_run_that_is_recorded_twice_is_in_the_history_once(
    session: Session, clock: ManualClock
) -> None:
    call(session, "enqueue", procedure="expire")
    task = claim(session, clock, b"run")
    assert task is not None
    assert task.lease is not None
    record = ended(task, task.lease, clock.now_ms(), "succeeded", "", {})
    for _ in range(2):
        commit_queue(session.catalog, Finish(clock, Operation(b"", "w"), task.id, record, keep_ms=DAY))
    assert len(history(session)) == 1


def test_a_long_run_keeps_its_lease(session: Session, counted: Counted, clock: ManualClock) -> None:
    """The lease is renewed by real time, so it is short here."""
    from polaris_spark.testing.waiting import wait_until

    worker = Worker(session, lease_ms=30)
    call(session, "enqueue", procedure="counted")

    def wait_for_renewal(_: Any) -> None:
        state = read_queue(session.catalog)
        assert state is not None
        before = changes.all_tasks(state)[0].next_ms
        clock.advance(20)
        wait_until(lambda: _lease_end(session) >= before + 20, "the lease is renewed")

    counted.meanwhile = wait_for_renewal
    assert worker.run_due() == 1
    worker.stop()
    assert [run.outcome for run in history(session)] == ["succeeded"]


def _lease_end(session: Session) -> int:
    state = read_queue(session.catalog)
    assert state is not None
    return changes.all_tasks(state)[0].next_ms


def test_a_worker_that_is_stopped_gives_its_lease_back(session: Session, counted: Counted) -> None:
    worker, begun = Worker(session), threading.Event()
    call(session, "enqueue", procedure="counted", attempts=1)

    def until_cancelled(running: Any) -> None:
        begun.set()
        while True:
            running.check()

    counted.meanwhile = until_cancelled
    stop = threading.Event()
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()
    assert begun.wait(60)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    [task] = rows(session, "show_queue")
    assert (task["state"], task["attempt"]) == ("waiting", 0)
    assert history(session) == []


def test_errors_in_the_history_show_no_secrets(
    session: Session, worker: Worker, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "open-sesame")
    given = {"options": '{"password": "env:SHOP_PASSWORD"}'}
    listed = dataclasses.replace(session.properties, procedure_variables=("SHOP_PASSWORD",))
    monkeypatch.setattr(session, "properties", listed)
    call(session, "enqueue", procedure="counted", arguments=given, attempts=1)
    counted.error = OSError("cannot log in with open-sesame")
    worker.run_due()
    [run] = history(session)
    [task] = rows(session, "show_queue")
    assert run.error == task["error"] == "OSError: cannot log in with ***"
    plain = {"options": {"uri": "postgresql://ann:swordfish@h/db", "secret": "tulip"}}
    assert error_text(InputError("swordfish and tulip"), plain) == "*** and ***"


def test_a_task_that_is_dropped_while_it_runs_is_cancelled(
    session: Session, counted: Counted, clock: ManualClock
) -> None:
    worker = Worker(session, lease_ms=30)
    [task] = rows(session, "enqueue", procedure="counted")

    def until_cancelled(running: Any) -> None:
        call(session, "drop_task", id=task["id"])
        assert running._cancelled.wait(30)
        running.check()

    counted.meanwhile = until_cancelled
    worker.run_due()
    worker.stop()
    assert [run.outcome for run in history(session)] == ["cancelled"]
    assert [row["outcome"] for row in rows(session, "show_runs", outcome="cancelled")] == ["cancelled"]
    with pytest.raises(InputError, match="succeeded, failed, cancelled, lost"):
        call(session, "show_runs", outcome="ended")


def test_what_becomes_due_while_a_worker_runs_what_is_due_is_left_for_later(
    session: Session, worker: Worker, counted: Counted, clock: ManualClock
) -> None:
    call(session, "add_schedule", name="a", procedure="counted", every="1 s")
    counted.meanwhile = lambda _: clock.advance(5_000) if len(counted.calls) < 3 else None
    clock.advance(1_000)
    assert worker.run_due() == 1


def test_a_delayed_task_waits(session: Session, worker: Worker, counted: Counted, clock: ManualClock) -> None:
    call(session, "enqueue", procedure="counted", delay="10 min")
    assert worker.run_due() == 0
    clock.advance(600_000)
    assert worker.run_due() == 1


def test_no_more_tasks_run_at_once_than_the_worker_allows(session: Session, counted: Counted) -> None:
    worker, now, most, guard = Worker(session, concurrency=2), [0], [0], threading.Lock()

    def count(_: Any) -> None:
        with guard:
            now[0] += 1
            most[0] = max(most[0], now[0])
        with guard:
            now[0] -= 1

    counted.meanwhile = count
    for _ in range(6):
        call(session, "enqueue", procedure="counted")
    assert worker.run_due() == 6
    worker.stop()
    assert most[0] <= 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"procedure": "none"}, "there is no procedure"),
        ({"procedure": "counted", "arguments": {"n": "x"}}, "it must be a whole number"),
        ({"procedure": "counted", "arguments": {"m": "1"}}, "has no parameter 'm'"),
        ({"procedure": "counted", "arguments": {"options": '{"password": "open-sesame"}'}}, "is a secret"),
        ({"procedure": "counted", "attempts": 0}, "attempts is 0"),
        ({"procedure": "counted", "delay": "soon"}, "delay is 'soon'"),
        ({"procedure": "counted", "arguments": {"names": "x" * 40_000}}, "the maximum is 32768"),
        ({"procedure": "refresh", "arguments": {"view": "db.v"}}, "needs Spark"),
        ({"procedure": "begin"}, "changes only the session"),
    ],
)
def test_bad_input_adds_nothing(
    session: Session, counted: Counted, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        call(session, "enqueue", **arguments)
    assert "open-sesame" not in str(caught.value)
    assert read_queue(session.catalog) is None


def test_the_queue_is_bounded(
    session: Session, counted: Counted, monkeypatch: pytest.MonkeyPatch, worker: Worker
) -> None:
    monkeypatch.setattr(changes, "MAX_TASKS", 2)
    for _ in range(2):
        call(session, "enqueue", procedure="counted")
    with pytest.raises(BadRequestError, match="already has 2 tasks"):
        call(session, "enqueue", procedure="counted")
    worker.run_due()
    call(session, "enqueue", procedure="counted")


def test_arguments_that_are_nested_too_deeply_are_refused(session: Session, counted: Counted) -> None:
    with pytest.raises(InputError, match="must be a map from text to text"):
        call(session, "enqueue", procedure="counted", arguments={"options": "[" * 100_000})


@pytest.mark.parametrize("procedure", ["create_principal", "reset_credentials", "rotate_credentials"])
def test_procedures_that_return_a_secret_are_refused(session: Session, procedure: str) -> None:
    with pytest.raises(InputError, match="returns a secret to its caller"):
        call(session, "enqueue", procedure=procedure, arguments={"name": "ann"})


def test_a_delay_that_cannot_be_shown_is_refused(session: Session, counted: Counted) -> None:
    with pytest.raises(InputError, match="must not be longer than 36500 d"):
        call(session, "enqueue", procedure="counted", delay="36501 d")
    call(session, "enqueue", procedure="counted", delay="36500 d")
    assert len(call(session, "show_queue")) == 1


def test_a_worker_goes_on_after_an_unexpected_error(
    session: Session, worker: Worker, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(session, "enqueue", procedure="counted")
    stop, claimed = threading.Event(), worker._claimed

    def fails_once(*given: Any) -> Any:
        monkeypatch.setattr(worker, "_claimed", claimed)
        raise ZeroDivisionError

    monkeypatch.setattr(worker, "_claimed", fails_once)
    counted.meanwhile = lambda _: stop.set()
    worker.run(stop, 0.01)
    assert len(counted.calls) == 1


def test_the_history_is_bounded_by_number_and_age(
    session: Session, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_RUNS", 3)

    def add(name: str) -> None:
        now = clock.now_ms()
        run = RunRecord(
            name.encode(), name, "{}", "main", "user", "", 1, "ann", "h", now, now, "succeeded", "", {}
        )
        commit_queue(session.catalog, AddRun(clock, Operation(b"", "ann"), run, keep_ms=DAY))

    for name in "abcde":
        add(name)
        clock.advance(1_000)
    assert [run.procedure for run in history(session)] == ["e", "d", "c"]
    clock.advance(DAY)
    add("f")
    assert [run.procedure for run in history(session)] == ["f"]


def test_a_job_that_a_user_runs_is_in_the_history_once_the_catalog_has_a_queue(session: Session) -> None:
    call(session, "expire")
    assert read_queue(session.catalog) is None
    call(session, "add_schedule", name="a", procedure="expire", every="1 d")
    call(session, "expire", retain_last=3)
    call(session, "expire", dry_run=True)
    with pytest.raises(BadRequestError, match="there is no table"):
        call(session, "expire", table="no.t")
    assert [(run.origin, run.principal, run.arguments, run.outcome) for run in history(session)] == [
        ("user", "ann", '{"table": "no.t"}', "failed"),
        ("user", "ann", '{"retain_last": 3}', "succeeded"),
    ]


def test_a_job_that_a_task_runs_is_in_the_history_once(session: Session, worker: Worker) -> None:
    call(session, "enqueue", procedure="compact_index")
    worker.run_due()
    assert [(run.origin, run.outcome) for run in history(session)] == [("task", "succeeded")]


def test_a_queue_survives_a_sweep_and_passes_the_checks(
    session: Session, worker: Worker, counted: Counted, clock: ManualClock
) -> None:
    call(session, "add_schedule", name="a", procedure="counted", every="1 d")
    for _ in range(20):
        clock.advance(DAY)
        worker.run_due()
    call(session, "trim")
    clock.advance(DAY)
    call(session, "sweep")
    assert call(session, "fsck") == []
    assert len(call(session, "show_schedules")) == 1
    assert worker.run_due() == 1


def test_a_queue_is_dropped_and_restored_with_its_catalog(
    session: Session, worker: Worker, counted: Counted, clock: ManualClock, tmp_path: Path
) -> None:
    call(session, "create_catalog", name="other", warehouse=str(tmp_path / "other"))
    store = str(session.properties.store)
    with polaris_spark.connect(store=store, catalog="other", create=False, clock=clock) as other:
        call(other, "add_schedule", name="a", procedure="counted", every="1 d")
    call(session, "drop_catalog", name="other")
    clock.advance(DAY)
    assert worker.run_due() == 0
    call(session, "undrop_catalog", name="other")
    assert worker.run_due() == 1


def test_a_queue_and_policies_are_in_a_realm_file(
    session: Session, worker: Worker, counted: Counted, clock: ManualClock, tmp_path: Path
) -> None:
    from polaris_spark.maintenance.realm_file.exporter import Export
    from polaris_spark.maintenance.realm_file.importer import Import
    from polaris_spark.maintenance.realm_file.layout import RealmFile

    call(session, "add_schedule", name="a", procedure="counted", every="1 d")
    call(session, "enqueue", procedure="counted")
    assert claim(session, clock, b"run") is not None
    session.request("POST", "v1/namespaces", None, '{"namespace": ["db"]}')
    given = {"type": "system.data-compaction", "content": '{"enable": true}'}
    call(session, "create_policy", name="db.p", **given)
    call(session, "attach_policy", name="db.p")
    connection = session.connection
    Export(connection, "default", "test", lambda *_: None).write(tmp_path / "realm")
    with RealmFile(tmp_path / "realm") as file:
        Import(connection, file, "copy", lambda *_: None).run()
    store = str(session.properties.store)
    with polaris_spark.connect(store=store, realm="copy", create=False, clock=clock) as copy:
        assert [row["name"] for row in rows(copy, "show_schedules")] == ["a"]
        assert [row["name"] for row in rows(copy, "applicable_policies")] == ["db.p"]
        clock.advance(DAY)
        other = Worker(copy)
        assert other.run_due() == 2
        other.stop()


def test_a_worker_leaves_a_realm_alone_that_was_deactivated(
    session: Session, worker: Worker, counted: Counted, clock: ManualClock
) -> None:
    call(session, "enqueue", procedure="counted")
    session.connection.realms.move("default", RealmState.INACTIVE)
    clock.advance(60_000)
    with pytest.raises(RealmStateError):
        worker.run_due()
    assert counted.calls == []


def test_a_catalog_that_cannot_be_opened_keeps_no_other_from_its_turn(
    session: Session, counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(session, "create_catalog", name="broken", warehouse=str(tmp_path / "other"))
    store = str(session.properties.store)
    clock = session.connection.clock
    with polaris_spark.connect(store=store, catalog="broken", create=False, clock=clock) as other:
        call(other, "enqueue", procedure="counted")
    call(session, "enqueue", procedure="counted")
    worker = Worker(session)
    open_catalog = worker._of

    def opening(row: Any, branch: str) -> Session:
        if row.name == "broken":
            raise NotFoundError("broken")
        return open_catalog(row, branch)

    monkeypatch.setattr(worker, "_of", opening)
    assert worker.run_due() == 1
    worker.stop()
