"""Row-level changes in format versions 2 and 3: the rows, the kinds of files, and row lineage."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import catalog_of_mode, new_home
from tests.spark.sql import call, rows, run

if TYPE_CHECKING:
    from conftest import CatalogPlace

pytestmark = pytest.mark.spark

LINEAGE = "_row_id, _last_updated_sequence_number"


class Kind(NamedTuple):
    """How a table is written."""

    version: int
    mode: str
    metadata_files: str

    @property
    def properties(self) -> str:
        """The table's properties, in SQL."""
        modes = [f"'write.{change}.mode' = '{self.mode}'" for change in ("delete", "update", "merge")]
        return ", ".join([f"'format-version' = '{self.version}'", *modes])


KINDS = [
    Kind(2, "copy-on-write", "never"),
    Kind(2, "merge-on-read", "every-commit"),
    Kind(3, "copy-on-write", "every-commit"),
    Kind(3, "merge-on-read", "never"),
]


def home_of(spark: SparkSession, place: CatalogPlace, mode: str) -> str:
    return new_home(spark, catalog_of_mode(spark, place, mode))


@pytest.fixture(params=KINDS, ids=lambda kind: f"v{kind.version}-{kind.mode}")
def kind(request: pytest.FixtureRequest) -> Kind:
    """A way of writing tables."""
    found: Kind = request.param
    return found


@pytest.fixture
def stock(spark: SparkSession, place: CatalogPlace, kind: Kind) -> str:
    """Eight rows in two files of two partitions: (1, 'a', 10) to (8, 'b', 80)."""
    table = f"{home_of(spark, place, kind.metadata_files)}.stock"
    run(
        spark,
        f"CREATE TABLE {table} (id INT, place STRING, n INT) PARTITIONED BY (place)"
        f" TBLPROPERTIES ({kind.properties})",
        f"INSERT INTO {table} SELECT CAST(id AS INT), IF(id < 5, 'a', 'b'), CAST(10 * id AS INT)"
        " FROM range(1, 9)",
    )
    return table


Stock = dict[int, tuple[str, int]]
EIGHT: Stock = {id: ("a" if id < 5 else "b", 10 * id) for id in range(1, 9)}


def listed(stock: Stock) -> list[tuple[int, str, int]]:
    return [(id, place, n) for id, (place, n) in sorted(stock.items())]


def change(spark: SparkSession, table: str) -> Stock:
    """Delete, update and merge rows. Return the expected rows."""
    run(
        spark,
        f"DELETE FROM {table} WHERE id = 2",
        f"UPDATE {table} SET n = n + 1 WHERE id IN (3, 7)",
        f"""MERGE INTO {table} t
        USING (SELECT * FROM VALUES (4, 'a', 0), (5, 'b', 500), (9, 'a', 90) AS s(id, place, n)) s ON t.id = s.id
        WHEN MATCHED AND s.n = 0 THEN DELETE
        WHEN MATCHED THEN UPDATE SET n = s.n
        WHEN NOT MATCHED THEN INSERT *
        WHEN NOT MATCHED BY SOURCE AND t.id = 8 THEN UPDATE SET n = -8""",
    )
    left = {id: EIGHT[id] for id in (1, 6)}
    return left | {3: ("a", 31), 5: ("b", 500), 7: ("b", 71), 8: ("b", -8), 9: ("a", 90)}


def test_rows_are_what_the_changes_say(spark: SparkSession, stock: str) -> None:
    [before] = rows(spark, f"SELECT snapshot_id FROM {stock}.snapshots")
    expected = change(spark, stock)
    assert rows(spark, f"SELECT * FROM {stock}") == listed(expected)
    assert rows(spark, f"SELECT * FROM {stock} VERSION AS OF {before[0]}") == listed(EIGHT)
    [(last,)] = rows(spark, f"SELECT max(made_current_at) FROM {stock}.history")
    assert rows(spark, f"SELECT count(*) FROM {stock} TIMESTAMP AS OF '{last}'") == [(len(expected),)]


