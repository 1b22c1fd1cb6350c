"""`trim`: history older than the retention is given up, so that a sweep may take what only it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from polaris_spark.config import duration_ms
from polaris_spark.maintenance.trimming import check_retention, trim
from polaris_spark.spark.procedures.maintaining import job
from polaris_spark.spark.procedures.procedure import Call, Column, Parameter


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    properties = call.session.properties
    given = arguments.get("retention")
    retention = properties.history_retention if given is None else duration_ms("retention", given)
    check_retention(
        retention, grace_ms=properties.grace, operation_lifetime_ms=properties.idempotency_key_lifetime
    )
    trimmed = trim(
        call.session.catalog.references,
        retention_ms=retention,
        dry_run=arguments.get("dry_run", False),
        progress=lambda done, of: call.progress("trimming references", done, of),
    )
    return [
        (one.reference, one.before, one.after, datetime.fromtimestamp(one.time / 1_000, timezone.utc))
        for one in trimmed
    ]


PROCEDURE = job(
    name="trim",
    comment="Gives up the history of all references that is older than the retention.",
    parameters=(
        Parameter(
            "retention", "STRING", "how long history is kept; the property history-retention if left out"
        ),
        Parameter("dry_run", "BOOLEAN", "only say what would be given up"),
    ),
    columns=(
        Column("reference", "STRING"),
        Column("first_commit_before", "BIGINT"),
        Column("first_commit", "BIGINT"),
        Column("first_commit_time", "TIMESTAMP"),
    ),
    run=_run,
)
