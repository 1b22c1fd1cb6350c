"""Files and rows that only a dropped branch needs exist as long as the branch can be restored, and no longer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.errors import NotFoundError
from polaris_spark.jobs.registry import call
from tests.maintenance.conftest import Open
from tests.maintenance.histories import SCHEMA, ids, rows
from tests.maintenance.test_lost_references import DELETING, age

ME = Operation(b"", "me")
HOUR_MS = 3_600_000


class Dropped:
    """A catalog with a dropped branch `dev`. Only this branch has the table `db.v`. The grace period is three hours."""

    def __init__(self, opened: Open, folder: Path) -> None:
        self._opened, self._folder = opened, folder
        self.clock = ManualClock(int(time.time() * 1_000))
        lake = opened(clock=self.clock, grace="3 h")
        lake.create_namespace("db")
        self._session = lake._opened
        self._references = self._session.catalog.references
        self._dev = head_name(self._session.catalog.row, "dev")
        self._references.create(self._dev, ME, source=self._session.catalog.head())
        opened(clock=self.clock, branch="dev").create_table("db.v", SCHEMA).append(rows(5))
        self._references.drop(self._dev, ME)

    def run(self, job: str, *, dry_run: bool = False) -> None:
        age(self._folder)
        call(self._session, job, **{**DELETING[job], "dry_run": dry_run})

    def bring_back(self) -> None:
        self._references.undrop(self._dev, ME)

    def ids(self) -> list[int]:
        branch = self._opened(clock=self.clock, branch="dev")
        return ids(branch.load_table("db.v"))


@pytest.fixture
def dropped(opened: Open, tmp_path: Path) -> Dropped:
    return Dropped(opened, tmp_path)


@pytest.mark.parametrize("job", DELETING)
@pytest.mark.parametrize("hours", [0, 4])
def test_a_restored_branch_has_its_files(dropped: Dropped, job: str, hours: int) -> None:
    dropped.clock.advance(hours * HOUR_MS)
    dropped.run(job, dry_run=True)
    dropped.bring_back()
    dropped.run(job)
    assert dropped.ids() == [5]


@pytest.mark.parametrize("job", DELETING)
def test_after_the_grace_period_a_branch_cannot_be_restored(dropped: Dropped, job: str) -> None:
    dropped.clock.advance(2 * HOUR_MS)
    dropped.run(job)
    dropped.clock.advance(2 * HOUR_MS)
    dropped.run(job)
    with pytest.raises(NotFoundError, match="longer ago than the grace"):
        dropped.bring_back()
