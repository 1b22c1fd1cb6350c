"""`fsck`: finds problems in the store, and names the exact row of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polaris_spark.jobs.maintaining import job
from polaris_spark.jobs.procedure import Call, Column, Parameter


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.checking.checker import Check
    from polaris_spark.maintenance.periods import realm_policy
    from polaris_spark.spark.jobs.fsck import Executors
    from polaris_spark.spark.options import location_of

    session = call.session
    executors = None
    if call.has_executors:
        executors = Executors(call.spark(), location_of(session.properties).resolved())
    check = Check(
        session.connection.backend,
        session.connection.clock,
        realm=arguments.get("only"),
        grace_ms=realm_policy(session.catalog).shortest_grace_ms,
        parts=executors.parts if executors else 1,
        carry=executors.carry if executors else None,
        follow=executors.follow if executors else None,
        progress=call.progress,
    )
    return [tuple(problem) for problem in check.run()]


PROCEDURE = job(
    name="fsck",
    comment="Find every row of the store that is damaged, missing or inconsistent with others, and name it.",
    parameters=(Parameter("only", "STRING", "check only this realm; by default, all realms of the store"),),
    columns=(
        Column("severity", "STRING"),
        Column("kind", "STRING"),
        Column("realm", "STRING"),
        Column("reference", "STRING"),
        Column("key", "STRING"),
        Column("path", "STRING"),
        Column("message", "STRING"),
    ),
    run=_run,
    scope="store",
    finds_faults=True,
)
