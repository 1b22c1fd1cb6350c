"""Materialized views in Spark's SQL: created, refreshed, read, and dropped."""

from __future__ import annotations

import json
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

import polaris_spark
from tests.spark.sql import rows, run

if TYPE_CHECKING:
    from conftest import CatalogPlace

pytestmark = pytest.mark.spark


@pytest.fixture
def home(spark: SparkSession, namespace: str) -> str:
    """A namespace with the table `t` (id, region, n) of 100 rows. It is the session's current namespace."""
    run(
        spark,
        f"USE {namespace}",
        "CREATE TABLE t (id INT, region STRING, n BIGINT)",
        "INSERT INTO t SELECT CAST(id AS INT), concat('r', id % 3), id FROM range(100)",
    )
    return namespace


def refreshed(spark: SparkSession, view: str, *, full: bool = False) -> tuple[str, str, int]:
    """Refresh a view, and return the strategy, the reason and the number of rows written."""
    row = spark.sql(f"REFRESH MATERIALIZED VIEW {view}{' FULL' if full else ''}").collect()[0]
    return row.strategy, row.reason, row.rows_written


def plan(spark: SparkSession, query: str) -> str:
    """The physical plan of a query."""
    frame: Any = spark.sql(query)
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_a_fresh_view_is_read_from_its_storage_table_with_pruned_partitions(
    spark: SparkSession, home: str
) -> None:
    run(
        spark,
        "CREATE MATERIALIZED VIEW mv (region COMMENT 'where', total) PARTITIONED BY (region) COMMENT 'sums'"
        " AS SELECT region, sum(n) FROM t GROUP BY region",
    )
    assert rows(spark, "SELECT count(*) FROM mv.storage.snapshots".replace("mv", f"{home}.mv")) == [(0,)]
    assert refreshed(spark, "mv") == ("full", "it was never refreshed", 3)
    assert refreshed(spark, "mv") == ("none", "the rows are fresh", 0)
    assert rows(spark, "SELECT * FROM mv ORDER BY region") == [("r0", 1683), ("r1", 1617), ("r2", 1650)]
    text = plan(spark, "SELECT total FROM mv WHERE region = 'r1'")
    assert "mv.storage" in text
    assert "region = 'r1'" in text
    assert spark.table("mv").schema["region"].metadata["comment"] == "where"
    assert len(rows(spark, f"SELECT * FROM {home}.mv.storage.partitions")) == 3


def test_a_stale_view_is_refreshed_before_it_is_read(spark: SparkSession, home: str) -> None:
    run(spark, "CREATE MATERIALIZED VIEW mv AS SELECT count(*) AS c FROM t")
    assert rows(spark, "SELECT c FROM mv") == [(100,)]
    run(spark, "INSERT INTO t VALUES (100, 'r0', 100)")
    assert rows(spark, "SELECT c FROM mv") == [(101,)]
    assert rows(spark, f"SELECT count(*) FROM {home}.mv.storage.snapshots") == [(2,)]
    run(spark, "DELETE FROM t WHERE id < 51")
    assert rows(spark, "SELECT c FROM mv") == [(50,)]
    run(
        spark,
        f"CALL polaris.system.rewrite_data_files(table => '{home}.t', options => map('rewrite-all','true'))",
    )
    assert refreshed(spark, "mv")[0] == "none"


def test_stale_rows_are_read_only_if_the_view_allows_them_and_while_they_are_not_too_old(
    spark: SparkSession, home: str
) -> None:
    run(
        spark,
        "CREATE MATERIALIZED VIEW mv TBLPROPERTIES ('allow-stale-data' = 'true') AS SELECT count(*) AS c FROM t",
    )
    assert rows(spark, "SELECT c FROM mv") == [(100,)]
    run(spark, "INSERT INTO t VALUES (100, 'r0', 100)")
    assert rows(spark, "SELECT c FROM mv") == [(100,)]
    run(spark, "ALTER MATERIALIZED VIEW mv SET TBLPROPERTIES ('max-staleness' = '1 ms')")
    assert rows(spark, "SELECT c FROM mv") == [(101,)]
    run(
        spark,
        "INSERT INTO t VALUES (100, 'r0', 100)",
        "ALTER MATERIALIZED VIEW mv SET TBLPROPERTIES ('max-staleness' = '1 h')",
    )
    assert rows(spark, "SELECT c FROM mv") == [(101,)]
    run(spark, "ALTER MATERIALIZED VIEW mv SET TBLPROPERTIES ('allow-stale-data' = 'false')")
    assert rows(spark, "SELECT c FROM mv") == [(102,)]


