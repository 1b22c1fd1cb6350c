"""Statements for materialized views: the Spark statement that each is rewritten to, and error messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from tests.spark.sql import call as call_iceberg
from tests.spark.sql import run

pytestmark = pytest.mark.spark

ESCAPED = "spark.sql.parser.escapedStringLiterals"
ICEBERG = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
POLARIS = "io.polarisspark.PolarisSparkSessionExtensions"
CREATE = "CREATE MATERIALIZED VIEW polaris.db.v"
CREATED = "CALL `polaris`.system.create_materialized_view(view => 'db.v', query => 'SELECT 1', "
NEITHER = "or_replace => false, if_not_exists => false"


@pytest.fixture(autouse=True)
def active_session(spark: SparkSession) -> None:
    """Make the module's session active in the thread that the tests call the parser on, as `spark.sql` does."""
    jvm(spark).org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)


@pytest.fixture
def current(spark: SparkSession, namespace: str) -> Iterator[str]:
    """The current namespace, in the current catalog. Returned without the catalog's name."""
    spark.sql(f"USE {namespace}")
    yield namespace.removeprefix("polaris.")
    spark.sql("USE spark_catalog.default")


@pytest.fixture(params=["false", "true"])
def escaped(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Each value of the option by which backslashes in strings are not escapes."""
    spark.conf.set(ESCAPED, request.param)
    yield str(request.param)
    spark.conf.unset(ESCAPED)


def jvm(spark: SparkSession) -> Any:
    return spark._jvm


def rewritten(spark: SparkSession, statement: str) -> str | None:
    """Return the statement to which a statement is rewritten, or None if Spark's parser gets it unchanged."""
    session: Any = spark._jsparkSession
    parser = session.sessionState().sqlParser()
    text = jvm(spark).io.polarisspark.MaterializedViewParser.rewrite(session, parser, statement)
    return None if text is None else str(text)


def argument(call: str, name: str, following: str) -> str:
    """The expression of an argument of a call, given the name of the argument that follows."""
    return call.partition(f"{name} => ")[2].partition(f", {following} => ")[0]


def value(spark: SparkSession, expression: str) -> Any:
    """Return the value of an expression as Spark reads it."""
    return spark.sql(f"SELECT {expression}").collect()[0][0]


@pytest.mark.parametrize(
    ("statement", "call"),
    [
        (f"{CREATE} AS SELECT 1", f"{CREATED}{NEITHER})"),
        (
            "CREATE OR REPLACE MATERIALIZED VIEW polaris.db.v AS SELECT 1",
            f"{CREATED}or_replace => true, if_not_exists => false)",
        ),
        (
            "create materialized view if not exists polaris.db.v as SELECT 1",
            f"{CREATED}or_replace => false, if_not_exists => true)",
        ),
        (
            f"{CREATE} (a, `b``c` COMMENT 'two', d COMMENT 'th' 'ree') AS SELECT 1",
            f"{CREATED}{NEITHER}, columns => array('a', 'b`c', 'd'), comments => map('b`c', 'two', 'd', 'three'))",
        ),
        (
            f"{CREATE} PARTITIONED BY (days(ts), bucket( 16 , id ), `a,)`, region) AS SELECT 1",
            f"{CREATED}{NEITHER}, partitioned_by => array('days(ts)', 'bucket( 16 , id )', '`a,)`', 'region'))",
        ),
        (f"{CREATE} COMMENT 'it''s' AS SELECT 1", rf"{CREATED}{NEITHER}, comment => 'it\'s')"),
        (f'{CREATE} COMMENT "it\'s" AS SELECT 1', rf"{CREATED}{NEITHER}, comment => 'it\'s')"),
        (f"{CREATE} COMMENT r'a\\b' AS SELECT 1", rf"{CREATED}{NEITHER}, comment => 'a\\b')"),
        (
            f"{CREATE} TBLPROPERTIES ('a b'='1', c.d = TRUE, `e f`.g 1.50, h='x' 'y', 'i' 'j') AS SELECT 1",
            f"{CREATED}{NEITHER}, properties => map('a b', '1', 'c.d', 'true', 'e f.g', '1.50', 'h', 'xy', 'i', 'j'))",
        ),
        (
            f"{CREATE} TBLPROPERTIES (a=1) COMMENT '' PARTITIONED BY (b) AS SELECT 1",
            f"{CREATED}{NEITHER}, partitioned_by => array('b'), comment => '', properties => map('a', '1'))",
        ),
        (
            "REFRESH MATERIALIZED VIEW polaris.db.v",
            "CALL `polaris`.system.refresh(view => 'db.v', full => false)",
        ),
        (
            "REFRESH MATERIALIZED VIEW polaris.db.full FULL;",
            "CALL `polaris`.system.refresh(view => 'db.full', full => true)",
        ),
        (
            "DROP MATERIALIZED VIEW polaris.db.v",
            "CALL `polaris`.system.drop_materialized_view(view => 'db.v', if_exists => false)",
        ),
        (
            "DROP MATERIALIZED VIEW polaris.db.v PURGE",
            "CALL `polaris`.system.drop_materialized_view(view => 'db.v', if_exists => false, purge => true)",
        ),
        (
            "DROP MATERIALIZED VIEW IF EXISTS polaris.a.b.v",
            "CALL `polaris`.system.drop_materialized_view(view => 'a.b.v', if_exists => true)",
        ),
        (
            "SHOW MATERIALIZED VIEWS IN polaris.a.b",
            "CALL `polaris`.system.show_materialized_views(namespace => 'a.b')",
        ),
        ("SHOW MATERIALIZED VIEWS FROM polaris", "CALL `polaris`.system.show_materialized_views()"),
        (
            "ALTER /* one */ MATERIALIZED -- two\n VIEW polaris.db.v SET TBLPROPERTIES ('a'='b')",
            "ALTER /* one */ VIEW polaris.db.v SET TBLPROPERTIES ('a'='b')",
        ),
        (
            "alter materialized view polaris.db.v unset tblproperties if exists (a)",
            "alter view polaris.db.v unset tblproperties if exists (a)",
        ),
        (
            "ALTER MATERIALIZED VIEW polaris.db.v RENAME TO polaris.db.w",
            "ALTER VIEW polaris.db.v RENAME TO polaris.db.w",
        ),
        (
            "DESCRIBE MATERIALIZED VIEW EXTENDED polaris.db.v",
            "CALL `polaris`.system.describe_materialized_view(view => 'db.v')",
        ),
        (
            "DESC MATERIALIZED VIEW polaris.db.v;;",
            "CALL `polaris`.system.describe_materialized_view(view => 'db.v')",
        ),
        (
            "EXPLAIN REFRESH MATERIALIZED VIEW polaris.db.v",
            "CALL `polaris`.system.explain_refresh(view => 'db.v')",
        ),
    ],
)
def test_a_statement_becomes_a_call_or_alter_view(spark: SparkSession, statement: str, call: str) -> None:
    assert rewritten(spark, statement) == call


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("polaris.db.v1", "db.v1"),
        ("`polaris` . db /* - */ . `v`", "db.v"),
        ("polaris.`a.b`.`c``d`", "`a.b`.`c``d`"),
        ("polaris.`it's`.`\\`", r"`it\'s`.`\\`"),
        ("polaris.`ü😀`.`1`", "`ü😀`.`1`"),
        ("polaris.`-- a`.`/* b`", "`-- a`.`/* b`"),
    ],
)
def test_names_are_quoted_where_that_is_needed(spark: SparkSession, name: str, text: str) -> None:
    expected = f"CALL `polaris`.system.refresh(view => '{text}', full => false)"
    assert rewritten(spark, f"REFRESH MATERIALIZED VIEW {name}") == expected


