"""Schedules run at their times, once for all workers."""

from __future__ import annotations

import sys
from datetime import datetime, timezone

import pytest

from polaris_spark.clock import ManualClock
from polaris_spark.errors import AlreadyExistsError, BadRequestError, InputError, NotFoundError
from polaris_spark.jobs.registry import call
from polaris_spark.jobs.worker import Worker
from polaris_spark.maintenance.queue.rows import Timing
from polaris_spark.maintenance.queue.timing import next_due
from polaris_spark.rest.session import Session
from tests.queue.conftest import Counted
from tests.queue.test_queue import history, rows

MINUTE = 60_000
HOUR = 60 * MINUTE


def test_a_schedule_runs_once_in_each_interval_for_all_workers(
    session: Session, counted: Counted, clock: ManualClock
) -> None:
    call(session, "add_schedule", name="hourly", procedure="counted", every="1 h")
    workers = [Worker(session) for _ in range(3)]
    assert sum(worker.run_due() for worker in workers) == 0
    for hour in range(1, 5):
        clock.advance(HOUR)
        assert sum(worker.run_due() for worker in workers) == 1
        assert len(counted.calls) == hour
    for worker in workers:
        worker.stop()
    assert {(run.origin, run.name) for run in history(session)} == {("schedule", "hourly")}


def test_missed_runs_are_made_up_for_once(
    session: Session, counted: Counted, worker: Worker, clock: ManualClock
) -> None:
    call(session, "add_schedule", name="hourly", procedure="counted", every="1 h")
    began = clock.now_ms()
    clock.advance(10.5 * HOUR)
    assert worker.run_due() == 1
    [schedule] = rows(session, "show_schedules")
    assert schedule["next"].timestamp() * 1_000 == began + 11 * HOUR


def test_a_schedule_that_fails_is_repeated_and_then_waits_for_its_next_time(
    session: Session, counted: Counted, worker: Worker, clock: ManualClock
) -> None:
    counted.error = BadRequestError("no luck")
    call(session, "add_schedule", name="hourly", procedure="counted", every="1 h", attempts=2)
    began = clock.now_ms()
    clock.advance(HOUR)
    worker.run_due()
    clock.advance(60_000)
    worker.run_due()
    [schedule] = rows(session, "show_schedules")
    assert (schedule["state"], schedule["error"]) == ("waiting", "no luck")
    assert schedule["next"].timestamp() * 1_000 == began + 2 * HOUR
    counted.error = None
    clock.advance(HOUR)
    worker.run_due()
    assert [(run.outcome, run.attempt) for run in history(session)] == [
        ("succeeded", 1),
        ("failed", 2),
        ("failed", 1),
    ]
    assert rows(session, "show_schedules")[0]["error"] is None


def test_jitter_delays_a_run_and_moves_no_later_one(
    session: Session, counted: Counted, worker: Worker, clock: ManualClock
) -> None:
    call(session, "add_schedule", name="hourly", procedure="counted", every="1 h", jitter="10 min")
    began = clock.now_ms()
    for hour in range(1, 4):
        at = rows(session, "show_schedules")[0]["next"].timestamp() * 1_000
        assert began + hour * HOUR <= at <= began + hour * HOUR + 600_000
        clock.advance(at - clock.now_ms())
        assert worker.run_due() == 1


def test_a_cron_expression_says_when_in_utc() -> None:
    at = int(datetime(2026, 2, 28, 23, 0, tzinfo=timezone.utc).timestamp() * 1_000)
    found = next_due(Timing(cron="30 2 * * *"), 0, at)
    assert datetime.fromtimestamp(found / 1_000, timezone.utc) == datetime(
        2026, 3, 1, 2, 30, tzinfo=timezone.utc
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either every"),
        ({"every": "1 h", "cron": "* * * * *"}, "give either every"),
        ({"cron": "30 2 * *"}, "write minute, hour, day"),
        ({"cron": "30 2 31 2 *"}, "write minute, hour, day"),
        ({"every": "10 ms"}, "at least 1 s"),
        ({"every": "36501 d"}, "must not be longer than 36500 d"),
        ({"every": "1 d", "jitter": "36501 d"}, "must not be longer than 36500 d"),
        ({"cron": "1" + ",1" * 100 + " * * * *"}, "the maximum is 200"),
        ({"every": "often"}, "every is 'often'"),
        ({"every": "1 h", "name": "a\nb"}, "the name of a schedule"),
        ({"every": "1 h", "name": "x" * 300}, "is longer than 200 bytes"),
    ],
)
def test_bad_schedules_are_refused(
    session: Session, counted: Counted, arguments: dict[str, str], message: str
) -> None:
    with pytest.raises((InputError, BadRequestError), match=message):
        call(session, "add_schedule", **{"name": "a", "procedure": "counted", **arguments})
    assert call(session, "show_schedules") == []


def test_a_name_is_used_once_unless_it_is_replaced(
    session: Session, counted: Counted, worker: Worker, clock: ManualClock
) -> None:
    call(session, "add_schedule", name="a", procedure="counted", every="1 h", arguments={"n": "1"})
    with pytest.raises(AlreadyExistsError, match="already a schedule 'a'"):
        call(session, "add_schedule", name="a", procedure="counted", every="2 h")
    call(session, "add_schedule", name="a", procedure="counted", every="2 h", replace=True)
    clock.advance(HOUR)
    assert worker.run_due() == 0
    clock.advance(HOUR)
    assert worker.run_due() == 1
    assert counted.calls == [{}]


def test_a_dropped_schedule_runs_no_more(
    session: Session, counted: Counted, worker: Worker, clock: ManualClock
) -> None:
    call(session, "add_schedule", name="a", procedure="counted", every="1 h")
    assert call(session, "drop_schedule", name="a") == [("a", True)]
    assert call(session, "drop_schedule", name="a", if_exists=True) == [("a", False)]
    with pytest.raises(NotFoundError, match="there is no schedule 'a'"):
        call(session, "drop_schedule", name="a")
    clock.advance(2 * HOUR)
    assert worker.run_due() == 0


def test_a_schedule_that_is_dropped_while_it_runs_ends_as_dropped(
    session: Session, counted: Counted, worker: Worker, clock: ManualClock
) -> None:
    call(session, "add_schedule", name="a", procedure="counted", every="1 h")
    counted.meanwhile = lambda _: call(session, "drop_schedule", name="a")
    clock.advance(HOUR)
    assert worker.run_due() == 1
    assert call(session, "show_schedules") == []
    assert [run.outcome for run in history(session)] == ["succeeded"]


def test_a_schedule_whose_next_time_cannot_be_computed_stops_no_other_task(
    session: Session, worker: Worker, counted: Counted, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(session, "add_schedule", name="a", procedure="counted", cron="* * * * *")
    clock.advance(MINUTE)
    monkeypatch.setitem(sys.modules, "cronsim", None)
    assert worker.run_due() == 1
    call(session, "enqueue", procedure="counted")
    assert worker.run_due() == 1
    [row] = rows(session, "show_schedules")
    assert (row["state"], len(counted.calls)) == ("waiting", 2)
    assert "pip install" in row["error"]