def test_where_a_refresh_fails_the_query_of_the_view_is_run(spark: SparkSession, home: str) -> None:
    run(spark, "CREATE MATERIALIZED VIEW mv AS SELECT id, 10 DIV (id - 200) AS x FROM t")
    assert rows(spark, "SELECT count(*) FROM mv") == [(100,)]
    run(spark, "INSERT INTO t VALUES (200, 'r0', 1)")
    assert rows(spark, "SELECT id FROM mv WHERE id = 7") == [(7,)]  # without the row that cannot be computed
    assert rows(spark, f"SELECT count(*) FROM {home}.mv.storage") == [(100,)]


def test_views_and_materialized_views_below_are_followed(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "CREATE VIEW large (ident, value) AS SELECT id, n FROM t WHERE n >= 50",
        "CREATE MATERIALIZED VIEW sums AS SELECT ident % 2 AS odd, sum(value) AS total FROM large GROUP BY 1",
        "CREATE MATERIALIZED VIEW top AS SELECT max(s.total) AS most FROM sums s JOIN t ON t.id = s.odd",
    )
    assert rows(spark, "SELECT most FROM top") == [(1875,)]
    assert refreshed(spark, "top")[0] == "none"
    run(spark, "CREATE OR REPLACE VIEW large (ident, value) AS SELECT id, n FROM t WHERE n >= 98")
    assert refreshed(spark, "top")[1].startswith("changed: ")
    assert rows(spark, "SELECT most FROM top") == [(99,)]


def test_all_stale_views_are_refreshed_the_ones_below_first(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "CREATE MATERIALIZED VIEW z AS SELECT region, sum(n) AS s FROM t GROUP BY region",
        "CREATE VIEW y AS SELECT s FROM z",
        "CREATE MATERIALIZED VIEW a AS SELECT max(s) AS m FROM y",
        "CREATE MATERIALIZED VIEW broken AS SELECT CAST(raise_error(region) AS INT) AS x FROM t",
        "CREATE MATERIALIZED VIEW fresh AS SELECT 1 AS one",
        "REFRESH MATERIALIZED VIEW fresh",
        "INSERT INTO t VALUES (100, 'r0', 0)",
    )
    space = home.partition(".")[2]
    done = spark.sql(f"CALL polaris.system.refresh_stale(namespace => '{space}', threads => 2)").collect()
    found = {one["view"].rpartition(".")[2]: (one.strategy, one.rows_written, one.error) for one in done}
    assert found.pop("broken")[0] == "failed"
    assert found == {"z": ("full", 3, None), "a": ("full", 1, None)}
    names = [one["view"] for one in done]
    assert names.index(f"{space}.z") < names.index(f"{space}.a")
    assert rows(spark, "SELECT m FROM a") == [(1683,)]
    run(spark, "INSERT INTO t VALUES (100, 'r9', 5000)")
    assert rows(spark, f"CALL polaris.system.refresh_stale(namespace => '{space}')") != []
    assert refreshed(spark, "a")[0] == "none"
    explained = spark.sql("EXPLAIN REFRESH MATERIALIZED VIEW a").collect()
    assert [(one.strategy, one.source) for one in explained] == [("none", f"{space}.t")]
    assert rows(spark, "SELECT m FROM a") == [(5000,)]


