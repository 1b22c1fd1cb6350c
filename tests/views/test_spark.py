"""System views in Spark: as tables of the catalog, and through the data source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chispa import DataFramesNotEqualError, assert_df_equality
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from conftest import CatalogPlace
from polaris_spark.jobs.registry import call
from polaris_spark.spark.views import VIEWS
from tests.views.catalogs import Catalog

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession) -> Load:
    """Loads a view of a store through the data source."""

    def loaded(store: str, view: str, **options: str) -> DataFrame:
        named = {name.replace("_", "-"): value for name, value in options.items()}
        found = spark.read.format("polaris-objects").options(store=store, view=view, **named)
        return found.load()

    return loaded


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Enable filter pushdown into Python data sources."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


@pytest.fixture
def orders(spark: SparkSession, namespace: str) -> str:
    """The SQL name of a table that was created, filled twice and merged into."""
    name = f"{namespace}.orders"
    spark.sql(f"CREATE TABLE {name} (n BIGINT, what STRING) TBLPROPERTIES ('colour' = 'red')")
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
    spark.sql(f"INSERT INTO {name} VALUES (3, 'c')")
    return name


def test_every_view_is_the_same_as_a_table_of_the_catalog(
    spark: SparkSession, load: Load, place: CatalogPlace, orders: str
) -> None:
    spark.sql(f"CREATE VIEW {orders}_view AS SELECT n FROM {orders}")
    spark.sql(f"CREATE MATERIALIZED VIEW {orders}_stored AS SELECT n FROM {orders}")
    spark.sql(f"REFRESH MATERIALIZED VIEW {orders}_stored")
    table = orders.removeprefix("polaris.")
    spark.sql("CALL polaris.system.add_schedule(name => 'yearly', procedure => 'trim', every => '365 d')")
    spark.sql(f"CALL polaris.system.expire(table => '{table}', older_than => '0 s', retain_last => 1)")
    for view in VIEWS:
        expected = load(place.store, view, catalog="polaris")
        ours = spark.table(f"polaris.system.{view}")
        assert_same(_without_maps(ours), _without_maps(expected))
        assert expected.count() > 0, f"fill the view {view}"


def assert_same(ours: DataFrame, expected: DataFrame) -> None:
    """Check that two frames have the same rows. Metrics reports are written in the background, so they may differ
    between the reads."""
    for last in (False, False, True):
        try:
            assert_df_equality(ours, expected, ignore_row_order=True, ignore_metadata=True)
        except DataFramesNotEqualError:
            if last:
                raise
        else:
            return


def _without_maps(frame: DataFrame) -> DataFrame:
    # Spark cannot sort maps, which comparing without an order does.
    simple = [f.name for f in frame.schema.fields if f.dataType.typeName() not in ("map", "array")]
    return frame.select(*[f"`{name}`" for name in simple])


def test_columns_are_described_where_sql_looks_for_it(spark: SparkSession) -> None:
    described = {row.col_name: row.comment for row in spark.sql("DESCRIBE polaris.system.tables").collect()}
    expected = {column.name: column.comment for column in VIEWS["tables"].columns}
    assert {name: described.get(name) for name in expected} == expected


def test_views_are_joined_in_sql(spark: SparkSession, orders: str) -> None:
    namespace = orders.split(".")[1]
    [row] = spark.sql(
        f"""
        SELECT t.name, count(DISTINCT c.commit_id) AS commits, max(c.principal) AS who,
               count(DISTINCT s.snapshot_id) AS snapshots, max(o.type) AS type, max(n.depth) AS depth,
               max(t.record_count) AS records, max(t.properties['colour']) AS colour
        FROM polaris.system.tables t
        JOIN polaris.system.changes c USING (entity_id)
        JOIN polaris.system.commits k ON k.commit_id = c.commit_id AND k.reference = c.reference
        JOIN polaris.system.snapshots s USING (entity_id)
        JOIN polaris.system.objects o ON o.id = t.content_id
        JOIN polaris.system.namespaces n ON n.catalog = t.catalog AND n.namespace = t.namespace
        WHERE t.namespace = '{namespace}'
        GROUP BY t.name
        """
    ).collect()
    user = spark.sparkContext.sparkUser()
    assert tuple(row) == ("orders", 3, user, 2, "table", 1, 3, "red")


def test_the_catalog_as_it_was_before_a_merge(spark: SparkSession, orders: str) -> None:
    namespace = orders.split(".")[1]
    newest = "SELECT max(number) AS number, max_by(commit_id, number) AS id FROM polaris.system.commits"
    [before] = spark.sql(newest).collect()
    spark.sql(
        f"MERGE INTO {orders} t USING (SELECT 1 AS n, 'z' AS what) s ON t.n = s.n "
        "WHEN MATCHED THEN UPDATE SET t.what = s.what WHEN NOT MATCHED THEN INSERT *"
    )
    count = f"SELECT snapshot_count FROM polaris.system.tables {{}} WHERE namespace = '{namespace}'"
    then = [
        spark.sql(count.format(f"VERSION AS OF {text}")).first()
        for text in (before.number, before.id, f"'{before.id:x}'")
    ]
    now = spark.sql(count.format("")).first()
    assert [row and row.snapshot_count for row in (*then, now)] == [2, 2, 2, 3]


def test_a_time_is_a_point_too(spark: SparkSession, orders: str) -> None:
    namespace = orders.split(".")[1]
    [moment] = spark.sql("SELECT max(committed_at) AS t FROM polaris.system.commits").collect()
    spark.sql(f"DROP TABLE {orders}")
    query = "SELECT count(*) FROM polaris.system.tables {} WHERE namespace = '{}'"
    # A commit's time is in milliseconds, so the moment itself is the last at which the table is there.
    then = spark.sql(query.format(f"TIMESTAMP AS OF '{moment.t}'", namespace)).first()
    now = spark.sql(query.format("", namespace)).first()
    assert (then and then[0], now and now[0]) == (1, 0)


FILTERS = (
    "name = 'orders'",
    "name LIKE 'or%' AND namespace <> 'nothing'",
    "namespace IN ('ns1', 'sales') AND entity_id > 5",
    "entity_id IS NOT NULL AND NOT name = 'returns'",
)


@pytest.mark.parametrize("condition", FILTERS)
def test_filters_give_the_same_with_pushdown_on_and_off(
    spark: SparkSession, load: Load, shop: Catalog, condition: str
) -> None:
    found = []
    for on in ("false", "true"):
        spark.conf.set(PUSHDOWN, on)
        for prune in ("false", "true"):
            rows = load(shop.store, "tables", prune=prune).filter(condition).collect()
            found.append(sorted(rows))
    spark.conf.unset(PUSHDOWN)
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.usefixtures("pushdown")
def test_times_and_ids_are_pushed(load: Load, shop: Catalog) -> None:
    everything = sorted(load(shop.store, "changes", catalog="shop").collect(), key=lambda row: row.number)
    middle = everything[3]
    later = f"committed_at > TIMESTAMP '{middle.committed_at}'"
    found = load(shop.store, "changes", catalog="shop", prune="true").filter(later).collect()
    assert sorted(row.number for row in found) == [row.number for row in everything[4:]]
    one = load(shop.store, "objects", prune="true").filter(f"id = {middle.after_id}")
    assert [row.type for row in one.collect()] == ["table"]
    assert one.rdd.getNumPartitions() == 1


@pytest.mark.usefixtures("pushdown")
@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Kolkata"])
def test_pushed_times_are_of_the_zone_of_the_session(
    spark: SparkSession, load: Load, shop: Catalog, zone: str
) -> None:
    [fourth] = load(shop.store, "changes", catalog="shop").filter("number = 4").collect()
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        found = load(shop.store, "changes", catalog="shop", prune="true")
        [local] = found.filter("number = 4").selectExpr("CAST(committed_at AS STRING) AS text").collect()
        assert local.text != str(fourth.committed_at)
        later = found.filter(f"committed_at >= TIMESTAMP '{local.text}'").select("number").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert sorted(row.number for row in later) == [4, 5, 6, 7, 8]


@pytest.mark.usefixtures("pushdown")
def test_one_frame_may_be_filtered_in_several_ways(load: Load, shop: Catalog) -> None:
    # Spark 4.1 keeps one plan for all scans of a frame: without the option, filters must leave out nothing.
    frame = load(shop.store, "tables")
    orders, returns = (frame.filter(f"name = '{name}'") for name in ("orders", "returns"))
    assert [row.name for row in orders.collect()] == ["orders"]
    assert frame.count() == 2
    assert sorted(row.name for row in orders.union(returns).collect()) == ["orders", "returns"]


def test_thousands_of_names_come_once_each_over_several_partitions(load: Load, tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("db")
    for i in range(2_100):
        catalog.table("db", f"t{i}")
    frame = load(catalog.store, "tables", splits="4")
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(row.name for row in frame.select("name").collect()) == sorted(f"t{i}" for i in range(2_100))
    catalog.session.close()


def test_a_schema_chooses_columns(spark: SparkSession, shop: Catalog) -> None:
    chosen = spark.read.format("polaris-objects").schema("name STRING, snapshot_count INT")
    found = chosen.options(store=shop.store, view="tables").load().collect()
    assert sorted(map(tuple, found)) == [("orders", 2), ("returns", 0)]


def test_a_missing_store_is_refused_and_not_created(load: Load, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="reading does not create a store"):
        load(f"sqlite://{tmp_path}/missing.db", "tables").count()
    assert list(tmp_path.iterdir()) == []


def test_a_password_is_in_no_plan_and_no_error(load: Load) -> None:
    options = {"store.password": "hunter2"}
    frame = load("postgresql://me@127.0.0.1:9/db", "tables", **options).filter("name = 'x'")
    plan = frame._jdf.queryExecution().toString()
    with pytest.raises(Exception, match="postgresql") as error:
        frame.count()
    for text in (plan, str(error.value), repr(frame)):
        assert "hunter2" not in text


def test_storage_is_summed_by_type_and_age(spark: SparkSession, load: Load, shop: Catalog) -> None:
    sums = call(shop.session, "storage_summary", spark=spark)
    assert sums == call(shop.session, "storage_summary")
    by_type: dict[str | None, list[int]] = {}
    for type, _, _, *numbers in sums:
        by_type[type] = [a + b for a, b in zip(by_type.get(type, [0, 0, 0]), numbers, strict=True)]
    objects = load(shop.store, "objects").selectExpr("type", "1 AS one", "parts", "bytes")
    expected = objects.groupBy("type").sum("one", "parts", "bytes")
    assert sorted((type, *numbers) for type, numbers in by_type.items()) == sorted(
        map(tuple, expected.collect())
    )


def test_age_groups_follow_the_clock(spark: SparkSession, shop: Catalog) -> None:
    assert {row[2] for row in call(shop.session, "storage_summary", spark=spark)} == {"under 1 hour"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "nothing"}, "there is no view 'nothing'"),
        ({"view": "tables", "as_of": "1"}, "give the option 'catalog' as well"),
        (
            {"view": "tasks", "as_of": "2026-01-31T00:00:00Z"},
            "the view 'tasks' does not support the option as-of",
        ),
        ({"view": "tables", "as_of": "999", "catalog": "polaris"}, "as-of '999' is not a commit"),
        ({"view": "tables", "start": "latest"}, "these options are only for streams: start"),
    ],
)
def test_refusals_of_the_data_source_are_reported_in_one_line(
    load: Load, place: CatalogPlace, orders: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message) as refused:
        load(place.store, **options).collect()
    first, *rest = str(refused.value).splitlines()
    assert message in first
    assert "Traceback" not in str(refused.value)
    assert [line.split(":")[0].strip() for line in rest] == ["SQLSTATE"]
