"""A sweep on executors deletes the same rows as a sweep without Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import polaris_spark
from polaris_spark.backends.base import ObjectKey
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.engine import LocalEngine, Reach
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.errors import CorruptionError, InputError, TaskRunningError
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.periods import Policy
from polaris_spark.rest.session import Session
from polaris_spark.spark.engine import SparkEngine
from polaris_spark.spark.garbage import garbage
from polaris_spark.spark.options import location_of
from polaris_spark.system.tasks import Tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HOUR = 3_600_000
ME = Operation(b"", "me")
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "n", "required": False, "type": "long"}]}


def connected(directory: Path, clock: ManualClock, name: str = "catalog.db", **properties: Any) -> Session:
    return polaris_spark.connect(
        store=f"sqlite://{directory / name}",
        warehouse=str(directory / "warehouse"),
        metadata_files="never",
        clock=clock,
        **properties,
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def session(tmp_path: Path, clock: ManualClock) -> Iterator[Session]:
    """A catalog with old garbage of many kinds."""
    with connected(tmp_path, clock) as session:
        post(session, "v1/namespaces", '{"namespace": ["db"]}')
        for n in range(12):
            create(session, n)
        text = "x" * 900_000
        for n, value in [*((n % 3, text if n < 3 else "y") for n in range(6)), (3, text), (4, "z")]:
            post(session, f"v1/namespaces/db/tables/t{n}", json.dumps(changing(value)))
        references, row = session.catalog.references, session.catalog.row
        branch = head_name(row, "branch")
        references.create(branch, ME, source=session.catalog.head())
        with connected(tmp_path, clock, branch="branch") as other:
            create(other, 99)
        references.drop(branch, ME)
        for n in range(0, 12, 2):
            assert session.request("DELETE", f"v1/namespaces/db/tables/t{n}")[0] == 204
        clock.advance(100 * HOUR)
        create(session, 100)
        clock.advance(100 * HOUR)
        yield session


def changing(value: str) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": value}}]}


def post(session: Session, path: str, body: str) -> None:
    status, _, answer = session.request("POST", path, body=body)
    assert status == 200, answer


def create(session: Session, n: int) -> None:
    post(session, "v1/namespaces/db/tables", json.dumps({"name": f"t{n}", "schema": SCHEMA}))


def keys(session: Session) -> dict[ObjectKey, int]:
    """Return the keys of all rows, with the bytes of each row."""
    store = session.catalog.references.store
    found = {}
    for split in store.backend.splits("objects", [store.realm], 1):
        for batch in store.backend.scan(split):
            columns = (batch.column(name).to_pylist() for name in ("id", "part", "value"))
            found |= {ObjectKey(id, part): len(value) for id, part, value in zip(*columns, strict=True)}
    return found


def test_both_delete_the_same(
    spark: SparkSession, session: Session, tmp_path: Path, clock: ManualClock
) -> None:
    before = keys(session)
    for file in tmp_path.glob("catalog.db*"):
        shutil.copy(file, tmp_path / file.name.replace("catalog", "copy"))
    with connected(tmp_path, clock, "copy.db") as copy:
        assert keys(copy) == before
        alone = call(copy, "sweep")
        job = call(session, "sweep", spark=spark)
        assert [row[:6] for row in alone] == [row[:6] for row in job]
        gone = before.keys() - keys(session).keys()
        assert gone == before.keys() - keys(copy).keys()
        assert sum(row[3] for row in job) == len(gone) > 50
        assert sum(row[4] for row in job) == sum(before[key] for key in gone)
        assert {row[1] for row in job} >= {"table", "commit", "entries"}
        assert any(key.part for key in gone)
        for n in (1, 3, 100):
            assert copy.request("GET", f"v1/namespaces/db/tables/t{n}")[0] == 200
    assert [row[1:5] for row in call(session, "sweep", spark=spark)] == [(None, 0, 0, 0)]


def test_the_rows_to_delete_are_a_data_frame(
    spark: SparkSession, session: Session, clock: ManualClock
) -> None:
    properties, references = session.properties, session.catalog.references
    policy = Policy(properties.history_retention, properties.grace)
    before = keys(session)
    local = LocalEngine(Reach(references.store, session.catalog.files))
    engine = SparkEngine(lambda: spark, location_of(properties).resolved(), {}, local, realm=properties.realm)
    shown = garbage(engine, references, policy).collect()
    assert call(session, "sweep", dry_run=True)[0][5] is False
    said = call(session, "sweep", spark=spark, dry_run=True)
    assert keys(session) == before
    assert sum(row[3] for row in said) == len(shown)
    done = call(session, "sweep", spark=spark)
    assert {ObjectKey(row.id, row.part) for row in shown} == before.keys() - keys(session).keys()
    assert all(row.bytes == before[ObjectKey(row.id, row.part)] for row in shown)
    assert all(100 * HOUR <= row.age <= 201 * HOUR for row in shown)
    assert [row[:5] for row in said] == [row[:5] for row in done]
    assert all(row.type for row in shown)


def test_nothing_is_deleted_where_something_needed_is_missing(spark: SparkSession, session: Session) -> None:
    references = session.catalog.references
    lost = references.read(session.catalog.reference).head.commit
    row = references.store.backend.read_objects(references.store.realm, [ObjectKey(lost)])
    entries = references.read(session.catalog.reference).commit.entries
    references.store.backend.delete_objects(references.store.realm, [ObjectKey(entries)])
    assert row
    before = keys(session)
    for given in (None, spark):
        with pytest.raises(CorruptionError, match=f"{entries} is missing; object {lost} points to it"):
            call(session, "sweep", spark=given)
    assert keys(session).keys() >= before.keys()


def test_a_retention_below_grace_is_refused(session: Session) -> None:
    before = keys(session)
    with pytest.raises(InputError, match="grace"):
        call(session, "sweep", retention="1 h", grace="2 h")
    assert keys(session) == before


def test_a_retention_of_ages_keeps_all_history(session: Session) -> None:
    rows = call(session, "sweep", retention="1000000 d")
    assert all(row[5] for row in rows)
    assert {row[7] for row in rows} == {datetime(1970, 1, 1, tzinfo=timezone.utc)}


def test_one_sweep_of_a_realm_runs_at_a_time(session: Session, clock: ManualClock) -> None:
    realm = session.catalog.references.store.realm
    held = Tasks(session.connection.backend, clock).acquire("sweep", realm, holder="another", renew=False)
    with pytest.raises(TaskRunningError, match="another"):
        call(session, "sweep")
    held.release()
    assert call(session, "sweep")


def test_a_store_in_memory_is_swept_by_this_process(spark: SparkSession, clock: ManualClock) -> None:
    with polaris_spark.connect(
        store="memory:swept", warehouse="/w", metadata_files="never", clock=clock
    ) as session:
        post(session, "v1/namespaces", '{"namespace": ["db"]}')
        create(session, 1)
        clock.advance(100 * HOUR)
        create(session, 2)
        clock.advance(100 * HOUR)
        assert sum(row[2] for row in call(session, "sweep", spark=spark)) > 0
        assert session.request("GET", "v1/namespaces/db/tables/t1")[0] == 200


def test_the_sweep_job_can_be_called_by_sql(spark: SparkSession) -> None:
    rows = spark.sql("CALL polaris.system.sweep(dry_run => true, grace => '3 h')").collect()
    assert all(row.deleted is False for row in rows)