def test_a_name_without_namespace_is_in_the_current_one(spark: SparkSession, current: str) -> None:
    call = rewritten(spark, "REFRESH MATERIALIZED VIEW v")
    assert call == f"CALL `polaris`.system.refresh(view => '{current}.v', full => false)"
    shown = rewritten(spark, "SHOW MATERIALIZED VIEWS")
    assert shown == f"CALL `polaris`.system.show_materialized_views(namespace => '{current}')"
    shown = rewritten(spark, "SHOW MATERIALIZED VIEWS IN other")
    assert shown == "CALL `polaris`.system.show_materialized_views(namespace => 'other')"
    call = rewritten(spark, "REFRESH MATERIALIZED VIEW db.v")
    assert call == "CALL `polaris`.system.refresh(view => 'db.v', full => false)"


def test_without_a_current_namespace_all_views_are_shown_and_a_name_needs_one(
    spark: SparkSession, current: str
) -> None:
    spark.catalog.setCurrentCatalog("spark_catalog")
    spark.catalog.setCurrentCatalog("polaris")
    assert rewritten(spark, "SHOW MATERIALIZED VIEWS") == "CALL `polaris`.system.show_materialized_views()"
    with pytest.raises(
        ParseException, match="'v': the name has no namespace, and the session has no current"
    ):
        rewritten(spark, "DROP MATERIALIZED VIEW v")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("SELECT 1;", "SELECT 1"),
        ("\n  SELECT 1 \n ; ; -- the end; ", "SELECT 1"),
        ("/* a */ SELECT 1 -- b", "SELECT 1"),
        ("(SELECT 1)", "(SELECT 1)"),
        ("WITH a AS (SELECT 1 AS b) SELECT * FROM a;", "WITH a AS (SELECT 1 AS b) SELECT * FROM a"),
        ("VALUES (1), (2)", "VALUES (1), (2)"),
        ("SELECT 'it''s; \\'' AS `a;``b`", "SELECT 'it''s; \\'' AS `a;``b`"),
        ('SELECT "a\\"b;", r\'c\\\', R"d\'"', 'SELECT "a\\"b;", r\'c\\\', R"d\'"'),
        ("SELECT 1, -- ';\n\t2 /* ' /* ; */ ` */, 3", "SELECT 1, -- ';\n\t2 /* ' /* ; */ ` */, 3"),
        (
            "SELECT /*+ COALESCE(1) */ 'ü😀\\n' AS a\r\nFROM b",
            "SELECT /*+ COALESCE(1) */ 'ü😀\\n' AS a\r\nFROM b",
        ),
        ("SELECT as.as AS as FROM as", "SELECT as.as AS as FROM as"),
        ("SELECT 1.5, .5e-3, 2L, t._1 FROM t", "SELECT 1.5, .5e-3, 2L, t._1 FROM t"),
        ("SELECT -- a \\\n b'\n 1", "SELECT -- a \\\n b'\n 1"),
        ("SELECT '$\\{a}'", "SELECT '$\\{a}'"),
    ],
)
def test_the_query_is_kept_as_it_is_written(
    spark: SparkSession, escaped: str, written: str, kept: str
) -> None:
    call = rewritten(spark, f"{CREATE} AS {written}")
    assert call is not None
    assert value(spark, argument(call, "query", "or_replace")) == kept


