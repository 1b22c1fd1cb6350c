# ruff: noqa: E501
"""Incremental refreshes after unusual changes of the tables, and in sessions with other settings. Afterwards, the
stored rows are those of the query."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.iceberg_writer import Writer
from tests.spark.sql import call, current_snapshot, rows, run
from tests.spark.test_incremental_refresh import ALWAYS, QUICK, contents, home, refreshed

__all__ = ["home"]  # a fixture
pytestmark = pytest.mark.spark

SHAPES = {
    "v_sums": "SELECT region, count(*) AS c, sum(n) AS s, min(n) AS lo, max(n) AS hi FROM {t} GROUP BY region",
    "v_joined": "SELECT t.id, o.name, t.n FROM {t} t JOIN o ON t.k = o.k WHERE t.n > 5",
    "v_ranks": "SELECT id, n, rank() OVER (PARTITION BY region ORDER BY n) AS r FROM {t}",
    "v_rows": "SELECT * FROM {t} WHERE n > 5",
}
MERGE_ON_READ = ", ".join(f"'write.{one}.mode' = 'merge-on-read'" for one in ("delete", "update", "merge"))
INCREMENTAL = {"incremental"}


class Views:
    """Incremental views over one table, branch or tag, and their queries."""

    def __init__(self, spark: SparkSession, home: str, queries: dict[str, str], table: str = "t") -> None:
        self.spark = spark
        self.home = home
        self.queries = {name: query.format(t=table) for name, query in queries.items()}
        for name, query in self.queries.items():
            run(spark, f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ({ALWAYS}) AS {query}")
            assert refreshed(spark, name)[0] == "full"

    def after(self, *statements: str) -> set[str]:
        """Run statements and refresh all views. Compare the stored rows with those of the queries. Return how the views
        were refreshed: the strategy, and why it was full."""
        run(self.spark, *statements)
        found = set()
        for name, query in self.queries.items():
            strategy, reason = refreshed(self.spark, name)
            found.add(f"full: {reason.partition('because ')[2]}" if strategy == "full" else strategy)
            columns = ", ".join(f"`{one}`" for one in self.spark.table(name).columns)
            stored = contents(self.spark, f"SELECT {columns} FROM {self.home}.{name}.storage")
            assert stored == contents(self.spark, query), (name, statements, strategy, reason)
        return found


def shapes(*names: str, **queries: str) -> dict[str, str]:
    return {name: SHAPES[name] for name in names} | queries


def tables(spark: SparkSession, version: int = 2, partitioned: str = "", more: str = "") -> None:
    """Create the tables t and o: t has 24 rows in two files."""
    modes = f", {MERGE_ON_READ}" if version > 1 else ""
    run(
        spark,
        f"CREATE TABLE t (id BIGINT, k BIGINT, region STRING, n BIGINT) {partitioned} "
        f"TBLPROPERTIES ('format-version' = '{version}' {modes} {more})",
        "CREATE TABLE o (k BIGINT, name STRING)",
        "INSERT INTO o VALUES (0, 'a'), (1, 'b'), (1, 'c'), (3, 'd')",
    )
    for start in (0, 12):
        query = f"SELECT id, id % 4, concat('r', id % 3), id FROM range({start}, {start + 12}, 1, 1)"
        run(spark, f"INSERT INTO t {query}")


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


def compaction(home: str, table: str = "t") -> str:
    return f"CALL polaris.system.rewrite_data_files(table => '{home}.{table}', options => map('rewrite-all','true'))"


BY_REGION = "PARTITIONED BY (region)"
BY_BUCKET = "PARTITIONED BY (bucket(3, id))"
PLACES: dict[str, list[dict[str, Any]]] = {
    "": [{}],
    BY_REGION: [{"region": "r0"}, {"region": "r1"}],
    BY_BUCKET: [{"id_bucket": 0}, {"id_bucket": 1}],
}


@pytest.mark.parametrize(
    ("version", "partitioned", "names"),
    [
        (2, "", ("v_joined",)),
        *(
            pytest.param(version, place, tuple(SHAPES), marks=pytest.mark.exhaustive)
            for version in (2, 3)
            for place in PLACES
        ),
    ],
)
def test_equality_deletes(
    spark: SparkSession, home: str, version: int, partitioned: str, names: tuple[str, ...]
) -> None:
    tables(spark, version, partitioned)
    views = Views(spark, home, shapes(*names))
    writer, where = Writer(spark, f"{home}.t"), PLACES[partitioned]

    def delete(*keys: dict[str, Any], rows: tuple[Any, ...] = ()) -> None:
        writer.row_delta([writer.deletes(list(keys), **one) for one in where], rows)

    delete({"id": 3}, {"id": 4})
    assert views.after() == INCREMENTAL
    # The deletes do not apply to newer files.
    assert (
        views.after("INSERT INTO t VALUES (3, 1, 'r0', 3), (4, 1, 'r1', 99), (5, 1, NULL, 9)") == INCREMENTAL
    )
    if partitioned != BY_BUCKET:  # an upsert: the deletes do not apply to the rows of their commit
        row = {"id": 3, "k": 1, "region": "r0", "n": 100}
        delete({"id": 3}, rows=(writer.data([row], **where[0]),))
    # Position deletes in files with equality deletes, and new rows
    assert (
        views.after("DELETE FROM t WHERE id IN (0, 6, 14)", "UPDATE t SET n = n + 1 WHERE id = 15")
        == INCREMENTAL
    )
    # Deletes by other columns, one of them by null, in files with position deletes
    delete({"region": None, "n": 9}, {"region": "r0", "n": 9})
    delete({"k": 2})
    assert views.after("INSERT INTO t VALUES (31, 2, 'r0', 30)", "DELETE FROM t WHERE id = 16") == INCREMENTAL
    assert views.after(compaction(home)) == {"none"}
    delete({"id": 31})
    assert views.after(compaction(home)) == INCREMENTAL


@pytest.mark.parametrize(
    "names", [("v_sums",), pytest.param(tuple(SHAPES), marks=pytest.mark.exhaustive)], ids=len
)
def test_snapshots_are_cherry_picked_and_rolled_back(
    spark: SparkSession, home: str, names: tuple[str, ...]
) -> None:
    tables(spark, 2, BY_REGION, ", 'write.wap.enabled' = 'true'")
    views, t = Views(spark, home, shapes(*names)), f"{home}.t"
    first = current_snapshot(spark, t)
    with setting(spark, "spark.wap.id", "one"):
        assert views.after("INSERT INTO t VALUES (50, 1, 'r0', 50)") == {"none"}
    dynamic = setting(spark, "spark.sql.sources.partitionOverwriteMode", "dynamic")
    with setting(spark, "spark.wap.id", "two"), dynamic:
        run(spark, "INSERT OVERWRITE t SELECT id, k, region, n + 1 FROM t WHERE region = 'r1'")
    staged = dict(
        rows(
            spark,
            f"SELECT summary['wap.id'], snapshot_id FROM {t}.snapshots WHERE summary['wap.id'] IS NOT NULL",
        )
    )
    run(spark, "DELETE FROM t WHERE id = 3")
    call(spark, t, "cherrypick_snapshot", f"snapshot_id => {staged['one']}")
    assert views.after() == INCREMENTAL
    call(spark, t, "publish_changes", "wap_id => 'two'")
    assert views.after() == INCREMENTAL
    last = current_snapshot(spark, t)
    call(spark, t, "rollback_to_snapshot", f"snapshot_id => {first}")
    assert views.after() == INCREMENTAL
    call(spark, t, "set_current_snapshot", f"snapshot_id => {last}")
    assert views.after() == INCREMENTAL
    call(spark, t, "set_current_snapshot", f"snapshot_id => {staged['two']}")
    assert views.after("DELETE FROM t WHERE id = 4") == INCREMENTAL
    run(
        spark,
        "ALTER TABLE t CREATE BRANCH b",
        f"INSERT INTO {t}.branch_b VALUES (52, 3, 'r9', 52)",
        f"DELETE FROM {t}.branch_b WHERE id = 5 OR region = 'r2'",
    )
    call(spark, t, "fast_forward", "branch => 'main', to => 'b'")
    assert views.after() == INCREMENTAL


def test_a_session_that_reads_another_branch_does_not_read_stored_rows(
    spark: SparkSession, home: str
) -> None:
    tables(spark, more=", 'write.wap.enabled' = 'true'")
    views = Views(spark, home, shapes("v_sums"))
    with setting(spark, "spark.wap.branch", "w"):
        run(spark, "INSERT INTO t VALUES (60, 1, 'r0', 60)")
        other = contents(spark, views.queries["v_sums"])
        assert contents(spark, "SELECT * FROM v_sums") == other
        assert refreshed(spark, "v_sums")[0] == "none"
    assert views.after("DELETE FROM t WHERE id = 7") == INCREMENTAL
    assert contents(spark, "SELECT * FROM v_sums") == contents(spark, views.queries["v_sums"]) != other


def test_branches_and_tags_that_move(spark: SparkSession, home: str) -> None:
    tables(spark)
    t = f"{home}.t"
    run(spark, "ALTER TABLE t CREATE BRANCH b", "ALTER TABLE t CREATE TAG x")
    query = "SELECT region, sum(n) AS s, max(n) AS m FROM {t} GROUP BY region"
    branch = Views(spark, home, {"b": query}, f"{t}.branch_b")
    tag = Views(spark, home, {"x": query}, f"{t}.tag_x")
    run(spark, "DELETE FROM t WHERE id = 3", f"INSERT INTO {t}.branch_b VALUES (70, 1, 'r0', 70)")
    assert (branch.after(), tag.after()) == (INCREMENTAL, {"none"})
    run(spark, "ALTER TABLE t CREATE OR REPLACE BRANCH b", "ALTER TABLE t CREATE OR REPLACE TAG x")
    assert (branch.after(), tag.after()) == (INCREMENTAL, INCREMENTAL)
    # A branch is read with the present columns of the table, a tag with those of its snapshot.
    run(spark, "ALTER TABLE t DROP COLUMN n", "ALTER TABLE t ADD COLUMN n BIGINT")
    changed = {f"full: the columns of {home.partition('.')[2]}.t were changed"}
    assert (branch.after(), tag.after()) == (changed, {"none"})
    run(spark, "INSERT INTO t VALUES (80, 2, 'r0', 3)", "ALTER TABLE t CREATE OR REPLACE TAG x")
    assert (branch.after(), tag.after()) == ({"none"}, changed)


def test_a_tag_that_moves_between_snapshots_with_earlier_columns(spark: SparkSession, home: str) -> None:
    t = f"{home}.t"
    run(
        spark,
        "CREATE TABLE t (id BIGINT, n BIGINT)",
        "INSERT INTO t VALUES (1, 10)",
        "ALTER TABLE t CREATE TAG x",
        "INSERT INTO t VALUES (2, 20)",
    )
    query = "SELECT id, n FROM {t}"
    tag = Views(spark, home, {"x": query}, f"{t}.tag_x")
    newest = current_snapshot(spark, t)
    run(spark, "ALTER TABLE t RENAME COLUMN n TO m", "ALTER TABLE t ADD COLUMN n BIGINT")
    changed = {f"full: the columns of {home.partition('.')[2]}.t were changed"}
    assert tag.after(f"ALTER TABLE t CREATE OR REPLACE TAG x AS OF VERSION {newest}") == changed


def test_names_that_columns_exchange(spark: SparkSession, home: str) -> None:
    tables(spark)
    views = Views(spark, home, shapes("v_sums", "v_rows"))
    for old, new in (("k", "x"), ("n", "k"), ("x", "n")):
        run(spark, f"ALTER TABLE t RENAME COLUMN {old} TO {new}")
    for name, query in views.queries.items():
        with pytest.raises(
            Exception, match="changed after the last snapshot of the table; write to the table first"
        ):
            refreshed(spark, name)
        assert contents(
            spark, f"SELECT id FROM ({query})" if name == "v_rows" else f"SELECT * FROM {name}"
        ) == contents(spark, f"SELECT id FROM {name}" if name == "v_rows" else query)
    changed = {f"full: the columns of {home.partition('.')[2]}.t were changed"}
    assert views.after("INSERT INTO t VALUES (80, 2, 'r0', 30)") == changed
    assert views.after("DELETE FROM t WHERE id = 80") == INCREMENTAL


def test_a_file_that_was_added_several_times(spark: SparkSession, home: str) -> None:
    tables(spark)
    views = Views(spark, home, shapes("v_sums"))
    writer = Writer(spark, f"{home}.t")
    values = [{"id": id, "k": 1, "region": region, "n": id} for id, region in ((40, "r0"), (41, "r8"))]
    file = writer.data(values)
    for _ in range(2):
        writer.table.newAppend().appendFile(file).commit()
    assert views.after() == INCREMENTAL
    twice = {f"full: data file {file.location()} is in a table several times"}
    assert views.after("DELETE FROM t WHERE id = 3") == INCREMENTAL
    assert views.after("DELETE FROM t WHERE id = 40") == twice
    assert views.after("INSERT INTO t VALUES (42, 1, 'r0', 42)") == INCREMENTAL
    writer.table.newDelete().deleteFile(file).commit()
    assert views.after() == twice
    writer.table.newAppend().appendFile(file).commit()
    assert views.after("DELETE FROM t WHERE id = 41") == INCREMENTAL


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("merge-on-read", ("v_sums",)),
        pytest.param("merge-on-read", tuple(SHAPES), marks=pytest.mark.exhaustive),
        pytest.param("copy-on-write", tuple(SHAPES), marks=pytest.mark.exhaustive),
    ],
)
def test_upgraded_tables(spark: SparkSession, home: str, mode: str, names: tuple[str, ...]) -> None:
    tables(spark, 1)
    views = Views(spark, home, shapes(*names))
    modes = MERGE_ON_READ.replace("merge-on-read", mode)
    upgrade = f"ALTER TABLE t SET TBLPROPERTIES ('format-version' = '2', {modes})"
    assert views.after("DELETE FROM t WHERE id = 3", upgrade) == INCREMENTAL
    assert views.after("DELETE FROM t WHERE id = 4", "UPDATE t SET n = n * 2 WHERE id = 14") == INCREMENTAL
    upgrade = "ALTER TABLE t SET TBLPROPERTIES ('format-version' = '3')"
    assert views.after("DELETE FROM t WHERE id = 5", upgrade) == INCREMENTAL
    # Deletion vectors replace position deletes.
    assert (
        views.after("DELETE FROM t WHERE id IN (6, 7, 17)", "UPDATE t SET n = n * 2 WHERE id IN (14, 0)")
        == INCREMENTAL
    )
    assert views.after(compaction(home), "DELETE FROM t WHERE id = 1") == INCREMENTAL
    merge = "MERGE INTO t USING (SELECT 100 AS id) s ON t.id = s.id OR t.id = 8 WHEN MATCHED THEN DELETE "
    assert views.after(merge + "WHEN NOT MATCHED THEN INSERT (id, n, k) VALUES (s.id, 7, 1)") == INCREMENTAL


def test_evolved_partitions_and_columns(spark: SparkSession, home: str) -> None:
    tables(spark, 2, BY_REGION)
    names = ", ".join(("id", "region", "n"))
    views = Views(spark, home, shapes("v_sums"))
    t = home.partition(".")[2] + ".t"
    changed = {f"full: the columns of {t} were changed"}
    add = "ALTER TABLE t ADD PARTITION FIELD bucket(2, id)"
    assert views.after(add, "INSERT INTO t VALUES (40, 1, 'r0', 40), (41, 1, 'r0', 41)") == INCREMENTAL
    drop = "ALTER TABLE t DROP PARTITION FIELD region"
    insert = "INSERT INTO t VALUES (42, 1, 'r1', 42)"
    assert views.after(drop, "DELETE FROM t WHERE id IN (40, 3, 6)", insert) == INCREMENTAL
    assert (
        views.after("ALTER TABLE t RENAME COLUMN k TO j", "ALTER TABLE t ADD COLUMN more STRING") == changed
    )
    assert views.after("INSERT INTO t VALUES (43, 1, 'r1', 42, 'x')") == changed
    assert views.after("ALTER TABLE t ALTER COLUMN n FIRST", "DELETE FROM t WHERE id = 7") == changed
    assert views.after("TRUNCATE TABLE t") == INCREMENTAL
    assert views.after(f"INSERT INTO t ({names}) VALUES (1, 'r1', 43), (2, 'r2', 50)") == INCREMENTAL
    assert views.after(f"INSERT OVERWRITE t ({names}) VALUES (2, 'r2', 51), (3, 'r3', 9)") == INCREMENTAL
    with setting(spark, "spark.sql.sources.partitionOverwriteMode", "dynamic"):
        overwrite = f"INSERT OVERWRITE t ({names}) SELECT id, region, n + 100 FROM t WHERE id = 3"
        assert views.after(overwrite) == INCREMENTAL
    # The name of a column that was dropped is that of a new column.
    assert views.after("ALTER TABLE t DROP COLUMN n", "ALTER TABLE t ADD COLUMN n BIGINT") == changed
    assert views.after("CREATE OR REPLACE TABLE t AS SELECT 5L AS id, 'r5' AS region, 77L AS n") == changed
    assert views.after("INSERT INTO t VALUES (6, 'r5', 78)") == INCREMENTAL
    assert views.after("REPLACE TABLE t (region STRING, id BIGINT, n BIGINT)") == {
        f"full: {t} has no snapshot any more"
    }
    views.after("INSERT INTO t VALUES ('r5', 6, 78)")
    assert views.after("INSERT INTO t VALUES ('r5', 7, 1)") == INCREMENTAL


def test_columns_whose_types_change(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "CREATE TABLE w (id INT, d DECIMAL(5,2), f FLOAT, l ARRAY<TINYINT>, p STRUCT<a: INT>)",
        "INSERT INTO w VALUES (1, 3.5, 1.25, array(), NULL), (2, 4, 0.1, array(2), named_struct('a', 1))",
    )
    queries = {
        "wide": "SELECT id, d, count(*) AS c FROM w GROUP BY id, d",
        "narrow": "SELECT CAST(id % 2 AS TINYINT) AS odd, count(*) AS c FROM w GROUP BY 1",
        "arrays": "SELECT l FROM w",
    }
    views = Views(spark, home, queries)
    refused = {"lossy": "SELECT f FROM w", "nested": "SELECT p FROM w"}
    Views(spark, home, refused)
    run(
        spark,
        *(
            f"ALTER TABLE w ALTER COLUMN {one}"
            for one in ("id TYPE BIGINT", "d TYPE DECIMAL(9,2)", "f TYPE DOUBLE")
        ),
        "ALTER TABLE w ADD COLUMN p.b INT",
    )
    views.after("INSERT INTO w VALUES (3, 5, 0.1, array(3), NULL)")
    assert views.after("INSERT INTO w VALUES (3, 5, 0.1, array(3), NULL)") == INCREMENTAL
    assert views.after("DELETE FROM w WHERE id = 1") == INCREMENTAL
    for name, message in {"lossy": "double instead of float", "nested": "a:int,b:int> instead of"}.items():
        with pytest.raises(Exception, match=f"{message}.*; replace the view"):
            refreshed(spark, name)


def test_a_sum_that_overflows_is_not_stored(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "CREATE TABLE b (k INT, n BIGINT)",
        "INSERT INTO b VALUES (1, -9223372036854775808), (1, 5)",
    )
    Views(spark, home, {"v": "SELECT k, sum(n) AS s FROM b GROUP BY k"})
    run(spark, "UPDATE b SET n = 9223372036854775807 WHERE n < 0")
    with pytest.raises(Exception, match="overflow"):
        refreshed(spark, "v")


def test_nested_keys_and_wide_rows(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "CREATE TABLE s (id BIGINT, p STRUCT<a: INT, b: STRING>, l ARRAY<INT>, m MAP<STRING, INT>, d DOUBLE)",
        "INSERT INTO s SELECT id, named_struct('a', 1, 'b', 'x'), array(1, 2), map('k', 1, 'j', 2), "
        "IF(id = 1, 0.0D, -0.0D) FROM range(1, 3)",
        "INSERT INTO s VALUES (3, NULL, NULL, NULL, NULL), (4, named_struct('a', NULL, 'b', 'y'), array(), map(), double('NaN'))",
    )
    by_map = {"maps": "SELECT m, count(*) AS c FROM s GROUP BY m"}
    maps = Views(spark, home, by_map)
    queries = {
        "whole": "SELECT p, l, m, d FROM s",
        "structs": "SELECT p, count(*) AS c, max(id) AS m FROM s GROUP BY p",
        "windows": "SELECT id, rank() OVER (PARTITION BY p, l ORDER BY id) AS r FROM s",
    }
    nested = Views(spark, home, queries)
    for statement in (
        "INSERT INTO s VALUES (5, named_struct('a', 1, 'b', 'x'), array(1, 2), map('j', 2, 'k', 1), 0.0)",
        "DELETE FROM s WHERE id IN (1, 3, 4)",
    ):
        assert nested.after(statement) == INCREMENTAL
        assert maps.after() == {"full: it groups rows by a map"}
    columns = range(60)
    run(spark, f"CREATE TABLE wide (id BIGINT, {', '.join(f'c{one} INT' for one in columns)})")
    values = ", ".join(map(str, columns))
    run(spark, f"INSERT INTO wide SELECT id, {values} FROM range(3)")
    wide = Views(spark, home, {"wide_rows": "SELECT * FROM wide"})
    assert wide.after(f"INSERT INTO wide SELECT 3, {values}", "DELETE FROM wide WHERE id = 1") == INCREMENTAL


def test_columns_that_differ_only_in_case(spark: SparkSession, home: str) -> None:
    with setting(spark, "spark.sql.caseSensitive", "true"):
        run(
            spark,
            "CREATE TABLE c (a BIGINT, A BIGINT, n BIGINT)",
            "INSERT INTO c VALUES (1, 10, 5), (1, 11, 6), (2, 20, 7), (2, 20, 7)",
        )
        queries = {
            "filtered": "SELECT a, A AS b, n FROM c WHERE A > 10",
            "grouped": "SELECT max(n) AS m FROM c GROUP BY a, A",
            "ranked": "SELECT a, rank() OVER (PARTITION BY A ORDER BY n) AS r FROM c",
        }
        views = Views(spark, home, queries)
        assert (
            views.after("INSERT INTO c VALUES (2, 20, 9), (2, 21, 9)", "UPDATE c SET A = 5 WHERE a = 1")
            == INCREMENTAL
        )
        with pytest.raises(Exception, match="two columns named 'a'"):
            run(spark, "CREATE MATERIALIZED VIEW bad AS SELECT a, A FROM c")


def test_tables_and_common_table_expressions_that_differ_only_in_case(spark: SparkSession, home: str) -> None:
    with setting(spark, "spark.sql.caseSensitive", "true"):
        run(spark, "CREATE TABLE c (n BIGINT)", "INSERT INTO c VALUES (1)")
        views = Views(
            spark, home, {"v": "WITH C AS (SELECT 5 AS n) SELECT n FROM c UNION ALL SELECT n FROM C"}
        )
        assert views.after("INSERT INTO c VALUES (2)") == INCREMENTAL


SETTINGS = {
    # N is the column of the table, or the alias.
    "spark.sql.caseSensitive": ("true", "SELECT n % 2 AS N, count(*) AS c FROM t GROUP BY N"),
    "spark.sql.jsonGenerator.ignoreNullFields": (
        "false",
        "SELECT to_json(named_struct('a', NULL, 'b', n)) AS j FROM t",
    ),
    "spark.sql.parser.escapedStringLiterals": ("true", r"SELECT id, '\n' AS x FROM t"),
    "spark.sql.legacy.setopsPrecedence.enabled": (
        "true",
        "SELECT id FROM t UNION SELECT k FROM t INTERSECT SELECT k FROM o",
    ),
    "spark.sql.decimalOperations.allowPrecisionLoss": (
        "false",
        "SELECT CAST(CAST(n AS DECIMAL(38,9)) / 7 AS STRING) AS x FROM t",
    ),
    "spark.sql.mapKeyDedupPolicy": (
        "LAST_WIN",
        "SELECT try_element_at(IF(n > 90, map(1, n, 1, k), NULL), 1) AS x FROM t",
    ),
    "spark.sql.timestampType": (
        "TIMESTAMP_NTZ",
        "SELECT id, typeof(TIMESTAMP '2024-01-01 00:00:00') AS y FROM t",
    ),
}


@pytest.mark.parametrize(
    "name",
    list(SETTINGS)[:3] + [pytest.param(one, marks=pytest.mark.exhaustive) for one in list(SETTINGS)[3:]],
)
def test_stored_rows_belong_to_the_settings_of_the_session(spark: SparkSession, home: str, name: str) -> None:
    value, query = SETTINGS[name]
    tables(spark)
    views = Views(spark, home, {"v": query})
    with setting(spark, name, value):
        assert contents(spark, "SELECT * FROM v") == contents(spark, query)
        other = {f"full: the session has another {name} than that of the last refresh"}
        assert views.after("INSERT INTO t VALUES (30, 1, 'r0', 31)") == other
        assert (
            views.after("DELETE FROM t WHERE id = 30", "UPDATE t SET n = n + 1 WHERE id = 5") == INCREMENTAL
        )
    assert contents(spark, "SELECT * FROM v") == contents(spark, query)


def test_functions_that_can_be_replaced(spark: SparkSession, home: str) -> None:
    tables(spark)
    spark.udf.register("of_python", lambda n: n + 1, "BIGINT")
    function = "FUNCTION of_sql(n BIGINT) RETURNS BIGINT RETURN n"
    run(spark, f"CREATE OR REPLACE TEMPORARY {function} + 1")
    for name in ("of_python", "of_sql"):
        with pytest.raises(Exception, match=f"{name} is a temporary function of this session"):
            run(spark, f"CREATE MATERIALIZED VIEW bad AS SELECT {name}(n) AS n FROM t")
    permanent = function.replace("of_sql", "spark_catalog.default.permanent")
    run(spark, f"CREATE OR REPLACE {permanent} + 1")
    query = "SELECT id, spark_catalog.default.permanent(n) AS n FROM t"
    queries = {"f": query, "b": "SELECT polaris.system.bucket(4, id) AS b, count(*) AS c FROM t GROUP BY 1"}
    views = Views(spark, home, queries)
    run(spark, f"CREATE OR REPLACE {permanent} + 1000")
    function = "spark_catalog.default.permanent"
    assert views.after("DELETE FROM t WHERE id = 3") == {
        "incremental",
        f"full: it calls the function {function}, which can be replaced",
    }


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_refreshes_at_the_same_time_as_other_writes(spark: SparkSession, home: str, rounds: int) -> None:
    """Two sessions refresh a view while others write to its table, compact its storage table and expire its snapshots."""
    tables(spark)
    views = Views(spark, home, shapes("v_sums", "v_rows"))
    errors: list[str] = []
    storage = f"{home}.v_sums.storage"

    def repeat(*statements: str) -> None:
        session = spark.newSession()
        for name in (
            *QUICK,
            "spark.sql.session.timeZone",
            *(f"spark.sql.catalog.polaris.{one}" for one in ("store", "warehouse")),
        ):
            session.conf.set(name, str(spark.conf.get(name)))
        run(session, f"USE {home}")
        for number in range(rounds):
            for statement in statements:
                try:
                    session.sql(statement.format(number=number)).collect()
                except Exception as error:
                    errors.append(f"{statement}: {error}")

    refreshes = [f"REFRESH MATERIALIZED VIEW {name}" for name in views.queries]
    expire = (
        f"CALL polaris.system.expire_snapshots(table => '{storage}', older_than => now(), retain_last => 1)"
    )
    threads = [
        threading.Thread(target=repeat, args=statements)
        for statements in (
            refreshes,
            refreshes[::-1],
            ("INSERT INTO t VALUES (10{number}, 1, 'r0', {number})", "DELETE FROM t WHERE id = {number}"),
            (compaction(home, "v_sums.storage"), expire),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A refresh gives up after other commits came first three times.
    first = ("conflict", "Missing required files", "Cannot find snapshot")
    unexpected = [one for one in errors if not any(text in one for text in first)]
    assert not unexpected
    assert views.after("DELETE FROM t WHERE id = 11") == INCREMENTAL
