"""Statements that replace tables, change columns and partitions, and overwrite parts of tables."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from tests.spark.sql import call, rows, run, snapshots


def names(spark: SparkSession, table: str) -> list[str]:
    return spark.table(table).columns


def partitioning(spark: SparkSession, table: str) -> list[str]:
    described = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    return [row.data_type for row in described if row.col_name.startswith("Part ")]


@pytest.mark.parametrize("statement", ["REPLACE TABLE", "CREATE OR REPLACE TABLE"])
def test_a_replaced_table_is_another_with_the_same_history(
    spark: SparkSession, home: str, statement: str
) -> None:
    table = f"{home}.t"
    run(
        spark,
        f"CREATE TABLE {table} (id INT, a STRING) PARTITIONED BY (a) TBLPROPERTIES ('old' = '1', 'both' = '1')",
        f"INSERT INTO {table} VALUES (1, 'x')",
    )
    [uuid] = rows(
        spark, f"SELECT uuid FROM {home.split('.')[0]}.system.tables WHERE namespace = '{home.split('.')[1]}'"
    )
    spark.sql(
        f"{statement} {table} PARTITIONED BY (bucket(4, n)) TBLPROPERTIES ('both' = '2', 'new' = '2')"
        " AS SELECT CAST(7 AS BIGINT) AS n, 'y' AS a"
    )
    first, second = snapshots(spark, table)
    assert rows(spark, f"SELECT * FROM {table}") == [(7, "y")]
    assert rows(spark, f"SELECT * FROM {table} VERSION AS OF {first}") == [(1, "x")]
    assert rows(spark, f"SELECT parent_id FROM {table}.snapshots WHERE snapshot_id = {second}") == [(None,)]
    assert partitioning(spark, table) == ["bucket(4, n)"]
    properties = dict(rows(spark, f"SHOW TBLPROPERTIES {table}"))
    assert (properties["both"], properties["new"]) == ("2", "2")
    assert [uuid] == rows(
        spark, f"SELECT uuid FROM {home.split('.')[0]}.system.tables WHERE namespace = '{home.split('.')[1]}'"
    )
    call(spark, table, "rollback_to_snapshot", f"snapshot_id => {second}")
    spark.sql(f"{statement} {table} (only DATE)")
    assert (names(spark, table), rows(spark, f"SELECT * FROM {table}")) == (["only"], [])
    assert len(snapshots(spark, table)) == 2


def test_a_replacement_that_fails_leaves_the_table(spark: SparkSession, home: str) -> None:
    run(
        spark,
        f"CREATE TABLE {home}.t (id INT) PARTITIONED BY (bucket(2, id))",
        f"INSERT INTO {home}.t VALUES (1)",
    )
    for statement in ("REPLACE TABLE", "CREATE OR REPLACE TABLE"):
        with pytest.raises(Exception, match="on purpose"):
            spark.sql(
                f"{statement} {home}.t AS SELECT CAST(raise_error('on purpose') AS INT) AS broken FROM range(3)"
            )
    assert rows(spark, f"SELECT * FROM {home}.t") == [(1,)]
    assert partitioning(spark, f"{home}.t") == ["bucket(2, id)"]
    with pytest.raises(Exception, match="on purpose"):
        spark.sql(
            f"CREATE TABLE {home}.never AS SELECT CAST(raise_error('on purpose') AS INT) AS broken FROM range(3)"
        )
    assert not spark.catalog.tableExists(f"{home}.never")
    with pytest.raises(AnalysisException, match="NOT_FOUND"):
        spark.sql(f"REPLACE TABLE {home}.never AS SELECT 1 AS n")


def test_every_transform_partitions_and_prunes(spark: SparkSession, home: str) -> None:
    table = f"{home}.t"
    run(
        spark,
        f"""CREATE TABLE {table} (id BIGINT, at TIMESTAMP, day DATE, s STRING, d DECIMAL(9,2))
        PARTITIONED BY (hours(at), months(day), bucket(8, id), truncate(2, s), d)""",
        f"""INSERT INTO {table} VALUES
        (1, TIMESTAMP'2024-01-01 10:20:00', DATE'2024-01-31', 'abc', 1.50),
        (2, TIMESTAMP'1969-12-31 23:59:59', DATE'1969-12-31', 'ü𝄞x', -2.50),
        (3, NULL, NULL, NULL, NULL)""",
    )
    [(partition,)] = [
        (row.partition,)
        for row in spark.table(f"{table}.partitions").collect()
        if row.partition.d == Decimal("1.50")
    ]
    hours = int((datetime(2024, 1, 1, 10) - datetime(1970, 1, 1)).total_seconds() // 3600)
    assert (partition.at_hour, partition.day_month, partition.s_trunc) == (hours, 54 * 12, "ab")
    assert {row.partition.day_month for row in spark.table(f"{table}.partitions").collect()} == {
        648,
        -1,
        None,
    }
    assert rows(spark, f"SELECT id FROM {table} WHERE s = 'ü𝄞x' AND at < TIMESTAMP'1970-01-01'") == [(2,)]
    assert rows(spark, f"SELECT id FROM {table} WHERE d IS NULL") == [(3,)]


def test_partitions_evolve_and_old_files_stay_where_they_are(spark: SparkSession, home: str) -> None:
    table = f"{home}.t"
    run(
        spark,
        f"CREATE TABLE {table} (id INT, at DATE) PARTITIONED BY (years(at))",
        f"INSERT INTO {table} VALUES (1, DATE'2020-05-05')",
        f"ALTER TABLE {table} REPLACE PARTITION FIELD at_year WITH months(at) AS month",
        f"INSERT INTO {table} VALUES (2, DATE'2020-06-06')",
        f"ALTER TABLE {table} ADD PARTITION FIELD bucket(2, id) AS shard",
        f"ALTER TABLE {table} DROP PARTITION FIELD month",
        f"INSERT INTO {table} VALUES (3, DATE'2020-07-07')",
    )
    assert rows(spark, f"SELECT count(*), count(DISTINCT spec_id) FROM {table}.data_files") == [(3, 3)]
    assert partitioning(spark, table) == ["bucket(2, id)"]
    assert rows(spark, f"SELECT id FROM {table} WHERE at > DATE'2020-06-01'") == [(2,), (3,)]
    spark.sql(f"DELETE FROM {table} WHERE at < DATE'2020-07-01'")
    assert rows(spark, f"SELECT id FROM {table}") == [(3,)]


def test_columns_change_in_every_way_while_rows_stay(spark: SparkSession, home: str) -> None:
    table = f"{home}.t"
    run(
        spark,
        f"""CREATE TABLE {table} (id INT NOT NULL COMMENT 'key', f FLOAT, d DECIMAL(5,2), gone STRING,
        s STRUCT<a: INT, b: STRING>, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<y: INT>>)""",
        f"""INSERT INTO {table} VALUES (1, 0.5, 1.25, 'g', named_struct('a', 1, 'b', 'b'),
        array(named_struct('x', 2)), map('k', named_struct('y', 3)))""",
    )
    for change in (
        "ALTER COLUMN id TYPE BIGINT",
        "ALTER COLUMN f TYPE DOUBLE",
        "ALTER COLUMN d TYPE DECIMAL(9,2)",
        "ALTER COLUMN id DROP NOT NULL",
        "ALTER COLUMN f COMMENT 'half'",
        "DROP COLUMN gone",
        "ADD COLUMNS (first INT FIRST, gone INT COMMENT 'another one' AFTER id)",
        "ALTER COLUMN d FIRST",
        "ADD COLUMN s.c DATE",
        "RENAME COLUMN s.b TO bb",
        "ALTER COLUMN s.c AFTER a",
        "ADD COLUMN l.element.z STRING",
        "ADD COLUMN m.value.w INT",
        "ALTER COLUMN m.value.y TYPE BIGINT",
        "DROP COLUMN s.a",
    ):
        spark.sql(f"ALTER TABLE {table} {change}")
    assert names(spark, table) == ["d", "first", "id", "gone", "f", "s", "l", "m"]
    types = {name: (type, comment) for name, type, comment in rows(spark, f"DESCRIBE {table}")}
    assert types["id"] == ("bigint", "key")
    assert types["f"] == ("double", "half")
    assert types["s"][0] == "struct<c:date,bb:string>"
    assert types["m"][0] == "map<string,struct<y:bigint,w:int>>"
    query = "SELECT id, first, gone, d, f, s.c, s.bb, l[0].x, l[0].z, m['k'].y, m['k'].w"
    assert rows(spark, f"{query} FROM {table}") == [
        (1, None, None, Decimal("1.25"), 0.5, None, "b", 2, None, 3, None)
    ]
    for change in (
        "ALTER COLUMN id TYPE INT",
        "ALTER COLUMN f TYPE STRING",
        "ADD COLUMN id INT",
        "DROP COLUMN nothing",
    ):
        with pytest.raises(Exception):  # noqa: B017, PT011  # which class, Spark and Iceberg say differently
            spark.sql(f"ALTER TABLE {table} {change}")
    assert names(spark, table) == ["d", "first", "id", "gone", "f", "s", "l", "m"]


def test_identifier_fields_and_write_orders_are_kept(spark: SparkSession, home: str) -> None:
    table = f"{home}.t"
    run(
        spark,
        f"CREATE TABLE {table} (id INT NOT NULL, k STRING NOT NULL, n INT) PARTITIONED BY (k)",
        f"ALTER TABLE {table} SET IDENTIFIER FIELDS id, k",
    )
    with pytest.raises(Exception, match="identifier"):
        spark.sql(f"ALTER TABLE {table} DROP COLUMN id")
    run(
        spark,
        f"ALTER TABLE {table} DROP IDENTIFIER FIELDS k",
        f"ALTER TABLE {table} WRITE DISTRIBUTED BY PARTITION LOCALLY ORDERED BY n DESC NULLS LAST, id",
    )
    properties = dict(rows(spark, f"SHOW TBLPROPERTIES {table}"))
    assert properties["identifier-fields"] == "[id]"
    assert properties["sort-order"] == "n DESC NULLS LAST, id ASC NULLS FIRST"
    assert properties["write.distribution-mode"] == "hash"
    spark.sql(f"INSERT INTO {table} SELECT CAST(id AS INT), 'a', CAST(id % 5 AS INT) FROM range(20)")
    written = [row.n for row in spark.table(table).collect()]
    assert written == sorted(written, reverse=True)
    spark.sql(f"ALTER TABLE {table} WRITE UNORDERED")
    assert "sort-order" not in dict(rows(spark, f"SHOW TBLPROPERTIES {table}"))


def test_partitions_are_overwritten_dynamically_or_statically(spark: SparkSession, home: str) -> None:
    table = f"{home}.t"
    run(
        spark,
        f"CREATE TABLE {table} (id INT, k STRING) PARTITIONED BY (k)",
        f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    )
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        spark.sql(f"INSERT OVERWRITE {table} VALUES (10, 'a')")
        assert rows(spark, f"SELECT * FROM {table}") == [(2, "b"), (3, "c"), (10, "a")]
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    spark.sql(f"INSERT OVERWRITE {table} PARTITION (k = 'b') SELECT 20")
    assert rows(spark, f"SELECT * FROM {table}") == [(3, "c"), (10, "a"), (20, "b")]
    frame = spark.createDataFrame([(30, "c")], "id INT, k STRING")
    frame.writeTo(table).overwritePartitions()
    assert rows(spark, f"SELECT * FROM {table}") == [(10, "a"), (20, "b"), (30, "c")]
    frame.writeTo(table).overwrite(col("k").isin("a", "c"))
    assert rows(spark, f"SELECT * FROM {table}") == [(20, "b"), (30, "c")]
    spark.sql(f"INSERT OVERWRITE {table} VALUES (9, 'z')")
    assert rows(spark, f"SELECT * FROM {table}") == [(9, "z")]
    operations = rows(spark, f"SELECT operation, count(*) FROM {table}.snapshots GROUP BY operation")
    assert operations == [("append", 1), ("overwrite", 5)]
