"""`sweep`: deletes every object that neither a reference nor the retained history of a reference needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from polaris_spark.jobs.engine import engine_of
from polaris_spark.jobs.maintenance import job, policy_of, unless_dry_run
from polaris_spark.jobs.procedure import Call, Parameter, columns


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.ids import id_time_ms
    from polaris_spark.maintenance.sweep import Count, sweep

    session, properties = call.session, call.session.properties
    references = session.catalog.references
    session.connection.realms.active(properties.realm)
    policy, dry_run = policy_of(call, arguments), bool(arguments.get("dry_run", False))
    operation = session.operation()
    engine = engine_of(call, writes_to=references.store.backend)
    swept = sweep(references, policy, operation=operation, engine=engine, dry_run=dry_run)
    kept_from = references.clock.now_ms() - policy.retention_of(session.catalog.reference)
    return [
        (
            properties.realm,
            count.type,
            count.objects,
            count.rows,
            count.bytes,
            not dry_run,
            _time(id_time_ms(swept.roots.limit)),
            _time(kept_from),
            None if dry_run else swept.roots.fence,
        )
        for count in swept.counts or [Count(None, 0, 0, 0)]
    ]


def _time(ms: int) -> datetime:
    """Return a time in milliseconds since 1970 as a datetime.

    A time before 1970, which results from a very long retention, is replaced by the beginning of 1970.
    """
    return datetime.fromtimestamp(max(0, ms) / 1_000, timezone.utc)


PROCEDURE = job(
    name="sweep",
    comment="Delete every object of the realm that neither a reference nor retained history needs.",
    parameters=(
        Parameter("dry_run", "BOOLEAN", "only report what would be deleted, and change nothing"),
        Parameter(
            "retention", "STRING", "time for which history is kept; default: the property history-retention"
        ),
        Parameter(
            "grace",
            "STRING",
            "time for which unreachable rows and dropped references are kept; default: the property grace",
        ),
    ),
    columns=columns(
        "realm STRING, type STRING, objects BIGINT, rows BIGINT, bytes BIGINT, deleted BOOLEAN, "
        "older_than TIMESTAMP, history_from TIMESTAMP, fence BIGINT"
    ),
    run=_run,
    over_http=True,
    deletes=unless_dry_run,
    idle=lambda row: row[1] is None,
)
