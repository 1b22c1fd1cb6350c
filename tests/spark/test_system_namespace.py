"""The namespace ``system``: listed views, Iceberg's procedures, and nothing else."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

from polaris_spark.spark.views import VIEWS
from tests.spark.catalogs import add_catalog
from tests.spark.processes import commands_below
from tests.spark.sql import run
from tests.spark.two_drivers import Driver
from tests.views.catalogs import OF_ENTITIES, Catalog

if TYPE_CHECKING:
    from conftest import CatalogPlace

pytestmark = pytest.mark.spark


def test_its_views_are_listed(spark: SparkSession) -> None:
    listed = spark.sql("SHOW TABLES IN polaris.system").collect()
    assert [row.tableName for row in listed] == list(VIEWS)


def test_it_is_not_listed_among_the_namespaces(spark: SparkSession, namespace: str) -> None:
    listed = [row.namespace for row in spark.sql("SHOW NAMESPACES IN polaris").collect()]
    assert namespace.removeprefix("polaris.") in listed
    assert "system" not in listed


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE NAMESPACE polaris.system",
        "CREATE NAMESPACE polaris.System",
        "CREATE NAMESPACE polaris.system.inner",
        "DROP NAMESPACE polaris.system",
        "ALTER NAMESPACE polaris.system SET PROPERTIES ('a' = 'b')",
        "CREATE TABLE polaris.system.mine (n INT)",
        "CREATE TABLE polaris.system.mine AS SELECT 1 AS n",
        "CREATE VIEW polaris.system.mine AS SELECT 1 AS n",
        "DROP TABLE polaris.system.tables",
        "DROP TABLE polaris.system.tables PURGE",
    ],
)
def test_nothing_can_be_made_or_removed_there(spark: SparkSession, statement: str) -> None:
    with pytest.raises(Exception, match=r"read-only views|already exists"):
        spark.sql(statement)


def test_a_view_that_does_not_exist_is_not_found(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.table("polaris.system.nothing")


def test_icebergs_own_procedures_are_there(spark: SparkSession, namespace: str) -> None:
    spark.sql(f"CREATE TABLE {namespace}.t AS SELECT 1 AS n")
    first = spark.table(f"{namespace}.t.snapshots").collect()[0].snapshot_id
    spark.sql(f"INSERT INTO {namespace}.t VALUES (2)")
    spark.sql(f"CALL polaris.system.rollback_to_snapshot('{namespace.removeprefix('polaris.')}.t', {first})")
    assert [row.n for row in spark.table(f"{namespace}.t").collect()] == [1]


def names(spark: SparkSession, query: str, namespace: str) -> list[str]:
    wanted = namespace.removeprefix("polaris.")
    return sorted(row.name for row in spark.sql(f"{query} WHERE namespace = '{wanted}'").collect())


@pytest.fixture
def two_commits(spark: SparkSession, namespace: str) -> Row:
    """Create two tables in two commits, and return the first commit."""
    spark.sql(f"CREATE TABLE {namespace}.early (n INT)")
    [first] = spark.sql(
        "SELECT commit_id, committed_at FROM polaris.system.commits ORDER BY number DESC LIMIT 1"
    ).collect()
    spark.sql(f"CREATE TABLE {namespace}.late (n INT)")
    return first


def test_its_views_show_the_catalog_of_this_moment(
    spark: SparkSession, namespace: str, two_commits: Row
) -> None:
    assert names(spark, "SELECT * FROM polaris.system.tables", namespace) == ["early", "late"]


def test_its_views_show_the_catalog_as_of_a_commit(
    spark: SparkSession, namespace: str, two_commits: Row
) -> None:
    for version in (two_commits.commit_id, f"'{two_commits.commit_id}'"):
        query = f"SELECT * FROM polaris.system.tables VERSION AS OF {version}"
        assert names(spark, query, namespace) == ["early"]


def test_its_views_show_the_catalog_as_of_a_time(
    spark: SparkSession, namespace: str, two_commits: Row
) -> None:
    query = f"SELECT * FROM polaris.system.tables TIMESTAMP AS OF '{two_commits.committed_at}'"
    assert names(spark, query, namespace) == ["early"]


@pytest.mark.parametrize("view", OF_ENTITIES)
def test_rows_are_counted_as_they_are_read(
    spark: SparkSession, namespace: str, two_commits: Row, view: str
) -> None:
    spark.sql(f"INSERT INTO {namespace}.early VALUES (1)")
    spark.sql(f"CREATE VIEW {namespace}.some AS SELECT n FROM {namespace}.early")
    name = f"polaris.system.{view}"
    wanted = f"catalog = 'polaris' AND entity_id > {two_commits.commit_id}"
    for at in ("", f"VERSION AS OF {two_commits.commit_id}"):
        every = spark.sql(f"SELECT catalog, entity_id FROM {name} {at}").collect()
        later = [row for row in every if row.entity_id > two_commits.commit_id]
        assert spark.sql(f"SELECT count(*) AS n FROM {name} {at}").collect() == [Row(n=len(every))]
        grouped = f"SELECT catalog, count(*) AS n FROM {name} {at} GROUP BY catalog"
        expected = [Row(catalog="polaris", n=len(every))] if every else []
        assert spark.sql(grouped).collect() == expected
        filtered = f"SELECT count(*) AS n, max(entity_id) AS last FROM {name} {at} WHERE {wanted}"
        [found] = spark.sql(filtered).collect()
        assert found.n == len(later)
    assert spark.sql(f"SELECT count(*) + 1 AS n FROM {name} HAVING count(*) < 0").collect() == []
    assert spark.table(name).count() == len(spark.table(name).collect()) > 0


def test_the_index_alone_counts_entities(spark: SparkSession) -> None:
    plan = "EXPLAIN SELECT count(*) FROM polaris.system.{}"
    assert "LocalTableScan" in spark.sql(plan.format("tables")).collect()[0].plan
    assert "BatchScan" in spark.sql(plan.format("snapshots")).collect()[0].plan


def test_a_query_gives_options_of_its_own(spark: SparkSession, namespace: str, two_commits: Row) -> None:
    wanted = namespace.removeprefix("polaris.")
    query = f"SELECT name FROM polaris.system.changes {{}} WHERE namespace = '{wanted}' ORDER BY number"
    after = f"WITH ('from' = '{two_commits.commit_id}')"
    until = f"WITH ('to' = '{two_commits.committed_at.astimezone().isoformat()}')"
    found = {
        text: [row.name for row in spark.sql(query.format(text)).collect()] for text in (after, until, "")
    }
    assert found == {after: ["late"], until: ["early"], "": ["early", "late"]}
    by_reader = spark.read.option("from", two_commits.commit_id).table("polaris.system.changes")
    assert [row.name for row in by_reader.filter(f"namespace = '{wanted}'").collect()] == ["late"]


def test_a_reader_travels_in_time_by_sparks_own_options(
    spark: SparkSession, namespace: str, two_commits: Row
) -> None:
    wanted = f"namespace = '{namespace.removeprefix('polaris.')}'"

    def names(option: str, value: object) -> list[str]:
        found = spark.read.option(option, str(value)).table("polaris.system.tables").filter(wanted).collect()
        return [row.name for row in found]

    assert names("versionAsOf", two_commits.commit_id) == ["early"]
    assert names("timestampAsOf", two_commits.committed_at) == ["early"]
    spark.conf.set("spark.sql.timeTravelVersionKey", "asItWas")
    try:
        assert names("asItWas", two_commits.commit_id) == ["early"]
    finally:
        spark.conf.unset("spark.sql.timeTravelVersionKey")


def test_the_content_of_objects_is_had_in_sql(spark: SparkSession, two_commits: Row) -> None:
    number = "SELECT get_json_object(content, '$.number') AS n FROM polaris.system.objects"
    query = f"{number} {{}} WHERE id = {two_commits.commit_id}"
    assert spark.sql(query.format("")).collect() == [Row(n=None)]
    [found] = spark.sql(query.format("WITH ('content' = 'true')")).collect()
    assert int(found.n) > 0


@pytest.mark.parametrize("option", ["store", "store.password", "view", "prune"])
def test_a_query_cannot_set_options_that_the_catalog_sets(spark: SparkSession, option: str) -> None:
    with pytest.raises(Exception, match=f"'{option}' of system.tables is fixed"):
        spark.sql(f"SELECT * FROM polaris.system.tables WITH ('{option}' = 'x')").collect()
    with pytest.raises(Exception, match="there is no option 'colour'"):
        spark.sql("SELECT * FROM polaris.system.tables WITH ('colour' = 'red')").collect()


@pytest.mark.parametrize("view", ["tables", "tasks", "commits"])
@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("colour", "red", "there is no option 'colour'"),
        ("splits", "0", "the option 'splits' is '0'"),
        ("from", "2026-01-31", "a time without a zone"),
    ],
)
def test_options_that_cannot_be_used_are_refused_in_one_line(
    spark: SparkSession, view: str, option: str, text: str, message: str
) -> None:
    query = spark.sql(f"SELECT * FROM polaris.system.{view} WITH (`{option}` = '{text}')")
    with pytest.raises(Exception, match=message) as refused:
        query.collect()
    assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_two_scans_of_one_view_filter_for_themselves(
    spark: SparkSession, namespace: str, two_commits: Row, pushdown: str
) -> None:
    wanted = namespace.removeprefix("polaris.")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        joined = spark.sql(
            f"""SELECT a.name AS a, b.name AS b FROM polaris.system.tables a, polaris.system.tables b
            WHERE a.namespace = '{wanted}' AND b.namespace = '{wanted}' AND a.name = 'early' AND b.name = 'late'"""
        ).collect()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert joined == [Row(a="early", b="late")]


@pytest.mark.parametrize(("setting", "loads_both"), [(None, False), ("true", False), ("false", True)])
def test_filters_prune_unless_the_session_forbids_it(
    spark: SparkSession, namespace: str, setting: str | None, loads_both: bool
) -> None:
    whole, lost = f"{namespace}.whole", f"{namespace}.lost"
    run(spark, f"CREATE TABLE {whole} AS SELECT 1 AS n", f"CREATE TABLE {lost} AS SELECT 1 AS n")
    [manifest] = spark.sql(f"SELECT path FROM {lost}.manifests").collect()
    Path(manifest.path.removeprefix("file:")).unlink()
    wanted = namespace.removeprefix("polaris.")
    query = f"SELECT file_path FROM polaris.system.files WHERE namespace = '{wanted}' AND name = 'whole'"
    if setting is not None:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", setting)
    try:
        if loads_both:
            with pytest.raises(Exception, match=r"cannot read|no file"):
                spark.sql(query).collect()
        else:
            assert len(spark.sql(query).collect()) == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        spark.sql(f"DROP TABLE {lost}")  # others look at the whole catalog


def test_times_that_python_cannot_tell_are_left_to_spark(spark: SparkSession, two_commits: Row) -> None:
    commits = "SELECT count(*) AS n FROM polaris.system.commits WHERE committed_at"
    [every] = spark.sql(f"{commits} IS NOT NULL").collect()
    assert every.n > 0
    for condition in (
        "< TIMESTAMP '+12000-01-01 00:00:00'",
        "> TIMESTAMP '-0100-01-01 00:00:00'",
        "<> TIMESTAMP '+12000-01-01 00:00:00'",
    ):
        assert spark.sql(f"{commits} {condition}").collect() == [every]
    among = f"IN (TIMESTAMP '+12000-01-01 00:00:00', TIMESTAMP '{two_commits.committed_at}')"
    assert spark.sql(f"{commits} {among}").collect()[0].n > 0


def test_plans_show_the_view_and_nothing_of_how_to_reach_the_store(
    spark: SparkSession, place: CatalogPlace
) -> None:
    plan = spark.sql("EXPLAIN EXTENDED SELECT * FROM polaris.system.tables").collect()[0].plan
    described = str(spark.sql("DESCRIBE EXTENDED polaris.system.tables").collect())
    assert "BatchScan system.tables" in plan
    assert str(place.directory) not in plan + described


def test_its_views_are_joined_with_tables(spark: SparkSession, namespace: str, two_commits: Row) -> None:
    spark.sql(f"CREATE TABLE {namespace}.owners AS SELECT 'early' AS name, 'ops' AS owner")
    joined = spark.sql(
        f"SELECT o.owner FROM polaris.system.tables t JOIN {namespace}.owners o ON t.name = o.name"
        f" WHERE t.namespace = '{namespace.removeprefix('polaris.')}'"
    )
    assert [row.owner for row in joined.collect()] == ["ops"]


@pytest.mark.parametrize("change", ["INSERT INTO {} SELECT * FROM {}", "DELETE FROM {}", "TRUNCATE TABLE {}"])
def test_its_views_cannot_be_written(spark: SparkSession, change: str) -> None:
    with pytest.raises(AnalysisException, match="does not support"):
        spark.sql(change.replace("{}", "polaris.system.tables"))


def test_its_views_but_the_feed_cannot_be_streamed(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="does not support"):
        spark.readStream.table("polaris.system.commits")
    assert spark.readStream.table("polaris.system.changes").isStreaming


def test_only_the_columns_that_a_query_needs_are_read(spark: SparkSession, tmp_path: Path) -> None:
    made = Catalog(tmp_path / "c.db")
    made.namespace("db")
    made.table("db", "t")
    made.session.close()
    name = add_catalog(spark, store=made.store, catalog="polaris", python=sys.executable)
    tables = f"{name}.system.tables"
    [found] = spark.sql(f"SELECT content_id FROM {tables}").collect()
    with sqlite3.connect(tmp_path / "c.db") as database:
        database.execute("DELETE FROM objects WHERE id = ?", found)
    # Names and ids stand in the index; the object that says where the table lies is missing.
    assert spark.sql(f"SELECT count(*) AS n FROM {tables}").collect() == [Row(n=1)]
    assert spark.sql(f"SELECT name FROM {tables} WHERE namespace = 'db'").collect() == [Row(name="t")]
    with pytest.raises(Exception, match=str(found.content_id)):
        spark.sql(f"SELECT name FROM {tables} WHERE location <> ''").collect()


def test_a_part_of_a_column_can_be_asked_for(spark: SparkSession, two_commits: Row) -> None:
    which = "branch = 'main' AND catalog = 'polaris'"
    query = f"SELECT recent.number AS numbers FROM polaris.system.references WHERE {which}"
    [branch] = spark.sql(query).collect()
    assert len(branch.numbers) > 1
    assert branch.numbers == sorted(branch.numbers, reverse=True)


def test_a_cached_view_is_read_anew_once_it_is_refreshed(spark: SparkSession, namespace: str) -> None:
    query = "SELECT * FROM polaris.system.tables"
    spark.sql("CACHE TABLE polaris.system.tables")
    try:
        spark.sql(f"CREATE TABLE {namespace}.t (n INT)")
        assert names(spark, query, namespace) == []
        spark.sql("REFRESH TABLE polaris.system.tables")
        assert names(spark, query, namespace) == ["t"]
    finally:
        spark.sql("UNCACHE TABLE polaris.system.tables")


def test_the_first_query_on_a_view_starts_spark_workers_for_reading_alone(place: CatalogPlace) -> None:
    fresh = Driver(place.store, place.warehouse)
    try:
        fresh.sql("SELECT * FROM polaris.system.tables WHERE name = 'nothing' OR entity_id > 0")
        started = {argument for command in commands_below(fresh.jvm) for argument in command}
    finally:
        fresh.close()
    assert {argument for argument in started if argument.startswith("pyspark.")} == {
        "pyspark.daemon",
        "pyspark.worker",
    }
