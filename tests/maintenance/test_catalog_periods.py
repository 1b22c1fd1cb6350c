"""The jobs of a realm keep history, rows and dropped branches for the periods of each catalog."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark import Session, connect
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.errors import NotFoundError
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.periods import own_policy, realm_policy
from tests.maintenance.lakes import ROWS, Lake

ME = Operation(b"", "me")
HOUR = 3_600_000
DAY = 24 * HOUR


class Realm:
    """Two catalogs of a realm: `long` keeps everything for ten days, and `short` has no setting."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: list[Session] = []
        self.clock = ManualClock(int(time.time() * 1_000))
        self.long = self.open("long", history_retention="10 d", grace="10 d")
        self.short = self.open("short")

    def open(self, name: str, **properties: Any) -> Session:
        given = {"catalog": name, "metadata_files": "never", **properties}
        warehouse = str(self._folder / name)
        self._opened.append(
            connect(store=f"sqlite://{self._folder}/c.db", warehouse=warehouse, clock=self.clock, **given)
        )
        return self._opened[-1]

    def change(self) -> None:
        """Commit once to each catalog."""
        for session in (self.long, self.short):
            number = session.catalog.head().commit.number
            status, _, _ = session.request("POST", "v1/namespaces", body=f'{{"namespace": ["n{number}"]}}')
            assert status == 200

    def drop_branches(self) -> None:
        """In each catalog, create a branch, commit to it, and drop it."""
        for session in (self.long, self.short):
            references, name = session.catalog.references, head_name(session.catalog.row, "dev")
            references.create(name, ME, source=session.catalog.head())
            references.drop(name, ME)

    def undrop(self, session: Session) -> None:
        session.catalog.references.undrop(head_name(session.catalog.row, "dev"), ME)

    def close(self) -> None:
        for session in self._opened:
            session.close()