def test_a_fresh_view_below_is_read_from_its_storage_table(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "CREATE MATERIALIZED VIEW below AS SELECT region, sum(n) AS s FROM t GROUP BY region",
        "CREATE MATERIALIZED VIEW above AS SELECT max(s) AS m FROM below",
        "REFRESH MATERIALIZED VIEW below",
    )
    first = spark.sql("REFRESH MATERIALIZED VIEW above").collect()[0]
    assert first.rows_read == 0
    assert rows(spark, "SELECT m FROM above") == [(1683,)]
    run(spark, "INSERT INTO t VALUES (100, 'r9', 5000)")
    second = spark.sql("REFRESH MATERIALIZED VIEW above").collect()[0]
    assert second.rows_read == 101
    assert rows(spark, "SELECT m FROM above") == [(5000,)]


def test_all_sources_are_read_as_of_one_commit(spark: SparkSession, home: str, place: CatalogPlace) -> None:
    run(
        spark,
        "CREATE TABLE empty (id INT)",
        "CREATE MATERIALIZED VIEW mv AS SELECT a.id FROM t a JOIN t b ON a.id = b.id"
        " WHERE a.id NOT IN (SELECT id FROM empty)",
    )
    refreshed(spark, "mv")
    with polaris_spark.connect(store=place.store, create=False) as session:
        name = home.partition(".")[2]
        body = session.request("GET", f"v1/namespaces/{name}%1Fmv/tables/storage")[2]
        document = json.loads(json.loads(body)["metadata"]["properties"]["materialized_view_metadata"])
        of_t = json.loads(session.request("GET", f"v1/namespaces/{name}/tables/t")[2])["metadata"]
    (record,) = document["refreshes"]
    assert [(one["identifier"], one["snapshot-reference"]) for one in record["base-tables"]] == [
        ("t", of_t["current-snapshot-id"]),
        ("empty", -1),
    ]
    summary = spark.sql(f"SELECT summary FROM {home}.mv.storage.snapshots").collect()[0][0]
    state = json.loads(summary["refresh-state"])
    assert state["view-version-id"] == 1
    assert [one["snapshot-id"] for one in state["source-states"]] == [of_t["current-snapshot-id"], -1]


