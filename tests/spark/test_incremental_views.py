"""Incremental refreshes of materialized views: when they are possible, what they read, and hidden columns."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

from tests.spark.sql import current_snapshot, rows, run
from tests.spark.test_materialized_views import home, refreshed

__all__ = ["home"]  # a fixture
pytestmark = pytest.mark.spark

INCREMENTAL = "TBLPROPERTIES ('refresh-strategy' = 'incremental', 'incremental-limit' = '100')"
NEVER_INCREMENTAL = {
    "SELECT id, n FROM t ORDER BY n LIMIT 5": "it contains GlobalLimit",
    "SELECT id FROM t TABLESAMPLE (50 PERCENT) REPEATABLE (1)": "it contains Sample",
    "SELECT id, _file AS f FROM t": "it reads metadata columns",
    "SELECT region, collect_list(n) AS l FROM t GROUP BY region": "the result of collect_list can depend on "
    "the order of rows",
    "SELECT region, histogram_numeric(n, 3) AS h FROM t GROUP BY region": "the result of histogram_numeric can "
    "depend on the order of rows",
    "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 3) SELECT id FROM t JOIN r ON id = i": (
        "it contains UnionLoop"
    ),
    "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM t o WHERE o.region = t.region LIMIT 1)": (
        "it contains a LIMIT in a correlated subquery"
    ),
}


def test_a_refresh_that_cannot_be_incremental_says_why(spark: SparkSession, home: str) -> None:
    space = home.partition(".")[2]
    views = {f"v{number}": query for number, query in enumerate(NEVER_INCREMENTAL)}
    for name, query in views.items():
        run(spark, f"CREATE MATERIALIZED VIEW {name} {INCREMENTAL} AS {query}")
        refreshed(spark, name)
    run(spark, f"CREATE MATERIALIZED VIEW w {INCREMENTAL} AS SELECT id, rank() OVER (ORDER BY n) AS r FROM t")
    run(
        spark,
        f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS SELECT region, sum(n) AS s FROM t GROUP BY region",
    )
    assert refreshed(spark, "w")[1] == "it was never refreshed; not incremental, because it has no rows yet"
    assert refreshed(spark, "mv")[0] == "full"

    def reason(view: str) -> str:
        strategy, why, _ = refreshed(spark, view)
        return f"{strategy}: {why.rpartition('because ')[2]}"

    run(spark, "INSERT INTO t VALUES (200, 'r1', 7)")
    assert {query: reason(name) for name, query in views.items()} == {
        query: f"full: {why}" for query, why in NEVER_INCREMENTAL.items()
    }
    assert reason("w") == "full: it contains a window without PARTITION BY"
    assert reason("mv") == f"incremental: changed: {space}.t"
    run(spark, "ALTER MATERIALIZED VIEW mv SET TBLPROPERTIES ('incremental-limit' = '0.001')")
    run(spark, "UPDATE t SET n = n + 1")
    assert "bytes have changed" in reason("mv")
    run(spark, "ALTER MATERIALIZED VIEW mv SET TBLPROPERTIES ('incremental-limit' = '100')")
    run(spark, "ALTER TABLE t ADD COLUMN more INT", "INSERT INTO t VALUES (201, 'r1', 7, 1)")
    assert reason("mv") == f"full: the columns of {space}.t were changed"
    run(spark, "INSERT INTO t VALUES (202, 'r1', 7, 1)")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert reason("mv").startswith("full: the session has another spark.sql.session.timeZone")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    refreshed(spark, "mv", full=True)
    run(spark, "DELETE FROM t WHERE id = 3", "INSERT INTO t VALUES (203, 'r1', 7, 1)")
    expire = (
        f"CALL polaris.system.expire_snapshots(table => '{space}.t', older_than => now(), retain_last => 1)"
    )
    run(spark, expire)
    assert "has expired" in reason("mv")
    assert refreshed(spark, "mv", full=True)[1].endswith("because a full refresh was asked for")
    run(
        spark,
        f"CREATE OR REPLACE MATERIALIZED VIEW mv {INCREMENTAL} AS SELECT region, max(n) AS s FROM t GROUP BY region",
    )
    assert reason("mv") == "full: it has no rows yet"
    run(spark, "DROP TABLE t", "CREATE TABLE t AS SELECT 1 AS id, 'r' AS region, 5L AS n")
    assert "was replaced" in reason("mv")
    assert rows(spark, "SELECT * FROM mv") == [("r", 5)]


def test_a_refresh_is_full_if_computing_the_change_would_read_nearly_as_much(
    spark: SparkSession, home: str
) -> None:
    run(
        spark,
        "CREATE TABLE large AS SELECT pmod(id * 7919, 1000) AS k, id % 5 AS m FROM range(2000000)",
        "CREATE MATERIALIZED VIEW mv TBLPROPERTIES ('refresh-strategy' = 'incremental') AS"
        " SELECT t.id, large.m FROM t JOIN large ON t.n = large.k WHERE t.n < 5",
    )
    refreshed(spark, "mv")
    run(spark, "INSERT INTO t VALUES (200, 'r', 3)")
    strategy, reason, _ = refreshed(spark, "mv")
    assert (strategy, "it would read" in reason) == ("full", True), reason
    read, all = (int(one.replace(",", "")) for one in re.findall(r"[\d,]{6,}", reason))
    assert all / 2 < read <= all
    run(
        spark,
        "ALTER MATERIALIZED VIEW mv SET TBLPROPERTIES ('incremental-limit' = '2')",
        "INSERT INTO t VALUES (201, 'r', 4)",
    )
    assert refreshed(spark, "mv")[0] == "incremental"
    sums = rows(spark, "SELECT id, count(*) AS c FROM mv WHERE id > 199 GROUP BY id")
    assert sums == [(200, 2000), (201, 2000)]


def test_a_changed_table_in_a_subquery_of_an_expression_makes_the_refresh_full(
    spark: SparkSession, home: str
) -> None:
    run(spark, "CREATE TABLE o (x INT)", "INSERT INTO o VALUES (1)")
    queries = (
        "SELECT region, count(*) + (SELECT max(x) FROM o) AS c FROM t GROUP BY region",
        "SELECT region, count(*) AS c FROM t GROUP BY region HAVING count(*) < (SELECT max(x) FROM o)",
        "SELECT id, count(*) OVER (PARTITION BY region) + (SELECT max(x) FROM o) AS c FROM t",
        "SELECT id FROM t WHERE n > (SELECT max(x) FROM o)",
    )
    for number, query in enumerate(queries):
        run(spark, f"CREATE MATERIALIZED VIEW s{number} {INCREMENTAL} AS {query}")
        refreshed(spark, f"s{number}")
    for statements in (
        ("INSERT INTO t VALUES (200, 'r1', 7)",),
        ("INSERT INTO t VALUES (201, 'r9', 7)", "INSERT INTO o VALUES (40)"),
        ("INSERT INTO o VALUES (50)",),
    ):
        run(spark, *statements)
        for number, query in enumerate(queries):
            strategy, reason, _ = refreshed(spark, f"s{number}")
            if len(statements) == 1 and " t " in statements[0]:
                assert strategy == "incremental", reason
            else:
                assert reason.endswith("a table that a subquery in an expression reads has changed")
            assert rows(spark, f"SELECT * FROM s{number}") == rows(spark, query)


def test_tables_without_rows_before_or_after_and_hidden_names(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "CREATE TABLE e (id INT, n BIGINT)",
        f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS SELECT id, sum(n) AS s FROM e GROUP BY id",
    )
    refreshed(spark, "mv")
    for statement in ("INSERT INTO e VALUES (1, 5), (2, 6)", "DELETE FROM e", "INSERT INTO e VALUES (3, 4)"):
        run(spark, statement)
        assert refreshed(spark, "mv")[0] == "incremental"
        assert rows(spark, "SELECT * FROM mv") == rows(spark, "SELECT id, sum(n) FROM e GROUP BY id")
    with pytest.raises(Exception, match="cannot have a name that begins with polaris_state_"):
        run(spark, "CREATE MATERIALIZED VIEW bad AS SELECT id AS polaris_state_0 FROM t")


def test_hidden_columns_of_the_storage_table_follow_the_query(spark: SparkSession, home: str) -> None:
    def columns() -> list[str]:
        return [name for name in spark.table(f"{home}.mv.storage").columns if name.startswith("polaris")]

    run(spark, f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS SELECT avg(n) AS a FROM t GROUP BY region")
    refreshed(spark, "mv")
    assert len(columns()) == 5  # the key, the rows, and what the average is computed from
    assert spark.table("mv").columns == ["a"]
    run(
        spark,
        f"CREATE OR REPLACE MATERIALIZED VIEW mv {INCREMENTAL} AS SELECT region, count(*) AS c FROM t "
        "GROUP BY region",
    )
    refreshed(spark, "mv")
    assert columns() == []
    run(
        spark,
        f"CREATE OR REPLACE MATERIALIZED VIEW mv {INCREMENTAL} AS SELECT max(n) AS m FROM t GROUP BY region",
    )
    refreshed(spark, "mv")
    assert len(columns()) == 2
    run(spark, "ALTER MATERIALIZED VIEW mv SET TBLPROPERTIES ('refresh-strategy' = 'full')")
    refreshed(spark, "mv", full=True)
    assert columns() == []
    with pytest.raises(Exception, match="columns and the location"):
        run(spark, f"ALTER TABLE {home}.mv.storage ADD COLUMN more INT")
    with pytest.raises(Exception, match="columns and the location"):
        run(spark, f"ALTER TABLE {home}.mv.storage RENAME COLUMN m TO other")
    assert rows(spark, "CALL polaris.system.fsck()") == []


def test_hidden_columns_that_were_removed_and_added_are_not_used(spark: SparkSession, home: str) -> None:
    run(
        spark,
        f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS SELECT region, sum(n) AS s FROM t GROUP BY region",
    )
    refreshed(spark, "mv")
    storage = f"{home}.mv.storage"
    run(spark, f"ALTER TABLE {storage} DROP COLUMN polaris_state_0")
    run(spark, f"ALTER TABLE {storage} ADD COLUMN polaris_state_0 BIGINT")
    run(spark, "DELETE FROM t WHERE id < 5")
    strategy, reason, _ = refreshed(spark, "mv")
    assert (strategy, reason.rpartition("because ")[2]) == (
        "full",
        "the storage table lacks the hidden columns that this needs",
    )
    assert rows(spark, "SELECT * FROM mv") == rows(spark, "SELECT region, sum(n) FROM t GROUP BY region")


def test_stored_rows_that_are_not_those_of_the_last_refresh_are_noticed(
    spark: SparkSession, home: str
) -> None:
    query = "SELECT id, n FROM t WHERE n > 10"
    run(spark, f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS {query}")
    refreshed(spark, "mv")
    frame: Any = spark.sql("SELECT 1 AS id, 1L AS n")
    [(summary,)] = spark.sql(f"SELECT summary FROM {home}.mv.storage.snapshots").collect()
    last = json.loads(summary["polaris.refresh"])
    record = {**last, "refresh-id": 1, "replaces": last["refresh-id"]}
    writer = frame.writeTo(f"{home}.mv.storage")
    writer.option("snapshot-property.polaris.refresh", json.dumps(record)).overwrite(lit(True))
    run(spark, "DELETE FROM t WHERE id = 50")
    strategy, reason, _ = refreshed(spark, "mv")
    assert strategy == "full"
    assert "the stored rows are not those of the last refresh" in reason
    assert rows(spark, "SELECT * FROM mv") == rows(spark, query)


def test_incremental_refreshes_read_the_stored_rows_of_views_below(spark: SparkSession, home: str) -> None:
    day = "SELECT id % 10 AS day, region, sum(n) AS s, count(*) AS c FROM t GROUP BY 1, 2"
    run(
        spark,
        f"CREATE MATERIALIZED VIEW daily {INCREMENTAL} AS {day}",
        f"CREATE MATERIALIZED VIEW total {INCREMENTAL} AS SELECT region, sum(s) AS s, max(c) AS m FROM daily "
        "GROUP BY region",
        f"CREATE MATERIALIZED VIEW large {INCREMENTAL} AS SELECT region FROM total WHERE s > 1650",
    )
    for name in ("daily", "total", "large"):
        refreshed(spark, name)
    for statement in (
        "INSERT INTO t VALUES (3, 'r2', 50)",
        "DELETE FROM t WHERE id = 7",
        "UPDATE t SET n = 0 WHERE id = 98",
    ):
        run(spark, statement)
        assert [refreshed(spark, name)[0] for name in ("daily", "total", "large")] == ["incremental"] * 3
        assert rows(spark, "SELECT * FROM daily") == rows(spark, day)
        total = "SELECT region, sum(n) AS s FROM t GROUP BY region"
        assert rows(spark, "SELECT region, s FROM total") == rows(spark, total)
        assert rows(spark, "SELECT * FROM large") == rows(
            spark, f"SELECT region FROM ({total}) WHERE s > 1650"
        )
    run(spark, "INSERT INTO t VALUES (4, 'r1', 500)")
    assert refreshed(spark, "total")[0] == "incremental"  # from t, because daily is not fresh
    assert rows(spark, "SELECT region, s FROM total") == rows(
        spark, "SELECT region, sum(n) FROM t GROUP BY region"
    )


def test_a_refresh_reads_only_what_has_changed(spark: SparkSession, home: str) -> None:
    space = home.partition(".")[2]
    run(spark, f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS SELECT id, n FROM t")
    refreshed(spark, "mv")
    run(
        spark,
        "INSERT INTO t VALUES (300, 'c', 97), (400, 'd', 96)",
        f"CALL polaris.system.rewrite_data_files(table => '{home}.t', options => map('rewrite-all','true'))",
    )
    [explained] = spark.sql("EXPLAIN REFRESH MATERIALIZED VIEW mv").collect()
    assert (explained.strategy, explained.reason) == ("incremental", f"changed: {space}.t")
    [done] = spark.sql("REFRESH MATERIALIZED VIEW mv").collect()
    assert (done.strategy, done.rows_read, done.files_read, done.rows_written) == ("incremental", 2, 2, 2)
    operations = rows(spark, f"SELECT operation FROM {home}.mv.storage.snapshots")
    assert operations == [("append",), ("overwrite",)]


def test_manifests_that_did_not_change_are_not_read(spark: SparkSession, home: str) -> None:
    run(spark, f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS SELECT id, n FROM t")
    refreshed(spark, "mv")
    run(
        spark,
        "INSERT INTO t VALUES (300, 'c', 97)",
        "DELETE FROM t WHERE id = 300",
        "INSERT INTO t VALUES (301, 'c', 97)",
    )
    [kept] = rows(
        spark,
        f"SELECT m.path FROM {home}.t.all_manifests m JOIN {home}.t.snapshots s "
        "ON s.snapshot_id = m.reference_snapshot_id GROUP BY m.path HAVING count(*) = 4",
    )
    file = Path(kept[0].removeprefix("file:"))
    away = file.with_suffix(".away")
    file.rename(away)
    try:
        assert refreshed(spark, "mv")[0] == "incremental"
    finally:
        away.rename(file)
    assert rows(spark, "SELECT * FROM mv") == rows(spark, "SELECT id, n FROM t")


def test_only_files_with_changed_rows_are_replaced(spark: SparkSession, home: str) -> None:
    by_row, by_state = (
        "SELECT region, id, n FROM t",
        "SELECT region, sum(n) AS s, min(n) AS m FROM t GROUP BY region",
    )
    views = {
        "lineage": ("PARTITIONED BY (region)", "'format-version' = '3'", by_row),
        "sums": ("PARTITIONED BY (region)", "'format-version' = '2'", by_state),
        "buckets": (
            "PARTITIONED BY (bucket(2, `i,d`), truncate(1, region))",
            "'format-version' = '2'",
            "SELECT region, id AS `i,d`, n FROM t",
        ),
        "total": ("", "'format-version' = '2'", "SELECT sum(n) AS s FROM t"),
        "merged": ("", "'write.merge.mode' = 'merge-on-read'", by_row),
    }
    for name, (partitions, properties, query) in views.items():
        more = f"TBLPROPERTIES ({properties}, {INCREMENTAL.partition('(')[2]}"
        run(spark, f"CREATE MATERIALIZED VIEW {name} {partitions} {more} AS {query}")
        assert refreshed(spark, name)[0] == "full"

    def files(name: str) -> dict[str, str]:
        found = rows(spark, f"SELECT file_path, partition.region FROM {home}.{name}.storage.data_files")
        return dict(found)

    before = {name: files(name) for name in ("lineage", "sums")}
    ids = rows(spark, f"SELECT id, _row_id FROM {home}.lineage.storage WHERE id <> 4")
    run(spark, "UPDATE t SET n = n + 1000 WHERE id = 4")
    for name, (_, _, query) in views.items():
        assert refreshed(spark, name)[0] == "incremental", name
        assert rows(spark, f"SELECT * FROM {name}") == rows(spark, query), name
    for name, some in before.items():
        replaced = {region for path, region in some.items() if path not in files(name)}
        assert replaced == {"r1"}, name
    assert rows(spark, f"SELECT id, _row_id FROM {home}.lineage.storage WHERE id <> 4") == ids
    [(deletes,)] = rows(spark, f"SELECT count(*) FROM {home}.merged.storage.delete_files")
    assert deletes == 1


def test_two_branches_of_one_table_are_not_mixed_up(spark: SparkSession, home: str) -> None:
    query = f"SELECT id, 'main' AS b FROM t UNION ALL SELECT id, 'b' AS b FROM {home}.t.branch_b"
    run(spark, "ALTER TABLE t CREATE BRANCH b", f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS {query}")
    refreshed(spark, "mv")
    for statement in (f"INSERT INTO {home}.t.branch_b VALUES (500, 'x', 1)", "DELETE FROM t WHERE id > 90"):
        run(spark, statement)
        assert refreshed(spark, "mv")[0] == "incremental"
        assert rows(spark, "SELECT * FROM mv") == rows(spark, query)
    run(
        spark,
        f"CREATE OR REPLACE MATERIALIZED VIEW mv {INCREMENTAL} AS SELECT a.id FROM t a JOIN t VERSION AS OF "
        f"{current_snapshot(spark, f'{home}.t')} b ON a.id = b.id",
    )
    refreshed(spark, "mv")
    run(spark, "DELETE FROM t WHERE id > 80")
    assert refreshed(spark, "mv")[0] == "incremental"
    assert rows(spark, "SELECT count(*) FROM mv") == [(81,)]


def test_expire_keeps_the_snapshots_that_the_next_refresh_needs(spark: SparkSession, home: str) -> None:
    space = home.partition(".")[2]
    expire = f"CALL polaris.system.expire(namespace => '{space}', older_than => now(), retain_last => 1)"
    run(
        spark,
        f"CREATE MATERIALIZED VIEW below {INCREMENTAL} AS SELECT region, sum(n) AS s FROM t GROUP BY region",
        f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS SELECT s FROM below WHERE s > 5",
    )
    for view in ("below", "mv"):
        refreshed(spark, view)
    for number in range(3):
        run(spark, f"INSERT INTO t VALUES ({number}, 'r1', 7)", expire)
    assert len(rows(spark, f"SELECT * FROM {home}.t.snapshots")) == 2
    assert refreshed(spark, "below")[0] == "incremental"
    run(spark, "INSERT INTO t VALUES (9, 'r9', 7)")
    assert refreshed(spark, "below")[0] == "incremental"
    run(
        spark,
        f"CALL polaris.system.expire(table => '{space}.below.storage', older_than => now(), retain_last => 1)",
    )
    assert len(rows(spark, f"SELECT * FROM {home}.below.storage.snapshots")) == 2
    assert refreshed(spark, "mv")[0] == "incremental"
    assert rows(spark, "SELECT * FROM mv") == rows(spark, "SELECT sum(n) FROM t GROUP BY region")
    for view in ("below", "mv"):
        run(spark, f"ALTER MATERIALIZED VIEW {view} SET TBLPROPERTIES ('refresh-retention' = '1 ms')")
    run(spark, "INSERT INTO t VALUES (10, 'r9', 7)", expire)
    assert len(rows(spark, f"SELECT * FROM {home}.t.snapshots")) == 1
    assert "has expired" in refreshed(spark, "below")[1]


def test_removed_texts_and_times_are_found_under_all_settings_of_the_session(
    spark: SparkSession, home: str
) -> None:
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    try:
        spark.conf.set("spark.sql.parser.escapedStringLiterals", "true")
        spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        # Half past two comes twice on this day.
        query = "SELECT id, '\\n' AS x, timestamp_seconds(1729989000 + 3600 * (id % 2)) AS at FROM t WHERE id < 20"
        run(spark, f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS {query}")
        refreshed(spark, "mv")
        run(spark, "DELETE FROM t WHERE id IN (3, 4)")
        assert refreshed(spark, "mv")[0] == "incremental"
        assert rows(spark, f"SELECT * FROM {home}.mv.storage") == rows(spark, query)
    finally:
        spark.conf.unset("spark.sql.parser.escapedStringLiterals")
        spark.conf.set("spark.sql.session.timeZone", zone)
