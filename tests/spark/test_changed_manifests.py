"""Which manifests of a table an incremental refresh reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.iceberg_writer import Writer
from tests.spark.sql import rows, run
from tests.spark.test_incremental_changes import MERGE_ON_READ
from tests.spark.test_incremental_refresh import ALWAYS, contents, home, refreshed

__all__ = ["home"]  # a fixture
pytestmark = pytest.mark.spark

VERSIONS = {"position deletes": 2, "equality deletes": 2, "deletion vectors": 3}


def table(spark: SparkSession, kind: str, partitioned: str = "") -> None:
    """Create the table p, and the view v on it. Each write keeps the manifests of the earlier ones."""
    properties = f"'format-version' = '{VERSIONS[kind]}', 'commit.manifest-merge.enabled' = 'false'"
    run(
        spark,
        f"CREATE TABLE p (id BIGINT, region STRING) {partitioned} TBLPROPERTIES ({properties}, {MERGE_ON_READ})",
        f"CREATE MATERIALIZED VIEW v TBLPROPERTIES ({ALWAYS}) AS SELECT id, region FROM p",
    )


def insert(spark: SparkSession, region: int, first: int) -> None:
    """Write a data file of four rows, whose ids begin with `first`."""
    run(spark, f"INSERT INTO p SELECT id, 'r{region}' FROM range({first}, {first + 4}, 1, 1)")


def delete(spark: SparkSession, home: str, kind: str, id: int, **partition: str) -> None:
    if kind != "equality deletes":
        run(spark, f"DELETE FROM p WHERE id = {id}")
        return
    writer = Writer(spark, f"{home}.p")
    writer.row_delta([writer.deletes([{"id": id}], **partition)])


def manifests(spark: SparkSession, home: str, where: str = "true") -> set[str]:
    return {path for (path,) in rows(spark, f"SELECT path FROM {home}.p.manifests WHERE {where}")}


def of_other_regions(spark: SparkSession, home: str) -> set[str]:
    """Return the manifests of the regions r0 and r2."""
    found = spark.sql(f"SELECT path, partition_summaries FROM {home}.p.manifests").collect()
    return {path for path, [region] in found if region.lower_bound != "r1"}


@contextmanager
def hidden(paths: set[str]) -> Iterator[None]:
    """Context manager in which files do not exist."""
    moved = [
        (file, file.with_suffix(".away")) for file in (Path(path.removeprefix("file:")) for path in paths)
    ]
    for file, away in moved:
        file.rename(away)
    try:
        yield
    finally:
        for file, away in moved:
            away.rename(file)


def require_incremental(spark: SparkSession, home: str, unread: set[str]) -> None:
    """Check a refresh while some manifests do not exist."""
    assert unread <= manifests(spark, home)
    with hidden(unread):
        assert refreshed(spark, "v")[0] == "incremental"
    assert contents(spark, f"SELECT * FROM {home}.v.storage") == contents(spark, "SELECT * FROM p")


SOME_KINDS = [
    pytest.param(kind, marks=[pytest.mark.exhaustive] if kind == "position deletes" else [])
    for kind in VERSIONS
]
"""The kinds of delete files; position deletes are tested in the ordinary run by the other tests of changes."""


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_deleted_rows_need_only_the_manifests_of_their_partition(
    spark: SparkSession, home: str, kind: str
) -> None:
    table(spark, kind, "PARTITIONED BY (region)")
    for number in range(6):
        insert(spark, number % 3, 10 * number)
    for number in range(3):
        delete(spark, home, kind, 10 * number, region=f"r{number}")
    refreshed(spark, "v")
    before = manifests(spark, home)
    delete(spark, home, kind, 11, region="r1")
    delete(spark, home, kind, 41, region="r1")
    insert(spark, 2, 60)
    others = of_other_regions(spark, home) & before
    assert len(others) == 6  # two of data and one of deletes in each of the other partitions
    require_incremental(spark, home, others)


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_older_manifests_of_deletes_are_not_read_for_newer_files(
    spark: SparkSession, home: str, kind: str
) -> None:
    table(spark, kind)
    for number in range(3):
        insert(spark, 0, 10 * number)
        delete(spark, home, kind, 10 * number)
    insert(spark, 0, 30)
    refreshed(spark, "v")
    before = manifests(spark, home, "content = 1")
    if kind == "equality deletes":  # it applies to all older files
        insert(spark, 0, 40)
        require_incremental(spark, home, manifests(spark, home) & before)
        return
    delete(spark, home, kind, 31)
    assert len(before) == 3
    require_incremental(spark, home, before)


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_files_that_are_removed_with_their_deletes_need_no_manifest_that_stays(
    spark: SparkSession, home: str, kind: str
) -> None:
    table(spark, kind, "PARTITIONED BY (region)")
    for number in range(3):
        insert(spark, number, 10 * number)
        delete(spark, home, kind, 10 * number, region=f"r{number}")
    refreshed(spark, "v")
    before = manifests(spark, home)
    run(spark, "DELETE FROM p WHERE region = 'r1'")
    insert(spark, 1, 50)
    others = of_other_regions(spark, home) & before
    assert len(others) == 4
    require_incremental(spark, home, others)
