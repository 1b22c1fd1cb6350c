"""`CALL polaris.system.<procedure>(...)` from SQL."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Row, SparkSession

import polaris_spark
from polaris_spark.catalog.tables.metadata_export import Export
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.spark.catalogs import add_catalog
from tests.spark.probes import install
from tests.spark.processes import bridge_processes

if TYPE_CHECKING:
    from conftest import CatalogPlace

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def probes(
    spark: SparkSession, place: CatalogPlace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A catalog whose interpreter has the procedures of `tests.spark.probes`."""
    spark.sql("SHOW NAMESPACES IN polaris").collect()
    before = set(bridge_processes(spark))
    python = install(tmp_path_factory.mktemp("probes"))
    yield add_catalog(spark, store=place.store, warehouse=f"{place.warehouse}-probes", python=str(python))
    for process in set(bridge_processes(spark)) - before:
        os.kill(process, signal.SIGKILL)
    wait_until(lambda: set(bridge_processes(spark)) == before, "no other process is left", every_s=0.05)


def call(spark: SparkSession, statement: str) -> list[Row]:
    return spark.sql(f"CALL {statement}").collect()


def refusal(spark: SparkSession, statement: str) -> str:
    """Return the error message of a call, which must be this package's, without a stack trace."""
    with pytest.raises(PySparkException) as caught:
        call(spark, statement)
    assert "Traceback" not in str(caught.value)
    assert "\tat " not in str(caught.value)
    return str(caught.value)


def test_procedures_of_polaris_spark_and_of_iceberg_are_both_available(
    spark: SparkSession, namespace: str
) -> None:
    listed = [row.procedure_name for row in spark.sql("SHOW PROCEDURES IN polaris.system").collect()]
    assert len(listed) == len(set(listed))
    assert {"expire_snapshots", "rewrite_data_files", "storage_summary"} <= set(listed)
    spark.sql(f"CREATE TABLE {namespace}.t AS SELECT 1 AS n")
    table = namespace.rpartition(".")[2] + ".t"
    assert len(call(spark, f"polaris.system.ancestors_of('{table}')")) == 1
    spark.sql(f"INSERT INTO {namespace}.t VALUES (2)")
    rewritten = call(spark, f"polaris.system.rewrite_manifests(table => '{table}')")
    assert rewritten[0].rewritten_manifests_count == 2


def test_there_are_no_procedures_outside_of_system(spark: SparkSession, namespace: str) -> None:
    assert spark.sql(f"SHOW PROCEDURES IN {namespace}").collect() == []
    with pytest.raises(AnalysisException):
        call(spark, f"{namespace}.storage_summary()")


def test_a_call_is_described_and_explained_without_being_made(spark: SparkSession, probes: str) -> None:
    described = spark.sql(f"DESCRIBE PROCEDURE {probes}.system.storage_summary").collect()
    assert "Show how much data the realm stores" in str(described)
    assert "Call" in str(spark.sql(f"EXPLAIN CALL {probes}.system.probe_fail('die')").collect())
    assert len(call(spark, f"{probes}.system.probe_many(1)")) == 1


def test_storage_summary_counts_all_stored_rows(spark: SparkSession, namespace: str) -> None:
    spark.sql(f"CREATE TABLE {namespace}.t (n INT)")
    rows = {row.type: row for row in call(spark, "polaris.system.Storage_Summary()")}
    assert rows["table"].objects >= 1
    assert rows["table"].bytes > 100
    assert rows["commit"].age == "under 1 hour"


def without_files(spark: SparkSession, place: CatalogPlace, directory: Path) -> str:
    """A catalog that writes no metadata files, with a namespace `d.b`."""
    name = add_catalog(spark, store=place.store, warehouse=str(directory), metadata_files="never")
    spark.sql(f"CREATE NAMESPACE {name}.`d.b`")
    return name


def test_exported_files_can_be_read_without_the_catalog(
    spark: SparkSession, place: CatalogPlace, tmp_path: Path
) -> None:
    name = without_files(spark, place, tmp_path)
    spark.sql(f"CREATE TABLE {name}.`d.b`.t AS SELECT 1 AS n")
    spark.sql(f"CREATE VIEW {name}.`d.b`.v AS SELECT n FROM {name}.`d.b`.t")
    [row] = call(spark, f"{name}.system.export_metadata(table => '`d.b`.t')")
    assert row.asDict() == {
        "table": "`d.b`.t",
        "kind": "table",
        "metadata_location": row.metadata_location,
        "outcome": "written",
    }
    assert spark.read.format("iceberg").load(row.metadata_location).collect() == [Row(n=1)]
    rest = call(spark, f"{name}.system.export_metadata(namespace => '`d.b`')")
    assert {(one.table, one.kind, one.outcome) for one in rest} == {
        ("`d.b`.t", "table", "unchanged"),
        ("`d.b`.v", "view", "written"),
    }
    said = refusal(spark, f"{name}.system.export_metadata(table => '`d.b`.nosuch')")
    assert "there is no table or view d.b.nosuch" in said