WITHOUT_COMMENT = st.text(st.characters(exclude_characters="*/{", exclude_categories=["Cs"]), max_size=30)
MODES = st.sampled_from(["false", "true"])


@settings(max_examples=60)
@given(text=WITHOUT_COMMENT | st.text("'\"\\`$\n\r\0\x1a%_ur0'", max_size=12), mode=MODES)
def test_any_text_in_a_query_is_read_back_exactly(spark: SparkSession, text: str, mode: str) -> None:
    query = f"SELECT /* {text} */ 1"
    spark.conf.set(ESCAPED, mode)
    try:
        call = rewritten(spark, f"{CREATE} AS {query}")
        assert call is not None
        assert value(spark, argument(call, "query", "or_replace")) == query
    finally:
        spark.conf.unset(ESCAPED)


def test_comments_and_properties_have_the_values_that_such_strings_have_in_spark(
    spark: SparkSession, escaped: str
) -> None:
    for literal in (
        r"'a\nb\'c\\'",
        r"'\u0041\101\%'",
        "'ü😀\n'",
        "'a' \"b\" 'c'",
        "'$\\{a}'",
        "''",
        "'\\\\'",
    ):
        expected = value(spark, literal)
        call = rewritten(spark, f"{CREATE} COMMENT {literal} TBLPROPERTIES ('k'={literal}) AS SELECT 1")
        assert call is not None
        assert value(spark, argument(call, "comment", "properties")) == expected
        assert value(spark, call.partition("properties => ")[2][:-1]) == {"k": expected}


