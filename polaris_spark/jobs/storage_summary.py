"""`storage_summary`: returns the amount of data that the realm stores, by object type and age."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polaris_spark.access.needs import Need, On
from polaris_spark.jobs.engine import engine_of
from polaris_spark.jobs.procedure import Call, Procedure, columns


def _run(call: Call, _: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.jobs.stored_sizes import storage

    return storage(engine_of(call), call.session.connection.clock.now_ms())


PROCEDURE = Procedure(
    name="storage_summary",
    needs=(Need("CATALOG_READ_LOG", On.CATALOG),),
    parameters=(),
    columns=columns("type STRING, age_group INT, age STRING, objects BIGINT, rows BIGINT, bytes BIGINT"),
    run=_run,
    over_http=True,
    only_reads=True,
    comment="Show how much data the realm stores, by object type and age.",
    uses_spark=True,
)