def test_deletes_are_written_as_the_version_and_the_mode_say(
    spark: SparkSession, stock: str, kind: Kind
) -> None:
    spark.sql(f"DELETE FROM {stock} WHERE id = 2")
    spark.sql(f"DELETE FROM {stock} WHERE id = 3")
    deletes = rows(spark, f"SELECT content, file_format, record_count FROM {stock}.delete_files")
    data = rows(spark, f"SELECT sum(record_count) FROM {stock}.data_files")
    if kind.mode == "copy-on-write":
        assert (deletes, data) == ([], [(6,)])
        assert rows(spark, f"SELECT count(*) FROM {stock}.all_delete_files") == [(0,)]
        return
    assert data == [(8,)]
    # The file of a data file's deletes takes over what the one before it said.
    assert deletes == [(1, "PUFFIN" if kind.version == 3 else "PARQUET", 2)]
    assert rows(spark, f"SELECT count(*) FROM {stock}.all_delete_files") == [(2,)]
    positions = rows(spark, f"SELECT pos FROM {stock}.position_deletes")
    assert positions == [(1,), (2,)]
    if kind.version == 3:  # a deletion vector belongs to one data file
        vectors = rows(spark, f"SELECT referenced_data_file FROM {stock}.delete_files")
        files = rows(spark, f"SELECT file_path FROM {stock}.data_files")
        assert set(vectors) <= set(files)


def test_whole_partitions_are_deleted_without_delete_files(spark: SparkSession, stock: str) -> None:
    spark.sql(f"DELETE FROM {stock} WHERE place = 'a'")
    assert rows(spark, f"SELECT id FROM {stock}") == [(5,), (6,), (7,), (8,)]
    assert rows(spark, f"SELECT count(*) FROM {stock}.delete_files") == [(0,)]
    [(operation,)] = rows(
        spark, f"SELECT operation FROM {stock}.snapshots ORDER BY committed_at DESC LIMIT 1"
    )
    assert operation == "delete"
    spark.sql(f"TRUNCATE TABLE {stock}")
    assert rows(spark, f"SELECT * FROM {stock}") == []


def test_compaction_leaves_the_rows_and_takes_the_deletes(
    spark: SparkSession, stock: str, kind: Kind
) -> None:
    expected = change(spark, stock)
    lineage = rows(spark, f"SELECT id, {LINEAGE} FROM {stock}") if kind.version == 3 else []
    answer = call(spark, stock, "rewrite_data_files", "options => map('rewrite-all', 'true')")
    assert answer["failed_data_files_count"] == 0
    assert answer["added_data_files_count"] == 2
    assert rows(spark, f"SELECT * FROM {stock}") == listed(expected)
    call(spark, stock, "rewrite_position_delete_files", "options => map('rewrite-all', 'true')")
    live = rows(
        spark, f"SELECT count(*) FROM {stock}.position_deletes p JOIN {stock}.data_files d USING (file_path)"
    )
    assert live == [(0,)]
    assert rows(spark, f"SELECT sum(record_count), count(*) FROM {stock}.data_files") == [(len(expected), 2)]
    if kind.version == 3:
        assert rows(spark, f"SELECT id, {LINEAGE} FROM {stock}") == lineage


def lineage(spark: SparkSession, table: str) -> dict[int, tuple[int, int]]:
    return {id: (row, sequence) for id, row, sequence in rows(spark, f"SELECT id, {LINEAGE} FROM {table}")}


@pytest.mark.parametrize("kind", KINDS[2:], ids=lambda kind: kind.mode, indirect=True)
def test_a_row_keeps_its_id_and_tells_when_it_was_last_changed(spark: SparkSession, stock: str) -> None:
    first = lineage(spark, stock)
    assert sorted(row for row, _ in first.values()) == list(range(8))
    assert {sequence for _, sequence in first.values()} == {1}
    change(spark, stock)  # sequence numbers 2, 3 and 4
    got = lineage(spark, stock)
    for id in (1, 3, 5, 6, 7, 8):
        assert got[id][0] == first[id][0], f"the row of id {id}"
    assert {id: sequence for id, (_, sequence) in got.items()} == {1: 1, 3: 3, 5: 4, 6: 1, 7: 3, 8: 4, 9: 4}
    assert got[9][0] >= 8
    spark.sql(f"INSERT INTO {stock} VALUES (10, 'a', 100)")
    assert lineage(spark, stock)[10][0] > got[9][0]
    assert lineage(spark, stock)[10][1] == 5
    assert len({row for row, _ in lineage(spark, stock).values()}) == 8