def test_refreshes_at_the_same_time_leave_one_state(spark: SparkSession, home: str) -> None:
    run(spark, "CREATE MATERIALIZED VIEW mv AS SELECT region, count(*) AS c FROM t GROUP BY region")
    done: list[str] = []

    def again() -> None:
        done.append(refreshed(spark, f"{home}.mv")[0])

    threads = [threading.Thread(target=again) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(done) == 4
    assert rows(spark, f"SELECT count(*) FROM {home}.mv.storage.snapshots") == [(done.count("full"),)]
    assert rows(spark, "SELECT sum(c) FROM mv") == [(100,)]


def test_a_replaced_query_is_computed_anew(spark: SparkSession, home: str) -> None:
    run(spark, "CREATE MATERIALIZED VIEW mv AS SELECT id FROM t")
    refreshed(spark, "mv")
    run(
        spark,
        "CREATE OR REPLACE MATERIALIZED VIEW mv PARTITIONED BY (bucket(2, a)) AS SELECT n AS a, id AS b FROM t",
    )
    assert rows(spark, "SELECT a, b FROM mv WHERE b = 3") == [(3, 3)]
    assert len(rows(spark, f"SELECT * FROM {home}.mv.storage.partitions")) == 2


def test_statements_list_describe_rename_and_drop(spark: SparkSession, home: str) -> None:
    run(spark, "CREATE MATERIALIZED VIEW mv AS SELECT id FROM t", "CREATE VIEW ordinary AS SELECT 1 AS a")
    shown = spark.sql("SHOW MATERIALIZED VIEWS").collect()
    assert [(one.name, one.fresh, one.reason) for one in shown] == [("mv", False, "it was never refreshed")]
    explained = spark.sql("EXPLAIN REFRESH MATERIALIZED VIEW mv").collect()
    assert [(one.strategy, one["rows"], one.changed) for one in explained] == [("full", 100, False)]
    refreshed(spark, "mv")
    described = dict(rows(spark, "DESCRIBE MATERIALIZED VIEW mv"))
    assert described["query"] == "SELECT id FROM t"
    assert described["fresh"] == "true"
    assert "SELECT id FROM t" in rows(spark, "SHOW CREATE TABLE mv")[0][0]
    run(spark, f"ALTER MATERIALIZED VIEW mv RENAME TO {home}.other")
    assert refreshed(spark, "other")[0] == "none"
    assert [one.tableName for one in spark.sql("SHOW TABLES").collect()] == ["t"]
    assert rows(spark, "CREATE MATERIALIZED VIEW IF NOT EXISTS other AS SELECT 1 AS a")[0][1] is False
    assert rows(spark, "DROP MATERIALIZED VIEW other")[0][1] is True
    assert rows(spark, "DROP MATERIALIZED VIEW IF EXISTS other")[0][1] is False
    assert rows(spark, "CALL polaris.system.fsck()") == []


def test_columns_that_changed_after_the_last_snapshot_are_read_as_they_are_now(
    spark: SparkSession, home: str
) -> None:
    run(
        spark,
        "CREATE TABLE s (id INT, n INT, gone INT)",
        "INSERT INTO s VALUES (1, 10, 5)",
        "CREATE MATERIALIZED VIEW mv AS SELECT id, n FROM s",
        "CREATE MATERIALIZED VIEW every AS SELECT * FROM s",
    )
    assert rows(spark, "SELECT * FROM mv") == [(1, 10)]
    assert rows(spark, "SELECT * FROM every") == [(1, 10, 5)]
    run(spark, "ALTER TABLE s DROP COLUMN n", "ALTER TABLE s ADD COLUMN n INT")
    assert rows(spark, "SELECT * FROM mv") == [(1, None)]
    run(spark, "ALTER TABLE s ALTER COLUMN id TYPE BIGINT", "ALTER TABLE s RENAME COLUMN gone TO kept")
    run(spark, "CREATE MATERIALIZED VIEW renamed AS SELECT kept, typeof(id) AS type FROM s")
    assert rows(spark, "SELECT * FROM renamed") == [(5, "bigint")]
    run(spark, "ALTER TABLE s ADD COLUMN more INT", "INSERT INTO s VALUES (2, 6, 20, 7)")
    assert rows(spark, "SELECT * FROM mv") == [(1, None), (2, 20)]
    run(spark, "CREATE MATERIALIZED VIEW wide AS SELECT * FROM t")
    run(spark, "ALTER TABLE t ADD COLUMN more INT", "DELETE FROM t WHERE id > 0")
    assert rows(spark, "SELECT * FROM wide") == [(0, "r0", 0)]
    assert refreshed(spark, "wide")[0] == "none"


def test_rows_of_a_session_with_another_time_zone_are_not_used(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "CREATE TABLE events (at TIMESTAMP)",
        "INSERT INTO events VALUES (TIMESTAMP '2026-01-01 23:00:00Z')",
        "CREATE MATERIALIZED VIEW days AS SELECT date(at) AS day FROM events",
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone, day in (("UTC", "2026-01-01"), ("Asia/Tokyo", "2026-01-02"), ("UTC", "2026-01-01")):
            spark.conf.set("spark.sql.session.timeZone", zone)
            assert rows(spark, "SELECT CAST(day AS STRING) FROM days") == [(day,)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    assert rows(spark, f"SELECT count(*) FROM {home}.days.storage.snapshots") == [(1,)]


def test_a_branch_is_followed_and_a_snapshot_id_is_not(spark: SparkSession, home: str) -> None:
    id = rows(spark, f"SELECT snapshot_id FROM {home}.t.snapshots")[0][0]
    run(
        spark,
        "ALTER TABLE t CREATE BRANCH b",
        f"CREATE MATERIALIZED VIEW of_branch AS SELECT count(*) AS c FROM {home}.t.branch_b",
        f"CREATE MATERIALIZED VIEW fixed AS SELECT count(*) AS c FROM t VERSION AS OF {id}",
    )
    assert rows(spark, "SELECT c FROM of_branch") == rows(spark, "SELECT c FROM fixed") == [(100,)]
    run(spark, "INSERT INTO t VALUES (1, 'r', 1)")
    assert refreshed(spark, "of_branch")[0] == refreshed(spark, "fixed")[0] == "none"
    run(spark, f"INSERT INTO {home}.t.branch_b VALUES (1, 'r', 1), (2, 'r', 2)")
    assert rows(spark, "SELECT c FROM of_branch") == [(102,)]
    assert refreshed(spark, "fixed")[0] == "none"


def test_a_refresh_that_writes_elsewhere_is_refused(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "CREATE MATERIALIZED VIEW mv TBLPROPERTIES ('write.wap.enabled' = 'true') AS SELECT id FROM t",
    )
    spark.conf.set("spark.wap.branch", "aside")
    try:
        with pytest.raises(Exception, match=r"spark\.wap\.branch"):
            refreshed(spark, "mv")
    finally:
        spark.conf.unset("spark.wap.branch")
    assert rows(spark, f"SELECT count(*) FROM {home}.mv.storage.snapshots") == [(0,)]
    assert refreshed(spark, "mv")[0] == "full"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("CREATE MATERIALIZED VIEW mv AS SELECT * FROM gone", "neither a table nor a view"),
        ("CREATE OR REPLACE MATERIALIZED VIEW old AS SELECT * FROM old", "reads itself"),
        ("CREATE MATERIALIZED VIEW mv AS SELECT * FROM passing", "temporary view"),
        ("CREATE MATERIALIZED VIEW old AS SELECT 1 AS a", "already exists"),
        ("CREATE MATERIALIZED VIEW IF NOT EXISTS ordinary AS SELECT 1 AS a", "already exists"),
        ("CREATE MATERIALIZED VIEW mv (a, b) AS SELECT id FROM t", "2 columns"),
        ("CREATE MATERIALIZED VIEW mv AS SELECT id, n AS ID FROM t", "two columns"),
        ("CREATE MATERIALIZED VIEW mv AS SELECT _file FROM t", "reserves the name '_file'"),
        ("CREATE MATERIALIZED VIEW mv AS SELECT INTERVAL '1' DAY AS i", "cannot store .* interval day"),
        ("CREATE MATERIALIZED VIEW mv PARTITIONED BY (nope) AS SELECT id FROM t", "not a column"),
        ("CREATE MATERIALIZED VIEW mv PARTITIONED BY (sqrt(id)) AS SELECT id FROM t", "bucket"),
        (
            "CREATE MATERIALIZED VIEW mv TBLPROPERTIES ('refresh-strategy' = 'incremental')"
            " AS SELECT rand() AS r FROM t",
            "calls rand",
        ),
        (
            "CREATE MATERIALIZED VIEW mv TBLPROPERTIES ('refresh-strategy' = 'often') AS SELECT id FROM t",
            "refresh-strategy",
        ),
        ("CREATE MATERIALIZED VIEW mv AS SELECT nope FROM t", "nope"),
        ("CREATE MATERIALIZED VIEW mv AS SELECT id FROM t VERSION AS OF 'main'", "snapshot id"),
        ("CREATE MATERIALIZED VIEW mv AS SELECT id FROM t TIMESTAMP AS OF '2030-01-01'", "snapshot id"),
        ("CREATE MATERIALIZED VIEW mv AS SELECT id FROM t WHERE region = current_user()", "all users"),
        ("CREATE MATERIALIZED VIEW mv AS SELECT * FROM mine", "all users"),
        (
            "CREATE MATERIALIZED VIEW mv AS SELECT * FROM spark_catalog.default.t",
            "neither a table nor a view",
        ),
        ("DROP MATERIALIZED VIEW ordinary", "is not materialized"),
        ("REFRESH MATERIALIZED VIEW ordinary", "is not materialized"),
        ("REFRESH MATERIALIZED VIEW gone", "does not exist"),
    ],
)
def test_bad_input_gets_one_clear_error_and_changes_nothing(
    spark: SparkSession, home: str, statement: str, words: str
) -> None:
    run(
        spark,
        "CREATE MATERIALIZED VIEW old AS SELECT id FROM t",
        "CREATE VIEW ordinary AS SELECT 1 AS a",
        "CREATE VIEW mine AS SELECT id FROM t WHERE region = current_user()",
        "CREATE OR REPLACE TEMPORARY VIEW passing AS SELECT 1 AS a",
    )
    head = rows(spark, "SELECT max(number) FROM polaris.system.changes")
    with pytest.raises(Exception, match=words):
        spark.sql(statement).collect()
    assert rows(spark, "SELECT max(number) FROM polaris.system.changes") == head
    spark.catalog.dropTempView("passing")


def test_a_query_with_a_function_that_reads_a_table_is_refused(spark: SparkSession, home: str) -> None:
    prefix = f"spark_catalog.default.{uuid.uuid4().hex}"
    functions = {
        "top": f"(x BIGINT) RETURNS BIGINT RETURN (SELECT max(id) FROM {home}.t WHERE id >= x)",
        "all": f"() RETURNS TABLE (id BIGINT) RETURN SELECT id FROM {home}.t",
        "next": "(x BIGINT) RETURNS BIGINT RETURN x + 1",
    }
    run(spark, *[f"CREATE FUNCTION {prefix}_{name} {text}" for name, text in functions.items()])
    try:
        for query in (
            f"SELECT {prefix}_top(id) AS m FROM t",
            f"SELECT id FROM t WHERE id IN (SELECT {prefix}_top(n) FROM t)",
        ):
            with pytest.raises(Exception, match=r"function .*_top, which reads a table"):
                run(spark, f"CREATE MATERIALIZED VIEW mv AS {query}")
        run(spark, "USE spark_catalog")
        mv = f"CREATE MATERIALIZED VIEW {home}.mv AS SELECT * FROM"
        with pytest.raises(Exception, match=r"function .*_all, which reads a table"):
            run(spark, f"{mv} {prefix.rpartition('.')[2]}_all()")
        run(spark, f"USE {home}", f"CREATE MATERIALIZED VIEW mv AS SELECT {prefix}_next(id) AS m FROM t")
        assert refreshed(spark, "mv")[0] == "full"
        assert rows(spark, "SELECT * FROM mv EXCEPT ALL SELECT id + 1 FROM t") == []
    finally:
        run(spark, *[f"DROP FUNCTION {prefix}_{name}" for name in functions])


def test_columns_of_a_view_below_have_the_types_of_this_view(spark: SparkSession, home: str) -> None:
    """The view's schema has INT where its query has TINYINT, which Iceberg does not have."""
    run(
        spark,
        "CREATE VIEW small AS SELECT CAST(100 AS TINYINT) AS b FROM t LIMIT 1",
        "CREATE TABLE codes (code STRING)",
        "CREATE VIEW shown AS SELECT code FROM codes",
        "CREATE MATERIALIZED VIEW sums AS SELECT b + b AS s FROM small",
        "CREATE MATERIALIZED VIEW greatest AS SELECT max(code) AS m FROM shown",
        "CREATE OR REPLACE TABLE codes (code INT)",
        "INSERT INTO codes VALUES (9), (10)",
    )
    for view, query in (("sums", "SELECT b + b FROM small"), ("greatest", "SELECT max(code) FROM shown")):
        assert refreshed(spark, view)[0] == "full"
        assert rows(spark, f"SELECT * FROM {view}") == rows(spark, query)
    assert rows(spark, "SELECT * FROM sums") == [(200,)]


def test_columns_are_qualified_by_the_full_name_of_a_table(spark: SparkSession, home: str) -> None:
    space = home.partition(".")[2]
    query = f"SELECT {home}.t.id, {space}.t.n, t.region FROM t WHERE {home}.T.id < 3"
    run(spark, f"CREATE MATERIALIZED VIEW mv AS {query}")
    refreshed(spark, "mv")
    run(spark, f"CREATE VIEW above AS SELECT id FROM {home}.mv")
    run(spark, "INSERT INTO t VALUES (-1, 'r0', 0)")
    assert refreshed(spark, "mv")[0] == "full"
    assert rows(spark, "SELECT * FROM mv EXCEPT ALL " + query) == []
    assert sorted(rows(spark, "SELECT * FROM above")) == [(-1,), (0,), (1,), (2,)]


def test_a_query_reads_a_path_in_a_variant(spark: SparkSession, home: str) -> None:
    query = "SELECT CAST(docs.v:a.b AS INT) AS b FROM docs"
    run(
        spark,
        "CREATE TABLE docs (v VARIANT) TBLPROPERTIES ('format-version' = '3')",
        """INSERT INTO docs SELECT parse_json('{"a": {"b": 5}}')""",
        f"CREATE MATERIALIZED VIEW mv TBLPROPERTIES ('refresh-strategy' = 'incremental') AS {query}",
    )
    refreshed(spark, "mv")
    run(spark, """INSERT INTO docs SELECT parse_json('{"a": {"b": 6}}')""")
    assert refreshed(spark, "mv")[0] == "incremental"
    assert sorted(rows(spark, "SELECT b FROM mv")) == [(5,), (6,)]


def test_a_table_without_a_snapshot_is_read_with_options(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "CREATE TABLE empty (id INT)",
        "CREATE MATERIALIZED VIEW mv AS SELECT empty.id FROM empty WITH ('split-size' = '1000')",
    )
    refreshed(spark, "mv")
    run(spark, "INSERT INTO empty VALUES (1)")
    assert refreshed(spark, "mv")[0] == "full"
    assert rows(spark, "SELECT id FROM mv") == [(1,)]


def test_the_query_of_a_procedure_can_end_with_a_comment(spark: SparkSession, home: str) -> None:
    query = "SELECT id FROM t WHERE id < 2; -- the end"
    run(
        spark,
        f"CALL polaris.system.create_materialized_view(view => '{home}.mv', query => '{query}')",
        "CREATE MATERIALIZED VIEW above AS SELECT count(*) AS c FROM mv",
    )
    refreshed(spark, "above")
    assert rows(spark, "SELECT c FROM above") == [(2,)]


def test_a_materialized_view_cannot_be_created_in_another_state(spark: SparkSession, home: str) -> None:
    run(spark, "CREATE MATERIALIZED VIEW mv AS SELECT id FROM t")
    for statement in (
        "CREATE MATERIALIZED VIEW `w@main` AS SELECT id FROM t",
        f"CALL polaris.system.alter_materialized_view(view => '{home}.mv', rename_to => '{home}.`w@main`')",
    ):
        with pytest.raises(Exception, match=r"must not contain '@'.*to create 'w' in the branch 'main'"):
            run(spark, statement)
    with pytest.raises(Exception, match="mv@main"):
        refreshed(spark, "`mv@main`")


def test_a_query_that_lost_a_column_is_refused(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "CREATE TABLE wide (a INT, b INT)",
        "CREATE VIEW below AS SELECT * FROM wide",
        "CREATE MATERIALIZED VIEW direct AS SELECT * FROM wide",
        "CREATE MATERIALIZED VIEW above AS SELECT a, b FROM below",
        "ALTER TABLE wide DROP COLUMN b",
    )
    with pytest.raises(Exception, match=r"no column for b, .* replace the view"):
        refreshed(spark, "direct")
    with pytest.raises(Exception, match=r"view .*below now returns 1 columns instead of 2 \(a, b\)"):
        refreshed(spark, "above")


def test_rows_of_one_user_are_not_stored_after_a_view_below_was_replaced(
    spark: SparkSession, home: str
) -> None:
    """A column with the name of a user's function is not a call of this function."""
    run(
        spark,
        "CREATE VIEW below AS SELECT id, region AS user FROM t",
        "CREATE MATERIALIZED VIEW mv TBLPROPERTIES ('refresh-strategy' = 'incremental')"
        " AS SELECT user, count(*) AS c FROM below GROUP BY user",
    )
    assert refreshed(spark, "mv")[0] == "full"
    run(spark, "CREATE OR REPLACE VIEW below AS SELECT id, current_user() AS user FROM t")
    with pytest.raises(Exception, match="to all users"):
        refreshed(spark, "mv")
    assert rows(spark, "SELECT c, user = current_user() FROM mv") == [(100, True)]
    assert rows(spark, f"SELECT count(*) FROM {home}.mv.storage.snapshots") == [(1,)]


def test_settings_that_a_view_below_names_are_not_stored(spark: SparkSession, home: str) -> None:
    """Otherwise, a user who can write the view could read the environment of the user who refreshes the materialized
    view."""
    run(
        spark,
        "CREATE VIEW below AS SELECT '-' AS path FROM t",
        "CREATE MATERIALIZED VIEW mv AS SELECT path, '$${amount}' AS text FROM below LIMIT 1",
        "SET spark.sql.variable.substitute = false",
    )
    try:
        run(spark, "CREATE OR REPLACE VIEW below AS SELECT '${env:PATH}' AS path FROM t")
    finally:
        run(spark, "RESET spark.sql.variable.substitute")
    with pytest.raises(Exception, match=r"contains \$\{\.\.\.\}"):
        refreshed(spark, "mv")
    assert rows(spark, f"SELECT count(*) FROM {home}.mv.storage.snapshots") == [(0,)]


def test_columns_of_a_replaced_view_are_computed_again_after_a_rollback_of_its_storage_table(
    spark: SparkSession, home: str
) -> None:
    create = "TBLPROPERTIES ('refresh-strategy' = 'incremental') AS SELECT"
    run(spark, f"CREATE MATERIALIZED VIEW mv {create} id, n FROM t")
    refreshed(spark, "mv")
    first = rows(spark, f"SELECT snapshot_id FROM {home}.mv.storage.snapshots")[0][0]
    for query in ("id, region FROM t", "id, n FROM t"):
        run(spark, f"CREATE OR REPLACE MATERIALIZED VIEW mv {create} {query}")
    run(spark, f"CALL polaris.system.set_current_snapshot('{home}.mv.storage', {first})")
    compaction = f"rewrite_data_files(table => '{home}.mv.storage', options => map('rewrite-all', 'true'))"
    with pytest.raises(Exception, match="columns of an earlier version"):
        run(spark, f"CALL polaris.system.{compaction}")
    run(spark, "INSERT INTO t VALUES (100, 'r0', 100)")
    strategy, reason, _ = refreshed(spark, "mv")
    assert strategy == "full"
    assert "columns of an earlier version" in reason
    assert rows(spark, "SELECT count(*), sum(n) FROM mv") == [(101, 5050)]


def test_a_view_above_a_replaced_view_is_refreshed_from_the_table_after_a_rollback_of_both(
    spark: SparkSession, home: str
) -> None:
    create = "TBLPROPERTIES ('refresh-strategy' = 'incremental', 'incremental-limit' = '100') AS SELECT"
    run(
        spark,
        f"CREATE MATERIALIZED VIEW mv {create} id, n FROM t",
        f"CREATE MATERIALIZED VIEW above {create} count(*) AS c, sum(n) AS s FROM mv",
    )
    refreshed(spark, "mv")
    tables = (f"{home}.mv.storage", f"{home}.t")
    first = {table: rows(spark, f"SELECT snapshot_id FROM {table}.snapshots")[0][0] for table in tables}
    run(spark, "INSERT INTO t VALUES (100, 'r0', 100)")
    refreshed(spark, "mv")
    assert rows(spark, "SELECT c, s FROM above") == [(101, 5050)]
    for query in ("id, region FROM t", "id, n FROM t"):
        run(spark, f"CREATE OR REPLACE MATERIALIZED VIEW mv {create} {query}")
    for table, id in first.items():
        run(spark, f"CALL polaris.system.set_current_snapshot('{table}', {id})")
    assert refreshed(spark, "above")[1] == f"changed: {home.partition('.')[2]}.t"
    assert rows(spark, "SELECT c, s FROM above") == [(100, 4950)]
