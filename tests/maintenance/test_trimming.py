"""History is trimmed by age in every live reference, but never while other functions need it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import count
from pathlib import Path

import pytest

import polaris_spark
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import commits
from polaris_spark.commits.rows import Commit
from polaris_spark.errors import InputError, TaskRunningError, TryAgainError
from polaris_spark.jobs.procedure import Call
from polaris_spark.jobs.registry import call, find
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.trim import trim
from polaris_spark.names import MAIN
from polaris_spark.rest.session import Session
from polaris_spark.system.registry import ROOT
from polaris_spark.system.registry_changes import CreateReference
from polaris_spark.system.tasks import Tasks

DAY = 86_400_000
_numbers = count()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def session(tmp_path: Path, clock: ManualClock) -> Iterator[Session]:
    with polaris_spark.connect(
        store=f"memory:trimming-{next(_numbers)}", warehouse=str(tmp_path), clock=clock
    ) as opened:
        yield opened


def change(session: Session, name: str) -> None:
    status, _, body = session.request("POST", "v1/namespaces", body=json.dumps({"namespace": [name]}))
    assert status == 200, body


def days(session: Session, clock: ManualClock, n: int) -> None:
    """Commit once a day, for `n` days."""
    for day in range(n):
        change(session, f"day{day}")
        clock.advance(DAY)


def kept(session: Session) -> list[Commit]:
    """Return the commits of the catalog's branch, newest first."""
    head = session.catalog.head().head
    return [commit for _, commit in commits(session.catalog.references.store, head)]


def test_the_state_at_the_beginning_of_the_retention_is_still_readable(
    session: Session, clock: ManualClock
) -> None:
    days(session, clock, 6)
    limit = clock.now_ms() - 3 * DAY
    branch = head_name(session.catalog.row, MAIN)
    rows = {row[0]: row[1:] for row in call(session, "trim")}
    before, after, time = rows[branch]
    assert (before, after) == (0, 4)
    assert time == datetime.fromtimestamp(kept(session)[-1].time / 1_000, timezone.utc)
    assert kept(session)[-1].time <= limit < kept(session)[-2].time
    assert [commit.number for commit in kept(session)] == [6, 5, 4]
    assert ROOT in rows
    assert call(session, "trim") == []


def test_a_dry_run_changes_nothing(session: Session, clock: ManualClock) -> None:
    days(session, clock, 6)
    would = call(session, "trim", dry_run=True, retention="1 d")
    assert len(kept(session)) == 7
    assert call(session, "trim", retention="1 d") == would


def test_a_dry_run_completes_no_reference_whose_creator_died(session: Session, clock: ManualClock) -> None:
    days(session, clock, 6)
    references = session.catalog.references
    operation = Operation(b"", "creator")
    registered = references.root.commit(
        CreateReference("late", operation, session.catalog.head(), references)
    )
    backend, realm = references.store.backend, references.store.realm
    would = trim(references, Policy(DAY, 0), dry_run=True)
    assert "late" in [trimmed.reference for trimmed in would]
    assert backend.read_reference(realm, registered.row_name) is None
    assert trim(references, Policy(DAY, 0)) == would
    assert backend.read_reference(realm, registered.row_name) is not None


def test_young_history_is_left_alone(session: Session, clock: ManualClock) -> None:
    change(session, "db")
    assert call(session, "trim") == []
    clock.advance(2 * DAY)
    assert call(session, "trim", retention="3 d") == []


def test_young_history_is_kept_even_if_a_clock_that_was_behind_made_a_later_commit(
    session: Session, clock: ManualClock
) -> None:
    change(session, "old")
    clock.advance(30 * DAY)
    change(session, "young")
    now = clock.now_ms()
    clock.set_wall(now - 20 * DAY)
    change(session, "behind")
    clock.set_wall(now)
    change(session, "last")
    before = kept(session)
    assert [commit.time > clock.now_ms() - DAY for commit in before[:3]] == [True, False, True]
    call(session, "trim", retention="8 d")
    assert kept(session) == before[:4]
    assert not list(call(session, "fsck"))
    clock.advance(9 * DAY)
    call(session, "trim", retention="8 d")
    assert kept(session) == before[:1]


