"""Spark SQL on the catalog, with and without metadata files: tests of single statements."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from tests.spark.conftest import catalog_of_mode, new_home
from tests.spark.sql import rows

if TYPE_CHECKING:
    from conftest import CatalogPlace


@pytest.fixture
def people(spark: SparkSession, home: str) -> str:
    """A table of three rows in one snapshot."""
    spark.sql(f"CREATE TABLE {home}.people (id BIGINT, name STRING, born DATE) PARTITIONED BY (years(born))")
    spark.sql(
        f"""INSERT INTO {home}.people VALUES
        (1, 'Ada', DATE'1815-12-10'), (2, 'Alan', DATE'1912-06-23'), (3, 'Grace', DATE'1906-12-09')"""
    )
    return f"{home}.people"


def without_catalog(table: str) -> str:
    return table.partition(".")[2]


def location(spark: SparkSession, table: str) -> str:
    described = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    [found] = [row.data_type for row in described if row.col_name == "Location"]
    return str(found).removeprefix("file:").replace("//", "/")


def files_below(directory: str) -> int:
    return sum(len(files) for _, _, files in os.walk(directory))


def test_namespaces_nest_and_keep_their_properties(spark: SparkSession, home: str) -> None:
    spark.sql(f"CREATE NAMESPACE {home}.inner COMMENT 'within' WITH DBPROPERTIES ('team' = 'x')")
    described: dict[str, str] = dict(spark.sql(f"DESCRIBE NAMESPACE EXTENDED {home}.inner").collect())
    assert described["Comment"] == "within"
    assert "(team,x)" in described["Properties"]
    with pytest.raises(Exception, match="is not empty"):
        spark.sql(f"DROP NAMESPACE {home}")
    spark.sql(f"DROP NAMESPACE {home}.inner")
    spark.sql(f"DROP NAMESPACE {home}")
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_FOUND"):
        spark.sql(f"DESCRIBE NAMESPACE {home}")


def test_a_namespace_that_is_not_empty_stays_with_all_that_is_in_it(spark: SparkSession, people: str) -> None:
    home = people.rpartition(".")[0]
    with pytest.raises(Exception, match="is not empty"):
        spark.sql(f"DROP NAMESPACE {home} CASCADE")
    assert spark.table(people).count() == 3


def test_a_table_is_created_from_a_query(spark: SparkSession, people: str) -> None:
    spark.sql(f"CREATE TABLE {people}2 PARTITIONED BY (bucket(2, id)) AS SELECT id, name FROM {people}")
    assert rows(spark, f"SELECT * FROM {people}2") == [(1, "Ada"), (2, "Alan"), (3, "Grace")]


def test_the_log_keeps_the_notes_of_the_session_and_the_application(
    spark: SparkSession, place: CatalogPlace
) -> None:
    catalog = catalog_of_mode(spark, place, "never")
    home = new_home(spark, catalog)
    message = "Backfill March, with \\ and ="
    try:
        spark.conf.set("polaris.commit.message", message)
        spark.sql("SET polaris.commit.ticket = OPS-12")
        spark.sql(f"CREATE TABLE {home}.noted AS SELECT 1 AS a")
        spark.sql(f"CALL {catalog}.system.set_catalog_properties(properties => map('grace', '4h'))")
    finally:
        spark.conf.unset("polaris.commit.message")
        spark.conf.unset("polaris.commit.ticket")
    spark.sql(f"DROP TABLE {home}.noted")
    changes = (
        spark.read.format("polaris-objects").option("store", place.store).option("view", "changes").load()
    )
    found = changes.where(
        "name = 'noted' OR (reference = 'catalogs' AND summary['set grace'] = '4h')"
    ).selectExpr("action", "summary['commit.message']", "summary['commit.ticket']", "summary['spark.app.id']")
    assert {row.action: tuple(row)[1:] for row in found.collect()} == {
        "create-table": (message, "OPS-12", spark.sparkContext.applicationId),
        "set-catalog-properties": (message, "OPS-12", None),
        "drop-table": (None, None, None),
    }


def test_a_table_that_exists_is_not_created_again(spark: SparkSession, people: str) -> None:
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        spark.sql(f"CREATE TABLE {people} (n INT)")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {people} (n INT)")
    assert spark.table(people).columns == ["id", "name", "born"]


def test_rows_are_updated_deleted_and_merged(spark: SparkSession, people: str) -> None:
    spark.sql(f"UPDATE {people} SET name = 'Ada L.' WHERE id = 1")
    spark.sql(f"DELETE FROM {people} WHERE id = 2")
    spark.sql(
        f"""MERGE INTO {people} t USING (SELECT * FROM VALUES (3, 'G.'), (4, 'Edsger') AS s(id, name)) s
        ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name
        WHEN NOT MATCHED THEN INSERT (id, name, born) VALUES (s.id, s.name, NULL)"""
    )
    assert rows(spark, f"SELECT id, name FROM {people}") == [(1, "Ada L."), (3, "G."), (4, "Edsger")]


def test_columns_and_partitions_evolve_while_old_rows_stay_readable(spark: SparkSession, people: str) -> None:
    for change in (
        "ADD COLUMN field STRING AFTER name",
        "RENAME COLUMN name TO full_name",
        "ADD PARTITION FIELD bucket(2, id)",
        "DROP PARTITION FIELD years(born)",
        "DROP COLUMN born",
        "WRITE ORDERED BY id",
        "SET TBLPROPERTIES ('owner-team' = 'x')",
    ):
        spark.sql(f"ALTER TABLE {people} {change}")
    spark.sql(f"INSERT INTO {people} VALUES (4, 'Edsger', 'graphs')")
    assert spark.table(people).columns == ["id", "full_name", "field"]
    assert rows(spark, f"SELECT * FROM {people} WHERE id > 2") == [
        (3, "Grace", None),
        (4, "Edsger", "graphs"),
    ]
    assert ("owner-team", "x") in rows(spark, f"SHOW TBLPROPERTIES {people}")


def test_a_table_is_read_as_it_was(spark: SparkSession, people: str) -> None:
    [(first, at)] = rows(spark, f"SELECT snapshot_id, committed_at FROM {people}.snapshots")
    spark.sql(f"DELETE FROM {people} WHERE id = 1")
    assert spark.table(people).count() == 2
    assert rows(spark, f"SELECT count(*) FROM {people} VERSION AS OF {first}") == [(3,)]
    assert rows(spark, f"SELECT count(*) FROM {people} TIMESTAMP AS OF '{at}'") == [(3,)]


METADATA_TABLES = ["history", "snapshots", "refs", "metadata_log_entries", "manifests", "partitions", "files"]


@pytest.mark.parametrize("metadata", METADATA_TABLES)
def test_icebergs_metadata_tables_are_readable(spark: SparkSession, people: str, metadata: str) -> None:
    assert spark.table(f"{people}.{metadata}").count() > 0


def test_branches_and_tags_of_a_table_are_written_and_merged(spark: SparkSession, people: str) -> None:
    spark.sql(f"ALTER TABLE {people} CREATE BRANCH audit")
    spark.sql(f"ALTER TABLE {people} CREATE TAG release RETAIN 7 DAYS")
    spark.sql(f"INSERT INTO {people}.branch_audit VALUES (4, 'Edsger', DATE'1930-05-11')")
    assert spark.table(people).count() == 3
    assert rows(spark, f"SELECT count(*) FROM {people} VERSION AS OF 'audit'") == [(4,)]
    catalog = people.partition(".")[0]
    spark.sql(f"CALL {catalog}.system.fast_forward('{without_catalog(people)}', 'main', 'audit')")
    assert spark.table(people).count() == 4
    assert rows(spark, f"SELECT count(*) FROM {people} VERSION AS OF 'release'") == [(3,)]
    spark.sql(f"ALTER TABLE {people} DROP BRANCH audit")
    assert {row.name for row in spark.table(f"{people}.refs").collect()} == {"main", "release"}


def test_icebergs_maintenance_runs_on_it(spark: SparkSession, people: str) -> None:
    spark.sql(f"INSERT INTO {people} VALUES (4, 'Edsger', DATE'1815-05-11')")
    system, table = f"{people.partition('.')[0]}.system", without_catalog(people)
    options = "map('min-input-files', '2')"
    [rewritten] = spark.sql(
        f"CALL {system}.rewrite_data_files(table => '{table}', options => {options})"
    ).collect()
    assert rewritten.rewritten_data_files_count == 2
    spark.sql(
        f"CALL {system}.expire_snapshots(table => '{table}', older_than => TIMESTAMP'2124-01-01', retain_last => 1)"
    )
    assert spark.table(f"{people}.snapshots").count() == 1
    assert spark.table(people).count() == 4


def test_views_are_created_replaced_renamed_and_dropped(spark: SparkSession, home: str, people: str) -> None:
    spark.sql(f"CREATE VIEW {home}.names AS SELECT name FROM {people} WHERE id < 3")
    assert rows(spark, f"SELECT * FROM {home}.names") == [("Ada",), ("Alan",)]
    spark.sql(f"CREATE OR REPLACE VIEW {home}.names (n COMMENT 'how many') AS SELECT count(*) FROM {people}")
    assert rows(spark, f"SELECT n FROM {home}.names") == [(3,)]
    spark.sql(f"ALTER VIEW {home}.names SET TBLPROPERTIES ('p' = 'q')")
    spark.sql(f"ALTER VIEW {home}.names RENAME TO {home}.how_many")
    assert [row.viewName for row in spark.sql(f"SHOW VIEWS IN {home}").collect()] == ["how_many"]
    spark.sql(f"DROP VIEW {home}.how_many")
    assert spark.sql(f"SHOW VIEWS IN {home}").count() == 0


@pytest.mark.parametrize("qualified", [True, False])
def test_a_table_is_renamed(spark: SparkSession, home: str, people: str, qualified: bool) -> None:
    new = f"{home}.persons"
    spark.sql(f"ALTER TABLE {people} RENAME TO {new if qualified else without_catalog(new)}")
    assert spark.table(new).count() == 3
    assert [row.tableName for row in spark.sql(f"SHOW TABLES IN {home}").collect()] == ["persons"]


def test_a_table_of_format_version_3_keeps_deletes_and_row_ids(spark: SparkSession, home: str) -> None:
    properties = "'format-version' = '3', 'write.delete.mode' = 'merge-on-read'"
    spark.sql(f"CREATE TABLE {home}.v3 (id INT) TBLPROPERTIES ({properties})")
    spark.sql(f"INSERT INTO {home}.v3 VALUES (1), (2), (3)")
    spark.sql(f"DELETE FROM {home}.v3 WHERE id = 2")
    assert rows(spark, f"SELECT id, _row_id FROM {home}.v3") == [(1, 0), (3, 2)]


def test_a_dropped_table_leaves_its_files(spark: SparkSession, people: str) -> None:
    directory = location(spark, people)
    spark.sql(f"DROP TABLE {people}")
    assert files_below(directory) > 0
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.table(people)


def test_a_purged_table_leaves_no_file(spark: SparkSession, people: str) -> None:
    spark.sql(f"UPDATE {people} SET name = 'x' WHERE id = 1")
    directory = location(spark, people)
    assert files_below(directory) > 5
    spark.sql(f"DROP TABLE {people} PURGE")
    assert files_below(directory) == 0


def test_metadata_files_are_written_only_where_they_are_asked_for(spark: SparkSession, people: str) -> None:
    written = [name for name in os.listdir(location(spark, people) + "/metadata") if name.endswith(".json")]
    mode = spark.conf.get(f"spark.sql.catalog.{people.partition('.')[0]}.metadata-files")
    assert (len(written) > 0) == (mode == "every-commit")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE TABLE {catalog}.nowhere.t (n INT)", "Namespace does not exist: nowhere"),
        ("CREATE TABLE {catalog}.nowhere.t AS SELECT 1 AS n", "Namespace does not exist: nowhere"),
        ("CREATE OR REPLACE TABLE {catalog}.nowhere.t (n INT)", "Namespace does not exist: nowhere"),
        ("CREATE VIEW {catalog}.nowhere.v AS SELECT 1 AS n", "The schema `nowhere` cannot be found"),
        ("CREATE TABLE {home}.`..` (n INT)", "removed from paths by HTTP clients"),
        ("CREATE NAMESPACE {home}.`..`", "removed from paths by HTTP clients"),
        ("CREATE TABLE {home}.t (n INT) LOCATION '{at}'", "overlaps "),
        ("ALTER TABLE {people} SET LOCATION '{warehouse}'", "location file:///"),
        ("ALTER TABLE {people} RENAME TO {catalog}.nowhere.t", "Namespace does not exist: nowhere"),
        ("DROP NAMESPACE {home}", "is not empty: drop its tables, views and namespaces first"),
        ("DROP NAMESPACE {home} CASCADE", "CASCADE does not"),
        ("ALTER TABLE {people} CREATE TAG x AS OF VERSION 99", "Cannot set x to unknown snapshot: 99"),
        (
            "ALTER TABLE {people} REPLACE BRANCH main AS OF VERSION 99",
            "Cannot set main to unknown snapshot: 99",
        ),
        ("ALTER TABLE {people} ADD PARTITION FIELD nope", "Cannot find field 'nope'"),
        ("ALTER TABLE {people} WRITE ORDERED BY nope", "Cannot find field 'nope'"),
        (
            "ALTER TABLE {people} SET TBLPROPERTIES ('format-version' = '99')",
            "unsupported format version: v99",
        ),
        ("ALTER TABLE {people} SET TBLPROPERTIES ('format-version' = 'abc')", 'must be a number: .*"abc"'),
        ("ALTER TABLE {people} SET TBLPROPERTIES ('gc.enabled' = 'maybe')", "must be true or false"),
        ("ALTER TABLE {people} ADD COLUMN z INT NOT NULL", "cannot add required column: z"),
        ("ALTER TABLE {people} DROP COLUMN born", "Cannot find source column for partition field"),
        (
            "CREATE OR REPLACE VIEW {catalog}.nowhere.v AS SELECT 1 AS n",
            "The schema `nowhere` cannot be found",
        ),
        ("CREATE OR REPLACE VIEW {people} AS SELECT 1 AS n", "Table with same name already exists"),
        ("INSERT INTO {people}.branch_nope SELECT * FROM {people}", "does not exist\\): nope"),
        ("CALL {catalog}.system.rollback_to_snapshot('{without}', 99)", "unknown snapshot id: 99"),
        ("CALL {catalog}.system.rollback_to_snapshot('nowhere.t', 99)", "Couldn't load table 'nowhere.t'"),
    ],
)
def test_a_statement_that_is_refused_says_why_without_a_stack_trace(
    spark: SparkSession, catalog: str, people: str, statement: str, message: str
) -> None:
    at = "/" + location(spark, people).lstrip("/")
    names = {"catalog": catalog, "home": people.rpartition(".")[0], "people": people, "at": at}
    names["without"] = without_catalog(people)
    names["warehouse"] = os.path.dirname(os.path.dirname(at))
    with pytest.raises(PySparkException) as refused:
        spark.sql(statement.format(**names))
    assert re.search(message, str(refused.value))
    assert "\tat " not in str(refused.value)