@pytest.mark.parametrize("mode", ["every-commit", "never"])
def test_a_table_is_upgraded_to_version_3_where_it_lies(
    spark: SparkSession, place: CatalogPlace, mode: str
) -> None:
    table = f"{home_of(spark, place, mode)}.old"
    two, three = Kind(2, "merge-on-read", mode), Kind(3, "merge-on-read", mode)
    run(
        spark,
        f"CREATE TABLE {table} (id INT) TBLPROPERTIES ({two.properties})",
        f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ CAST(id AS INT) FROM range(1, 5)",
        f"DELETE FROM {table} WHERE id = 2",
        f"ALTER TABLE {table} SET TBLPROPERTIES ({three.properties})",
    )
    assert rows(spark, f"SELECT id FROM {table}") == [(1,), (3,), (4,)]
    # Rows from before get ids with the first snapshot of version 3.
    assert rows(spark, f"SELECT DISTINCT {LINEAGE} FROM {table}") == [(None, None)]
    spark.sql(f"INSERT INTO {table} VALUES (5)")
    before = lineage(spark, table)
    assert len({row for row, _ in before.values()}) == 4
    assert {id: sequence for id, (_, sequence) in before.items()} == {1: 1, 3: 1, 4: 1, 5: 3}
    spark.sql(f"UPDATE {table} SET id = 30 WHERE id = 3")
    spark.sql(f"DELETE FROM {table} WHERE id = 4")
    assert lineage(spark, table) == {1: before[1], 30: (before[3][0], 4), 5: before[5]}
    formats = rows(spark, f"SELECT DISTINCT file_format FROM {table}.delete_files")
    assert ("PUFFIN",) in formats
    with pytest.raises(Exception, match="Cannot downgrade v3 table to v2"):
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version' = '2')")


def test_variants_are_written_changed_and_taken_apart(spark: SparkSession, home: str) -> None:
    run(
        spark,
        f"CREATE TABLE {home}.v (id INT, v VARIANT) TBLPROPERTIES ('format-version' = '3')",
        f"""INSERT INTO {home}.v SELECT id, parse_json(text) FROM VALUES
        (1, '{{"a": 7, "b": [1, 2, {{"c": "x"}}]}}'), (2, '[1.5, true]'), (3, 'null'), (4, NULL) AS s(id, text)""",
        f"UPDATE {home}.v SET v = parse_json('{{\"a\": 8}}') WHERE variant_get(v, '$[1]', 'boolean')",
        f"ALTER TABLE {home}.v ADD COLUMN more STRUCT<w: VARIANT>",
        f"INSERT INTO {home}.v SELECT 5, NULL, named_struct('w', parse_json('[[9]]'))",
    )
    query = "variant_get(v, '$.a', 'int'), try_variant_get(v, '$.b[2].c', 'string'), is_variant_null(v)"
    assert rows(spark, f"SELECT id, {query}, variant_get(more.w, '$[0][0]', 'int') FROM {home}.v") == [
        (1, 7, "x", False, None),
        (2, 8, None, False, None),
        (3, None, None, True, None),
        (4, None, None, False, None),
        (5, None, None, False, 9),
    ]
    assert rows(spark, f"SELECT id FROM {home}.v WHERE variant_get(v, '$.a', 'int') > 7") == [(2,)]


def test_columns_of_unknown_type_are_null(spark: SparkSession, home: str) -> None:
    run(
        spark,
        f"CREATE TABLE {home}.u (id INT, later VOID) TBLPROPERTIES ('format-version' = '3')",
        f"INSERT INTO {home}.u VALUES (1, NULL)",
    )
    assert rows(spark, f"SELECT * FROM {home}.u") == [(1, None)]


@pytest.mark.parametrize("column", ["VARIANT", "VOID"])
def test_types_of_version_3_are_refused_in_version_2(spark: SparkSession, home: str, column: str) -> None:
    with pytest.raises(Exception, match="is not supported until v3"):
        spark.sql(f"CREATE TABLE {home}.v (c {column}) TBLPROPERTIES ('format-version' = '2')")
    spark.sql(f"CREATE TABLE {home}.v (c INT) TBLPROPERTIES ('format-version' = '2')")
    with pytest.raises(Exception, match="is not supported until v3"):
        spark.sql(f"ALTER TABLE {home}.v ADD COLUMN d {column}")
    assert spark.table(f"{home}.v").columns == ["c"]


def test_default_values_that_another_engine_set_are_read_by_spark(spark: SparkSession, home: str) -> None:
    run(
        spark,
        f"CREATE TABLE {home}.d (id INT) TBLPROPERTIES ('format-version' = '3')",
        f"INSERT INTO {home}.d VALUES (1)",
    )
    jvm = spark._jvm
    assert jvm is not None
    iceberg, types = jvm.org.apache.iceberg, jvm.org.apache.iceberg.types
    literals = iceberg.expressions.Literal
    integers, text = types.Types.IntegerType.get(), types.Types.StringType.get()
    table = iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, f"{home}.d")
    change = table.updateSchema()
    change.addColumn("n", integers, literals.of(5)).addRequiredColumn("s", text, literals.of("x")).commit()
    assert rows(spark, f"SELECT * FROM {home}.d") == [(1, 5, "x")]
    spark.sql(f"INSERT INTO {home}.d VALUES (2, 6, 'y')")
    assert rows(spark, f"SELECT * FROM {home}.d WHERE n >= 5") == [(1, 5, "x"), (2, 6, "y")]
