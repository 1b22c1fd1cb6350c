"""Programs that know only the configuration of the catalog. All do the same work and leave nothing behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polaris_spark.testing.waiting import wait_until
from tests.programs.starting import SPARK_HOME, Place, started

pytestmark = pytest.mark.programs

HERE = Path(__file__).parent

WORK = [
    "CREATE NAMESPACE polaris.shop",
    "CREATE TABLE polaris.shop.orders (id BIGINT, item STRING)",
    "INSERT INTO polaris.shop.orders VALUES (1, 'tea'), (2, 'coffee')",
    "CREATE VIEW polaris.shop.items AS SELECT item FROM polaris.shop.orders",
    """MERGE INTO polaris.shop.orders t USING (SELECT 2 AS id UNION ALL SELECT 3) s ON t.id = s.id
    WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, item) VALUES (s.id, 'milk')""".replace(
        "\n", " "
    ),
    "CREATE MATERIALIZED VIEW polaris.shop.stored AS SELECT id, item FROM polaris.shop.orders",
]
QUESTIONS = {
    "SELECT concat_ws(' ', 'items', sort_array(collect_list(item))) FROM polaris.shop.items": "items milk tea",
    # A Python data source, which Spark's workers read.
    "SELECT concat_ws(' ', 'catalog', name, snapshot_count) FROM polaris.system.tables WHERE name = 'orders'":
        "catalog orders 2",
    "SELECT concat_ws(' ', 'changes', count(*)) FROM polaris.system.changes WHERE catalog = 'polaris'": "changes 7",
    # It is refreshed before it is read.
    "SELECT concat_ws(' ', 'stored', sort_array(collect_list(item))) FROM polaris.shop.stored": "stored milk tea",
    "SELECT concat_ws(' ', 'earlier', sort_array(collect_list(item))) FROM polaris.shop.stored VERSION AS OF 'main'":
        "earlier milk tea",
}  # fmt: skip  # a question and its answer
STATEMENTS = [*WORK, *QUESTIONS]
OF_MATERIALIZED_VIEWS = {
    "REFRESH MATERIALIZED VIEW polaris.shop.stored FULL": "it was asked for",
    "ALTER MATERIALIZED VIEW polaris.shop.stored SET TBLPROPERTIES ('max-staleness' = '1 h')": "",
    "ALTER MATERIALIZED VIEW polaris.shop.stored UNSET TBLPROPERTIES ('max-staleness')": "",
    "ALTER MATERIALIZED VIEW polaris.shop.stored RENAME TO polaris.shop.renamed": "",
    "SHOW MATERIALIZED VIEWS IN polaris.shop": "renamed",
    "DESCRIBE MATERIALIZED VIEW polaris.shop.renamed": "SELECT id, item FROM polaris.shop.orders",
    "EXPLAIN REFRESH MATERIALIZED VIEW polaris.shop.renamed": "the rows are fresh",
    "DROP MATERIALIZED VIEW polaris.shop.renamed": "shop.renamed",
    "SHOW VIEWS IN polaris.shop": "items",
}
"""Further statements, and a text in the answer of each."""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Place]:
    """An empty directory. After the test, no process may hold a lease of its store."""
    made = Place(tmp_path)
    yield made
    wait_until(lambda: not made.unreleased(), "all leases are released", every_s=0.05)


def test_spark_sql(shop: Place) -> None:
    with started(
        shop,
        SPARK_HOME / "bin" / "spark-sql",
        *shop.arguments,
        "-e",
        ";".join([*STATEMENTS, *OF_MATERIALIZED_VIEWS]),
    ) as program:
        printed = program.finish().splitlines()
    assert [line for line in printed if line in QUESTIONS.values()] == list(QUESTIONS.values())
    for text in OF_MATERIALIZED_VIEWS.values():
        assert any(text in line.split("\t") or text == "" for line in printed), text


def test_materialized_views_are_read_without_the_extension_for_their_statements(shop: Place) -> None:
    extension = ",io.polarisspark.PolarisSparkSessionExtensions"
    arguments = [one.replace(extension, "") for one in shop.arguments]
    assert arguments != shop.arguments
    question = "SELECT concat_ws(' ', 'stored', sort_array(collect_list(item))) FROM polaris.shop.stored"
    refreshes = "SELECT concat_ws(' ', 'refreshes', count(*)) FROM polaris.shop.stored.storage.snapshots"
    statements = [
        *WORK[:3],
        "CALL polaris.system.create_materialized_view(view => 'shop.stored', query => "
        "'SELECT item FROM polaris.shop.orders')",
        question,
        "INSERT INTO polaris.shop.orders VALUES (3, 'milk')",
        question,
        question,
        refreshes,
    ]
    with started(shop, SPARK_HOME / "bin" / "spark-sql", *arguments, "-e", ";".join(statements)) as program:
        printed = program.finish().splitlines()
    now = "stored coffee milk tea"
    found = [line for line in printed if line.startswith(("stored ", "refreshes "))]
    assert found == ["stored coffee tea", now, now, "refreshes 2"]


def server(shop: Place, main: str, *arguments: str) -> list[str | Path]:
    """The command that starts one of Spark's servers."""
    return [
        SPARK_HOME / "bin" / "spark-submit", *shop.arguments, "--class", main, *arguments
    ]  # fmt: skip  # a command in one line


