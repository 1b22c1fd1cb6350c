"""The amount of data that a realm stores, by object type and age: one pass over all rows, on database splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from polaris_spark.clock import Clock, SystemClock
from polaris_spark.config import Properties
from polaris_spark.ids import id_time_ms
from polaris_spark.spark.jobs.scanning import scanned
from polaris_spark.spark.options import location_of
from polaris_spark.spark.planned import PlannedStore
from polaris_spark.spark.reading import ReadStore
from polaris_spark.spark.views.stored import stored_objects

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from polaris_spark.backends.base import Split

_HOUR = 3_600_000
AGES = (
    (_HOUR, "under 1 hour"),
    (24 * _HOUR, "1 to 24 hours"),
    (7 * 24 * _HOUR, "1 to 7 days"),
    (30 * 24 * _HOUR, "7 to 30 days"),
    (90 * 24 * _HOUR, "30 to 90 days"),
)
"""Upper bound (exclusive) of each age group, in milliseconds, and the group's name."""

OLDEST = "90 days and more"
_SCHEMA = "type string, age_group int, age string, objects bigint, rows bigint, bytes bigint"


def storage(
    spark: SparkSession,
    *,
    store: str,
    realm: str = "default",
    splits: int | None = None,
    store_options: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> DataFrame:
    """Return the amount of data that a realm stores: one row per object type and age group.

    Args:
        spark: the session whose executors read the rows.
        store: URI of the store, without a password.
        realm: name of the realm.
        splits: approximate number of splits for reading the rows; default: Spark's default parallelism.
        store_options: options of the store, such as `password`. A value may be `env:NAME`.
        clock: clock for the ages of objects.
    Returns:
        columns `type` (null for rows that cannot be read), `age_group` (0 is the youngest), `age`, `objects`, `rows`
        and `bytes`, sorted by type and age group.
    Raises:
        InputError: the store cannot be read by executors, or an option cannot be used.
        RealmStateError: the realm does not exist, or is not ACTIVE.
    """
    from pyspark.sql.functions import col
    from pyspark.sql.functions import sum as total

    given = {"store": store, **{f"store.{k}": v for k, v in (store_options or {}).items()}}
    planned = PlannedStore(location_of(Properties.parse(given, refuse_uri_password=True)).resolved())
    opened = planned.open()
    n = splits or spark.sparkContext.defaultParallelism
    parts = opened.backend.splits("objects", [opened.realm(realm).store.realm], n)
    work = partial(_sums, now_ms=(clock or SystemClock()).now_ms())
    found = scanned(spark, planned, parts, work, _SCHEMA)
    sums = [total(name).alias(name) for name in ("objects", "rows", "bytes")]
    groups = found.groupBy("type", "age_group", "age").agg(*sums)
    return groups.orderBy(col("type").asc_nulls_last(), "age_group")


def age_group(id: int, now_ms: int) -> int:
    """Return the number of an object's age group; 0 is the youngest."""
    age = now_ms - id_time_ms(id)
    return next((group for group, (limit, _) in enumerate(AGES) if age < limit), len(AGES))


def _sums(store: ReadStore, split: Split, *, now_ms: int) -> Iterator[pa.RecordBatch]:
    sums: dict[tuple[str | None, int], list[int]] = {}
    for stored in stored_objects(store.backend, split, whole=False):
        key = (stored.header.type if stored.header else None, age_group(stored.id, now_ms))
        found = sums.setdefault(key, [0, 0, 0])
        found[0] += 1
        found[1] += stored.parts
        found[2] += stored.size
    yield _batch(sums)


def _batch(sums: Mapping[tuple[str | None, int], list[int]]) -> pa.RecordBatch:
    import pyarrow as pa

    names = [limit_name for _, limit_name in AGES] + [OLDEST]
    types, groups = [type for type, _ in sums], [group for _, group in sums]
    objects, rows, sizes = ([one[i] for one in sums.values()] for i in range(3))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(types, pa.string()),
            pa.array(groups, pa.int32()),
            pa.array([names[group] for group in groups], pa.string()),
            pa.array(objects, pa.int64()),
            pa.array(rows, pa.int64()),
            pa.array(sizes, pa.int64()),
        ],
        names=["type", "age_group", "age", "objects", "rows", "bytes"],
    )
