"""The feed as a streaming query: checkpoints, sinks, triggers and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from polaris_spark.testing.waiting import PATIENCE_S
from tests.views.catalogs import Catalog

pytestmark = pytest.mark.spark

Feed = Callable[..., DataFrame]


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Catalog]:
    """A catalog with a table that was changed twenty times."""
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("db")
    catalog.table("db", "t")
    change(catalog, 20)
    yield catalog
    catalog.session.close()


@pytest.fixture
def feed(spark: SparkSession) -> Feed:
    """Return the feed of a store, in a new session each time."""

    def loaded(store: str, **options: str) -> DataFrame:
        named = {"catalog": "polaris", **{name.replace("_", "-"): text for name, text in options.items()}}
        reading = spark.newSession().readStream.format("polaris-objects")
        return reading.options(store=store, view="changes", **named).load()

    return loaded


def change(catalog: Catalog, times: int) -> None:
    for i in range(times):
        catalog.set_property("db", "t", "i", str(i))


def available(writer: DataStreamWriter) -> StreamingQuery:
    """Run a query until it has read all data that exists now."""
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    return query


def numbers(catalog: Catalog) -> list[int]:
    """Return the numbers of the commits that changed something. Here, each of them has one entry."""
    return sorted(row["number"] for row in catalog.read("changes"))


def test_a_file_sink_gets_every_change_once_over_restarts(
    spark: SparkSession, feed: Feed, busy: Catalog, tmp_path: Path
) -> None:
    for turn in range(4):
        frame = feed(busy.store, max_changes_per_batch="9")
        assert frame.isStreaming
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "sink"))
        available(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
        change(busy, 3 if turn < 2 else 0)
    found = spark.read.parquet(str(tmp_path / "sink"))
    expected = spark.read.format("polaris-objects").options(
        store=busy.store, view="changes", catalog="polaris"
    )
    assert found.columns == expected.load().columns
    assert sorted(row.number for row in found.collect()) == numbers(busy)


def test_a_sink_that_fails_half_way_gets_the_same_batch_again(
    feed: Feed, busy: Catalog, tmp_path: Path
) -> None:
    got: dict[int, list[list[int]]] = {}
    trouble = [1, 3]

    def sink(batch: DataFrame, id: int) -> None:
        got.setdefault(id, []).append(sorted(row.number for row in batch.collect()))
        if trouble and id == trouble[0]:
            trouble.pop(0)
            raise RuntimeError("the sink is full")

    def start() -> StreamingQuery:
        writer = feed(busy.store, max_changes_per_batch="5").writeStream.foreachBatch(sink)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="the sink is full"):
            start().awaitTermination(PATIENCE_S)
        change(busy, 4)
    query = start()
    query.processAllAvailable()
    query.stop()
    assert [len(batch) for batches in got.values() for batch in batches[:1]] == [5, 5, 5, 5, 5, 5]
    assert [len(batches) for batches in got.values()] == [1, 2, 1, 2, 1, 1]
    assert all(batches[0] == batches[-1] for batches in got.values())
    assert [number for batches in got.values() for number in batches[-1]] == numbers(busy)


def test_a_query_that_is_stopped_amid_commits_goes_on_where_it_was(
    spark: SparkSession, feed: Feed, busy: Catalog, tmp_path: Path
) -> None:
    writer = threading.Thread(target=change, args=(busy, 400))
    writer.start()
    while writer.is_alive():
        frame = feed(busy.store, max_changes_per_batch="60")
        sink = frame.writeStream.format("parquet").option("path", str(tmp_path / "sink"))
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        writer.join(timeout=2)
        query.stop()
    writer.join()
    frame = feed(busy.store)
    sink = frame.writeStream.format("parquet").option("path", str(tmp_path / "sink"))
    available(sink.option("checkpointLocation", str(tmp_path / "checkpoint")))
    available(sink.option("checkpointLocation", str(tmp_path / "checkpoint")))
    found = spark.read.parquet(str(tmp_path / "sink")).collect()
    assert sorted(row.number for row in found) == numbers(busy)


def test_an_audit_table_of_the_same_catalog_gets_its_own_commits_too_and_the_query_ends(
    spark: SparkSession, namespace: str, tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE {namespace}.audit (number BIGINT, position INT, action STRING, name STRING)")
    for turn in range(3):
        spark.sql(f"CREATE TABLE {namespace}.t{turn} (n BIGINT)")
        frame = spark.readStream.option("max-changes-per-batch", "1000000").table("polaris.system.changes")
        wanted = frame.select("number", "position", "action", "name")
        writer = wanted.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).toTable(f"{namespace}.audit")
        assert query.awaitTermination(PATIENCE_S)
    audit = spark.table(f"{namespace}.audit").collect()
    last = max(row.number for row in audit)
    log = spark.sql(f"SELECT number, position FROM polaris.system.changes WHERE number <= {last}").collect()
    assert sorted((row.number, row.position) for row in audit) == sorted(tuple(row) for row in log)
    # The first two runs each added a snapshot, which the next one read.
    assert [row.action for row in audit if row.name == "audit"].count("update-table") >= 2


def test_another_reference_is_followed_instead_of_the_sessions_branch(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.readStream.option("reference", "root").table("polaris.system.changes")
    sink = (
        frame.select("action", "reference")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "sink"))
    )
    available(sink.option("checkpointLocation", str(tmp_path / "checkpoint")))
    found = spark.read.parquet(str(tmp_path / "sink")).distinct().collect()
    assert found == [Row(action="create-reference", reference="root")]


def test_a_stream_that_has_read_trimmed_history_ends_with_an_error(
    feed: Feed, busy: Catalog, tmp_path: Path
) -> None:
    from tests.views.test_feed import trim

    sink = feed(busy.store, max_changes_per_batch="4").writeStream.format("noop")
    writer = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
    available(writer)
    trim(busy, 15)
    query = writer.start()
    message = r"HistoryTrimmedError: the stream has read .* \(number 4\), but .* begins with commit number 15"
    with pytest.raises(StreamingQueryException, match=message):
        query.awaitTermination(PATIENCE_S)


def test_a_reference_that_is_dropped_while_the_query_runs_ends_it_with_an_error(
    feed: Feed, busy: Catalog
) -> None:
    from polaris_spark.commits.change import Operation

    references, main = busy.session.catalog.references, busy.session.catalog.reference
    name = main.replace("main", "dev")
    references.create(name, Operation(b"", "ann"), source=references.read(main))
    query = feed(busy.store, branch="dev").writeStream.format("noop").start()
    query.processAllAvailable()
    references.drop(name, Operation(b"", "ann"))
    with pytest.raises(StreamingQueryException, match=r"branch 'dev' cannot be followed: it was dropped"):
        query.awaitTermination(PATIENCE_S)
