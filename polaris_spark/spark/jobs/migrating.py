"""Comparison of a migrated realm with its source on executors, as DataFrames."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from polaris_spark.backends.base import Backend
from polaris_spark.catalog.engine import Reach
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.errors import PolarisError
from polaris_spark.maintenance.migrating.check import Compared, compare_objects
from polaris_spark.maintenance.migrating.copy import RealmRows, rows_of_batch
from polaris_spark.maintenance.migrating.marks import Held
from polaris_spark.objects import decode_header, type_name
from polaris_spark.spark.engine import SparkEngine
from polaris_spark.spark.options import StoreLocation
from polaris_spark.spark.planned import PlannedStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from polaris_spark.backends.base import Split

_MANY = 10_000
"""From this many differing objects on, it is not worth checking whether heads need them before comparing each object.
"""

_SIDE = "id bigint, part int, digest binary, points array<bigint>"
_COMMIT = type_name(Commit)


def opener(target: StoreLocation) -> Callable[[], Backend]:
    """Return a function that opens the target on executors; `target` has resolved secrets."""
    return partial(_opened, PlannedStore(target))


def _opened(store: PlannedStore) -> Backend:
    return store.open().backend


def compare(
    engine: SparkEngine, location: StoreLocation, source: RealmRows, target: RealmRows, heads: Sequence[Held]
) -> Compared:
    """Compare the rows of all objects that heads need.

    Both sides are joined by key. Rows that differ may be harmless: commit attempts that failed after the copy left
    rows in the source only, and no object points to them. If a head or another object needs an object that differs,
    this process compares object by object.

    Args:
        engine: an engine whose store is the source.
        location: location of the target, with resolved secrets.
    Raises:
        CorruptionError: a row is missing in the source.
    """
    from pyspark.sql import functions as f

    engine.progress("comparing rows", 0, 0)
    here = _side(engine, source).select("id", "part", "digest")
    there = _side(engine, target, location).select("id", "part", f.col("digest").alias("copy"))
    both = here.join(there, ["id", "part"], "left")
    differs = ~f.col("digest").eqNullSafe(f.col("copy"))
    counted = both.select(f.count(f.lit(1)).alias("rows"), f.count_if(differs).alias("differ")).first()
    assert counted is not None
    if counted["differ"]:
        engine.progress("reading rows that differ", 0, 0)
        ids = both.where(differs).select("id").distinct().limit(_MANY).collect()
        suspects = {row["id"] for row in ids}
        found = [held.head for held in heads]
        if len(suspects) == _MANY or _needed(engine, source, suspects, found):
            return compare_objects(
                source, target, found, lambda done: engine.progress("comparing objects", done, 0)
            )
    return Compared(0, counted["rows"], (), 0)


def _needed(engine: SparkEngine, source: RealmRows, suspects: set[int], heads: Sequence[Head]) -> set[int]:
    """Return the suspects that are reachable from a head, or from an object that is not a suspect."""
    from pyspark.sql import functions as f

    side = _side(engine, source)
    edges = side.select("id", f.explode("points").alias("to"))
    pairs = edges.where(f.col("to").isin(*suspects)).distinct().collect()
    needed = {head.commit for head in heads} & suspects
    needed |= {row["to"] for row in pairs if row["id"] not in suspects}
    below: dict[int, set[int]] = {}
    for row in pairs:
        below.setdefault(row["id"], set()).add(row["to"])
    waiting = list(needed)
    while waiting:
        further = below.get(waiting.pop(), set()) - needed
        needed |= further
        waiting += further
    return needed


def _side(engine: SparkEngine, place: RealmRows, location: StoreLocation | None = None) -> DataFrame:
    """Return the rows of one store: id, part, a digest of the value, and the ids that the object points to.

    Args:
        location: location of the target; None for the source.
    """
    splits = place.backend.splits("objects", [place.realm], engine.parts * 2)
    return engine.scan(_digests, splits, _SIDE, store=location)


def _digests(reach: Reach, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split, with a digest in place of the value."""
    import pyarrow as pa

    for batch in reach.backend.scan(split):
        rows = rows_of_batch(batch)
        digests = [hashlib.sha256(row.value).digest() for row in rows]
        points = [_points(row.value) if row.part == 0 else [] for row in rows]
        yield pa.RecordBatch.from_pydict(
            {
                "id": pa.array([row.id for row in rows], pa.int64()),
                "part": pa.array([row.part for row in rows], pa.int32()),
                "digest": pa.array(digests, pa.binary()),
                "points": pa.array(points, pa.list_(pa.int64())),
            }
        )


def _points(value: bytes) -> list[int]:
    """Return the ids that an object needs, from its first row. A commit also needs its ancestors.

    The result is empty for a row that cannot be read.
    """
    try:
        header = decode_header(value, "")
    except PolarisError:
        return []
    return list(header.strong + header.weak) if header.type == _COMMIT else list(header.strong)
