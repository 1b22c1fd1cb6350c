"""SQL checks before merges into protected branches, evaluated by the Spark session that merges."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.sql import rows, run

pytestmark = pytest.mark.spark

ERRORS = (PySparkException, Py4JJavaError)
MERGE = "CALL polaris.system.merge('dev')"
TRY = "CALL polaris.system.merge(source => 'dev', dry_run => true)"


@pytest.fixture
def db(spark: SparkSession, namespace: str) -> Iterator[str]:
    """A namespace with the table `t` of one row. The branch `main` is protected, and its branch `dev` has one more
    row."""
    run(
        spark,
        f"CREATE TABLE {namespace}.t AS SELECT 1 AS id",
        "CALL polaris.system.create_branch('dev')",
        f"INSERT INTO {namespace}.`t@dev` VALUES (2)",
        "CALL polaris.system.protect_branch('main')",
    )
    yield namespace.partition(".")[2]
    run(
        spark,
        "CALL polaris.system.use('main')",
        "CALL polaris.system.unprotect_branch('main')",
        "CALL polaris.system.drop_branch('dev')",
    )
    for _, name, kind, _ in spark.sql("CALL polaris.system.show_checks('main')").collect():
        assert kind == "sql"
        quoted = name.replace("'", "\\'")
        run(spark, f"CALL polaris.system.drop_check('main', '{quoted}')")


def add(spark: SparkSession, name: str, sql: str) -> None:
    name, sql = (text.replace("\\", "\\\\").replace("'", "\\'") for text in (name, sql))
    run(spark, f"CALL polaris.system.add_check('main', '{name}', '{sql}')")


def outcomes(spark: SparkSession) -> dict[str, tuple[str, str]]:
    """Return outcome and detail of each check in a dry run, by name."""
    found = spark.sql(TRY).collect()
    return {row.name: (row.action, row.detail) for row in found if row.kind == "check"}


def test_a_merge_is_committed_only_if_its_checks_hold(spark: SparkSession, db: str) -> None:
    add(spark, "it's unique", f"SELECT count(*) = count(DISTINCT id) FROM {db}.t; -- as in db.t")
    add(spark, "two rows", f"WITH r AS (SELECT * FROM {db}.t) SELECT count(*) = 2 FROM r")
    assert outcomes(spark) == {"it's unique": ("passed", ""), "two rows": ("passed", "")}
    run(spark, f"INSERT INTO polaris.{db}.`t@dev` VALUES (2)")
    with pytest.raises(ERRORS) as refused:
        run(spark, MERGE)
    said = "checks \"it's unique\", 'two rows' do not hold: its query returns false instead of true"
    assert said in str(refused.value)
    assert rows(spark, f"SELECT id FROM polaris.{db}.t") == [(1,)]
    run(
        spark,
        f"DELETE FROM polaris.{db}.`t@dev` WHERE id = 2",
        f"INSERT INTO polaris.{db}.`t@dev` VALUES (3)",
    )
    run(spark, MERGE)
    assert rows(spark, f"SELECT id FROM polaris.{db}.t") == [(1,), (3,)]


def test_only_one_true_value_lets_a_check_hold(spark: SparkSession, db: str) -> None:
    expected = {
        f"SELECT count(*) > 0 FROM {db}.t": "",
        f"SELECT max(id) > 9 FROM {db}.t": "returns false instead of true",
        f"SELECT max(id) > 0 FROM {db}.t WHERE id > 9": "returns null instead of true",
        "SELECT 1": "returns 1 instead of true",
        "SELECT 'true'": "returns 'true' instead of true",
        f"SELECT true FROM {db}.t": "returns more than one row",
        f"SELECT true FROM {db}.t WHERE id > 9": "returns no row",
        "SELECT true, true": "has 2 columns",
        f"SELECT count(*) > 0 FROM {db}.nothing": "query fails",
        f"SELECT id / 0 = 1 FROM {db}.t": "query fails",
        f"WITH x AS (SELECT 5) INSERT INTO {db}.t SELECT * FROM x": "query fails",
        f"SELECT true UNION ALL (DELETE FROM {db}.t)": "query fails",
        "SELECT true FROM a_view_of_the_session": "query fails",
        "SELECT ${spark.app.name} = 1": "query fails",
        "VALUES (true) -- with a comment": "",
    }
    spark.sql("SELECT 1").createOrReplaceTempView("a_view_of_the_session")
    for number, sql in enumerate(expected):
        add(spark, str(number), sql)
    found = outcomes(spark)
    for number, said in enumerate(expected.values()):
        verb, detail = found[str(number)]
        assert (verb, said in detail) == ("failed" if said else "passed", True), (number, detail)
    assert rows(spark, f"SELECT id FROM polaris.{db}.t") == [(1,)]
    assert rows(spark, f"SELECT id FROM polaris.{db}.`t@dev`") == [(1,), (2,)]


def test_checks_read_views_drops_and_renames_of_the_merged_state(spark: SparkSession, db: str) -> None:
    run(
        spark,
        "CALL polaris.system.use('dev')",
        f"CREATE VIEW polaris.{db}.v AS SELECT count(*) AS n FROM polaris.{db}.t",
        f"CREATE TABLE polaris.{db}.gone (id INT)",
        "CALL polaris.system.use('main')",
    )
    add(spark, "system", f"SELECT count(*) = 2 FROM system.tables WHERE namespace = '{db}'")
    add(spark, "view", f"SELECT n = 2 FROM {db}.v")
    add(spark, "qualified", f"SELECT count(*) = 2 FROM polaris.{db}.t")
    assert outcomes(spark) == dict.fromkeys(("qualified", "system", "view"), ("passed", ""))
    run(spark, MERGE, f"DROP TABLE polaris.{db}.`gone@dev`")
    add(spark, "gone", f"SELECT count(*) >= 0 FROM {db}.gone")
    with pytest.raises(ERRORS, match="'gone' does not hold: its query fails"):
        run(spark, MERGE)
    assert rows(spark, f"SELECT count(*) FROM polaris.{db}.gone") == [(0,)]


def test_the_session_that_merges_keeps_its_state(spark: SparkSession, db: str) -> None:
    run(spark, "CALL polaris.system.create_branch('trial')", "CALL polaris.system.protect_branch('trial')")
    run(spark, "CALL polaris.system.add_check('trial', 'x', 'SELECT true')")
    run(spark, "CALL polaris.system.use('trial')", MERGE)
    [(state, *_)] = rows(spark, "CALL polaris.system.use()")
    assert state == "trial"
    assert rows(spark, f"SELECT id FROM polaris.{db}.t") == [(1,), (2,)]
    run(spark, "CALL polaris.system.use('main')")
    assert rows(spark, f"SELECT id FROM polaris.{db}.t") == [(1,)]
    run(
        spark,
        "CALL polaris.system.unprotect_branch('trial')",
        "CALL polaris.system.drop_branch('trial')",
    )


def test_a_check_that_counts_the_history_of_the_merge_sees_it_once(spark: SparkSession, db: str) -> None:
    add(spark, "snapshots", f"SELECT count(*) = 2 FROM {db}.t.snapshots")
    run(spark, "CALL polaris.system.merge('dev')")
    assert len(rows(spark, f"SELECT snapshot_id FROM polaris.{db}.t.snapshots")) == 2


def test_a_check_compares_the_merged_state_with_the_branch(spark: SparkSession, db: str) -> None:
    add(
        spark,
        "no rows vanish",
        f"SELECT (SELECT count(*) FROM {db}.t) >= (SELECT count(*) FROM {db}.`t@main`)",
    )
    assert outcomes(spark) == {"no rows vanish": ("passed", "")}
    run(spark, f"DELETE FROM polaris.{db}.`t@dev`")
    assert outcomes(spark)["no rows vanish"][0] == "failed"


def test_a_bad_merge_is_reverted_if_the_checks_hold_without_it(spark: SparkSession, db: str) -> None:
    run(spark, MERGE)
    add(spark, "two rows", f"SELECT count(*) = 2 FROM {db}.t")
    [branch] = spark.sql("CALL polaris.system.describe_branch('main')").collect()
    revert = f"CALL polaris.system.revert('{branch.commit_number - 1}')"
    with pytest.raises(ERRORS, match="'two rows' does not hold: its query returns false"):
        run(spark, revert)
    assert rows(spark, f"SELECT id FROM polaris.{db}.t") == [(1,), (2,)]
    run(spark, "CALL polaris.system.drop_check('main', 'two rows')")
    add(spark, "one row", f"SELECT count(*) = 1 FROM {db}.t")
    run(spark, revert)
    assert rows(spark, f"SELECT id FROM polaris.{db}.t") == [(1,)]


def test_checks_are_evaluated_in_the_catalog_of_the_merge(spark: SparkSession, db: str) -> None:
    add(spark, "rows", f"SELECT count(*) = 2 FROM {db}.t")
    run(spark, "CREATE TEMPORARY VIEW rows_of_session AS SELECT 1")
    before = spark.catalog.currentCatalog()
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    run(spark, MERGE)
    assert (spark.catalog.currentCatalog(), spark.conf.get("spark.sql.session.timeZone")) == (
        before,
        "Asia/Tokyo",
    )
    assert rows(spark, "SELECT * FROM rows_of_session") == [(1,)]
    spark.conf.unset("spark.sql.session.timeZone")


def test_the_settings_of_the_catalog_must_not_change_before_a_merge(spark: SparkSession, db: str) -> None:
    add(spark, "rows", f"SELECT count(*) = 2 FROM {db}.t")
    spark.conf.set("spark.sql.catalog.polaris.as-of", "2")
    try:
        with pytest.raises(ERRORS, match=r"settings spark.sql.catalog.polaris.\* must be as they were"):
            run(spark, MERGE)
    finally:
        spark.conf.unset("spark.sql.catalog.polaris.as-of")
    assert rows(spark, f"SELECT id FROM polaris.{db}.t") == [(1,)]
    run(spark, MERGE)
    assert rows(spark, f"SELECT id FROM polaris.{db}.t") == [(1,), (2,)]


def test_checks_read_no_rows_that_the_session_has_cached(spark: SparkSession, db: str) -> None:
    add(spark, "two rows", f"SELECT count(*) = 2 FROM polaris.{db}.t")
    add(spark, "one row", f"SELECT count(*) = 1 FROM polaris.{db}.t")
    run(spark, f"CACHE TABLE polaris.{db}.t")
    try:
        assert {name: verb for name, (verb, _) in outcomes(spark).items()} == {
            "one row": "failed",
            "two rows": "passed",
        }
    finally:
        run(spark, f"UNCACHE TABLE polaris.{db}.t")


def test_two_merges_at_once_are_both_checked(spark: SparkSession, db: str) -> None:
    run(
        spark,
        "CALL polaris.system.create_branch(name => 'dev2', source => 'main')",
        f"INSERT INTO polaris.{db}.`t@dev2` VALUES (2)",
    )
    add(spark, "unique", f"SELECT count(*) = count(DISTINCT id) FROM {db}.t")

    def merge(source: str) -> str:
        try:
            run(spark, f"CALL polaris.system.merge('{source}')")
        except ERRORS as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as threads:
        said = sorted(threads.map(merge, ("dev", "dev2")))
    assert said[0] == ""
    assert "'unique' does not hold" in said[1]
    assert rows(spark, f"SELECT id FROM polaris.{db}.t") == [(1,), (2,)]
    run(spark, "CALL polaris.system.drop_branch('dev2')")