def test_spark_connect(shop: Place) -> None:
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    settings = (
        "--conf",
        "spark.connect.grpc.binding.port=0",
        "--conf",
        "spark.connect.grpc.binding.address=127.0.0.1",
    )
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with started(shop, *server(shop, main, *settings, "spark-internal")) as program:
        port = program.wait_for(r"Spark Connect server started at: \S*:(\d+)")
        remote = RemoteSession.builder.remote(f"sc://127.0.0.1:{port}").create()
        answers = [remote.sql(statement).collect() for statement in STATEMENTS]
        orders = remote.read.table("polaris.shop.orders")
        orders.filter("id = 1").writeTo("polaris.shop.copy").create()
        copied = remote.table("polaris.shop.copy").count()
        more = [remote.sql(statement).collect() for statement in OF_MATERIALIZED_VIEWS]
        remote.stop()
    assert [rows[0][0] for rows in answers[len(WORK) :]] == list(QUESTIONS.values())
    assert copied == 1
    for found, text in zip(more, OF_MATERIALIZED_VIEWS.values(), strict=True):
        assert text == "" or text in [cell for row in found for cell in row]
    assert [row.viewName for row in more[-1]] == ["items"]


def test_the_thrift_server(shop: Place) -> None:
    settings = (
        "--hiveconf",
        "hive.server2.thrift.port=0",
        "--hiveconf",
        "hive.server2.thrift.bind.host=127.0.0.1",
    )
    main = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
    with started(shop, *server(shop, main, "spark-internal", *settings)) as program:
        port = program.wait_for(r"ThriftBinaryCLIService on port (\d+)")
        program.wait_for("(HiveThriftServer2 started)")
        url = f"jdbc:hive2://127.0.0.1:{port}/"
        options = ("--silent=true", "--outputformat=csv2", "--showHeader=false")
        beeline = (SPARK_HOME / "bin" / "beeline", "-u", url, *options, "-e")
        with started(shop, *beeline, ";".join([*STATEMENTS, *OF_MATERIALIZED_VIEWS])) as client:
            printed = client.finish()
    # The first row stands behind a prompt.
    assert re.findall("|".join(QUESTIONS.values()), printed) == list(QUESTIONS.values())
    for text in OF_MATERIALIZED_VIEWS.values():
        assert text in printed


def class_path(spark: SparkSession) -> str:
    """Spark's jars, ours, and Iceberg's runtime as Spark resolved it."""
    resolved = spark.sparkContext.getConf().get("spark.repl.local.jars")
    assert resolved is not None
    return ":".join([f"{SPARK_HOME}/jars/*", *(jar.removeprefix("file://") for jar in resolved.split(","))])


def test_a_java_program_with_spark(shop: Place, spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    opens = str(jvm.org.apache.spark.launcher.JavaModuleOptions.defaultModuleOptions()).split()
    local = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    settings = [f"{key}={value}" for key, value in {**local, **shop.settings}.items()]
    command = [
        "java",
        *opens,
        "-cp",
        class_path(spark),
        HERE / "SparkProgram.java",
        *settings,
        "--",
        *STATEMENTS,
    ]
    with started(shop, *command) as program:
        printed = program.finish().splitlines()
    assert [line for line in printed if line.startswith("row: ")] == [
        f"row: [{it}]" for it in ("shop.stored,true", *QUESTIONS.values())
    ]


@pytest.mark.parametrize("mode", ["every-commit", "never"])
def test_a_java_program_without_spark(shop: Place, spark: SparkSession, mode: str) -> None:
    prefix = "spark.sql.catalog.polaris."
    properties = {key.removeprefix(prefix): value for key, value in shop.settings.items() if prefix in key}
    del properties["type"]  # Iceberg refuses it beside catalog-impl
    properties |= {"catalog-impl": "io.polarisspark.PolarisRESTCatalog", "metadata-files": mode}
    pairs = [f"{key}={value}" for key, value in properties.items()]
    command = ["java", "-cp", class_path(spark), HERE / "CatalogProgram.java", *pairs]
    with started(shop, *command) as program:
        printed = program.finish()
    for line in ("records: 6", "snapshots: 3", "property: java", "tables: [plain.java.t]", "exists: false"):
        assert line in printed.splitlines()
