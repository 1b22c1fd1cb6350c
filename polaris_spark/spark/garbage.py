"""The rows that a sweep (garbage collection) would delete, as a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polaris_spark.clock import EPOCH_MS
from polaris_spark.ids import NODE_BITS, SEQUENCE_BITS
from polaris_spark.maintenance import sweep
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.sweep_roots import list_roots_only
from polaris_spark.spark.engine import SparkEngine, frame_of
from polaris_spark.system.registry import References

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def garbage(engine: SparkEngine, references: References, policy: Policy) -> DataFrame:
    """Return the rows that a sweep (garbage collection) would delete now. Delete nothing.

    Returns:
        columns `id`, `part`, `type` (null if the row has no readable header), `bytes`, and `age`: time since the
        object's id was generated, in milliseconds.
    """
    from pyspark.sql import functions as f

    roots = list_roots_only(references, policy, engine.progress)
    made = f.shiftright("id", NODE_BITS + SEQUENCE_BITS) + EPOCH_MS
    found = frame_of(sweep.garbage(engine, references, roots))
    return found.withColumn("age", f.lit(references.clock.now_ms()) - made)