def test_variables_are_substituted_once_as_in_other_statements(spark: SparkSession, escaped: str) -> None:
    spark.conf.set("mine.column", "it's")
    spark.conf.set("mine.view", "MATERIALIZED VIEW polaris.db.v")
    call = rewritten(spark, 'CREATE ${mine.view} AS SELECT "${mine.column} $\\{mine.column}"')
    assert call is not None
    query = value(spark, argument(call, "query", "or_replace"))
    assert query == 'SELECT "it\'s $\\{mine.column}"'


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 'REFRESH MATERIALIZED VIEW polaris.db.v'",
        "/* DROP MATERIALIZED VIEW polaris.db.v */ SELECT 1",
        "-- DROP MATERIALIZED VIEW polaris.db.v\nSELECT 1",
        "SELECT 1 AS refresh, 2 AS materialized, 3 AS view",
        "CREATE VIEW polaris.db.v AS SELECT 1",
        "CREATE OR REPLACE VIEW polaris.db.materialized AS SELECT 1",
        "REFRESH TABLE polaris.db.v",
        "REFRESH 'MATERIALIZED VIEW polaris.db.v'",
        "DROP VIEW polaris.db.v",
        "SHOW VIEWS IN polaris.db",
        "ALTER VIEW polaris.db.v RENAME TO polaris.db.w",
        "DESCRIBE MATERIALIZED VIEW",
        "DESC MATERIALIZED VIEW.polaris;",
        "EXPLAIN SELECT 1",
        "`REFRESH` MATERIALIZED VIEW polaris.db.v",
        "CALL polaris.system.refresh(view => 'db.v')",
        "/* REFRESH MATERIALIZED VIEW polaris.db.v",
        "'",
        "",
    ],
)
def test_other_statements_are_left_to_spark(spark: SparkSession, statement: str) -> None:
    assert rewritten(spark, statement) is None


