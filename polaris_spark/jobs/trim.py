"""`trim`: drops history older than the retention. A sweep can then delete the rows that only this history needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from polaris_spark.jobs.maintenance import job, policy_of, unless_dry_run
from polaris_spark.jobs.procedure import Call, Parameter, columns


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.trim import trim

    policy = policy_of(call, arguments)
    trimmed = trim(
        call.session.catalog.references,
        policy,
        call.session.operation(),
        dry_run=arguments.get("dry_run", False),
        progress=lambda done, of: call.progress("trimming references", done, of),
    )
    return [
        (one.reference, one.before, one.after, datetime.fromtimestamp(one.time / 1_000, timezone.utc))
        for one in trimmed
    ]


PROCEDURE = job(
    name="trim",
    comment="Drop the history of all references that is older than the retention; a sweep can then delete its rows.",
    parameters=(
        Parameter(
            "retention", "STRING", "time for which history is kept; default: the property history-retention"
        ),
        Parameter("dry_run", "BOOLEAN", "only report what would be trimmed"),
    ),
    columns=columns(
        "reference STRING, first_commit_before BIGINT, first_commit BIGINT, first_commit_time TIMESTAMP"
    ),
    run=_run,
    over_http=True,
    deletes=unless_dry_run,
)