def test_many_tables_are_exported_by_a_job(spark: SparkSession, place: CatalogPlace, tmp_path: Path) -> None:
    name = without_files(spark, place, tmp_path / "warehouse")
    with polaris_spark.connect(store=place.store, catalog=name, metadata_files="never") as session:
        for n in range(Export.few + 2):
            body = json.dumps({"name": f"t{n}", "schema": {"type": "struct", "fields": []}})
            assert session.request("POST", "v1/namespaces/d.b/tables", body=body)[0] == 200
        jobs = JobCount(spark)
        exported = f"{name}.system.export_metadata(location => '{tmp_path / 'files'}')"
        rows = call(spark, exported)
        assert jobs.since() > 0
        assert {row.outcome for row in rows} == {"written"}
        for row in rows:
            path = f"v1/namespaces/d.b/tables/{row.table.rpartition('.')[2]}"
            served = json.loads(session.request("GET", path)[2])["metadata"]
            assert json.loads(Path(row.metadata_location.removeprefix("file://")).read_text()) == served
        assert {row.outcome for row in call(spark, exported)} == {"unchanged"}
        Path(rows[7].metadata_location.removeprefix("file://")).write_text("[]")
        assert (
            f"1 of {Export.few + 2} metadata files were not written, for example {rows[7].table}"
            in refusal(spark, exported)
        )


class JobCount:
    """Counts the jobs that a session's JVM starts."""

    def __init__(self, spark: SparkSession) -> None:
        scala: Any = spark.sparkContext._jsc.sc()
        self._next = scala.dagScheduler().nextJobId
        self._begun = self._next()

    def since(self) -> int:
        """Return the number of jobs since the last call."""
        return int(self._next() - self._begun)


def test_values_of_every_type_come_back_as_they_were_given(spark: SparkSession, probes: str) -> None:
    given = {
        "a_string": "'ü𝄞 \\' \\n \\\\ $' '{x} <y>'",
        "a_boolean": "false",
        "a_int": "-2147483648",
        "a_bigint": "9223372036854775807",
        "a_double": "-1.5D",
        "a_timestamp": "TIMESTAMP '2026-05-04 03:02:01.987654'",
        "a_array": "array('a', CAST(NULL AS STRING), '')",
        "a_map": "map('k', 'v', 'n', CAST(NULL AS STRING))",
    }
    named = ", ".join(f"{name} => {value}" for name, value in given.items())
    [row] = call(spark, f"{probes}.system.probe_echo({named})")
    assert row.a_timestamp == datetime(2026, 5, 4, 3, 2, 1, 987_654, tzinfo=timezone.utc).replace(tzinfo=None)
    assert row.asDict() == {
        "a_string": "ü𝄞 ' \n \\ ${x} <y>",
        "a_boolean": False,
        "a_int": -(1 << 31),
        "a_bigint": (1 << 63) - 1,
        "a_double": -1.5,
        "a_timestamp": row.a_timestamp,
        "a_array": ["a", None, ""],
        "a_map": {"k": "v", "n": None},
    }
    assert call(spark, f"{probes}.system.probe_echo({', '.join(given.values())})") == [row]


def test_numbers_that_are_none_come_back(spark: SparkSession, probes: str) -> None:
    for text in ("NaN", "Infinity", "-Infinity"):
        [row] = call(spark, f"{probes}.system.probe_echo(a_double => double('{text}'))")
        assert str(row.a_double) == str(float(text))


