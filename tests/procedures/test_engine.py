"""The engine of a job calls a function for many items, in this process or on executors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

import polaris_spark
from polaris_spark.catalog.engine import LocalEngine
from polaris_spark.errors import TryAgainError
from polaris_spark.jobs.engine import engine_of
from polaris_spark.jobs.procedure import Call
from polaris_spark.jobs.stored_sizes import storage
from polaris_spark.maintenance.file_deletion import FindAbsent
from polaris_spark.rest.session import Session
from polaris_spark.spark.engine import SparkEngine

ITEMS = 2 * FindAbsent.few + 8


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    store = f"sqlite://{tmp_path}/store.db"
    with polaris_spark.connect(store=store, warehouse=str(tmp_path / "warehouse")) as session:
        yield session


@pytest.fixture(params=["here", "executors"])
def spark_or_none(request: pytest.FixtureRequest) -> SparkSession | None:
    return request.getfixturevalue("spark") if request.param == "executors" else None


def call_of(session: Session, spark: SparkSession | None, told: list[tuple[str, int, int]]) -> Call:
    watch = lambda *step: told.append(step)  # noqa: E731  # as short as its use
    return Call(session, None if spark is None else lambda: spark, watch)


def items(directory: Path) -> list[list[str]]:
    """Paths of files. Every second file exists."""
    for n in range(0, ITEMS, 2):
        (directory / f"file{n}").touch()
    return [[f"file://{directory}/file{n}"] for n in range(ITEMS)]


def test_results_and_progress_come_in_the_order_of_the_items(
    session: Session, spark_or_none: SparkSession | None, tmp_path: Path
) -> None:
    told: list[tuple[str, int, int]] = []
    looked_for = items(tmp_path)
    engine = engine_of(call_of(session, spark_or_none, told))
    assert isinstance(engine, SparkEngine if spark_or_none else LocalEngine)
    found = engine.map(FindAbsent(), looked_for, "looking")
    assert list(found) == [one if n % 2 else [] for n, one in enumerate(looked_for)]
    assert told == [("looking", n, ITEMS) for n in range(ITEMS + 1)]


def test_a_cancelled_call_ends_the_work(
    session: Session, spark_or_none: SparkSession | None, tmp_path: Path
) -> None:
    told: list[tuple[str, int, int]] = []
    call = call_of(session, spark_or_none, told)
    found = engine_of(call).map(FindAbsent(), items(tmp_path), "looking")
    next(found)
    call.cancel()
    with pytest.raises(TryAgainError, match="cancelled"):
        next(found)
    assert list(found) == []
    assert len(told) == 2


def test_a_sum_of_the_stored_data_is_cancelled_between_splits(session: Session) -> None:
    def watch(_: str, done: int, __: int) -> None:
        if done:
            call.cancel()

    call = Call(session, watch=watch)
    with pytest.raises(TryAgainError, match="cancelled"):
        storage(engine_of(call), session.connection.clock.now_ms())


def test_few_items_start_no_spark_job(session: Session, tmp_path: Path) -> None:
    def no_spark() -> SparkSession:
        raise AssertionError("there are only a few items")

    engine = engine_of(Call(session, no_spark))
    assert isinstance(engine, SparkEngine)
    assert len(list(engine.map(FindAbsent(), items(tmp_path)[: FindAbsent.few]))) == FindAbsent.few


def test_rows_that_a_failed_function_was_reading_can_be_released(session: Session) -> None:
    def fail(_: Any, rows: Iterator[Any]) -> Iterator[Any]:
        next(rows)
        yield 1 / 0

    engine = engine_of(Call(session))
    found = engine.rows(((1,), (2,)), "id bigint")
    with pytest.raises(ZeroDivisionError) as failed:
        engine.apply(fail, found, "id bigint")
    found.release()
    assert failed.value.__traceback__ is not None, "the error still holds the unfinished query"


def test_every_item_is_done_once_while_executors_come(
    session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def batches(engine: SparkEngine, function: Any, table: Any, _: str) -> SimpleNamespace:
        rows = [row for batch in function(engine.reach, table.to_batches()) for row in batch.to_pylist()]
        return SimpleNamespace(collect=lambda: [tuple(row.values()) for row in rows])

    cores = count(2)
    monkeypatch.setattr(SparkEngine, "parts", property(lambda _: next(cores)))
    monkeypatch.setattr(SparkEngine, "batches", batches)
    looked_for = items(tmp_path)
    engine = engine_of(Call(session, lambda: SimpleNamespace(createDataFrame=lambda table: table)))  # type: ignore[arg-type, return-value]  # a session that calls functions in this process
    assert list(engine.map(FindAbsent(), looked_for)) == [
        one if n % 2 else [] for n, one in enumerate(looked_for)
    ]


@pytest.mark.parametrize(
    ("scope", "reads", "writes"),
    [
        ("process", LocalEngine, LocalEngine),
        ("writer", SparkEngine, LocalEngine),
        ("machine", SparkEngine, SparkEngine),
    ],
)
def test_executors_are_used_where_they_can_access_the_store(
    session: Session, monkeypatch: pytest.MonkeyPatch, scope: str, reads: type, writes: type
) -> None:
    backend = session.connection.backend
    monkeypatch.setattr(type(backend), "scope", scope)
    call = Call(session, lambda: pytest.fail("no Spark session is needed yet"))
    assert type(engine_of(call)) is reads
    assert type(engine_of(call, writes_to=backend)) is writes