@pytest.fixture
def realm(tmp_path: Path) -> Iterator[Realm]:
    made = Realm(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("job", ["sweep", "trim"])
@pytest.mark.parametrize("arguments", [{}, {"retention": "3 h"}])
def test_history_is_kept_as_each_catalog_says(realm: Realm, job: str, arguments: dict[str, str]) -> None:
    realm.change()
    realm.clock.advance(5 * DAY)
    realm.change()
    call(realm.short, job, **arguments)
    assert realm.long.catalog.head().head.floor_number == 0
    assert realm.short.catalog.head().head.floor_number > 0
    realm.clock.advance(7 * DAY)
    call(realm.short, job, **arguments)
    assert realm.long.catalog.head().head.floor_number > 0


@pytest.mark.parametrize("job", ["sweep", "expire", "purge_dropped", "remove_orphans"])
def test_dropped_branches_can_be_brought_back_as_each_catalog_says(realm: Realm, job: str) -> None:
    realm.change()
    realm.drop_branches()
    realm.clock.advance(5 * DAY)
    call(realm.short, job, dry_run=False)
    realm.undrop(realm.long)
    with pytest.raises(NotFoundError, match="dev"):
        realm.undrop(realm.short)


def test_a_session_and_its_jobs_can_only_keep_for_longer(realm: Realm) -> None:
    catalog = realm.open("long", history_retention="20 d", grace="1 h").catalog
    assert own_policy(catalog)[:2] == (20 * DAY, 10 * DAY)
    policy = realm_policy(catalog, retention_ms=DAY, grace_ms=DAY)
    assert (policy.retention_of(catalog.reference), policy.grace_of(catalog.reference)) == (
        10 * DAY,
        10 * DAY,
    )
    assert (policy.retention_of(realm.short.catalog.reference), policy.rows_ms) == (DAY, 10 * DAY)
    assert policy.retention_of("root") == policy.retention_of("catalogs") == 10 * DAY
    assert policy.shortest_grace_ms == DAY


def test_a_catalog_may_keep_for_less_than_sessions_do_by_default(realm: Realm) -> None:
    realm.short.set_catalog_properties({"grace": "1 h", "history-retention": "1 h"})
    other = realm.open("short").catalog
    assert own_policy(other)[:2] == (HOUR, HOUR)
    realm.change()
    realm.drop_branches()
    realm.clock.advance(2 * HOUR)
    call(realm.long, "sweep")
    with pytest.raises(NotFoundError, match="dev"):
        realm.undrop(realm.short)
    realm.undrop(realm.long)


def test_files_of_purged_tables_are_kept_as_their_own_catalog_says(tmp_path: Path) -> None:
    clock = ManualClock(int(time.time() * 1_000))
    lake = Lake(f"sqlite://{tmp_path}/c.db", tmp_path / "w", grace="1 h", clock=clock)
    other = connect(
        store=f"sqlite://{tmp_path}/c.db", warehouse=str(tmp_path / "w2"), catalog="other", clock=clock
    )
    table = lake.table("t")
    session = lake.session
    session.catalog.references.create(
        head_name(session.catalog.row, "dev"), ME, source=session.catalog.head()
    )
    before = lake.files()
    lake.catalog.purge_table("db.t")
    assert lake.files() >= before  # another branch may need them
    session.catalog.references.drop(head_name(session.catalog.row, "dev"), ME)
    session.set_catalog_properties({"grace": "10 d"})
    clock.advance(5 * DAY)
    call(session, "purge_dropped")
    assert lake.files() >= before
    lake.old(30)
    call(other, "remove_orphans", location=str(tmp_path / "w"), dry_run=False)
    assert lake.files() >= before
    clock.advance(6 * DAY)
    call(session, "purge_dropped")
    assert not {
        file for file in lake.files() & before if table.name()[1] in str(file) and file.suffix == ".parquet"
    }
    other.close()
    lake.close()


def test_the_rows_of_a_realm_are_kept_for_its_longest_grace_period(realm: Realm) -> None:
    realm.change()
    realm.clock.advance(5 * DAY)
    deleted = call(realm.short, "sweep", retention="3 h", grace="1 h", dry_run=True)
    assert {row[1] for row in deleted} == {None}
    realm.long.set_catalog_properties({"grace": "1 h"})
    assert realm_policy(realm.short.catalog, grace_ms=HOUR).rows_ms == HOUR


def test_another_catalogs_job_keeps_files_of_a_catalog_without_garbage_collection(tmp_path: Path) -> None:
    lake = Lake(f"sqlite://{tmp_path}/c.db", tmp_path / "w", **{"gc.enabled": "false"})
    lake.table("t").append(ROWS)
    stray = lake.stray(Path("db") / "stray.parquet")
    lake.old(30)
    files = lake.files()
    session = connect(
        store=f"sqlite://{tmp_path}/c.db", catalog="lake", create=False, **{"gc.enabled": "true"}
    )
    call(session, "remove_orphans", dry_run=False)
    assert lake.files() == files
    assert stray.exists()
    session.set_catalog_properties(removals=["gc.enabled"])
    call(session, "remove_orphans", dry_run=False)
    assert not stray.exists()
    session.close()
    lake.close()


def test_another_catalogs_job_keeps_strays_in_the_warehouse_of_one_without_garbage_collection(
    tmp_path: Path,
) -> None:
    lake = Lake(f"sqlite://{tmp_path}/c.db", tmp_path / "w", **{"gc.enabled": "false"})
    stray = lake.stray(Path("db") / "stray.parquet")
    other = connect(store=f"sqlite://{tmp_path}/c.db", warehouse=str(tmp_path / "w2"), catalog="other")
    for gone in (False, True):
        if gone:
            lake.session.set_catalog_properties({"gc.enabled": "true"})
        call(other, "remove_orphans", location=str(tmp_path / "w"), dry_run=False)
        assert stray.exists() is not gone
    other.close()
    lake.close()


def test_copies_are_sound_and_outlast_a_sweep(realm: Realm) -> None:
    for grace in ("1 h", "2 h", "3 h"):
        realm.short.set_catalog_properties({"grace": grace, "gc.enabled": "false"})
    realm.long.set_catalog_properties({"gc.enabled": "false"}, removals=["grace", "history-retention"])
    assert call(realm.short, "fsck") == []
    realm.clock.advance(30 * DAY)
    realm.change()
    realm.clock.advance(30 * DAY)
    assert sum(row[2] for row in call(realm.long, "sweep", clock_is_right=True) if row[1] == "catalog") > 0
    assert call(realm.short, "fsck") == []
    for name in ("long", "short"):
        assert realm.open(name).catalog.effective_properties().retention == {"gc.enabled": "false"}