def test_a_head_by_a_clock_that_was_behind_may_be_older_than_the_floor_of_its_history(
    session: Session, clock: ManualClock
) -> None:
    days(session, clock, 20)
    call(session, "trim", retention="8 d")
    now = clock.now_ms()
    clock.set_wall(now - 15 * DAY)
    change(session, "behind")
    clock.set_wall(now)
    head = session.catalog.head().head
    assert head.time < head.floor_time
    assert not list(call(session, "fsck"))


@pytest.mark.parametrize(("retention", "said"), [("1 h", "grace"), ("1 min", "grace"), ("soon", "duration")])
def test_features_that_need_history_set_a_minimum_retention(
    session: Session, retention: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        call(session, "trim", retention=retention)


def test_a_repeated_operation_is_recognised_as_long_as_was_promised(tmp_path: Path) -> None:
    with (
        polaris_spark.connect(
            store="memory:trimming-operations",
            warehouse=str(tmp_path),
            grace="1 s",
            idempotency_key_lifetime="1 h",
        ) as session,
        pytest.raises(InputError, match="idempotency-key-lifetime"),
    ):
        call(session, "trim", retention="10 min")


def test_dropped_references_stay_whole(session: Session, clock: ManualClock) -> None:
    references = session.catalog.references
    operation = polaris_spark.commits.change.Operation(b"", "tester")
    source = session.catalog.head()
    references.create("other", operation, source=source)
    days(session, clock, 5)
    dropped = references.drop("other", operation)
    trimmed = trim(references, Policy(DAY, 0))
    assert "other" not in [one.reference for one in trimmed]
    assert references.sealed_head(dropped).floor_number == source.head.floor_number


def test_it_is_refused_while_it_runs_elsewhere_or_waits(session: Session, clock: ManualClock) -> None:
    realm = session.catalog.references.store.realm
    held = Tasks(session.connection.backend, clock).acquire("trim", realm, holder="cron", renew=False)
    with pytest.raises(TaskRunningError, match="cron"):
        call(session, "trim")
    calls = Call(session, watch=lambda doing, *_: held.release() if "waiting" in doing else None)
    assert find("trim").rows(calls, {"wait": True}) == []
    record = Tasks(session.connection.backend, clock).find("trim", realm)
    assert record is not None
    assert (record.outcome, record.doing) == ("done", "trimming references")


def test_a_cancelled_wait_ends(session: Session, clock: ManualClock) -> None:
    realm = session.catalog.references.store.realm
    Tasks(session.connection.backend, clock).acquire("trim", realm, renew=False)
    waiting = Call(session)
    waiting.cancel()
    with pytest.raises(TryAgainError, match="cancelled"):
        find("trim").rows(waiting, {"wait": True})


def test_a_branch_can_keep_its_history_for_longer_or_a_number_of_commits(
    session: Session, clock: ManualClock
) -> None:
    days(session, clock, 20)
    for name in ("usual", "longer", "counted"):
        call(session, "create_branch", name=name)
    call(session, "alter_branch", name="longer", retention="10 d")
    call(session, "alter_branch", name="counted", keep_commits=15)
    call(session, "trim")
    catalog = session.catalog

    def numbers(name: str) -> tuple[int, int]:
        head = catalog.references.read(head_name(catalog.row, name)).head
        return head.floor_number, head.number

    usual, newest = numbers("usual")
    assert newest - usual < 5
    assert usual - numbers("longer")[0] == 7
    assert numbers("counted") == (newest - 15, newest)
    shown = {row[0]: row[-3:-1] for row in call(session, "show_branches")}
    assert (shown["longer"], shown["counted"]) == (("10 d", None), (None, 15))
    call(session, "drop_branch", name="counted")
    call(session, "undrop_branch", name="counted")
    call(session, "alter_branch", name="longer", retention="0 s")
    call(session, "trim")
    assert (numbers("counted")[0], numbers("longer")[0]) == (newest - 15, usual)
    call(session, "alter_branch", name="counted", keep_commits=1_000)
    call(session, "trim")
    assert numbers("counted")[0] == newest - 15
    with pytest.raises(InputError, match="must not be negative"):
        call(session, "alter_branch", name="counted", keep_commits=-1)
