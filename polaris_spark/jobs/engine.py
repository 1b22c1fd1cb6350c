"""The choice of the engine that runs the parallel work of a procedure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polaris_spark.catalog.engine import Engine
    from polaris_spark.jobs.procedure import Call

_SHARED = ("machine", "cluster")
"""Scopes of stores that several processes can write to."""


def engine_of(call: Call, *, writes_rows: bool = False) -> Engine:
    """Return the engine that runs the parallel work of a call.

    Executors do the work if the call has a Spark session and they can access the store; otherwise this process does.

    Args:
        writes_rows: whether the work writes or deletes rows of the store.
    """
    from polaris_spark.catalog.engine import LocalEngine, Reach

    session = call.session
    own = session.catalog.references.store
    local = LocalEngine(Reach(own.backend, own.of_realm, session.catalog.files), call.progress)
    if not call.has_executors or (writes_rows and own.backend.scope not in _SHARED):
        return local
    from polaris_spark.spark.engine import SparkEngine
    from polaris_spark.spark.options import location_of

    return SparkEngine(
        call.spark(), location_of(session.properties).resolved(), session.properties.other, local
    )
