"""SQL that says which state of the catalog it means: `use`, and names such as `t@dev`; and merges."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.sql import rows, run

pytestmark = pytest.mark.spark

ERRORS = (PySparkException, Py4JJavaError)


@pytest.fixture
def dev(spark: SparkSession, namespace: str) -> Iterator[str]:
    """A namespace with the table `t`, whose branch `dev` has one more row."""
    run(
        spark,
        f"CREATE TABLE {namespace}.t AS SELECT 1 AS id",
        "CALL polaris.system.create_branch('dev')",
        f"INSERT INTO {namespace}.`t@dev` VALUES (2)",
    )
    yield namespace
    run(spark, "CALL polaris.system.use('main')", "CALL polaris.system.drop_branch('dev')")


def test_names_of_tables_say_which_state_is_meant(spark: SparkSession, dev: str) -> None:
    ((number,),) = rows(spark, "SELECT max(number) FROM polaris.system.changes")
    assert rows(spark, f"SELECT id FROM {dev}.t") == [(1,)]
    assert rows(spark, f"SELECT id FROM {dev}.`t@dev`") == [(1,), (2,)]
    assert rows(spark, f"SELECT count(*) FROM {dev}.`t@dev#2999-01-01T00:00:00Z`") == [(2,)]
    run(
        spark,
        f"ALTER TABLE {dev}.`t@dev` ADD COLUMN name STRING",
        f"DELETE FROM {dev}.`t@dev` WHERE id = 1",
        f"INSERT INTO {dev}.t VALUES (3)",
    )
    assert rows(spark, f"SELECT * FROM {dev}.`t@dev`") == [(2, None)]
    assert rows(spark, f"SELECT id FROM {dev}.`t@{number}`") == [(1,)]
    joined = f"SELECT count(*) FROM {dev}.t m FULL JOIN {dev}.`t@dev` d USING (id)"
    assert rows(spark, joined) == [(3,)]
    with pytest.raises(ERRORS, match="cannot be changed"):
        run(spark, f"INSERT INTO {dev}.`t@{number}` VALUES (4)")


def test_a_session_uses_a_branch_until_it_uses_another(spark: SparkSession, dev: str) -> None:
    other = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if name.startswith("spark.sql.catalog.polaris"):
            other.conf.set(name, value)
    assert rows(spark, "CALL polaris.system.use('dev')")[0][0] == "dev"
    assert rows(spark, f"SELECT id FROM {dev}.t") == [(1,), (2,)]
    assert rows(other, f"SELECT id FROM {dev}.t") == [(1,)]
    run(
        spark,
        f"CREATE TABLE {dev}.made AS SELECT id * 10 AS id FROM {dev}.t",
        f"CREATE VIEW {dev}.v AS SELECT id + 1 AS id FROM {dev}.made",
        f"MERGE INTO {dev}.t USING {dev}.made ON t.id * 10 = made.id WHEN MATCHED THEN UPDATE SET id = t.id + 5",
    )
    assert rows(spark, f"SELECT id FROM {dev}.v") == [(11,), (21,)]
    assert rows(spark, f"SELECT id FROM {dev}.t") == [(6,), (7,)]
    assert {row[1] for row in rows(spark, f"SHOW TABLES IN {dev}")} >= {"made", "t"}
    assert {row[1] for row in rows(other, f"SHOW TABLES IN {dev}")} == {"t"}
    named = rows(spark, "SELECT name FROM polaris.system.tables WHERE name LIKE '%made%'")
    assert len(named) == 1
    assert rows(spark, "CALL polaris.system.use()")[0][0] == "dev"
    ((number,),) = rows(spark, "SELECT max(number) FROM polaris.system.changes")
    run(spark, f"DROP TABLE {dev}.made", f"CALL polaris.system.use('{number}')")
    assert rows(spark, f"SELECT count(*) FROM {dev}.made") == [(2,)]
    with pytest.raises(ERRORS, match="cannot be changed"):
        run(spark, f"DROP TABLE {dev}.made")
    run(spark, "CALL polaris.system.use('main')")
    assert rows(spark, f"SELECT id FROM {dev}.t") == [(1,)]
    assert rows(other, "SELECT count(*) FROM polaris.system.tables WHERE name LIKE '%made%'") == [(0,)]
    with pytest.raises(ERRORS, match="no branch 'none'"):
        run(spark, "CALL polaris.system.use('none')")
    assert rows(spark, "CALL polaris.system.use()")[0][0] == "main"


def test_a_branch_is_compared_and_merged_by_sql(spark: SparkSession, dev: str) -> None:
    run(
        spark,
        f"INSERT INTO {dev}.t VALUES (3)",
        "CALL polaris.system.use('dev')",
        f"CREATE TABLE {dev}.made AS SELECT 5 AS id",
        "CALL polaris.system.use('main')",
    )
    found = rows(spark, "CALL polaris.system.diff('main', 'dev')")
    assert {(name.rpartition(".")[2], change, added) for _, name, change, _, _, added, _ in found} == {
        ("made", "added", 1),
        ("t", "changed", 1),
    }
    merged = rows(spark, "CALL polaris.system.merge('dev')")
    assert {(name.rpartition(".")[2], action) for _, name, action, _ in merged} == {
        ("made", "added"),
        ("t", "merged"),
    }
    assert rows(spark, f"SELECT id FROM {dev}.t") == [(1,), (2,), (3,)]
    files = rows(spark, f"SELECT snapshot_id FROM {dev}.t.entries")
    known = {row[0] for row in rows(spark, f"SELECT snapshot_id FROM {dev}.t.snapshots")}
    assert {row[0] for row in files} <= known
    newest = rows(
        spark, f"SELECT snapshot_id, parent_id FROM {dev}.t.snapshots ORDER BY committed_at DESC LIMIT 1"
    )
    read = spark.read.option("start-snapshot-id", newest[0][1]).option("end-snapshot-id", newest[0][0])
    assert [row.id for row in read.table(f"{dev}.t").collect()] == [2]
    run(spark, f"INSERT INTO {dev}.t VALUES (4)", f"DELETE FROM {dev}.t WHERE id = 1")
    assert rows(spark, f"SELECT id FROM {dev}.t") == [(2,), (3,), (4,)]