def test_comments_and_space_may_stand_before_and_in_a_statement(spark: SparkSession) -> None:
    call = rewritten(
        spark, " -- a\n/* b /* c */ d */\u2003refresh/**/Materialized\r\n\tVIEW polaris.db.v -- e"
    )
    assert call == "CALL `polaris`.system.refresh(view => 'db.v', full => false)"


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE MATERIALIZED VIEW {}.v AS",
        "REFRESH MATERIALIZED VIEW {}.v wrong",
        "DROP MATERIALIZED VIEW {}.v wrong",
        "SHOW MATERIALIZED VIEWS IN {} wrong",
        "ALTER MATERIALIZED VIEW {}.v wrong",
        "DESCRIBE MATERIALIZED VIEW {}.v wrong",
        "EXPLAIN REFRESH MATERIALIZED VIEW {}.v wrong",
        "REFRESH MATERIALIZED VIEW",
        "SHOW MATERIALIZED VIEWS wrong",
    ],
)
@pytest.mark.parametrize("home", ["spark_catalog.default", "default", "no_such_catalog.a"])
def test_views_in_other_catalogs_are_left_to_spark(spark: SparkSession, statement: str, home: str) -> None:
    assert rewritten(spark, statement.format(home)) is None


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("REFRESH MATERIALIZED VIEW", "end of input: expected the name of a materialized view"),
        ("REFRESH MATERIALIZED VIEW 'v'", "''v'': expected the name of a materialized view"),
        ("DROP MATERIALIZED VIEW IF EXISTS;", "';': expected the name of a materialized view"),
        ("REFRESH MATERIALIZED VIEW a.", "'.': extra input '.'"),
        ("REFRESH MATERIALIZED VIEW db.my-view", "my-view"),
        (
            "REFRESH MATERIALIZED VIEW polaris.v",
            "'polaris': the name has a catalog but no namespace; write catalog.",
        ),
        ("REFRESH MATERIALIZED VIEW db.v NOW", "'NOW': expected FULL or the end of the statement"),
        ("REFRESH MATERIALIZED VIEW db.v FULL NOW", "'NOW': expected the end of the statement"),
        ("REFRESH MATERIALIZED VIEW db.v; SELECT 1", "'SELECT': expected FULL or the end of the statement"),
        ("REFRESH MATERIALIZED VIEW db.v /* a", "'/*': it is not closed"),
        ("DROP MATERIALIZED VIEW db.v CASCADE", "'CASCADE': expected PURGE or the end of the statement"),
        ("SHOW MATERIALIZED VIEWS LIKE 'a'", "'LIKE': expected IN, FROM or the end of the statement"),
        ("SHOW MATERIALIZED VIEWS IN", "end of input: expected the name of a namespace"),
        ("SHOW MATERIALIZED VIEWS IN db LIKE 'a'", "'LIKE': expected the end of the statement"),
        ("DESC MATERIALIZED VIEW db.v EXTENDED", "'EXTENDED': expected the end of the statement"),
        ("EXPLAIN REFRESH MATERIALIZED VIEW db.v FULL", "'FULL': expected the end of the statement"),
        (
            "ALTER MATERIALIZED VIEW db.v AS SELECT 1",
            "'AS': expected SET TBLPROPERTIES, UNSET TBLPROPERTIES or RENAME TO",
        ),
        (
            "CREATE OR REPLACE MATERIALIZED VIEW IF NOT EXISTS db.v AS SELECT 1",
            "'IF': OR REPLACE and IF NOT EXISTS exclude each other",
        ),
        (
            "CREATE MATERIALIZED VIEW db.v USING iceberg AS SELECT 1",
            "'USING': expected a list of columns in parentheses, PARTITIONED BY, COMMENT, TBLPROPERTIES or AS",
        ),
        (
            "CREATE MATERIALIZED VIEW db.v (a) SELECT 1",
            "'SELECT': expected PARTITIONED BY, COMMENT, TBLPROPERTIES or AS",
        ),
        (
            "CREATE MATERIALIZED VIEW db.v COMMENT 'a' (a)",
            "'(': expected PARTITIONED BY, COMMENT, TBLPROPERTIES or",
        ),
        (
            "CREATE MATERIALIZED VIEW db.v COMMENT 'a' COMMENT 'b'",
            "'COMMENT': the statement already has this clause",
        ),
        ("CREATE MATERIALIZED VIEW db.v COMMENT a", "'a': expected the comment as a string"),
        ("CREATE MATERIALIZED VIEW db.v COMMENT 'a AS SELECT 1", "''': it is not closed"),
        ("CREATE MATERIALIZED VIEW db.v ()", "')': expected the name of a column"),
        ("CREATE MATERIALIZED VIEW db.v (a,", "end of input: expected the name of a column"),
        ("CREATE MATERIALIZED VIEW db.v (a, a)", "'a': the list already has this column"),
        (
            "CREATE MATERIALIZED VIEW db.v (a INT)",
            "'INT': expected COMMENT, ',' or ')' after the name of a column",
        ),
        (
            "CREATE MATERIALIZED VIEW db.v (a.b)",
            "'.': expected COMMENT, ',' or ')' after the name of a column",
        ),
        ("CREATE MATERIALIZED VIEW db.v (a COMMENT 1)", "'1': expected the column's comment as a string"),
        ("CREATE MATERIALIZED VIEW db.v (a COMMENT '' b)", "'b': expected ',' or ')' after a column"),
        ("CREATE MATERIALIZED VIEW db.v PARTITIONED BY a", "'a': expected '(' after PARTITIONED BY"),
        (
            "CREATE MATERIALIZED VIEW db.v PARTITIONED BY ()",
            "')': expected a partition transform such as days(",
        ),
        ("CREATE MATERIALIZED VIEW db.v PARTITIONED BY (a,)", "')': expected a partition transform such as"),
        (
            "CREATE MATERIALIZED VIEW db.v PARTITIONED BY (b(a)",
            "end of input: expected ')' after the partition",
        ),
        (
            "CREATE MATERIALIZED VIEW db.v PARTITIONED (a)",
            "'PARTITIONED': expected a list of columns in parenthe",
        ),
        ("CREATE MATERIALIZED VIEW db.v TBLPROPERTIES 'a'", "''a'': expected '(' after TBLPROPERTIES"),
        (
            "CREATE MATERIALIZED VIEW db.v TBLPROPERTIES ()",
            "')': expected the key of a property, as a string or as",
        ),
        (
            "CREATE MATERIALIZED VIEW db.v TBLPROPERTIES (a)",
            "')': expected the value of the property: a string, a n",
        ),
        (
            "CREATE MATERIALIZED VIEW db.v TBLPROPERTIES (a=-1)",
            "'-': expected the value of the property: a string",
        ),
        ("CREATE MATERIALIZED VIEW db.v TBLPROPERTIES (a=1 b)", "'b': expected ',' or ')' after a property"),
        (
            "CREATE MATERIALIZED VIEW db.v TBLPROPERTIES ('a'=1,a=2)",
            "'a': the list already has this property",
        ),
        ("CREATE MATERIALIZED VIEW db.v AS", "end of input: expected a query after AS"),
        ("CREATE MATERIALIZED VIEW db.v AS ;", "';': expected a query after AS"),
        ("CREATE MATERIALIZED VIEW db.v AS SELECT 'a", "''': it is not closed"),
        ("CREATE MATERIALIZED VIEW db.v AS SELECT `a", "'`': it is not closed"),
        ("CREATE MATERIALIZED VIEW db.v AS SELECT 1 /* a", "'/*': it is not closed"),
        (
            "CREATE MATERIALIZED VIEW db.v AS SELECT 1; SELECT 2",
            "'SELECT': expected the end of the statement after ';'",
        ),
        ("CREATE MATERIALIZED VIEW db.v AS SELECT (1", "end of input"),
        ("CREATE MATERIALIZED VIEW db.v AS DROP TABLE db.t", "'DROP': expected a query after AS"),
        ("CREATE MATERIALIZED VIEW db.v AS INSERT INTO db.t SELECT 1", "'INSERT': expected a query after AS"),
        ("CREATE MATERIALIZED VIEW db.v AS SELECT 1) OR (SELECT 2", "')'"),
    ],
)
def test_a_syntax_error_describes_the_problem(
    spark: SparkSession, current: str, statement: str, problem: str
) -> None:
    with pytest.raises(ParseException) as refused:
        spark.sql(statement)
    assert problem in str(refused.value)
    assert "\tat " not in str(refused.value)
    assert refused.value.getSqlState() in ("42601", "42602")


