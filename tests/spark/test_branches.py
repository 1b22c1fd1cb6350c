"""Branches and tags of a table in Spark SQL, the write-audit-publish workflow, and time travel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from tests.spark.sql import call, current_snapshot, rows, run, snapshots

pytestmark = pytest.mark.spark


@pytest.fixture
def numbers(spark: SparkSession, home: str) -> str:
    """A table of one column with the single row 1."""
    run(spark, f"CREATE TABLE {home}.numbers (n INT)", f"INSERT INTO {home}.numbers VALUES (1)")
    return f"{home}.numbers"


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


def values(spark: SparkSession, table: str, clause: str = "") -> list[int]:
    return [n for (n,) in rows(spark, f"SELECT n FROM {table} {clause}")]


def refs(spark: SparkSession, table: str) -> dict[str, tuple[object, ...]]:
    columns = "name, type, max_reference_age_in_ms, min_snapshots_to_keep, max_snapshot_age_in_ms"
    return {name: tuple(rest) for name, *rest in rows(spark, f"SELECT {columns} FROM {table}.refs")}


def test_a_branch_is_written_by_every_statement_and_main_stays(spark: SparkSession, numbers: str) -> None:
    branch = f"{numbers}.branch_audit"
    run(
        spark,
        f"ALTER TABLE {numbers} CREATE BRANCH audit",
        f"INSERT INTO {branch} VALUES (2), (3), (4)",
        f"UPDATE {branch} SET n = 20 WHERE n = 2",
        f"DELETE FROM {branch} WHERE n = 3",
        f"""MERGE INTO {branch} t USING (SELECT * FROM VALUES (4), (5) AS s(n)) s ON t.n = s.n
        WHEN MATCHED THEN UPDATE SET n = 40 WHEN NOT MATCHED THEN INSERT *""",
    )
    assert values(spark, branch) == values(spark, numbers, "VERSION AS OF 'audit'") == [1, 5, 20, 40]
    assert values(spark, numbers) == [1]
    spark.sql(f"INSERT OVERWRITE {branch} VALUES (7)")
    assert values(spark, branch) == [7]
    assert [row.n for row in spark.read.option("branch", "audit").table(numbers).collect()] == [7]
    assert values(spark, numbers) == [1]


def test_retention_of_branches_and_tags_is_kept_and_replaced(spark: SparkSession, numbers: str) -> None:
    day = 24 * 60 * 60 * 1000
    run(
        spark,
        f"ALTER TABLE {numbers} CREATE BRANCH b RETAIN 30 DAYS WITH SNAPSHOT RETENTION 3 SNAPSHOTS 2 DAYS",
        f"ALTER TABLE {numbers} CREATE TAG t RETAIN 5 DAYS",
        f"ALTER TABLE {numbers} CREATE TAG plain",
        f"ALTER TABLE {numbers} CREATE TAG IF NOT EXISTS t RETAIN 9 DAYS",
    )
    assert refs(spark, numbers) == {
        "main": ("BRANCH", None, None, None),
        "b": ("BRANCH", 30 * day, 3, 2 * day),
        "t": ("TAG", 5 * day, None, None),
        "plain": ("TAG", None, None, None),
    }
    first = current_snapshot(spark, numbers)
    run(
        spark,
        f"INSERT INTO {numbers} VALUES (2)",
        f"ALTER TABLE {numbers} CREATE OR REPLACE BRANCH b RETAIN 1 DAYS",
        f"ALTER TABLE {numbers} REPLACE TAG t AS OF VERSION {first} RETAIN 2 DAYS",
    )
    assert refs(spark, numbers)["t"] == ("TAG", 2 * day, None, None)
    assert refs(spark, numbers)["b"][1] == day
    assert values(spark, numbers, "VERSION AS OF 'b'") == [1, 2]
    assert values(spark, numbers, "VERSION AS OF 't'") == [1]


def test_refs_are_dropped_and_refused_as_iceberg_does(spark: SparkSession, numbers: str) -> None:
    run(spark, f"ALTER TABLE {numbers} CREATE BRANCH b", f"ALTER TABLE {numbers} CREATE TAG t")
    for statement, message in (
        ("CREATE BRANCH b", "already exists"),
        ("CREATE TAG t", "already exists"),
        ("CREATE BRANCH c AS OF VERSION 4711", "unknown snapshot: 4711"),
        ("DROP BRANCH t", "not a branch"),
        ("DROP TAG b", "not a tag"),
        ("DROP BRANCH nothing", "does not exist"),
        ("DROP BRANCH main", "Cannot remove main branch"),
    ):
        with pytest.raises(Exception, match=message):
            spark.sql(f"ALTER TABLE {numbers} {statement}")
    with pytest.raises(Exception, match="tag"):
        spark.sql(f"INSERT INTO {numbers}.branch_t VALUES (9)")
    run(
        spark,
        f"ALTER TABLE {numbers} DROP BRANCH b",
        f"ALTER TABLE {numbers} DROP TAG t",
        f"ALTER TABLE {numbers} DROP TAG IF EXISTS t",
    )
    assert list(refs(spark, numbers)) == ["main"]
    with pytest.raises(Exception, match="Cannot find matching snapshot"):
        spark.sql(f"SELECT * FROM {numbers} VERSION AS OF 'b'")


def test_a_branch_of_a_table_without_rows_begins_with_an_empty_snapshot(
    spark: SparkSession, home: str
) -> None:
    run(
        spark,
        f"CREATE TABLE {home}.empty (n INT)",
        f"ALTER TABLE {home}.empty CREATE BRANCH early",
        f"INSERT INTO {home}.empty.branch_early VALUES (1)",
    )
    assert values(spark, f"{home}.empty") == []
    assert values(spark, f"{home}.empty.branch_early") == [1]


def test_a_branch_of_the_session_is_written_audited_and_published(spark: SparkSession, numbers: str) -> None:
    run(
        spark,
        f"ALTER TABLE {numbers} SET TBLPROPERTIES ('write.wap.enabled' = 'true')",
        f"ALTER TABLE {numbers} CREATE BRANCH audit",
    )
    with setting(spark, "spark.wap.branch", "audit"):
        run(
            spark,
            f"INSERT INTO {numbers} VALUES (2), (3)",
            f"DELETE FROM {numbers} WHERE n = 3",
        )
        # What the session writes, it reads.
        assert values(spark, numbers) == [1, 2]
    assert values(spark, numbers) == [1]
    assert values(spark, numbers, "VERSION AS OF 'audit'") == [1, 2]
    main, audit = current_snapshot(spark, numbers), current_snapshot(spark, numbers, "audit")
    catalog, _, rest = numbers.partition(".")
    publish = f"CALL {catalog}.system.fast_forward('{rest}', 'main', 'audit')"
    assert rows(spark, publish) == [("main", main, audit)]
    assert values(spark, numbers) == [1, 2]
    run(spark, f"INSERT INTO {numbers} VALUES (9)", f"INSERT INTO {numbers}.branch_audit VALUES (8)")
    with pytest.raises(Exception, match="not an ancestor of"):
        spark.sql(publish)
    assert values(spark, numbers) == [1, 2, 9]


def test_a_branch_named_by_the_session_comes_to_be_with_its_first_write(
    spark: SparkSession, numbers: str
) -> None:
    spark.sql(f"ALTER TABLE {numbers} SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
    with setting(spark, "spark.wap.branch", "fresh"):
        assert values(spark, numbers) == [1]
        spark.sql(f"INSERT INTO {numbers} VALUES (2)")
    assert values(spark, f"{numbers}.branch_fresh") == [1, 2]
    assert values(spark, numbers) == [1]


@pytest.mark.parametrize("publish", ["publish_changes", "cherrypick_snapshot"])
def test_staged_snapshots_are_published_in_any_order(spark: SparkSession, numbers: str, publish: str) -> None:
    spark.sql(f"ALTER TABLE {numbers} SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
    for n in (2, 3):
        with setting(spark, "spark.wap.id", f"run-{n}"):
            spark.sql(f"INSERT INTO {numbers} VALUES ({n})")
    assert values(spark, numbers) == [1]
    staged = {
        id: snapshot
        for snapshot, id in rows(spark, f"SELECT snapshot_id, summary['wap.id'] FROM {numbers}.snapshots")
    }
    assert set(staged) == {None, "run-2", "run-3"}
    for n in (3, 2):
        argument = (
            f"wap_id => 'run-{n}'" if publish == "publish_changes" else f"snapshot_id => {staged[f'run-{n}']}"
        )
        answer = call(spark, numbers, publish, argument)
        assert answer["source_snapshot_id"] == staged[f"run-{n}"]
        assert answer["current_snapshot_id"] == current_snapshot(spark, numbers)
    assert values(spark, numbers) == [1, 2, 3]
    with pytest.raises(
        Exception, match=r"Duplicate request to cherry pick|Cannot apply unknown WAP ID|already"
    ):
        call(spark, numbers, publish, argument)
    summary = rows(spark, f"SELECT summary['published-wap-id'] FROM {numbers}.snapshots ORDER BY 1")
    assert {id for (id,) in summary} >= {"run-2"}


def test_the_past_is_read_by_version_time_branch_and_tag(spark: SparkSession, numbers: str) -> None:
    for n in (2, 3):
        run(spark, f"ALTER TABLE {numbers} CREATE TAG before{n}", f"INSERT INTO {numbers} VALUES ({n})")
    spark.sql(f"ALTER TABLE {numbers} ADD COLUMN later STRING")
    first, second, third = snapshots(spark, numbers)
    for version, expected in (
        (str(first), [1]),
        (f"'{second}'", [1, 2]),
        ("'before2'", [1]),
        ("'before3'", [1, 2]),
        (str(third), [1, 2, 3]),
    ):
        assert values(spark, numbers, f"VERSION AS OF {version}") == expected
        assert values(spark, numbers, f"FOR SYSTEM_VERSION AS OF {version}") == expected
    times = dict(rows(spark, f"SELECT snapshot_id, unix_millis(committed_at) FROM {numbers}.snapshots"))
    for snapshot, expected in ((first, [1]), (second, [1, 2]), (third, [1, 2, 3])):
        at = f"timestamp_millis({times[snapshot]})"
        assert values(spark, numbers, f"TIMESTAMP AS OF {at}") == expected
        option = spark.read.option("versionAsOf", str(snapshot)).table(numbers)
        assert sorted(row.n for row in option.collect()) == expected
        assert values(spark, f"{numbers}.snapshot_id_{snapshot}") == expected
    with pytest.raises(Exception, match="Cannot find a snapshot older than"):
        spark.sql(f"SELECT * FROM {numbers} TIMESTAMP AS OF '2001-01-01'").collect()
    # A snapshot has the columns of its time, a branch those of today.
    assert spark.sql(f"SELECT * FROM {numbers} VERSION AS OF {first}").columns == ["n"]
    assert spark.sql(f"SELECT * FROM {numbers} VERSION AS OF 'main'").columns == ["n", "later"]


def test_tags_and_branches_keep_their_snapshots_from_expiry(spark: SparkSession, numbers: str) -> None:
    run(
        spark,
        f"ALTER TABLE {numbers} CREATE TAG keep",
        f"INSERT OVERWRITE {numbers} VALUES (2)",
        f"INSERT OVERWRITE {numbers} VALUES (3)",
    )
    first, second, third = snapshots(spark, numbers)
    call(spark, numbers, "expire_snapshots", "older_than => TIMESTAMP'2124-01-01', retain_last => 1")
    assert snapshots(spark, numbers) == [first, third]
    assert values(spark, numbers, "VERSION AS OF 'keep'") == [1]
    with pytest.raises(Exception, match="Cannot find snapshot with ID"):
        spark.sql(f"SELECT * FROM {numbers} VERSION AS OF {second}").collect()
