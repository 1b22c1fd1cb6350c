"""The view `files`, compared with Iceberg's metadata tables and pyiceberg's inspection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from chispa import assert_df_equality
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo

from polaris_spark.errors import InputError, MissingFileError
from polaris_spark.spark.options import LISTED_VARIABLES
from tests.spark.sql import run
from tests.views.catalogs import rows

if TYPE_CHECKING:
    from conftest import CatalogPlace

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
PLAIN = (
    "file_path, file_format, spec_id, record_count, file_size_in_bytes, split_offsets, equality_ids, sort_order_id, "
    "key_metadata, first_row_id, referenced_data_file, content_offset, content_size_in_bytes"
)
MAPS = (
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
)
CONTENT = "CASE content WHEN 'data' THEN 0 WHEN 'position-deletes' THEN 1 ELSE 2 END AS content"


def compared(content: str) -> str:
    """Return the select list of the columns that both sides have. Maps become JSON, because Spark cannot sort or
    compare maps."""
    return ", ".join([content, PLAIN, *[f"to_json({name}) AS {name}" for name in MAPS]])


def mine(
    spark: SparkSession, table: str, columns: str, snapshots: str = "current", unreadable: str = "fail"
) -> DataFrame:
    _, namespace, name = table.split(".")
    return spark.sql(
        f"SELECT {columns} FROM polaris.system.files WITH (snapshots = '{snapshots}', unreadable = '{unreadable}') "
        f"WHERE namespace = '{namespace}' AND name = '{name}'"
    )


def assert_same_files(spark: SparkSession, table: str) -> None:
    """Check that the view has the same files as `files` and `all_files` of a table, and the same sequence numbers as
    `entries`."""
    for snapshots, theirs in (("current", "files"), ("all", "all_files")):
        ours = mine(spark, table, compared(CONTENT), snapshots)
        assert_df_equality(
            ours,
            spark.sql(f"SELECT {compared('content')} FROM {table}.{theirs}"),
            ignore_row_order=True,
            ignore_nullable=True,
            ignore_metadata=True,
        )
    numbers = "sequence_number, file_sequence_number"
    assert_df_equality(
        mine(spark, table, f"file_path, content_offset, added_snapshot_id AS snapshot_id, {numbers}"),
        spark.sql(
            f"SELECT data_file.file_path, data_file.content_offset, snapshot_id, {numbers} FROM {table}.entries "
            "WHERE status < 2"
        ),
        ignore_row_order=True,
        ignore_nullable=True,
        ignore_metadata=True,
    )
    manifests = {row.path for row in spark.sql(f"SELECT path FROM {table}.manifests").collect()}
    assert {row.manifest_path for row in mine(spark, table, "manifest_path").collect()} <= manifests


COLUMNS = (
    "id BIGINT, what STRING, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, amount DECIMAL(9, 2), b BINARY"
)
VALUES = (
    "(1, 'carrier', TIMESTAMP '2026-01-31 23:30:00.25', TIMESTAMP_NTZ '1969-12-31 23:59:59', DATE '2024-02-29', "
    "12.50, X'0102')",
    "(2, 'a/b c', TIMESTAMP '2025-03-01 00:00:00', TIMESTAMP_NTZ '2025-03-01 12:00:00', DATE '1969-01-01', "
    "-0.01, X'')",
    "(3, NULL, NULL, NULL, NULL, NULL, NULL)",
)


def partitioned(spark: SparkSession, table: str, by: str, version: int = 2) -> None:
    run(
        spark,
        f"CREATE TABLE {table} ({COLUMNS}) USING iceberg PARTITIONED BY ({by}) "
        f"TBLPROPERTIES ('format-version' = '{version}')",
        f"INSERT INTO {table} VALUES {', '.join(VALUES)}",
    )


@pytest.mark.parametrize(
    "by",
    [
        "what, bucket(4, id), truncate(3, what), days(at), amount, b",
        "years(at), hours(local), months(day), truncate(10, id), truncate(100, amount)",
        "at, local, day",
    ],
)
def test_partition_values_are_those_of_the_folders(spark: SparkSession, namespace: str, by: str) -> None:
    table = f"{namespace}.t"
    partitioned(spark, table, by)
    for row in mine(spark, table, "file_path, partition").collect():
        folders = [
            unquote(part.replace("+", " ")) for part in row.file_path.split("/data/")[1].split("/")[:-1]
        ]
        shown = {f"{name}={'null' if value is None else value}" for name, value in row.partition.items()}
        assert shown == set(folders)
    assert_same_files(spark, table)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_files_of_a_table_whose_partitioning_changed(
    spark: SparkSession, namespace: str, version: int
) -> None:
    table = f"{namespace}.evolved"
    partitioned(spark, table, "days(at)", version)
    run(
        spark,
        f"ALTER TABLE {table} ADD PARTITION FIELD bucket(3, id) AS shard",
        f"INSERT INTO {table} VALUES {VALUES[0]}",
        f"ALTER TABLE {table} DROP PARTITION FIELD at_day",
        f"INSERT INTO {table} VALUES {VALUES[1]}, {VALUES[2]}",
    )
    assert_same_files(spark, table)
    found = mine(spark, table, "spec_id, partition").collect()
    # Version 1 keeps dropped fields as nulls.
    last = {"at_day", "shard"} if version == 1 else {"shard"}
    assert {row.spec_id: set(row.partition) for row in found} == {
        0: {"at_day"},
        1: {"at_day", "shard"},
        2: last,
    }


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_are_files_too(spark: SparkSession, namespace: str, version: int) -> None:
    table = f"{namespace}.deletes"
    run(
        spark,
        f"CREATE TABLE {table} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '{version}', "
        "'write.delete.mode' = 'merge-on-read')",
        f"INSERT INTO {table} SELECT id FROM range(0, 20, 1, 1)",
        f"INSERT INTO {table} SELECT id FROM range(20, 40, 1, 1)",
        f"DELETE FROM {table} WHERE id IN (3, 4, 25)",
    )
    assert_same_files(spark, table)
    deletes = mine(spark, table, "content, file_format, record_count, referenced_data_file, content_offset")
    found = deletes.filter("content = 'position-deletes'").collect()
    assert sum(row.record_count for row in found) == 3
    if version == 3:  # deletion vectors: two of them in one file
        assert len(found) == 2
        assert {row.file_format for row in found} == {"PUFFIN"}
        data = {row.file_path for row in mine(spark, table, "file_path").collect()}
        assert {row.referenced_data_file for row in found} < data


def test_equality_deletes(spark: SparkSession, namespace: str) -> None:
    table = f"{namespace}.equality"
    run(
        spark,
        f"CREATE TABLE {table} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '2')",
        f"INSERT INTO {table} VALUES (1)",
    )
    jvm: Any = spark._jvm
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table)
    ids = spark._sc._gateway.new_array(jvm.int, 1)  # type: ignore[union-attr]  # not of Spark Connect
    ids[0] = 1
    deletes = (
        jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(loaded.spec())
        .ofEqualityDeletes(ids)
        .withPath(f"{loaded.location()}/data/eq.parquet")
        .withFileSizeInBytes(123)
        .withRecordCount(1)
        .build()
    )
    loaded.newRowDelta().addDeletes(deletes).commit()
    spark.sql(f"REFRESH TABLE {table}")
    assert_same_files(spark, table)
    [row] = mine(spark, table, "*").filter("content = 'equality-deletes'").collect()
    assert (row.equality_ids, row.file_size_in_bytes, row.sequence_number) == ([1], 123, 2)


@pytest.fixture
def branched(spark: SparkSession, namespace: str) -> str:
    """A table with one file in main, another in a branch, and a tag of the first."""
    table = f"{namespace}.branched"
    run(
        spark,
        f"CREATE TABLE {table} (id BIGINT) USING iceberg",
        f"INSERT INTO {table} VALUES (1)",
        f"ALTER TABLE {table} CREATE BRANCH audit",
        f"ALTER TABLE {table} CREATE TAG first",
        f"INSERT INTO {table}.branch_audit VALUES (2)",
    )
    return table


def test_files_of_branches_and_tags_are_shown_if_asked_for(spark: SparkSession, branched: str) -> None:
    assert_same_files(spark, branched)
    current = mine(spark, branched, "refs, snapshot_id").collect()
    assert [row.refs for row in current] == [["first", "main"]]
    every = mine(spark, branched, "explode(refs) AS ref, file_path", "refs")
    for ref in ("main", "audit", "first"):
        theirs = spark.sql(f"SELECT '{ref}' AS ref, file_path FROM {branched}.files VERSION AS OF '{ref}'")
        assert_df_equality(
            every.filter(f"ref = '{ref}'"),
            theirs,
            ignore_row_order=True,
            ignore_nullable=True,
            ignore_metadata=True,
        )
    read = spark.read.option("snapshots", "refs").table("polaris.system.files")
    assert (
        read.filter(f"namespace = '{branched.split('.')[1]}'").count()
        == every.select("file_path").count() - 1
    )


def test_files_are_those_of_a_point_in_time(spark: SparkSession, namespace: str) -> None:
    table = f"{namespace}.t"
    run(spark, f"CREATE TABLE {table} (id BIGINT) USING iceberg", f"INSERT INTO {table} VALUES (1)")
    [before] = spark.sql("SELECT max_by(commit_id, number) AS id FROM polaris.system.commits").collect()
    expected = sorted(row.file_path for row in spark.sql(f"SELECT file_path FROM {table}.files").collect())
    run(spark, f"INSERT OVERWRITE {table} VALUES (2)", f"ALTER TABLE {table} RENAME TO {namespace}.renamed")
    of = f"WHERE namespace = '{namespace.split('.')[1]}'"
    then = spark.sql(
        f"SELECT name, file_path FROM polaris.system.files VERSION AS OF {before.id} {of}"
    ).collect()
    now = spark.sql(f"SELECT name, file_path FROM polaris.system.files {of}").collect()
    assert sorted(row.file_path for row in then) == expected
    assert [row.name for row in then] == ["t"]
    assert [row.name for row in now] == ["renamed"]
    assert now[0].file_path not in expected


def test_files_are_those_that_pyiceberg_finds(
    spark: SparkSession, place: CatalogPlace, namespace: str
) -> None:
    table = f"{namespace}.t"
    partitioned(spark, table, "days(at), what")
    catalog = load_catalog(
        "polaris", **{"py-catalog-impl": "polaris_spark.pyiceberg.PolarisCatalog", "store": place.store}
    )
    theirs = catalog.load_table((namespace.split(".")[1], "t")).inspect.files().to_pylist()
    ours = mine(spark, table, "file_path, record_count, file_size_in_bytes, spec_id, lower_bounds").collect()
    assert sorted(
        (f["file_path"], f["record_count"], f["file_size_in_bytes"], f["spec_id"], dict(f["lower_bounds"]))
        for f in theirs
    ) == sorted((*row[:4], {k: bytes(v) for k, v in row.lower_bounds.items()}) for row in ours)


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_filters_give_the_same_with_pushdown_on_and_off(
    spark: SparkSession, branched: str, pushdown: str
) -> None:
    spark.conf.set(PUSHDOWN, pushdown)
    try:
        for condition, n in (
            ("content = 'data'", 1),
            ("content = 'position-deletes'", 0),
            ("content IN ('data', 'equality-deletes') AND catalog = 'polaris'", 1),
            ("catalog = 'other'", 0),
            ("file_path LIKE '%.parquet' AND record_count = 1", 1),
        ):
            # Without pushdown every table is read, also those whose files other tests of this module removed.
            found = mine(spark, branched, "*", unreadable="report").filter(condition)
            assert found.count() == n, condition
    finally:
        spark.conf.unset(PUSHDOWN)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the locations of the Avro files that this process opens."""
    from polaris_spark.catalog.manifests import manifest_entries

    found: list[str] = []
    original = manifest_entries.open_avro

    def recorded(files: Any, location: str) -> Any:
        found.append(location)
        return original(files, location)

    monkeypatch.setattr(manifest_entries, "open_avro", recorded)
    return found