def test_a_syntax_error_shows_its_place(spark: SparkSession) -> None:
    with pytest.raises(ParseException) as refused:
        spark.sql("REFRESH MATERIALIZED VIEW\n  polaris.`😀`.v HALF")
    shown = str(refused.value)
    assert "(line 2, pos 16)" in shown
    assert "polaris.`😀`.v HALF\n----------------^^^" in shown


def test_a_double_quoted_text_is_not_a_string_where_it_is_an_identifier(spark: SparkSession) -> None:
    run(spark, "SET spark.sql.ansi.enabled=true", "SET spark.sql.ansi.doubleQuotedIdentifiers=true")
    try:
        with pytest.raises(ParseException, match="expected the comment as a string"):
            spark.sql(f'{CREATE} COMMENT "a" AS SELECT 1')
    finally:
        run(spark, "RESET spark.sql.ansi.doubleQuotedIdentifiers", "RESET spark.sql.ansi.enabled")


def test_statements_with_parameters_are_parsed_too(spark: SparkSession) -> None:
    with pytest.raises(ParseException, match="'NOW': expected FULL or the end"):
        spark.sql("REFRESH MATERIALIZED VIEW polaris.db.v NOW", args={"a": 1})
    assert spark.sql("SELECT :a AS a", args={"a": 1}).collect() == [(1,)]


@pytest.mark.parametrize("order", [(ICEBERG, POLARIS), (POLARIS, ICEBERG), (POLARIS,)])
def test_the_extension_stands_before_or_after_icebergs(spark: SparkSession, order: tuple[str, ...]) -> None:
    java = jvm(spark)
    session: Any = spark._jsparkSession
    extensions = java.org.apache.spark.sql.SparkSessionExtensions()
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    for name in order:
        loader.loadClass(name).newInstance().apply(extensions)
    parser = extensions.buildParser(session, java.org.apache.spark.sql.execution.SparkSqlParser())
    plan = parser.parsePlan(f"{CREATE} (`b c`) AS SELECT 'it''s', '\\\\n'").toString()
    assert plan.startswith("Call polaris.system.create_materialized_view(view => db.v, ")
    assert "query => SELECT 'it''s', '\\\\n', or_replace" in plan
    assert "Project" in parser.parsePlan("SELECT 1").toString()
    if ICEBERG in order:
        branch = parser.parsePlan("ALTER TABLE polaris.db.t CREATE BRANCH b").toString()
        assert "CreateOrReplaceBranch" in branch


def test_iceberg_still_finds_its_parser_for_a_sort_order(spark: SparkSession, namespace: str) -> None:
    spark.sql(f"CREATE TABLE {namespace}.t AS SELECT id FROM range(10)")
    more = "strategy => 'sort', sort_order => 'id DESC NULLS LAST', options => map('rewrite-all', 'true')"
    assert call_iceberg(spark, f"{namespace}.t", "rewrite_data_files", more)["rewritten_data_files_count"] > 0


def test_properties_are_changed_and_views_renamed_as_those_of_other_views(
    spark: SparkSession, namespace: str
) -> None:
    view = f"{namespace}.v"
    run(
        spark,
        f"CREATE VIEW {view} AS SELECT 1 AS a",
        f"ALTER MATERIALIZED VIEW {view} SET TBLPROPERTIES ('k' = 'it''s', 'l' = '2')",
        f"ALTER MATERIALIZED VIEW {view} UNSET TBLPROPERTIES (l)",
        f"ALTER MATERIALIZED VIEW {view} RENAME TO {namespace}.w",
    )
    properties = {row.key: row.value for row in spark.sql(f"SHOW TBLPROPERTIES {namespace}.w").collect()}
    assert properties["k"] == "it's"
    assert "l" not in properties
