"""Choice of where the parallel work of a procedure runs: on Spark's executors or in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polaris_spark.backends.base import Backend
    from polaris_spark.catalog.engine import Engine
    from polaris_spark.jobs.procedure import Call

_SHARED = ("machine", "cluster")
"""Values of `Backend.scope` for databases to which several processes can write."""


def engine_of(call: Call, *, writes_to: Backend | None = None) -> Engine:
    """Return the engine that runs the parallel work of a call.

    The engine uses Spark's executors if the call has a Spark session and the executors can access the databases that
    the work needs. Otherwise, the work runs in this process.

    Args:
        writes_to: the database in which the work writes or deletes rows; None if the work only reads.
    """
    from polaris_spark.catalog.engine import LocalEngine, Reach

    session = call.session
    own = session.catalog.references.store
    local = LocalEngine(Reach(own, session.catalog.files, session.connection.clock), call.progress)
    if not call.has_executors or (writes_to is not None and writes_to.scope not in _SHARED):
        return local
    from polaris_spark.spark.engine import SparkEngine
    from polaris_spark.spark.options import location_of

    properties = session.properties
    location = location_of(properties).resolved()
    return SparkEngine(call.spark, location, properties.other, local, realm=properties.realm)
