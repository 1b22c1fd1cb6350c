"""Views in Spark SQL: columns, comments, properties, the queries below them, and changes."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.spark.sql import rows, run


@pytest.fixture
def sales(spark: SparkSession, home: str) -> str:
    """A table of three rows."""
    run(
        spark,
        f"CREATE TABLE {home}.sales (id INT, item STRING, price DECIMAL(9,2))",
        f"INSERT INTO {home}.sales VALUES (1, 'tea', 2.50), (2, 'milk', 1.20), (3, 'tea', 3.00)",
    )
    return f"{home}.sales"


def described(spark: SparkSession, view: str) -> dict[str, tuple[str, str | None]]:
    return {
        row.col_name: (row.data_type, row.comment)
        for row in spark.sql(f"DESCRIBE TABLE EXTENDED {view}").collect()
    }


def test_columns_have_names_and_comments_and_the_view_has_properties(
    spark: SparkSession, home: str, sales: str
) -> None:
    spark.sql(
        f"""CREATE VIEW {home}.v (what COMMENT 'sort of goods', `how much` COMMENT 'sum; in "euros"', n)
        COMMENT 'what was sold' TBLPROPERTIES ('team' = 'x', 'empty' = '')
        AS SELECT item, sum(price), count(*) FROM {sales} GROUP BY item"""
    )
    assert rows(spark, f"SELECT what, `how much`, n FROM {home}.v") == [
        ("milk", Decimal("1.20"), 1),
        ("tea", Decimal("5.50"), 2),
    ]
    got = described(spark, f"{home}.v")
    assert got["what"] == ("string", "sort of goods")
    assert got["how much"] == ("decimal(19,2)", 'sum; in "euros"')
    assert got["n"] == ("bigint", "")
    assert got["Comment"][0] == "what was sold"
    properties = dict(rows(spark, f"SHOW TBLPROPERTIES {home}.v"))
    assert (properties["team"], properties["empty"]) == ("x", "")
    # Somebody else's session reads the same from the catalog.
    text = spark.sql(f"SHOW CREATE TABLE {home}.v").collect()[0][0]
    assert "what COMMENT 'sort of goods'" in text
    assert "'team' = 'x'" in text


def test_properties_of_a_view_are_set_and_unset(spark: SparkSession, home: str, sales: str) -> None:
    run(
        spark,
        f"CREATE VIEW {home}.v TBLPROPERTIES ('a' = '1', 'b' = '2') AS SELECT * FROM {sales}",
        f"ALTER VIEW {home}.v SET TBLPROPERTIES ('a' = '10', 'c' = '3')",
        f"ALTER VIEW {home}.v UNSET TBLPROPERTIES ('b')",
        f"ALTER VIEW {home}.v UNSET TBLPROPERTIES IF EXISTS ('nothing')",
    )
    properties = dict(rows(spark, f"SHOW TBLPROPERTIES {home}.v"))
    assert {key: properties.get(key) for key in "abc"} == {"a": "10", "b": None, "c": "3"}
    with pytest.raises(Exception, match="reserved"):
        spark.sql(f"ALTER VIEW {home}.v SET TBLPROPERTIES ('location' = '/tmp/elsewhere')")
    with pytest.raises(AnalysisException):
        spark.sql(f"ALTER VIEW {home}.v UNSET TBLPROPERTIES ('nothing')")


def test_a_view_is_made_once_and_replaced_with_a_new_version(
    spark: SparkSession, home: str, sales: str
) -> None:
    spark.sql(f"CREATE VIEW {home}.v (a COMMENT 'old') COMMENT 'old' AS SELECT id FROM {sales}")
    with pytest.raises(AnalysisException, match="ALREADY_EXISTS"):
        spark.sql(f"CREATE VIEW {home}.v AS SELECT 1 AS one")
    spark.sql(f"CREATE VIEW IF NOT EXISTS {home}.v AS SELECT 1 AS one")
    assert spark.table(f"{home}.v").columns == ["a"]
    spark.sql(f"CREATE OR REPLACE VIEW {home}.v AS SELECT item, price FROM {sales} WHERE id > 1")
    assert [name for name, _, _ in rows(spark, f"DESCRIBE {home}.v")] == ["item", "price"]
    assert spark.table(f"{home}.v").count() == 2
    assert not any(comment for _, _, comment in rows(spark, f"DESCRIBE {home}.v"))


def test_queries_of_many_kinds_come_back_as_they_were_written(
    spark: SparkSession, home: str, sales: str
) -> None:
    run(
        spark,
        f"""CREATE VIEW {home}.v AS WITH dear AS (SELECT * FROM {sales} WHERE price > 2)
        -- a comment, 'quoted' and ü
        SELECT d.*, rank() OVER (ORDER BY price DESC) AS place, 'it''s \\\\ "so"' AS said FROM dear d
        WHERE EXISTS (SELECT 1 FROM {sales} s WHERE s.item = d.item AND s.id <> d.id)""",
    )
    got = rows(spark, f"SELECT id, item, place, said FROM {home}.v")
    assert got == [(1, "tea", 2, 'it\'s \\ "so"'), (3, "tea", 1, 'it\'s \\ "so"')]


def test_a_view_sees_what_happens_below_it(spark: SparkSession, home: str, sales: str) -> None:
    run(
        spark,
        f"CREATE VIEW {home}.all AS SELECT * FROM {sales}",
        f"CREATE VIEW {home}.teas AS SELECT id, price FROM {home}.all WHERE item = 'tea'",
        f"CREATE VIEW {home}.items AS SELECT item FROM {sales}",
        f"CREATE VIEW {home}.count (n) AS SELECT count(*) FROM {home}.teas",
        f"INSERT INTO {sales} VALUES (4, 'tea', 9)",
        f"ALTER TABLE {sales} ADD COLUMN note STRING",
    )
    assert rows(spark, f"SELECT n FROM {home}.count") == [(3,)]
    assert spark.table(f"{home}.all").columns == ["id", "item", "price"]
    spark.sql(f"ALTER TABLE {sales} RENAME COLUMN item TO goods")
    with pytest.raises(AnalysisException, match="item"):
        spark.table(f"{home}.items").collect()
    spark.sql(f"ALTER TABLE {sales} RENAME COLUMN goods TO item")
    spark.sql(f"DROP TABLE {sales}")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.table(f"{home}.count").collect()
    # It is there nevertheless, and works again once there is such a table.
    assert spark.sql(f"SHOW VIEWS IN {home}").count() == 4
    spark.sql(f"CREATE TABLE {sales} AS SELECT 7 AS id, 'tea' AS item, CAST(1 AS DECIMAL(9,2)) AS price")
    assert rows(spark, f"SELECT * FROM {home}.count") == [(1,)]


def test_a_view_resolves_names_where_it_was_made(spark: SparkSession, home: str, sales: str) -> None:
    catalog, namespace = home.split(".")
    before = spark.sql("SELECT current_catalog(), current_schema()").collect()[0]
    run(
        spark,
        f"CREATE NAMESPACE {home}.deep",
        f"USE {catalog}.{namespace}",
        "CREATE VIEW local AS SELECT id FROM sales",
        f"CREATE VIEW {namespace}.deep.across AS SELECT max(id) AS m FROM sales",
        f"USE {catalog}.{namespace}.deep",
    )
    try:
        assert spark.sql(f"SELECT * FROM {home}.local").count() == 3
        assert rows(spark, "SELECT m FROM across") == [(3,)]
    finally:
        run(spark, f"USE {before[0]}.{before[1]}")
    assert rows(spark, f"SELECT m FROM {home}.deep.across") == [(3,)]


def test_views_and_tables_share_their_names(spark: SparkSession, home: str, sales: str) -> None:
    spark.sql(f"CREATE VIEW {home}.v AS SELECT * FROM {sales}")
    for statement in (
        f"CREATE TABLE {home}.v (n INT)",
        f"CREATE VIEW {sales} AS SELECT 1 AS n",
        f"ALTER TABLE {sales} RENAME TO {home}.v",
        f"ALTER VIEW {home}.v RENAME TO {sales}",
    ):
        with pytest.raises(Exception, match=r"(?i)already.exists"):
            spark.sql(statement)
    with pytest.raises(Exception, match=r"(?i)view|table"):
        spark.sql(f"DROP TABLE {home}.v")
    with pytest.raises(Exception, match=r"(?i)view|table"):
        spark.sql(f"DROP VIEW {sales}")
    with pytest.raises(Exception, match=r"(?i)view|table"):
        spark.sql(f"CREATE OR REPLACE VIEW {sales} AS SELECT 1 AS n")
    assert spark.table(sales).count() == spark.table(f"{home}.v").count() == 3


def test_views_are_listed_renamed_and_dropped(spark: SparkSession, home: str, sales: str) -> None:
    other = f"{home}_other"
    run(
        spark,
        f"CREATE NAMESPACE {other}",
        f"CREATE VIEW {home}.one AS SELECT 1 AS n",
        f"CREATE VIEW {home}.two COMMENT 'second' AS SELECT 2 AS n",
        f"ALTER VIEW {home}.one RENAME TO {other}.first",
    )
    assert rows(spark, f"SELECT * FROM {other}.first") == [(1,)]
    assert [row.viewName for row in spark.sql(f"SHOW VIEWS IN {home} LIKE 't*'").collect()] == ["two"]
    assert [row.viewName for row in spark.sql(f"SHOW VIEWS IN {other}").collect()] == ["first"]
    run(spark, f"DROP VIEW {home}.two", f"DROP VIEW IF EXISTS {home}.two")
    with pytest.raises(AnalysisException, match="NOT_FOUND"):
        spark.sql(f"DROP VIEW {home}.two")
    with pytest.raises(Exception, match="is not empty"):
        spark.sql(f"DROP NAMESPACE {other}")


def test_the_versions_of_a_view_are_in_the_log_of_the_catalog(
    spark: SparkSession, home: str, sales: str
) -> None:
    run(
        spark,
        f"CREATE VIEW {home}.v AS SELECT id FROM {sales}",
        f"CREATE OR REPLACE VIEW {home}.v AS SELECT item FROM {sales}",
        f"ALTER VIEW {home}.v SET TBLPROPERTIES ('a' = 'b')",
    )
    catalog, namespace = home.split(".")
    [row] = spark.sql(
        f"SELECT * FROM {catalog}.system.views WHERE namespace = '{namespace}' AND name = 'v'"
    ).collect()
    assert (row.version_count, row.column_names, row.properties["a"]) == (2, ["item"], "b")
    assert row.sql == {"spark": f"SELECT item FROM {sales}"}
