"""`storage_summary`: returns the amount of data that the realm stores, by object type and age."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polaris_spark.jobs.procedure import Call, Column, Procedure


def _run(call: Call, _: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.config import Secret
    from polaris_spark.spark.jobs.storage import storage
    from polaris_spark.spark.options import location_of

    properties = call.session.properties
    location = location_of(properties).resolved()
    options = {k: v.reveal() if isinstance(v, Secret) else v for k, v in location.options}
    summary = storage(call.spark(), store=location.uri, realm=properties.realm, store_options=options)
    return [tuple(row) for row in summary.collect()]


PROCEDURE = Procedure(
    name="storage_summary",
    parameters=(),
    columns=(
        Column("type", "STRING"),
        Column("age_group", "INT"),
        Column("age", "STRING"),
        Column("objects", "BIGINT"),
        Column("rows", "BIGINT"),
        Column("bytes", "BIGINT"),
    ),
    run=_run,
    over_http=True,
    comment="Show how much the realm stores, by type of object and age.",
    uses_spark=True,
)