def test_arguments_that_are_left_out_are_null(spark: SparkSession, probes: str) -> None:
    assert call(spark, f"{probes}.system.probe_echo(a_int => NULL)") == [Row(*[None] * 8)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "REQUIRED_PARAMETER_NOT_FOUND"),
        ("NULL", "the argument 'count' is NULL; it is required"),
        ("counts => 1", "UNRECOGNIZED_PARAMETER_NAME"),
        ("1, 2", "WRONG_NUM_ARGS"),
        ("count => array(1)", "DATATYPE_MISMATCH"),
        ("count => 1, count => 2", "DUPLICATE_ROUTINE_PARAMETER_ASSIGNMENT"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(
    spark: SparkSession, probes: str, arguments: str, said: str
) -> None:
    assert said in refusal(spark, f"{probes}.system.probe_many({arguments})")


@pytest.mark.parametrize(
    ("how", "text", "said"),
    [
        ("input", "no such ü𝄞 table '${x}'; DROP TABLE <y>", "no such ü𝄞 table '${x}'; DROP TABLE <y>"),
        ("unforeseen", "key", "probe_fail failed: KeyError: 'key'"),
        ("exit", "7", "probe_fail failed: SystemExit: 7"),
        ("worker", "", "a worker cannot go on"),
    ],
)
def test_errors_of_python_come_with_their_own_words(
    spark: SparkSession, probes: str, how: str, text: str, said: str
) -> None:
    # Spark would put a variable in the place of ${x}.
    quoted = text.replace("'", "\\'").replace("${", "$' '{")
    assert said in refusal(spark, f"{probes}.system.probe_fail(how => '{how}', text => '{quoted}')")
    assert len(call(spark, f"{probes}.system.probe_many(1)")) == 1


def test_a_procedure_whose_process_dies_is_reported_and_not_repeated(
    spark: SparkSession, probes: str
) -> None:
    call(spark, f"{probes}.system.probe_many(1)")
    said = refusal(spark, f"{probes}.system.probe_fail('die')")
    assert (
        "was lost in the middle of procedure probe_fail; it is unknown which of its steps were completed"
        in said
    )
    # The next one gets a new child, and with it a new way to Spark.
    assert call(spark, f"{probes}.system.probe_session()")[0].total == 499_500


def test_a_hundred_thousand_rows(spark: SparkSession, probes: str) -> None:
    rows = spark.sql(f"CALL {probes}.system.probe_many(100000)")
    assert rows.agg({"n": "sum"}).collect()[0][0] == 100_000 * 99_999 // 2
    assert rows.collect()[99_999].text == "row 99999"


def test_jobs_run_in_the_session_that_calls(
    first_session: SparkSession, spark: SparkSession, probes: str, place: CatalogPlace
) -> None:
    other = spark.newSession()
    for session, key in ((spark, "one"), (other, "two")):
        session.conf.set("probe.key", key)
    add = {
        "store": place.store,
        "warehouse": f"{place.warehouse}-theirs",
        "python": spark.conf.get(f"spark.sql.catalog.{probes}.python"),
    }
    theirs = add_catalog(other, **{name: str(value) for name, value in add.items()})
    other.range(7).createOrReplaceTempView("probe_view")
    other.sql(f"USE {theirs}")
    spark.sparkContext.setLocalProperty("probe.property", "group")
    try:
        with ThreadPoolExecutor(8) as threads:
            one = [threads.submit(call, spark, f"{probes}.system.probe_session()") for _ in range(4)]
            two = [threads.submit(call, other, f"{theirs}.system.probe_session()") for _ in range(4)]
            assert {(r.key, r.active, r.catalog, r.rows) for f in one for r in f.result()} == {
                ("one", "one", "spark_catalog", -1)
            }
            assert {(r.key, r.active, r.catalog, r.rows) for f in two for r in f.result()} == {
                ("two", "two", theirs, 7)
            }
        assert call(spark, f"{probes}.system.probe_session()")[0].property == "group"
    finally:
        spark.sparkContext.setLocalProperty("probe.property", None)  # type: ignore[arg-type]  # removes it
        spark.conf.unset("probe.key")
    assert call(spark, f"{probes}.system.probe_session()")[0].property is None
    jvm: Any = spark._jvm
    default = jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    assert default.equals(first_session._jsparkSession)


@pytest.mark.parametrize("job", ["false", "true"])
def test_a_call_that_is_interrupted_ends_at_once_and_the_procedure_is_stopped(
    spark: SparkSession, probes: str, tmp_path: Path, job: str
) -> None:
    begun, thread = tmp_path / "begun", []
    jvm: Any = spark._jvm

    def work() -> str:
        thread.append(jvm.java.lang.Thread.currentThread())
        try:
            call(spark, f"{probes}.system.probe_wait('{begun}', {job})")
        except Exception as error:
            return str(error)
        finally:
            jvm.java.lang.Thread.interrupted()
        return ""

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        wait_until(begun.exists, "the procedure began", every_s=0.05)
        tracker = spark.sparkContext.statusTracker()
        if job == "true":
            wait_until(tracker.getActiveJobsIds, "its job runs", every_s=0.05)
        thread[0].interrupt()
        assert "The call of probe_wait was interrupted; completed steps remain" in working.result(PATIENCE_S)
    wait_until(begun.with_suffix(".stopped").exists, "the procedure stopped", every_s=0.05)
    wait_until(lambda: not tracker.getActiveJobsIds(), "its job is cancelled", every_s=0.05)


def test_the_driver_programs_own_way_into_the_jvm_goes_on_working(spark: SparkSession, probes: str) -> None:
    call(spark, f"{probes}.system.probe_session()")
    counter = spark.sparkContext.accumulator(0)
    spark.sparkContext.parallelize(range(10), 2).foreach(lambda n: counter.add(n))
    assert counter.value == 45