def test_manifests_that_hold_nothing_wanted_are_not_opened(
    spark: SparkSession, place: CatalogPlace, namespace: str, opened: list[str]
) -> None:
    table = f"{namespace}.t"
    run(
        spark,
        f"CREATE TABLE {table} (id BIGINT) USING iceberg TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')",
        f"INSERT INTO {table} SELECT id FROM range(0, 20, 1, 1)",
        f"DELETE FROM {table} WHERE id = 3",
    )
    where = (EqualTo(("namespace",), namespace.split(".")[1]), EqualTo(("name",), "t"))
    read: Callable[..., Any] = lambda *more: rows(  # noqa: E731  # one line for three uses
        "files", *where, *more, store=place.store, catalog="polaris", prune="true"
    )
    manifests = {row.path for row in spark.sql(f"SELECT path FROM {table}.manifests").collect()}
    assert len(read()) == len(manifests) == 2
    assert len(opened) == 3
    opened.clear()
    [only] = read(EqualTo(("content",), "position-deletes"))
    assert opened[1:] == [only["manifest_path"]]


@pytest.fixture
def broken(spark: SparkSession, namespace: str) -> Iterator[tuple[str, str]]:
    """A table of three files whose only manifest was deleted, and the manifest's location."""
    table = f"{namespace}.broken"
    partitioned(spark, table, "what")
    [row] = spark.sql(f"SELECT path FROM {table}.manifests").collect()
    Path(row.path.removeprefix("file:")).unlink()
    yield table, row.path
    spark.sql(f"DROP TABLE {table}")  # others look at the whole catalog


