"""Materialized views, and `MERGE INTO`, on branches of the catalog and in transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import polaris_spark
from tests.spark.sql import rows, run
from tests.spark.test_materialized_views import home, refreshed
from tests.spark.test_states import ERRORS, another

__all__ = ["home"]  # a fixture
pytestmark = pytest.mark.spark

QUERY = "SELECT region, count(*) AS c, sum(n) AS s FROM {home}.t GROUP BY region"
INCREMENTAL = "TBLPROPERTIES ('refresh-strategy' = 'incremental', 'incremental-limit' = '100')"
MERGE = (
    "MERGE INTO {home}.t USING (SELECT 5 AS id UNION ALL SELECT 1000) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET n = 777 WHEN NOT MATCHED THEN INSERT (id, region, n) VALUES (s.id, 'new', 1)"
)


@pytest.fixture
def view(spark: SparkSession, home: str) -> str:
    """The namespace of a table t and a fresh materialized view mv."""
    run(spark, f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS {QUERY.format(home=home)}")
    assert refreshed(spark, "mv")[0] == "full"
    return home


@pytest.fixture
def dev(spark: SparkSession, view: str) -> Iterator[str]:
    """The same namespace, while the catalog has the branch dev."""
    run(spark, "CALL polaris.system.create_branch('dev')")
    yield view
    run(spark, "CALL polaris.system.use('main')", "CALL polaris.system.drop_branch('dev')")


def stored(spark: SparkSession, home: str) -> list[tuple[object, ...]]:
    """Return the stored rows, without regard to whether they are fresh."""
    return rows(spark, f"SELECT region, c, s FROM {home}.mv.storage")


def require_fresh(spark: SparkSession, home: str) -> None:
    """Check that the stored rows are fresh and right."""
    assert refreshed(spark, "mv")[0] == "none"
    assert (
        stored(spark, home) == rows(spark, f"SELECT * FROM {home}.mv") == rows(spark, QUERY.format(home=home))
    )


def test_a_view_that_was_refreshed_on_a_branch_is_merged_with_its_rows(spark: SparkSession, dev: str) -> None:
    before = stored(spark, dev)
    run(spark, "CALL polaris.system.use('dev')", MERGE.format(home=dev))
    assert refreshed(spark, "mv")[0] == "incremental"
    require_fresh(spark, dev)
    after = stored(spark, dev)
    run(spark, "CALL polaris.system.use('main')")
    require_fresh(spark, dev)
    assert stored(spark, dev) == before != after
    merged = rows(spark, "CALL polaris.system.merge('dev')")
    assert [(kind, name.rpartition(".")[2], action) for kind, name, action, _ in merged] == [
        ("table", "t", "changed"),
        ("view", "mv", "changed"),
    ]
    require_fresh(spark, dev)
    assert stored(spark, dev) == after
    run(spark, f"DELETE FROM {dev}.t WHERE id = 6")
    assert refreshed(spark, "mv")[0] == "incremental"
    require_fresh(spark, dev)


def test_a_view_that_both_sides_refreshed_is_a_conflict_and_then_right(spark: SparkSession, dev: str) -> None:
    for branch, id in (("dev", 2000), ("main", 2001)):
        run(spark, f"CALL polaris.system.use('{branch}')", f"INSERT INTO {dev}.t VALUES ({id}, 'r1', {id})")
        assert refreshed(spark, "mv")[0] == "incremental"
    with pytest.raises(ERRORS, match="both sides changed or refreshed the materialized view"):
        run(spark, "CALL polaris.system.merge('dev')")
    for strategy in ("ours", "theirs"):
        run(spark, f"CALL polaris.system.merge(source => 'dev', strategy => '{strategy}')")
        assert rows(spark, f"SELECT * FROM {dev}.mv") == rows(spark, QUERY.format(home=dev))
        refreshed(spark, "mv")
        require_fresh(spark, dev)
        run(
            spark,
            "CALL polaris.system.use('dev')",
            f"INSERT INTO {dev}.t VALUES (2002, 'r2', 1)",
            "REFRESH MATERIALIZED VIEW mv",
            "CALL polaris.system.use('main')",
            f"INSERT INTO {dev}.t VALUES (2003, 'r0', 1)",
            "REFRESH MATERIALIZED VIEW mv",
        )


def test_statements_of_materialized_views_take_effect_with_their_transaction(
    spark: SparkSession, view: str
) -> None:
    other = another(spark)
    before = stored(other, view)
    with polaris_spark.transaction(spark, "polaris") as tx:
        run(spark, MERGE.format(home=view))
        assert rows(spark, f"SELECT * FROM {view}.mv") == rows(spark, QUERY.format(home=view)) != before
        require_fresh(spark, view)
        tx.savepoint("refreshed")
        run(spark, f"DELETE FROM {view}.t WHERE region = 'r1'")
        assert refreshed(spark, "mv")[0] == "incremental"
        require_fresh(spark, view)
        run(
            spark,
            f"CREATE MATERIALIZED VIEW above {INCREMENTAL} AS SELECT max(s) AS m FROM {view}.mv",
            "REFRESH MATERIALIZED VIEW above",
            "ALTER MATERIALIZED VIEW mv SET TBLPROPERTIES ('allow-stale-data' = 'true')",
            "ALTER MATERIALIZED VIEW mv RENAME TO renamed",
        )
        run(spark, "DROP MATERIALIZED VIEW renamed")
        tx.rollback_to("refreshed")
        require_fresh(spark, view)
        run(spark, f"CREATE MATERIALIZED VIEW above {INCREMENTAL} AS SELECT max(s) AS m FROM {view}.mv")
        assert refreshed(spark, "above")[0] == "full"
        run(spark, "ALTER MATERIALIZED VIEW above RENAME TO highest")
        assert (stored(other, view), refreshed(other, f"{view}.mv")[0]) == (before, "none")
    for session in (spark, other):
        assert stored(session, view) == rows(session, QUERY.format(home=view)) != before
        assert refreshed(session, f"{view}.mv")[0] == "none"
        assert refreshed(session, f"{view}.highest")[0] == "none"
        assert rows(session, f"SELECT m FROM {view}.highest") == rows(
            session, f"SELECT max(s) FROM {view}.mv"
        )
    run(spark, f"DELETE FROM {view}.t WHERE region = 'r2'")
    assert refreshed(spark, "mv")[0] == "incremental"
    assert refreshed(spark, "highest")[0] == "incremental"


def test_a_refresh_in_a_transaction_that_is_rolled_back_leaves_nothing(
    spark: SparkSession, view: str
) -> None:
    before = stored(spark, view)
    run(
        spark,
        "CALL polaris.system.begin()",
        MERGE.format(home=view),
        "REFRESH MATERIALIZED VIEW mv FULL",
        f"CREATE OR REPLACE MATERIALIZED VIEW {view}.mv AS SELECT id FROM {view}.t",
        "REFRESH MATERIALIZED VIEW mv",
        "CALL polaris.system.rollback()",
    )
    require_fresh(spark, view)
    assert stored(spark, view) == before


def test_a_transaction_with_a_refresh_conflicts_with_another_refresh(spark: SparkSession, view: str) -> None:
    other = another(spark)
    run(
        spark,
        "CALL polaris.system.begin(isolation => 'snapshot')",
        f"INSERT INTO {view}.t VALUES (3000, 'r1', 1)",
    )
    assert refreshed(spark, "mv")[0] == "incremental"
    run(other, f"INSERT INTO {view}.t VALUES (3001, 'r0', 1)")
    assert refreshed(other, f"{view}.mv")[0] == "incremental"
    with pytest.raises(ERRORS, match="materialized view"):
        run(spark, "CALL polaris.system.commit()")
    run(spark, "CALL polaris.system.rollback()")
    require_fresh(spark, view)