def test_files_are_counted_by_manifest_lists_alone(spark: SparkSession, broken: tuple[str, str]) -> None:
    assert mine(spark, broken[0], "count(*) AS n").collect()[0].n == 3


def test_a_missing_manifest_is_named(
    spark: SparkSession, place: CatalogPlace, namespace: str, broken: tuple[str, str]
) -> None:
    table, path = broken
    run(spark, f"CREATE TABLE {namespace}.whole AS SELECT 1 AS id")
    with pytest.raises(Exception, match=r"broken.*no file.*" + Path(path).name):
        mine(spark, table, "file_path").collect()
    where = (EqualTo(("namespace",), namespace.split(".")[1]),)
    options = {"store": place.store, "catalog": "polaris", "prune": "true"}
    with pytest.raises(MissingFileError, match="unreadable=report") as caught:
        rows("files", *where, **options)
    assert caught.value.location == path
    found = {one["name"]: one for one in rows("files", *where, unreadable="report", **options)}
    assert path in found["broken"]["error"]
    assert found["broken"]["manifest_path"] == path
    assert found["whole"]["error"] is None
    assert found["whole"]["record_count"] == 1


def test_a_table_of_many_files_is_read_by_several_tasks(
    spark: SparkSession, place: CatalogPlace, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polaris_spark.spark.views import file_plan

    monkeypatch.setattr(file_plan, "FILES_TOGETHER", 60)
    for name, n in (("a", 1), ("large", 6), ("z", 2), ("zz", 1)):
        table = f"{namespace}.{name}"
        run(spark, f"CREATE TABLE {table} (id BIGINT) USING iceberg PARTITIONED BY (bucket(4, id))")
        for _ in range(n):
            run(spark, f"INSERT INTO {table} SELECT id FROM range(20)")
    where = (EqualTo(("namespace",), namespace.split(".")[1]),)
    for snapshots, times in (("current", 1), ("all", 1)):
        found = rows("files", *where, store=place.store, catalog="polaris", prune="true", snapshots=snapshots)
        paths = [row["file_path"] for row in found]
        assert len(paths) == len(set(paths)) == times * 4 * (1 + 6 + 2 + 1)


def test_a_table_that_was_imported_unread_has_its_files(
    spark: SparkSession, place: CatalogPlace, namespace: str
) -> None:
    from polaris_spark import connect
    from polaris_spark.jobs.registry import call

    table = f"{namespace}.t"
    partitioned(spark, table, "what")
    catalog = f"copy_of_{namespace.split('.')[1]}"
    session = connect(store=place.store, warehouse=place.warehouse, catalog=catalog, shared_locations="allow")
    source = {"source": "directory", "location": f"{place.warehouse}/{namespace.split('.')[1]}"}
    call(session, "import_catalog", **source, into="copied", lazy=True)
    session.close()
    options = {"store": place.store, "catalog": catalog}
    ours = sorted(row["file_path"] for row in rows("files", **options))
    assert ours == sorted(
        row.file_path for row in spark.sql(f"SELECT file_path FROM {table}.files").collect()
    )
    assert [row["location"] for row in rows("tables", **options)] != []


def test_properties_of_files_may_stand_in_the_environment(
    place: CatalogPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LISTED_VARIABLES, "A_SECRET_OF_FILES")
    options = {"store": place.store, "files.s3.secret-access-key": "env:A_SECRET_OF_FILES"}
    with pytest.raises(InputError, match="A_SECRET_OF_FILES"):
        rows("files", **options)
    monkeypatch.setenv("A_SECRET_OF_FILES", "hidden")
    assert rows("files", EqualTo(("catalog",), "none"), **options, prune="true") == []
    with pytest.raises(InputError, match="'snapshots' is 'some'; it must be one of: current, refs, all"):
        rows("files", **options, snapshots="some")
